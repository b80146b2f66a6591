"""Checks of what a source says of itself: what it sees, who wrote, where filters run, how it stands.

The other claims are proven where they matter: `before` in check_operations, `ordered` in check_commit_order and so on.
"""

from typing import Final, get_args

from forge.capture import Filter
from forge.capture.capabilities import Part
from forge.change import Op
from forge.testing.conformance.adapter import Adapter, Unsupported
from forge.testing.conformance.operations import ITEMS, OTHERS, Delete, Fill, Insert, Update
from forge.testing.conformance.reading import Listener, alike, expect, listening, told
from forge.testing.conformance.traffic import MARKS, row

FILTERS: Final = (
    Filter(tables=(ITEMS,)),
    Filter(tables=("it*", "nothing.*")),
    Filter(operations=(Op.INSERT,)),
    Filter(operations=(Op.UPDATE, Op.INSERT)),
    Filter(columns=("name",)),
    Filter(where="amount > 10"),
    Filter(where="amount IN (5, 50) OR name IS NULL"),
    Filter(where="name IS NOT NULL AND amount NOT BETWEEN 6 AND 40"),
    Filter(
        tables=(ITEMS,),
        operations=(Op.INSERT, Op.DELETE),
        columns=("amount",),
        where="amount >= 50 AND NOT amount = 60",
    ),
)
"""The last change that `_writes` makes passes all of them."""


async def check_filters(adapter: Adapter) -> None:
    """A source with a filter gives what the filter keeps of all its changes, wherever the filter runs."""
    for number, filter in enumerate(FILTERS, 1):
        base = 100 * number
        async with listening(adapter) as whole, listening(adapter, filter) as part:
            await _writes(adapter, base)
            await whole.until_row(base + 9)
            await part.until_row(base + 9)
            wanted = [kept for change in whole.changes if (kept := filter.keep(change)) is not None]
            found = part.changes
            durable = part.source.capabilities.durable
        expect(
            [(c.op, c.table, c.key) for c in found] == [(c.op, c.table, c.key) for c in wanted],
            f"{filter} keeps {told(wanted)}, but the source gives {told(found)}",
        )
        for one, two in zip(found, wanted, strict=True):
            expect(one.id == two.id or not durable, f"{filter} changes the id {two.id} to {one.id}")
            expect(alike(one.after, two.after), f"{filter} gives the row {one.after}, not {two.after}")
            expect(alike(one.before, two.before), f"{filter} gives the row before {one.before}, not {two.before}")


async def _writes(adapter: Adapter, base: int) -> None:
    async with adapter.writer() as writer:
        for id, name, amount in ((1, "a", 5), (2, "b", 20), (3, None, 60), (4, "d", None)):
            await writer.run(Insert(ITEMS, row(adapter, base + id, name, amount)))
            await writer.run(Insert(OTHERS, row(adapter, base + id, name, amount)))
        await writer.run(Update(ITEMS, base + 1, {"amount": 70}))
        await writer.run(Update(ITEMS, base + 2, {"amount": 1}))
        await writer.run(Update(ITEMS, base + 3, {"note": "noted"}))
        await writer.run(Update(OTHERS, base + 4, {"name": "e"}))
        await writer.run(Delete(ITEMS, base + 2))
        await writer.run(Delete(ITEMS, base + 3))
        await writer.run(Insert(ITEMS, row(adapter, base + 9, "last", 50)))


async def check_filters_in_feed(adapter: Adapter) -> None:
    """The parts of a filter that run in the feed, as the source says, keep what is not wanted from being sent."""
    claimed = adapter.source().capabilities.filters
    if not claimed:
        raise Unsupported("the source does not say that anything is filtered in the feed")
    if adapter.proxy is None or not adapter.source().capabilities.durable:
        raise Unsupported("what the feed sends cannot be measured")
    filters: dict[str, Filter] = {
        "nothing": Filter(),
        "tables": Filter(tables=(ITEMS,)),
        "operations": Filter(operations=(Op.UPDATE,)),
        "columns": Filter(columns=("name",)),
        "rows": Filter(where="amount > 10"),
    }
    starts = {}
    for part in ("nothing", *claimed):
        async with adapter.source(filters[part]) as source:
            starts[part] = await source.now()
    async with adapter.writer() as writer:
        await writer.run(Fill(OTHERS, 1, 500, "y" * 1_000))
        await writer.run(Insert(ITEMS, row(adapter, MARKS, "last", 50)))
        await writer.run(Update(ITEMS, MARKS, {"name": "the very last"}))
    sent = {part: await _sent(adapter, filters[part], start) for part, start in starts.items()}
    for part in claimed:
        few = sent[part] * 3 < sent["nothing"]
        expect(few, f"with {part} filtered in the feed {sent[part]} bytes are sent, without {sent['nothing']}")


