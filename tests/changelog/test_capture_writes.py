"""What each kind of statement leaves in the log."""

import psycopg
import pytest

from forge.postgres.connection import Connection, connect
from tests.changelog.log import enable, everything, logged, ops, replay, stored

pytestmark = pytest.mark.every_version


@pytest.fixture
def orders(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY DEFERRABLE, status text, total numeric(10,2))")
    enable(connection, "orders")
    return connection


def wakeups(connection: Connection) -> list[str]:
    return [notify.payload for notify in connection.notifies(timeout=0)]


@pytest.mark.contract("T1", "T3")
def test_insert_update_delete_of_one_row(orders: Connection) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'new', 10)")
    orders.execute("UPDATE orders SET status = 'paid' WHERE id = 1")
    orders.execute("DELETE FROM orders WHERE id = 1")
    new = '{"id":1,"status":"new","total":10.00}'
    paid = '{"id":1,"status":"paid","total":10.00}'
    assert [(row.op, row.row_id, row.before, row.after) for row in logged(orders)] == [
        ("I", "1", None, new),
        ("U", "1", new, paid),
        ("D", "1", paid, None),
    ]


@pytest.mark.contract("T1", "T3")
def test_bulk_insert_update_delete(orders: Connection) -> None:
    orders.execute("INSERT INTO orders SELECT n, 'new', n FROM generate_series(1, 3) n")
    orders.execute("UPDATE orders SET status = 'paid'")
    orders.execute("DELETE FROM orders")
    rows = logged(orders)
    assert [(row.op, row.row_id) for row in rows] == [(op, str(n)) for op in "IUD" for n in (1, 2, 3)]
    assert [row.after for row in rows[:3]] == [f'{{"id":{n},"status":"new","total":{n}.00}}' for n in (1, 2, 3)]
    assert [(row.before, row.new["status"]) for row in rows[3:6]] == [('{"status":"new"}', "paid")] * 3
    assert [row.before for row in rows[6:]] == [row.after for row in rows[3:6]]


@pytest.mark.contract("T1")
def test_every_row_of_a_statement_is_logged_with_its_transaction_and_time(orders: Connection) -> None:
    with orders.transaction():
        xid = orders.execute("SELECT pg_current_xact_id()::text").fetchone()
        orders.execute("INSERT INTO orders VALUES (1), (2)")
        with orders.transaction():
            orders.execute("UPDATE orders SET total = 1 WHERE id = 1")
    found = orders.execute(
        "SELECT DISTINCT transaction_id::text, at > now() - interval '1 minute', day = (at AT TIME ZONE 'UTC')::date"
        " FROM forge.forge_event_log WHERE op <> 'S'"
    ).fetchall()
    assert xid is not None
    assert found == [(xid[0], True, True)]


@pytest.mark.contract("T3")
def test_context_is_logged(orders: Connection) -> None:
    with orders.transaction():
        orders.execute("""SELECT forge_context('ann', 'checkout', 'abc', '{"ip": "::1"}')""")
        orders.execute("INSERT INTO orders VALUES (1)")
    orders.execute("INSERT INTO orders VALUES (2)")
    found = orders.execute(
        "SELECT user_id, function_name, trace_id, context, db_user, application_name"
        " FROM forge.forge_event_log WHERE op = 'I' ORDER BY id"
    ).fetchall()
    assert found == [
        ("ann", "checkout", "abc", {"ip": "::1"}, "postgres", "forge"),
        (None, None, None, None, "postgres", "forge"),
    ]


@pytest.mark.contract("T1")
def test_rollback_logs_nothing(orders: Connection) -> None:
    orders.execute("LISTEN forge_changes")
    with orders.transaction(force_rollback=True):
        orders.execute("INSERT INTO orders VALUES (1)")
    assert logged(orders) == []
    assert wakeups(orders) == []


def test_savepoint_rollback_logs_only_what_stayed(orders: Connection) -> None:
    with orders.transaction():
        orders.execute("INSERT INTO orders VALUES (1)")
        with orders.transaction(force_rollback=True):
            orders.execute("INSERT INTO orders VALUES (2)")
        with orders.transaction():
            orders.execute("INSERT INTO orders VALUES (3)")
    assert ops(orders) == [("I", "1"), ("I", "3")]


@pytest.mark.contract("T1")
def test_a_committed_write_wakes_listeners(orders: Connection) -> None:
    orders.execute("LISTEN forge_changes")
    orders.execute("INSERT INTO orders VALUES (7)")
    orders.execute("UPDATE orders SET total = 1")
    orders.execute("INSERT INTO orders VALUES (8), (9)")
    orders.execute("DELETE FROM orders WHERE id = 7")
    last = [row[0] for row in orders.execute("SELECT id FROM forge.forge_event_log ORDER BY id")][1:]
    assert wakeups(orders) == [
        f"v1:orders:INSERT:7#{last[0]}",
        f"v1:orders:UPDATE:7#{last[1]}",
        f"v1:orders:INSERT:*#{last[3]}",
        f"v1:orders:DELETE:7#{last[4]}",
    ]


