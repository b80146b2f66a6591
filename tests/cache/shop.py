"""A served shop with cached queries, in tests: any number of nodes on one database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from forge.app import Forge
from forge.cache import Cache
from forge.cache.validity import Shown
from forge.cursor import NOW, After
from forge.react.group import Settings
from forge.react.registry import ANYONE, Auth
from forge.serve.auth import TokenIdentity
from forge.serve.node import Node, Options
from tests.changelog.following import eventually

QUICK = Settings(quiet=0.005, longest=0.05, check=1e9, resync=1e9)


class Shop:
    """A node of the shop, and how often its queries ran."""

    def __init__(self, app: Forge, node: Node, runs: list[str]) -> None:
        self.app = app
        self.node = node
        self.runs = runs

    @property
    def cache(self) -> Cache:
        return self.app.cache

    async def ask(self, name: str, /, auth: Auth = ANYONE, after: After = NOW, **arguments: Any) -> Any:
        return msgspec.json.decode((await self.shown(name, auth, after, **arguments)).value)

    async def shown(self, name: str, /, auth: Auth = ANYONE, after: After = NOW, **arguments: Any) -> Shown:
        return await self.node.query(name, arguments, TokenIdentity(auth), after)

    async def hit(self, name: str, /, auth: Auth = ANYONE, after: After = NOW, **arguments: Any) -> bool:
        return bool((await self.shown(name, auth, after, **arguments)).hit)

    async def change(self, name: str, /, auth: Auth = ANYONE, **arguments: Any) -> int | None:
        _, answer = await self.node.mutate(name, arguments, TokenIdentity(auth), None)
        return None if answer.xid is None else int(answer.xid)

    async def cached(self) -> None:
        """Return when the log is followed, so that the cache is used."""
        await eventually(lambda: self.node.cached is not None and self.node.cached.keeper.ledger.alive)

    async def followed(self, *xids: int | None) -> None:
        """Return when the node has read these transactions from the log."""
        assert self.node.cached is not None
        ledger = self.node.cached.keeper.ledger

        def read() -> bool:
            return all(xid is None or (ledger.followed is not None and ledger.followed.sees(xid)) for xid in xids)

        await eventually(read)


def application(database: str, cache: Cache | None = None, **options: Any) -> tuple[Forge, list[str]]:
    """The shop; the list gets the name of each query that runs."""
    app = Forge(database, settings=QUICK, options=Options(), cache=cache, **options)
    runs: list[str] = []

    @app.query(cache=60)
    async def orders_of(ctx: Any, customer_id: int) -> Any:
        runs.append("orders_of")
        return await ctx.db.fetch("SELECT id, status FROM orders WHERE customer_id = %(customer_id)s ORDER BY id")

    @app.query(cache=True)
    async def mine(ctx: Any) -> Any:
        runs.append("mine")
        return await ctx.db.fetch("SELECT id, status, %(me)s AS me FROM orders ORDER BY id", me=ctx.auth.user)

    @app.query(cache=60, scope="public")
    async def slow(ctx: Any) -> Any:
        runs.append("slow")
        rows = await ctx.db.fetch("SELECT id, total FROM orders ORDER BY id")
        await asyncio.sleep(0.1)
        return rows

    @app.query(cache=60)
    async def notes(ctx: Any) -> Any:
        runs.append("notes")
        return await ctx.db.fetch("SELECT id, text FROM notes ORDER BY id")

    @app.query
    async def uncached(ctx: Any) -> Any:
        runs.append("uncached")
        return await ctx.db.fetch("SELECT id, total FROM orders ORDER BY id")

    @app.mutation
    async def pay(ctx: Any, id: int, status: str = "paid") -> Any:
        return await ctx.db.execute("UPDATE orders SET status = %(status)s WHERE id = %(id)s")

    @app.mutation
    async def total(ctx: Any, id: int, to: int) -> Any:
        return await ctx.db.execute("UPDATE orders SET total = %(to)s WHERE id = %(id)s")

    @app.mutation
    async def nothing(ctx: Any) -> Any:
        return await ctx.db.fetch_value("SELECT 1 AS one")

    return app, runs


@asynccontextmanager
async def shop_node(database: str, cache: Cache | None = None, **options: Any) -> AsyncIterator[Shop]:
    """A node whose cache is in use, while the block lasts."""
    app, runs = application(database, cache, **options)
    async with app.running() as node:
        found = Shop(app, node, runs)
        await found.cached()
        yield found
