"""Reading the log from cursors: nothing lost, nothing doubled, the same for ever, in bounded memory."""

import asyncio
import random
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import psycopg
import pytest

from forge.change import Op
from forge.changelog import partitions, reader
from forge.changelog.days import ALL
from forge.changelog.install import install
from forge.changelog.maintenance import Policy, run_once
from forge.changelog.reader import Batch, Reader
from forge.cursor import Cursor, Position, Snapshot
from forge.embedded import PostgresServer
from forge.errors import CursorExpired, CursorForeign, CursorInvalid, NotInstalled
from forge.history.asof import table_as_of
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database
from tests.changelog.following import add, batches, between, changes, keys, now, orders, track

MEASURE = """
import asyncio, resource, sys
from forge.changelog.reader import Reader

def peak():
    try:
        with open("/proc/self/status") as status:
            return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) // 1024
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 * (1024 if sys.platform == "darwin" else 1))

async def main(url):
    async with Reader.open(url) as reader:
        async for batch in reader.read(await reader.now()):
            pass
        before, count, size = peak(), 0, 0
        async for batch in reader.read(reader.start()):
            count += sum(change.after is not None for change in batch.changes)
            size += sum(len(change.after["note"]) for change in batch.changes if change.after)
    print(count, size, peak() - before)

asyncio.run(main(sys.argv[1]))
"""


def measured(url: str) -> tuple[int, int, int]:
    """Changes read from the start by a process, characters of their notes, megabytes that it grew by."""
    ran = subprocess.run([sys.executable, "-c", MEASURE, url], capture_output=True, text=True, check=True)
    count, size, megabytes = map(int, ran.stdout.split())
    return count, size, megabytes


def naive(connection: Connection, after: int) -> list[tuple[int, int]]:
    """What a reader that remembers a sequence number sees: (log id, key)."""
    rows = connection.execute("SELECT id, row_id::int FROM forge_events WHERE id > %s ORDER BY id", (after,)).fetchall()
    return [(id, key) for id, key in rows if key is not None]


async def test_a_change_that_commits_late_is_seen(database: str, connection: Connection) -> None:
    orders(connection)
    async with Reader.open(database) as reader:
        cursor = await reader.now()
        with connect(database) as late:
            late.execute("BEGIN")
            add(late, 1)
            add(connection, 2)
            first = await batches(reader, cursor)
            sequence = naive(connection, 0)
            assert keys(first[-1].changes) == [key for _, key in sequence] == [2]
            late.execute("COMMIT")
        second = await batches(reader, first[-1].cursor)
        assert keys(second[-1].changes) == [1]
        assert naive(connection, sequence[-1][0]) == []
        assert await changes(reader, second[-1].cursor) == []


async def test_a_rolled_back_change_is_never_seen(database: str, connection: Connection) -> None:
    orders(connection)
    async with Reader.open(database) as reader:
        cursor = await reader.now()
        with connect(database) as other:
            other.execute("BEGIN")
            add(other, 1)
            other.execute("SAVEPOINT inside")
            add(other, 2)
            assert await changes(reader, cursor) == []
            other.execute("ROLLBACK TO inside")
            add(other, 3)
            other.execute("COMMIT")
            other.execute("BEGIN")
            add(other, 4)
            cursor = (await batches(reader, cursor))[-1].cursor
            other.execute("ROLLBACK")
        assert keys(await changes(reader, reader.start()))[-2:] == [1, 3]
        assert await changes(reader, cursor) == []


def write_at_random(url: str, writer: int) -> None:
    """Forty transactions, some of them long, some rolled back; each inserts a key of its own, some update it."""
    chance = random.Random(writer)
    with connect(url) as connection:
        for number in range(40):
            key = 1000 * writer + number
            connection.execute("BEGIN")
            add(connection, key)
            if chance.random() < 0.5:
                connection.execute("SELECT pg_sleep(%s)", (chance.random() / 100,))
            if chance.random() < 0.5:
                connection.execute("UPDATE orders SET note = 'changed' WHERE id = %s", (key,))
            connection.execute("ROLLBACK" if chance.random() < 0.2 else "COMMIT")


