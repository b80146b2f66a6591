"""Where a reader stands: going on from any cursor, snapshots that are interrupted, and cursors that are no good."""

import asyncio
import os
import random
import sqlite3
from contextlib import aclosing
from pathlib import Path

import pytest

from forge.capture import Filter, SourceBatch
from forge.capture.sqlite import SqliteSource, enable
from forge.capture.sqlite.cursor import SqliteCursor
from forge.capture.sqlite.file import SqliteFile
from forge.capture.sqlite.queue import Queue
from forge.capture.sqlite.snapshot import SqliteSnapshot
from forge.change import Change, Op
from forge.errors import CursorExpired, CursorForeign, CursorInvalid, SourceError
from tests.capture.sqlite.files import Replica, everything, now, since, stored, until, url_of, writer
from tests.capture.sqlite.fuzz import SCHEMA, TABLES, Fuzz

pytestmark = [pytest.mark.contract("W6"), pytest.mark.contract("W12")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "shop.db"
    connection = writer(found)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    connection.close()
    enable(url_of(found), ["orders"])
    return found


def write(path: Path, *numbers: int, wal: bool = True) -> None:
    connection = writer(path, wal=wal)
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO orders VALUES (?, 'x')", [(number,) for number in numbers])
    connection.execute("COMMIT")
    connection.close()


def keys(changes: list[Change]) -> list[object]:
    return [change.key["id"] for change in changes if change.key]


async def test_every_cursor_goes_on_with_the_next_change_and_the_same_ids(path: Path) -> None:
    start = SqliteCursor.parse(await now(path))
    write(path, *range(1, 21))
    queue = Queue(SqliteFile(url_of(path)), Filter())
    whole = queue.read(start)
    assert whole is not None
    for size in (1, 3, 7):
        found: list[Change] = []
        cursor = start
        while (batch := queue.read(cursor, rows=size)) is not None:
            found += batch.changes
            cursor = SqliteCursor.parse(batch.cursor)
        assert found == whole.changes
    queue.close()


async def test_what_is_acknowledged_is_removed_and_no_id_comes_again(path: Path) -> None:
    seen: set[str] = set()
    async with SqliteSource(url_of(path)) as source:
        cursor = await source.now()
        for round in range(4):
            write(path, round * 10 + 1, round * 10 + 2)
            changes = await everything(source, cursor)
            assert len(changes) == 2
            assert not seen & {change.id for change in changes}
            seen |= {change.id for change in changes}
            cursor = await source.now()
            await source.ack(cursor)
            await source.ack(cursor)
        assert (await source.status()).lag_changes == 0
    connection = writer(path)
    assert connection.execute("SELECT count(*) FROM forge_queue").fetchone() == (1,)
    assert connection.execute("SELECT max(id) FROM forge_queue").fetchone() == (9,)


async def test_a_cursor_before_what_was_removed_has_expired(path: Path) -> None:
    async with SqliteSource(url_of(path)) as source:
        old = await source.now()
        write(path, 1, 2)
        between = await source.now()
        write(path, 3)
        await source.ack(between)
        with pytest.raises(CursorExpired, match="no longer in"):
            await source.stream(old).__anext__()
        assert keys(await everything(source, between)) == [3]
        assert keys(await everything(source, await source.start())) == [3]
        await source.ack(old)
        assert keys(await everything(source, between)) == [3]


async def test_a_reader_is_told_when_another_consumer_removed_what_it_had_not_read(path: Path) -> None:
    async with SqliteSource(url_of(path)) as source, aclosing(source.stream(await source.now())) as batches:
        write(path, *range(1, 8000))
        batch: SourceBatch = await asyncio.wait_for(anext(batches), 10)
        assert len(batch.changes) < 7999
        await source.ack(await source.now())
        with pytest.raises(CursorExpired):
            await asyncio.wait_for(anext(batches), 10)


async def test_a_long_queue_is_removed_in_pieces(path: Path) -> None:
    write(path, *range(1, 12001))
    async with SqliteSource(url_of(path)) as source:
        await source.ack(await source.now())
        assert (await source.status()).lag_changes == 0


@pytest.mark.parametrize(
    "text", ["", "sqlite1_", "sqlite1_x_1.1", "sqlite2", "sqlite1_" + "0" * 32 + "_1", "🙂", "a b"]
)
async def test_nonsense_is_no_cursor(path: Path, text: str) -> None:
    async with SqliteSource(url_of(path)) as source:
        with pytest.raises(CursorInvalid):
            await source.stream(text).__anext__()
        with pytest.raises(CursorInvalid):
            await source.ack(text)


@pytest.mark.parametrize("place", ["+", "+AAAA", "+W10=", "+WzEsMixbXV0=", "+WyJ4Il0="])
async def test_a_place_that_is_nonsense_is_no_cursor(path: Path, place: str) -> None:
    async with SqliteSource(url_of(path)) as source:
        with pytest.raises(CursorInvalid):
            await source.snapshot(await source.now() + place).__anext__()


async def test_a_cursor_of_another_file_or_source_is_foreign(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    connection = writer(other)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    enable(url_of(other), ["orders"])
    async with SqliteSource(url_of(path)) as source:
        for cursor in (await now(other), "mysql1_0-1-7"):
            with pytest.raises(CursorForeign):
                await source.stream(cursor).__anext__()
            with pytest.raises(CursorForeign):
                await source.ack(cursor)


def put_back(copy: Path, path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    copy.replace(path)


async def test_an_older_copy_that_was_put_back_is_noticed(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    sqlite3.connect(path).execute("VACUUM INTO ?", (str(copy),))
    write(path, 1, 2, 3)
    later = await now(path)
    put_back(copy, path)
    async with SqliteSource(url_of(path)) as source:
        with pytest.raises(CursorForeign, match="older copy"):
            await source.stream(later).__anext__()
        write(path, 11, 12, 13, 14)
        with pytest.raises(CursorForeign, match="older copy"):
            await source.stream(later).__anext__()


async def test_a_stream_notices_that_its_file_was_replaced(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    sqlite3.connect(path).execute("PRAGMA journal_mode = DELETE")
    sqlite3.connect(path).execute("VACUUM INTO ?", (str(other),))
    write(path, 1, wal=False)
    async with SqliteSource(url_of(path)) as source, aclosing(source.stream(await source.now())) as batches:
        write(path, 2, wal=False)
        await asyncio.wait_for(anext(batches), 10)
        other.replace(path)
        with pytest.raises(CursorForeign):
            await asyncio.wait_for(anext(batches), 10)


async def test_a_file_that_is_away_for_a_moment_is_followed_on(path: Path, tmp_path: Path) -> None:
    away = tmp_path / "away.db"
    sqlite3.connect(path).execute("PRAGMA journal_mode = DELETE")
    async with SqliteSource(url_of(path)) as source, aclosing(source.stream(await source.now())) as batches:
        write(path, 1, wal=False)
        await asyncio.wait_for(anext(batches), 10)
        os.rename(path, away)
        reading = asyncio.ensure_future(anext(batches))
        await asyncio.wait([reading], timeout=1.3)
        assert not reading.done()
        os.rename(away, path)
        write(path, 2, wal=False)
        assert keys((await asyncio.wait_for(reading, 10)).changes) == [2]  # type: ignore[arg-type]


async def test_a_queue_that_was_emptied_by_hand_is_an_error(path: Path) -> None:
    connection = writer(path)
    connection.execute("DELETE FROM forge_queue")
    async with SqliteSource(url_of(path)) as source:
        with pytest.raises(SourceError, match="emptied by hand"):
            await source.now()


async def test_filters_by_table_run_in_the_feed_and_move_the_cursor(tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    connection = writer(path)
    connection.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
    connection.execute("CREATE TABLE b (id INTEGER PRIMARY KEY, n)")
    enable(url_of(path), every=True)
    start = await now(path)
    connection.execute("INSERT INTO a VALUES (1)")
    connection.execute("INSERT INTO b VALUES (2, 5)")
    connection.execute("INSERT INTO a VALUES (3)")
    assert keys(await since(path, start, Filter(tables=("b",)))) == [2]
    assert keys(await since(path, start, Filter(where="n > 5"))) == [1, 3]
    async with SqliteSource(url_of(path), Filter(tables=("nothing",))) as source:
        async for batch in source.until_now(start):
            assert not batch.changes
            assert batch.cursor == await source.now()
        assert (await source.status()).in_feed == ("tables",)


@pytest.mark.parametrize("wal", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_snapshot_and_its_stream_are_the_tables(tmp_path: Path, seed: int, wal: bool) -> None:
    """Writers write between any two pages; in between the snapshot is dropped and taken up again from its cursor."""
    path = tmp_path / "fuzz.db"
    connection = writer(path, wal=wal)
    connection.execute("PRAGMA synchronous = OFF")
    connection.executescript(SCHEMA)
    enable(url_of(path), TABLES)
    fuzz = Fuzz(connection, seed)
    for _ in range(80):
        fuzz.step()
    fuzz.end()
    then = {table: stored(connection, table) for table in TABLES}
    chance = random.Random(seed)
    found: list[Change] = []
    cursor: SqliteCursor | None = None
    reading = SqliteSnapshot(SqliteFile(url_of(path)), Filter(), None)
    while cursor is None or cursor.place is not None:
        batch = reading.next(rows=2)
        found += batch.changes
        cursor = SqliteCursor.parse(batch.cursor)
        for _ in range(5):
            fuzz.step()
        fuzz.end()
        if chance.random() < 0.5 and cursor.place is not None:
            reading.close()
            reading = SqliteSnapshot(SqliteFile(url_of(path)), Filter(), cursor)
    reading.close()
    assert {change.op for change in found} == {Op.READ}
    assert len({change.id for change in found}) == len(found)
    replica = Replica(found)
    for table in TABLES:
        assert replica.rows(table) == then[table]
    for change in await since(path, str(cursor)):
        replica.apply(change)
    for table in TABLES:
        assert replica.rows(table) == stored(connection, table)


async def test_a_snapshot_read_again_from_a_cursor_has_the_same_ids(path: Path) -> None:
    write(path, *range(1, 8))
    reading = SqliteSnapshot(SqliteFile(url_of(path)), Filter(), None)
    first = reading.next(rows=3)
    rest = [*reading.next(rows=2).changes, *reading.next(rows=9).changes]
    reading.close()
    connection = writer(path)
    connection.execute("DELETE FROM orders WHERE id = 5")
    connection.execute("UPDATE orders SET note = 'y', id = 70 WHERE id = 6")
    connection.execute("INSERT INTO orders VALUES (8, 'z')")
    again = SqliteSnapshot(SqliteFile(url_of(path)), Filter(), SqliteCursor.parse(first.cursor))
    assert again.next(rows=100).changes == rest
    again.close()


@pytest.mark.parametrize("vacuum", [True, False])
async def test_a_snapshot_ends_where_the_rows_of_then_cannot_be_told(tmp_path: Path, vacuum: bool) -> None:
    path = tmp_path / "x.db"
    connection = writer(path)
    connection.execute("CREATE TABLE t (x)" if vacuum else "CREATE TABLE t (x INTEGER PRIMARY KEY)")
    connection.execute("INSERT INTO t VALUES (1), (2), (3)")
    enable(url_of(path), ["t"])
    reading = SqliteSnapshot(SqliteFile(url_of(path)), Filter(), None)
    cursor = SqliteCursor.parse(reading.next(rows=1).cursor)
    reading.close()
    connection.execute("VACUUM" if vacuum else "ALTER TABLE t ADD COLUMN y")
    async with SqliteSource(url_of(path)) as source:
        with pytest.raises(CursorExpired):
            await source.snapshot(str(cursor)).__anext__()


async def test_a_snapshot_whose_queue_was_removed_has_expired(path: Path) -> None:
    write(path, 1, 2)
    reading = SqliteSnapshot(SqliteFile(url_of(path)), Filter(), None)
    cursor = reading.next(rows=1).cursor
    reading.close()
    write(path, 3)
    async with SqliteSource(url_of(path)) as source:
        await source.ack(await source.now())
        with pytest.raises(CursorExpired):
            await source.snapshot(cursor).__anext__()
        with pytest.raises(CursorInvalid, match="inside a snapshot"):
            await source.stream(cursor).__anext__()


async def test_a_snapshot_keeps_no_writer_waiting(tmp_path: Path) -> None:
    """With a rollback journal an open reader would make every commit fail."""
    path = tmp_path / "x.db"
    connection = writer(path, wal=False, timeout=0.0)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(5000)])
    connection.execute("COMMIT")
    enable(url_of(path), ["t"])
    async with SqliteSource(url_of(path)) as source, aclosing(source.snapshot()) as batches:
        await anext(batches)
        connection.execute("DELETE FROM t")
        rows, _ = await until(batches, lambda found: len(found) == 3000)
        assert len(rows) == 3000
