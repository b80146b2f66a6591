"""Triggers of users that write the table they are on: the log still tells each key's true history."""

import psycopg
import pytest

from forge.postgres.connection import Connection
from tests.changelog.log import enable, logged, ops, replay, stored

pytestmark = pytest.mark.every_version


@pytest.fixture
def t(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    enable(connection, "t")
    return connection


def trigger(connection: Connection, when: str, body: str, name: str = "a_user", level: str = "ROW") -> None:
    """A trigger of the user's; `when` is for example AFTER INSERT."""
    result = "NEW" if when.startswith("BEFORE") and level == "ROW" else "NULL"
    connection.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN {result}; END $$;"
        f"CREATE TRIGGER {name} {when} ON t FOR EACH {level} EXECUTE FUNCTION {name}()"
    )


def agrees(connection: Connection) -> bool:
    return replay(connection, "t") == stored(connection, "t")


@pytest.mark.parametrize("name", ["a_user", "zz_user"])
@pytest.mark.parametrize("level", ["ROW", "STATEMENT"])
def test_after_insert_trigger_updates_its_own_row(t: Connection, name: str, level: str) -> None:
    body = "UPDATE t SET v = v + 1 WHERE id = NEW.id" if level == "ROW" else "UPDATE t SET v = v + 1"
    trigger(t, "AFTER INSERT", body, name=name, level=level)
    t.execute("INSERT INTO t VALUES (1, 10), (2, 20)")
    assert [(row.op, row.row_id, row.new["v"]) for row in logged(t)] == [
        ("I", "1", 10),
        ("I", "2", 20),
        ("U", "1", 11),
        ("U", "2", 21),
    ]
    assert agrees(t)


def test_time_follows_the_order(t: Connection) -> None:
    trigger(t, "AFTER INSERT", "UPDATE t SET v = v + 1 WHERE id = NEW.id")
    t.execute("INSERT INTO t VALUES (1, 10)")
    t.execute("INSERT INTO t VALUES (2, 10), (3, 10)")
    times = t.execute(
        "SELECT row_id, string_agg(op::text, '' ORDER BY at) FROM forge.forge_event_log WHERE op <> 'S'"
        " GROUP BY row_id ORDER BY row_id"
    ).fetchall()
    assert times == [("1", "IU"), ("2", "IU"), ("3", "IU")]


def test_after_insert_trigger_deletes_its_row(t: Connection) -> None:
    trigger(t, "AFTER INSERT", "DELETE FROM t WHERE id = NEW.id AND NEW.v < 0")
    t.execute("INSERT INTO t VALUES (1, 1), (2, -1), (3, -1)")
    assert ops(t) == [("I", "1"), ("I", "2"), ("I", "3"), ("D", "2"), ("D", "3")]
    assert agrees(t)


def test_after_update_trigger_flips_the_value_back(t: Connection) -> None:
    trigger(t, "AFTER UPDATE", "UPDATE t SET v = OLD.v WHERE id = OLD.id AND pg_trigger_depth() = 1")
    t.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    t.execute("UPDATE t SET v = 9")
    history = [(row.row_id, row.old.get("v"), row.new["v"]) for row in logged(t)[2:]]
    assert history == [("1", 1, 9), ("2", 2, 9), ("1", 9, 1), ("2", 9, 2)]
    assert agrees(t)


def test_before_insert_trigger_deletes_the_same_key_first(t: Connection) -> None:
    trigger(t, "BEFORE INSERT", "DELETE FROM t WHERE id = NEW.id")
    t.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    t.execute("INSERT INTO t VALUES (1, 1), (2, 3)")  # the first with the very same image
    assert ops(t)[2:] == [("D", "1"), ("D", "2"), ("I", "1"), ("I", "2")]
    assert agrees(t)
    times = t.execute(
        "SELECT string_agg(op::text, '' ORDER BY at) FROM forge.forge_event_log WHERE row_id = '1'"
    ).fetchone()
    assert times == ("IDI",)


def test_before_and_after_triggers_at_once(t: Connection) -> None:
    trigger(t, "BEFORE INSERT", "DELETE FROM t WHERE id = NEW.id", name="a_before")
    trigger(t, "AFTER INSERT", "UPDATE t SET v = v + 1 WHERE id = NEW.id", name="a_after")
    t.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    t.execute("INSERT INTO t VALUES (1, 5), (2, 6)")
    assert [op for op, key in ops(t) if key == "1"] == ["I", "U", "D", "I", "U"]
    assert agrees(t)


