"""Every type's values reach the log exactly, and do not depend on the writer's session."""

import json
import math
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from forge.change import JSON_NULL, UNAVAILABLE
from forge.postgres.connection import Connection
from forge.values import Column, Images
from tests.changelog.log import enable, logged

pytestmark = pytest.mark.every_version

HOSTILE = (
    "SET extra_float_digits = -15; SET bytea_output = 'escape'; SET DateStyle = 'German'; SET lc_monetary = 'C';"
    " SET IntervalStyle = 'sql_standard'; SET TimeZone = 'Asia/Kolkata'; SET search_path = public, pg_catalog"
)

TYPES = (
    "CREATE DOMAIN price AS numeric(8,3) CHECK (value >= 0); CREATE DOMAIN deep_price AS price;"
    " CREATE DOMAIN tags AS text[]; CREATE TYPE mood AS ENUM ('sad', 'so so', 'h\"appy');"
    " CREATE TYPE point3 AS (x float8, at timestamptz, label text); CREATE TYPE floats AS RANGE (subtype = float8)"
)

VALUES: list[tuple[str, str, str | None, Any]] = [
    ("bool", "true", "true", True),
    ("int8", "9223372036854775807", "9223372036854775807", 9223372036854775807),
    ("int8", "-9223372036854775808", "-9223372036854775808", -9223372036854775808),
    ("numeric", "123456789012345678901234567890.10", "123456789012345678901234567890.10", None),
    ("numeric", "1.000", "1.000", Decimal("1.000")),
    ("numeric", "'NaN'", '"NaN"', None),
    ("numeric", "'-Infinity'", '"-Infinity"', Decimal("-Infinity")),
    ("float8", "0.1::float8 + 0.2::float8", "0.30000000000000004", 0.30000000000000004),
    ("float8", "1.7976931348623157e308", "1.7976931348623157e+308", 1.7976931348623157e308),
    ("float8", "5e-324", "5e-324", 5e-324),
    ("float8", "'-0'", '"-0"', -0.0),
    ("float8", "'Infinity'", '"Infinity"', math.inf),
    ("float4", "0.1", "0.1", 0.1),
    ("float4", "3.4028235e38", "3.4028235e+38", 3.4028235e38),
    ("text", r"E'tab\t\"quote\" \\ ünï \U0001F600'", '"tab\\t\\"quote\\" \\\\ ünï 😀"', None),
    ("char(5)", "'ab'", '"ab   "', "ab   "),
    ('"char"', "'x'", '"x"', "x"),
    ("varchar(3)", "'abc'", '"abc"', "abc"),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"', None),
    ("bytea", r"'\x00deadbeef5c'", r'"\\x00deadbeef5c"', b"\x00\xde\xad\xbe\xef\\"),
    ("json", """'{"a":1, "a" : 2,"b":  1.10}'""", None, '{"a":1, "a" : 2,"b":  1.10}'),
    ("json", "'null'", '"null"', "null"),
    (
        "jsonb",
        """'{"b": 1.10, "a": [1, null]}'""",
        '{"a": [1, null], "b": 1.10}',
        {"a": [1, None], "b": Decimal("1.10")},
    ),
    ("jsonb", "'null'", '{"$json" : null}', JSON_NULL),
    ("jsonb", """'{"$json": 1}'""", '{"$json" : {"$json": 1}}', {"$json": 1}),
    ("date", "'infinity'", '"infinity"', "infinity"),
    ("date", "'2026-01-31'", '"2026-01-31"', "2026-01-31"),
    ("date", "'0044-03-15 BC'", '"0044-03-15 BC"', "0044-03-15 BC"),
    ("timestamp", "'2026-01-31 12:00:00.123456'", '"2026-01-31T12:00:00.123456"', None),
    ("timestamp", "'-infinity'", '"-infinity"', "-infinity"),
    ("timestamp", "'0044-03-15 12:00 BC'", '"0044-03-15T12:00:00 BC"', None),
    ("timestamptz", "'2026-01-31 12:00:00+02'", '"2026-01-31T10:00:00+00:00"', None),
    ("timestamptz", "'infinity'", '"infinity"', "infinity"),
    ("timestamptz", "'0044-03-15 12:00+00 BC'", '"0044-03-15T12:00:00+00:00 BC"', None),
    ("time", "'24:00'", '"24:00:00"', "24:00:00"),
    ("timetz", "'12:00+05:30'", '"12:00:00+05:30"', None),
    ("interval", "'1 year -2 days 03:04:05.6'", '"P1Y-2DT3H4M5.6S"', None),
    ("money", "'1234.5'", '"$1,234.50"', "$1,234.50"),
    ("inet", "'::1/64'", '"::1/64"', "::1/64"),
    ("bit(4)", "B'1010'", '"1010"', "1010"),
    ("tsvector", "'a:1 b'", "\"'a':1 'b'\"", "'a':1 'b'"),
    ("point", "'(0.1,2)'", '"(0.1,2)"', "(0.1,2)"),
    ("regclass", "'pg_class'", '"pg_class"', "pg_class"),
    ("int4range", "'[1,5]'", '"[1,6)"', "[1,6)"),
    ("tstzrange", "'[2026-01-31 12:00+02,)'", None, '["2026-01-31 10:00:00+00",)'),
    ("daterange", "'[2026-01-31,infinity)'", '"[2026-01-31,infinity)"', None),
    ("datemultirange", "'{[2026-01-31,2026-02-01]}'", '"{[2026-01-31,2026-02-02)}"', None),
    ("floats", "'[0.1,0.30000000000000004]'", '"[0.1,0.30000000000000004]"', None),
    ("price", "1.5", "1.500", Decimal("1.500")),
    ("deep_price", "1.5", "1.500", Decimal("1.500")),
    ("tags", "'{a,\"b c\",NULL}'", '["a","b c",null]', ["a", "b c", None]),
    ("mood", "'h\"appy'", '"h\\"appy"', 'h"appy'),
    ("mood[]", "'{sad,\"so so\"}'", r'"{sad,\"so so\"}"', '{sad,"so so"}'),
    (
        "point3",
        "ROW(0.1::float8 + 0.2, '2026-01-31 12:00+00', 'a \"b\"')",
        None,
        '(0.30000000000000004,"2026-01-31 12:00:00+00","a ""b""")',
    ),
    ("point3", "ROW(NULL, NULL, NULL)", '"(,,)"', "(,,)"),
    ("point3[]", "ARRAY[ROW(1, NULL, 'x')::point3]", None, '{"(1,,x)"}'),
    ("int4[]", "'{{1,2},{3,NULL}}'", "[[1,2],[3,null]]", [[1, 2], [3, None]]),
    ("int4[]", "'{}'", "[]", []),
    ("int4[]", "'[0:1]={1,2}'", '"[0:1]={1,2}"', "[0:1]={1,2}"),
    ("int4[]", "'[1:1][2:3]={{1,2}}'", '"[1:1][2:3]={{1,2}}"', None),
    ("int8[]", "'{9223372036854775807}'", "[9223372036854775807]", [9223372036854775807]),
    ("numeric[]", "'{1.10,NaN}'", '[1.10,"NaN"]', None),
    ("float8[]", "ARRAY[0.1::float8 + 0.2::float8, '-Infinity']", '[0.30000000000000004,"-Infinity"]', None),
    ("bytea[]", r"""ARRAY['\x00ff'::bytea]""", r'["\\x00ff"]', [b"\x00\xff"]),
    ("timestamptz[]", "ARRAY['2026-01-31 12:00+02'::timestamptz]", '["2026-01-31T10:00:00+00:00"]', None),
    ("timestamptz[]", "'[0:0]={\"2026-01-31 12:00+02\"}'", None, '[0:0]={"2026-01-31 10:00:00+00"}'),
    ("date[]", "'[0:0]={2026-01-31}'", '"[0:0]={2026-01-31}"', None),
    ("timestamp[]", "'[2:2]={2026-01-31}'", None, '[2:2]={"2026-01-31 00:00:00"}'),
    ("jsonb[]", """ARRAY['{"a":1}'::jsonb, 'null']""", None, '{"{\\"a\\": 1}","null"}'),
    ("text", "NULL", "null", None),
    ("jsonb", "NULL", "null", None),
    ("json", "NULL", "null", None),
    ("point3", "NULL", "null", None),
    ("int4[]", "NULL", "null", None),
    ("float8", "NULL", "null", None),
]


