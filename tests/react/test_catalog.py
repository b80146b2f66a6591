"""What a query reads, as PostgreSQL itself understands it."""

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from psycopg.errors import FeatureNotSupported

from forge.conditions.bound import bind
from forge.conditions.canonical import ColumnType
from forge.conditions.tree import TRUE, All, AnyOf, Compare, Condition, Constant, Parameter
from forge.errors import NotInstalled, QueryRefused
from forge.postgres.connection import AsyncConnection, Connection, connect_async
from forge.react.catalog import analyze, declared
from forge.react.readset import ReadAnalysis, TableRead
from tests.changelog.log import enable

A1 = Compare("a", "=", Constant(1))
SCHEMA = """
CREATE TABLE t (id integer PRIMARY KEY, a integer, b text, day date, secret text);
CREATE TABLE u (id integer PRIMARY KEY, t integer, x integer);
CREATE TABLE untracked (id integer PRIMARY KEY);
"""


@pytest.fixture
async def analyst(connection: Connection, database: str) -> AsyncIterator[AsyncConnection]:
    """A connection to a database with two tracked tables and one that is not."""
    connection.execute(SCHEMA)
    enable(connection, "t")
    enable(connection, "u")
    async with await connect_async(database) as analyst:
        yield analyst


async def reads(
    analyst: AsyncConnection, sql: str, parameters: dict[str, Any] | Sequence[object] = ()
) -> list[tuple[str, set[str] | None, Condition]]:
    """What is read, sorted: table, columns, condition."""
    analysis = await analyze(analyst, sql, parameters)
    assert {(read.schema, read.table) for read in analysis.reads} == analysis.types.keys()
    found = [
        (
            read.table if read.schema == "public" else f"{read.schema}.{read.table}",
            None if read.columns is None else set(read.columns),
            read.condition,
        )
        for read in analysis.reads
    ]
    return sorted(found, key=repr)


async def refusal(
    analyst: AsyncConnection, sql: str, parameters: dict[str, Any] | Sequence[object] = ()
) -> QueryRefused:
    with pytest.raises(QueryRefused) as refused:
        await analyze(analyst, sql, parameters)
    assert "\n" not in str(refused.value)
    assert refused.value.fix
    row = await (await analyst.execute("SELECT 1")).fetchone()
    assert row == (1,), "the connection can still be used"
    return refused.value


@pytest.mark.every_version
async def test_columns_and_conditions(analyst: AsyncConnection) -> None:
    assert await reads(analyst, "SELECT b FROM t WHERE a = %(p)s AND day > '2020-01-01'", {"p": 1}) == [
        ("t", {"a", "b", "day"}, All((Compare("a", "=", Parameter("p")), Compare("day", ">", Constant("2020-01-01")))))
    ]
    assert await reads(analyst, "SELECT count(*) FROM t") == [("t", set(), TRUE)]
    assert await reads(analyst, "SELECT * FROM u WHERE id = %s;\n", [1]) == [
        ("u", {"id", "t", "x"}, Compare("id", "=", Parameter("0")))
    ]
    assert await reads(analyst, "SELECT b FROM t WHERE id = ANY(%(ids)s)", {"ids": [1, 2]}) == [
        ("t", {"id", "b"}, AnyOf("id", Parameter("ids")))
    ]
    assert await reads(analyst, "SELECT b FROM t WHERE b LIKE 'x%%' AND a = 1 -- all", {}) == [("t", {"a", "b"}, A1)]


@pytest.mark.every_version
async def test_a_table_read_twice_has_two_reads(analyst: AsyncConnection) -> None:
    sql = "SELECT p.b FROM t p JOIN t q ON q.id = p.id WHERE p.a = 1 AND q.a = 2"
    columns = {"id", "a", "b"}
    assert await reads(analyst, sql) == [("t", columns, A1), ("t", columns, Compare("a", "=", Constant(2)))]


async def test_what_planning_would_prune_is_still_there(analyst: AsyncConnection) -> None:
    sql = "SELECT 1 FROM t WHERE 1 = 0 UNION ALL SELECT x FROM u LIMIT 0"
    assert await reads(analyst, sql) == [("t", set(), TRUE), ("u", {"x"}, TRUE)]


async def test_nothing_is_read(analyst: AsyncConnection) -> None:
    for sql in ("SELECT 1", "VALUES (1), (2)", "SELECT 1 AS a, 2 AS a", "SELECT", "SELECT 100 %% 3"):
        assert await reads(analyst, sql) == []