async def _sent(adapter: Adapter, filter: Filter, start: str) -> int:
    """How many bytes come up to the last change, an update."""
    assert adapter.proxy is not None
    adapter.proxy.received = 0
    async with listening(adapter, filter, after=start, proxied=True) as listener:
        await listener.until(lambda: any(c.op is Op.UPDATE for c in listener.changes), "the last change")
        return adapter.proxy.received


async def check_other_processes(adapter: Adapter) -> None:
    """What another process writes is seen exactly when the source says so."""
    async with listening(adapter) as listener:
        async with adapter.stranger() as stranger:
            await stranger.run(Insert(ITEMS, row(adapter, 1)))
        async with adapter.writer() as writer:
            await writer.run(Insert(ITEMS, row(adapter, 2)))
        await listener.until_row(2)
        found = [(change.key or {}).get(adapter.key) for change in listener.rows]
        if listener.source.capabilities.other_processes:
            expect(found == [1, 2], f"another process wrote 1, but seen was {found}")
        else:
            expect(found == [2], "the write of another process is seen, and the source says that it is not")


async def check_context(adapter: Adapter) -> None:
    """Who writes is told, when the source says so, and only of the transaction that said it."""
    async with listening(adapter) as listener, adapter.writer() as writer:
        if not listener.source.capabilities.context:
            raise Unsupported("the source does not say who writes")
        await writer.begin()
        await writer.context("ada")
        await writer.run(Insert(ITEMS, row(adapter, 1)))
        await writer.commit()
        await writer.run(Insert(ITEMS, row(adapter, MARKS)))
        await listener.until_row(MARKS)
        who = [change.context.user_id for change in listener.rows]
        expect(who == ["ada", None], f"ada wrote the first and nobody the second, but told is {who}")


async def check_status(adapter: Adapter) -> None:
    """The status says what the source is, and where each part of a filter runs; it shows no secret."""
    whole = Filter(tables=(ITEMS,), operations=(Op.INSERT,), columns=("name",), where="amount > 10")
    async with adapter.source(whole) as source:
        status = await source.status()
        expect(status.kind == source.kind, f"the source is {source.kind}, its status is of {status.kind}")
        expect(status.capabilities == source.capabilities, "the status has other capabilities than the source")
        expect(source.capabilities.retention.strip(), "it does not say what is retained")
        parts = {*status.in_feed, *status.in_forge}
        expect(
            parts == set(whole.parts), f"the filter has {whole.parts}, and the status says where {sorted(parts)} run"
        )
        expect(not {*status.in_feed} & {*status.in_forge}, "a part of the filter runs in the feed and in Forge")
        right = set(status.in_feed) == set(source.capabilities.filters)
        expect(right, f"in the feed runs {status.in_feed}, and the source says {source.capabilities.filters}")
        expect(set(source.capabilities.filters) <= set(get_args(Part)), "a filter has no such part")
        if adapter.secret is not None:
            expect(adapter.secret not in repr(status) + source.name, "the status shows a secret")
    async with adapter.source() as source:
        status = await source.status()
        expect(not status.in_feed and not status.in_forge, "without a filter, parts of it run")
        if status.position is not None:
            async with listening(adapter, after=status.position) as listener:
                await _heard(adapter, listener)


async def _heard(adapter: Adapter, listener: Listener) -> None:
    async with adapter.writer() as writer:
        await writer.run(Insert(ITEMS, row(adapter, MARKS)))
    await listener.until_row(MARKS)
