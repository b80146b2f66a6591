"""PostgreSQL's logical replication, for the suite: a server with wal_level=logical, a database for each check."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import ClassVar, Final

from forge.capture import Filter, Source, open_source
from forge.changelog.install import install
from forge.embedded import PostgresServer
from forge.postgres.connection import connect
from forge.testing.conformance.adapter import Adapter, Opening
from forge.testing.conformance.operations import ITEMS, OTHERS, TYPES
from forge.testing.conformance.proxy import CountingProxy
from forge.testing.conformance.sql import tables
from forge.testing.postgres import fresh_database, temporary_postgres
from tests.checkers.conformance.log import SAMPLES, PostgresAdapter, sessions

TEMPLATE: Final = "conformance"
SETTINGS: Final = {"wal_level": "logical", "max_replication_slots": "40", "max_wal_senders": "40"}


class WalAdapter(PostgresAdapter):
    """A database whose tables have a full replica identity; Forge is installed for the context, and tracks nothing."""

    name: ClassVar[str] = "wal"

    def __init__(self, server: PostgresServer, url: str, proxy: CountingProxy, chance: random.Random) -> None:
        super().__init__(server, url, proxy, chance)
        self.consumer = ("forge.capture:open_source", _wal(url))

    def source(self, filter: Filter | None = None, *, proxied: bool = False) -> Source:
        assert self.proxy is not None
        return open_source(_wal(self.proxy.url(self.url) if proxied else self.url), filter)

    async def purge(self) -> None:
        with connect(self.url) as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = current_database() AND NOT active"
            )

    async def foreign_cursor(self) -> str:
        with fresh_database(self.server, template=TEMPLATE) as url:
            async with open_source(_wal(url)) as source:
                return await source.now()


def _wal(url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}feed=wal"


@contextmanager
def serving() -> Iterator[Opening]:
    """A server, and what makes databases in it."""
    with temporary_postgres(settings=SETTINGS) as server, CountingProxy("127.0.0.1", server.port) as proxy:
        with connect(server.url()) as admin:
            admin.execute(f"CREATE DATABASE {TEMPLATE}")
        with connect(server.url(TEMPLATE)) as template:
            install(template)
            for text in tables(SAMPLES):
                template.execute(text.encode())
            for table in (ITEMS, OTHERS, TYPES):
                template.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())

        @asynccontextmanager
        async def opened() -> AsyncIterator[Adapter]:
            with fresh_database(server, template=TEMPLATE) as url:
                yield WalAdapter(server, url, proxy, sessions(url))

        yield opened
