"""Tables that are altered, dropped, renamed and made again while they are tracked."""

import asyncio
import sqlite3
from contextlib import aclosing
from pathlib import Path

import pytest

from forge.capture.sqlite import SqliteSource, disable, enable, refresh
from forge.change import Change, Op
from forge.errors import NotInstalled, TrackingError
from tests.capture.sqlite.files import now, rows_of, since, until, url_of, writer

pytestmark = [pytest.mark.contract("W6")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "shop.db"
    connection = writer(found)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    connection.close()
    enable(url_of(found), ["orders"])
    return found


async def seen(path: Path, start: str) -> list[tuple[str, str, object]]:
    """What a stream makes of it, up to a mark."""
    connection = writer(path)
    connection.execute("CREATE TABLE IF NOT EXISTS mark (id INTEGER PRIMARY KEY)")
    enable(url_of(path), ["mark"])
    connection.execute("INSERT INTO mark VALUES (NULL)")
    async with SqliteSource(url_of(path)) as source, asyncio.timeout(20):
        changes, _ = await until(source.stream(start), _marked)
    return [(change.op.value, change.table, change.after) for change in changes if change.table != "mark"]


def _marked(changes: list[Change]) -> bool:
    return any(change.table == "mark" and change.op is Op.INSERT for change in changes)


async def test_a_stream_makes_the_triggers_true_to_the_schema(path: Path) -> None:
    connection = writer(path)
    async with SqliteSource(url_of(path)) as source, asyncio.timeout(20):
        start = await source.now()
        async with aclosing(source.stream(start)) as batches:
            connection.execute("ALTER TABLE orders ADD COLUMN total DEFAULT 7")
            first = await anext(batches)
            assert [change.op for change in first.changes] == [Op.SCHEMA]
            connection.execute("INSERT INTO orders (id) VALUES (1)")
            second = await anext(batches)
            assert second.changes[0].after == {"id": 1, "note": None, "total": 7}
            assert [column.name for column in second.columns[0]] == ["id", "note", "total"]
        assert not (await source.status()).warnings


async def test_refresh_in_a_migration_misses_nothing(path: Path) -> None:
    connection = writer(path)
    start = await now(path)
    connection.execute("BEGIN")
    connection.execute("INSERT INTO orders VALUES (1, 'old')")
    connection.execute("ALTER TABLE orders RENAME COLUMN note TO remark")
    connection.execute("ALTER TABLE orders ADD COLUMN total")
    assert refresh(connection) == ["orders"]
    connection.execute("INSERT INTO orders VALUES (2, 'new', 3)")
    connection.execute("COMMIT")
    changes = await since(path, start)
    assert [(change.op.value, change.after) for change in changes] == [
        ("insert", {"id": 1, "note": "old"}),
        ("schema", None),
        ("insert", {"id": 2, "remark": "new", "total": 3}),
    ]


async def test_a_migration_that_is_rolled_back_leaves_no_trace(path: Path) -> None:
    connection = writer(path)
    start = await now(path)
    connection.execute("BEGIN")
    connection.execute("ALTER TABLE orders ADD COLUMN total")
    refresh(connection)
    connection.execute("ROLLBACK")
    connection.execute("INSERT INTO orders VALUES (1, 'x')")
    assert [change.op for change in await since(path, start)] == [Op.INSERT]


async def test_what_is_written_before_the_triggers_are_made_anew_lacks_the_new_column(path: Path) -> None:
    """What the documents say is missed: the column, and nothing else; then the table is to be read again."""
    connection = writer(path)
    start = await now(path)
    connection.execute("ALTER TABLE orders ADD COLUMN total")
    connection.execute("INSERT INTO orders VALUES (1, 'x', 5)")
    async with SqliteSource(url_of(path)) as source:
        assert (await source.status()).warnings == (
            "the schema changed since the triggers were made: a stream, or forge enable, makes them again",
        )
    assert await seen(path, start) == [("insert", "orders", {"id": 1, "note": "x"}), ("schema", "orders", None)]


async def test_a_table_that_is_made_anew_is_tracked_again(path: Path) -> None:
    connection = writer(path)
    start = await now(path)
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE other (id INTEGER PRIMARY KEY, note TEXT NOT NULL DEFAULT '', total)")
    connection.execute("INSERT INTO other (id, note) SELECT * FROM orders")
    connection.execute("DROP TABLE orders")
    connection.execute("ALTER TABLE other RENAME TO orders")
    connection.execute("COMMIT")
    refresh(connection)
    connection.execute("INSERT INTO orders VALUES (1, 'x', 5)")
    assert await seen(path, start) == [
        ("schema", "orders", None),
        ("insert", "orders", {"id": 1, "note": "x", "total": 5}),
    ]


async def test_a_table_that_is_dropped_and_comes_back(path: Path) -> None:
    connection = writer(path)
    start = await now(path)
    connection.execute("DROP TABLE orders")
    assert refresh(connection) == ["orders"]
    connection.execute("CREATE TABLE unrelated (x)")
    assert refresh(connection) == []
    assert (await rows_of(path))[0] == []
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    assert refresh(connection) == ["orders"]
    connection.execute("INSERT INTO orders VALUES (1)")
    assert await seen(path, start) == [
        ("schema", "orders", None),
        ("schema", "orders", None),
        ("insert", "orders", {"id": 1}),
    ]


async def test_a_renamed_table_is_tracked_on(path: Path) -> None:
    connection = writer(path)
    start = await now(path)
    connection.execute("ALTER TABLE orders RENAME TO purchases")
    connection.execute("INSERT INTO purchases VALUES (1, 'x')")
    refresh(connection)
    connection.execute("REPLACE INTO purchases VALUES (1, 'y')")
    found = await seen(path, start)
    assert [(op, table) for op, table, _ in found] == [
        ("insert", "orders"),
        ("schema", "orders"),
        ("schema", "purchases"),
        ("delete", "purchases"),
        ("insert", "purchases"),
    ]


async def test_a_trigger_that_somebody_dropped_is_made_again(path: Path) -> None:
    connection = writer(path)
    connection.execute("DROP TRIGGER forge_1_insert")
    assert refresh(connection) == ["orders"]
    start = await now(path)
    connection.execute("INSERT INTO orders VALUES (1, 'x')")
    assert len(await since(path, start)) == 1


async def test_triggers_of_the_application_come_behind_ours(path: Path) -> None:
    connection = writer(path)
    connection.execute("CREATE TRIGGER own AFTER INSERT ON orders BEGIN UPDATE orders SET note = 'by trigger'; END")
    assert refresh(connection) == ["orders"]
    assert refresh(connection) == []
    start = await now(path)
    connection.execute("INSERT INTO orders VALUES (1, 'x')")
    assert [(change.op.value, change.after and change.after["note"]) for change in await since(path, start)] == [
        ("insert", "x"),
        ("update", "by trigger"),
    ]


async def test_a_new_unique_index_is_watched(path: Path) -> None:
    connection = writer(path)
    connection.execute("INSERT INTO orders VALUES (1, 'x')")
    connection.execute("CREATE UNIQUE INDEX i ON orders (lower(note))")
    assert refresh(connection) == ["orders"]
    start = await now(path)
    connection.execute("REPLACE INTO orders VALUES (2, 'X')")
    assert [(change.op.value, change.row_id) for change in await since(path, start)] == [
        ("delete", "1"),
        ("insert", "2"),
    ]


async def test_vacuum_and_analyze_change_nothing(path: Path) -> None:
    connection = writer(path)
    for statement in ("VACUUM", "ANALYZE", "CREATE INDEX i ON orders (note)"):
        connection.execute(statement)
        assert refresh(connection) == []


def test_a_tracked_column_cannot_be_dropped_before_disable(path: Path) -> None:
    connection = writer(path)
    with pytest.raises(sqlite3.OperationalError, match="forge_1_"):
        connection.execute("ALTER TABLE orders DROP COLUMN note")
    assert disable(url_of(path), ["orders"]) == ["orders"]
    connection.execute("ALTER TABLE orders DROP COLUMN note")
    assert enable(url_of(path), ["orders"]) == ["orders"]


async def test_a_disabled_table_is_no_longer_seen(path: Path) -> None:
    connection = writer(path)
    start = await now(path)
    connection.execute("INSERT INTO orders VALUES (1, 'x')")
    assert disable(url_of(path), ["main.orders"]) == ["orders"]
    assert disable(url_of(path), ["orders"]) == []
    connection.execute("INSERT INTO orders VALUES (2, 'x')")
    assert [change.op.value for change in await since(path, start)] == ["insert", "schema"]


def test_enable_is_all_or_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = writer(path)
    connection.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, n)")
    connection.execute("CREATE TABLE b (id INTEGER PRIMARY KEY, n, m)")
    with pytest.raises(TrackingError, match="no table c"):
        enable(url_of(path), ["a", "c"])
    with pytest.raises(NotInstalled):
        disable(url_of(path), ["a"])
    assert enable(url_of(path), every=True, exclude=["b.n", "m"]) == ["a", "b"]
    assert enable(url_of(path), ["a", "b"]) == []
    assert enable(url_of(path), ["B"], exclude=["m"]) == ["b"]
    with pytest.raises(TrackingError, match="a column z"):
        enable(url_of(path), ["a"], exclude=["z"])
    with pytest.raises(TrackingError, match="part of the key"):
        enable(url_of(path), ["a"], mask=["id"])
    with pytest.raises(TrackingError) as error:
        disable(url_of(path), ["aa"])
    assert error.value.fix == "did you mean a?"


