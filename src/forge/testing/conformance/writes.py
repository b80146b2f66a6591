"""Checks of what is written: every operation and type, order, transactions, rollback, truncate, definitions."""

from typing import Any

from forge.change import UNAVAILABLE, Change, Op, same
from forge.testing.conformance.adapter import Adapter, Unsupported
from forge.testing.conformance.operations import (
    ADDED,
    ITEMS,
    OTHERS,
    TYPES,
    AddColumn,
    Delete,
    Insert,
    Truncate,
    Update,
)
from forge.testing.conformance.reading import Listener, State, alike, expect, listening, told
from forge.testing.conformance.traffic import MARKS, Traffic, row


def _before(adapter: Adapter, listener: Listener, change: Change, was: dict[str, Any]) -> None:
    """That the image before is as the source says that it is."""
    claim = listener.source.capabilities.before
    name = f"{change.op} of {change.table} {change.row_id}"
    if claim == "never":
        expect(change.before is None, f"{name} has an image before, and the source says that it never has")
    elif claim == "always":
        expect(alike(change.before, was), f"{name} must have the row before, {was}, but has {change.before}")
    else:
        for column, value in (change.before or {}).items():
            right = value is UNAVAILABLE or same(value, was.get(column))
            expect(right, f"{name} says that {column} was {value!r}, but it was {was.get(column)!r}")


async def check_operations(adapter: Adapter) -> None:
    """Insert, update and delete come as such, with key, table, images and an aware time in UTC."""
    first, second = row(adapter, 1, "one", 10), {**row(adapter, 1, "two", 10)}
    async with listening(adapter) as listener, adapter.writer() as writer:
        await writer.run(Insert(ITEMS, first))
        await listener.until(lambda: len(listener.rows) >= 1, "an insert")
        await writer.run(Update(ITEMS, 1, {"name": "two"}))
        await listener.until(lambda: len(listener.rows) >= 2, "an update")
        await writer.run(Delete(ITEMS, 1))
        await writer.run(Insert(ITEMS, row(adapter, MARKS)))
        await listener.until_row(MARKS)
        found = listener.rows[:-1]
        expect([c.op for c in found] == [Op.INSERT, Op.UPDATE, Op.DELETE], f"an insert, update, delete: {told(found)}")
        insert, update, delete = found
        for change in found:
            expect(change.table == ITEMS, f"the table is {ITEMS}, not {change.table}")
            expect(change.key == {adapter.key: 1}, f"the key of {change.op} is {change.key}")
            expect(change.at.utcoffset() is not None, f"the time of {change.op} has no zone")
            expect(not change.at.utcoffset(), f"the time of {change.op} is not in UTC")
            expect(change.source.kind, f"the source of {change.op} has no kind")
        expect(insert.before is None, "an insert has no image before")
        expect(alike(insert.after, first), f"the inserted row is {insert.after}, not {first}")
        expect(alike(update.after, second), f"the updated row is {update.after}, not {second}")
        expect(delete.after is None, "a delete has no image after")
        _before(adapter, listener, update, first)
        _before(adapter, listener, delete, second)
        for batch in listener.batches:
            fits = not batch.columns or len(batch.columns) == len(batch.changes)
            expect(fits, "a batch has columns for some of its changes only")


async def check_types(adapter: Adapter) -> None:
    """Values of every type come in their stated form: inserted, read, null, updated and as a row before."""
    if not adapter.samples:
        raise Unsupported("the adapter has no samples of types")
    names = [f"c{place}" for place in range(len(adapter.samples))]
    written = {name: sample.written for name, sample in zip(names, adapter.samples, strict=True)}
    nothing = dict.fromkeys(names)
    async with listening(adapter) as listener, adapter.writer() as writer:
        await writer.run(Insert(TYPES, {adapter.key: 1, **written}))
        await writer.run(Insert(TYPES, {adapter.key: 2, **nothing}))
        await writer.run(Update(TYPES, 2, written))
        await listener.until(lambda: len(listener.rows) >= 3, "two inserts and an update")
        await writer.run(Update(TYPES, 1, nothing))
        await listener.until(lambda: len(listener.rows) >= 4, "an update to null")
        full, empty, filled, emptied = listener.rows[:4]
        for change in (full, filled):
            _values(adapter, change.after, change)
        for change in (empty, emptied):
            for name in names:
                value = (change.after or {}).get(name, UNAVAILABLE)
                expect(value is None, f"a null comes as {value!r} in {change.op} of {name}")
        if listener.source.capabilities.before == "always":
            _values(adapter, emptied.before, emptied)
    async with adapter.source() as source:
        if source.capabilities.snapshots:
            rows = [change async for batch in source.snapshot() for change in batch.changes if change.table == TYPES]
            for change in rows:
                if change.key == {adapter.key: 2}:
                    _values(adapter, change.after, change)
            expect(len(rows) == 2, f"of two rows with all types a snapshot has {told(rows)}")


