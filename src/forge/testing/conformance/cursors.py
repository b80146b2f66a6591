"""Checks of cursors: from any of them on nothing is lost or doubled, and one that cannot be used is refused."""

import asyncio
import re
from contextlib import aclosing
from typing import Any

from forge.capture import Source, SourceBatch
from forge.change import Change
from forge.errors import CursorExpired, CursorForeign, CursorInvalid
from forge.testing.conformance.adapter import Adapter, Unsupported
from forge.testing.conformance.operations import ITEMS, Insert
from forge.testing.conformance.reading import expect, listening, refusal, refused, told
from forge.testing.conformance.traffic import MARKS, Traffic, row

MOST = 16
"""From so many of the cursors at most it is read again."""


async def check_now(adapter: Adapter) -> None:
    """A stream without a cursor, or from that of now, has what comes after and nothing from before."""
    async with adapter.writer() as writer:
        await writer.run(Insert(ITEMS, row(adapter, 1)))
        async with listening(adapter) as listener:
            await writer.run(Insert(ITEMS, row(adapter, 2)))
            await listener.until_row(2)
            found = [(change.key or {}).get(adapter.key) for change in listener.rows]
            expect(found == [2], f"after now came 2, but seen was {found}")
            for cursor in (listener.start, *(batch.cursor for batch in listener.batches)):
                _form(cursor)


def _form(cursor: str) -> None:
    """That a cursor is a word that can be pasted into a shell."""
    odd = sorted(set(re.findall(r"[^A-Za-z0-9_.:,+=@%/~-]", cursor)))
    expect(cursor and not odd, f"the cursor {cursor!r} cannot be pasted into a shell: it has {odd}")


