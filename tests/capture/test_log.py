"""The trigger log as a source, beyond what the suite asks of all: exact snapshots that go on, keys of all kinds."""

import asyncio
from contextlib import aclosing

import pytest

from forge.capture import Filter, open_source, until_now
from forge.capture.log import LogSource
from forge.capture.source import in_snapshot
from forge.change import UNAVAILABLE, Change, Op
from forge.errors import CursorExpired, CursorForeign, CursorInvalid, NotInstalled, ServerError
from forge.history.redact import redact
from forge.postgres.connection import Connection
from tests.changelog.following import track

TABLES = """
    CREATE TABLE plain (id bigint PRIMARY KEY, note text);
    CREATE TABLE pairs (b text COLLATE "C", a int, v int, PRIMARY KEY (b, a));
    CREATE TABLE named (name text COLLATE "POSIX" PRIMARY KEY, v int);
    CREATE TABLE odd (tags text[] PRIMARY KEY, v int);
    CREATE TABLE loose (a int, b text);
    CREATE TABLE moments (at timestamptz PRIMARY KEY, forge_now jsonb);
"""
ROWS = """
    INSERT INTO plain SELECT g, 'x' FROM generate_series(1, 2400) g;
    INSERT INTO pairs SELECT 'é' || g % 7, g, g FROM generate_series(1, 1100) g;
    INSERT INTO named SELECT v, 1 FROM unnest('{a,B,c,ä,Z,z,_}'::text[]) v;
    INSERT INTO odd SELECT ARRAY['a', g::text], g FROM generate_series(1, 9) g;
    INSERT INTO loose SELECT g % 5, 'same' FROM generate_series(1, 1200) g;
    INSERT INTO moments SELECT '2026-01-01'::timestamptz + g * interval '1 hour', 'null' FROM generate_series(1, 9) g;
"""
WRITES = """
    UPDATE plain SET note = 'changed' WHERE id % 3 = 0;
    DELETE FROM plain WHERE id % 5 = 0;
    INSERT INTO plain VALUES (-1, 'new'), (9999, 'new');
    UPDATE plain SET id = id + 100000 WHERE id = 7;
    UPDATE pairs SET b = b || 'x' WHERE a % 9 = 0;
    DELETE FROM pairs WHERE a % 10 = 0;
    DELETE FROM named WHERE name IN ('B', 'z');
    UPDATE odd SET v = 0 WHERE v > 4;
    DELETE FROM loose WHERE a = 2;
    INSERT INTO loose VALUES (9, 'new');
    UPDATE moments SET forge_now = '{}';
"""


@pytest.fixture
def shop(connection: Connection) -> Connection:
    for statement in TABLES.strip().split(";\n"):
        connection.execute(statement.encode())
    for table in ("plain", "pairs", "named", "odd", "loose", "moments"):
        track(connection, table)
    for statement in ROWS.strip().split(";\n"):
        connection.execute(statement.encode())
    return connection


def write(shop: Connection) -> None:
    for statement in WRITES.strip().split(";\n"):
        shop.execute(statement.encode())


async def snapshot(source: LogSource, after: str | None = None) -> tuple[list[Change], list[str]]:
    found: list[Change] = []
    cursors: list[str] = []
    async for batch in source.snapshot(after):
        found += batch.changes
        cursors.append(batch.cursor)
    return found, cursors


async def test_a_snapshot_that_goes_on_gives_the_very_rows_of_then(database: str, shop: Connection) -> None:
    source = LogSource(database)
    rows, cursors = await snapshot(source)
    assert len({row.id for row in rows}) == len(rows) == 2400 + 1100 + 7 + 9 + 1200 + 9
    done = 0
    write(shop)
    for cursor in cursors[:-1]:
        rest, others = await snapshot(source, cursor)
        done = len(rows) - len(rest)
        assert rest == rows[done:], cursor
        assert others[-1] == cursors[-1]
    assert done == len(rows)


async def test_rows_come_in_the_order_of_their_key(database: str, shop: Connection) -> None:
    rows, _ = await snapshot(LogSource(database))
    pairs = [(row.key["b"], row.key["a"]) for row in rows if row.table == "pairs" and row.key]
    assert pairs == sorted(pairs)
    named = [row.key["name"] for row in rows if row.table == "named" and row.key]
    assert named == [name for (name,) in shop.execute("SELECT name FROM named ORDER BY name").fetchall()]


async def test_a_truncate_since_ends_the_rows_and_follows_in_the_stream(database: str, shop: Connection) -> None:
    source = LogSource(database)
    rows, cursors = await snapshot(source)
    shop.execute("TRUNCATE plain")
    rest, _ = await snapshot(source, cursors[0])
    assert {row.table for row in rest} == {row.table for row in rows} - {"plain"}
    found = [change async for batch in source.until_now(cursors[-1]) for change in batch.changes]
    assert [(change.op, change.table) for change in found] == [(Op.TRUNCATE, "plain")]


