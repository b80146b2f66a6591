"""DDL on tracked tables: each kind is seen as a schema change, and later writes are logged right."""

from collections.abc import Iterator

import pytest

from forge.changelog.install import install
from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from tests.changelog.log import enable, everything, logged

SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, v int, w text);"
    "CREATE TABLE p (id int, r int, PRIMARY KEY (id, r)) PARTITION BY LIST (r);"
    "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p2 (id int NOT NULL, r int NOT NULL);"
    "INSERT INTO p2 VALUES (2, 2);"
    "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'); INSERT INTO p VALUES (1, 1)"
)

# what is done · of which table · a write afterwards · its image
CASES: dict[str, tuple[str, str, str, str | None]] = {
    "another type": (
        "ALTER TABLE t ALTER v TYPE text USING 'n' || v",
        "t",
        "UPDATE t SET v = v || '!' WHERE id = 1",
        '{"id":1,"v":"n1!","w":"a"}',
    ),
    "same type, other values": (
        "ALTER TABLE t ALTER v TYPE int USING v * 10",
        "t",
        "UPDATE t SET w = 'c' WHERE id = 1",
        '{"id":1,"v":10,"w":"c"}',
    ),
    "added column": (
        "ALTER TABLE t ADD x int DEFAULT 7",
        "t",
        "UPDATE t SET w = 'c' WHERE id = 1",
        '{"id":1,"v":1,"w":"c","x":7}',
    ),
    "dropped column": ("ALTER TABLE t DROP w", "t", "UPDATE t SET v = 5 WHERE id = 1", '{"id":1,"v":5}'),
    "renamed column": (
        "ALTER TABLE t RENAME v TO n",
        "t",
        "UPDATE t SET n = 5 WHERE id = 1",
        '{"id":1,"n":5,"w":"a"}',
    ),
    "renamed table": (
        "ALTER TABLE t RENAME TO other",
        "other",
        "UPDATE other SET v = 5 WHERE id = 1",
        '{"id":1,"v":5,"w":"a"}',
    ),
    "moved to another schema": (
        "CREATE SCHEMA s; ALTER TABLE t SET SCHEMA s",
        "t",
        "UPDATE s.t SET v = 5 WHERE id = 1",
        '{"id":1,"v":5,"w":"a"}',
    ),
    "another key": (
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (w)",
        "t",
        "UPDATE t SET v = 5 WHERE id = 1",
        '{"id":1,"v":5,"w":"a"}',
    ),
    "no key": (
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "t",
        "UPDATE t SET v = 5 WHERE id = 1",
        '{"id":1,"v":5,"w":"a"}',
    ),
    "detached partition": ("ALTER TABLE p DETACH PARTITION p1", "p", "UPDATE p1 SET id = 5", None),
    "attached partition": (
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)",
        "p",
        "INSERT INTO p2 VALUES (9, 2)",
        '{"id":9,"r":2}',
    ),
    "dropped partition": ("DROP TABLE p1", "p", "SELECT 1", None),
}


@pytest.fixture
def tables(connection: Connection) -> Connection:
    connection.execute(SETUP)
    enable(connection, "t")
    enable(connection, "p")
    return connection


@pytest.fixture
def unwatched(server: PostgresServer, empty_database: str) -> Iterator[Connection]:
    """Installed by a role that may not make event triggers."""
    with connect(empty_database) as admin:
        name = admin.info.dbname
        admin.execute(f"CREATE ROLE plain_{name} LOGIN")
        admin.execute(f"GRANT CREATE ON DATABASE {name} TO plain_{name}; GRANT CREATE ON SCHEMA public TO plain_{name}")
        admin.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
        try:
            with connect(server.url(name, f"plain_{name}")) as connection:
                install(connection)
                connection.execute(SETUP)
                enable(connection, "t")
                enable(connection, "p")
                yield connection
        finally:
            admin.execute(f"DROP OWNED BY plain_{name}; DROP ROLE plain_{name}")


