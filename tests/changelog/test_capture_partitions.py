"""Partitioned tables and inheritance: one table in the log, however its rows are reached."""

import psycopg
import pytest
from psycopg import sql

from forge.postgres.connection import Connection
from tests.changelog.log import enable, everything, logged, ops, replay, stored

pytestmark = pytest.mark.every_version


@pytest.fixture
def sales(connection: Connection) -> Connection:
    """Two leaves below the root, two below a partitioned partition; columns in different orders."""
    connection.execute(
        "CREATE TABLE sales (id int, region text, amount int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);"
        "CREATE TABLE sales_eu PARTITION OF sales FOR VALUES IN ('eu');"
        "CREATE TABLE sales_us (amount int, extra int, region text NOT NULL, id int NOT NULL);"
        "ALTER TABLE sales_us DROP extra;"
        "ALTER TABLE sales ATTACH PARTITION sales_us FOR VALUES IN ('us');"
        "CREATE TABLE sales_asia PARTITION OF sales FOR VALUES IN ('jp', 'in') PARTITION BY LIST (region);"
        "CREATE TABLE sales_jp PARTITION OF sales_asia FOR VALUES IN ('jp');"
        "CREATE TABLE sales_in PARTITION OF sales_asia FOR VALUES IN ('in')"
    )
    enable(connection, "sales")
    return connection


def test_writes_through_the_root(sales: Connection) -> None:
    sales.execute("INSERT INTO sales VALUES (1, 'eu', 1), (2, 'us', 2), (3, 'jp', 3)")
    sales.execute("UPDATE sales SET amount = amount + 1")
    sales.execute("DELETE FROM sales WHERE region = 'us'")
    assert len(logged(sales)) == 7
    assert replay(sales, "sales") == stored(sales, "sales")


def test_writes_straight_into_a_leaf(sales: Connection) -> None:
    sales.execute("INSERT INTO sales_us (id, region, amount) VALUES (1, 'us', 1), (2, 'us', 2)")
    sales.execute("INSERT INTO sales_in VALUES (3, 'in', 3)")
    sales.execute("UPDATE sales_us SET amount = 9 WHERE id = 1")
    sales.execute("UPDATE sales_us SET amount = amount + 1")
    sales.execute("UPDATE sales_in SET id = 4")
    sales.execute("DELETE FROM sales_us WHERE id = 2")
    assert [op for op, _ in ops(sales)] == ["I", "I", "I", "U", "U", "U", "D", "I", "D"]
    assert {row.table for row in logged(sales)} == {"sales"}
    assert replay(sales, "sales") == stored(sales, "sales")


def test_writes_through_a_partitioned_partition(sales: Connection) -> None:
    sales.execute("INSERT INTO sales_asia VALUES (1, 'jp', 1), (2, 'in', 2)")
    sales.execute("UPDATE sales_asia SET region = CASE region WHEN 'jp' THEN 'in' ELSE 'jp' END")
    assert [op for op, _ in ops(sales)] == ["I", "I", "D", "D", "I", "I"]
    assert replay(sales, "sales") == stored(sales, "sales")


def test_update_that_moves_rows_between_partitions(sales: Connection) -> None:
    sales.execute("INSERT INTO sales SELECT n, 'eu', n FROM generate_series(1, 20) n")
    sales.execute(
        "UPDATE sales SET region = CASE id % 3 WHEN 0 THEN 'us' WHEN 1 THEN 'jp' ELSE 'eu' END, amount = -amount"
    )
    assert sorted(op for op, _ in ops(sales)[20:]) == ["D"] * 13 + ["I"] * 13 + ["U"] * 7
    assert replay(sales, "sales") == stored(sales, "sales")


def test_move_without_a_key_is_an_update_paired_by_position(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE m (id int, p int) PARTITION BY LIST (p);"
        "CREATE TABLE m1 PARTITION OF m FOR VALUES IN (1); CREATE TABLE m2 PARTITION OF m FOR VALUES IN (2)"
    )
    enable(connection, "m")
    connection.execute("INSERT INTO m SELECT n, 1 + n % 2 FROM generate_series(1, 6) n")
    connection.execute("UPDATE m SET p = 3 - p")
    moves = logged(connection)[6:]
    assert [row.op for row in moves] == ["U"] * 6
    assert all(row.changed == {"p": (1 + row.new["id"] % 2, 2 - row.new["id"] % 2)} for row in moves)


def test_truncate_of_the_root_is_one_change(sales: Connection) -> None:
    sales.execute("INSERT INTO sales VALUES (1, 'eu', 1), (2, 'us', 2), (3, 'jp', 3)")
    sales.execute("TRUNCATE sales")
    assert ops(sales)[3:] == [("T", None)]