def images(connection: Connection, table: str) -> Images:
    """What decodes the newest version of a table."""
    row = connection.execute(
        "SELECT columns, key_columns FROM forge.table_version WHERE table_name = %s ORDER BY id DESC LIMIT 1", (table,)
    ).fetchone()
    assert row is not None
    return Images([Column(c["name"], c["type"], c["kind"]) for c in row[0]], row[1])


def one_column_texts(text: str) -> dict[str, str]:
    """The raw JSON text of each member of an object of columns c0, c1 … that come in this order."""
    found = {}
    decoder = json.JSONDecoder()
    position = text.index("{") + 1
    while text[position] != "}":
        name, position = decoder.raw_decode(text, position)
        start = position + 1
        _, position = decoder.raw_decode(text, start)
        found[name] = text[start:position]
        if text[position] == ",":
            position += 1
    return found


@pytest.fixture
def every_type(connection: Connection) -> Connection:
    connection.execute(TYPES)
    columns = ", ".join(f"c{n} {kind}" for n, (kind, *_) in enumerate(VALUES))
    connection.execute(f"CREATE TABLE every_type (id int PRIMARY KEY, {columns})")
    enable(connection, "every_type")
    return connection


def write(connection: Connection) -> None:
    """Insert, update many rows, update one, and delete: every path of the capture."""
    values = ", ".join(value for _, value, *_ in VALUES)
    nulls = ", ".join(f"c{n} = NULL" for n in range(len(VALUES)))
    connection.execute(f"INSERT INTO every_type VALUES (1, {values})")
    connection.execute(f"INSERT INTO every_type VALUES (2, {values}), (3, {values})")
    connection.execute(f"UPDATE every_type SET {nulls} WHERE id > 1")
    connection.execute(f"UPDATE every_type SET {nulls} WHERE id = 1")
    connection.execute("DELETE FROM every_type")