def _values(adapter: Adapter, image: Any, change: Change) -> None:
    for place, sample in enumerate(adapter.samples):
        value = (image or {}).get(f"c{place}", UNAVAILABLE)
        expect(
            same(value, sample.expected),
            f"{sample.type}: {sample.written!r} comes as {value!r} in {change.op}, not as {sample.expected!r}",
        )


async def check_key_change(adapter: Adapter) -> None:
    """A changed key is a delete and an insert."""
    if not adapter.keys_change:
        raise Unsupported("keys cannot be changed")
    async with listening(adapter) as listener, adapter.writer() as writer:
        await writer.run(Insert(ITEMS, row(adapter, 1, "moved", 10)))
        await writer.run(Update(ITEMS, 1, {adapter.key: 2}))
        await writer.run(Insert(ITEMS, row(adapter, MARKS)))
        await listener.until_row(MARKS)
        found = [(change.op, (change.key or {}).get(adapter.key)) for change in listener.rows]
        wanted = [(Op.INSERT, 1), (Op.DELETE, 1), (Op.INSERT, 2), (Op.INSERT, MARKS)]
        expect(found == wanted, f"a changed key must be a delete and an insert, but came as {told(listener.rows)}")
        moved = listener.rows[2].after
        expect(alike(moved, row(adapter, 2, "moved", 10)), f"the moved row is {moved}")


async def check_order(adapter: Adapter) -> None:
    """Changes of one writer come in the order in which it made them; those of one row always do."""
    async with listening(adapter) as listener, adapter.writer() as writer:
        await writer.run(Insert(ITEMS, row(adapter, 1, "0", 0)))
        for number in range(1, 40):
            await writer.run(Insert(OTHERS, row(adapter, number, str(number), number)))
            await writer.run(Update(ITEMS, 1, {"amount": number}))
        await writer.run(Insert(ITEMS, row(adapter, MARKS)))
        await listener.until_row(MARKS)
        await listener.until(lambda: len(listener.rows) >= 80, "80 changes")
        item = [c for c in listener.rows if c.table == ITEMS and c.key == {adapter.key: 1}]
        amounts = [(change.after or {}).get("amount") for change in item]
        expect(amounts == list(range(40)), f"the changes of a row must come in order, but came as {amounts}")
        if listener.source.capabilities.ordered:
            tables = [change.table for change in listener.rows]
            expect(
                tables == [ITEMS] + [OTHERS, ITEMS] * 39 + [ITEMS], "changes came in another order than they were made"
            )


async def check_commit_order(adapter: Adapter) -> None:
    """Transactions come in the order of their commits, each in one piece, when the source says that it is ordered."""
    async with listening(adapter) as listener, adapter.writer() as early, adapter.writer() as late:
        if adapter.writers < 2:
            raise Unsupported("one writer at a time")
        if not listener.source.capabilities.ordered:
            raise Unsupported("the source does not say that it is ordered")
        await early.begin()
        await early.run(Insert(ITEMS, row(adapter, 1)))
        await late.begin()
        await late.run(Insert(OTHERS, row(adapter, 11)))
        await early.run(Insert(ITEMS, row(adapter, 2)))
        await late.run(Insert(OTHERS, row(adapter, 12)))
        await late.commit()
        await listener.until(lambda: len(listener.rows) >= 2, "the transaction that committed first")
        await early.run(Insert(ITEMS, row(adapter, 3)))
        await early.commit()
        await late.run(Insert(ITEMS, row(adapter, MARKS)))
        await listener.until_row(MARKS)
        found = [(change.key or {}).get(adapter.key) for change in listener.rows]
        expect(found == [11, 12, 1, 2, 3, MARKS], f"commits were 11, 12, then 1, 2, 3, but came as {found}")
        start = listener.start
    if adapter.source().capabilities.durable:
        async with listening(adapter, after=start) as listener:
            await listener.until_row(MARKS)
            found = [(change.key or {}).get(adapter.key) for change in listener.rows]
            expect(found == [11, 12, 1, 2, 3, MARKS], f"commits were 11, 12, then 1, 2, 3, but later came as {found}")


async def check_transactions(adapter: Adapter) -> None:
    """Changes of one transaction name the same one, and no other does, exactly when the source says so."""
    async with listening(adapter) as listener, adapter.writer() as writer:
        for number in (1, 2):
            await writer.begin()
            await writer.run(Insert(ITEMS, row(adapter, number)))
            await writer.run(Insert(OTHERS, row(adapter, number)))
            await writer.commit()
        await writer.run(Insert(ITEMS, row(adapter, MARKS)))
        await listener.until_row(MARKS)
        names = [change.source.transaction for change in listener.rows]
        if listener.source.capabilities.transactions:
            expect(None not in names, "a change names no transaction")
            one, two, three, four, five = names
            expect(one == two and three == four, f"changes of one transaction name several: {names}")
            expect(len({one, three, five}) == 3, f"changes of several transactions name the same one: {names}")
        else:
            expect(set(names) == {None}, "transactions are named, and the source says that they are not")


