"""Looking up a tracked table costs the same however many tables are tracked."""

import pytest

from forge.postgres.connection import Connection, connect

CATALOG = ("pg_attribute", "pg_class", "pg_constraint", "pg_depend", "pg_proc", "pg_trigger", "pg_type")
READ = (
    "SELECT n, pg_stat_get_xact_tuples_returned(n::regclass) + pg_stat_get_xact_tuples_fetched(n::regclass)"
    " FROM unnest(%s::text[]) n"
)


@pytest.mark.every_version
def test_enabling_a_table_reads_as_much_whatever_else_is_tracked(database: str, connection: Connection) -> None:
    few = rows_read(database, connection, range(10))
    many = rows_read(database, connection, range(10, 60))
    assert {name: many[name] - few[name] for name in CATALOG if many[name] > few[name] + 25} == {}


def rows_read(database: str, connection: Connection, tables: range) -> dict[str, int]:
    """Enable these tables; return the number of rows of each catalog that the last of them took."""
    for number in tables:
        connection.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, a text, b jsonb)".encode())
        if number != tables[-1]:
            connection.execute("SELECT public.forge_enable_reactivity(%s)", (f"t{number}",))
    with connect(database) as fresh, fresh.transaction():  # its counters begin at 0
        fresh.execute("SELECT public.forge_enable_reactivity(%s)", (f"t{tables[-1]}",))
        return dict(fresh.execute(READ, (list(CATALOG),)).fetchall())


@pytest.mark.every_version
def test_looking_a_table_up_by_its_relation_agrees_with_the_view(connection: Connection) -> None:
    for statement in (
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE TABLE untracked (id int PRIMARY KEY)",
    ):
        connection.execute(statement)
    for name in ("plain", "parted", "parent"):
        connection.execute("SELECT public.forge_enable_reactivity(%s)", (name,))
    connection.execute("ALTER TABLE plain RENAME TO renamed")
    rows = connection.execute(
        "SELECT c.relname, forge.tracked_id(c.oid) IS NOT NULL,"
        " forge.tracked_id(c.oid) IS NOT DISTINCT FROM"
        " (SELECT r.id FROM forge.tracked_relation r WHERE r.table_oid = c.oid)"
        " FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') ORDER BY 1"
    ).fetchall()
    assert rows == [
        ("child", False, True),
        ("parent", True, True),
        ("parted", True, True),
        ("parted_low", False, True),
        ("renamed", True, True),
        ("untracked", False, True),
    ]


def test_a_number_that_begins_with_another_does_not_share_its_functions(connection: Connection) -> None:
    for number in range(12):
        connection.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)".encode())
        connection.execute("SELECT public.forge_enable_reactivity(%s)", (f"t{number}",))
    rows = connection.execute(
        "SELECT t.id, bool_and(p.proname ~ format('^log_%s_[a-z]+$', t.id)), count(*)"
        " FROM forge.tracked_table t, forge.functions_of(t.id) p GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert rows == [(number, True, 8) for number in range(1, 13)]
