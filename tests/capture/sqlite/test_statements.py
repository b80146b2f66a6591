"""Each statement that can write a row, and what it is in the queue."""

import itertools
import sqlite3
from pathlib import Path

import pytest

from forge.capture.sqlite import SqliteSource, enable
from forge.change import Change, Op
from tests.capture.sqlite.files import Replica, now, since, stored, url_of, writer
from tests.capture.sqlite.fuzz import SCHEMA, TABLES, TRIGGERS, Fuzz

pytestmark = pytest.mark.contract("W6")


def short(changes: list[Change]) -> list[str]:
    """`insert 1`, `update 1 n`, `delete 1`, each with its key."""
    return [f"{change.op.value} {change.row_id} {' '.join(change.changed)}".strip() for change in changes]


class File:
    """A tracked file, and what a statement puts into its queue."""

    def __init__(self, path: Path, *definitions: str, recursive: bool = False, foreign_keys: bool = False) -> None:
        self.path = path / "shop.db"
        self.connection = writer(self.path)
        for definition in definitions:
            self.connection.execute(definition)
        self.connection.execute(f"PRAGMA recursive_triggers = {recursive:d}")
        self.connection.execute(f"PRAGMA foreign_keys = {foreign_keys:d}")
        enable(url_of(self.path), every=True)

    async def after(self, *statements: str) -> list[Change]:
        start = await now(self.path)
        for statement in statements:
            self.connection.execute(statement)
        return await since(self.path, start)


PEOPLE = "CREATE TABLE people (id INTEGER PRIMARY KEY, email TEXT UNIQUE, n)"


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize(
    ("statement", "seen"),
    [
        ("INSERT INTO people VALUES (3, 'c', 0)", ["insert 3"]),
        ("INSERT INTO people (email) VALUES ('c'), ('d')", ["insert 3", "insert 4"]),
        ("INSERT INTO people SELECT id + 2, id, n FROM people", ["insert 3", "insert 4"]),
        ("REPLACE INTO people VALUES (1, 'c', 0)", ["delete 1", "insert 1"]),
        ("REPLACE INTO people VALUES (3, 'b', 0)", ["delete 2", "insert 3"]),
        ("REPLACE INTO people VALUES (1, 'b', 0)", ["delete 1", "delete 2", "insert 1"]),
        ("REPLACE INTO people VALUES (3, 'c', 0), (3, 'b', 1)", ["insert 3", "delete 3", "delete 2", "insert 3"]),
        ("INSERT OR IGNORE INTO people VALUES (1, 'c', 0), (3, 'b', 0), (3, 'c', 0)", ["insert 3"]),
        ("INSERT INTO people VALUES (1, 'c', 5) ON CONFLICT DO NOTHING", []),
        ("INSERT INTO people VALUES (1, 'c', 5) ON CONFLICT (id) DO UPDATE SET n = excluded.n", ["update 1 n"]),
        ("INSERT INTO people VALUES (1, 'c', 5) ON CONFLICT DO UPDATE SET n = 7 WHERE n > 100", []),
        ("INSERT INTO people VALUES (3, 'b', 5) ON CONFLICT (email) DO UPDATE SET id = 3", ["delete 2", "insert 3"]),
        ("UPDATE people SET n = 9", ["update 1 n", "update 2 n"]),
        ("UPDATE people SET n = n", ["update 1", "update 2"]),
        ("UPDATE people SET id = 7 WHERE id = 1", ["delete 1", "insert 7"]),
        ("UPDATE people SET id = -id", ["delete 1", "insert -1", "delete 2", "insert -2"]),
        ("UPDATE OR REPLACE people SET id = 2 WHERE id = 1", ["delete 2", "delete 1", "insert 2"]),
        ("UPDATE OR REPLACE people SET email = 'b' WHERE id = 1", ["delete 2", "update 1 email"]),
        ("UPDATE OR IGNORE people SET email = 'b'", ["update 2"]),
        ("UPDATE people SET n = other.n + 1 FROM people AS other WHERE other.id = 2 AND people.id = 1", ["update 1 n"]),
        ("DELETE FROM people WHERE id = 1", ["delete 1"]),
        ("DELETE FROM people", ["delete 1", "delete 2"]),
        ("DELETE FROM people WHERE id > 5", []),
    ],
)
async def test_a_statement_and_its_conflict_clause(
    tmp_path: Path, statement: str, seen: list[str], recursive: bool
) -> None:
    file = File(tmp_path, PEOPLE, "INSERT INTO people VALUES (1, 'a', 1), (2, 'b', 2)", recursive=recursive)
    assert short(await file.after(statement)) == seen


