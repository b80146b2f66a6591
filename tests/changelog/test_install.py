"""Installing the log: once or twice, all or nothing, upgraded in place, refused where it cannot live."""

import psycopg
import pytest

from forge.changelog.install import Migration, install, installed_version, migrations, require_installed
from forge.embedded import PostgresServer
from forge.errors import NotInstalled, SchemaTooNew, ServerError
from forge.postgres.connection import Connection, connect
from forge.testing import temporary_postgres
from tests.changelog.log import enable, logged, ops

NEWER = Migration(9000, "newer", "CREATE TABLE forge.newer (id int)")


def made(connection: Connection) -> list[str]:
    """What Forge made in the database, without data."""
    rows = connection.execute(
        "SELECT concat_ws(' ', c.relkind, c.oid, c.oid::regclass) FROM pg_class c"
        " WHERE relnamespace = to_regnamespace('forge') OR relname LIKE 'forge%' UNION ALL"
        " SELECT concat_ws(' ', 'f', p.oid, p.oid::regprocedure, md5(prosrc)) FROM pg_proc p"
        " WHERE pronamespace = to_regnamespace('forge') OR proname LIKE 'forge%' ORDER BY 1"
    )
    return [text for (text,) in rows]


@pytest.mark.every_version
def test_installing_twice_changes_nothing(empty_database: str) -> None:
    with connect(empty_database) as connection:
        assert installed_version(connection) == 0
        assert [step.version for step in install(connection)] == [step.version for step in migrations()]
        first = made(connection)
        assert install(connection) == []
        assert made(connection) == first
        assert installed_version(connection) == migrations()[-1].version
        require_installed(connection)
        identities = connection.execute("SELECT count(*) FROM forge.log_identity").fetchone()
        assert identities == (1,)


def test_a_failing_migration_leaves_nothing(empty_database: str) -> None:
    steps = [*migrations(), Migration(9000, "broken", "CREATE TABLE forge.half (id int); SELECT 1 / 0")]
    with connect(empty_database) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            install(connection, steps)
        assert made(connection) == []
        triggers = connection.execute("SELECT count(*) FROM pg_event_trigger WHERE evtname LIKE 'forge%'").fetchone()
        assert triggers == (0,)


