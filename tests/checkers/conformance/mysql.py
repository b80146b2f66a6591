"""The binary log of a MariaDB server, for the suite: a server for all checks of a process, a database for each."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from typing import Any, ClassVar

from forge.capture import Filter, Source, open_source
from forge.capture.mysql import comment
from forge.change import Context
from forge.testing.conformance.adapter import Adapter, Opening, Sample, Writer
from forge.testing.conformance.operations import Fill, Operation
from forge.testing.conformance.proxy import CountingProxy
from forge.testing.conformance.reading import expect
from forge.testing.conformance.sql import Statement, statement, tables
from forge.testing.mariadb import MariadbServer, connect_mariadb, fresh_mariadb, run, temporary_mariadb

SAMPLES: Sequence[Sample] = (
    Sample("boolean", 1, 1),
    Sample("tinyint unsigned", 255, 255),
    Sample("bigint", -(2**63), -(2**63)),
    Sample("bigint unsigned", 2**64 - 1, 2**64 - 1),
    Sample("decimal(10,2)", Decimal("12.30"), Decimal("12.30")),
    Sample("float", 0.1, 0.1),
    Sample("double", -1e-300, -1e-300),
    Sample("bit(10)", 517, "1000000101"),
    Sample("varchar(40)", "zażółć\n'\"\\ \U0001f600", "zażółć\n'\"\\ \U0001f600"),
    Sample("char(5)", "", ""),
    Sample("text", "text", "text"),
    Sample("enum('a','b')", "b", "b"),
    Sample("set('a','b','c')", "c,a", "a,c"),
    Sample("varbinary(10)", b"\x00\xff", b"\x00\xff"),
    Sample("date", "2026-01-31", "2026-01-31"),
    Sample("time(3)", "-12:34:56.789", "-12:34:56.789"),
    Sample("datetime(1)", "2026-01-31 12:00:00.5", "2026-01-31T12:00:00.5"),
    Sample("timestamp NULL", "2026-01-31 12:00:00", "2026-01-31T12:00:00+00:00"),
    Sample("year", 2026, 2026),
)


class MysqlWriter(Writer):
    """A connection in autocommit mode; it blocks, so it runs in threads."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._comment = ""

    async def run(self, operation: Operation) -> None:
        text, values = statement(operation, series=_series)
        await self._execute(self._comment + text, values)

    async def _execute(self, text: str, values: tuple[Any, ...] = ()) -> None:
        def execute() -> None:
            with self._connection.cursor() as cursor:
                cursor.execute(text, values or None)

        await asyncio.to_thread(execute)

    async def begin(self) -> None:
        await self._execute("BEGIN")

    async def commit(self) -> None:
        self._comment = ""
        await self._execute("COMMIT")

    async def rollback(self) -> None:
        self._comment = ""
        await self._execute("ROLLBACK")

    async def savepoint(self) -> None:
        await self._execute("SAVEPOINT here")

    async def rollback_to_savepoint(self) -> None:
        await self._execute("ROLLBACK TO SAVEPOINT here")

    async def context(self, user_id: str) -> None:
        self._comment = comment(Context(user_id=user_id))


def _series(fill: Fill) -> Statement:
    numbers = f"seq_{fill.first}_to_{fill.first + fill.count - 1}"
    return f"INSERT INTO {fill.table} SELECT seq, 'fill', 0, %s FROM {numbers}", (fill.note,)


class MysqlAdapter(Adapter):
    """A database of a server that logs everything."""

    name: ClassVar[str] = "mysql"
    samples: ClassVar[Sequence[Sample]] = SAMPLES

    def __init__(self, server: MariadbServer, url: str, proxy: CountingProxy) -> None:
        self.server = server
        self.url = url
        self.proxy = proxy
        self.consumer = ("forge.capture:open_source", url)

    def source(self, filter: Filter | None = None, *, proxied: bool = False) -> Source:
        assert self.proxy is not None
        return open_source(self.proxy.url(self.url) if proxied else self.url, filter)

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[Writer]:
        connection = await asyncio.to_thread(connect_mariadb, self.url)
        try:
            await asyncio.to_thread(connection.query, "SET time_zone = '+00:00'")
            yield MysqlWriter(connection)
        finally:
            await asyncio.to_thread(connection.close)

    async def purge(self) -> None:
        def purge() -> None:
            for thread, *_, command in (row[:5] for row in run(self.url, "SHOW PROCESSLIST")):
                if command == "Binlog Dump":  # what a reader that is gone still reads is not purged
                    run(self.url, f"KILL {thread}")
            run(self.url, "FLUSH BINARY LOGS")
            newest = run(self.url, "SHOW BINARY LOGS")[-1][0]
            deadline = time.monotonic() + self.patience
            while len(run(self.url, f"PURGE BINARY LOGS TO '{newest}'", "SHOW BINARY LOGS")) > 1:
                expect(time.monotonic() < deadline, "the server does not purge its logs")
                time.sleep(0.02)

        await asyncio.to_thread(purge)

    async def foreign_cursor(self) -> str:
        with temporary_mariadb() as other, fresh_mariadb(other) as url:
            async with open_source(url) as source:
                return await source.now()


@contextmanager
def serving() -> Iterator[Opening]:
    """A server, and what makes databases in it."""
    settings = {"binlog_annotate_row_events": "ON"}
    with temporary_mariadb(settings) as server, CountingProxy("127.0.0.1", server.port) as proxy:

        @asynccontextmanager
        async def opened() -> AsyncIterator[Adapter]:
            with fresh_mariadb(server) as url:
                run(url, *tables(SAMPLES))
                yield MysqlAdapter(server, url, proxy)

        yield opened