@pytest.mark.parametrize(
    ("definition", "name", "words"),
    [
        ("CREATE VIEW v AS SELECT 1", "v", "no table of rows"),
        ("CREATE VIRTUAL TABLE f USING fts5 (x)", "f", "virtual table"),
        ("CREATE TABLE h (rowid, _rowid_, oid)", "h", "hidden by its columns"),
        (f"CREATE TABLE w ({', '.join(f'c{number}' for number in range(990))})", "w", "990 columns"),
        ("CREATE TABLE q (x)", "sqlite_schema", "no table|own"),
    ],
)
def test_what_cannot_be_tracked_is_refused(tmp_path: Path, definition: str, name: str, words: str) -> None:
    path = tmp_path / "x.db"
    writer(path).execute(definition)
    with pytest.raises(TrackingError, match=words):
        enable(url_of(path), [name])


async def test_a_wide_table_beside_a_narrow_one(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = writer(path)
    columns = ", ".join(f"c{number}" for number in range(40))
    connection.execute(f"CREATE TABLE wide (id INTEGER PRIMARY KEY, {columns})")
    connection.execute("CREATE TABLE narrow (id INTEGER PRIMARY KEY)")
    enable(url_of(path), ["narrow"])
    enable(url_of(path), ["wide"])
    start = await now(path)
    connection.execute("INSERT INTO wide (id, c39) VALUES (1, 'last')")
    connection.execute("INSERT INTO narrow VALUES (2)")
    connection.execute("REPLACE INTO wide (id, c39) VALUES (1, 'again')")
    connection.execute("UPDATE wide SET c0 = 5")
    changes = await since(path, start)
    assert [f"{change.op.value} {change.row_id}" for change in changes] == [
        "insert 1",
        "insert 2",
        "delete 1",
        "insert 1",
        "update 1",
    ]
    assert changes[2].before is not None
    assert changes[2].before["c39"] == "last"
    assert changes[4].changed == ("c0",)
