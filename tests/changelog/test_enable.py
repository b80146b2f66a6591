"""Enabling and disabling: what is tracked, what is refused, what is never logged."""

from typing import Any

import psycopg
import pytest

from forge.changelog.install import install
from forge.embedded import PostgresServer
from forge.errors import ServerError, TrackingError
from forge.postgres.connection import Connection, connect, typed_errors
from tests.changelog.log import enable, everything, logged, ops

SECRET = "correct horse"


def triggers(connection: Connection, table: str) -> list[str]:
    rows = connection.execute(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND NOT tgisinternal ORDER BY 1", (table,)
    )
    return [name for (name,) in rows]


def whole_log(connection: Connection) -> str:
    """Everything that Forge stores, as text."""
    rows = connection.execute(
        "SELECT l::text FROM forge.forge_event_log l UNION ALL SELECT v::text FROM forge.table_version v"
        " UNION ALL SELECT e::text FROM forge_events e"
    )
    return "\n".join(text for (text,) in rows)


@pytest.fixture
def users(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text, password text, card text, pin int)")
    return connection


@pytest.mark.contract("R7")
def test_enable_and_disable_are_idempotent(users: Connection) -> None:
    enable(users, "users")
    names = ["forge_clear_users", "forge_delete_users", "forge_empty_users", "forge_notify_users", "forge_update_users"]
    assert triggers(users, "users") == names
    enable(users, "users")
    enable(users, "public.users")
    assert triggers(users, "users") == names
    assert len(everything(users)) == 1
    assert users.execute("SELECT forge_disable_reactivity('users')").fetchone() == (True,)
    assert users.execute("SELECT forge_disable_reactivity('users')").fetchone() == (False,)
    users.execute("INSERT INTO users VALUES (1)")
    assert triggers(users, "users") == []
    assert [(row.op, row.context) for row in everything(users)] == [("S", None), ("S", '{"disabled" : true}')]
    left = users.execute("SELECT count(*) FROM pg_proc WHERE proname LIKE 'log\\_1\\_%'").fetchone()
    assert left == (0,)


def test_enable_again_after_disable(users: Connection) -> None:
    enable(users, "users")
    users.execute("SELECT forge_disable_reactivity('users')")
    enable(users, "users")
    users.execute("INSERT INTO users VALUES (1)")
    assert ops(users) == [("I", "1")]
    assert users.execute("SELECT count(*) FROM forge.tracked_table").fetchone() == (1,)


def test_a_write_in_the_enabling_transaction_is_logged(users: Connection) -> None:
    with users.transaction():
        enable(users, "users")
        users.execute("INSERT INTO users VALUES (1)")
    assert ops(users) == [("I", "1")]


def test_enable_restores_a_disabled_trigger(users: Connection) -> None:
    enable(users, "users")
    users.execute("ALTER TABLE users DISABLE TRIGGER forge_notify_users")
    enable(users, "users")
    users.execute("INSERT INTO users VALUES (1)")
    assert ops(users) == [("I", "1")]


@pytest.mark.every_version
@pytest.mark.parametrize("options", [{"exclude": ["password", "pin"]}, {"mask": ["password", "pin"]}])
def test_hidden_values_never_reach_the_log(users: Connection, options: dict[str, list[str]]) -> None:
    enable(users, "users", **options, replica=True)
    for role in ("origin", "replica"):
        users.execute(f"SET session_replication_role = {role}")
        users.execute("INSERT INTO users VALUES (1, 'ann', %s, 'x', 424242)", (SECRET,))
        users.execute("INSERT INTO users VALUES (2, 'bob', %(s)s), (3, 'eve', %(s)s)", {"s": SECRET})
        users.execute("UPDATE users SET name = upper(name), password = password || '!' WHERE id = 1")
        users.execute("UPDATE users SET password = password || '?'")
        users.execute("UPDATE users SET id = id + 10")
        users.execute("DELETE FROM users")
    assert SECRET not in whole_log(users)
    assert "424242" not in whole_log(users)


def test_update_of_only_excluded_columns_is_logged_by_name(users: Connection) -> None:
    enable(users, "users", exclude=["password", "card"])
    users.execute("INSERT INTO users VALUES (1, 'ann', 'a', 'b', 1), (2, 'bob', 'c', 'd', 2)")
    users.execute("UPDATE users SET password = 'x' WHERE id = 1")
    users.execute("UPDATE users SET password = 'y', card = card")
    users.execute("UPDATE users SET name = 'zoe'")
    rows = logged(users)[2:]
    assert [(row.op, row.changed, row.hidden) for row in rows] == [
        ("U", {}, ["password"]),
        ("U", {}, ["password"]),
        ("U", {}, ["password"]),
        ("U", {"name": ("bob", "zoe")}, None),
        ("U", {"name": ("ann", "zoe")}, None),
    ]
    assert rows[0].new == {"id": 1, "name": "ann", "pin": 1}


