"""What a browser of the tests is served: an application, and beside it the pages of `page/` and what clients/ built.

`/page/*` is this folder's `page/`, `/clients/*` the npm workspace: its `typescript/dist`, its `node_modules`. All else,
`/forge/client.js` too, is the application's.
"""

import os
from pathlib import Path
from typing import Any, Final

from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from forge.app import Forge
from forge.react.group import Settings
from forge.serve.node import Options

ROOT: Final = Path(__file__).resolve().parents[2]
QUICK: Final = Settings(quiet=0.005, longest=0.05, check=1e9)
DATABASE: Final = "BROWSER_DATABASE_URL"
SHOP: Final = """
    CREATE TABLE orders (
        id int PRIMARY KEY, customer_id int NOT NULL, status text NOT NULL, total numeric(10, 2), big bigint);
    SELECT public.forge_enable_reactivity('orders');
    INSERT INTO orders VALUES (1, 7, 'placed', 12.30, 9007199254740993), (2, 7, 'placed', 99, 2), (3, 8, 'paid', 5, 3);
"""


class Site:
    """An ASGI application in front of another one."""

    def __init__(self, app: Forge) -> None:
        self._app = app
        here = Path(__file__).parent / "page"
        self._static = {"/page/": StaticFiles(directory=here), "/clients/": StaticFiles(directory=ROOT / "clients")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for prefix, files in self._static.items():
            if scope["type"] == "http" and scope["path"].startswith(prefix):
                await files({**scope, "root_path": prefix.rstrip("/")}, receive, send)
                return
        await self._app(scope, receive, send)


def shop(url: str, **options: Any) -> Forge:
    """A small application on the table `orders` of SHOP."""
    app = Forge(url, settings=QUICK, options=Options(**options))

    @app.query(key="id")
    async def orders_of(ctx: Any, customer_id: int) -> Any:
        return await ctx.db.fetch(
            "SELECT id, status, total, big FROM orders WHERE customer_id = %(customer_id)s ORDER BY id"
        )

    @app.query
    async def how_many(ctx: Any) -> Any:
        return len(await ctx.db.fetch("SELECT id FROM orders"))

    @app.query
    async def who(ctx: Any) -> Any:
        return {"user": ctx.auth.user, "orders": len(await ctx.db.fetch("SELECT id FROM orders"))}

    @app.mutation
    async def set_status(ctx: Any, order_id: int, status: str) -> Any:
        return await ctx.db.execute("UPDATE orders SET status = %(status)s WHERE id = %(order_id)s")

    @app.mutation
    async def order(ctx: Any, order_id: int, customer_id: int) -> Any:
        return await ctx.db.fetch_value(
            "INSERT INTO orders VALUES (%(order_id)s, %(customer_id)s, 'placed', 1, 1) RETURNING id"
        )

    return app


def site() -> Site:
    """The shop of the database that the environment names, for a server in a process of its own."""
    return Site(shop(os.environ[DATABASE]))