def test_nested_two_levels(t: Connection) -> None:
    trigger(t, "AFTER INSERT OR UPDATE", "IF NEW.v < 3 THEN UPDATE t SET v = v + 1 WHERE id = NEW.id; END IF")
    t.execute("INSERT INTO t VALUES (1, 0), (2, 1)")
    values = {key: [row.new["v"] for row in logged(t) if row.row_id == key] for key in ("1", "2")}
    assert values == {"1": [0, 1, 2, 3], "2": [1, 2, 3]}
    assert agrees(t)


def test_a_trigger_of_one_row_writes_another_of_the_same_statement(t: Connection) -> None:
    trigger(t, "AFTER INSERT", "UPDATE t SET v = v * 10 WHERE id = NEW.id + 1")
    t.execute("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    assert [(op, key) for op, key in ops(t)] == [("I", "1"), ("I", "2"), ("I", "3"), ("U", "2"), ("U", "3")]
    assert agrees(t)


@pytest.mark.parametrize("timing", ["AFTER", "BEFORE"])
def test_on_conflict_with_such_triggers(t: Connection, timing: str) -> None:
    if timing == "AFTER":
        trigger(t, "AFTER INSERT OR UPDATE", "IF NEW.v < 9 THEN UPDATE t SET v = 9 WHERE id = NEW.id; END IF")
    else:
        trigger(t, "BEFORE INSERT", "DELETE FROM t WHERE id = NEW.id + 10")
    t.execute("INSERT INTO t VALUES (1, 1), (12, 12), (13, 13)")
    t.execute("INSERT INTO t VALUES (1, 2), (2, 2), (3, 3) ON CONFLICT (id) DO UPDATE SET v = excluded.v")
    assert agrees(t)


def test_merge_with_a_trigger(t: Connection) -> None:
    t.execute("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    trigger(t, "AFTER INSERT OR UPDATE", "IF NEW.v < 9 THEN UPDATE t SET v = 9 WHERE id = NEW.id; END IF")
    t.execute(
        "MERGE INTO t USING (VALUES (1, 5), (2, 0), (7, 7)) s (id, v) ON t.id = s.id"
        " WHEN MATCHED AND s.v = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v)"
    )
    assert agrees(t)
    assert [op for op, key in ops(t) if key == "7"] == ["I", "U"]


def test_a_trigger_that_changes_the_key(t: Connection) -> None:
    trigger(t, "AFTER INSERT", "UPDATE t SET id = -id WHERE id = NEW.id AND id > 0")
    t.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    t.execute("INSERT INTO t VALUES (3, 1)")
    assert sorted(ops(t)[:6]) == [("D", "1"), ("D", "2"), ("I", "-1"), ("I", "-2"), ("I", "1"), ("I", "2")]
    assert agrees(t)


def test_two_tables_that_write_each_other(t: Connection) -> None:
    t.execute("CREATE TABLE u (id int PRIMARY KEY, v int)")
    enable(t, "u")
    t.execute(
        "CREATE FUNCTION u_back() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN UPDATE t SET v = v + 1 WHERE id = NEW.id; RETURN NULL; END $$;"
        "CREATE TRIGGER u_back AFTER INSERT ON u FOR EACH ROW EXECUTE FUNCTION u_back()"
    )
    trigger(t, "AFTER INSERT", "INSERT INTO u VALUES (NEW.id, 0)")
    t.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    assert agrees(t)
    assert replay(t, "u") == stored(t, "u")


def test_a_deferred_trigger_at_commit(t: Connection) -> None:
    t.execute(
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN UPDATE t SET v = v + 1 WHERE id = NEW.id; RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION late()"
    )
    with t.transaction():
        t.execute("INSERT INTO t VALUES (1, 1)")
        t.execute("UPDATE t SET v = 5")
    assert [row.new["v"] for row in logged(t)] == [1, 5, 6]
    assert agrees(t)


def test_a_failed_trigger_leaves_the_next_statement_in_order(t: Connection) -> None:
    trigger(t, "AFTER INSERT", "IF NEW.v < 0 THEN RAISE 'no'; END IF; UPDATE t SET v = v + 1 WHERE id = NEW.id")
    with t.transaction():
        t.execute("INSERT INTO t VALUES (1, 1)")
        t.execute("SAVEPOINT s")
        with pytest.raises(psycopg.errors.RaiseException, match=r"^no\b"):
            t.execute("INSERT INTO t VALUES (2, 2), (3, -1)")
        t.execute("ROLLBACK TO s")
        t.execute("UPDATE t SET v = 7")
        t.execute("INSERT INTO t VALUES (2, 2)")
    assert ops(t) == [("I", "1"), ("U", "1"), ("U", "1"), ("I", "2"), ("U", "2")]
    assert agrees(t)


def test_a_trigger_in_a_function_that_catches_errors(t: Connection) -> None:
    trigger(
        t,
        "AFTER INSERT",
        "BEGIN UPDATE t SET v = 1 / 0 WHERE id = NEW.id; EXCEPTION WHEN OTHERS THEN"
        " UPDATE t SET v = -1 WHERE id = NEW.id; END",
    )
    t.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    assert ops(t) == [("I", "1"), ("I", "2"), ("U", "1"), ("U", "2")]
    assert agrees(t)


def test_partitions_and_a_trigger(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (10) TO (20)"
    )
    enable(connection, "t")
    trigger(connection, "AFTER INSERT", "UPDATE t SET v = v + 1 WHERE id = NEW.id")
    connection.execute("INSERT INTO t VALUES (1, 1), (11, 11)")
    connection.execute("INSERT INTO t_low VALUES (2, 2)")
    connection.execute("UPDATE t SET id = id + 11 WHERE id < 3")
    assert agrees(connection)


def test_random_triggers_and_statements_replay(t: Connection) -> None:
    trigger(
        t,
        "AFTER INSERT OR UPDATE OR DELETE",
        "IF pg_trigger_depth() < 4 THEN"
        " IF TG_OP = 'DELETE' THEN"
        " INSERT INTO t VALUES (OLD.id + 50, OLD.v) ON CONFLICT (id) DO UPDATE SET v = t.v + 1;"
        " ELSIF NEW.v % 3 = 0 THEN UPDATE t SET v = v + 1 WHERE id IN (NEW.id, NEW.id + 1);"
        " ELSIF NEW.v % 5 = 0 THEN DELETE FROM t WHERE id = NEW.id;"
        " END IF; END IF",
    )
    for seed in range(12):
        with t.transaction():
            t.execute(
                "INSERT INTO t SELECT (n * %(s)s) %% 17, n + %(s)s FROM generate_series(1, 5) n"
                " ON CONFLICT (id) DO NOTHING",
                {"s": seed + 1},
            )
            t.execute("UPDATE t SET v = v + %(s)s WHERE id %% 3 = %(s)s %% 3", {"s": seed})
            t.execute("DELETE FROM t WHERE id %% 7 = %(s)s %% 7", {"s": seed})
    assert agrees(t)
    assert len(logged(t)) > 100


def test_foreign_keys_that_update_and_delete_rows_of_one_table(connection: Connection) -> None:
    """PostgreSQL fires the update's statement trigger after the delete's, with rows of several rounds."""
    connection.execute(
        "CREATE TABLE parent (k int PRIMARY KEY);"
        "CREATE TABLE t (id int PRIMARY KEY, v int,"
        " owner int REFERENCES parent ON DELETE CASCADE, first int REFERENCES parent ON DELETE SET NULL)"
    )
    enable(connection, "t")
    connection.execute("INSERT INTO parent SELECT generate_series(1, 6)")
    connection.execute("INSERT INTO t SELECT n, 0, n % 6 + 1, (n * 5) % 6 + 1 FROM generate_series(1, 60) n")
    connection.execute("DELETE FROM parent WHERE k < 6")
    assert agrees(connection)
    assert {op for op, _ in ops(connection)} == {"I", "U", "D"}
    connection.execute("UPDATE t SET id = id + 1000")
    assert agrees(connection)


def test_what_orders_changes_follows_the_foreign_keys(connection: Connection) -> None:
    connection.execute("CREATE TABLE parent (k int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, v int, w int)")
    enable(connection, "t")
    enable(connection, "parent")

    def order(table: str) -> tuple[object, set[str]]:
        row = connection.execute("SELECT forge.log_order(%s::regclass)", (table,)).fetchone()
        names = connection.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND NOT tgisinternal", (table,)
        ).fetchall()
        return row and row[0], {name for (name,) in names if name.startswith("!")}

    assert (order("parent"), order("t")) == (("statements", set()), ("statements", set()))
    connection.execute("ALTER TABLE t ADD FOREIGN KEY (v) REFERENCES parent ON DELETE CASCADE")
    assert (order("parent"), order("t")) == (("marks", {"!forge_mark_parent"}), ("statements", set()))
    connection.execute("ALTER TABLE t ADD FOREIGN KEY (w) REFERENCES parent ON DELETE SET NULL")
    assert order("t") == ("rows", {"!forge_each_t"})
    trigger(connection, "AFTER INSERT", "NULL")
    assert order("t") == ("marks", {"!forge_mark_t"})