def test_masked_values_show_only_whether_they_are_null(users: Connection) -> None:
    enable(users, "users", mask=["password", "pin"])
    users.execute("INSERT INTO users VALUES (1, 'ann', 'a', NULL, 5), (2, 'bob', NULL, NULL, NULL)")
    users.execute("UPDATE users SET password = 'b', name = 'c'")
    first, second, third, fourth = logged(users)
    assert first.after == '{"id":1,"name":"ann","password":"***","card":null,"pin":"***"}'
    assert second.after == '{"id":2,"name":"bob","password":null,"card":null,"pin":null}'
    assert (third.before, third.hidden) == ('{"name":"ann","password":"***"}', ["password"])
    assert (fourth.before, fourth.hidden) == ('{"name":"bob","password":null}', ["password"])


@pytest.mark.contract("X11")
def test_a_renamed_column_stays_hidden(users: Connection) -> None:
    enable(users, "users", exclude=["password"], mask=["card"])
    users.execute("ALTER TABLE users RENAME password TO passphrase")
    users.execute("ALTER TABLE users RENAME card TO payment")
    users.execute("INSERT INTO users VALUES (1, 'ann', %(s)s, %(s)s)", {"s": SECRET})
    assert SECRET not in whole_log(users)
    assert logged(users)[-1].after == '{"id":1,"name":"ann","payment":"***","pin":null}'


def test_a_dropped_column_that_comes_back_stays_hidden(users: Connection) -> None:
    enable(users, "users", exclude=["password"])
    users.execute("ALTER TABLE users DROP password")
    users.execute("ALTER TABLE users ADD password text")
    users.execute("INSERT INTO users (id, password) VALUES (1, %s)", (SECRET,))
    assert SECRET not in whole_log(users)


def test_enable_with_other_options(users: Connection) -> None:
    enable(users, "users", exclude=["password"])
    users.execute("INSERT INTO users VALUES (1, 'ann', 'p', 'c')")
    enable(users, "users", mask=["card"], on_failure="invalidate")
    users.execute("INSERT INTO users VALUES (2, 'bob', 'p', 'c')")
    assert [list(row.new) for row in logged(users)] == [
        ["id", "name", "card", "pin"],
        ["id", "name", "password", "card", "pin"],
    ]
    assert logged(users)[1].new["card"] == "***"
    assert [row.op for row in everything(users)] == ["S", "I", "S", "I"]
    setup = users.execute("SELECT excluded, masked, replica, on_failure FROM forge.tracked_table").fetchall()
    assert setup == [([], ["card"], False, "invalidate")]


def test_a_name_may_be_given_in_any_form(connection: Connection) -> None:
    connection.execute('CREATE SCHEMA sales; CREATE TABLE sales."Odd.Name" (id int PRIMARY KEY)')
    connection.execute('CREATE TABLE "sales.t" (id int PRIMARY KEY); CREATE TABLE sales.t (id int PRIMARY KEY)')
    enable(connection, 'sales."Odd.Name"')
    enable(connection, "sales.t")
    found = connection.execute("SELECT schema_name, table_name FROM forge.tracked_table ORDER BY id").fetchall()
    assert found == [("sales", "Odd.Name"), ("public", "sales.t")]


@pytest.mark.contract("R7")
def test_names_of_50_characters_and_more(connection: Connection) -> None:
    longest = "t" * 50
    connection.execute(f"CREATE TABLE {longest} (id int PRIMARY KEY); CREATE TABLE {longest}x (id int PRIMARY KEY)")
    connection.execute(f'CREATE TABLE "{"ü" * 26}" (id int PRIMARY KEY)')
    enable(connection, longest)
    assert f"forge_notify_{longest}" in triggers(connection, longest)
    with pytest.raises(TrackingError, match="has a name of 51 characters; 50 is the most") as caught, typed_errors():
        enable(connection, longest + "x")
    assert caught.value.fix.startswith("ALTER TABLE")
    with pytest.raises(TrackingError, match="has a name of 52 bytes"), typed_errors():
        enable(connection, "ü" * 26)


@pytest.mark.contract("R7")
def test_a_tracked_table_may_be_renamed_to_a_long_name(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    enable(connection, "t")
    connection.execute(f"ALTER TABLE t RENAME TO {'x' * 63}")
    connection.execute(f"INSERT INTO {'x' * 63} VALUES (1)")
    connection.execute("SELECT forge.rewrite_all()")
    connection.execute(f"INSERT INTO {'x' * 63} VALUES (2)")
    assert ops(connection) == [("I", "1"), ("I", "2")]


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("nothing", {}, "there is no table nothing", "check the spelling"),
    ("no.such.thing.here", {}, "there is no table no.such.thing.here", "check the spelling"),
    ("'; DROP TABLE plain", {}, "there is no table", "check the spelling"),
    ("a_view", {}, "is a view", "track the tables it reads"),
    ("a_matview", {}, "is a view", "track the tables it reads"),
    ("a_temp", {}, "is a temporary table", "permanent"),
    ("an_unlogged", {}, "is unlogged", "SET LOGGED"),
    ("a_foreign", {}, "is a foreign table", "where it is stored"),
    ("a_part", {}, "is a partition", "track the whole table: public.whole"),
    ("a_child", {}, "inherits from another table", "track public.plain"),
    ("a_sequence", {}, "is not a table", "name a table"),
    ("pg_catalog.pg_class", {}, "is a system table", "of your own"),
    ("forge.instant", {}, "is a system table", "of your own"),
    ("plain", {"exclude": ["nope"]}, "has no column nope", "check exclude and mask"),
    ("plain", {"mask": ["nope"]}, "has no column nope", "check exclude and mask"),
    ("plain", {"exclude": ["id"]}, "needs its key columns", "do not exclude or mask id"),
    ("plain", {"mask": ["id"]}, "needs its key columns", "do not exclude or mask id"),
    ("plain", {"on_failure": "ignore"}, "on_failure cannot be ignore", "use fail or invalidate"),
]


