"""An application in a process of its own, served by uvicorn on uvloop and httptools, and the table that it shows.

`probe` has rows of customers and of tenants. `sent` is the moment just before the statement that wrote it was sent, in
microseconds of the clock that all processes of a machine share.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import jwt
import msgspec
import uvicorn

from benchmarks.bench import FORGE, track
from benchmarks.process import Child, child, many_files, question, reply
from forge.app import Forge
from forge.postgres.connection import connect
from forge.react.database import QueryContext
from forge.react.group import Settings
from forge.serve.auth import AuthSettings
from forge.serve.limits import Limits
from forge.serve.node import Options

SECRET: Final = "0123456789abcdef0123456789abcdef"
_ANY_NUMBER: Final = 1_000_000
_TABLE: Final = """
CREATE TABLE probe (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text, customer_id int, sent bigint);
CREATE INDEX ON probe (customer_id);
CREATE INDEX ON probe (tenant, id);
"""


class Serving(msgspec.Struct, frozen=True):
    """How to serve; times in seconds."""

    url: str
    quiet: float = 0.05
    longest: float = 0.2
    tokens: bool = False


class Served:
    """The process, and where it listens."""

    def __init__(self, process: Child, port: int) -> None:
        self.process = process
        self.port = port


def prepare(url: str, customers: int) -> None:
    """The table, with a row for each customer."""
    with connect(url) as connection:
        connection.execute(_TABLE.encode())
        track(connection, FORGE, "probe")
        connection.execute(
            "INSERT INTO probe (tenant, customer_id, sent) SELECT 'none', g, 0 FROM generate_series(1, %s) g",
            (customers,),
        )
        connection.execute("VACUUM ANALYZE probe")


@contextmanager
def serving(how: Serving) -> Iterator[Served]:
    """The application, served while the block lasts."""
    with child("benchmarks.served", msgspec.to_builtins(how)) as (process, port):
        yield Served(process, port)


def now() -> int:
    """Microseconds on a clock that all processes of a machine share."""
    return time.monotonic_ns() // 1000


def token(tenant: str) -> str:
    """A token of somebody of that tenant."""
    claims = {"sub": f"user of {tenant}", "tenant": tenant, "exp": int(time.time()) + 86_400}
    return jwt.encode(claims, SECRET, algorithm="HS256")


def _application(how: Serving) -> Forge:
    app = Forge(
        how.url,
        settings=Settings(quiet=how.quiet, longest=how.longest),
        options=Options(
            auth=AuthSettings(algorithms=("HS256",), secret=SECRET) if how.tokens else None,
            limits=Limits(
                sessions_per_user=_ANY_NUMBER, sessions_per_ip=_ANY_NUMBER, subscriptions_per_user=_ANY_NUMBER
            ),
            tenant_column="tenant",
        ),
    )

    @app.query(scope="public")
    async def customer(ctx: QueryContext, id: int) -> Any:
        return await ctx.db.fetch("SELECT customer_id, sent FROM probe WHERE customer_id = %(id)s")

    @app.query(scope="public", key="id")
    async def recent(ctx: QueryContext, tenant: str) -> Any:
        return await ctx.db.fetch("SELECT id, sent FROM probe WHERE tenant = %(tenant)s ORDER BY id DESC LIMIT 50")

    @app.query(scope="public", key="id")
    async def grid(ctx: QueryContext) -> Any:
        return await ctx.db.fetch("SELECT id, tenant, sent FROM probe WHERE customer_id > 0 ORDER BY id")

    @app.query(scope="tenant", key="id")
    async def own(ctx: QueryContext) -> Any:
        return await ctx.db.fetch(
            "SELECT id, sent FROM probe WHERE tenant = %(tenant)s ORDER BY id DESC LIMIT 50", tenant=ctx.auth.tenant
        )

    return app


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            reply(sockets[0].getsockname()[1])


def main() -> None:
    """Serve until killed."""
    how = msgspec.convert(question(), Serving)
    many_files()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        _application(how),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        backlog=4096,
    )
    _Server(config).run([listening])


if __name__ == "__main__":
    main()