def test_zero_row_statements_log_and_wake_nothing(orders: Connection) -> None:
    orders.execute("LISTEN forge_changes")
    orders.execute("INSERT INTO orders SELECT 1 WHERE false")
    orders.execute("UPDATE orders SET total = 1")
    orders.execute("DELETE FROM orders")
    assert logged(orders) == []
    assert wakeups(orders) == []


def test_nobody_is_woken_while_a_reader_is_awake(orders: Connection, database: str) -> None:
    orders.execute("LISTEN forge_changes")
    with connect(database) as pacemaker:
        pacemaker.execute("SELECT pg_advisory_lock(forge.wakeup_lock())")
        orders.execute("INSERT INTO orders VALUES (1)")
    assert ops(orders) == [("I", "1")]
    assert wakeups(orders) == []


def test_noop_update_is_an_update_that_changed_nothing(orders: Connection) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)")
    orders.execute("UPDATE orders SET status = status WHERE id = 2")
    orders.execute("UPDATE orders SET status = status")
    rows = logged(orders)[2:]
    assert [(row.op, row.row_id, row.changed) for row in rows] == [("U", n, {}) for n in ("2", "1", "2")]
    assert [row.before for row in rows[1:]] == ["{}", "{}"]


def test_shifting_every_key_is_all_deletes_then_all_inserts(orders: Connection) -> None:
    orders.execute("INSERT INTO orders SELECT n, 'row ' || n FROM generate_series(1, 50) n")
    orders.execute("UPDATE orders SET id = id + 1")
    rows = logged(orders)[50:]
    assert [(row.op, row.row_id) for row in rows] == [("D", str(n)) for n in range(1, 51)] + [
        ("I", str(n)) for n in range(2, 52)
    ]
    assert [row.new["status"] for row in rows[50:]] == [f"row {n}" for n in range(1, 51)]
    assert replay(orders, "orders") == stored(orders, "orders")


def test_one_changed_key_is_a_delete_and_an_insert(orders: Connection) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    orders.execute("UPDATE orders SET id = 2, status = 'b'")
    delete, insert = logged(orders)[1:]
    assert (delete.op, delete.row_id, delete.before) == ("D", "1", '{"id":1,"status":"a","total":1.00}')
    assert (insert.op, insert.row_id, insert.after) == ("I", "2", '{"id":2,"status":"b","total":1.00}')


def test_a_statement_that_changes_some_keys_updates_the_rest(orders: Connection) -> None:
    orders.execute("INSERT INTO orders VALUES (1), (2), (3)")
    orders.execute("UPDATE orders SET id = CASE id WHEN 2 THEN 20 ELSE id END, status = 'x'")
    assert ops(orders)[3:] == [("U", "1"), ("U", "3"), ("D", "2"), ("I", "20")]
    assert replay(orders, "orders") == stored(orders, "orders")


def test_of_one_key_a_later_change_has_a_later_time(orders: Connection) -> None:
    orders.execute("INSERT INTO orders VALUES (1), (2), (3)")
    orders.execute("UPDATE orders SET id = id + 1")
    by_time = orders.execute("SELECT op::text FROM forge.forge_event_log WHERE row_id = '2' ORDER BY at").fetchall()
    assert by_time == [("I",), ("D",), ("I",)]


def test_composite_keys(connection: Connection) -> None:
    connection.execute('CREATE TABLE lines (b text, n int, "a b" text, PRIMARY KEY (n, b))')
    enable(connection, "lines")
    connection.execute("INSERT INTO lines VALUES ('x,\"y', 1, 'p'), (']', 2, 'q')")
    connection.execute("UPDATE lines SET \"a b\" = 'r' WHERE n = 1")
    connection.execute("UPDATE lines SET n = 3 WHERE n = 2")
    assert ops(connection) == [
        ("I", '["1", "x,\\"y"]'),
        ("I", '["2", "]"]'),
        ("U", '["1", "x,\\"y"]'),
        ("D", '["2", "]"]'),
        ("I", '["3", "]"]'),
    ]


