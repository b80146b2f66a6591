"""What a stream tells: every operation, in the order of commits, and nothing that was rolled back."""

import random
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from forge.capture import Filter
from forge.capture.mysql import comment
from forge.change import UNAVAILABLE, Change, Context, Op
from forge.testing.mariadb import MariadbServer, connect_mariadb, run
from tests.capture.mysql.reading import SOON, changes, snapshot, source

pytestmark = pytest.mark.contract("W5")


def free(url: str) -> None:
    """Wait until the server has seen that nobody is connected to the database any more."""
    others = "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    deadline = time.monotonic() + SOON
    while int(run(url, others)[0][0]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def told(change: Change) -> tuple[str, Any, Any, Any]:
    return change.op.value, change.key, change.before, change.after


async def test_insert_update_delete(database: str) -> None:
    reader = source(database)
    run(database, "CREATE TABLE t (id int PRIMARY KEY, n int)")
    start = await reader.now()
    run(
        database,
        "INSERT INTO t VALUES (1, 10), (2, NULL)",
        "UPDATE t SET n = 11 WHERE id = 1",
        "UPDATE t SET n = n",
        "REPLACE INTO t VALUES (2, 20)",
        "INSERT INTO t VALUES (1, 0) ON DUPLICATE KEY UPDATE n = 12",
        "INSERT IGNORE INTO t VALUES (1, 99)",
        "DELETE FROM t",
    )
    found = await changes(reader, start, 7)
    assert [told(change) for change in found] == [
        ("insert", {"id": 1}, None, {"id": 1, "n": 10}),
        ("insert", {"id": 2}, None, {"id": 2, "n": None}),
        ("update", {"id": 1}, {"id": 1, "n": 10}, {"id": 1, "n": 11}),
        ("update", {"id": 2}, {"id": 2, "n": None}, {"id": 2, "n": 20}),
        ("update", {"id": 1}, {"id": 1, "n": 11}, {"id": 1, "n": 12}),
        ("delete", {"id": 1}, {"id": 1, "n": 12}, None),
        ("delete", {"id": 2}, {"id": 2, "n": 20}, None),
    ]
    assert len({change.id for change in found}) == len(found)
    positions = [change.source.position for change in found]
    assert positions == sorted(set(positions))
    assert found[0].source.transaction == found[1].source.transaction != found[2].source.transaction
    schema = database.rpartition("/")[2]
    assert {(change.schema, change.table, change.source.kind) for change in found} == {(schema, "t", "mysql")}
    assert all(change.at.utcoffset() is not None for change in found)


async def test_a_changed_key_is_a_delete_and_an_insert(database: str) -> None:
    reader = source(database)
    run(database, "CREATE TABLE t (a int, b varchar(5), n int, PRIMARY KEY (b, a))", "INSERT INTO t VALUES (1, 'x', 0)")
    start = await reader.now()
    run(database, "UPDATE t SET b = 'y', n = 1")
    assert [told(change) for change in await changes(reader, start, 2)] == [
        ("delete", {"b": "x", "a": 1}, {"a": 1, "b": "x", "n": 0}, None),
        ("insert", {"b": "y", "a": 1}, None, {"a": 1, "b": "y", "n": 1}),
    ]


async def test_a_table_without_a_key(database: str) -> None:
    reader = source(database)
    run(database, "CREATE TABLE t (n int)")
    start = await reader.now()
    run(database, "INSERT INTO t VALUES (1), (1)", "UPDATE t SET n = 2 LIMIT 1", "DELETE FROM t WHERE n = 2")
    found = await changes(reader, start, 4)
    assert [told(change) for change in found] == [
        ("insert", None, None, {"n": 1}),
        ("insert", None, None, {"n": 1}),
        ("update", None, {"n": 1}, {"n": 2}),
        ("delete", None, {"n": 2}, None),
    ]


async def test_what_is_rolled_back_is_never_seen(database: str) -> None:
    reader = source(database)
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    start = await reader.now()
    run(
        database,
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "ROLLBACK",
        "BEGIN",
        "INSERT INTO t VALUES (2)",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (3)",
        "ROLLBACK TO s",
        "INSERT INTO t VALUES (4)",
        "COMMIT",
        "INSERT INTO t VALUES (5)",
    )
    found = await changes(reader, start, 3)
    assert [change.after for change in found] == [{"id": 2}, {"id": 4}, {"id": 5}]
    assert found[0].source.transaction == found[1].source.transaction


async def test_xa_transactions_are_told_when_they_commit(database: str) -> None:
    reader = source(database)
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    start = await reader.now()
    name = database[-12:]
    for number, end in ((1, "ROLLBACK"), (2, "COMMIT")):
        xid = f"'{name}{number}'"
        run(database, f"XA START {xid}", f"INSERT INTO t VALUES ({number})", f"XA END {xid}", f"XA PREPARE {xid}")
        free(database)  # or nobody else may end it
        run(database, f"XA {end} {xid}")
    run(database, "INSERT INTO t VALUES (3)")
    found = await changes(reader, start, 2)
    assert [(change.op, change.table) for change in found] == [(Op.INVALIDATE, "t"), (Op.INSERT, "t")]
    assert found[1].after == {"id": 3}


async def test_commits_of_concurrent_writers_come_in_order_and_whole(database: str) -> None:
    """Each writer counts one row up: whatever the order of commits, each image follows the one before it."""
    reader = source(database)
    run(database, "CREATE TABLE t (id int PRIMARY KEY, n int, w int)", "INSERT INTO t VALUES (0, 0, 0), (1, 0, 0)")
    start = await reader.now()

    def write(writer: int) -> None:
        choose = random.Random(writer)
        connection = connect_mariadb(database, autocommit=False)
        with connection.cursor() as cursor:
            for _ in range(25):
                cursor.execute("UPDATE t SET n = n + 1, w = %s WHERE id = 0", (writer,))
                cursor.execute("UPDATE t SET n = n + 1, w = %s WHERE id = 1", (writer,))
                connection.rollback() if choose.random() < 0.3 else connection.commit()
        connection.close()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    ((total,),) = run(database, "SELECT n FROM t WHERE id = 0")
    found = await changes(reader, start, 2 * total)
    assert len(found) == 2 * total
    for key in (0, 1):
        rows = [change for change in found if change.key == {"id": key}]
        assert [change.after and change.after["n"] for change in rows] == list(range(1, total + 1))
        assert all(left.after == right.before for left, right in pairwise(rows))
    transactions = [change.source.transaction for change in found]
    assert transactions[::2] == transactions[1::2]
    assert len(set(transactions)) == total


async def test_definitions_change_in_the_middle(database: str) -> None:
    """All is written before any of it is read: each row is decoded as its table was then."""
    reader = source(database)
    start = await reader.now()
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(10))",
        "INSERT INTO t VALUES (1, 'one')",
        "ALTER TABLE t ADD COLUMN b bigint unsigned DEFAULT 18446744073709551615 FIRST",
        "INSERT INTO t (id, a) VALUES (2, 'two')",
        "ALTER TABLE t DROP COLUMN a, MODIFY b decimal(30,2), RENAME TO u",
        "INSERT INTO u VALUES (1.5, 3)",
        "TRUNCATE TABLE u",
        "CREATE INDEX i ON u (b)",
        "RENAME TABLE u TO v",
        "DROP TABLE v",
        "CREATE TABLE t (x text)",
        "INSERT INTO t VALUES ('new')",
    )
    found = await changes(reader, start, 14)
    assert [(change.op.value, change.table) for change in found] == [
        ("schema", "t"),
        ("insert", "t"),
        ("schema", "t"),
        ("insert", "t"),
        ("schema", "t"),
        ("schema", "u"),
        ("insert", "u"),
        ("truncate", "u"),
        ("schema", "u"),
        ("schema", "u"),
        ("schema", "v"),
        ("schema", "v"),
        ("schema", "t"),
        ("insert", "t"),
    ]
    rows = [change.after for change in found if change.op is Op.INSERT]
    assert [list(row.values()) for row in rows if row] == [
        [1, "one"],
        [18446744073709551615, 2, "two"],
        [rows[2] and rows[2]["b"], 3],
        ["new"],
    ]
    assert str(rows[2] and rows[2]["b"]) == "1.50"
    assert len({change.id for change in found}) == len(found)
    assert "ADD COLUMN b" in found[2].context.more["statement"]