@pytest.mark.parametrize("clause", ["", "OR ABORT", "OR FAIL", "OR ROLLBACK"])
async def test_a_statement_that_fails_leaves_what_sqlite_leaves(tmp_path: Path, clause: str) -> None:
    file = File(tmp_path, PEOPLE, "INSERT INTO people VALUES (1, 'a', 1)")
    start = await now(file.path)
    with pytest.raises(sqlite3.IntegrityError):
        file.connection.execute(f"INSERT {clause} INTO people VALUES (2, 'b', 0), (1, 'c', 0), (3, 'd', 0)")
    assert short(await since(file.path, start)) == (["insert 2"] if clause == "OR FAIL" else [])


async def test_a_row_that_was_only_in_the_way_is_not_deleted_later(tmp_path: Path) -> None:
    file = File(tmp_path, PEOPLE, "INSERT INTO people VALUES (1, 'a', 1)")
    assert short(
        await file.after(
            "INSERT OR IGNORE INTO people VALUES (1, 'x', 0)",
            "INSERT INTO people VALUES (2, 'b', 0)",
            "UPDATE people SET n = 5 WHERE id = 1",
            "INSERT OR IGNORE INTO people VALUES (1, 'y', 0)",
            "DELETE FROM people WHERE id = 1",
            "INSERT INTO people VALUES (1, 'a', 9)",
            "INSERT OR IGNORE INTO people VALUES (1, 'y', 0)",
            "UPDATE people SET id = 4 WHERE id = 1",
            "INSERT INTO people VALUES (1, 'c', 0)",
        )
    ) == ["insert 2", "update 1 n", "delete 1", "insert 1", "delete 1", "insert 4", "insert 1"]


async def test_a_replaced_row_is_told_as_it_was_last(tmp_path: Path) -> None:
    file = File(tmp_path, PEOPLE, "INSERT INTO people VALUES (1, 'a', 1)")
    changes = await file.after(
        "INSERT OR IGNORE INTO people VALUES (1, 'x', 0)",
        "UPDATE people SET n = 5",
        "REPLACE INTO people VALUES (1, 'y', 0)",
    )
    assert changes[1].before == {"id": 1, "email": "a", "n": 5}


@pytest.mark.parametrize("recursive", [False, True])
async def test_tables_without_row_numbers_and_with_composite_keys(tmp_path: Path, recursive: bool) -> None:
    file = File(
        tmp_path,
        "CREATE TABLE pairs (b TEXT COLLATE NOCASE, a INT, v, PRIMARY KEY (a, b)) WITHOUT ROWID, STRICT".replace(
            "v,", "v ANY,"
        ),
        recursive=recursive,
    )
    changes = await file.after(
        "INSERT INTO pairs VALUES ('x', 1, 'first')",
        "REPLACE INTO pairs VALUES ('X', 1, 'second')",
        "UPDATE pairs SET v = 3",
        "UPDATE pairs SET a = 2",
    )
    assert [(change.op.value, change.key) for change in changes] == [
        ("insert", {"a": 1, "b": "x"}),
        ("delete", {"a": 1, "b": "x"}),
        ("insert", {"a": 1, "b": "X"}),
        ("update", {"a": 1, "b": "X"}),
        ("delete", {"a": 1, "b": "X"}),
        ("insert", {"a": 2, "b": "X"}),
    ]
    assert changes[0].row_id == '["1", "x"]'


async def test_tables_without_a_key_have_whole_rows(tmp_path: Path) -> None:
    file = File(tmp_path, "CREATE TABLE notes (rowid TEXT, x)")
    changes = await file.after(
        "INSERT INTO notes VALUES ('a', 1), ('a', 1)",
        "UPDATE notes SET x = 2 WHERE oid = 1",
        "REPLACE INTO notes (oid, rowid, x) VALUES (2, 'b', 3)",
        "DELETE FROM notes",
    )
    assert {change.key for change in changes if change.key is None} == {None}
    assert [(change.op.value, change.before, change.after) for change in changes[2:5]] == [
        ("update", {"rowid": "a", "x": 1}, {"rowid": "a", "x": 2}),
        ("delete", {"rowid": "a", "x": 1}, None),
        ("insert", None, {"rowid": "b", "x": 3}),
    ]
    assert not Replica(changes).rows("notes")


async def test_foreign_keys_cascade(tmp_path: Path) -> None:
    """SQLite acts on the children before it fires what comes after the parent."""
    file = File(
        tmp_path,
        "CREATE TABLE parents (id INTEGER PRIMARY KEY, n)",
        "CREATE TABLE children (id INTEGER PRIMARY KEY, p REFERENCES parents ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE guests (id INTEGER PRIMARY KEY, p REFERENCES parents ON DELETE SET NULL)",
        foreign_keys=True,
    )
    changes = await file.after(
        "INSERT INTO parents VALUES (1, 0), (2, 0)",
        "INSERT INTO children VALUES (10, 1), (11, 2)",
        "INSERT INTO guests VALUES (20, 1)",
        "UPDATE parents SET id = 5 WHERE id = 2",
        "REPLACE INTO parents VALUES (5, 1)",
        "DELETE FROM parents WHERE id = 1",
    )
    assert [f"{change.op.value} {change.table} {change.row_id}" for change in changes[5:]] == [
        "update children 11",
        "delete parents 2",
        "insert parents 5",
        "delete children 11",
        "delete parents 5",
        "insert parents 5",
        "update guests 20",
        "delete children 10",
        "delete parents 1",
    ]