def test_a_failing_upgrade_leaves_the_old_version_working(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    enable(connection, "t")
    before = made(connection)
    with pytest.raises(psycopg.errors.DivisionByZero):
        install(connection, [*migrations(), Migration(9000, "broken", "SELECT 1 / 0")])
    assert made(connection) == before
    connection.execute("INSERT INTO t VALUES (1)")
    assert ops(connection) == [("I", "1")]


def test_an_upgrade_in_place_keeps_log_and_tracking(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, secret text)")
    enable(connection, "t", exclude=["secret"])
    connection.execute("INSERT INTO t VALUES (1, 'x')")
    connection.execute(
        "CREATE OR REPLACE FUNCTION forge.log_1_insert() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )
    applied = install(connection, [*migrations(), NEWER])
    assert [step.name for step in applied] == ["newer"]
    assert installed_version(connection) == 9000
    connection.execute("INSERT INTO t VALUES (2, 'y')")
    assert [row.after for row in logged(connection)] == ['{"id":1}', '{"id":2}']
    versions = connection.execute("SELECT count(*) FROM forge.table_version").fetchone()
    assert versions == (1,)


def test_an_older_program_refuses_a_newer_schema(connection: Connection) -> None:
    install(connection, [*migrations(), NEWER])
    before = made(connection)
    with pytest.raises(SchemaTooNew, match="version 9000") as caught:
        install(connection)
    assert caught.value.fix == "upgrade forge-changes on this machine"
    with pytest.raises(SchemaTooNew):
        require_installed(connection)
    assert made(connection) == before


def test_an_older_schema_is_not_enough(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge.changelog.install.migrations", lambda: [*migrations(), NEWER])
    with pytest.raises(NotInstalled, match="this program needs 9000") as caught:
        require_installed(connection)
    assert caught.value.fix == "forge init"


def test_not_installed(empty_database: str) -> None:
    with connect(empty_database) as connection, pytest.raises(NotInstalled) as caught:
        require_installed(connection)
    assert caught.value.fix == "forge init"


@pytest.mark.parametrize(
    "half", ["CREATE SCHEMA forge", "CREATE SCHEMA forge CREATE TABLE schema_version (version int)"]
)
def test_half_of_a_schema_is_refused(empty_database: str, half: str) -> None:
    with connect(empty_database) as connection:
        connection.execute(half)
        for check in (install, require_installed):
            with pytest.raises(NotInstalled, match="not as Forge made it") as caught:
                check(connection)
            assert "DROP SCHEMA forge CASCADE" in caught.value.fix
        connection.execute("DROP SCHEMA forge CASCADE")
        install(connection)


@pytest.mark.every_version
def test_a_role_that_is_no_superuser_installs_without_event_triggers(
    server: PostgresServer, empty_database: str
) -> None:
    with connect(empty_database) as admin:
        name = admin.info.dbname
        admin.execute(f"CREATE ROLE plain_{name} LOGIN; GRANT CREATE ON DATABASE {name} TO plain_{name}")
        admin.execute(f"GRANT CREATE ON SCHEMA public TO plain_{name}")
        try:
            with connect(server.url(name, f"plain_{name}")) as plain:
                install(plain)
                require_installed(plain)
                plain.execute("CREATE TABLE t (id int PRIMARY KEY)")
                enable(plain, "t")
                plain.execute("INSERT INTO t VALUES (1)")
                assert ops(plain) == [("I", "1")]
                assert plain.execute("SELECT count(*) FROM pg_event_trigger").fetchone() == (0,)
        finally:
            admin.execute(f"DROP OWNED BY plain_{name}; DROP ROLE plain_{name}")


def test_what_a_superuser_enables_can_be_kept_up_by_the_role_that_installed(
    server: PostgresServer, empty_database: str
) -> None:
    with connect(empty_database) as admin:
        name = admin.info.dbname
        admin.execute(f"CREATE ROLE plain_{name} LOGIN; GRANT CREATE ON DATABASE {name} TO plain_{name}")
        admin.execute(f"GRANT CREATE ON SCHEMA public TO plain_{name}")
        try:
            with connect(server.url(name, f"plain_{name}")) as plain:
                install(plain)
                admin.execute("CREATE TABLE t (id int PRIMARY KEY, f float8)")
                enable(admin, "t")
                admin.execute("ALTER TABLE t RENAME f TO g")
                assert plain.execute("SELECT forge.refresh_all()").fetchone() == (1,)
                admin.execute("INSERT INTO t VALUES (1, 0.5)")
                assert logged(plain)[-1].after == '{"id":1,"g":0.5}'
                install(admin)
        finally:
            admin.execute(f"DROP OWNED BY plain_{name} CASCADE; DROP ROLE plain_{name}")


def test_a_role_that_may_create_nothing_is_told(server: PostgresServer, empty_database: str) -> None:
    with connect(empty_database) as admin:
        name = admin.info.dbname
        admin.execute(f"CREATE ROLE nobody_{name} LOGIN")
        try:
            with (
                connect(server.url(name, f"nobody_{name}")) as nobody,
                pytest.raises(ServerError, match="permission denied"),
            ):
                install(nobody)
            assert made(admin) == []
        finally:
            admin.execute(f"DROP ROLE nobody_{name}")


def test_a_standby_is_refused() -> None:
    with temporary_postgres() as server:
        server.stop()
        (server.cluster / "standby.signal").touch()
        server.start()
        with connect(server.url()) as connection, pytest.raises(ServerError, match="standby") as caught:
            install(connection)
        assert caught.value.fix == "connect to the primary"


def test_everything_starts_closed(connection: Connection) -> None:
    role = f"curious_{connection.info.dbname}"
    connection.execute(f"CREATE ROLE {role}")
    try:
        open_relations = connection.execute(
            "SELECT c.oid::regclass::text FROM pg_class c"
            " WHERE (c.relnamespace = 'forge'::regnamespace OR c.relname = 'forge_events')"
            " AND c.relkind IN ('r', 'p', 'v')"
            " AND has_table_privilege(%(r)s, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')",
            {"r": role},
        ).fetchall()
        usable = connection.execute("SELECT has_schema_privilege(%s, 'forge', 'USAGE')", (role,)).fetchone()
        functions = connection.execute(
            "SELECT p.proname FROM pg_proc p WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'forge%%'"
            " AND has_function_privilege(%s, p.oid, 'EXECUTE') ORDER BY 1",
            (role,),
        ).fetchall()
        assert open_relations == []
        assert usable == (False,)
        assert functions == [("forge_context",), ("forge_notify",), ("forge_payload",)]
    finally:
        connection.execute(f"DROP ROLE {role}")