async def test_positions_sort_as_changes_come(database: str) -> None:
    """Of one statement on several tables, too, in whichever order it names them."""
    reader = source(database)
    start = await reader.now()
    run(
        database,
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "zma"),
        "INSERT INTO z VALUES (1), (2)",
        "RENAME TABLE z TO old, m TO z, a TO b",
        "INSERT INTO z VALUES (3)",
        "DROP TABLE z, old, b",
    )
    found = await changes(reader, start, 14)
    assert [change.table for change in found] == [*"zma", "z", "z", "z", "old", "m", "a", "b", "z", "z", "old", "b"]
    positions = [change.source.position for change in found]
    assert positions == sorted(set(positions))


async def test_a_sequence_is_no_table(maria_database: str) -> None:
    """Nor is one that is gone when its rows are read."""
    reader = source(maria_database)
    start = await reader.now()
    run(
        maria_database,
        "CREATE SEQUENCE there",
        "CREATE SEQUENCE gone",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (nextval(there)), (nextval(gone) + 1)",
        "SELECT nextval(there), setval(gone, 5000)",
        "DROP SEQUENCE gone",
        "INSERT INTO t VALUES (3)",
    )
    found = await changes(reader, start, 4)
    assert [(change.op.value, change.table, change.after) for change in found] == [
        ("schema", "t", None),
        ("insert", "t", {"id": 1}),
        ("insert", "t", {"id": 2}),
        ("insert", "t", {"id": 3}),
    ]