def test_table_without_key_logs_whole_rows(connection: Connection) -> None:
    connection.execute("CREATE TABLE notes (a int, b text)")
    enable(connection, "notes")
    connection.execute("INSERT INTO notes VALUES (1, 'x'), (1, 'x'), (NULL, NULL)")
    connection.execute("UPDATE notes SET b = 'y' WHERE a IS NULL")
    connection.execute("DELETE FROM notes WHERE a = 1")
    x = '{"a":1,"b":"x"}'
    assert [(row.op, row.row_id, row.before, row.after) for row in logged(connection)] == [
        ("I", None, None, x),
        ("I", None, None, x),
        ("I", None, None, '{"a":null,"b":null}'),
        ("U", None, '{"a":null,"b":null}', '{"a":null,"b":"y"}'),
        ("D", None, x, None),
        ("D", None, x, None),
    ]


def test_truncate_is_one_change(orders: Connection) -> None:
    orders.execute("INSERT INTO orders VALUES (1), (2)")
    orders.execute("TRUNCATE orders")
    assert ops(orders)[2:] == [("T", None)]
    assert (logged(orders)[-1].before, logged(orders)[-1].after) == (None, None)


def test_truncate_cascade_is_one_change_of_each_table(orders: Connection) -> None:
    orders.execute("CREATE TABLE lines (id int PRIMARY KEY, order_id int)")
    orders.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id)")
    orders.execute("ALTER TABLE lines ADD FOREIGN KEY (order_id) REFERENCES orders")
    enable(orders, "lines")
    orders.execute("TRUNCATE orders CASCADE")
    assert sorted((row.op, row.table) for row in logged(orders)) == [("T", "lines"), ("T", "orders")]


def test_on_conflict(orders: Connection) -> None:
    orders.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id)")
    orders.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    orders.execute("INSERT INTO orders VALUES (1, 'b', 2) ON CONFLICT DO NOTHING")
    assert ops(orders) == [("I", "1")]
    orders.execute(
        "INSERT INTO orders VALUES (1, 'c', 3), (2, 'd', 4) ON CONFLICT (id) DO UPDATE SET status = excluded.status"
    )
    assert sorted(ops(orders)[1:]) == [("I", "2"), ("U", "1")]
    orders.execute("INSERT INTO orders VALUES (1, 'e', 3) ON CONFLICT (id) DO UPDATE SET total = 9 WHERE orders.id > 5")
    assert len(logged(orders)) == 3
    assert replay(orders, "orders") == stored(orders, "orders")


def test_merge(orders: Connection) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    orders.execute(
        "MERGE INTO orders o USING (VALUES (1, 'x'), (2, NULL), (4, 'y')) s (id, status) ON o.id = s.id"
        " WHEN MATCHED AND s.status IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET status = s.status"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.status, 0)"
    )
    assert sorted(ops(orders)[3:]) == [("D", "2"), ("I", "4"), ("U", "1")]
    assert replay(orders, "orders") == stored(orders, "orders")


def test_copy(orders: Connection) -> None:
    with orders.cursor().copy("COPY orders FROM STDIN") as copy:
        for n in range(3000):
            copy.write_row((n, "copied", n))
    assert ops(orders) == [("I", str(n)) for n in range(3000)]


def test_ctes_that_write_one_table_several_times(orders: Connection) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    orders.execute(
        "WITH gone AS (DELETE FROM orders WHERE id = 1 RETURNING *),"
        " first AS (INSERT INTO orders VALUES (10) RETURNING *), paid AS (UPDATE orders SET total = 9 WHERE id = 2),"
        " paid_too AS (UPDATE orders SET total = 8 WHERE id = 3)"
        " INSERT INTO orders SELECT id, 'again', total FROM gone UNION ALL SELECT 11, 'k', id FROM first"
    )
    assert sorted(ops(orders)[3:]) == [("D", "1"), ("I", "1"), ("I", "10"), ("I", "11"), ("U", "2"), ("U", "3")]
    assert replay(orders, "orders") == stored(orders, "orders")


@pytest.mark.parametrize("rows", [1, 2])
def test_foreign_key_cascades(orders: Connection, rows: int) -> None:
    orders.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id)")
    orders.execute(
        "CREATE TABLE lines (id int PRIMARY KEY, n int,"
        " order_id int REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE)"
    )
    enable(orders, "lines")
    orders.execute("INSERT INTO orders SELECT n FROM generate_series(1, %s) n", (rows,))
    orders.execute(
        "INSERT INTO lines SELECT o * 10 + n, n, o FROM generate_series(1, %s) o, generate_series(1, 2) n", (rows,)
    )
    before = len(logged(orders, "lines"))
    orders.execute("UPDATE orders SET id = id + 100")
    moved = logged(orders, "lines")[before:]
    assert {(row.op, row.row_id, row.changed["order_id"]) for row in moved} == {
        ("U", str(o * 10 + n), (o, o + 100)) for o in range(1, rows + 1) for n in (1, 2)
    }
    orders.execute("DELETE FROM orders")
    assert len(moved) == rows * 2
    assert [row.op for row in logged(orders, "lines")[before + rows * 2 :]] == ["D"] * rows * 2
    assert replay(orders, "lines") == replay(orders, "orders") == []


