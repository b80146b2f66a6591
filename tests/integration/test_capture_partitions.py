"""Partitioned tables and inheritance: one table in the log, however its rows are reached."""

import pytest

from forge.changelog.connection import Connection
from tests.integration.log import enable, everything, logged, ops, replay, stored

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


@pytest.mark.every_version
@pytest.mark.contract("X1")
def test_a_merge_whose_update_trigger_is_given_wrong_rows_is_logged_as_a_change_of_the_table(
    connection: Connection,
) -> None:
    """PostgreSQL 15 to 18 hand the UPDATE trigger the rows that the same MERGE inserted."""
    connection.execute("CREATE TABLE m (k int PRIMARY KEY, v text) PARTITION BY RANGE (k)")
    connection.execute("CREATE TABLE m_0 PARTITION OF m FOR VALUES FROM (0) TO (100)")
    enable(connection, "m")
    connection.execute("INSERT INTO m VALUES (6, 'old')")
    connection.execute(
        "MERGE INTO m USING generate_series(5, 7) g ON m.k = g WHEN MATCHED THEN UPDATE SET v = 'new'"
        " WHEN NOT MATCHED THEN INSERT VALUES (g, 'new')"
    )
    found = [(row.op, row.row_id) for row in everything(connection) if row.op != "S"][1:]
    assert found == [("X", None), ("I", "5"), ("I", "7")]
    connection.execute("UPDATE m SET k = k + 10 WHERE k = 5")
    assert ops(connection)[-2:] == [("D", "5"), ("I", "15")]