def test_values_are_exact_and_decode(every_type: Connection) -> None:
    write(every_type)
    first = logged(every_type)[0]
    assert first.after is not None
    texts = one_column_texts(first.after)
    decoded = images(every_type, "every_type").row(first.after)
    for n, (kind, source, text, value) in enumerate(VALUES):
        if text is not None:
            assert texts[f"c{n}"] == text, (kind, source)
        if value is not None:
            found = decoded[f"c{n}"]
            assert (found, type(found)) == (value, type(value)), (kind, source)
            if value == 0 and isinstance(value, float):
                assert math.copysign(1, found) == math.copysign(1, value)


def test_every_path_logs_the_same_image(every_type: Connection) -> None:
    write(every_type)
    rows = logged(every_type)
    decode = images(every_type, "every_type")
    shape = str({**decode.row(rows[0].after or ""), "id": 0})
    for row in rows[1:3]:
        assert str({**decode.row(row.after or ""), "id": 0}) == shape
    for row in rows[3:6]:
        assert row.op == "U"
        whole = {**decode.row(row.after or ""), **decode.partial(row.before or "")}
        assert str({**whole, "id": 0}) == shape


def test_nothing_depends_on_the_writers_session(every_type: Connection) -> None:
    write(every_type)
    usual = [(row.op, row.row_id, row.before, row.after) for row in logged(every_type)]
    every_type.execute(HOSTILE)
    write(every_type)
    assert [(row.op, row.row_id, row.before, row.after) for row in logged(every_type)] == usual * 2


