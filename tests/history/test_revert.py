"""Reverting: what comes back, who is said to have done it, and everything that is refused."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from forge.errors import RevertRefused
from forge.history.revert import Choice, chosen, plan_revert, revert
from forge.postgres.connection import Connection, connect
from tests.changelog.log import enable


@pytest.fixture
def orders(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, note text, total numeric)")
    connection.execute("CREATE TABLE lines (id int PRIMARY KEY, order_id int REFERENCES orders ON DELETE CASCADE)")
    for table in ("orders", "lines"):
        enable(connection, table)
    connection.execute("SELECT forge.current_identity()")
    write(connection, "INSERT INTO orders VALUES (1, 'placed', 'a', 1.50), (2, 'placed', 'b', 2)")
    return connection


def write(connection: Connection, *statements: str, trace: str | None = None, user: str = "ada") -> str:
    """Write in one transaction; its number."""
    with connection.transaction():
        connection.execute("SELECT forge_context(%s, 'test', %s)", (user, trace))
        for statement in statements:
            connection.execute(statement.encode())
        return str(one(connection, "SELECT pg_current_xact_id()::text"))


def one(connection: Connection, statement: str) -> Any:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def rows(connection: Connection, table: str = "orders") -> list[str]:
    return [row for (row,) in connection.execute(f"SELECT t::text FROM {table} t ORDER BY 1".encode())]


def refused(connection: Connection, choice: Choice, match: str) -> list[str]:
    """Both the plan and the revert say so, and nothing changes."""
    before = [rows(connection, "orders"), rows(connection, "lines")]
    with pytest.raises(RevertRefused) as caught:
        revert(connection, choice)
    assert [rows(connection, "orders"), rows(connection, "lines")] == before
    found = [str(conflict) for conflict in plan_revert(connection, choice).conflicts]
    assert found == list(caught.value.conflicts)
    assert any(match in line for line in found), found
    return found


@pytest.mark.contract("X7")
def test_a_request_is_undone_and_the_log_says_by_whom(orders: Connection) -> None:
    before = rows(orders)
    for statement in ("UPDATE orders SET status = 'paid'", "UPDATE orders SET status = 'sent', total = 3 WHERE id = 1"):
        write(orders, statement, trace="3f2a")
    write(orders, "UPDATE orders SET note = 'mine' WHERE id = 2", user="bob")
    plan = plan_revert(orders, Choice(trace="3f2a"))
    assert [(step.op, step.table, step.key, step.changes) for step in plan.steps] == [
        ("update", "orders", "1", 2),
        ("update", "orders", "2", 1),
    ]
    assert {name: bytes(value) for name, value in plan.steps[0].then.items()} == {
        "status": b'"placed"',
        "total": b"1.50",
    }
    assert plan.conflicts == []
    done = revert(orders, Choice(trace="3f2a"), by="eve")
    assert rows(orders) == [before[0], "(2,placed,mine,2)"]
    assert done.counts == {"orders": 2}
    logged = orders.execute(
        "SELECT DISTINCT user_id, function_name, context #>> '{reverted,trace}', transaction_id::text FROM forge_events"
        " WHERE function_name = 'forge.revert'"
    ).fetchall()
    assert logged == [("eve", "forge.revert", "3f2a", done.transaction)]


@pytest.mark.contract("X7")
def test_a_user_since_an_instant_in_one_table(orders: Connection) -> None:
    since = datetime.now(UTC)
    write(orders, "INSERT INTO orders VALUES (3)", "INSERT INTO lines VALUES (1, 1)", user="eve")
    write(orders, "DELETE FROM orders WHERE id = 2", user="eve")
    write(orders, "UPDATE orders SET note = 'mine' WHERE id = 1", user="bob")
    until = datetime.now(UTC)
    write(orders, "INSERT INTO orders VALUES (4)", user="eve")
    revert(orders, Choice(user="eve", since=since, until=until, tables=("orders",)))
    assert rows(orders) == ["(1,placed,mine,1.50)", "(2,placed,b,2)", "(4,,,)"]
    assert rows(orders, "lines") == ["(1,1)"]
    since = datetime.now(UTC)
    orders.execute("DELETE FROM orders WHERE id = 2")
    revert(orders, Choice(user="postgres", since=since))  # nobody said who: the database's user did it
    assert len(rows(orders)) == 3


@pytest.mark.contract("X7")
def test_what_others_changed_since_is_refused_with_a_list(orders: Connection) -> None:
    xid = write(
        orders, "UPDATE orders SET status = 'paid'", "INSERT INTO orders VALUES (3)", "INSERT INTO orders VALUES (4)"
    )
    write(orders, "UPDATE orders SET status = 'sent' WHERE id = 1", "UPDATE orders SET note = 'x' WHERE id = 3")
    write(orders, "DELETE FROM orders WHERE id = 2")
    found = refused(orders, Choice(transaction=xid), "orders 1: status changed since")
    assert found == [
        "orders 1: status changed since",
        "orders 2: it is no longer there",
        "orders 3: note changed since",
    ]


@pytest.mark.contract("X7")
@pytest.mark.parametrize(
    ("chosen", "later", "reason"),
    [
        ("INSERT INTO orders VALUES (3)", "INSERT INTO lines VALUES (1, 3)", "1 row of public.lines refer to it"),
        ("DELETE FROM orders WHERE id = 2", "INSERT INTO orders VALUES (2)", "a row with that key is there"),
        ("UPDATE orders SET id = 9 WHERE id = 2", "INSERT INTO orders VALUES (2)", "a row 2 is there"),
        ("TRUNCATE lines", "", "lines: it was truncated"),
        ("ALTER TABLE orders ADD more int DEFAULT 1", "", "orders: it was redefined"),
        ("DELETE FROM orders WHERE id = 2", "ALTER TABLE orders DROP total", "total (dropped) is no longer a column"),
        ("UPDATE orders SET total = 5", "ALTER TABLE orders ALTER total TYPE int", "total has another type now"),
        ("UPDATE orders SET status = 'paid'", "SELECT forge_disable_reactivity('orders')", "no longer tracked"),
    ],
)  # fmt: skip
def test_what_cannot_be_undone(orders: Connection, chosen: str, later: str, reason: str) -> None:
    xid = write(orders, chosen)
    if later:
        write(orders, later)
    refused(orders, Choice(transaction=xid), reason)


@pytest.mark.contract("X7")
def test_what_others_changed_in_between_is_refused(orders: Connection) -> None:
    for user, status in (("eve", "paid"), ("bob", "held"), ("eve", "sent")):
        write(orders, f"UPDATE orders SET status = '{status}' WHERE id = 1", trace=user)
    refused(orders, Choice(trace="eve"), "status changed by others in between")


def test_other_columns_that_others_changed_in_between_are_kept(orders: Connection) -> None:
    write(orders, "UPDATE orders SET status = 'paid' WHERE id = 1", trace="eve")
    write(orders, "UPDATE orders SET note = 'bob', total = 7 WHERE id = 1")
    write(orders, "UPDATE orders SET total = 8 WHERE id = 1", "DELETE FROM orders WHERE id = 1", trace="eve")
    revert(orders, Choice(trace="eve"))
    assert rows(orders)[0] == "(1,placed,bob,7)"


def test_a_renamed_column_is_found(orders: Connection) -> None:
    xid = write(orders, "UPDATE orders SET status = 'paid'")
    write(orders, "ALTER TABLE orders RENAME status TO state")
    revert(orders, Choice(transaction=xid))
    assert rows(orders) == ["(1,placed,a,1.50)", "(2,placed,b,2)"]


def test_excluded_values_are_not_made_up(connection: Connection) -> None:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, secret text)")
    connection.execute("CREATE TABLE lines (id int)")
    enable(connection, "orders", exclude=["secret"])
    write(connection, "INSERT INTO orders VALUES (1, 'a', 'x'), (2, 'b', 'y')")
    gone = write(connection, "DELETE FROM orders WHERE id = 1")
    refused(connection, Choice(transaction=gone), "the log has no values of secret")
    changed = write(connection, "UPDATE orders SET name = 'c', secret = 'z' WHERE id = 2")
    refused(connection, Choice(transaction=changed), "secret changed, and the log has no values of it")
    fine = write(connection, "UPDATE orders SET name = 'd' WHERE id = 2")
    revert(connection, Choice(transaction=fine))
    assert rows(connection) == ["(2,c,z)"]
    new = write(connection, "INSERT INTO orders VALUES (3, 'e', 'x')")
    write(connection, "UPDATE orders SET secret = 'later' WHERE id = 3")
    refused(connection, Choice(transaction=new), "secret changed since")


def test_every_kind_of_value_comes_back(connection: Connection) -> None:
    connection.execute("CREATE TYPE mood AS ENUM ('ok', 'so so'); CREATE TYPE pair AS (a int, b text)")
    connection.execute(
        'CREATE TABLE v (k timestamptz, "of %s" text, j json, jb jsonb, n numeric, f float8, r real, b bytea, a int[],'
        " t text[], fa float8[], ba bytea[], i interval, m mood, p pair, ps pair[], rg int4range, x bit(3),"
        ' g text GENERATED ALWAYS AS (upper("of %s")) STORED, PRIMARY KEY (k, "of %s"))'
    )
    enable(connection, "v")
    write(
        connection,
        """INSERT INTO v VALUES (now(), '%s''"', '{"a": 1,  "a": 2}', '{"$json": null}', 'NaN', '-0', 0.1, '\\xdead',
           '[0:1]={1,2}', '{NULL,"a,b"}', '{NaN,-0,1e300}', '{"\\\\x01"}', '1 mon 2 days 03:04:05.6', 'so so',
           '(1,"a b")', '{"(1,x)"}', '[1,5)', '101')""",
        "INSERT INTO v VALUES ('infinity', '', NULL, 'null', 1.00, 'Infinity', NULL, '', '{}', '{{a,b},{c,d}}')",
    )
    before = rows(connection, "v")
    gone = write(connection, "DELETE FROM v")
    revert(connection, Choice(transaction=gone))
    assert rows(connection, "v") == before
    changed = write(
        connection, "UPDATE v SET k = '2026-01-01', jb = NULL, a = NULL, t = '{z}', n = 1, fa = '{1}', g = DEFAULT"
    )
    revert(connection, Choice(transaction=changed))
    assert rows(connection, "v") == before


def test_a_unique_value_that_went_to_another_row_comes_back(connection: Connection) -> None:
    connection.execute("CREATE TABLE u (id int PRIMARY KEY, word text UNIQUE)")
    enable(connection, "u")
    write(connection, "INSERT INTO u VALUES (1, 'a')")
    xid = write(connection, "DELETE FROM u", "INSERT INTO u VALUES (2, 'a')")
    revert(connection, Choice(transaction=xid))
    assert rows(connection, "u") == ["(1,a)"]
    write(connection, "INSERT INTO u VALUES (2, 'b'), (3, 'c')")
    xid = write(
        connection,
        "UPDATE u SET id = 10 WHERE id = 3",
        "UPDATE u SET id = 3 WHERE id = 2",
        "UPDATE u SET id = 2 WHERE id = 1",
    )
    revert(connection, Choice(transaction=xid))
    assert rows(connection, "u") == ["(1,a)", "(2,b)", "(3,c)"]


@pytest.mark.parametrize("deferrable", [False, True])
def test_unique_values_that_were_swapped(connection: Connection, deferrable: bool) -> None:
    """They fit in no order, row by row: that takes a constraint which can wait."""
    word = "DEFERRABLE" if deferrable else ""
    connection.execute(f"CREATE TABLE u (id int PRIMARY KEY, word text UNIQUE {word})".encode())
    enable(connection, "u")
    write(connection, "INSERT INTO u VALUES (1, 'a'), (2, 'b')")
    xid = write(
        connection,
        "UPDATE u SET word = '' WHERE id = 1",
        "UPDATE u SET word = 'a' WHERE id = 2",
        "UPDATE u SET word = 'b' WHERE id = 1",
    )
    if deferrable:
        revert(connection, Choice(transaction=xid))
        assert rows(connection, "u") == ["(1,a)", "(2,b)"]
    else:
        with pytest.raises(RevertRefused, match="duplicate key value violates unique constraint"):
            revert(connection, Choice(transaction=xid))
        assert rows(connection, "u") == ["(1,b)", "(2,a)"]


def test_triggers_fire_and_what_they_make_of_a_row_is_told(orders: Connection) -> None:
    orders.execute(
        "CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN NEW.note := 'stamped ' || coalesce(NEW.note, ''); RETURN NEW; END $$;"
        "CREATE TRIGGER stamp BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION stamp()"
    )
    xid = write(orders, "UPDATE orders SET status = 'paid' WHERE id = 1")
    done = revert(orders, Choice(transaction=xid))
    assert rows(orders)[0] == '(1,placed,"stamped a",1.50)'
    assert done.adjusted == {"orders 1": ("note",)}


def test_a_trigger_that_keeps_a_sum_is_not_counted_twice(orders: Connection) -> None:
    orders.execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE orders SET total = total + CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END"
        " WHERE id = CASE TG_OP WHEN 'INSERT' THEN NEW.order_id ELSE OLD.order_id END; RETURN NULL; END $$;"
        "CREATE TRIGGER keep AFTER INSERT OR DELETE ON lines FOR EACH ROW EXECUTE FUNCTION keep()"
    )
    before = rows(orders)
    xid = write(orders, "INSERT INTO lines VALUES (1, 1)")
    with pytest.raises(RevertRefused, match="a trigger or a foreign key changed total of it once more"):
        revert(orders, Choice(transaction=xid))
    revert(orders, Choice(transaction=xid, tables=("lines",)))
    assert rows(orders) == before


def test_no_race_slips_in(orders: Connection, database: str) -> None:
    """A writer that holds the row is waited for, and what it did is seen."""
    xid = write(orders, "UPDATE orders SET status = 'paid' WHERE id = 1")
    outcome: list[str] = []

    def undo() -> None:
        with connect(database, application_name="undoing") as connection:
            try:
                revert(connection, Choice(transaction=xid))
            except RevertRefused as error:
                outcome.extend(error.conflicts)

    with connect(database) as other:
        other.execute("BEGIN; UPDATE orders SET status = 'sent' WHERE id = 1")
        thread = threading.Thread(target=undo)
        thread.start()
        deadline = datetime.now(UTC) + timedelta(seconds=20)
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'undoing' AND wait_event_type = 'Lock'"
        )
        while one(orders, waiting) == 0:
            assert datetime.now(UTC) < deadline
        other.execute("COMMIT")
    thread.join(20)
    assert outcome == ["orders 1: status changed since"]


def test_what_was_asked_wrongly(orders: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for choice, match in (
        ({}, "what to revert is not clear"),
        ({"trace": "a", "transaction": "1"}, "what to revert is not clear"),
        ({"user": "ada"}, "since when"),
        ({"user": "ada", "since": datetime(2026, 1, 1)}, "no time zone"),
        ({"transaction": "x"}, "no transaction"),
        ({"transaction": "9" * 40}, "no transaction"),
    ):
        with pytest.raises(RevertRefused, match=match):
            Choice(**choice)
    with pytest.raises(RevertRefused, match="the log has no change of trace nope"):
        revert(orders, Choice(trace="nope"))
    with pytest.raises(RevertRefused, match="the log knows no table oders"):
        revert(orders, Choice(trace="nope", tables=("oders",)))
    xid = write(orders, "UPDATE orders SET status = 'paid'")
    monkeypatch.setattr(chosen, "MOST_CHANGES", 1)
    with pytest.raises(
        RevertRefused, match="2 changes of 0 MB are too many to revert at once: 1 of 256 MB is the most"
    ):
        revert(orders, Choice(transaction=xid))
    with orders.transaction(), pytest.raises(RevertRefused, match="inside a transaction"):
        revert(orders, Choice(transaction=xid))


def test_a_trimmed_log_is_refused(orders: Connection) -> None:
    xid = write(orders, "UPDATE orders SET status = 'paid'")
    orders.execute(
        "INSERT INTO forge.trimmed (partition, reason, rows, last_id, last_transaction)"
        f" VALUES ('forge_event_log_20260101', 'retention', 5, (SELECT max(id) FROM forge_events), '{xid}')".encode()
    )
    with pytest.raises(RevertRefused, match="may have been trimmed; it begins at 2026-01-02"):
        revert(orders, Choice(transaction=xid))
    with pytest.raises(RevertRefused, match="the log of then has been trimmed"):
        revert(orders, Choice(user="ada", since=datetime(2025, 12, 1, tzinfo=UTC)))


def test_nothing_is_left_to_undo(orders: Connection) -> None:
    xid = write(orders, "INSERT INTO orders VALUES (3)", "DELETE FROM orders WHERE id = 3")
    assert revert(orders, Choice(transaction=xid)).transaction is None
    done = revert(orders, Choice(transaction=write(orders, "UPDATE orders SET status = 'x'")))
    assert isinstance(done.transaction, str)
    with pytest.raises(psycopg.errors.NoActiveSqlTransaction):
        orders.execute("SAVEPOINT nothing_is_open")


def test_a_document_nested_3000_deep_comes_back_and_goes_again(connection: Connection) -> None:
    connection.execute("CREATE TABLE document (id int PRIMARY KEY, body jsonb, note text)")
    enable(connection, "document")
    connection.execute("SELECT forge.current_identity()")
    deep = "repeat('[', 3000) || '%s' || repeat(']', 3000)"
    bodies = "SELECT md5(string_agg(id || body::text || note, ';' ORDER BY id)) FROM document"
    inserted = write(connection, f"INSERT INTO document VALUES (1, ({deep % 1})::jsonb, 'a: \"[,{{'), (2, '{{}}', 'b')")
    before = one(connection, bodies)
    writes = (f"UPDATE document SET body = ({deep % 2})::jsonb", "DELETE FROM document WHERE id = 1")
    changed = write(connection, *writes)
    plan = plan_revert(connection, Choice(transaction=changed))
    assert sorted((step.op, step.key, len(step.then["body"])) for step in plan.steps) == [
        ("insert", "1", 6001),
        ("update", "2", 2),
    ]
    assert plan.conflicts == []
    back = revert(connection, Choice(transaction=changed)).transaction
    assert one(connection, bodies) == before
    assert back is not None
    revert(connection, Choice(transaction=back))
    assert one(connection, "SELECT array_agg(id) FROM document") == [2]
    connection.execute("UPDATE document SET note = 'mine'")
    with pytest.raises(RevertRefused) as caught:
        revert(connection, Choice(transaction=inserted))
    assert "document 2: body, note changed since" in caught.value.conflicts
