"""Who writes, and from what session: replica role, hostile search paths, plain roles, odd names, failures."""

import time
from collections.abc import Callable
from itertools import cycle

import psycopg
import pytest
from psycopg import sql

from forge.embedded import PostgresServer
from forge.errors import ContextError
from forge.postgres.connection import Connection, connect, typed_errors
from forge.testing import fresh_database
from tests.changelog.log import enable, everything, logged, ops, replay, stored

pytestmark = pytest.mark.every_version


def eventually(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def test_replica_role_is_not_captured_by_default(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    enable(connection, "t")
    connection.execute("SET session_replication_role = replica")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.execute("TRUNCATE t")
    assert logged(connection) == []
    connection.execute("RESET session_replication_role")
    connection.execute("INSERT INTO t VALUES (2)")
    assert [row.new for row in logged(connection)] == [{"id": 2}]


def test_replica_role_is_captured_where_asked_for(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v float8)")
    enable(connection, "t", replica=True)
    for role in ("replica", "origin"):
        connection.execute(f"SET session_replication_role = {role}")
        connection.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
        connection.execute("UPDATE t SET v = 0.5 WHERE id = 1")
        connection.execute("UPDATE t SET id = 3 WHERE id = 2")
        connection.execute("DELETE FROM t WHERE id = 1")
        assert replay(connection, "t") == ['{"id": 3, "v": 2}']
        connection.execute("TRUNCATE t")
    once = [("I", "1"), ("I", "2"), ("U", "1"), ("D", "2"), ("I", "3"), ("D", "1"), ("T", None)]
    assert ops(connection) == once * 2
    images = [(row.before, row.after) for row in logged(connection)]
    assert images[:7] == images[7:]


def test_replica_role_in_partitions(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)"
    )
    enable(connection, "t", replica=True)
    connection.execute("CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)")
    for role, shift in (("replica", 0), ("origin", 5)):
        connection.execute(f"SET session_replication_role = {role}")
        connection.execute("INSERT INTO t VALUES (1 + %(s)s, 1), (11 + %(s)s, 1)", {"s": shift})
        connection.execute("INSERT INTO t2 VALUES (12 + %s, 1)", (shift,))
    assert ops(connection) == [("I", str(n)) for n in (1, 11, 12, 6, 16, 17)]


def test_logical_replication_apply_is_captured(connection: Connection, server: PostgresServer) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v float8)")
    enable(connection, "t", replica=True)
    with fresh_database(server) as source_url, connect(source_url) as source:
        slot = f"slot_{source.info.dbname}"
        source.execute("CREATE TABLE t (id int PRIMARY KEY, v float8); CREATE PUBLICATION p FOR TABLE t")
        source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        connection.execute(
            sql.SQL(
                "CREATE SUBSCRIPTION s CONNECTION {} PUBLICATION p"
                " WITH (create_slot = false, copy_data = false, slot_name = {})"
            ).format(sql.Literal(source_url), sql.Literal(slot))
        )
        try:
            source.execute("INSERT INTO t VALUES (1, 0.5), (2, 2)")
            source.execute("UPDATE t SET v = 0.25 WHERE id = 1")
            source.execute("UPDATE t SET id = 3 WHERE id = 2")
            source.execute("DELETE FROM t WHERE id = 3")
            eventually(lambda: len(logged(connection)) >= 6)
            source.execute("TRUNCATE t")
            eventually(lambda: len(logged(connection)) >= 7)
        finally:
            connection.execute("ALTER SUBSCRIPTION s DISABLE")
            connection.execute("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
            connection.execute("DROP SUBSCRIPTION s")
    assert ops(connection) == [("I", "1"), ("I", "2"), ("U", "1"), ("D", "2"), ("I", "3"), ("D", "3"), ("T", None)]


HIJACK = """
CREATE SCHEMA evil;
CREATE TABLE evil.caught (what text);
GRANT USAGE ON SCHEMA evil TO PUBLIC; GRANT INSERT ON evil.caught TO PUBLIC;
CREATE FUNCTION evil.spring(what text) RETURNS void LANGUAGE sql AS 'INSERT INTO evil.caught VALUES (what)';
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
    $$ SELECT evil.spring('clock'); SELECT pg_catalog.now() $$;
CREATE FUNCTION evil.row_to_json(anyelement) RETURNS json LANGUAGE sql AS
    $$ SELECT evil.spring('row_to_json'); SELECT '{}'::json $$;
CREATE FUNCTION evil.to_json(anyelement) RETURNS json LANGUAGE sql AS
    $$ SELECT evil.spring('to_json'); SELECT '{}'::json $$;
CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE sql AS
    $$ SELECT evil.spring('current_setting'); SELECT ''::text $$;
CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE sql AS $$ SELECT evil.spring('pg_notify') $$;
CREATE FUNCTION evil.concat_text(text, text) RETURNS text LANGUAGE sql AS
    $$ SELECT evil.spring('||'); SELECT pg_catalog.textcat($1, $2) $$;
CREATE OPERATOR evil.|| (leftarg = text, rightarg = text, function = evil.concat_text);
CREATE FUNCTION evil.eq(integer, integer) RETURNS boolean LANGUAGE sql AS
    $$ SELECT evil.spring('='); SELECT true $$;
CREATE OPERATOR evil.= (leftarg = integer, rightarg = integer, function = evil.eq);
CREATE FUNCTION evil.eq_texts(text[], text[]) RETURNS boolean LANGUAGE sql AS
    $$ SELECT evil.spring('text[] ='); SELECT true $$;
CREATE OPERATOR evil.= (leftarg = text[], rightarg = text[], function = evil.eq_texts);
CREATE FUNCTION evil.format(text, regclass) RETURNS text LANGUAGE sql AS
    $$ SELECT evil.spring('format'); SELECT ''::text $$;
"""


def test_a_hostile_search_path_runs_nothing(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v float8, w text)")
    connection.execute(HIJACK)
    connection.execute("SET search_path = evil, public, pg_catalog")
    enable(connection, "t")
    enable(connection, "t", exclude=["w"])
    connection.execute("INSERT INTO t VALUES (1, 1, 'a')")
    connection.execute("INSERT INTO t VALUES (2, 2, 'b'), (3, 3, 'c')")
    connection.execute("UPDATE t SET v = 9")
    connection.execute("UPDATE t SET v = 8 WHERE id OPERATOR(pg_catalog.=) 1")
    connection.execute("DELETE FROM t")
    connection.execute("TRUNCATE t")
    connection.execute("SELECT forge_disable_reactivity('t')")
    assert connection.execute("SELECT * FROM evil.caught").fetchall() == []
    connection.execute("SET search_path = public")
    assert [op for op, _ in ops(connection)] == ["I"] * 3 + ["U"] * 4 + ["D"] * 3 + ["T"]


@pytest.mark.parametrize("options", [{}, {"replica": True}])
def test_writers_need_no_rights_on_forge(connection: Connection, options: dict[str, bool]) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (5, 5)")
    enable(connection, "t", **options)
    role = f"writer_{connection.info.dbname}"
    connection.execute(f"CREATE ROLE {role}; GRANT INSERT ON t TO {role}")
    try:
        connection.execute(f"SET ROLE {role}")
        connection.execute("INSERT INTO t VALUES (1, 1)")
        connection.execute("INSERT INTO t VALUES (2, 2), (3, 3)")
        for forbidden in (
            "SELECT * FROM forge_events",
            "SELECT * FROM forge.forge_event_log",
            "INSERT INTO forge.forge_event_log DEFAULT VALUES",
            "SELECT forge_enable_reactivity('t')",
            "SELECT forge_disable_reactivity('t')",
            "SELECT forge.refresh_all()",
            "SELECT nextval('forge.event_id')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden)
        connection.execute("RESET ROLE")
        assert ops(connection) == [("I", "1"), ("I", "2"), ("I", "3")]
    finally:
        connection.execute("RESET ROLE")
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


ODD_NAMES = [
    "Upper Case",
    'quo"te',
    "it's",
    "100%",
    "a:b#c",
    "select",
    "forge_o",
    "%s %1$s %I",
    "back\\slash $body$ $d$",
    "ünï",
]


def test_names_that_need_quoting(connection: Connection) -> None:
    for name, kind in zip(ODD_NAMES, cycle(["int", "float8"]), strict=False):
        table = sql.Identifier(name)
        column = sql.Identifier(f"{name} column")
        connection.execute(
            sql.SQL("CREATE TABLE {} ({} int, {} {}, PRIMARY KEY ({}))").format(
                table, sql.Identifier(name), column, sql.SQL(kind), sql.Identifier(name)
            )
        )
        enable(connection, name)
        connection.execute(sql.SQL("INSERT INTO {} VALUES (1, 1), (2, 2)").format(table))
        connection.execute(sql.SQL("UPDATE {} SET {} = 3").format(table, column))
        connection.execute(sql.SQL("UPDATE {} SET {} = 4 WHERE {} = 1").format(table, column, sql.Identifier(name)))
        connection.execute(sql.SQL("DELETE FROM {}").format(table))
        connection.execute(sql.SQL("TRUNCATE {}").format(table))
        rows = logged(connection, name)
        assert [row.op for row in rows] == ["I", "I", "U", "U", "U", "D", "D", "T"]
        assert rows[0].new == {name: 1, f"{name} column": 1}
        assert rows[2].changed == {f"{name} column": (1, 3)}
        triggers = connection.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname LIKE 'forge\\_notify\\_%%'",
            (table.as_string(),),
        ).fetchall()
        assert triggers == [(f"forge_notify_{name}",)]


@pytest.mark.parametrize("kind", ["int", "float8"])
def test_columns_named_like_what_the_functions_use(connection: Connection, kind: str) -> None:
    names = [
        *(
            "a",
            "b",
            "new",
            "old",
            "tg_op",
            "forge_o",
            "forge_n",
            "forge_r",
            "forge_o_",
            "forge_o_image",
            "forge_n_image",
        ),
        *("forge_one", "forge_old_rows", "forge_new_rows", "v_at", "v_rank", "v_row", "v_day", "v_rows", "v_context"),
        *("v_user", "op", "before", "after", "hidden", "rank", "row_id", "version", "day", "at", "transaction_id"),
        "session_user",
    ]
    connection.execute(
        sql.SQL("CREATE TABLE t ({}, PRIMARY KEY (forge_r, v_at, new))").format(
            sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name in names)
        )
    )
    enable(connection, "t", replica=True)
    values = ", ".join(["1"] * len(names))
    changes = sql.SQL(", ").join(
        sql.SQL("{} = 3").format(sql.Identifier(name)) for name in names if name not in ("forge_r", "v_at", "new")
    )
    for role in ("origin", "replica"):
        connection.execute(f"SET session_replication_role = {role}")
        connection.execute(f"INSERT INTO t VALUES ({values})")
        connection.execute("INSERT INTO t (forge_r, v_at, new) VALUES (30, 2, 2), (4, 2, 2)")
        connection.execute(sql.SQL("UPDATE t SET {} WHERE forge_r = 1").format(changes))
        connection.execute(sql.SQL("UPDATE t SET {}").format(changes))
        connection.execute("UPDATE t SET forge_r = forge_r + 100")
        assert replay(connection, "t") == stored(connection, "t")
        connection.execute("DELETE FROM t")
    rows = logged(connection)
    assert [row.op for row in rows[:16]] == ["I"] * 3 + ["U"] * 4 + ["D"] * 3 + ["I"] * 3 + ["D"] * 3
    assert [row.row_id for row in rows[4:7]] == ['["30", "2", "2"]', '["4", "2", "2"]', '["1", "1", "1"]']
    assert rows[0].new == dict.fromkeys(names, 1)


