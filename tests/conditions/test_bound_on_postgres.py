"""PostgreSQL is the oracle: what it answers is always among what a bound condition says may be, and is all that it
says wherever the condition is one that is decided here.

The conditions run in a session of some TimeZone and DateStyle with parameters that psycopg binds; the images are
those of the log, made by row_to_json in its own session.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import sql

from forge.conditions.bound import bind, rejects_nulls
from forge.conditions.canonical import ColumnType
from forge.conditions.logic import FALSE, NULL, TRUE
from forge.conditions.tree import (
    All,
    AnyOf,
    Compare,
    Condition,
    Constant,
    Distinct,
    IsNull,
    Not,
    OneOf,
    Operand,
    Operator,
    Parameter,
)
from forge.conditions.tree import Any as Some
from forge.postgres.connection import Connection
from forge.values import Column, Images


class Kind(NamedTuple):
    """A column: how it is declared, values of its rows, and what it is compared with: operands that are decided, and
    others that need not be. `type` and `logged` are what Forge knows of it; `ordered`, that its order is decided."""

    declared: str
    values: list[str]
    decided: list[Any]
    other: list[Any]
    type: ColumnType
    logged: str = "plain"
    ordered: bool = True


STAMP, ZONED = ColumnType("timestamp without time zone"), ColumnType("timestamp with time zone")
BERLIN, PLUS_2 = ZoneInfo("Europe/Berlin"), timezone(timedelta(hours=2))
NUMBERS = [0, 1, -1, 7, 70000, 2**40, 2**70, Decimal("1.0"), Decimal("2.50"), Decimal("NaN"), Decimal("-Infinity")]
ODD = [0.5, 1.0, 2.0**60, float("nan"), True, "1e0", " 1", "one", "1_0"]
BIG = ["0", "1", "1099511627776", "9007199254740993", "1152921504606846976", "-9223372036854775808"]
EXACT = ["0", "1", "1.00", "2.5", "NaN", "Infinity", "-Infinity", "1180591620717411303424", "0.1", "1e-30"]
FLOATS = [0.1, 0.5, -0.0, float("nan"), float("inf"), 1e300, 5e-324]
NEAR_A_TENTH = Decimal("0.1000000000000000055511151231257827")
TEXTS = ["", "a", "a ", "A", "é", "e\u0301", "\U0001f600", "a\tb", "1", "'", "\\", "a  "]
ONE, LETTERS = UUID(int=1), "abcdef00-0000-0000-0000-000000000000"
DAY, MORNING = date(2026, 3, 29), datetime(2026, 3, 29, 2, 30)
TWICE = datetime(2026, 10, 25, 2, 30, 0, 500000, tzinfo=BERLIN)
FAR = ["0044-03-15 00:00+00 BC", "10000-01-01 00:00+00"]
# fmt: off
KINDS: dict[str, Kind] = {
    "small": Kind("smallint", ["0", "1", "-1", "7", "32767"], [*NUMBERS, "7", "-1"], ODD, ColumnType("smallint")),
    "whole": Kind("integer", ["0", "1", "7", "70000"], [*NUMBERS, "7", "+70000"], ODD, ColumnType("integer")),
    "big": Kind("bigint", BIG, [*NUMBERS, 2**53 + 1, 2**60, *BIG], ODD, ColumnType("bigint")),
    "exact": Kind(
        "numeric", EXACT, [*NUMBERS, *EXACT[:-1], "1.000", Decimal("1E-30")], ODD, ColumnType("numeric"), "numeric"
    ),
    "price": Kind(
        "numeric(10,2)", ["1", "2.50", "0.01"], [*NUMBERS, "2.5", "2.501"], ODD, ColumnType("numeric"), "numeric"
    ),
    "double": Kind(
        "double precision",
        ["0", "-0", "1", "0.1", "2.5", "NaN", "Infinity", "-Infinity", "9007199254740992", "1e300", "5e-324"],
        [0, 1, -1, 2**53, *FLOATS, *(Decimal(text) for text in ("0.1", "2.50", "NaN", "-Infinity")), NEAR_A_TENTH,
         "0.1", "1", "NaN", "Infinity"],
        [2**53 + 1, 2**60, Decimal("1e-310"), "1e0", " 1", True], ColumnType("double precision"), "float",
    ),
    "single": Kind(
        "real", ["0", "0.1", "1", "NaN"], [], [0.1, 1, 1.0, Decimal("0.1"), "0.1"], ColumnType("real"), "float"
    ),
    "truth": Kind(
        "boolean", ["true", "false"], [True, False, "true", "f"], ["yes", "1", "TRUE", 1], ColumnType("boolean")
    ),
    "words": Kind("text", TEXTS, TEXTS, [1, b"a"], ColumnType("text"), ordered=False),
    "short": Kind("varchar(4)", TEXTS, [*TEXTS, "more than 4"], [1], ColumnType("character varying"), ordered=False),
    "padded": Kind("char(4)", TEXTS, [*TEXTS, "a      "], [1], ColumnType("character"), ordered=False),
    "folded": Kind("text collate loose", TEXTS, [], TEXTS, ColumnType("text", deterministic=False), ordered=False),
    "mood": Kind(
        "mood", ["sad", "ok"], ["sad", "ok", "so so"], ["none", 1], ColumnType("mood", enum=True), ordered=False
    ),
    "key": Kind(
        "uuid", [str(ONE), LETTERS], [ONE, UUID(int=2), str(ONE), LETTERS.upper()],
        [LETTERS.replace("-", ""), "{" + LETTERS + "}", "x"], ColumnType("uuid"),
    ),
    "raw": Kind(
        "bytea", ["", "\\x61", "\\x6100"], [b"", b"a", b"a\0", b"\xff"], ["a", "\\x61"], ColumnType("bytea"), "bytea"
    ),
    "day": Kind(
        "date", ["2026-03-29", "2026-03-28", "0001-01-01", "9999-12-31", "infinity", "-infinity"],
        [DAY, date(2026, 3, 30), date.min, date.max, datetime(2026, 3, 29), datetime(2026, 3, 29, 0, 0, 0, 1),
         "2026-03-29", "infinity", "-infinity", "0001-01-01"],
        ["29.3.2026", "today", "2026-3-29", "20260329", "2026-03-29 12:00", MORNING.replace(tzinfo=UTC), 1],
        ColumnType("date"),
    ),
    "far_day": Kind("date", ["0044-03-15 BC", "10000-01-01"], [], [DAY, "infinity"], ColumnType("date")),
    "stamp": Kind(
        "timestamp",
        ["2026-03-29 02:30", "2026-03-29", "2026-03-29 02:30:00.5", "2026-03-29 02:30:00.000001", "infinity",
         "-infinity", "0001-01-01", "9999-12-31 23:59:59.999999"],
        [MORNING, MORNING.replace(microsecond=500000), DAY, datetime.min, datetime.max, "2026-03-29T02:30:00.500",
         "2026-03-29 02:30", "2026-03-29", "infinity", "2026-03-29 02:30:00.000001"],
        ["2026-03-29T02:30:00Z", "29.3.2026", MORNING.replace(tzinfo=UTC), "now"], STAMP,
    ),
    "zoned": Kind(
        "timestamptz",
        ["2026-03-29 02:30+00", "2026-03-29 00:00+00", "2026-10-25 00:30:00.5+00", "2026-10-25 01:30:00.5+00",
         "infinity", "-infinity", "0001-01-01 00:00+00", "9999-12-31 23:59:59.999999+00"],
        [MORNING.replace(tzinfo=UTC), MORNING.replace(hour=4, tzinfo=PLUS_2), TWICE, TWICE.replace(fold=1),
         "2026-03-29T02:30:00Z", "2026-03-29 02:30+00", "2026-03-29 04:30:00.000+02:00", "infinity", "-infinity"],
        [MORNING, DAY, "2026-03-29 02:30", "2026-03-29", datetime(1, 1, 1, tzinfo=PLUS_2)], ZONED,
    ),
    "far_time": Kind("timestamptz", FAR, [], [MORNING.replace(tzinfo=UTC), "infinity"], ZONED),
    "clock": Kind("time", ["10:00", "24:00"], [], ["10:00", "24:00:00"], ColumnType("time without time zone")),
    "length": Kind("interval", ["1 day", "24 hours"], [], [timedelta(days=1), "P1D"], ColumnType("interval")),
    "net": Kind("inet", ["10.0.0.1", "10.0.0.1/8"], [], ["10.0.0.1", "10.0.0.1/32"], ColumnType("inet")),
    "list": Kind(
        "integer[]", ["{1,2}", "{}", "[0:1]={1,2}"], [], [[1, 2], "{1,2}"], ColumnType("integer[]"), "plain[]"
    ),
    "doc": Kind("jsonb", ['{"a": 1}', "1", "1.0"], [], ['{"a":1.0}', "1"], ColumnType("jsonb")),
    "place": Kind("place", ["(,)", "(1,)", "(1,2)"], [], ["(1,2)", "(,)"], ColumnType("place")),
    "secret": Kind("text", ["a", "b"], [], ["a", "b"], ColumnType("text", hidden=True), "hidden", False),
}
# fmt: on
SETUP = """
    CREATE TYPE mood AS ENUM ('sad', 'so so', 'ok');
    CREATE TYPE place AS (x integer, y integer);
    DO $$ BEGIN
        CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false);
    EXCEPTION WHEN feature_not_supported THEN
        CREATE COLLATION loose FROM "C";
    END $$;