async def test_a_dropped_database_tells_of_its_tables(maria: MariadbServer) -> None:
    run(maria.url(), "CREATE DATABASE gone", "CREATE TABLE gone.a (id int)", "CREATE TABLE gone.b (id int)")
    reader = source(maria.url("gone"))
    start = await reader.now()
    run(maria.url(), "DROP DATABASE gone")
    (whole,) = await changes(reader, start, 1)
    assert (whole.op, whole.schema, whole.table) == (Op.SCHEMA, "gone", "*")


async def test_create_table_as_select(maria_database: str) -> None:
    database = maria_database
    reader = source(database)
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    start = await reader.now()
    run(database, "CREATE TABLE u SELECT id, id * 2 AS d FROM t")
    found = await changes(reader, start, 3)
    assert [(change.op.value, change.table) for change in found] == [("schema", "u"), ("insert", "u"), ("insert", "u")]
    assert found[2].after == {"id": 2, "d": 4}


@pytest.mark.contract("W9")
async def test_filters(database: str) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, n int, s varchar(9))",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    start = await source(database).now()
    run(
        database,
        "INSERT INTO other VALUES (1)",
        "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')",
        "UPDATE t SET s = 'c' WHERE id = 2",
        "UPDATE t SET n = 5 WHERE id = 2",
        "DELETE FROM t",
        "INSERT INTO t VALUES (3, 9, 'z')",
    )
    everything = await changes(source(database), start, 8)
    tables = await changes(source(database, Filter(tables=("t",))), start, 7)
    assert [change.id for change in tables] == [change.id for change in everything[1:]]
    deletes = await changes(source(database, Filter(tables=("t",), operations=(Op.DELETE,))), start, 2)
    assert [change.id for change in deletes] == [change.id for change in everything if change.op is Op.DELETE]
    cut = await changes(source(database, Filter(tables=("t",), columns=("n",))), start, 6)
    assert [change.after for change in cut][:3] == [{"id": 1, "n": 1}, {"id": 2, "n": 2}, {"id": 2, "n": 5}]
    rows = await changes(source(database, Filter(tables=("t",), where="n > 4")), start, 3)
    assert [change.op for change in rows] == [Op.UPDATE, Op.DELETE, Op.INSERT]
    status = await source(database, Filter(tables=("t",), where="n > 4")).status()
    assert (status.in_feed, status.in_forge) == ((), ("tables", "rows"))