def test_a_row_hit_by_two_set_null_keys_is_two_chained_updates(orders: Connection) -> None:
    orders.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id)")
    orders.execute(
        "CREATE TABLE pairs (id int PRIMARY KEY, l int REFERENCES orders ON DELETE SET NULL,"
        " r int REFERENCES orders ON DELETE SET NULL)"
    )
    enable(orders, "pairs")
    orders.execute("INSERT INTO orders VALUES (1), (2)")
    orders.execute("INSERT INTO pairs VALUES (1, 1, 2)")
    orders.execute("DELETE FROM orders")
    first, second = logged(orders, "pairs")[1:]
    assert (first.op, second.op) == ("U", "U")
    assert first.new == {**second.new, **second.old}
    assert second.new == {"id": 1, "l": None, "r": None}
    assert replay(orders, "pairs") == stored(orders, "pairs")


def test_a_tree_that_cascades_into_itself(connection: Connection) -> None:
    connection.execute("CREATE TABLE tree (id int PRIMARY KEY, parent int REFERENCES tree ON DELETE CASCADE)")
    enable(connection, "tree")
    connection.execute("INSERT INTO tree SELECT n, nullif(n / 2, 0) FROM generate_series(1, 31) n")
    connection.execute("DELETE FROM tree WHERE id = 1")
    assert sorted(ops(connection)[31:]) == sorted(("D", str(n)) for n in range(1, 32))
    assert ops(connection)[31] == ("D", "1")


def test_deferred_constraints(connection: Connection) -> None:
    connection.execute("CREATE TABLE seats (id int PRIMARY KEY, place int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    enable(connection, "seats")
    connection.execute("INSERT INTO seats VALUES (1, 1), (2, 2)")
    with connection.transaction():
        connection.execute("UPDATE seats SET place = 2 WHERE id = 1")
        connection.execute("UPDATE seats SET place = 1 WHERE id = 2")
    assert [row.changed for row in logged(connection)[2:]] == [{"place": (1, 2)}, {"place": (2, 1)}]
    with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
        connection.execute("UPDATE seats SET place = 7")
    assert len(logged(connection)) == 4


def test_two_phase_commit(orders: Connection, database: str) -> None:
    orders.execute("BEGIN")
    orders.execute("SET LOCAL forge.wakeup = 'poll'")
    orders.execute("INSERT INTO orders VALUES (1)")
    orders.execute("PREPARE TRANSACTION 'forge_two_phase'")
    assert logged(orders) == []
    orders.execute("COMMIT PREPARED 'forge_two_phase'")
    assert ops(orders) == [("I", "1")]


def test_two_phase_ddl(orders: Connection) -> None:
    orders.execute("BEGIN")
    orders.execute("SET LOCAL forge.wakeup = 'poll'")
    orders.execute("ALTER TABLE orders ADD note text")
    orders.execute("PREPARE TRANSACTION 'forge_two_phase_ddl'")
    orders.execute("COMMIT PREPARED 'forge_two_phase_ddl'")
    assert [row.op for row in everything(orders)] == ["S", "S"]


def test_prepared_statements_and_wide_updates_of_one_session_share_plans(orders: Connection) -> None:
    """A plan made for two rows must still do for many: nothing is joined row by row."""
    orders.execute("INSERT INTO orders SELECT n, 'a', 1 FROM generate_series(1, 20000) n")
    for _ in range(8):
        orders.execute("UPDATE orders SET status = 'b' WHERE id < 3")
    orders.execute("SET statement_timeout = '20s'")
    orders.execute("UPDATE orders SET status = 'c'")
    assert sum(row.op == "U" for row in logged(orders)) == 16 + 20000


@pytest.mark.contract("T6")
def test_rows_of_megabytes_commit_and_are_logged_whole(connection: Connection) -> None:
    connection.execute("CREATE TABLE files (id text PRIMARY KEY, body text)")
    enable(connection, "files")
    key = "k" * 2000
    connection.execute("INSERT INTO files VALUES (%s, repeat('xy\"', 3000000))", (key,))
    connection.execute("UPDATE files SET body = body || '!'")
    connection.execute("INSERT INTO files SELECT n::text, repeat('z', 2000000) FROM generate_series(1, 4) n")
    first, second, *rest = logged(connection)
    assert (first.row_id, len(first.new["body"])) == (key, 9_000_000)
    assert second.old["body"] + "!" == second.new["body"]
    assert [len(row.new["body"]) for row in rest] == [2_000_000] * 4