"""
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"]
SYMBOLS: list[Operator] = ["=", "<>", "<", "<=", ">", ">="]
TYPES = {name: kind.type for name, kind in KINDS.items()}
rows = st.fixed_dictionaries(
    {
        name: st.one_of(st.none(), st.sampled_from(kind.values), st.sampled_from(kind.values))
        for name, kind in KINDS.items()
    }
)


class Asked(NamedTuple):
    """A condition, its parameters, and whether it must be decided."""

    condition: Condition
    parameters: dict[str, Any]
    decided: bool


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    parameters: dict[str, Any] = {}
    decided = True
    only_decided = draw(st.booleans())

    def operand(kind: Kind) -> tuple[Operand, bool]:
        source = draw(st.sampled_from([kind.decided, kind.decided, kind.other, [None]]))
        if not source or (only_decided and source is kind.other):
            source = [None] if only_decided else kind.decided or kind.other
        value = draw(st.sampled_from(source))
        if type(value) in (int, str, Decimal, bool) and draw(st.booleans()) and str(value).strip("-0123456789.") == "":
            return Constant(value), source is not kind.other
        parameters[name := f"p{len(parameters)}"] = value
        return Parameter(name), source is not kind.other

    def leaf() -> Condition:
        nonlocal decided
        column = draw(st.sampled_from([name for name, kind in KINDS.items() if kind.decided or not only_decided]))
        kind = KINDS[column]
        match draw(st.sampled_from(["compare", "compare", "in", "any", "distinct", "null"])):
            case "compare":
                symbol = draw(st.sampled_from(SYMBOLS if kind.ordered or not only_decided else SYMBOLS[:2]))
                compared, sure = operand(kind)
                decided &= sure and (kind.ordered or symbol in ("=", "<>"))
                decided &= bool(kind.decided)
                return Compare(column, symbol, compared)
            case "in":
                members = [operand(kind) for _ in range(draw(st.integers(1, 3)))]
                decided &= all(sure for _, sure in members) and bool(kind.decided)
                return OneOf(column, tuple(member for member, _ in members))
            case "any":
                source = kind.decided if only_decided else kind.decided + kind.other
                first = draw(st.sampled_from(source))
                alike = [value for value in source if type(value) is type(first)] if draw(st.integers(0, 9)) else source
                members_of_list = draw(st.lists(st.one_of(st.none(), st.sampled_from(alike)), max_size=3))
                parameters[name := f"p{len(parameters)}"] = draw(st.sampled_from([members_of_list] * 5 + [None]))
                decided &= bool(kind.decided) and len({type(value) for value in members_of_list} - {type(None)}) <= 1
                decided &= not any(value in kind.other for value in members_of_list)
                return AnyOf(column, Parameter(name))
            case "distinct":
                compared, sure = operand(kind)
                decided &= sure and bool(kind.decided)
                return Distinct(column, compared)
            case _:
                decided &= column not in ("secret", "place")
                return IsNull(column)

    def tree(depth: int) -> Condition:
        match draw(st.sampled_from(["leaf", "leaf", "all", "some", "not"])) if depth else "leaf":
            case "all":
                return All(tuple(tree(depth - 1) for _ in range(draw(st.integers(1, 3)))))
            case "some":
                return Some(tuple(tree(depth - 1) for _ in range(draw(st.integers(1, 3)))))
            case "not":
                return Not(tree(depth - 1))
            case _:
                return leaf()

    condition = tree(2)
    return Asked(condition, parameters, decided)


def rendered(condition: Condition) -> sql.Composable:
    """The condition as an application writes it."""

    def of(operand: Operand) -> sql.Composable:
        if isinstance(operand, Parameter):
            return sql.SQL(f"%({operand.name})s")
        if operand.value is None or type(operand.value) in (int, Decimal, bool):
            return sql.SQL("NULL" if operand.value is None else str(operand.value))
        return sql.Literal(operand.value)

    match condition:
        case Compare():
            made = sql.SQL("{} {} {}").format(
                sql.Identifier(condition.column), sql.SQL(condition.operator), of(condition.operand)
            )
        case OneOf():
            made = sql.SQL("{} IN ({})").format(
                sql.Identifier(condition.column), sql.SQL(", ").join(map(of, condition.operands))
            )
        case AnyOf():
            made = sql.SQL("{} = ANY ({})").format(sql.Identifier(condition.column), of(condition.operand))
        case Distinct():
            made = sql.SQL("{} IS DISTINCT FROM {}").format(sql.Identifier(condition.column), of(condition.operand))
        case IsNull():
            made = sql.SQL("{} IS NULL").format(sql.Identifier(condition.column))
        case Not():
            made = sql.SQL("NOT {}").format(rendered(condition.condition))
        case All():
            made = sql.SQL(" AND ").join(map(rendered, condition.conditions))
        case Some():
            made = sql.SQL(" OR ").join(map(rendered, condition.conditions))
        case _:
            raise AssertionError(condition)
    return sql.SQL("({})").format(made)


@pytest.fixture
def session(database: str, connection: Connection) -> Iterator[Connection]:
    """A session of an application, as psycopg makes it; the table is there."""
    connection.execute(SETUP)
    columns = ", ".join(f'"{name}" {kind.declared}' for name, kind in KINDS.items())
    connection.execute(f"CREATE TABLE t (n serial PRIMARY KEY, {columns})")
    with psycopg.connect(database, autocommit=True) as session:
        yield session


def answer_of(value: bool | None) -> int:
    return NULL if value is None else TRUE if value else FALSE


def images_of(connection: Connection, many: list[dict[str, str | None]]) -> dict[int, dict[str, Any]]:
    """Writes the rows and reads their images, as the log makes them."""
    names = sql.SQL(", ").join(map(sql.Identifier, KINDS))
    places = sql.SQL(", ").join(map(sql.Placeholder, KINDS))
    connection.execute("TRUNCATE t")
    with connection.cursor() as cursor:
        cursor.executemany(sql.SQL("INSERT INTO t ({}) VALUES ({})").format(names, places), many)
    logged = Images(
        [Column("n", "integer"), *(Column(name, kind.declared, kind.logged) for name, kind in KINDS.items())], []
    )
    found = connection.execute("SELECT n, row_to_json(t)::text FROM t").fetchall()
    return {number: logged.row(text) for number, text in found}


@pytest.mark.contract("X3")
@pytest.mark.every_version
@pytest.mark.timeout(300)
def test_what_postgresql_answers_is_among_what_may_be(session: Connection, connection: Connection) -> None:
    counts = {"answers": 0, "decided": 0, "refused": 0}

    @settings(
        max_examples=75,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.lists(rows, min_size=1, max_size=5),
        st.lists(asked(), min_size=1, max_size=12),
        st.sampled_from(ZONES),
        st.sampled_from(["ISO, MDY", "German, DMY"]),
    )
    def check(many: list[dict[str, str | None]], questions: list[Asked], zone: str, style: str) -> None:
        images = images_of(connection, many)
        session.execute("SELECT set_config('TimeZone', %s, false), set_config('DateStyle', %s, false)", [zone, style])
        for condition, parameters, decided in questions:
            bound = bind(condition, TYPES, parameters)
            query = sql.SQL("SELECT n, {} FROM t").format(rendered(condition))
            try:
                answers = session.execute(query, parameters).fetchall()
            except (psycopg.Error, OverflowError):
                counts["refused"] += 1
                continue
            for number, value in answers:
                answer, mask = answer_of(value), bound.outcome(images[number])
                assert mask & answer, (condition, parameters, images[number], answer, mask)
                if decided:
                    assert mask == answer, (condition, parameters, images[number], answer, mask)
                counts["answers"] += 1
                counts["decided"] += mask == answer

    check()
    assert counts["decided"] > counts["answers"] / 3 > 100, counts


def simple(column: str) -> list[Condition]:
    p, null = Parameter("p"), Constant(None)
    return [
        *(Compare(column, symbol, p) for symbol in SYMBOLS),
        OneOf(column, (p,)),
        OneOf(column, (p, null)),
        AnyOf(column, Parameter("alone")),
        AnyOf(column, Parameter("mixed")),
        Distinct(column, p),
        Not(Distinct(column, p)),
        IsNull(column),
    ]


@pytest.mark.contract("X3")
@pytest.mark.every_version
def test_every_value_with_every_operand(session: Connection, connection: Connection) -> None:
    """Each type, all of its values, all operands, each simple condition: nothing is left to chance."""
    session.execute("SELECT set_config('TimeZone', 'America/New_York', false)")
    undecided = set()
    for column, kind in KINDS.items():
        images = images_of(connection, [dict.fromkeys(KINDS) | {column: value} for value in [None, *kind.values]])
        operands = [(value, True) for value in [None, *kind.decided]] + [(value, False) for value in kind.other]
        for (value, decided), condition in product(operands, simple(column)):
            mixed = [*(other for other, _ in operands if type(other) is type(value)), value]
            parameters = {"p": value, "alone": [value], "mixed": mixed}
            bound = bind(condition, TYPES, parameters)
            decided &= bool(kind.decided) and condition != AnyOf(column, Parameter("mixed"))
            decided &= not isinstance(condition, Compare) or kind.ordered or condition.operator in ("=", "<>")
            try:
                query = sql.SQL("SELECT n, {} FROM t").format(rendered(condition))
                answers = session.execute(query, parameters).fetchall()
            except psycopg.Error:
                if decided:
                    raise
                continue
            for number, found in answers:
                answer, mask = answer_of(found), bound.outcome(images[number])
                assert mask & answer, (condition, parameters, images[number][column], found)
                assert mask == answer or not decided, (condition, parameters, images[number][column], found)
                if mask != answer:
                    undecided.add(column)
    assert undecided == KINDS.keys(), "operands that need not be decided were put to each type"


@pytest.mark.contract("X3")
def test_a_condition_that_rejects_nulls_is_not_true_where_an_outer_join_found_nothing(session: Connection) -> None:
    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(asked())
    def check(question: Asked) -> None:
        condition, parameters, _ = question
        query = sql.SQL("SELECT {} FROM (SELECT 1) one LEFT JOIN t ON false").format(rendered(condition))
        try:
            row = session.execute(query, parameters).fetchone()
        except (psycopg.Error, OverflowError):
            return
        if row is not None and row[0] is True:
            assert not rejects_nulls(condition)
            assert not bind(condition, TYPES, parameters).rejects_nulls()

    check()