async def check_rollback(adapter: Adapter) -> None:
    """What is rolled back, wholly or to a savepoint, is never seen; what is not committed yet is not either."""
    async with listening(adapter) as listener, adapter.writer() as writer:
        if not listener.source.capabilities.rollbacks:
            raise Unsupported("the source says that it shows what is rolled back")
        await writer.run(Insert(ITEMS, row(adapter, 1, "kept")))
        await writer.begin()
        await writer.run(Insert(ITEMS, row(adapter, 2)))
        await writer.run(Update(ITEMS, 1, {"name": "lost"}))
        await writer.run(Delete(ITEMS, 1))
        await writer.rollback()
        wanted = [(Op.INSERT, 1)]
        try:
            await writer.begin()
            await writer.run(Insert(ITEMS, row(adapter, 3)))
            await writer.savepoint()
            await writer.run(Insert(ITEMS, row(adapter, 4)))
            await writer.run(Delete(ITEMS, 3))
            await writer.rollback_to_savepoint()
            await writer.run(Insert(ITEMS, row(adapter, 5)))
            expect(len(listener.rows) <= 1, f"what is not committed was seen: {told(listener.rows)}")
            await writer.commit()
            wanted += [(Op.INSERT, 3), (Op.INSERT, 5)]
        except Unsupported:
            await writer.rollback()
        await writer.run(Insert(ITEMS, row(adapter, MARKS)))
        await listener.until_row(MARKS)
        found = [(change.op, (change.key or {}).get(adapter.key)) for change in listener.rows[:-1]]
        expect(found == wanted, f"committed was {wanted}, but seen was {found}")


async def check_truncate(adapter: Adapter) -> None:
    """A table that is emptied at once is one change exactly when the source says so."""
    async with listening(adapter) as listener, adapter.writer() as writer:
        await writer.run(Insert(ITEMS, row(adapter, 1)))
        await writer.run(Truncate(ITEMS))
        await writer.run(Insert(ITEMS, row(adapter, MARKS)))
        await listener.until_row(MARKS)
        found = [change for change in listener.changes if change.op is Op.TRUNCATE]
        if listener.source.capabilities.truncates:
            expect([c.table for c in found] == [ITEMS], f"a truncate must be one change: {told(listener.changes)}")
            places = [change.op for change in listener.changes if change.op in (Op.INSERT, Op.TRUNCATE)]
            expect(
                places == [Op.INSERT, Op.TRUNCATE, Op.INSERT], f"a truncate is out of order: {told(listener.changes)}"
            )
        else:
            expect(not found, "a truncate came, and the source says that there are none")


async def check_schema_change(adapter: Adapter) -> None:
    """Rows are right before and after a column is added, and the change of definition comes as the source says.

    A source that learns of it late may give rows of the old form until then, if the change of definition comes behind
    them: it says that the table must be read again.
    """
    async with listening(adapter) as listener, adapter.writer() as writer:
        claimed = listener.source.capabilities.schema_changes
        await writer.run(Insert(ITEMS, row(adapter, 1, "before")))
        await writer.run(AddColumn(ITEMS))
        await writer.run(Insert(ITEMS, {**row(adapter, 2, "at once"), ADDED: "new"}))
        await listener.until_row(2)
        if claimed:
            await listener.until(lambda: any(c.op is Op.SCHEMA for c in listener.changes), "the change of definition")
        await writer.run(Insert(ITEMS, {**row(adapter, MARKS, "after"), ADDED: "new"}))
        await listener.until_row(MARKS)
        ops = [change.op for change in listener.changes if change.op in (Op.INSERT, Op.SCHEMA)]
        before, at_once, after = (change for change in listener.rows if change.op is Op.INSERT)
        expect(alike(before.after, row(adapter, 1, "before")), f"the row before the change came as {before.after}")
        late = ops == [Op.INSERT, Op.INSERT, Op.SCHEMA, Op.INSERT]
        if not (late and alike(at_once.after, row(adapter, 2, "at once"))):
            wanted = {**row(adapter, 2, "at once"), ADDED: "new"}
            expect(alike(at_once.after, wanted), f"the row after the change came as {at_once.after}, not {wanted}")
        wanted = {**row(adapter, MARKS, "after"), ADDED: "new"}
        expect(alike(after.after, wanted), f"the row after the change came as {after.after}, not {wanted}")
        if claimed:
            expect(late or ops == [Op.INSERT, Op.SCHEMA, Op.INSERT, Op.INSERT], f"a new definition came as {ops}")
        else:
            expect(Op.SCHEMA not in ops, "a new definition is told, and the source says that it is not")


async def check_traffic(adapter: Adapter) -> None:
    """Random transactions of several writers at once lead to what the database holds, with no change out of place."""
    traffic, state = Traffic(adapter, seed=20), State(adapter)
    async with listening(adapter) as listener:
        await traffic.run(25)
        mark = await traffic.mark()
        await listener.until_row(mark)
        for change in listener.changes:
            state.apply(change)
        state.equals(traffic.tables)
        expect(len(set(listener.ids)) == len(listener.ids), "two changes have the same id")