@pytest.mark.every_version
@pytest.mark.contract("X11")
@pytest.mark.parametrize("case", CASES)
def test_ddl_is_logged_in_its_own_transaction(tables: Connection, case: str) -> None:
    ddl, table, write, image = CASES[case]
    before = len(everything(tables))
    with tables.transaction(force_rollback=True):
        tables.execute(ddl)
    assert len(everything(tables)) == before
    tables.execute(ddl)
    schema_rows = everything(tables)[before:]
    assert {row.op for row in schema_rows} == {"S"}
    assert schema_rows[-1].table == table
    tables.execute(write)
    rows = everything(tables)[before + len(schema_rows) :]
    assert [(row.op, row.after) for row in rows] == ([] if image is None else [(rows[0].op, image)])
    assert tables.execute("SELECT forge.refresh_all()").fetchone() == (0,)


@pytest.mark.every_version
@pytest.mark.contract("X11")
def test_without_event_triggers_refresh_finds_the_same(unwatched: Connection) -> None:
    assert unwatched.execute("SELECT forge.refresh_all(), forge.sees_ddl()").fetchone() == (0, False)
    for case, (ddl, table, write, image) in CASES.items():
        before = len(everything(unwatched))
        with unwatched.transaction(force_rollback=True):
            unwatched.execute(ddl)
            assert unwatched.execute("SELECT forge.refresh_all()").fetchone() == (1,), case
            schema_rows = everything(unwatched)[before:]
            assert [(row.op, row.table) for row in schema_rows] == [("S", table)], case
            unwatched.execute(write)
            rows = everything(unwatched)[before + 1 :]
            assert [row.after for row in rows] == ([] if image is None else [image]), case
            assert unwatched.execute("SELECT forge.refresh_all()").fetchone() == (0,), case


@pytest.mark.every_version
@pytest.mark.contract("X11")
def test_without_event_triggers_writes_in_between_do_not_fail(unwatched: Connection) -> None:
    for case in ("another type", "added column", "dropped column", "renamed column", "renamed table"):
        ddl, table, _, _ = CASES[case]
        with unwatched.transaction(force_rollback=True):
            unwatched.execute(ddl)
            unwatched.execute(f"INSERT INTO {table} (id) VALUES (3)")
            unwatched.execute(f"INSERT INTO {table} (id) VALUES (4), (5)")
            unwatched.execute(f"UPDATE {table} SET id = id WHERE id = 3")
            unwatched.execute(f"UPDATE {table} SET id = id")
            unwatched.execute(f"UPDATE {table} SET id = id + 100")
            unwatched.execute(f"DELETE FROM {table}")
            assert [row.op for row in logged(unwatched)] == ["I"] * 3 + ["U"] * 6 + ["D"] * 5 + ["I"] * 5 + ["D"] * 5


@pytest.mark.contract("X11")
def test_dropped_event_triggers_are_noticed(tables: Connection) -> None:
    tables.execute("DROP EVENT TRIGGER forge_ddl; DROP EVENT TRIGGER forge_rewrite")
    tables.execute("ALTER TABLE t ALTER v TYPE int USING v * 10")
    assert tables.execute("SELECT forge.refresh_all()").fetchone() == (2,)
    assert [(row.op, row.table) for row in everything(tables)[2:]] == [("S", "t"), ("S", "p")]
    assert tables.execute("SELECT forge.refresh_all()").fetchone() == (0,)
    install(tables)
    tables.execute("ALTER TABLE t DROP v")
    assert everything(tables)[-1].op == "S"


@pytest.mark.every_version
@pytest.mark.contract("X11")
@pytest.mark.parametrize("drop", ["DROP TABLE t", "DROP SCHEMA s CASCADE", "DROP OWNED BY CURRENT_USER"])
def test_a_dropped_table(connection: Connection, drop: str) -> None:
    if "OWNED" in drop and connection.info.user == "postgres":
        role = f"dropping_{connection.info.dbname}"
        connection.execute(f"CREATE ROLE {role}; CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO {role}")
        drop = f"DROP OWNED BY {role}; DROP ROLE {role}"
    elif "SCHEMA" in drop:
        connection.execute("CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY)")
    else:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    enable(connection, "s.t" if "SCHEMA" in drop else "t")
    connection.execute(drop)
    assert [(row.op, row.context) for row in everything(connection)] == [("S", None), ("S", '{"dropped" : true}')]
    left = connection.execute("SELECT count(*) FROM pg_proc WHERE proname LIKE 'log\\_1\\_%'").fetchone()
    assert left == (0,)
    connection.execute("CREATE TABLE t (id text PRIMARY KEY)")
    enable(connection, "t")
    connection.execute("INSERT INTO t VALUES ('x')")
    assert logged(connection)[0].after == '{"id":"x"}'


