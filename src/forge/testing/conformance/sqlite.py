"""The queue of a SQLite file, for the suite: a file for each check."""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from forge.capture import Filter, Source, open_source
from forge.capture.sqlite import enable, transaction
from forge.testing.conformance.adapter import Adapter, Opening, Sample, Writer
from forge.testing.conformance.operations import ITEMS, OTHERS, TYPES, Operation
from forge.testing.conformance.sql import statement, tables

SAMPLES: Sequence[Sample] = (
    Sample("integer", 2**63 - 1, 2**63 - 1),
    Sample("real", 0.1, 0.1),
    Sample("real", -1e-300, -1e-300),
    Sample("text", "zażółć\n'\"\\ \U0001f600", "zażółć\n'\"\\ \U0001f600"),
    Sample("text", "", ""),
    Sample("blob", b"\x00\xff", b"\x00\xff"),
    Sample("blob", b"", b""),
    Sample("", "as it is", "as it is"),
)


class SqliteWriter(Writer):
    """A connection in autocommit mode; it blocks, so it runs in threads."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._context: AbstractContextManager[None] | None = None

    async def run(self, operation: Operation) -> None:
        text, values = statement(operation, mark="?", truncate="DELETE FROM {}")
        await asyncio.to_thread(self.connection.execute, text, values)

    async def begin(self) -> None:
        await asyncio.to_thread(self.connection.execute, "BEGIN IMMEDIATE")

    async def commit(self) -> None:
        if self._context is not None:
            await asyncio.to_thread(self._context.__exit__, None, None, None)
            self._context = None
        await asyncio.to_thread(self.connection.execute, "COMMIT")

    async def rollback(self) -> None:
        await asyncio.to_thread(self.connection.execute, "ROLLBACK")

    async def savepoint(self) -> None:
        await asyncio.to_thread(self.connection.execute, "SAVEPOINT here")

    async def rollback_to_savepoint(self) -> None:
        await asyncio.to_thread(self.connection.execute, "ROLLBACK TO here")

    async def context(self, user_id: str) -> None:
        self._context = transaction(self.connection, user_id=user_id)
        await asyncio.to_thread(self._context.__enter__)


class SqliteAdapter(Adapter):
    """A file whose tables fill the queue."""

    name: ClassVar[str] = "sqlite"
    samples: ClassVar[Sequence[Sample]] = SAMPLES
    writers: ClassVar[int] = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "shop.db"
        self.consumer = ("forge.capture:open_source", self.url)
        make(self.path)
        enable(self.url, (ITEMS, OTHERS, TYPES))

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def source(self, filter: Filter | None = None, *, proxied: bool = False) -> Source:
        return open_source(self.url, filter)

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[Writer]:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=10, check_same_thread=False)
        with closing(connection):
            connection.execute("PRAGMA synchronous = OFF")
            yield SqliteWriter(connection)

    async def purge(self) -> None:
        """Another consumer acknowledges all that there is."""
        async with self.source() as source:
            await source.ack(await source.now())

    async def foreign_cursor(self) -> str:
        (self.folder / "other").mkdir()
        async with type(self)(self.folder / "other").source() as source:
            return await source.now()


def make(path: Path) -> None:
    """A file with the suite's tables."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for text in tables(SAMPLES):
            connection.execute(text)


@contextmanager
def serving(kind: type[SqliteAdapter] = SqliteAdapter) -> Iterator[Opening]:
    """What makes files."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Adapter]:
        with tempfile.TemporaryDirectory(prefix="forge-sqlite-") as folder:
            yield kind(Path(folder))

    yield opened