@pytest.mark.parametrize(
    ("kind", "value", "row_id"),
    [
        ("timestamptz", "'2026-01-31 12:00+02'", "2026-01-31T10:00:00+00:00"),
        ("date", "'2026-01-31'", "2026-01-31"),
        ("float8", "0.1::float8 + 0.2::float8", "0.30000000000000004"),
        ("bytea", r"'\x00ff'", r"\x00ff"),
        ("numeric", "1.50", "1.50"),
        ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("text", "'a \"b\"'", 'a "b"'),
        ("bool", "true", "true"),
        ("int4[]", "'{1,2}'", "[1,2]"),
    ],
)
def test_keys_do_not_depend_on_the_writers_session(connection: Connection, kind: str, value: str, row_id: str) -> None:
    connection.execute(f"CREATE TABLE k (id {kind} PRIMARY KEY, v int)")
    enable(connection, "k")
    connection.execute(HOSTILE)
    connection.execute(f"INSERT INTO k VALUES ({value})")
    connection.execute("UPDATE k SET v = 1")
    connection.execute("DELETE FROM k")
    assert [(row.op, row.row_id) for row in logged(connection)] == [("I", row_id), ("U", row_id), ("D", row_id)]


def test_changes_that_equality_does_not_see(connection: Connection) -> None:
    connection.execute("CREATE TABLE c (id int PRIMARY KEY, n numeric, f float8, i interval, j json)")
    enable(connection, "c")
    connection.execute("INSERT INTO c SELECT n, 1.0, 0, '1 mon', '{}' FROM generate_series(1, 2) n")
    connection.execute("UPDATE c SET n = 1.00")
    connection.execute("UPDATE c SET f = '-0'")
    connection.execute("UPDATE c SET i = '30 days'")
    connection.execute("UPDATE c SET j = '{ }'")
    changes = [json.loads(row.before or "") for row in logged(connection)[2:]]
    assert changes == [
        *[{"n": 1.0}] * 2,
        *[{"f": "0"}] * 2,
        *[{"i": "P1M"}] * 2,
        *[{"j": "{}"}] * 2,
    ]


@pytest.fixture
def nocase(connection: Connection) -> Connection:
    """Has a collation in which a equals A."""
    try:
        connection.execute(
            "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without ICU")
    return connection


def test_nondeterministic_collation(nocase: Connection) -> None:
    nocase.execute("CREATE TABLE c (id int PRIMARY KEY, name text COLLATE nocase)")
    enable(nocase, "c")
    nocase.execute("INSERT INTO c VALUES (1, 'a'), (2, 'B')")
    nocase.execute("UPDATE c SET name = upper(name)")
    assert [row.changed for row in logged(nocase)[2:]] == [{"name": ("a", "A")}, {}]


def test_nondeterministic_key_that_changes_case_is_another_row(nocase: Connection) -> None:
    nocase.execute("CREATE TABLE c (name text COLLATE nocase PRIMARY KEY)")
    enable(nocase, "c")
    nocase.execute("INSERT INTO c VALUES ('a'), ('b')")
    nocase.execute("UPDATE c SET name = upper(name)")
    assert [(row.op, row.row_id) for row in logged(nocase)[2:]] == [("D", "a"), ("D", "b"), ("I", "A"), ("I", "B")]


