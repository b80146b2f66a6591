"""The queue of a SQLite file, for the suite: a file for each check, in WAL mode or with a rollback journal."""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from forge.capture import Filter, Source
from forge.capture.sqlite import SqliteSource, enable, refresh, transaction
from forge.testing.conformance.adapter import Adapter, Opening, Sample, Writer
from forge.testing.conformance.operations import ITEMS, OTHERS, TYPES, AddColumn, Operation
from forge.testing.conformance.sql import statement, tables

SAMPLES: Sequence[Sample] = (
    Sample("INTEGER", 2**63 - 1, 2**63 - 1),
    Sample("INTEGER", -(2**63), -(2**63)),
    Sample("REAL", 0.1 + 0.2, 0.1 + 0.2),
    Sample("REAL", 5e-324, 5e-324),
    Sample("REAL", float("-inf"), float("-inf")),
    Sample("REAL", 7, 7.0),
    Sample("TEXT", "zażółć\n'\"\\ \U0001f600", "zażółć\n'\"\\ \U0001f600"),
    Sample("TEXT", "a\0b", "a\0b"),
    Sample("TEXT", 12, "12"),
    Sample("BLOB", b"\x00\xff", b"\x00\xff"),
    Sample("NUMERIC", "1.50", 1.5),
    Sample("NUMERIC", "12345678901234567890123", 1.2345678901234568e22),
    Sample("NUMERIC", "not a number", "not a number"),
    Sample("DATE", "2026-01-31", "2026-01-31"),
    Sample("BOOLEAN", True, 1),
    Sample("", 1.0, 1.0),
    Sample("", "1", "1"),
    Sample("INTEGER", "text in a column of whole numbers", "text in a column of whole numbers"),
)


class FileWriter(Writer):
    """One connection, of sqlite3 or of APSW; SQLite blocks, so it runs in threads."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._context: AbstractContextManager[None] | None = None

    async def _execute(self, text: str, values: Sequence[Any] = ()) -> None:
        await asyncio.to_thread(lambda: self._connection.execute(text, values).fetchall())

    async def run(self, operation: Operation) -> None:
        text, values = statement(operation, mark="?", truncate="DELETE FROM {}")
        if isinstance(operation, AddColumn) and isinstance(self._connection, sqlite3.Connection):
            await self._alter(text)
            return
        await self._execute(text, values)

    async def _alter(self, text: str) -> None:
        """A migration as the documents want it: the triggers are made again in its own transaction."""
        await self.begin()
        await self._execute(text)
        await asyncio.to_thread(refresh, self._connection)
        await self.commit()

    async def begin(self) -> None:
        await self._execute("BEGIN")

    async def commit(self) -> None:
        if self._context is not None:
            self._context.__exit__(None, None, None)
            self._context = None
        await self._execute("COMMIT")

    async def rollback(self) -> None:
        await self._execute("ROLLBACK")

    async def savepoint(self) -> None:
        await self._execute("SAVEPOINT here")

    async def rollback_to_savepoint(self) -> None:
        await self._execute("ROLLBACK TO here")

    async def context(self, user_id: str) -> None:
        self._context = transaction(self._connection, user_id=user_id)
        self._context.__enter__()


class QueueAdapter(Adapter):
    """A file with the suite's tables, all tracked; in WAL mode, or with a rollback journal."""

    name: ClassVar[str] = "sqlite"
    samples: ClassVar[Sequence[Sample]] = SAMPLES
    writers: ClassVar[int] = 1
    backlog: ClassVar[tuple[int, int]] = (9_000, 4_000)

    def __init__(self, path: Path, journal: str) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"
        self.consumer = ("forge.capture:open_source", self.url)
        make(path, journal)
        enable(self.url, [ITEMS, OTHERS, TYPES])

    def source(self, filter: Filter | None = None, *, proxied: bool = False) -> Source:
        return SqliteSource(self.url, filter)

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[Writer]:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=20)
        connection.execute("PRAGMA synchronous = OFF")
        try:
            yield FileWriter(connection)
        finally:
            connection.close()

    async def purge(self) -> None:
        async with self.source() as source:
            await source.ack(await source.now())

    async def foreign_cursor(self) -> str:
        other = self._path.with_name("other.db")
        make(other, "wal")
        enable(f"sqlite:///{other}", [ITEMS])
        async with SqliteSource(f"sqlite:///{other}") as source:
            return await source.now()


def make(path: Path, journal: str) -> None:
    """The suite's tables in a new file."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode = {journal}")
    for text in tables(SAMPLES, text="TEXT", integer="INTEGER"):
        connection.execute(text)
    connection.close()


@contextmanager
def serving(journal: str = "wal") -> Iterator[Opening]:
    """What makes files."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Adapter]:
        with tempfile.TemporaryDirectory(prefix="forge-sqlite-") as folder:
            yield QueueAdapter(Path(folder) / "suite.db", journal)

    yield opened