def test_truncate_of_one_partition_deletes_its_rows(sales: Connection) -> None:
    sales.execute("INSERT INTO sales VALUES (1, 'eu', 1), (2, 'us', 2), (3, 'us', 3), (4, 'jp', 4), (5, 'in', 5)")
    sales.execute("TRUNCATE sales_us")
    assert sorted(ops(sales)[5:]) == [("D", '["2", "us"]'), ("D", '["3", "us"]')]
    sales.execute("TRUNCATE sales_asia")
    assert sorted(ops(sales)[7:]) == [("D", '["4", "jp"]'), ("D", '["5", "in"]')]
    assert replay(sales, "sales") == stored(sales, "sales")


def test_truncate_of_root_then_leaf_in_one_transaction(sales: Connection) -> None:
    with sales.transaction():
        sales.execute("INSERT INTO sales VALUES (1, 'eu', 1)")
        sales.execute("TRUNCATE sales")
        sales.execute("INSERT INTO sales VALUES (2, 'eu', 1)")
        sales.execute("TRUNCATE sales_eu")
    assert [op for op, _ in ops(sales)] == ["I", "T", "I", "D"]


def test_truncate_of_an_empty_partition_logs_and_wakes_nothing(sales: Connection) -> None:
    sales.execute("LISTEN forge_changes")
    sales.execute("TRUNCATE sales_eu")
    assert logged(sales) == []
    assert list(sales.notifies(timeout=0)) == []


def test_a_writer_cannot_hide_a_truncated_partition(sales: Connection) -> None:
    sales.execute("INSERT INTO sales VALUES (1, 'eu', 1)")
    names = [f"forge.truncating_{row[0]}" for row in sales.execute("SELECT id FROM forge.tracked_table")]
    with sales.transaction():
        for name in names:
            sales.execute("SELECT set_config(%s, 'yes', true)", (name,))
        sales.execute("TRUNCATE sales_eu")
    assert [op for op, _ in ops(sales)] == ["I", "D"]


@pytest.mark.contract("X11")
def test_a_partition_made_later_is_tracked(sales: Connection) -> None:
    sales.execute("CREATE TABLE sales_br PARTITION OF sales FOR VALUES IN ('br')")
    sales.execute("INSERT INTO sales_br VALUES (1, 'br', 1)")
    sales.execute("INSERT INTO sales VALUES (2, 'br', 2)")
    sales.execute("TRUNCATE sales_br")
    assert [row.op for row in everything(sales)] == ["S", "I", "I", "D", "D"]


@pytest.mark.contract("X11")
def test_attach_and_detach(sales: Connection) -> None:
    sales.execute("CREATE TABLE sales_br (id int NOT NULL, region text NOT NULL, amount int)")
    sales.execute("INSERT INTO sales_br VALUES (1, 'br', 1)")
    sales.execute("ALTER TABLE sales ATTACH PARTITION sales_br FOR VALUES IN ('br')")
    sales.execute("UPDATE sales_br SET amount = 2")
    assert [row.op for row in everything(sales)] == ["S", "S", "U"]
    sales.execute("ALTER TABLE sales DETACH PARTITION sales_br")
    sales.execute("INSERT INTO sales_br VALUES (2, 'br', 1)")
    sales.execute("TRUNCATE sales_br")
    sales.execute("INSERT INTO sales VALUES (3, 'eu', 3)")
    assert [row.op for row in everything(sales)] == ["S", "S", "U", "S", "I"]
    triggers = sales.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'sales_br'::regclass").fetchone()
    assert triggers == (0,)


@pytest.mark.contract("X11")
def test_a_dropped_partition_is_a_schema_change(sales: Connection) -> None:
    sales.execute("INSERT INTO sales VALUES (1, 'eu', 1)")
    sales.execute("DROP TABLE sales_eu")
    assert [row.op for row in everything(sales)] == ["S", "I", "S"]


def test_inheritance(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v int); CREATE TABLE c (extra text) INHERITS (p);"
        "CREATE TABLE g () INHERITS (c)"
    )
    enable(connection, "p")
    connection.execute("INSERT INTO p VALUES (1, 1)")
    connection.execute("INSERT INTO c VALUES (2, 2, 'x'), (4, 4, 'x')")
    connection.execute("INSERT INTO g VALUES (3, 3, 'y')")
    connection.execute("UPDATE p SET v = v + 1")
    connection.execute("UPDATE ONLY p SET v = v + 1")
    connection.execute("UPDATE c SET extra = 'z'")
    connection.execute("DELETE FROM p WHERE id = 2")
    assert logged(connection)[1].after == '{"id":2,"v":2}'
    assert [op for op, _ in ops(connection)] == ["I"] * 4 + ["U"] * 4 + ["U"] + ["U"] * 3 + ["D"]
    assert replay(connection, "p") == stored(connection, "p")


