"""Writers and owners who want more than their rights, or want others not to see."""

import psycopg
import pytest

from forge import wire
from forge.changelog.install import install
from forge.changelog.reader import Reader
from forge.errors import ContextError, TrackingError
from forge.postgres.connection import Connection, connect, typed_errors
from tests.changelog.log import enable, everything, logged, ops

CASTS = [
    ("CREATE TYPE mood AS ENUM ('a', 'b')", "mood", "'a'", "mood", "json"),
    ("CREATE TYPE public.uuid AS ENUM ('a', 'b')", "public.uuid", "'a'", "public.uuid", "text"),
    ("CREATE TYPE mood AS ENUM ('a', 'b')", "mood[]", "'[0:0]={a}'", "mood[]", "text"),
    ("CREATE DOMAIN d AS int", "d[]", "'[0:0]={1}'", "d[]", "text"),
    ("CREATE TYPE r AS RANGE (subtype = int)", "r", "'[1,2)'", "r", "json"),
]


@pytest.mark.every_version
@pytest.mark.parametrize(("type_", "column", "value", "source", "target"), CASTS)
def test_no_cast_of_a_users_making_runs_with_forges_rights(
    connection: Connection, type_: str, column: str, value: str, source: str, target: str
) -> None:
    connection.execute(type_)
    connection.execute(f"CREATE TABLE t (id {column} PRIMARY KEY, v {column})")
    enable(connection, "t")
    connection.execute(
        f"CREATE FUNCTION pwn({source}) RETURNS {target} LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'ran as %', current_user; END $$;"
        f"CREATE CAST ({source} AS {target}) WITH FUNCTION pwn({source})"
    )
    connection.execute(f"INSERT INTO t VALUES ({value}, {value})")
    connection.execute("UPDATE t SET v = v")
    connection.execute("DELETE FROM t")
    assert [op for op, _ in ops(connection)] == ["I", "U", "D"]


@pytest.mark.parametrize("context", ["1e999", '"\\ud800"', "[" * 3000, "5", "[1]", '{"a":"\\u0000"}', '{"a": 1'])
def test_a_context_that_is_no_object_is_refused(connection: Connection, context: str) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    enable(connection, "t")
    connection.execute("SELECT set_config('forge.context', %s, false)", (context,))
    with pytest.raises(ContextError), typed_errors():
        connection.execute("INSERT INTO t VALUES (1)")
    assert logged(connection) == []


@pytest.mark.contract("T4")
async def test_no_context_stops_a_reader(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    enable(connection, "t")
    async with Reader.open(database) as reader:
        cursor = await reader.now()
        connection.execute("INSERT INTO t VALUES (1), (2), (3)")
        for row, context in (("1", "1e999"), ("2", '{"a": 1e5000}'), ("3", '{"a": 1}')):
            connection.execute("UPDATE forge.forge_event_log SET context = %s WHERE row_id = %s", (context, row))
        (batch,) = [batch async for batch in reader.read(cursor)]
    assert [change.context.more for change in batch.changes][::2] == [{"$raw": "1e999"}, {"a": 1}]
    assert [wire.decode(wire.encode(change)).key for change in batch.changes] == [{"id": n} for n in (1, 2, 3)]


def test_forged_order_is_not_believed(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int);"
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER other AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing()"
    )
    enable(connection, "t")
    connection.execute("INSERT INTO t VALUES (1, 1)")
    connection.execute("SET forge.mark_1_1 = '-1 1 1 0'")
    connection.execute("UPDATE t SET v = 2")
    assert ops(connection) == [("I", "1"), ("U", "1")]
    assert connection.execute("SELECT count(*) FROM forge.forge_event_log WHERE rank = 1").fetchone() == (0,)


def test_the_setting_of_backslashes_changes_no_other_table(connection: Connection) -> None:
    connection.execute("; ".join(f"CREATE TABLE t{n} (id int PRIMARY KEY)" for n in range(1, 13)))
    for n in range(1, 13):
        enable(connection, f"t{n}")
    connection.execute("SET standard_conforming_strings = off; ALTER TABLE t1 ADD COLUMN v int")
    for n in range(1, 13):
        connection.execute(f"INSERT INTO t{n} (id) VALUES (1)")
    assert len(logged(connection)) == 12


def test_a_trigger_of_the_same_name_is_named(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY);"
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER forge_update_t AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION nothing()"
    )
    with pytest.raises(TrackingError, match="forge_update_t"), typed_errors():
        enable(connection, "t")
    assert everything(connection) == []


def test_columns_that_a_restore_numbers_anew_stay_excluded(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, junk int, name text, secret text, other text)")
    connection.execute("ALTER TABLE t DROP COLUMN junk")
    enable(connection, "t", exclude=["secret"])
    # as a restore leaves it: the versions speak of another relation, the columns have other numbers
    connection.execute("UPDATE forge.table_version SET relation = 1, fingerprint = 'restored'")
    connection.execute(
        "UPDATE forge.table_version SET columns ="
        " (SELECT jsonb_agg(c || jsonb_build_object('attnum', (c ->> 'attnum')::int + 1))"
        " FROM jsonb_array_elements(columns) c)"
    )
    connection.execute("SELECT forge.refresh_all()")
    connection.execute("INSERT INTO t VALUES (1, 'ann', 'hidden', 'shown')")
    assert logged(connection)[-1].after == '{"id":1,"name":"ann","other":"shown"}'


def test_default_privileges_do_not_open_the_log(empty_database: str) -> None:
    with connect(empty_database) as admin:
        role = f"ro_{admin.info.dbname}"
        admin.execute(f"CREATE ROLE {role}; ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {role}")
        try:
            install(admin)
            admin.execute(f"SET ROLE {role}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                admin.execute("SELECT * FROM public.forge_events")
        finally:
            admin.execute("RESET ROLE")
            admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