async def check_resume(adapter: Adapter) -> None:
    """From the cursor of every batch the rest comes again: the same changes, the same ids, nothing lost or doubled."""
    _need_durable(adapter)
    traffic = Traffic(adapter, seed=5)
    async with listening(adapter) as listener:
        for _ in range(6):
            await traffic.run(2)
            await listener.until_row(await traffic.mark())
        batches, start = listener.batches, listener.start
    everything = [change for batch in batches for change in batch.changes]
    cursors = [(start, 0)]
    for batch in batches:
        cursors.append((batch.cursor, cursors[-1][1] + len(batch.changes)))
    chosen = cursors[:: max(1, len(cursors) // MOST)]
    for cursor, done in chosen:
        if done < len(everything):
            found = await _read(adapter, cursor, len(everything) - done)
            _same(adapter, found, everything[done:], f"from the cursor behind change {done}")


async def check_replay(adapter: Adapter) -> None:
    """An acknowledged cursor is read from again, or refused, as the source says; what follows it always comes."""
    _need_durable(adapter)
    traffic = Traffic(adapter, seed=6)
    async with adapter.source() as source:
        start = await source.now()
        await traffic.run(3)
        mark = await traffic.mark()
        first = await _until(adapter, source, start, mark)
        middle = first[len(first) // 2]
        done = sum(len(batch.changes) for batch in first[: len(first) // 2 + 1])
        everything = [change for batch in first for change in batch.changes]
        await source.ack(middle.cursor)
    if done < len(everything):
        rest = await _read(adapter, middle.cursor, len(everything) - done)
        _same(adapter, rest, everything[done:], "after an acknowledgement")
    async with adapter.source() as source:
        await source.ack(first[-1].cursor)
        if source.capabilities.replayable:
            again = await _read(adapter, start, len(everything))
            _same(adapter, again, everything, "from an acknowledged cursor")
            return
        found = await refusal(adapter, source.stream(start))
        refused(found, CursorExpired, what="a cursor from before what was acknowledged")


async def check_durable(adapter: Adapter) -> None:
    """What is written while nobody reads comes later, when the source says that it is durable."""
    _need_durable(adapter)
    async with adapter.source() as source:
        start = await source.now()
    traffic = Traffic(adapter, seed=7)
    await traffic.run(5)
    mark = await traffic.mark()
    async with listening(adapter, after=start) as listener:
        await listener.until_row(mark)
        wanted = {id for rows in traffic.tables.values() for id in rows}
        found = {(change.key or {}).get(adapter.key) for change in listener.rows}
        expect(wanted <= found, f"written while nobody read, and lost: {sorted(wanted - found)[:8]}")


async def check_expired_cursor(adapter: Adapter) -> None:
    """A cursor whose successors are gone is refused, never answered with what is left."""
    _need_durable(adapter)
    async with adapter.source() as source:
        start = await source.now()
    async with adapter.writer() as writer:
        for number in range(1, 6):
            await writer.run(Insert(ITEMS, row(adapter, number)))
    await adapter.purge()
    async with adapter.writer() as writer:
        await writer.run(Insert(ITEMS, row(adapter, MARKS)))
    async with adapter.source() as source:
        refused(await refusal(adapter, source.stream(start)), CursorExpired, what="an expired cursor")
        start = await source.now()
    async with adapter.writer() as writer:
        await writer.run(Insert(ITEMS, row(adapter, MARKS + 1)))
    async with listening(adapter, after=start) as listener:
        await listener.until_row(MARKS + 1)


async def check_wrong_cursors(adapter: Adapter) -> None:
    """Nonsense is CursorInvalid, whatever it is made of."""
    async with adapter.source() as source:
        right = await source.now()
        head = right.split("_")[0]
        nonsense = ["", "nonsense", "1", head, f"{head}_", f"{right} ", f"{right}x y", right[: len(head) + 3]]
        nonsense += ["forge9_1_2_3", "zażółć", "\x00", "'; --", "_" * 5_000, f"{head}_\u0661_1", right.upper()]
        for text in nonsense:
            if text.strip() == right.strip():
                continue
            found = await refusal(adapter, source.stream(text))
            refused(found, CursorInvalid, CursorForeign, what=f"the cursor {text[:40]!r}")
        for text in ("other1_abc_7", "mysql7_nobody_0", "sqlite0_x_1"):
            found = await refusal(adapter, source.stream(text))
            refused(found, CursorInvalid, CursorForeign, what=f"the cursor {text!r} of another kind")


async def check_foreign_cursor(adapter: Adapter) -> None:
    """A cursor of another server or database is refused as such, by the stream and by the snapshot."""
    cursor = await adapter.foreign_cursor()
    async with adapter.source() as source:
        refused(await refusal(adapter, source.stream(cursor)), CursorForeign, what="the cursor of another database")


def _need_durable(adapter: Adapter) -> None:
    if not adapter.source().capabilities.durable:
        raise Unsupported("the source does not say that it is durable")


async def _until(adapter: Adapter, source: Source, start: str, mark: int) -> list[SourceBatch]:
    found: list[SourceBatch] = []
    async with asyncio.timeout(adapter.patience), aclosing(source.stream(start)) as batches:
        async for batch in batches:
            found.append(batch)
            if any(change.key == {adapter.key: mark} for change in batch.changes):
                break
    return found


async def _read(adapter: Adapter, cursor: str, count: int) -> list[Change]:
    async with listening(adapter, after=cursor) as listener:
        await listener.until(lambda: len(listener.changes) >= count, f"{count} changes from {cursor}")
        return listener.changes


def _same(adapter: Adapter, found: list[Change], wanted: list[Change], where: str) -> None:
    """That the same changes came: in the same order, or, from a source that is not ordered, each row's."""
    ordered = adapter.source().capabilities.ordered
    one, two = (
        [[(c.op, c.table, c.key, c.id) for c in changes]] if ordered else list(_by_row(changes).values())
        for changes in (found, wanted)
    )
    if one != two:
        ids, then = [change.id for change in found], [change.id for change in wanted]
        lost, more = set(then) - set(ids), set(ids) - set(then)
        plain = [(change.op, change.table, change.key) for change in found]
        again = plain == [(change.op, change.table, change.key) for change in wanted]
        expect(not again, f"{where} the same changes have other ids: {ids[:2]} for {then[:2]}")
        counts = f"{len(lost)} lost, {len(more)} too many"
        expect(False, f"{where} came {told(found)}, but there should be {told(wanted)}: {counts}")


def _by_row(changes: list[Change]) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {}
    for change in changes:
        rows.setdefault(f"{change.table} {change.row_id}", []).append((change.op, change.id))
    return dict(sorted(rows.items()))