async def test_generated_columns_have_their_values(tmp_path: Path) -> None:
    file = File(
        tmp_path, "CREATE TABLE sums (id INTEGER PRIMARY KEY, n, twice AS (n * 2), kept TEXT AS (n || '!') STORED)"
    )
    (inserted, updated) = await file.after("INSERT INTO sums (id, n) VALUES (1, 2)", "UPDATE sums SET n = 3")
    assert inserted.after == {"id": 1, "n": 2, "twice": 4, "kept": "2!"}
    assert updated.before == inserted.after
    assert updated.changed == ("n", "twice", "kept")


@pytest.mark.parametrize(
    ("table", "column"), [("order", "group"), ('a "b" c', 'd"e'), ("new", "old"), ("x'y", "v0"), ("naïve 表", "op")]
)
async def test_names_that_need_quotes(tmp_path: Path, table: str, column: str) -> None:
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in (table, column)}
    file = File(tmp_path, f"CREATE TABLE {quoted[table]} (id INTEGER PRIMARY KEY, {quoted[column]} UNIQUE, version)")
    changes = await file.after(
        f"INSERT INTO {quoted[table]} VALUES (1, 'a', 2)",
        f"REPLACE INTO {quoted[table]} VALUES (2, 'a', 3)",
        f"UPDATE {quoted[table]} SET {quoted[column]} = 'b'",
    )
    assert short(changes) == ["insert 1", "delete 1", "insert 2", f"update 2 {column}"]
    assert {change.table for change in changes} == {table}
    assert changes[0].after == {"id": 1, column: "a", "version": 2}


async def test_savepoints_and_rollbacks_leave_nothing(tmp_path: Path) -> None:
    file = File(tmp_path, PEOPLE)
    changes = await file.after(
        "BEGIN",
        "INSERT INTO people VALUES (1, 'a', 0)",
        "SAVEPOINT s",
        "REPLACE INTO people VALUES (1, 'b', 0)",
        "ROLLBACK TO s",
        "INSERT INTO people VALUES (2, 'b', 0)",
        "COMMIT",
        "BEGIN",
        "DELETE FROM people",
        "ROLLBACK",
    )
    assert short(changes) == ["insert 1", "insert 2"]


async def test_excluded_values_never_reach_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    connection = writer(path)
    connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, secret TEXT UNIQUE, mail, n)")
    assert enable(url_of(path), ["people"], exclude=["secret"], mask=["people.mail"]) == ["people"]
    start = await now(path)
    connection.execute("INSERT INTO people VALUES (1, 'hush-1', 'hush-2', 0)")
    connection.execute("UPDATE people SET secret = 'hush-3'")
    connection.execute("UPDATE people SET n = 1")
    connection.execute("REPLACE INTO people VALUES (2, 'hush-3', 'hush-4', 0)")
    inserted, updated, other, deleted, _ = await since(path, start)
    assert repr(inserted.after) == "{'id': 1, 'secret': UNAVAILABLE, 'mail': '***', 'n': 0}"
    assert (updated.hidden, updated.changed) == (("secret",), ("secret",))
    assert (other.hidden, other.changed) == ((), ("n",))
    assert deleted.op is Op.DELETE
    queue = repr(connection.execute("SELECT * FROM forge_queue").fetchall())
    assert "hush" not in queue + repr(connection.execute("SELECT * FROM forge_replaced").fetchall())


@pytest.mark.parametrize("seed", range(8))
async def test_replaying_the_queue_ends_with_the_tables(tmp_path: Path, seed: int) -> None:
    """Random statements, on tables of every kind, with and without triggers of the application's own."""
    settings = list(itertools.product((0, 1), repeat=3))[seed % 8]
    recursive, foreign_keys, triggers = settings
    path = tmp_path / "fuzz.db"
    connection = writer(path, wal=bool(seed % 2))
    connection.executescript(SCHEMA + (TRIGGERS if triggers else ""))
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(f"PRAGMA recursive_triggers = {recursive}")
    connection.execute(f"PRAGMA foreign_keys = {foreign_keys}")
    enable(url_of(path), TABLES)
    start = await now(path)
    fuzz = Fuzz(connection, seed)
    statements = [fuzz.step() for _ in range(120)]
    fuzz.end()
    changes = await since(path, start)
    replica = Replica(changes)
    for table in TABLES:
        assert replica.rows(table) == stored(connection, table), statements
    assert changes
    assert fuzz.refused
    async with SqliteSource(url_of(path)) as source:
        assert await source.until_now(start).__anext__() == await source.until_now(start).__anext__()