@pytest.mark.contract("T11")
async def test_what_lies_between_two_cursors_is_the_same_for_ever(database: str, connection: Connection) -> None:
    orders(connection)
    connection.execute("CREATE TABLE audit (at int)")
    # a trigger that writes its own table makes ranks, the other order than that of ids
    connection.execute(
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN UPDATE orders SET note = note || '!' WHERE id = NEW.id; RETURN NULL; END $$"
    )
    connection.execute("CREATE TRIGGER touch AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION touch()")
    writers = [threading.Thread(target=write_at_random, args=(database, writer)) for writer in range(4)]
    async with Reader.open(database) as reader:
        read = [Batch([], await reader.now(), "0/0", True)]
        for writer in writers:
            writer.start()
        while any(writer.is_alive() for writer in writers):
            read += await batches(reader, read[-1].cursor)
            await asyncio.sleep(0.002)
        read += await batches(reader, read[-1].cursor)
        seen = [change for batch in read for change in batch.changes]
        assert len({change.id for change in seen}) == len(seen)
        logged = connection.execute("SELECT count(*) FROM forge_events WHERE operation <> 'SCHEMA'").fetchone()
        assert logged == (sum(change.op is not Op.SCHEMA for change in seen),)
        assert sum(bool(batch.changes) for batch in read) > 10
        connection.execute("UPDATE orders SET note = 'later'")
        async with Reader.open(database) as another:
            for old, new in pairwise(read):
                if new.changes or old is read[0]:
                    again = await batches(another, between(old.cursor, new.cursor))
                    assert [change for batch in again for change in batch.changes] == new.changes
                    assert again[-1].cursor == new.cursor
            whole = await changes(another, between(read[0].cursor, read[-1].cursor))
            assert {change.id for change in whole} == {change.id for change in seen}
        rebuilt: dict[int, object] = {}
        for change in seen:
            if change.op in (Op.INSERT, Op.UPDATE):
                assert change.key is not None
                assert change.after is not None
                assert (change.before or {}).get("note") == rebuilt.get(change.key["id"])
                rebuilt[change.key["id"]] = change.after["note"]
        assert len(rebuilt) > 100


@pytest.mark.contract("T11")
async def test_a_batch_larger_than_a_page_is_resumed_from_every_cursor_inside(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE", 40)
    orders(connection)
    async with Reader.open(database) as first:
        cursor = await first.now()
        with connect(database) as late, connect(database) as running:
            late.execute("BEGIN")
            add(late, 9001)
            running.execute("BEGIN")
            add(running, 9002)
            with connection.transaction():
                connection.execute("INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 300) n")
                connection.execute("UPDATE orders SET note = 'changed' WHERE id <= 200")
            late.execute("COMMIT")
            connection.execute("DELETE FROM orders WHERE id <= 50")
            read = []
            async for batch in first.read(cursor):
                read.append(batch)
                add(connection, 10_000 + len(read))
                if len(read) == 2:
                    running.execute("COMMIT")
        everything = [change for batch in read for change in batch.changes]
        assert len(everything) == 1 + 300 + 200 + 50
        assert len(read) > 8
        assert all(batch.cursor.last is not None for batch in read[:-1])
        assert read[-1].cursor.last is None
        async with Reader.open(database) as second:
            done = 0
            for batch in read:
                done += len(batch.changes)
                text = Cursor.parse(str(batch.cursor))
                if batch is not read[-1]:
                    again = await batches(second, text)
                    assert [change for each in again for change in each.changes] == everything[done:]
                    assert again[-1].cursor == read[-1].cursor
                    assert all(len(each.changes) <= 40 for each in again)
            after = keys(await changes(second, read[-1].cursor))
            assert sorted(after) == [9002, *range(10_001, 10_001 + len(read))]


@pytest.mark.contract("T6")
async def test_a_giant_transaction_streams_in_bounded_memory(database: str, connection: Connection) -> None:
    orders(connection)
    connection.execute("INSERT INTO orders SELECT n, repeat('x', 100) FROM generate_series(1, 300000) n")
    count, size, megabytes = measured(database)
    assert (count, size) == (300_000, 30_000_000)
    assert megabytes < 60


@pytest.mark.contract("T6")
@pytest.mark.parametrize("small", [0, 20_000], ids=["only", "after small ones"])
async def test_rows_of_a_megabyte_stream_in_bounded_memory(database: str, connection: Connection, small: int) -> None:
    orders(connection)
    with connection.transaction():
        connection.execute("INSERT INTO orders SELECT -n, '' FROM generate_series(1, %s) n", (small,))
        connection.execute("INSERT INTO orders SELECT n, repeat('x', 1000000) FROM generate_series(1, 200) n")
    count, size, megabytes = measured(database)
    assert (count, size) == (200 + small, 200_000_000)
    assert megabytes < 120


async def test_tables_are_chosen_by_name_with_and_without_schema(database: str, connection: Connection) -> None:
    connection.execute("CREATE SCHEMA sales")
    for table in ("orders", "sales.orders", "customers"):
        connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)".encode())
        track(connection, table)
    async with Reader.open(database) as reader:
        cursor = await reader.now()
        connection.execute("INSERT INTO orders VALUES (1)")
        connection.execute("INSERT INTO sales.orders VALUES (2)")
        connection.execute("INSERT INTO customers VALUES (3)")
        chosen = {
            ("orders",): [1, 2],
            ("sales.orders",): [2],
            ("public.orders", "customers"): [1, 3],
            ("nothing",): [],
            (): [],
        }
        for tables, expected in chosen.items():
            assert keys(await changes(reader, cursor, tables)) == expected
        assert keys(await changes(reader, cursor)) == [1, 2, 3]
        found = await changes(reader, cursor, ["sales.orders"])
        assert [(change.schema, change.table) for change in found] == [("sales", "orders")]