@pytest.mark.contract("R7")
@pytest.mark.every_version
def test_what_cannot_be_tracked_is_refused_with_a_fix(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE plain (id int PRIMARY KEY, v int); CREATE VIEW a_view AS TABLE plain;"
        "CREATE MATERIALIZED VIEW a_matview AS TABLE plain; CREATE TEMP TABLE a_temp (id int);"
        "CREATE UNLOGGED TABLE an_unlogged (id int);"
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
        "CREATE FOREIGN TABLE a_foreign (id int) SERVER s; CREATE TABLE whole (id int) PARTITION BY RANGE (id);"
        "CREATE TABLE a_part PARTITION OF whole FOR VALUES FROM (0) TO (1); CREATE SEQUENCE a_sequence;"
        "CREATE TABLE a_child () INHERITS (plain)"
    )
    for table, options, message, fix in REFUSED:
        with pytest.raises(TrackingError) as caught, typed_errors():
            enable(connection, table, **options)
        assert message in str(caught.value)
        assert fix in caught.value.fix
        assert "\n" not in str(caught.value)
    assert connection.execute("SELECT count(*) FROM forge.tracked_table").fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM pg_proc WHERE proname LIKE 'log\\_%\\_insert'").fetchone() == (0,)
    assert everything(connection) == []


def test_a_refused_change_of_options_leaves_the_old_ones(users: Connection) -> None:
    enable(users, "users", exclude=["password"])
    with pytest.raises(TrackingError), typed_errors():
        enable(users, "users", exclude=["nope"])
    users.execute("INSERT INTO users VALUES (1, 'ann', %s)", (SECRET,))
    assert SECRET not in whole_log(users)
    assert len(logged(users)) == 1


def test_disable_of_an_unknown_table(connection: Connection) -> None:
    with pytest.raises(TrackingError, match="there is no table nothing"), typed_errors():
        connection.execute("SELECT forge_disable_reactivity('nothing')")


def test_a_table_of_another_owner_is_refused(server: PostgresServer, empty_database: str) -> None:
    with connect(empty_database) as admin:
        name = admin.info.dbname
        admin.execute(f"CREATE ROLE owner_{name} LOGIN; CREATE ROLE other_{name} LOGIN")
        admin.execute(f"GRANT CREATE ON DATABASE {name} TO owner_{name}; GRANT CREATE ON SCHEMA public TO owner_{name}")
        admin.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
        admin.execute(f"CREATE TABLE theirs (id int PRIMARY KEY); ALTER TABLE theirs OWNER TO other_{name}")
        try:
            with connect(server.url(name, f"owner_{name}")) as owner:
                install(owner)
                with (
                    pytest.raises(TrackingError, match=f"public.theirs belongs to other_{name}") as caught,
                    typed_errors(),
                ):
                    enable(owner, "theirs")
                assert caught.value.fix == f"enable it as other_{name} or a superuser"
            with (
                connect(server.url(name, f"other_{name}")) as other,
                pytest.raises(ServerError, match="permission denied"),
                typed_errors(),
            ):
                enable(other, "theirs")
        finally:
            admin.execute(f"DROP OWNED BY owner_{name}, other_{name}; DROP ROLE owner_{name}, other_{name}")


def test_a_child_of_a_tracked_table_and_a_parent_of_one(connection: Connection) -> None:
    connection.execute("CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY)")
    enable(connection, "c")
    connection.execute("ALTER TABLE c INHERIT p")
    with pytest.raises(TrackingError, match="has a partition or child that is tracked by itself"), typed_errors():
        enable(connection, "p")


def test_a_writer_waits_for_enable_and_is_logged(users: Connection, database: str) -> None:
    """Nobody is half-way: a writer that began before keeps enable waiting."""
    with connect(database) as writer:
        writer.execute("BEGIN; INSERT INTO users VALUES (1)")
        users.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            enable(users, "users")
        writer.execute("COMMIT")
    assert everything(users) == []
    enable(users, "users")
    assert [row.op for row in everything(users)] == ["S"]