async def test_output_columns_may_share_a_name(analyst: AsyncConnection) -> None:
    assert await reads(analyst, "SELECT a, a, id AS a, (SELECT 1), (SELECT 2) FROM t") == [("t", {"a", "id"}, TRUE)]


async def test_nothing_runs_and_nothing_stays(analyst: AsyncConnection, connection: Connection) -> None:
    await analyze(analyst, "SELECT 1 / a FROM t WHERE random() < 0.5", ())
    assert connection.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'forge_query%'").fetchone() == (0,)


@pytest.mark.parametrize(
    "selected",
    [
        "t",
        "row_to_json(t)",
        "count(t.*)",
        "(t).a, row(t)",
        "t.ctid",
        "tableoid",
        "xmin",
        "t IS NULL",
        "t = ANY(ARRAY[t])",
    ],
)
async def test_whole_rows_and_system_columns_are_all_columns(analyst: AsyncConnection, selected: str) -> None:
    assert await reads(analyst, f"SELECT {selected} FROM t WHERE t.a = 1") == [("t", None, A1)]


@pytest.mark.every_version
async def test_views_are_followed(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute("CREATE VIEW v AS SELECT t.a, u.x FROM t JOIN u ON u.t = t.id WHERE u.x = 1")
    connection.execute("CREATE VIEW vv AS SELECT a FROM v WHERE a = 1")
    assert await reads(analyst, "SELECT * FROM vv WHERE a = 2") == [("t", None, TRUE), ("u", None, TRUE)]
    assert await reads(analyst, "SELECT t.b FROM t, vv WHERE t.a = 1") == [
        ("t", None, TRUE),
        ("t", {"a", "b"}, A1),
        ("u", None, TRUE),
    ]
    assert await reads(analyst, "SELECT b FROM t, vv WHERE b = 'x'") == [
        ("t", None, TRUE),
        ("t", {"b"}, Compare("b", "=", Constant("x"))),
        ("u", None, TRUE),
    ]


@pytest.mark.every_version
async def test_partitions_are_read_as_the_whole_table(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE p (id integer, a integer, gone integer) PARTITION BY LIST (a);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1) PARTITION BY LIST (id);"
        "CREATE TABLE p11 (a integer, id integer);"
        "ALTER TABLE p DROP COLUMN gone;"
        "ALTER TABLE p1 ATTACH PARTITION p11 FOR VALUES IN (1)"
    )
    enable(connection, "p")
    for name in ("p", "p1", "p11"):
        columns = {"id", "a"} if name == "p" else None  # a row may leave a part by any column
        assert await reads(analyst, f"SELECT id FROM {name} WHERE a = 1") == [("p", columns, A1)]