@pytest.mark.contract("X11")
def test_ddl_that_changes_how_values_read(connection: Connection) -> None:
    connection.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (a int, b int); CREATE DOMAIN d AS int;"
        "CREATE TABLE t (id int PRIMARY KEY, m mood, p pair, ms mood[], gone d)"
    )
    enable(connection, "t")
    for n, ddl in enumerate(
        (
            "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
            "ALTER TYPE pair ADD ATTRIBUTE c int",
            "ALTER TABLE t DROP m",
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
            "DROP DOMAIN d CASCADE",
        )
    ):
        connection.execute(ddl)
        assert len(everything(connection)) == n + 2, ddl


@pytest.mark.contract("X11")
@pytest.mark.parametrize("column", ["moods", "moods[]", "feeling", "feelings"])
def test_a_renamed_label_is_seen_within_other_types(connection: Connection, column: str) -> None:
    connection.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN moods AS mood[];"
        "CREATE TYPE feeling AS (at date, mood mood); CREATE DOMAIN feelings AS feeling[];"
        f"CREATE TABLE t (id int PRIMARY KEY, v {column})".encode()
    )
    enable(connection, "t")
    connection.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    assert [row.op for row in everything(connection)] == ["S", "S"]


def test_new_empty_partitions_are_tracked_without_a_schema_change(tables: Connection) -> None:
    before = len(everything(tables))
    tables.execute("CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3)")
    tables.execute(
        "CREATE TABLE p4 (id int NOT NULL, r int NOT NULL); ALTER TABLE p ATTACH PARTITION p4 FOR VALUES IN (4)"
    )
    tables.execute("INSERT INTO p3 VALUES (9, 3); INSERT INTO p4 VALUES (9, 4)")
    assert [(row.op, row.row_id) for row in everything(tables)[before:]] == [("I", '["9", "3"]'), ("I", '["9", "4"]')]
    tables.execute("DROP TABLE p3; CREATE TABLE p5 PARTITION OF p FOR VALUES IN (5)")
    assert [row.op for row in everything(tables)[before + 2 :]] == ["S"]


def test_temporary_tables_cost_no_refresh(tables: Connection) -> None:
    tables.execute("ALTER EVENT TRIGGER forge_ddl DISABLE; ALTER TABLE t DROP w; ALTER EVENT TRIGGER forge_ddl ENABLE")
    before = len(everything(tables))
    tables.execute("CREATE TEMP TABLE scratch (id int)")
    assert len(everything(tables)) == before
    tables.execute("CREATE SCHEMA permanent")
    assert [row.op for row in everything(tables)[before:]] == ["S"]


def test_ddl_that_changes_no_rows_is_no_schema_change(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    enable(connection, "t")
    connection.execute(
        "CREATE TABLE another (id int); CREATE INDEX ON t (v); COMMENT ON TABLE t IS 'x'; ANALYZE t;"
        "ALTER TABLE t ALTER v SET DEFAULT 5; ALTER TABLE t ADD CHECK (v > 0); GRANT SELECT ON t TO PUBLIC"
    )
    assert len(everything(connection)) == 1


def test_a_trigger_made_and_dropped_later_changes_only_the_functions(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int);"
        "CREATE FUNCTION bump() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN UPDATE t SET v = v + 1 WHERE id = NEW.id; RETURN NULL; END $$"
    )
    enable(connection, "t")

    def marks() -> int:
        return len(connection.execute("SELECT 1 FROM pg_trigger WHERE tgname = '!forge_mark_t'").fetchall())

    assert marks() == 0
    connection.execute("CREATE TRIGGER bump AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION bump()")
    assert marks() == 1
    connection.execute("DROP TRIGGER bump ON t")
    assert marks() == 0
    assert [row.op for row in everything(connection)] == ["S"]


