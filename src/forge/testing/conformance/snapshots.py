"""Checks of snapshots: rows first, then what follows, without a gap or an overlap, also after an interruption."""

from forge.capture import SourceBatch
from forge.capture.source import in_snapshot
from forge.change import Op
from forge.errors import CursorInvalid, ForgeError
from forge.testing.conformance.adapter import Adapter, Unsupported
from forge.testing.conformance.operations import OTHERS, Insert
from forge.testing.conformance.reading import State, alike, expect, listening, refusal, refused
from forge.testing.conformance.traffic import Traffic, row


async def check_snapshot(adapter: Adapter) -> None:
    """A snapshot reads every row once, as `read`; its last cursor stands outside. A source without one refuses."""
    traffic = Traffic(adapter, seed=1)
    await traffic.fill(20)
    async with adapter.source() as source:
        if not source.capabilities.snapshots:
            found = await refusal(adapter, source.snapshot())
            refused(found, ForgeError, what="a snapshot of a source that says that it has none")
            return
        batches = [batch async for batch in source.snapshot()]
        state = State(adapter)
        for batch in batches:
            for change in batch.changes:
                expect(change.op is Op.READ, f"a snapshot has a {change.op}")
                expect(change.before is None, "a row of a snapshot has an image before")
                state.apply(change)
            inside = batch is not batches[-1]
            expect(in_snapshot(batch.cursor) == inside, f"the cursor {batch.cursor} does not say where it stands")
        state.equals(traffic.tables)
        ids = [change.id for batch in batches for change in batch.changes]
        expect(len(set(ids)) == len(ids), "two rows of a snapshot have the same id")


async def check_snapshot_then_stream(adapter: Adapter) -> None:
    """While several write: snapshot and stream together lead to what the database holds, three times over."""
    _need_snapshots(adapter)
    traffic = Traffic(adapter, seed=1)
    await traffic.fill(2_500)
    for seed in (1, 2, 3):
        traffic = Traffic(adapter, seed, traffic)
        await _snapshot_under(adapter, traffic)


async def _snapshot_under(adapter: Adapter, traffic: Traffic) -> None:
    state = State(adapter)
    async with listening(adapter, snapshot=True) as listener:
        await traffic.run(8, until=lambda: _over(listener.batches))
        await listener.until(lambda: _over(listener.batches), "the end of the snapshot")
        await listener.until_row(await traffic.mark())
        for change in listener.changes:
            state.apply(change)
        state.equals(traffic.tables)


async def check_snapshot_resume(adapter: Adapter) -> None:
    """From every cursor inside a snapshot it goes on to what the database holds, whatever was written since.

    The rest may be the rows of then, or those of now with what became of the rows that were read; either way there is
    no gap and no overlap, and what has the same id is the same change.
    """
    _need_snapshots(adapter)
    traffic = Traffic(adapter, seed=4)
    await traffic.fill(2_500)
    async with adapter.writer() as writer:
        await writer.run(Insert(OTHERS, row(adapter, 1, "other")))
    traffic.tables[OTHERS][1] = row(adapter, 1, "other")
    async with adapter.source() as source:
        batches = [batch async for batch in source.snapshot()]
    await traffic.run(4)
    places = [place for place, batch in enumerate(batches) if in_snapshot(batch.cursor)]
    for place in places[:: max(1, len(places) // 6)]:
        await _rest(adapter, batches, place, traffic)
    if places:
        async with adapter.source() as source:
            found = await refusal(adapter, source.stream(batches[places[0]].cursor))
            refused(found, CursorInvalid, what="a stream from a cursor inside a snapshot")


async def _rest(adapter: Adapter, batches: list[SourceBatch], place: int, traffic: Traffic) -> None:
    read = [change for batch in batches[: place + 1] for change in batch.changes]
    rows = {change.id: change.after for batch in batches for change in batch.changes}
    state = State(adapter)
    async with listening(adapter, after=batches[place].cursor) as listener:
        await listener.until(lambda: _over(listener.batches), "the end of the snapshot")
        await listener.until_row(await traffic.mark())
        for change in (*read, *listener.changes):
            state.apply(change)
            if change.id in rows:
                expect(alike(change.after, rows[change.id]), f"{change.id} is another row when a snapshot goes on")
        state.equals(traffic.tables)


def _over(batches: list[SourceBatch]) -> bool:
    return bool(batches) and not in_snapshot(batches[-1].cursor)


def _need_snapshots(adapter: Adapter) -> None:
    if not adapter.source().capabilities.snapshots:
        raise Unsupported("the source has no snapshots")