def test_truncate_of_an_inheritance_parent_alone_keeps_the_children(connection: Connection) -> None:
    connection.execute("CREATE TABLE p (id int PRIMARY KEY, v int); CREATE TABLE c () INHERITS (p)")
    enable(connection, "p")
    connection.execute("INSERT INTO p VALUES (1, 1)")
    connection.execute("INSERT INTO c VALUES (2, 2)")
    connection.execute("TRUNCATE ONLY p")
    assert ops(connection)[2:] == [("D", "1")]
    assert replay(connection, "p") == stored(connection, "p")
    connection.execute("INSERT INTO p VALUES (3, 3)")
    connection.execute("TRUNCATE p")
    assert sorted(ops(connection)[4:]) == [("D", "2"), ("D", "3")]


def test_a_child_that_comes_later(connection: Connection) -> None:
    connection.execute("CREATE TABLE p (id int PRIMARY KEY, v int)")
    enable(connection, "p")
    connection.execute("CREATE TABLE c (w int) INHERITS (p)")
    connection.execute("INSERT INTO c VALUES (1, 1, 1)")
    connection.execute("TRUNCATE ONLY p")
    connection.execute("ALTER TABLE c NO INHERIT p")
    connection.execute("UPDATE c SET v = 2")
    connection.execute("TRUNCATE p")
    assert [row.op for row in everything(connection)] == ["S", "I", "S", "T"]


MERGE = (
    "MERGE INTO {into} t USING (VALUES {rows}) s (d, id, v) ON t.d = s.d AND t.id = s.id"
    " WHEN MATCHED AND s.v < 0 THEN {delete}"
    " WHEN MATCHED THEN UPDATE SET v = s.v, d = {to}"
    " WHEN NOT MATCHED THEN {insert}"
)


def merge(rows: str, *, into: str = "p", to: str = "t.d", insert: bool = True, delete: bool = True) -> str:
    """A MERGE of (d, id, v); a negative v deletes."""
    return MERGE.format(
        rows=rows,
        into=into,
        to=to,
        insert="INSERT (d, id, v) VALUES (s.d, s.id, s.v)" if insert else "DO NOTHING",
        delete="DELETE" if delete else "DO NOTHING",
    )


@pytest.fixture
def parts(connection: Connection) -> Connection:
    """A table in three parts, the second with its columns in another order, the third partitioned again."""
    connection.execute(
        "CREATE TABLE p (d int, id int, v int, at timestamptz DEFAULT '2026-01-02 03:04:05+00', PRIMARY KEY (d, id))"
        " PARTITION BY RANGE (d);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (2);"
        "CREATE TABLE p2 (at timestamptz, v int, gone int, id int NOT NULL, d int NOT NULL);"
        "ALTER TABLE p2 DROP gone;"
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (2) TO (3);"
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (3) TO (9) PARTITION BY RANGE (d);"
        "CREATE TABLE p3a PARTITION OF p3 FOR VALUES FROM (3) TO (4);"
        "CREATE TABLE p3b PARTITION OF p3 FOR VALUES FROM (4) TO (9)"
    )
    enable(connection, "p")
    connection.execute("INSERT INTO p VALUES (1, 1, 0), (1, 3, 0), (2, 1, 0), (3, 1, 0), (4, 1, 0)")
    return connection


def since(connection: Connection, start: int) -> list[tuple[str, str | None]]:
    """What was logged after the first rows of the log, with the changes of a table as a whole."""
    return [(row.op, row.row_id) for row in everything(connection)[start:]]


@pytest.mark.contract("X1")
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_merge_that_inserts_and_updates(parts: Connection, zone: str) -> None:
    parts.execute("SELECT set_config('TimeZone', %s, false)", (zone,))
    parts.execute(merge("(1, 2, 6), (1, 1, 5), (2, 7, 1), (2, 1, 5), (3, 1, -1), (1, 3, 9), (3, 8, 8), (4, 1, 4)"))
    parts.execute("SET TimeZone = 'UTC'")
    assert [op for op, _ in since(parts, 6)] == ["D", *["U"] * 4, *["I"] * 3]
    assert sorted(since(parts, 6)) == [
        ("D", '["3", "1"]'),
        *[("I", '["1", "2"]'), ("I", '["2", "7"]'), ("I", '["3", "8"]')],
        *[("U", '["1", "1"]'), ("U", '["1", "3"]'), ("U", '["2", "1"]'), ("U", '["4", "1"]')],
    ]
    assert replay(parts, "p") == stored(parts, "p")