async def test_an_inheriting_child_is_read_as_its_parent(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute("CREATE TABLE base (id integer PRIMARY KEY, a integer)")
    connection.execute("CREATE TABLE child (extra integer) INHERITS (base)")
    enable(connection, "base")
    assert await reads(analyst, "SELECT id FROM base WHERE a = 1") == [("base", {"id", "a"}, A1)]
    assert await reads(analyst, "SELECT id FROM child WHERE a = 1") == [("base", None, A1)]
    assert "extra" in str(await refusal(analyst, "SELECT extra FROM child"))
    assert "extra" in str(await refusal(analyst, "SELECT child FROM child"))


async def test_a_child_of_an_untracked_parent(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute("CREATE TABLE kid () INHERITS (untracked)")
    assert (await refusal(analyst, "SELECT 1 FROM kid")).fix == "forge enable public.untracked"


@pytest.mark.every_version
async def test_policies_are_followed(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    connection.execute(
        "CREATE POLICY mine ON t USING (b = current_user AND EXISTS (SELECT FROM u WHERE u.t = t.id AND u.x = 1))"
    )
    assert await reads(analyst, "SELECT day FROM t WHERE a = 1") == [
        ("t", {"id", "a", "b", "day"}, A1),
        ("u", None, TRUE),
    ]
    connection.execute("CREATE FUNCTION allowed(t) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true'")
    connection.execute("CREATE POLICY more ON t USING (allowed(t))")
    assert ("t", None, A1) in await reads(analyst, "SELECT day FROM t WHERE a = 1")
    connection.execute("CREATE POLICY writers ON t FOR INSERT WITH CHECK (EXISTS (SELECT FROM untracked))")
    await reads(analyst, "SELECT day FROM t")
    connection.execute("CREATE POLICY others ON t USING (EXISTS (SELECT FROM untracked))")
    assert "untracked" in str(await refusal(analyst, "SELECT day FROM t"))


@pytest.mark.every_version
async def test_functions_with_a_parsed_body_are_followed(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute(
        "CREATE FUNCTION inner_one(p integer) RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM u WHERE x = p; END;"
        "CREATE FUNCTION outer_one(p integer) RETURNS bigint STABLE RETURN inner_one(p)"
    )
    assert await reads(analyst, "SELECT outer_one(a) FROM t WHERE a = 1") == [("t", {"a"}, A1), ("u", None, TRUE)]
    assert await reads(analyst, "SELECT * FROM outer_one(1)") == [("u", None, TRUE)]
    connection.execute("CREATE FUNCTION writes() RETURNS void BEGIN ATOMIC INSERT INTO u VALUES (1); END")
    assert "writes" in str(await refusal(analyst, "SELECT writes()"))


@pytest.mark.every_version
async def test_opaque_functions_are_refused(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute(
        "CREATE FUNCTION opaque() RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM u';"
        "CREATE FUNCTION pure(integer) RETURNS integer IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
        "CREATE FUNCTION step(bigint, integer) RETURNS bigint STABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END';"
        "CREATE AGGREGATE summed (integer) (sfunc = step, stype = bigint);"
        "CREATE VIEW hides AS SELECT opaque();"
        "CREATE FUNCTION differs(integer, integer) RETURNS boolean STABLE LANGUAGE sql AS 'SELECT true';"
        "CREATE OPERATOR <%> (leftarg = integer, rightarg = integer, function = differs)"
    )
    assert await reads(analyst, "SELECT pure(a) FROM t WHERE a = 1") == [("t", {"a"}, A1)]
    for sql in ("SELECT opaque()", "SELECT * FROM opaque()", "SELECT summed(a) FROM t", "SELECT 1 FROM hides"):
        refused = await refusal(analyst, sql)
        assert "may read anything" in str(refused)
        assert "reads=[" in refused.fix
    assert "differs" in str(await refusal(analyst, "SELECT 1 FROM t WHERE a <%%> 1"))


async def test_own_operators_take_all_conditions_away(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute(
        "CREATE FUNCTION near(integer, text) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';"
        "CREATE OPERATOR = (leftarg = integer, rightarg = text, function = near)"
    )
    assert await reads(analyst, "SELECT b FROM t WHERE a = 1 AND id = 'x'::text") == [("t", {"id", "a", "b"}, TRUE)]


@pytest.mark.every_version
async def test_what_is_not_tracked_is_refused(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute(
        "CREATE MATERIALIZED VIEW stored AS SELECT 1 AS one; CREATE SEQUENCE counter;"
        "CREATE VIEW sees AS TABLE pg_class;"
        'CREATE TABLE "Odd Name" (id integer)'
    )
    await analyst.execute("CREATE TEMP TABLE passing (id integer)")
    assert (await refusal(analyst, "SELECT 1 FROM untracked")).fix == "forge enable public.untracked"
    assert (await refusal(analyst, 'SELECT 1 FROM "Odd Name"')).fix == 'forge enable public."Odd Name"'
    assert (await refusal(analyst, "SELECT 1 FROM t WHERE EXISTS (SELECT FROM untracked)")).fix
    for sql in (
        "SELECT 1 FROM pg_class",
        "SELECT 1 FROM pg_stat_activity",
        "SELECT 1 FROM information_schema.tables",
        "SELECT 1 FROM sees",
        "SELECT 1 FROM forge.log_identity",
        "SELECT 1 FROM stored",
        "SELECT 1 FROM counter",
        "SELECT 1 FROM passing",
        "SELECT query_to_xml('SELECT 1', true, true, '')",
        "SELECT pg_relation_size('t')",
        "SELECT nextval('counter')",
        "SELECT currval('counter')",
    ):
        assert "reads=[" in (await refusal(analyst, sql)).fix, sql


@pytest.mark.every_version
async def test_what_is_no_query_is_refused(analyst: AsyncConnection) -> None:
    for sql in (
        "INSERT INTO u VALUES (1)",
        "WITH gone AS (DELETE FROM t RETURNING *) SELECT * FROM gone",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE t",
        "SELECT 1) q; DROP TABLE t; SELECT 1 FROM (SELECT 1",
        "SELECT * INTO other FROM t",
        "EXPLAIN SELECT 1",
        "SHOW search_path",
        "",
        "SELECT * FROM t FOR UPDATE",
        "SELECT * FROM (SELECT * FROM t FOR SHARE) q",
    ):
        await refusal(analyst, sql)
    assert "locks" in str(await refusal(analyst, "SELECT * FROM t FOR UPDATE"))


async def test_mistakes_are_told_in_one_line(analyst: AsyncConnection) -> None:
    assert 'column "missing" does not exist' in str(await refusal(analyst, "SELECT missing FROM t"))
    assert 'relation "nowhere" does not exist' in str(await refusal(analyst, "SELECT 1 FROM nowhere"))
    assert "syntax error" in str(await refusal(analyst, "SELECT FROM WHERE"))
    assert "p" in str(await refusal(analyst, "SELECT %(p)s", {}))
    await refusal(analyst, "SELECT %s", {"p": 1})
    await refusal(analyst, "SELECT %s", [object()])
    await refusal(analyst, "SELECT a FROM t WHERE a = %(p)s", {"p": "not a number"})


@pytest.mark.every_version
async def test_what_changes_by_itself_is_named(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute("CREATE VIEW fresh AS SELECT a FROM t WHERE day > current_date - 1")

    async def volatile(sql: str) -> tuple[str, ...]:
        return (await analyze(analyst, sql, ())).volatile

    assert await volatile("SELECT a FROM t WHERE day < now() AND a = 1") == ("now()",)
    assert await volatile("SELECT current_timestamp, localtime, random(), clock_timestamp()") == (
        "clock_timestamp()",
        "current_timestamp",
        "localtime",
        "random()",
    )
    assert await volatile("SELECT * FROM fresh") == ("current_date",)
    assert await volatile("SELECT a FROM t WHERE day = 'today'") == ("'today'",)
    assert await volatile("SELECT a FROM t WHERE b = 'today'") == ()
    assert await volatile("SELECT a FROM t TABLESAMPLE system (10)") == ("TABLESAMPLE",)
    assert await volatile("SELECT age(day) FROM t") == ("current_date",)
    assert await volatile("SELECT age(day, day) FROM t WHERE b = current_user AND b = current_setting('x.y')") == ()
    assert await reads(analyst, "SELECT b FROM t WHERE day < now() AND a = 1") == [("t", {"a", "b", "day"}, A1)]


@pytest.mark.every_version
async def test_names(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute(
        'CREATE SCHEMA "Other"; CREATE TABLE "Other"."Mixed Case" ("Key" integer PRIMARY KEY, key integer);'
        "CREATE SCHEMA app; CREATE TABLE app.t (id integer PRIMARY KEY, only_here integer)"
    )
    enable(connection, '"Other"."Mixed Case"')
    enable(connection, "app.t")
    assert await reads(analyst, 'SELECT key FROM "Other"."Mixed Case" WHERE "Key" = 1') == [
        ("Other.Mixed Case", {"Key", "key"}, Compare("Key", "=", Constant(1)))
    ]
    assert await reads(analyst, 'SELECT KEY FROM "Other"."Mixed Case" M WHERE m.KEY = 1') == [
        ("Other.Mixed Case", {"key"}, Compare("key", "=", Constant(1)))
    ]
    assert await reads(analyst, "SELECT 1 FROM app.t WHERE id = 1") == [
        ("app.t", {"id"}, Compare("id", "=", Constant(1)))
    ]
    assert await reads(analyst, "SELECT 1 FROM PUBLIC.T WHERE A = 1") == [("t", {"a"}, A1)]
    await analyst.execute("SET search_path = app, public")
    assert await reads(analyst, "SELECT 1 FROM t, u WHERE only_here = 1") == [
        ("app.t", {"only_here"}, Compare("only_here", "=", Constant(1))),
        ("u", set(), TRUE),
    ]
    row = await (await analyst.execute("SHOW search_path")).fetchone()
    assert row == ("app, public",)


async def test_a_renamed_table_has_its_new_name(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute("ALTER TABLE t RENAME TO renamed")
    assert await reads(analyst, "SELECT 1 FROM renamed WHERE a = 1") == [("renamed", {"a"}, A1)]


async def test_names_of_common_table_expressions_hide_tables(analyst: AsyncConnection) -> None:
    assert await reads(analyst, "WITH t AS (SELECT 1 AS a) SELECT * FROM t WHERE a = 1") == []
    assert await reads(analyst, "WITH t AS (SELECT a FROM t WHERE a = 1) SELECT * FROM t WHERE a = 2") == [
        ("t", {"a"}, A1)
    ]


async def test_text_that_only_postgresql_understands(analyst: AsyncConnection) -> None:
    assert await reads(analyst, "SELECT b FROM t WHERE a = 1_000 AND id = 1") == [("t", None, TRUE)]


@pytest.mark.every_version
async def test_types(analyst: AsyncConnection, connection: Connection) -> None:
    icu = True
    try:
        connection.execute("CREATE COLLATION loose (provider = icu, locale = 'und', deterministic = false)")
    except FeatureNotSupported:
        icu = False
        connection.execute('CREATE COLLATION loose FROM "C"')
    connection.execute(
        "CREATE DOMAIN small AS integer; CREATE DOMAIN smaller AS small CHECK (value < 10);"
        "CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE TYPE pair AS (a integer, b integer);"
        "CREATE TABLE typed (id bigint PRIMARY KEY, d smaller, m mood, p pair, c text COLLATE loose, v varchar(9),"
        " n numeric(9, 2), at timestamptz(3), f char(3), l integer[], hid text, mask text)"
    )
    enable(connection, "typed", exclude=["hid"], mask=["mask"])
    analysis = await analyze(analyst, "SELECT d FROM typed WHERE hid = 'x' AND p IS NULL", ())
    assert analysis.reads == (
        TableRead("public", "typed", frozenset({"d", "hid", "p"}), Compare("hid", "=", Constant("x"))),
    )
    assert analysis.types == {
        ("public", "typed"): {
            "id": ColumnType("bigint"),
            "d": ColumnType("integer"),
            "m": ColumnType("public.mood", enum=True),
            "p": ColumnType("public.pair"),
            "c": ColumnType("text", deterministic=not icu),
            "v": ColumnType("character varying"),
            "n": ColumnType("numeric"),
            "at": ColumnType("timestamp with time zone"),
            "f": ColumnType("character"),
            "l": ColumnType("integer[]"),
            "hid": ColumnType("text", hidden=True),
            "mask": ColumnType("text", hidden=True),
        }
    }


async def test_computed_columns_are_read_with_what_they_are_computed_from(
    analyst: AsyncConnection, connection: Connection
) -> None:
    connection.execute(
        "CREATE TABLE made (id integer PRIMARY KEY, a integer, b integer GENERATED ALWAYS AS (a + 1) VIRTUAL)"
    )
    enable(connection, "made")
    assert await reads(analyst, "SELECT id FROM made WHERE a = 1") == [("made", {"id", "a"}, A1)]
    assert await reads(analyst, "SELECT b FROM made WHERE a = 1") == [("made", None, A1)]


async def test_declared_reads(analyst: AsyncConnection, connection: Connection) -> None:
    connection.execute("CREATE VIEW v AS SELECT x FROM u")
    analysis = await declared(analyst, ["public.t", "v"])
    assert {(read.table, read.columns, read.condition) for read in analysis.reads} == {
        ("t", None, TRUE),
        ("u", None, TRUE),
    }
    assert await declared(analyst, []) == ReadAnalysis((), {})
    for name in ("untracked", "nowhere", "a.b.c.d", "", "pg_class"):
        with pytest.raises(QueryRefused):
            await declared(analyst, [name])


async def test_without_forge(empty_database: str) -> None:
    async with await connect_async(empty_database) as analyst:
        await analyst.execute("CREATE TABLE t (a integer)")
        with pytest.raises(NotInstalled):
            await analyze(analyst, "SELECT a FROM t", ())


# Removing a row that fails every condition of its table must leave the result as it is.

JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "NATURAL LEFT JOIN", ",", "CROSS JOIN")
LEAVES = (
    "{c} = 1",
    "{c} <> 0",
    "NOT {c} = 1",
    "{c} > %(p)s",
    "{c} IS NULL",
    "{c} IS NOT NULL",
    "{c} IN (0, 1)",
    "{c} NOT IN (0, NULL)",
    "{c} BETWEEN 0 AND 1",
    "{c} NOT BETWEEN 1 AND 2",
    "{c} IS DISTINCT FROM 1",
    "{c} IS NOT DISTINCT FROM %(n)s",
    "{c} = ANY(%(l)s)",
    "NOT {c} = ANY(%(e)s)",
    "coalesce({c}, 0) = 0",
    "{c} = {d}",
    "1 >= {c}",
    "{c} = 1 IS NULL",
    "({c} = 1) IS NOT TRUE",
    "false",
)
PARAMETERS = {"p": 0, "n": None, "l": [0, 1], "e": []}
TABLES = {"r": ("ra", "rb"), "s": ("sa", "sb"), "w": ("wa", "wb")}


def _predicate(dice: random.Random, columns: Sequence[str], depth: int = 2) -> str:
    if depth and dice.random() < 0.3:
        parts = [_predicate(dice, columns, depth - 1) for _ in range(2)]
        joined = f" {dice.choice(('AND', 'OR'))} ".join(parts)
        return dice.choice((f"({joined})", f"NOT ({joined})", joined))
    return dice.choice(LEAVES).format(c=dice.choice(columns), d=dice.choice(columns))


def _query(dice: random.Random) -> str:
    first, *rest = dice.sample(sorted(TABLES), dice.randint(1, 3))
    text, group, every = first, list(TABLES[first]), list(TABLES[first])
    for table in rest:
        join = dice.choice(JOINS)
        on = ""
        if join in ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"):
            on = f" ON {dice.choice(group)} = {dice.choice(TABLES[table])}"
            if join != "FULL JOIN" and dice.random() < 0.5:
                on += f" AND {_predicate(dice, [*group, *TABLES[table]])}"
        group = [*(() if join == "," else group), *TABLES[table]]
        every += TABLES[table]
        text += f"{join} {table}{on}" if join == "," else f" {join} {table}{on}"
    conjuncts = [_predicate(dice, every) for _ in range(dice.randint(0, 2))]
    inner = f"SELECT * FROM {text}{' WHERE ' * bool(conjuncts)}{' AND '.join(conjuncts)}"
    return dice.choice(SHAPES).format(q=inner)


SHAPES = (
    "{q}",
    "{q}",
    "SELECT count(*) FROM ({q}) q",
    "SELECT * FROM r o WHERE NOT EXISTS ({q})",
    "WITH q AS ({q}) SELECT * FROM q UNION ALL SELECT * FROM q",
)


def _fill(connection: Connection, dice: random.Random) -> None:
    for table in TABLES:
        connection.execute(f"DELETE FROM {table}".encode())
        for number in range(4):
            row = (number, *(dice.choice((None, 0, 1, 2)) for _ in range(2)))
            connection.execute(f"INSERT INTO {table} VALUES (%s, %s, %s)".encode(), row)


async def test_rows_that_fail_the_condition_do_not_matter(analyst: AsyncConnection, connection: Connection) -> None:
    for table, (one, other) in TABLES.items():
        create = f"CREATE TABLE {table} (id{table} integer PRIMARY KEY, {one} integer, {other} integer)"
        connection.execute(create.encode())
        enable(connection, table)
    dice = random.Random(7)
    removed = 0
    for number in range(150):
        if number % 20 == 0:
            _fill(connection, dice)
        sql = _query(dice)
        analysis = await analyze(analyst, sql, PARAMETERS)
        before = sorted(connection.execute(sql.encode(), PARAMETERS).fetchall(), key=repr)
        for table in {read.table for read in analysis.reads}:
            types = analysis.types["public", table]
            bound = [bind(read.condition, types, PARAMETERS) for read in analysis.reads if read.table == table]
            rows = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
            images = [dict(zip((f"id{table}", *TABLES[table]), row, strict=True)) for row in rows]
            failing = [image[f"id{table}"] for image in images if not any(each.may(image) for each in bound)]
            if failing:
                removed += len(failing)
                with connection.transaction(force_rollback=True):
                    connection.execute(f"DELETE FROM {table} WHERE id{table} = ANY(%s)".encode(), (failing,))
                    after = sorted(connection.execute(sql.encode(), PARAMETERS).fetchall(), key=repr)
                assert after == before, (sql, table, analysis.reads)
    assert removed > 100