async def test_start_now_and_nothing_new(database: str, connection: Connection) -> None:
    orders(connection)
    add(connection, 1, 2)
    async with Reader.open(database) as reader:
        assert keys(await changes(reader, reader.start()))[-2:] == [1, 2]
        cursor = await reader.now()
        assert cursor.log == reader.identity == reader.start().log
        for _ in range(5):  # the server may use a transaction number for work of its own, but not every time
            before, (batch,) = cursor, await batches(reader, cursor)
            cursor = batch.cursor
            assert batch.changes == []
            if cursor == before:
                break
        assert cursor == before


async def test_a_change_says_all_there_is_to_say(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE people (id int PRIMARY KEY, name text, age int, password text, card text)")
    connection.execute("SELECT forge_enable_reactivity('people', exclude => '{password}', mask => '{card}')")
    began = datetime.now(UTC)
    async with Reader.open(database) as reader:
        cursor = await reader.now()
        with connection.transaction():
            connection.execute(
                "SELECT forge_context(user_id => 'u1', function_name => 'hire', trace_id => 't1', more => %s)",
                ('{"tenant": 7}',),
            )
            connection.execute("INSERT INTO people SELECT n, 'p' || n, 30, 'secret', 'c' FROM generate_series(1, 3) n")
        xid = connection.execute("SELECT max(transaction_id) FROM forge_events").fetchone()
        connection.execute("UPDATE people SET age = age + 1 WHERE id >= 2")
        connection.execute("UPDATE people SET password = 'other', card = 'd', name = 'q' WHERE id = 1")
        connection.execute("UPDATE people SET id = 9 WHERE id = 3")
        connection.execute("DELETE FROM people WHERE id = 1")
        connection.execute("TRUNCATE people")
        found = await changes(reader, cursor)
        again = await changes(reader, cursor)
    assert found == again
    assert len({change.id for change in found}) == len(found) == 10
    inserts, bulk, hidden, moved, deleted, truncated = found[:3], found[3:5], found[5], found[6:8], found[8], found[9]
    assert [change.op for change in inserts] == [Op.INSERT] * 3
    assert [(change.key, change.before) for change in inserts] == [({"id": n}, None) for n in (1, 2, 3)]
    assert inserts[0].after is not None
    assert {name: inserts[0].after[name] for name in ("id", "name", "age")} == {"id": 1, "name": "p1", "age": 30}
    assert "secret" not in str(found)
    context = inserts[0].context
    assert (context.user_id, context.function_name, context.trace_id, context.more) == (
        "u1",
        "hire",
        "t1",
        {"tenant": 7},
    )
    assert (context.session_user, context.application_name) == ("postgres", "forge")
    assert bulk[0].context.user_id is None
    for change, key in zip(bulk, (2, 3), strict=True):
        assert (change.op, change.key, change.changed, change.hidden) == (Op.UPDATE, {"id": key}, ("age",), ())
        assert change.before is not None
        assert change.after is not None
        assert change.before == {**change.after, "age": 30}
        assert change.after["name"] == f"p{key}"
    stored = connection.execute(
        "SELECT before::text FROM forge.forge_event_log WHERE op = 'U' AND row_id = '2'"
    ).fetchone()
    assert stored is not None
    assert "p2" not in stored[0], "only what changed is stored of a bulk update"
    assert hidden.changed == ("name", *hidden.hidden)
    assert sorted(hidden.hidden) == ["card", "password"]
    assert [(change.op, change.key) for change in moved] == [(Op.DELETE, {"id": 3}), (Op.INSERT, {"id": 9})]
    assert (deleted.op, deleted.key, deleted.after) == (Op.DELETE, {"id": 1}, None)
    assert deleted.before is not None
    assert deleted.before["name"] == "q"
    assert (truncated.op, truncated.key, truncated.row_id) == (Op.TRUNCATE, None, "*")
    log = cursor.log.uuid
    for change in found:
        assert (change.schema, change.table) == ("public", "people")
        assert (change.source.kind, change.source.name) == ("postgres-log", log)
        assert change.id.startswith(log)
        assert began - timedelta(seconds=1) < change.at < datetime.now(UTC) + timedelta(seconds=1)
    assert {change.source.transaction for change in inserts} == {str(xid[0] if xid else None)}
    assert len({change.source.transaction for change in found}) == 6
    ats = [change.at for change in found]
    assert ats == sorted(ats)


async def test_a_table_that_changes_its_columns_is_read_as_it_was(database: str, connection: Connection) -> None:
    orders(connection)
    async with Reader.open(database) as reader:
        cursor = await reader.now()
        add(connection, 1)
        assert keys(await changes(reader, cursor)) == [1]
        connection.execute("ALTER TABLE orders ADD COLUMN amount numeric")
        connection.execute("INSERT INTO orders VALUES (2, 'new', 1.50)")
        connection.execute("ALTER TABLE orders RENAME TO purchases")
        connection.execute("INSERT INTO purchases VALUES (3, 'new', 2.50)")
        found = [change for change in await changes(reader, cursor) if change.op is Op.INSERT]
    assert [(change.table, sorted(change.after or {})) for change in found] == [
        ("orders", ["id", "note"]),
        ("orders", ["amount", "id", "note"]),
        ("purchases", ["amount", "id", "note"]),
    ]


def move_to_yesterday(connection: Connection, days: int) -> None:
    """Make all that is in the log so far as old as that."""
    day = datetime.now(UTC).date() - timedelta(days=days)
    partitions.make(connection, day)
    connection.execute("UPDATE forge.forge_event_log SET day = %s, at = at - %s", (day, timedelta(days=days)))


@pytest.mark.contract("R8")
async def test_a_cursor_before_what_was_trimmed_has_expired(database: str, connection: Connection) -> None:
    orders(connection)
    async with Reader.open(database) as reader:
        before = await reader.now()
        add(connection, 1)
        with connect(database) as running:
            running.execute("BEGIN")
            add(running, 2)
            during = await reader.now()
            add(connection, 3)
            running.execute("COMMIT")
        after = await reader.now()
        move_to_yesterday(connection, 3)
        add(connection, 4)
        assert run_once(database, Policy(retention_days=1)).trimmed_rows
        add(connection, 5)
        for cursor in (before, during, Cursor(before.log, before.snapshot, after.snapshot, Position(1, 1))):
            with pytest.raises(CursorExpired, match="trimmed") as caught:
                await changes(reader, cursor)
            assert caught.value.fix
        assert keys(await changes(reader, after)) == [4, 5]
        assert keys(await changes(reader, reader.start())) == [4, 5]
        assert keys(await changes(reader, await reader.now())) == []


async def test_a_cursor_whose_running_transaction_was_trimmed_has_expired(
    database: str, connection: Connection
) -> None:
    orders(connection)
    async with Reader.open(database) as reader:
        with connect(database) as running:
            running.execute("BEGIN")
            add(running, 1)
            add(connection, 2)
            cursor = await reader.now()
            running.execute("COMMIT")
        assert cursor.snapshot.running
        assert keys(await changes(reader, cursor)) == [1]
        connection.execute(
            "INSERT INTO forge.trimmed (partition, reason, rows, last_id, last_transaction)"
            " SELECT 'p', 'retention', 1, id, transaction_id FROM forge.forge_event_log WHERE row_id = '1'"
        )
        with pytest.raises(CursorExpired):
            await changes(reader, cursor)
        assert await changes(reader, await reader.now()) == []


async def test_a_transaction_in_flight_loses_nothing_by_trimming(database: str, connection: Connection) -> None:
    """Its number is lower than those that were trimmed, but it had not written to what is gone."""
    orders(connection)
    connection.execute("SELECT forge.current_identity()")
    async with Reader.open(database) as reader:
        with connect(database) as idle:
            idle.execute("BEGIN; SELECT pg_current_xact_id()")
            add(connection, 1)
            cursor = await reader.now()
            assert cursor.snapshot.running
            connection.execute("INSERT INTO forge.instant VALUES (clock_timestamp(), pg_current_snapshot())")
            connection.execute(
                "INSERT INTO forge.trimmed (partition, reason, rows, last_id, last_transaction)"
                " SELECT 'p', 'retention', 1, id, transaction_id FROM forge.forge_event_log WHERE row_id = '1'"
            )
            assert await changes(reader, cursor) == []
            assert [row["id"] for row in table_as_of(connection, "orders", datetime.now(UTC)).rows] == [1]
            add(idle, 2)
            idle.execute("COMMIT")
        assert keys(await changes(reader, cursor)) == [2]


async def test_a_cursor_inside_the_first_batch_expires_when_what_follows_it_is_trimmed(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE", 20)
    orders(connection)
    connection.execute("INSERT INTO orders SELECT n, '' FROM generate_series(1, 400) n")
    async with Reader.open(database) as first:
        inside = (await batches(first, first.start()))[0].cursor
        assert inside.last is not None
        move_to_yesterday(connection, 3)
        assert run_once(database, Policy(retention_days=1)).trimmed_rows
        with pytest.raises(CursorExpired):
            await changes(first, inside)


async def test_a_read_from_the_start_expires_when_what_follows_its_first_page_is_trimmed(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE", 20)
    orders(connection)
    connection.execute("INSERT INTO orders SELECT n, '' FROM generate_series(1, 400) n")
    async with Reader.open(database) as first:
        pages = first.read(first.start())
        assert len((await anext(pages)).changes) == 20
        move_to_yesterday(connection, 3)
        assert run_once(database, Policy(retention_days=1)).trimmed_rows
        with pytest.raises(CursorExpired):
            await anext(pages)
        await pages.aclose()


NESTED = """
    CREATE FUNCTION pay() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN UPDATE orders SET note = ''paid'' WHERE id = NEW.id; RETURN NULL; END';
    CREATE TRIGGER pay AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION pay();
"""


@pytest.mark.parametrize("outer", [3, 0], ids=["one day", "over midnight"])
async def test_a_cursor_between_a_statement_and_those_of_its_triggers_expires_when_they_are_trimmed(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, outer: int
) -> None:
    """What follows the cursor has lower ids than the row that it stands on."""
    monkeypatch.setattr(reader, "PAGE", 2)
    orders(connection)
    connection.execute(NESTED)
    connection.execute("DELETE FROM forge.forge_event_log")
    connection.execute("INSERT INTO orders VALUES (1, ''), (2, '')")
    async with Reader.open(database) as first:
        page = (await batches(first, first.start()))[0]
        assert [change.op.value for change in page.changes] == ["insert", "insert"]
        today = connection.execute("SELECT max(day) FROM forge.forge_event_log").fetchone()
        move_to_yesterday(connection, 3)
        if not outer:
            connection.execute("UPDATE forge.forge_event_log SET day = %s, at = now() WHERE op = 'I'", today)
        assert run_once(database, Policy(retention_days=1)).trimmed_rows
        with pytest.raises(CursorExpired):
            await changes(first, page.cursor)


async def test_what_was_trimmed_before_is_not_missed_by_a_statement_that_began_before_midnight(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE", 2)
    orders(connection)
    connection.execute(NESTED)
    connection.execute("DELETE FROM forge.forge_event_log")
    connection.execute("INSERT INTO orders SELECT n, '' FROM generate_series(1, 5) n")
    today = connection.execute("SELECT max(day) FROM forge.forge_event_log").fetchone()
    move_to_yesterday(connection, 3)
    connection.execute("UPDATE forge.forge_event_log SET day = %s, at = now() WHERE op = 'I'", today)
    assert run_once(database, Policy(retention_days=1)).trimmed_rows
    async with Reader.open(database) as first:
        pages = await batches(first, first.start())
        assert keys([change for page in pages for change in page.changes]) == [1, 2, 3, 4, 5]
        assert keys(await changes(first, pages[0].cursor)) == [3, 4, 5]


@pytest.mark.parametrize("text", ["", "garbage", "forge1_x_1_1_1:1:", "0/16B3748", "17"])
def test_garbage_is_no_cursor(text: str) -> None:
    with pytest.raises(CursorInvalid) as caught:
        Cursor.parse(text)
    assert "forge" in caught.value.fix


async def test_a_cursor_from_the_future_is_refused(database: str, connection: Connection) -> None:
    async with Reader.open(database) as reader:
        cursor = await reader.now()
        ahead = Snapshot(cursor.snapshot.xmax + 100_000, cursor.snapshot.xmax + 100_000)
        for foreign in (Cursor(cursor.log, ahead), Cursor(cursor.log, cursor.snapshot, ahead, Position(1, 1))):
            with pytest.raises(CursorForeign, match="ahead"):
                await changes(reader, foreign)


@pytest.mark.contract("X12")
async def test_a_cursor_of_another_database_is_refused(server: PostgresServer, database: str) -> None:
    with fresh_database(server) as other:
        with connect(other) as connection:
            install(connection)
        foreign = await now(other)
    async with Reader.open(database) as reader:
        with pytest.raises(CursorForeign) as caught:
            await changes(reader, foreign)
    assert "follow from that cursor" in caught.value.fix


async def test_without_forge_there_is_nothing_to_read(empty_database: str) -> None:
    with pytest.raises(NotInstalled) as caught:
        async with Reader.open(empty_database):
            pass
    assert caught.value.fix == "forge init"


async def test_closing_in_the_middle_of_a_batch_leaves_the_reader_usable(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE", 20)
    orders(connection)
    connection.execute("INSERT INTO orders SELECT n, '' FROM generate_series(1, 400) n")
    async with Reader.open(database) as first:
        for _ in range(2):
            reading = first.read(first.start())
            for _ in range(3):
                await anext(reading)
            await reading.aclose()
        assert first.connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        assert len(await changes(first, first.start())) >= 400


@pytest.mark.parametrize("days", [-5, 5], ids=["the clock went on", "the clock went back"])
async def test_a_day_that_is_not_expected_is_read_all_the_same(
    database: str, connection: Connection, days: int
) -> None:
    """A poll looks only at the partitions around the day it knows of; a server with another day shows in its answer."""
    orders(connection)
    async with Reader.open(database) as reader:
        cursor = await reader.now()
        other = datetime.now(UTC).date() + timedelta(days=days)
        reader._calendar.note(Snapshot(1, 1), other)
        assert str(other - timedelta(days=1)) == reader._calendar.days(cursor.snapshot).since
        add(connection, 1)
        assert keys(await changes(reader, cursor)) == [1]


async def test_polls_look_at_few_partitions_and_at_the_overflow(database: str, connection: Connection) -> None:
    orders(connection)
    async with Reader.open(database) as reader:
        cursor = await reader.now()
        (first,) = await batches(reader, cursor)
        assert reader._calendar.days(first.cursor.snapshot) != ALL
        connection.execute(
            "CREATE OR REPLACE FUNCTION forge.log_day(at timestamptz) RETURNS date LANGUAGE sql IMMUTABLE PARALLEL SAFE"
            " RETURN 'infinity'::date"
        )
        add(connection, 1)
        assert connection.execute("SELECT count(*) FROM forge.forge_event_overflow").fetchone() == (1,)
        assert keys(await changes(reader, first.cursor)) == [1]