@pytest.mark.contract("X1")
def test_merge_into_a_partitioned_partition_and_into_a_leaf(parts: Connection) -> None:
    parts.execute(merge("(3, 2, 6), (3, 1, 5), (4, 2, 1), (4, 1, 2)", into="p3"))
    parts.execute(merge("(2, 2, 6), (2, 1, 5)", into="p2"))
    assert [op for op, _ in since(parts, 6)] == ["U", "U", "I", "I", "U", "I"]
    assert replay(parts, "p") == stored(parts, "p")


@pytest.mark.contract("X1")
def test_merge_into_a_partitioned_table_without_a_key(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE p (d int, id int, v int) PARTITION BY RANGE (d);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (2); CREATE TABLE p2 PARTITION OF p DEFAULT"
    )
    enable(connection, "p")
    connection.execute("INSERT INTO p VALUES (1, 1, 0), (2, 1, 0)")
    connection.execute(merge("(1, 2, 6), (1, 1, 5), (2, 2, 7), (2, 1, 9)"))
    assert [row.op for row in logged(connection)[2:]] == ["U", "U", "I", "I"]
    assert sorted((row.op, row.after) for row in logged(connection)[2:]) == [
        ("I", '{"d":1,"id":2,"v":6}'),
        ("I", '{"d":2,"id":2,"v":7}'),
        ("U", '{"d":1,"id":1,"v":5}'),
        ("U", '{"d":2,"id":1,"v":9}'),
    ]
    connection.execute("UPDATE p SET d = 3 - d")
    assert [row.op for row in everything(connection)[7:]] == ["U"] * 4
    connection.execute(merge("(1, 1, 0)", to="2"))
    assert [row.op for row in everything(connection)[11:]] == ["D", "I"]
    connection.execute(merge("(1, 2, 0)", to="2", insert=False, delete=False))
    assert [row.op for row in everything(connection)[13:]] == ["X"]


@pytest.mark.contract("X1")
@pytest.mark.parametrize(
    ("insert", "delete", "expected"),
    [
        (False, False, ["X", "U"]),
        (True, False, ["X", "U", "I", "I"]),
        (False, True, ["D", "D", "X", "U"]),
        (True, True, ["D", "D", "U", "I", "I"]),
    ],
)
def test_merge_that_moves_rows_between_partitions(
    parts: Connection, insert: bool, delete: bool, expected: list[str]
) -> None:
    """PostgreSQL 15 to 18 hand a moved row to no trigger unless the MERGE has all three actions."""
    parts.execute("LISTEN forge_changes")
    rows = "(1, 3, 5), (2, 9, 9), (4, 1, 4), (2, 1, -1)"
    parts.execute(merge(rows, to="CASE t.d WHEN 1 THEN 3 ELSE t.d END", insert=insert, delete=delete))
    assert [op for op, _ in since(parts, 6)] == expected
    assert list(parts.notifies(timeout=0)) != []
    if "X" not in expected:
        assert replay(parts, "p") == stored(parts, "p")


@pytest.mark.contract("X1")
@pytest.mark.parametrize("trigger", [False, True])
def test_what_is_no_merge_is_logged_row_by_row(parts: Connection, trigger: bool) -> None:
    """Several statements in one message, an upsert, moves, deletes within a function that an UPDATE calls."""
    parts.execute(
        "CREATE FUNCTION forget(n int) RETURNS int LANGUAGE sql AS 'DELETE FROM p WHERE id = n; SELECT n';"
        "CREATE FUNCTION note(n int) RETURNS int LANGUAGE sql AS 'INSERT INTO p VALUES (1, n, 0); SELECT n';"
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )
    if trigger:
        parts.execute("CREATE TRIGGER other AFTER UPDATE ON p FOR EACH ROW EXECUTE FUNCTION nothing()")
    before = len(everything(parts))
    parts.execute("DO $$ BEGIN INSERT INTO p VALUES (1, 4, 0); UPDATE p SET id = 5 WHERE id = 4; END $$")
    parts.execute("INSERT INTO p VALUES (2, 4, 0); UPDATE p SET d = 1, id = 6 WHERE id = 4")
    parts.execute("INSERT INTO p VALUES (1, 6, 1), (1, 7, 1) ON CONFLICT (d, id) DO UPDATE SET v = excluded.v")
    parts.execute("WITH i AS (INSERT INTO p VALUES (1, 8, 0)) UPDATE p SET d = d + 1 WHERE id = 7")
    parts.execute("UPDATE p SET v = forget(3), d = 2 WHERE id = 6")
    before, first = len(everything(parts)), since(parts, before)
    parts.execute("UPDATE p SET v = note(30), d = 3 WHERE id = 6")
    parts.execute(
        "WITH i AS (INSERT INTO p VALUES (1, 40, 0), (1, 41, 0) RETURNING id)"
        " UPDATE p SET d = 1 FROM (SELECT * FROM i LIMIT 1) s WHERE p.id = 6"
    )
    assert sorted(op for op, _ in since(parts, before)) == ["D", "D", "I", "I", "I", "I", "I"]
    assert [op for op, _ in first] == [
        *["I", "D", "I", "I", "D", "I"],
        *["U", "I"],
        *["D", "I", "I"],
        *["D", "D", "I"],
    ]
    assert replay(parts, "p") == stored(parts, "p")