async def test_a_new_definition_since_expires_the_cursor(database: str, shop: Connection) -> None:
    source = LogSource(database)
    _, cursors = await snapshot(source)
    shop.execute("ALTER TABLE pairs ADD COLUMN more int")
    with pytest.raises(CursorExpired, match="pairs was defined again"):
        await snapshot(source, cursors[0])


@pytest.mark.contract("W12")
async def test_a_cursor_is_of_one_place_and_one_log(database: str, shop: Connection) -> None:
    source = LogSource(database)
    _, cursors = await snapshot(source)
    inside, outside = cursors[0], cursors[-1]
    assert (in_snapshot(inside), in_snapshot(outside)) == (True, False)
    with pytest.raises(CursorInvalid):
        await anext(source.stream(inside))
    with pytest.raises(CursorInvalid):
        await anext(source.snapshot(outside))
    for nonsense in (inside + "x", inside.replace("+", "+x"), outside + "+", outside + "+1.2", inside + "%"):
        with pytest.raises(CursorInvalid):
            await anext(source.snapshot(nonsense))
    odd = inside.rpartition(".")[0] + ".bm8gbnVtYmVy"
    with pytest.raises(CursorInvalid, match="cannot have"):
        await anext(source.snapshot(odd))
    other = inside.replace(inside.split("_")[1], "6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11")
    with pytest.raises(CursorForeign):
        await anext(source.snapshot(other))


async def test_up_to_now_is_exact(database: str, shop: Connection) -> None:
    source = LogSource(database, Filter(tables=("plain",)))
    start = await source.start()
    before = [change async for batch in until_now(source, start) for change in batch.changes]
    assert [change.op for change in before[:2]] == [Op.SCHEMA, Op.INSERT]
    assert len(before) == 2401
    now = await source.now()
    assert [batch.changes async for batch in until_now(source, now)] == [[]]
    shop.execute("DELETE FROM plain WHERE id = 1")
    rest = [change async for batch in until_now(source, now) for change in batch.changes]
    assert [(change.op, change.row_id) for change in rest] == [(Op.DELETE, "1")]


@pytest.mark.contract("W9")
async def test_status_says_where_each_part_of_a_filter_runs(database: str, shop: Connection) -> None:
    whole = Filter(("plain",), (Op.INSERT,), ("note",), "id > 1")
    status = await LogSource(database, whole).status()
    assert (status.in_feed, status.in_forge) == (("tables",), ("operations", "columns", "rows"))
    patterns = await LogSource(database, Filter(tables=("p*",))).status()
    assert (patterns.in_feed, patterns.in_forge) == ((), ("tables",))
    assert status.position is not None
    assert set(status.details) == {"log_bytes", "oldest_change", "tables"}


async def test_tables_that_are_not_wanted_are_not_read(database: str, shop: Connection) -> None:
    rows, _ = await snapshot(LogSource(database, Filter(tables=("na*", "odd"))))
    assert {row.table for row in rows} == {"named", "odd"}


async def test_what_is_missing_is_said_at_once(empty_database: str) -> None:
    source = LogSource(empty_database)
    for reading in (source.stream(), source.snapshot()):
        with pytest.raises(NotInstalled):
            await anext(reading)
    with pytest.raises(ServerError, match="cannot reach"):
        await anext(LogSource("postgresql://127.0.0.1:1/x").snapshot())


async def test_a_snapshot_goes_on_when_its_connections_are_ended(database: str, shop: Connection) -> None:
    ended, rows = 0, []
    async with open_source(database) as source, aclosing(source.snapshot()) as batches:
        async for batch in batches:
            rows += [change.id for change in batch.changes]
            if batch.changes and ended < 3:
                ended += 1
                if ended == 1:
                    write(shop)
                shop.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                await asyncio.sleep(0)
    assert len(rows) == len(set(rows)) == 4725


async def test_a_resumed_snapshot_shows_no_redacted_value(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE people (id int PRIMARY KEY, email text, phone bytea)")
    track(connection, "people")
    connection.execute("""INSERT INTO people SELECT n, 'e' || n, 'old' FROM generate_series(1, 1200) n""")
    source = LogSource(database)
    rows, cursors = await snapshot(source)
    connection.execute("UPDATE people SET phone = 'new' WHERE id >= 1100")  # several rows: before has what changed
    redact(connection, "people", 1100, ["email", "phone"])
    rest, _ = await snapshot(source, cursors[0])
    changed = next(row for row in rest if row.key == {"id": 1100})
    assert changed.after == {"id": 1100, "email": UNAVAILABLE, "phone": UNAVAILABLE}
    assert [row for row in rest if row != changed] == [row for row in rows[-len(rest) :] if row.id != changed.id]