def test_two_tables_of_one_name(connection: Connection) -> None:
    connection.execute('CREATE SCHEMA "My Sales"; CREATE TABLE orders (id int PRIMARY KEY)')
    connection.execute('CREATE TABLE "My Sales".orders (id int PRIMARY KEY, v text)')
    enable(connection, "orders")
    enable(connection, '"My Sales".orders')
    connection.execute("INSERT INTO orders VALUES (1)")
    connection.execute("INSERT INTO \"My Sales\".orders VALUES (1, 'x')")
    assert [(row.schema, row.table, row.after) for row in logged(connection)] == [
        ("public", "orders", '{"id":1}'),
        ("My Sales", "orders", '{"id":1,"v":"x"}'),
    ]


BREAK = "ALTER TABLE forge.forge_event_log ADD CONSTRAINT broken CHECK (op NOT IN ('I', 'U', 'D', 'T'))"


def test_a_failure_fails_the_write_by_default(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    enable(connection, "t")
    connection.execute(BREAK)
    for write in ("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (1), (2)", "TRUNCATE t"):
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(write)
    assert stored(connection, "t") == []
    assert [row.op for row in everything(connection)] == ["S"]


def test_a_failure_invalidates_where_asked_for(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    enable(connection, "t", on_failure="invalidate")
    connection.execute("INSERT INTO t VALUES (1, 1)")
    connection.execute(BREAK + " NOT VALID")
    warnings: list[str] = []
    connection.add_notice_handler(lambda diagnostic: warnings.append(diagnostic.message_primary or ""))
    connection.execute("LISTEN forge_changes")
    connection.execute("SET forge.user_id = 'ada'")
    connection.execute("INSERT INTO t VALUES (2, 2), (3, 3)")
    connection.execute("UPDATE t SET v = 9")
    connection.execute("DELETE FROM t WHERE id = 1")
    connection.execute("TRUNCATE t")
    assert [row.op for row in everything(connection)] == ["S", "I", "X", "X", "X", "X"]
    assert '"sqlstate" : "23514"' in (everything(connection)[-1].context or "")
    who = connection.execute("SELECT DISTINCT user_id FROM forge_events WHERE operation = 'INVALIDATE'").fetchall()
    assert who == [("ada",)]
    assert len(warnings) == 4
    assert warnings[0].startswith("forge could not log a INSERT on t: ")
    assert len(list(connection.notifies(timeout=0))) == 4
    assert stored(connection, "t") == []


def test_a_malformed_context_is_a_failure_like_any_other(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    enable(connection, "t")
    enable(connection, "u", on_failure="invalidate")
    connection.execute("SET forge.context = '{oops'")
    with pytest.raises(ContextError, match="not a JSON object"), typed_errors():
        connection.execute("INSERT INTO t VALUES (1)")
    connection.execute("INSERT INTO u VALUES (1)")
    assert [(row.op, row.table) for row in everything(connection)] == [("S", "t"), ("S", "u"), ("X", "u")]


def test_after_a_failure_the_order_is_right_again(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int);"
        "CREATE FUNCTION bump() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN UPDATE t SET v = v + 1 WHERE id = NEW.id AND v > 0; RETURN NULL; END $$;"
        "CREATE TRIGGER bump AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION bump()"
    )
    enable(connection, "t", on_failure="invalidate")
    connection.execute(
        "ALTER TABLE forge.forge_event_log ADD CONSTRAINT broken CHECK (op <> 'I' OR row_id <> '1') NOT VALID"
    )
    with connection.transaction():
        connection.execute("INSERT INTO t VALUES (1, 0)")
        connection.execute("INSERT INTO t VALUES (2, 2)")
    assert [(row.op, row.row_id) for row in everything(connection)[1:]] == [("X", None), ("I", "2"), ("U", "2")]


def test_a_day_without_a_partition_goes_to_the_overflow(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    enable(connection, "t")
    connection.execute("INSERT INTO t VALUES (1, 1)")
    connection.execute(
        "CREATE OR REPLACE FUNCTION forge.log_day(at timestamptz) RETURNS date LANGUAGE sql IMMUTABLE PARALLEL SAFE"
        " RETURN 'infinity'::date"
    )
    connection.execute("UPDATE t SET v = 2")
    connection.execute("INSERT INTO t VALUES (2, 2), (3, 3)")
    found = connection.execute(
        "SELECT op::text, day = 'infinity', at > now() - interval '1 hour' FROM forge.forge_event_overflow ORDER BY id"
    ).fetchall()
    assert found == [("U", True, True), ("I", True, True), ("I", True, True)]
    assert replay(connection, "t") == stored(connection, "t")