def test_generated_and_identity_columns(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE g (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int,"
        " twice int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    enable(connection, "g")
    connection.execute("INSERT INTO g (a) VALUES (1), (2)")
    connection.execute("UPDATE g SET a = a + 1")
    assert [row.after for row in logged(connection)] == [
        '{"id":1,"a":1,"twice":2}',
        '{"id":2,"a":2,"twice":4}',
        '{"id":1,"a":2,"twice":4}',
        '{"id":2,"a":3,"twice":6}',
    ]
    assert [row.before for row in logged(connection)[2:]] == ['{"a":1,"twice":2}', '{"a":2,"twice":4}']


def test_virtual_columns_are_unavailable(connection: Connection) -> None:
    if connection.info.server_version < 180000:
        pytest.skip("virtual columns came with PostgreSQL 18")
    connection.execute("CREATE TABLE g (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) VIRTUAL)")
    enable(connection, "g")
    connection.execute("INSERT INTO g (id, a) VALUES (1, 1)")
    connection.execute("INSERT INTO g (id, a) VALUES (2, 2), (3, 3)")
    connection.execute("UPDATE g SET a = a + 1")
    assert [row.after for row in logged(connection)[:3]] == [f'{{"id":{n},"a":{n}}}' for n in (1, 2, 3)]
    assert [row.before for row in logged(connection)[3:]] == [f'{{"a":{n}}}' for n in (1, 2, 3)]
    decoded = images(connection, "g").row(logged(connection)[0].after or "")
    assert decoded["twice"] is UNAVAILABLE


def test_dropped_columns(connection: Connection) -> None:
    connection.execute("CREATE TABLE d (x int, id int PRIMARY KEY, gone text, f float8, y int)")
    connection.execute("ALTER TABLE d DROP x, DROP gone")
    enable(connection, "d")
    connection.execute("INSERT INTO d VALUES (1, 0.5, 1), (2, 0.5, 2)")
    connection.execute("UPDATE d SET y = y + 1")
    connection.execute("UPDATE d SET y = 9 WHERE id = 1")
    connection.execute("UPDATE d SET id = id + 10")
    rows = logged(connection)
    assert [row.after for row in rows[:2]] == ['{"id":1,"f":0.5,"y":1}', '{"id":2,"f":0.5,"y":2}']
    assert [row.changed for row in rows[2:5]] == [{"y": (1, 2)}, {"y": (2, 3)}, {"y": (2, 9)}]
    assert sorted(row.after for row in rows[7:] if row.after) == ['{"id":11,"f":0.5,"y":9}', '{"id":12,"f":0.5,"y":3}']


@pytest.mark.parametrize(("kind", "many"), [("int", 300), ("float8", 300)])
def test_more_columns_than_a_function_takes_arguments(connection: Connection, kind: str, many: int) -> None:
    connection.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {', '.join(f'c{n} {kind}' for n in range(many))})")
    enable(connection, "wide")
    connection.execute("INSERT INTO wide (id, c7, c200) VALUES (1, 7, 7), (2, 7, 7)")
    connection.execute("UPDATE wide SET c200 = 8, c7 = NULL")
    connection.execute("UPDATE wide SET id = id + 10")
    for row in logged(connection)[2:4]:
        assert row.changed == {"c7": (7, None), "c200": (7, 8)}
    assert [row.op for row in logged(connection)] == ["I", "I", "U", "U", "D", "D", "I", "I"]


def test_types_of_extensions(connection: Connection) -> None:
    """A base type that is not PostgreSQL's own comes as its text."""
    available = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'citext'").fetchone()
    if available is None:
        pytest.skip("this server has no citext")
    connection.execute("CREATE EXTENSION citext; CREATE TABLE e (id citext PRIMARY KEY, c citext, cs citext[])")
    enable(connection, "e")
    connection.execute("INSERT INTO e VALUES ('K', 'Abc', '{A,b}'), ('L', 'x', NULL)")
    connection.execute("UPDATE e SET c = 'ABC' WHERE id = 'k'")
    connection.execute("UPDATE e SET c = upper(c)")
    rows = logged(connection)
    assert (rows[0].row_id, rows[0].after) == ("K", '{"id":"K","c":"Abc","cs":"{A,b}"}')
    assert rows[2].changed == {"c": ("Abc", "ABC")}
    assert sorted(row.before or "" for row in rows[3:]) == ['{"c":"x"}', "{}"]