@pytest.mark.contract("X1")
def test_a_statement_that_failed_leaves_nothing_behind(parts: Connection) -> None:
    """What a MERGE's triggers remembered is gone with a savepoint, and with an exception that is caught."""
    parts.execute("ALTER TABLE p ADD CHECK (v < 100)")
    before = len(everything(parts))
    failing = merge("(1, 3, 5), (4, 1, 100)", to="t.d + 1", insert=False, delete=False)
    with parts.transaction():
        with pytest.raises(psycopg.errors.CheckViolation), parts.transaction():
            parts.execute(failing)
        parts.execute("UPDATE p SET v = 1 WHERE d = 1")
        parts.execute(
            sql.SQL("DO {}").format(
                sql.Literal(
                    f"BEGIN {failing}; EXCEPTION WHEN check_violation THEN UPDATE p SET d = 2 WHERE id = 3; END"
                )
            )
        )
        parts.execute("INSERT INTO p VALUES (1, 9, 9)")
        parts.execute("DELETE FROM p WHERE d = 2")
    assert [op for op, _ in since(parts, before)] == ["U", "U", "D", "I", "I", "D", "D"]
    assert replay(parts, "p") == stored(parts, "p")


@pytest.mark.contract("X1")
def test_merge_inside_functions_and_triggers(parts: Connection) -> None:
    parts.execute(
        "CREATE TABLE source (d int, id int, v int);"
        "CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " MERGE INTO p t USING new_rows s ON t.d = s.d AND t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (d, id, v) VALUES (s.d, s.id, s.v);"
        " RETURN NULL; END $$;"
        "CREATE TRIGGER take AFTER INSERT ON source REFERENCING NEW TABLE AS new_rows"
        " FOR EACH STATEMENT EXECUTE FUNCTION take();"
        "CREATE FUNCTION shift(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        f" {merge('(1, 3, 5)', to='n', insert=False, delete=False)};"
        " RETURN n; END $$"
    )
    parts.execute("INSERT INTO source VALUES (1, 2, 6), (1, 1, 5)")
    assert since(parts, 6) == [("U", '["1", "1"]'), ("I", '["1", "2"]')]
    parts.execute("INSERT INTO p SELECT 1, 20, shift(2)")
    assert [op for op, _ in since(parts, 8)] == ["X", "I"]


@pytest.mark.contract("X1")
def test_merge_that_returns_rows_within_a_query(parts: Connection) -> None:
    if parts.info.server_version < 170000:
        pytest.skip("MERGE … RETURNING is of PostgreSQL 17 on")
    rows = "(1, 2, 6), (1, 1, 5), (2, 1, -1)"
    found = parts.execute(
        f"WITH m AS ({merge(rows)} RETURNING merge_action(), t.id) SELECT * FROM m ORDER BY 1, 2"
    ).fetchall()
    assert found == [("DELETE", 1), ("INSERT", 2), ("UPDATE", 1)]
    assert since(parts, 6) == [("D", '["2", "1"]'), ("U", '["1", "1"]'), ("I", '["1", "2"]')]
    assert replay(parts, "p") == stored(parts, "p")


def test_merge_into_an_inheritance_parent(connection: Connection) -> None:
    connection.execute("CREATE TABLE p (d int, id int PRIMARY KEY, v int); CREATE TABLE c () INHERITS (p)")
    enable(connection, "p")
    connection.execute("INSERT INTO p VALUES (1, 1, 0); INSERT INTO c VALUES (1, 3, 0)")
    connection.execute(merge("(1, 2, 6), (1, 1, 5), (1, 3, 7)"))
    assert ops(connection)[2:] == [("U", "1"), ("U", "3"), ("I", "2")]
    assert replay(connection, "p") == stored(connection, "p")
