"""A snapshot and the stream behind it: no gap, no overlap, whatever is written meanwhile and however often it ends."""

import asyncio
import random
from contextlib import aclosing

import pytest

import forge
from forge.capture import Filter, changes, open_source
from forge.capture.source import SourceBatch, in_snapshot
from forge.capture.wal import WalSource
from forge.change import Change, Op
from forge.postgres.connection import AsyncConnection, Connection, connect_async
from tests.capture.wal.reading import END, mark, rows, to_end

pytestmark = [pytest.mark.contract("W4"), pytest.mark.contract("W12")]

TABLES = {
    "numbers": "id int PRIMARY KEY, v int",
    "words": "word text PRIMARY KEY, v int",
    "pairs": "a numeric(6,2), b timestamptz, v int, PRIMARY KEY (a, b)",
}
KEYS = {
    "numbers": "{0}",
    "words": "'ä' || md5({0}::text)",
    "pairs": "{0} / 7.0, '2026-01-01'::timestamptz + {0} * interval '1 h'",
}


class Copy:
    """What a consumer makes of changes: each must fit what is there."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, object]] = {name: {} for name in TABLES}

    def apply(self, change: Change) -> None:
        table = self.tables.get(change.table)
        if table is None:
            return
        if change.op is Op.TRUNCATE:
            table.clear()
        elif change.op in (Op.INSERT, Op.READ):
            assert change.row_id not in table, f"{change.op} of {change.table} {change.row_id}, which is there"
            table[change.row_id] = change.after
        elif change.op is Op.UPDATE:
            assert change.row_id in table, f"update of {change.table} {change.row_id}, which is not there"
            table[change.row_id] = change.after
        elif change.op is Op.DELETE:
            assert table.pop(change.row_id, None) is not None, f"delete of {change.row_id}, which is not there"


async def churn(connection: AsyncConnection, seed: int, turns: int) -> None:
    """Random writes, in transactions that overlap each other with a few statements."""
    dice = random.Random(seed)
    for _ in range(turns):
        async with connection.transaction():
            for _ in range(dice.choice((1, 1, 2, 6))):
                table = dice.choice(list(TABLES))
                key = KEYS[table].format(dice.randrange(4000))
                names = TABLES[table].partition("PRIMARY KEY (")[2].strip(")") or TABLES[table].split()[0]
                value = dice.randrange(10_000)
                statement = dice.choice(
                    (
                        f"INSERT INTO {table} VALUES ({key}, {value}) ON CONFLICT ({names}) DO UPDATE SET v = {value}",
                        f"UPDATE {table} SET v = {value} WHERE ({names}) = ({key})",
                        f"DELETE FROM {table} WHERE ({names}) = ({key})",
                        f"DELETE FROM {table} WHERE ({names}) = ({key})",
                    )
                )
                await connection.execute(statement.encode())
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", [1, 2])
async def test_under_concurrent_writes_and_interruptions(
    database: str, connection: Connection, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.capture.wal.snapshot.PAGE", 100)
    monkeypatch.setattr("forge.capture.wal.snapshot.LARGE", 5)
    for name, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {name} ({columns})")
        key = KEYS[name].format("g")
        connection.execute(f"INSERT INTO {name} SELECT {key}, g FROM generate_series(1, 3000) g WHERE g % 3 <> 0")
    connection.execute("ANALYZE")
    dice = random.Random(seed)
    copy, cursor, interruptions = Copy(), None, 0
    writers = [await connect_async(database) for _ in range(3)]
    writing = [asyncio.create_task(churn(writer, seed * 10 + n, 150)) for n, writer in enumerate(writers)]
    async with asyncio.timeout(40):
        while cursor is None or in_snapshot(cursor):
            async with aclosing(WalSource(database).snapshot(cursor)) as batches:
                async for batch in batches:
                    assert {change.op for change in batch.changes} <= {Op.READ}
                    for change in batch.changes:
                        copy.apply(change)
                    cursor = batch.cursor
                    await asyncio.sleep(0.001)
                    if dice.random() < 0.08 and interruptions < 4:
                        interruptions += 1
                        break
        await asyncio.gather(*writing)
        mark(connection)
        for batch in await to_end(WalSource(database), cursor):
            for change in batch.changes:
                copy.apply(change)
    for writer in writers:
        await writer.close()
    assert interruptions > 0
    for name in TABLES:
        async with aclosing(WalSource(database, Filter(tables=(name,))).snapshot()) as batches:
            stored = {change.row_id: change.after async for batch in batches for change in batch.changes}
        assert copy.tables[name] == stored, name


async def test_a_snapshot_is_resumed_from_any_of_its_cursors(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.capture.wal.snapshot.PAGE", 50)
    connection.execute("CREATE TABLE a (id int PRIMARY KEY)")
    connection.execute("CREATE TABLE b (k text PRIMARY KEY)")
    connection.execute("INSERT INTO a SELECT generate_series(1, 175)")
    connection.execute("INSERT INTO b SELECT 'k' || generate_series(1, 120)")
    source = WalSource(database)
    batches: list[SourceBatch] = [batch async for batch in source.snapshot()]
    everything = {change.id: change for batch in batches for change in batch.changes}
    assert len(everything) == 295
    assert not in_snapshot(batches[-1].cursor)
    seen: set[str] = set()
    for batch in batches[:-1]:
        seen |= {change.id for change in batch.changes}
        assert in_snapshot(batch.cursor)
        rest, _ = await rows(WalSource(database), batch.cursor)
        assert {change.id for change in rest} == everything.keys() - seen
        assert all(everything[change.id] == change for change in rest)


async def test_rows_that_a_running_transaction_writes_come_once(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = WalSource(database)
    await source.now()
    other = await connect_async(database)
    async with other.transaction():
        await other.execute("INSERT INTO t VALUES (1)")
        connection.execute("INSERT INTO t VALUES (2)")
        read, cursor = await rows(source)
        here = await source.now()
    await other.close()
    mark(connection)
    assert [change.row_id for change in read] == ["2"]
    for place in (cursor, here):
        streamed = [c.row_id for batch in await to_end(source, place) for c in batch.changes if c.table == "t"]
        assert streamed == ["1"]


async def test_truncate_between_two_parts(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.capture.wal.snapshot.PAGE", 10)
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connection.execute("INSERT INTO t SELECT generate_series(1, 30)")
    async with aclosing(WalSource(database, workers=1).snapshot()) as batches:
        first = await anext(batches)
    connection.execute("TRUNCATE t")
    connection.execute("INSERT INTO t VALUES (25)")
    rest, cursor = await rows(WalSource(database), first.cursor)
    assert [change.row_id for change in rest] == ["25"]
    mark(connection)
    seen = [change for batch in await to_end(WalSource(database), cursor) for change in batch.changes]
    # some of what was read is gone and some came after: only reading it again is true
    assert [change.op for change in seen if change.table == "t"] == [Op.INVALIDATE]


async def test_tables_are_read_anew_while_the_stream_goes_on(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.capture.wal.resnapshot.CHUNK", 100)
    connection.execute("CREATE TABLE numbers (id int PRIMARY KEY, v int)")
    connection.execute("INSERT INTO numbers SELECT g, 0 FROM generate_series(1, 2000) g")
    source = WalSource(database, heartbeat=0.1)
    cursor = await source.now()
    await source.resnapshot(["numbers"])
    with pytest.raises(forge.ForgeError, match="not published"):
        await source.resnapshot(["nothing"])
    writer = await connect_async(database)

    async def write() -> None:
        dice = random.Random(3)
        for turn in range(300):
            number = dice.randrange(1, 2200)
            await writer.execute(
                "INSERT INTO numbers VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = excluded.v", (number, turn)
            )
            if turn % 5 == 0:
                await writer.execute("DELETE FROM numbers WHERE id = %s", (dice.randrange(1, 2200),))

    writing = asyncio.create_task(write())
    state: dict[str, object] = {}
    versions: dict[str, int] = {}
    read: set[str] = set()
    async with asyncio.timeout(30), aclosing(source.stream(cursor)) as batches:
        async for batch in batches:
            for change in batch.changes:
                if change.table == END:
                    continue
                assert change.row_id not in read or change.op is not Op.READ, "read twice"
                if change.op is Op.READ:
                    read.add(change.row_id)
                    value = int((change.after or {})["v"])
                    assert value >= versions.get(change.row_id, -1), "went back in time"
                if change.op is Op.DELETE:
                    state.pop(change.row_id, None)
                else:
                    state[change.row_id] = change.after
                    versions[change.row_id] = int((change.after or {})["v"])
            if writing.done() and source.resnapshots_done:
                break
        mark(connection)
        async for batch in batches:
            for change in batch.changes:
                if change.op is Op.DELETE:
                    state.pop(change.row_id, None)
                elif change.table != END:
                    state[change.row_id] = change.after
            if any(change.table == END for change in batch.changes):
                break
    await writer.close()
    stored = connection.execute("SELECT id, v FROM numbers").fetchall()
    assert len(read) > 1500
    assert state == {str(id): {"id": id, "v": v} for id, v in stored}


async def test_the_one_way_to_read_any_source(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connection.execute("INSERT INTO t VALUES (1)")
    mark(connection)
    seen: list[tuple[Op, str]] = []
    async with (
        asyncio.timeout(20),
        open_source(f"{database}?feed=wal", Filter(tables=("t",))) as source,
        aclosing(changes(source, snapshot=True)) as batches,
    ):
        async for batch in batches:
            seen += [(change.op, change.row_id) for change in batch.changes]
            if not in_snapshot(batch.cursor) and len(seen) == 1:
                connection.execute("INSERT INTO t VALUES (2)")
            if len(seen) == 2:
                break
    assert seen == [(Op.READ, "1"), (Op.INSERT, "2")]


async def test_a_table_without_a_key_is_read_whole(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (v int)")
    connection.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    connection.execute("INSERT INTO t VALUES (1), (1), (NULL)")
    found, cursor = await rows(WalSource(database))
    assert [change.after for change in found] == [{"v": 1}, {"v": 1}, {"v": None}]
    assert [change.key for change in found] == [None] * 3
    assert len({change.id for change in found}) == 3
    connection.execute("UPDATE t SET v = 2 WHERE v IS NULL")
    mark(connection)
    seen = [c for batch in await to_end(WalSource(database), cursor) for c in batch.changes if c.table == "t"]
    assert [(c.op, c.key, c.before, c.after) for c in seen] == [(Op.UPDATE, None, {"v": None}, {"v": 2})]
