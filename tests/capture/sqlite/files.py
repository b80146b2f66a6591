"""A database file for a test, what was written to it, and a replica that changes build, strictly."""

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from forge.capture import Filter, SourceBatch
from forge.capture.sqlite import SqliteSource
from forge.change import Change, Op

Exact = tuple[tuple[str, str], ...]


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def writer(path: Path, *, wal: bool = True, timeout: float = 5.0) -> sqlite3.Connection:
    """A connection in autocommit mode, as an application has one."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=timeout)
    if wal:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
    return connection


async def everything(source: SqliteSource, after: str) -> list[Change]:
    """All changes from a cursor to now."""
    return [change async for batch in source.until_now(after) for change in batch.changes]


async def since(path: Path, after: str, filter: Filter | None = None) -> list[Change]:
    async with SqliteSource(url_of(path), filter) as source:
        return await everything(source, after)


async def rows_of(path: Path) -> tuple[list[Change], str]:
    """The rows of a snapshot, and the cursor behind it."""
    found: list[Change] = []
    cursor = ""
    async with SqliteSource(url_of(path)) as source:
        async for batch in source.snapshot():
            found += batch.changes
            cursor = batch.cursor
    return found, cursor


async def now(path: Path) -> str:
    async with SqliteSource(url_of(path)) as source:
        return await source.now()


async def until(batches: AsyncIterator[SourceBatch], done: Callable[[list[Change]], bool]) -> tuple[list[Change], str]:
    """The changes of a stream until they are enough."""
    found: list[Change] = []
    async with aclosing(batches) as reading:  # type: ignore[type-var]
        async for batch in reading:
            found += batch.changes
            if done(found):
                return found, batch.cursor
    raise AssertionError("a stream ended")


def exact(row: Any) -> Exact:
    """A row so that 1, 1.0 and '1' are not the same."""
    return tuple((name, f"{type(value).__name__} {value!r}") for name, value in row.items())


class Replica:
    """Tables made of changes. A change that does not fit what is there fails the test."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self.keyed: dict[str, dict[Exact, Exact]] = {}
        self.loose: dict[str, Counter[Exact]] = {}
        self.invalid: set[str] = set()
        """Tables that would have to be read again."""
        for change in changes:
            self.apply(change)

    def apply(self, change: Change) -> None:
        if change.op is Op.INVALIDATE:
            self.invalid.add(change.table)
        if change.op is Op.SCHEMA or change.table in self.invalid:
            return
        if change.key is None:
            rows = self.loose.setdefault(change.table, Counter())
            if change.before is not None:
                assert rows[exact(change.before)] > 0, change
                rows[exact(change.before)] -= 1
            if change.after is not None:
                rows[exact(change.after)] += 1
            return
        table, key = self.keyed.setdefault(change.table, {}), exact(change.key)
        if change.op in (Op.INSERT, Op.READ):
            assert key not in table, change
        else:
            assert change.before is not None
            assert table.pop(key, None) == exact(change.before), change
        if change.op is not Op.DELETE:
            assert change.after is not None
            table[key] = exact(change.after)

    def rows(self, table: str) -> Counter[Exact]:
        return +self.loose.get(table, Counter()) + Counter(self.keyed.get(table, {}).values())


def stored(connection: sqlite3.Connection, table: str) -> Counter[Exact]:
    """The rows of a table as they are in the file."""
    cursor = connection.execute(f'SELECT * FROM "{table}"')
    names = [column[0] for column in cursor.description]
    return Counter(exact(dict(zip(names, row, strict=True))) for row in cursor)
