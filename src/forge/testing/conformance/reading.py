"""Readers of the checks: a listener that keeps all changes of a source, and a state that changes are applied to.

Every wait has a deadline and ends as soon as its condition holds; when it does not come true, a Violation says what was
seen instead.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from forge.capture import Filter, Source, SourceBatch, changes
from forge.change import UNAVAILABLE, Change, Op, same
from forge.errors import ForgeError
from forge.testing.conformance.adapter import Adapter, Violation

ROWS = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)


def expect(condition: object, message: str) -> None:
    """Raise a Violation unless the condition holds."""
    if not condition:
        raise Violation(message)


def alike(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> bool:
    """Whether two images hold the same values, in whatever order."""
    if left is None or right is None:
        return left is right
    return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())


def told(found: Sequence[Change]) -> str:
    """Changes in few words."""
    words = [f"{change.op} {change.table} {change.row_id}" for change in found[-8:]]
    return f"{len(found)} changes{', the last: ' if len(found) > 8 else ': '}{', '.join(words)}" if found else "nothing"


class Listener:
    """A source that is read in a task. Not to be used outside `listening`."""

    def __init__(self, adapter: Adapter, source: Source, start: str, batches: AsyncGenerator[SourceBatch]) -> None:
        self.source = source
        self.start = start
        self.batches: list[SourceBatch] = []
        self._adapter = adapter
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read(batches))

    async def _read(self, batches: AsyncGenerator[SourceBatch]) -> None:
        try:
            async with aclosing(batches) as reading:
                async for batch in reading:
                    self.batches.append(batch)
                    self._news.set()
        finally:
            self._news.set()

    @property
    def changes(self) -> list[Change]:
        return [change for batch in self.batches for change in batch.changes]

    @property
    def rows(self) -> list[Change]:
        """Changes of rows: those of whole tables left out."""
        return [change for change in self.changes if change.op in ROWS]

    @property
    def ids(self) -> list[str]:
        return [change.id for change in self.changes]

    async def until(self, condition: Callable[[], object], what: str, patience: float | None = None) -> None:
        """Wait for what must come; raise what the source raised."""
        patience = self._adapter.patience if patience is None else patience
        try:
            async with asyncio.timeout(patience):
                while not condition():
                    if self._task.done():
                        self._task.result()
                        raise Violation(f"the stream ended by itself before {what} came")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise Violation(f"{what} did not come within {patience:g} s; seen: {told(self.changes)}") from None

    async def until_row(self, id: int, table: str = "items", patience: float | None = None) -> None:
        """Wait for the insert of the row with this key."""
        key = self._adapter.key
        await self.until(
            lambda: any(
                change.op is Op.INSERT and change.table == table and change.key is not None and change.key[key] == id
                for batch in self.batches[-50:]
                for change in batch.changes
            ),
            f"the insert of {table} {id}",
            patience,
        )

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def listening(
    adapter: Adapter,
    filter: Filter | None = None,
    *,
    after: str | None = None,
    snapshot: bool = False,
    proxied: bool = False,
) -> AsyncIterator[Listener]:
    """A listener from a cursor on, or from now, or from a snapshot on."""
    async with adapter.source(filter, proxied=proxied) as source:
        start = after if after is not None or snapshot else await source.now()
        listener = Listener(adapter, source, start or "", changes(source, start, snapshot=snapshot))
        try:
            yield listener
        finally:
            await listener.close()


async def refusal(adapter: Adapter, batches: AsyncGenerator[SourceBatch]) -> BaseException | SourceBatch | None:
    """What a stream raises, or the first batch it gives, or None when it does neither for a while."""
    try:
        async with asyncio.timeout(min(adapter.patience, 10.0)), aclosing(batches) as reading:
            async for batch in reading:
                return batch
    except TimeoutError:
        return None
    except Exception as error:
        return error
    return None


def refused(found: BaseException | SourceBatch | None, *kinds: type[ForgeError], what: str) -> None:
    """That a stream was refused in one of these ways, with what to do about it."""
    names = " or ".join(kind.__name__ for kind in kinds)
    if isinstance(found, SourceBatch):
        raise Violation(f"{what} was answered with {told(found.changes)}, not with {names}")
    expect(found is not None, f"{what} was answered with silence, not with {names}")
    expect(isinstance(found, kinds), f"{what} raised {type(found).__name__}: {found}, not {names}")
    assert isinstance(found, ForgeError)
    expect(found.fix and "\n" not in str(found), f"{what}: the error has no fix, or more than one line")


class State:
    """Tables as changes make them; a change that does not fit what is there is a gap or an overlap."""

    def __init__(self, adapter: Adapter) -> None:
        self._key = adapter.key
        self.tables: dict[str, dict[Any, Mapping[str, Any]]] = {}

    def apply(self, change: Change) -> None:
        rows = self.tables.setdefault(change.table, {})
        if change.op is Op.TRUNCATE:
            rows.clear()
        if change.op not in ROWS:
            return
        expect(change.key is not None, f"{change.op} of {change.table} has no key")
        assert change.key is not None
        key = change.key[self._key]
        there = rows.get(key)
        name = f"{change.op} of {change.table} {key} ({change.id})"
        if change.op in (Op.INSERT, Op.READ):
            expect(there is None, f"{name}, but it is there: an overlap, or a duplicate")
        else:
            expect(there is not None, f"{name}, but it is not there: a gap, or out of order")
        if there is not None and change.before is not None:
            for column, value in change.before.items():
                known = value is UNAVAILABLE or there.get(column, UNAVAILABLE) is UNAVAILABLE
                expect(
                    known or same(value, there.get(column)),
                    f"{name} says that {column} was {value!r}, but it was {there.get(column)!r}",
                )
        if change.op is Op.DELETE:
            del rows[key]
        else:
            expect(change.after is not None, f"{name} has no row")
            assert change.after is not None
            merged = {**(there or {}), **change.after}
            rows[key] = {
                column: (there or {}).get(column, UNAVAILABLE) if value is UNAVAILABLE else value
                for column, value in merged.items()
            }

    def equals(self, tables: Mapping[str, Mapping[Any, Mapping[str, Any]]]) -> None:
        """That it is what the database holds."""
        for table, rows in tables.items():
            found = self.tables.get(table, {})
            missing, extra = rows.keys() - found.keys(), found.keys() - rows.keys()
            expect(not missing, f"{table} lacks {sorted(missing)[:8]}: {len(missing)} rows were lost")
            expect(not extra, f"{table} has {sorted(extra)[:8]}: {len(extra)} rows that should be gone")
            for key, row in rows.items():
                expect(alike(found[key], row), f"{table} {key} is {dict(found[key])}, but it should be {dict(row)}")