async def test_context_comes_with_a_comment(database: str) -> None:
    reader = source(database)
    run(database, "CREATE TABLE t (id int PRIMARY KEY, s varchar(99))")
    start = await reader.now()
    who = Context(user_id="ada", function_name="pay", trace_id="*/ x", more={"why": ["é", 1]})
    run(
        database,
        "BEGIN",
        comment(who) + "INSERT INTO t VALUES (1, '')",
        "INSERT INTO t VALUES (2, '')",
        "COMMIT",
        'INSERT INTO t VALUES (3, \'/* forge:{"user_id": "eve"} */\')',
        "/* forge:{nonsense} */ INSERT INTO t VALUES (4, '')",
    )
    found = await changes(reader, start, 4)
    assert [change.context for change in found] == [who, who, Context(), Context()]
    assert "1 comments meant for Forge could not be read" in (await reader.status()).warnings
    silent = await changes(source(database, context=False), start, 4)
    assert silent[0].context == Context()
    assert [change.id for change in silent] == [change.id for change in found]


async def test_images_that_are_not_whole(database: str) -> None:
    """A session may log less than the server is set to: what was not sent is UNAVAILABLE."""
    reader = source(database)
    run(database, "CREATE TABLE t (id int PRIMARY KEY, a int, b text)", "INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y')")
    start = await reader.now()
    run(
        database,
        "SET SESSION binlog_row_image = MINIMAL",
        "UPDATE t SET a = 5 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "INSERT INTO t (id, a) VALUES (3, NULL)",
    )
    update, delete, insert = await changes(reader, start, 3)
    assert update.key == {"id": 1}
    assert update.before == {"id": 1, "a": UNAVAILABLE, "b": UNAVAILABLE}
    assert update.after == {"id": 1, "a": 5, "b": UNAVAILABLE}
    assert delete.before == {"id": 2, "a": UNAVAILABLE, "b": UNAVAILABLE}
    assert insert.after is not None
    assert (insert.after["id"], insert.after["a"]) == (3, None)


async def test_statements_logged_as_text_invalidate(database: str) -> None:
    reader = source(database)
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    start = await reader.now()
    run(database, "SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (1)")
    found = await changes(reader, start, 2)
    assert [(change.op, change.table) for change in found] == [(Op.INVALIDATE, "t"), (Op.INVALIDATE, "u")]
    assert found[0].context.more["reason"] == "a statement was logged as text"


async def test_a_versioned_table_tells_only_what_is_current(maria_database: str) -> None:
    database = maria_database
    reader = source(database)
    run(database, "CREATE TABLE t (id int PRIMARY KEY, n int) WITH SYSTEM VERSIONING")
    start = await reader.now()
    run(
        database,
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "UPDATE t SET n = 3 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "DELETE HISTORY FROM t",
        "INSERT INTO t VALUES (4, 4)",
    )
    found = await changes(reader, start, 5)
    assert [(change.op.value, change.key) for change in found] == [
        ("insert", {"id": 1}),
        ("insert", {"id": 2}),
        ("update", {"id": 1}),
        ("delete", {"id": 2}),
        ("insert", {"id": 4}),
    ]
    assert found[2].after == {"id": 1, "n": 3}
    assert found[3].before == {"id": 2, "n": 2}
    (first, *_) = await snapshot(reader)
    assert [change.after for change in first.changes] == [{"id": 1, "n": 3}, {"id": 4, "n": 4}]
