"""The trigger log of PostgreSQL, for the suite: a server for all checks of a process, a database for each."""

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Final

import psycopg

from forge.capture import Filter, Source, open_source
from forge.change import JSON_NULL
from forge.changelog import partitions
from forge.changelog.install import install
from forge.changelog.maintenance import Policy, run_once
from forge.embedded import PostgresServer
from forge.postgres.connection import connect
from forge.testing.conformance.adapter import Adapter, Opening, Sample, Writer
from forge.testing.conformance.operations import ITEMS, OTHERS, TYPES, Fill, Operation
from forge.testing.conformance.proxy import CountingProxy
from forge.testing.conformance.sql import Statement, statement, tables
from forge.testing.postgres import fresh_database, temporary_postgres
from forge.tracking.context import transaction
from tests.checkers.session_settings import chosen, set_defaults, shown, with_settings

TEMPLATE: Final = "conformance"
_WRITERS: Final = {"array_nulls": "on"}  # they write NULL in arrays as text
_log = logging.getLogger("forge.testing.conformance")
SAMPLES: Sequence[Sample] = (
    Sample("boolean", True, True),
    Sample("smallint", -32768, -32768),
    Sample("bigint", 2**63 - 1, 2**63 - 1),
    Sample("numeric(10,2)", Decimal("12.30"), Decimal("12.30")),
    Sample("numeric", Decimal("NaN"), Decimal("NaN")),
    Sample("real", 0.1, 0.1),
    Sample("double precision", float("-inf"), float("-inf")),
    Sample("text", "zażółć\n'\"\\ \U0001f600", "zażółć\n'\"\\ \U0001f600"),
    Sample("varchar(20)", "", ""),
    Sample("char(3)", "ab", "ab "),
    Sample("bytea", b"\x00\xff", b"\x00\xff"),
    Sample("date", "2026-01-31", "2026-01-31"),
    Sample("time", "12:34:56.789", "12:34:56.789"),
    Sample("timestamp", "2026-01-31 12:00:00.5", "2026-01-31T12:00:00.5"),
    Sample("timestamptz", "2026-01-31 12:00:00+02", "2026-01-31T10:00:00+00:00"),
    Sample("interval", "1 day 2 hours", "P1DT2H"),
    Sample("uuid", "6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11"),
    Sample("jsonb", '{"a": [1, 2.50, null]}', {"a": [1, Decimal("2.50"), None]}),
    Sample("jsonb", "null", JSON_NULL),
    Sample("json", '{"b":  1}', '{"b":  1}'),
    Sample("integer[]", [1, None, 3], [1, None, 3]),
    Sample("numeric[]", [Decimal("1.50")], [Decimal("1.50")]),
    Sample("int4range", "[1,5)", "[1,5)"),
    Sample("inet", "10.0.0.1", "10.0.0.1"),
)


def sessions(url: str) -> random.Random:
    """Give a database random settings; the dice go on with those of its writers.

    The seed is logged, and is that of FORGE_CONFORMANCE_SEED where there is one.
    """
    seed = os.environ.get("FORGE_CONFORMANCE_SEED") or str(random.SystemRandom().randrange(10**9))
    chance = random.Random(seed)
    settings = chosen(chance, 0.8)
    _log.info("FORGE_CONFORMANCE_SEED=%s: the database has %s", seed, shown(settings))
    with connect(url) as connection:
        set_defaults(connection, settings)
    return chance


class PostgresWriter(Writer):
    """A connection in autocommit mode."""

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self.connection = connection
        self._context: AbstractAsyncContextManager[Any] | None = None

    async def run(self, operation: Operation) -> None:
        text, values = statement(operation, series=_series)
        await self.connection.execute(text.encode(), values)

    async def begin(self) -> None:
        await self.connection.execute("BEGIN")

    async def commit(self) -> None:
        if self._context is not None:
            await self._context.__aexit__(None, None, None)
            self._context = None
        await self.connection.execute("COMMIT")

    async def rollback(self) -> None:
        await self.connection.execute("ROLLBACK")

    async def savepoint(self) -> None:
        await self.connection.execute("SAVEPOINT here")

    async def rollback_to_savepoint(self) -> None:
        await self.connection.execute("ROLLBACK TO SAVEPOINT here")

    async def context(self, user_id: str) -> None:
        self._context = transaction(self.connection, user_id=user_id)
        await self._context.__aenter__()


def _series(fill: Fill) -> Statement:
    text = f"INSERT INTO {fill.table} SELECT g, 'fill', 0, %s FROM generate_series(%s::int, %s::int) g"
    return text, (fill.note, fill.first, fill.first + fill.count - 1)


class PostgresAdapter(Adapter):
    """A database of PostgreSQL, whatever is read from it."""

    samples: ClassVar[Sequence[Sample]] = SAMPLES

    def __init__(self, server: PostgresServer, url: str, proxy: CountingProxy, chance: random.Random) -> None:
        self.server = server
        self.chance = chance
        self.url = url
        self.proxy = proxy

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[Writer]:
        url = with_settings(self.url, {**chosen(self.chance), **_WRITERS})
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            yield PostgresWriter(connection)


class LogAdapter(PostgresAdapter):
    """A database in which Forge is installed and the suite's tables are tracked."""

    name: ClassVar[str] = "log"

    def __init__(self, server: PostgresServer, url: str, proxy: CountingProxy, chance: random.Random) -> None:
        super().__init__(server, url, proxy, chance)
        self.consumer = ("forge.capture:open_source", url)

    def source(self, filter: Filter | None = None, *, proxied: bool = False) -> Source:
        assert self.proxy is not None
        return open_source(self.proxy.url(self.url) if proxied else self.url, filter)

    async def purge(self) -> None:
        day = datetime.now(UTC).date() - timedelta(days=5)
        with connect(self.url) as connection:
            partitions.make(connection, day)
            connection.execute("UPDATE forge.forge_event_log SET day = %s, at = at - interval '5 days'", (day,))
        await asyncio.to_thread(run_once, self.url, Policy(retention_days=1))

    async def foreign_cursor(self) -> str:
        with fresh_database(self.server, template=TEMPLATE) as url:
            async with open_source(url) as source:
                return await source.now()


@contextmanager
def serving() -> Iterator[Opening]:
    """A server, and what makes databases in it."""
    with temporary_postgres() as server, CountingProxy("127.0.0.1", server.port) as proxy:
        with connect(server.url()) as admin:
            admin.execute(f"CREATE DATABASE {TEMPLATE}")
        with connect(server.url(TEMPLATE)) as template:
            install(template)
            for text in tables(SAMPLES):
                template.execute(text.encode())

        @asynccontextmanager
        async def opened() -> AsyncIterator[Adapter]:
            with fresh_database(server, template=TEMPLATE) as url:
                chance = sessions(url)
                with connect(url) as connection:
                    connection.execute("SELECT forge.current_identity()")  # a copy is a log of its own
                    for table in (ITEMS, OTHERS, TYPES):
                        connection.execute("SELECT forge_enable_reactivity(%s)", (table,))
                yield LogAdapter(server, url, proxy, chance)

        yield opened