def test_a_log_row_names_the_version_that_it_was_written_under(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    enable(connection, "t")
    connection.execute("INSERT INTO t VALUES (1, 1)")
    connection.execute("ALTER TABLE t RENAME v TO n")
    connection.execute("ALTER TABLE t RENAME TO u")
    connection.execute("INSERT INTO u VALUES (2, 2)")
    found = connection.execute(
        "SELECT v.table_name, v.columns -> 1 ->> 'name' FROM forge.forge_event_log l JOIN forge.table_version v"
        " ON v.id = l.version WHERE l.op = 'I' ORDER BY l.id"
    ).fetchall()
    assert found == [("t", "v"), ("u", "n")]


def test_a_table_restored_with_its_triggers_is_still_tracked(tables: Connection) -> None:
    """Tables are known by the triggers that log them, and not by an oid, which a restore changes."""
    tables.execute("INSERT INTO t VALUES (3, 3, 'c')")
    with tables.transaction():
        tables.execute("SELECT set_config('forge.refreshing', 'yes', true)")
        definitions = tables.execute(
            "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 't'::regclass AND NOT tgisinternal"
        ).fetchall()
        tables.execute("CREATE TABLE copy (LIKE t INCLUDING ALL); DROP TABLE t; ALTER TABLE copy RENAME TO t")
        for (definition,) in definitions:
            tables.execute(definition)
    tables.execute("INSERT INTO t VALUES (4, 4, 'd')")
    assert tables.execute("SELECT forge.refresh_all()").fetchone() == (1,)
    tables.execute("INSERT INTO t VALUES (5, 5, 'e')")
    assert [(row.op, row.row_id) for row in everything(tables, "t")] == [
        ("S", None),
        ("I", "3"),
        ("I", "4"),
        ("S", None),
        ("I", "5"),
    ]


@pytest.mark.contract("X11")
def test_event_triggers_that_fire_for_replicas_only_see_nothing_so_maintenance_does(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    enable(connection, "t")
    for name in ("forge_ddl", "forge_rewrite"):
        connection.execute(f"ALTER EVENT TRIGGER {name} ENABLE REPLICA")
    assert connection.execute("SELECT forge.sees_ddl()").fetchone() == (False,)
    connection.execute("SELECT forge.refresh_all()")
    before = len(everything(connection))
    connection.execute("ALTER TABLE t ALTER v TYPE int USING v + 100")
    connection.execute("SELECT forge.refresh_all()")
    assert [row.op for row in everything(connection)[before:]] == ["S"]


def test_ddl_on_one_table_does_not_look_at_the_others(database: str, connection: Connection) -> None:
    """Another session may be in the midst of changing those."""
    connection.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    enable(connection, "a")
    enable(connection, "b")
    connection.execute("UPDATE forge.table_version SET fingerprint = '' WHERE table_name = 'b'")
    with connect(database) as other:
        other.execute("BEGIN; LOCK TABLE b IN ACCESS EXCLUSIVE MODE")
        connection.execute("SET statement_timeout = '5s'")
        connection.execute("ALTER TABLE a ADD v int")
        connection.execute("CREATE TABLE c (id int REFERENCES a)")
        other.execute("ROLLBACK")
    connection.execute("INSERT INTO a VALUES (1, 2)")
    assert logged(connection)[-1].new == {"id": 1, "v": 2}


@pytest.mark.contract("X11", "X22")
def test_ddl_in_the_replica_role_is_seen(tables: Connection) -> None:
    """A rewrite that changes rows leaves the definition as it was: only the event trigger can tell."""
    tables.execute("SET session_replication_role = replica")
    tables.execute("ALTER TABLE t ALTER v TYPE int USING v + 1")
    tables.execute("ALTER TABLE t RENAME w TO x")
    tables.execute("RESET session_replication_role")
    tables.execute("INSERT INTO t VALUES (9, 9, 'z')")
    assert [(row.op, row.new.get("x")) for row in everything(tables, "t")][1:] == [("S", None), ("S", None), ("I", "z")]
