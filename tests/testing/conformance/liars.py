"""Sources in memory that do one thing wrong each, or claim what is not so: the suite must find every one of them."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import msgspec

from forge.capture import Capabilities, Filter, SourceBatch, Status
from forge.change import Change, Op
from forge.testing.conformance import Adapter, Writer
from forge.testing.conformance.memory import MemoryAdapter, MemorySource, MemoryWriter

HONEST = MemorySource.capabilities


def claiming(**claims: Any) -> Capabilities:
    return msgspec.structs.replace(HONEST, **claims)


def altered(change: Change, **fields: Any) -> Change:
    return msgspec.structs.replace(change, **fields)


class Altering(MemorySource):
    """Gives another batch than it should."""

    def batch(self, batch: SourceBatch) -> SourceBatch:
        return batch

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        async for batch in super().stream(after):
            yield self.batch(batch)


class EachAltered(Altering):
    """Gives other changes than it should; None for none."""

    def change(self, change: Change) -> Change | None:
        return change

    def batch(self, batch: SourceBatch) -> SourceBatch:
        found = [changed for change in batch.changes if (changed := self.change(change)) is not None]
        return SourceBatch(found, batch.cursor)


class FalselyDurable(MemorySource):
    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        self.position(after or await self.now())
        async for batch in super().stream(None):
            yield batch


class FalselyReplayable(MemorySource):
    async def ack(self, cursor: str) -> None:
        self.database.first = self.position(cursor)


class ForgetsSilently(MemorySource):
    """Not replayable, and it says so; but who asks for what is gone gets what is left."""

    capabilities = claiming(replayable=False)
    acknowledged = 0

    async def ack(self, cursor: str) -> None:
        type(self).acknowledged = self.position(cursor)

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        position = self.position(after or await self.now())
        async for batch in super().stream(self.cursor(max(position, self.acknowledged))):
            yield batch


class FalselyBefore(EachAltered):
    def change(self, change: Change) -> Change:
        return altered(change, before=None)


class WrongBefore(EachAltered):
    def change(self, change: Change) -> Change:
        return altered(change, before=change.after) if change.op is Op.UPDATE else change


class ModestBefore(MemorySource):
    capabilities = claiming(before="never")


class NullForUnsent(EachAltered):
    """Says null where it does not know."""

    def change(self, change: Change) -> Change:
        if change.op is not Op.UPDATE or change.after is None:
            return change
        return altered(
            change, after={**change.after, "note": None, "c0": None} if "c0" in change.after else change.after
        )


class Rounding(EachAltered):
    def change(self, change: Change) -> Change:
        after = {
            name: float(value) if name == "c1" and value else value for name, value in (change.after or {}).items()
        }
        return altered(change, after=after or None)


class FalselyOrdered(Altering):
    """Gives what one reading finds by its table."""

    def batch(self, batch: SourceBatch) -> SourceBatch:
        return SourceBatch(sorted(batch.changes, key=lambda change: change.table), batch.cursor)


class OrderedByBeginning(Altering):
    """Gives transactions that are committed between two readings by when they began."""

    def batch(self, batch: SourceBatch) -> SourceBatch:
        return SourceBatch(sorted(batch.changes, key=lambda change: (change.key or {}).get("id", 0)), batch.cursor)


class FalselyTransactions(EachAltered):
    def change(self, change: Change) -> Change:
        return altered(change, source=msgspec.structs.replace(change.source, transaction=None))


class OneTransaction(EachAltered):
    def change(self, change: Change) -> Change:
        return altered(change, source=msgspec.structs.replace(change.source, transaction="1"))


class ModestTransactions(MemorySource):
    capabilities = claiming(transactions=False)


class FalselyContext(EachAltered):
    def change(self, change: Change) -> Change:
        return altered(change, context=type(change.context)())


class LeakingContext(EachAltered):
    last: Any = None

    def change(self, change: Change) -> Change:
        self.last = change.context if change.context.user_id else self.last
        return altered(change, context=self.last or change.context)


class FalselyTruncates(EachAltered):
    def change(self, change: Change) -> Change | None:
        return None if change.op is Op.TRUNCATE else change


class ModestTruncates(MemorySource):
    capabilities = claiming(truncates=False)


class FalselySchemaChanges(EachAltered):
    def change(self, change: Change) -> Change | None:
        return None if change.op is Op.SCHEMA else change


class ModestSchemaChanges(MemorySource):
    capabilities = claiming(schema_changes=False)


class ModestSnapshots(MemorySource):
    capabilities = claiming(snapshots=False)


class ModestProcesses(MemorySource):
    capabilities = claiming(other_processes=False)


class GapAfterSnapshot(MemorySource):
    async def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        async for batch in super().snapshot(after):
            await asyncio.sleep(0)
            yield SourceBatch(batch.changes, batch.cursor if "+" in batch.cursor else await self.now())


class OverlapAfterSnapshot(MemorySource):
    async def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        async for batch in super().snapshot(after):
            last = "+" not in batch.cursor
            yield SourceBatch(batch.changes, self.cursor(self.position(batch.cursor) - 1) if last else batch.cursor)


class SnapshotStartsAgain(MemorySource):
    async def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        async for batch in super().snapshot(None if after is None else after.partition("+")[0]):
            yield batch


class SnapshotOfNow(MemorySource):
    """Goes on with rows as they are now, not as they were."""

    async def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        _, mark, done = (after or "").partition("+")
        async for batch in super().snapshot(f"{await self.now()}+{done}" if mark else after):
            yield batch


class StreamsInsideSnapshot(MemorySource):
    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        async for batch in super().stream(None if after is None else after.partition("+")[0]):
            yield batch


class OneTooEarly(MemorySource):
    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        position = self.position(after or await self.now())
        async for batch in super().stream(self.cursor(max(position - 1, 0))):
            yield batch


class OneTooLate(MemorySource):
    """Misses the first change after a cursor, but for the one of now."""

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        position = self.position(after or await self.now())
        behind = position < len(self.database.history)
        async for batch in super().stream(self.cursor(position + behind)):
            yield batch


class NewIds(EachAltered):
    def change(self, change: Change) -> Change:
        return altered(change, id=uuid.uuid4().hex)


class SameIds(EachAltered):
    def change(self, change: Change) -> Change:
        return altered(change, id=f"{change.table}:{change.row_id}")


class Doubling(Altering):
    def batch(self, batch: SourceBatch) -> SourceBatch:
        return SourceBatch([*batch.changes, *batch.changes[-1:]], batch.cursor)


class MovesKeys(EachAltered):
    """A changed key is one update."""

    moved: Change | None = None

    def change(self, change: Change) -> Change | None:
        if change.op is Op.DELETE and change.before is not None and change.before["name"] == "moved":
            self.moved = change
            return None
        if self.moved is not None and change.after is not None and change.after["name"] == "moved":
            return altered(change, op=Op.UPDATE, before=self.moved.before)
        return change


class NaiveTime(EachAltered):
    def change(self, change: Change) -> Change:
        return altered(change, at=change.at.replace(tzinfo=None))


class AnyCursor(MemorySource):
    def position(self, cursor: str) -> int:
        digits = cursor.rpartition("_")[2]
        return int(digits) if digits.isascii() and digits.isdigit() else 0


class CrudeError(MemorySource):
    def position(self, cursor: str) -> int:
        return int(cursor.split("_")[2])


class ForeignWelcome(MemorySource):
    def position(self, cursor: str) -> int:
        parts = cursor.split("_")
        mine = [parts[0], self.database.name, *parts[2:]] if len(parts) == 3 and len(parts[1]) == 8 else parts
        return super().position("_".join(mine))


class NeverExpires(MemorySource):
    def position(self, cursor: str) -> int:
        first, self.database.first = self.database.first, 0
        try:
            return max(super().position(cursor), first)
        finally:
            self.database.first = first


class OddCursor(MemorySource):
    def cursor(self, position: int) -> str:
        return super().cursor(position) + " $HOME"

    def position(self, cursor: str) -> int:
        return super().position(cursor.removesuffix(" $HOME"))


class Hoarding(MemorySource):
    """Copies all that there is before it gives the first of it."""

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        position = self.position(after or await self.now())
        raw = [msgspec.json.encode(change.after) for change in self.database.history[position:]]
        async for batch in super().stream(after):
            yield batch
        del raw


class Unfiltered(MemorySource):
    def __init__(self, database: Any, filter: Filter | None = None) -> None:
        super().__init__(database, None)
        self.asked = filter or Filter()

    async def status(self) -> Status:
        return msgspec.structs.replace(await super().status(), in_forge=self.asked.parts)


class FiltersAfterOnly(MemorySource):
    """Drops a row that no longer satisfies the condition, so that who has it keeps it."""

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        async for batch in super().stream(after):
            if self.filter.where is None:
                yield batch
            else:
                found = [c for c in batch.changes if c.after is None or (c.after.get("amount") or 0) > 10]
                yield SourceBatch(found, batch.cursor)


class FalselyInFeed(MemorySource):
    capabilities = claiming(filters=("tables",))


class SilentStatus(MemorySource):
    async def status(self) -> Status:
        return msgspec.structs.replace(await super().status(), in_forge=())


class LeavesTasks(MemorySource):
    kept: ClassVar[set[asyncio.Task[Any]]] = set()

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        self.kept.add(asyncio.create_task(asyncio.sleep(3), name="left"))
        async for batch in super().stream(after):
            yield batch


class Ends(MemorySource):
    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        async for batch in super().stream(after):
            yield batch
            return


class LeakyWriter(MemoryWriter):
    """Commits what is rolled back: as if the source had seen it before its end."""

    async def rollback(self) -> None:
        await self.commit()


class LeakyAdapter(MemoryAdapter):
    @asynccontextmanager
    async def writer(self) -> AsyncIterator[Writer]:
        yield LeakyWriter(self.database)


@asynccontextmanager
async def leaky() -> AsyncIterator[Adapter]:
    yield LeakyAdapter()
