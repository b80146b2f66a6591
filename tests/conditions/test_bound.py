"""Outcomes are masks in SQL's logic: what is decided is one bit, what is not has all that may be."""

import itertools
import operator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from functools import reduce
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.change import UNAVAILABLE
from forge.conditions.bound import Points, Range, bind, rejects_nulls
from forge.conditions.canonical import GREATEST, LEAST, ColumnType
from forge.conditions.logic import FALSE, MAYBE, NULL, TRUE
from forge.conditions.tree import TRUE as NO_CONDITION
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
    Operator,
    Parameter,
    Undecided,
)
from forge.conditions.tree import Any as Some

EITHER = TRUE | FALSE
P = Parameter("p")
OPERATORS: dict[Operator, Any] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def outcome(type_name: str, image: Any, symbol: Operator, operand: Any, **column: bool) -> int:
    return bind(Compare("x", symbol, P), {"x": ColumnType(type_name, **column)}, {"p": operand}).outcome({"x": image})


def answers(condition: Condition, type_name: str = "integer", **parameters: Any) -> dict[Any, int]:
    """What a condition on x is for 1, 2, NULL and a value that was not sent."""
    bound = bind(condition, {"x": ColumnType(type_name)}, parameters)
    return {value: bound.outcome({"x": value}) for value in (1, 2, None, UNAVAILABLE)}


LEAVES: dict[int, Condition] = {
    TRUE: NO_CONDITION,
    FALSE: Some(()),
    NULL: Compare("x", "=", Constant(None)),
    MAYBE: Undecided(),
    EITHER: Distinct("x", P),
    FALSE | NULL: All((Compare("x", "=", Constant(None)), Undecided())),
    TRUE | NULL: Some((Compare("x", "=", Constant(None)), Undecided())),
}


def bits(mask: int) -> list[int]:
    return [bit for bit in (TRUE, FALSE, NULL) if mask & bit]


def sql_and(left: int, right: int) -> int:
    return FALSE if FALSE in (left, right) else NULL if NULL in (left, right) else TRUE


def sql_not(value: int) -> int:
    return {TRUE: FALSE, FALSE: TRUE, NULL: NULL}[value]


@pytest.mark.parametrize(("left", "right"), list(itertools.product(LEAVES, LEAVES)))
def test_the_connectives_are_exact_for_every_pair_of_masks(left: int, right: int) -> None:
    both = bind(All((LEAVES[left], LEAVES[right])), {}, {})
    some = bind(Some((LEAVES[left], LEAVES[right])), {}, {})
    pairs = list(itertools.product(bits(left), bits(right)))
    assert both.outcome({}) == reduce(operator.or_, (sql_and(a, b) for a, b in pairs))
    assert some.outcome({}) == reduce(operator.or_, (sql_not(sql_and(sql_not(a), sql_not(b))) for a, b in pairs))
    assert bind(Not(LEAVES[left]), {}, {}).outcome({}) == reduce(operator.or_, map(sql_not, bits(left)))


def test_null_and_maybe_is_false_or_null() -> None:
    assert bind(All((LEAVES[NULL], Undecided())), {}, {}).outcome({}) == FALSE | NULL


numbers = st.one_of(st.integers(-3, 3), st.decimals(-3, 3, places=1), st.integers(), st.decimals(allow_nan=False))


@given(numbers, numbers, st.sampled_from(list(OPERATORS)))
def test_exact_numbers_compare_as_numbers(image: Any, operand: Any, symbol: Operator) -> None:
    if isinstance(operand, Decimal) and operand.is_finite() and not -1000 < operand.adjusted() < 1000:
        return
    expected = TRUE if OPERATORS[symbol](image, operand) else FALSE
    assert outcome("numeric", Decimal(image), symbol, operand) == expected
    if isinstance(image, int):
        assert outcome("bigint", image, symbol, operand) == expected


@given(st.floats(), st.floats(), st.sampled_from(list(OPERATORS)))
def test_floats_compare_with_nan_as_the_greatest(image: float, operand: float, symbol: Operator) -> None:
    def rank(value: float) -> tuple[bool, float]:
        return (True, 0.0) if value != value else (False, value)

    expected = TRUE if OPERATORS[symbol](rank(image), rank(operand)) else FALSE
    assert outcome("double precision", image, symbol, operand) == expected


@given(st.datetimes(), st.datetimes(), st.sampled_from(list(OPERATORS)))
def test_times_compare_as_times(image: datetime, operand: datetime, symbol: Operator) -> None:
    def printed(moment: datetime) -> str:
        text = moment.isoformat()
        return text.rstrip("0") if moment.microsecond else text

    holds = OPERATORS[symbol]
    stamp, zoned = "timestamp without time zone", "timestamp with time zone"
    expected = TRUE if holds(image, operand) else FALSE
    assert outcome(stamp, printed(image), symbol, operand) == expected
    assert outcome(zoned, printed(image) + "+00:00", symbol, operand.replace(tzinfo=UTC)) == expected
    of_date = TRUE if holds(datetime.combine(image.date(), datetime.min.time()), operand) else FALSE
    assert outcome("date", image.date().isoformat(), symbol, operand) == of_date
    assert outcome("date", image.date().isoformat(), symbol, operand.date()) == (
        TRUE if holds(image.date(), operand.date()) else FALSE
    )


NAN, INFINITY = Decimal("NaN"), Decimal("Infinity")
ONE = UUID(int=1)
PLUS_2 = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("type_name", "image", "symbol", "operand"),
    [
        ("numeric", NAN, "=", NAN),
        ("numeric", NAN, ">", INFINITY),
        ("numeric", Decimal("1.00"), "=", 1),
        ("numeric", Decimal(1), "=", "1.0"),
        ("numeric", Decimal("-Infinity"), "<", -(10**30)),
        ("integer", 1, "<", NAN),
        ("integer", 1, "<", Decimal("1.5")),
        ("integer", 7, "=", "7"),
        ("bigint", 2**53 + 1, ">", 2**53),
        ("double precision", 1.0, "=", 1),
        ("double precision", 0.1, "=", Decimal("0.1")),
        ("double precision", 0.1, "=", "0.1"),
        ("double precision", -0.0, "=", 0),
        ("double precision", float("inf"), "=", INFINITY),
        ("boolean", True, ">", False),
        ("boolean", False, "=", "f"),
        ("text", "é", "=", "é"),
        ("text", "e\u0301", "<>", "é"),
        ("text", "a", "<>", "a "),
        ("character varying", "a", "=", "a"),
        ("character", "a   ", "=", "a"),
        ("character", "a   ", "=", "a      "),
        ("character", "a\t  ", "<>", "a"),
        ("uuid", str(ONE), "=", ONE),
        ("uuid", "0000abcd-0000-0000-0000-000000000001", "=", "0000ABCD-0000-0000-0000-000000000001"),
        ("uuid", str(ONE), "<", UUID(int=2)),
        ("bytea", b"a", "<", b"a\0"),
        ("date", "2026-01-31", "<", "2026-02-01"),
        ("date", "infinity", ">", date.max),
        ("date", "-infinity", "<", date.min),
        ("date", "2026-01-31", "<", datetime(2026, 1, 31, 0, 0, 1)),
        ("timestamp without time zone", "2026-01-31T00:00:00", "=", date(2026, 1, 31)),
        ("timestamp without time zone", "2026-01-31T00:00:00", "=", "2026-01-31"),
        ("timestamp without time zone", "2026-01-31T00:00:00.5", "=", "2026-01-31 00:00:00.500"),
        ("timestamp without time zone", "2026-01-31T00:00:00.5", ">", "2026-01-31 00:00"),
        ("timestamp without time zone", "infinity", "=", "infinity"),
        ("timestamp with time zone", "2026-01-31T10:00:00+00:00", "=", datetime(2026, 1, 31, 12, tzinfo=PLUS_2)),
        ("timestamp with time zone", "2026-01-31T10:00:00+00:00", "=", "2026-01-31 12:00+02"),
        ("timestamp with time zone", "2026-01-31T10:00:00.25+00:00", ">", "2026-01-31T10:00:00Z"),
    ],
)
def test_decided_as_postgresql_would(type_name: str, image: Any, symbol: Operator, operand: Any) -> None:
    assert outcome(type_name, image, symbol, operand) == TRUE
    assert outcome(type_name, None, symbol, operand) == NULL
    assert outcome(type_name, image, symbol, None) == NULL
    opposite: dict[Operator, Operator] = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
    assert outcome(type_name, image, opposite[symbol], operand) == FALSE


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("type_name", "image", "symbol", "operand"),
    [
        ("integer", 1, "=", True),
        ("integer", 1, "=", 1.0),
        ("integer", 1, "=", "1.0"),
        ("integer", 1, "=", "one"),
        ("integer", 1, "=", " 1"),
        ("integer", 1, "=", "9999999999"),
        ("integer", 1, "=", Level.LOW),
        ("numeric", Decimal(1), "=", 1.0),
        ("numeric", Decimal(1), "=", "1e0"),
        ("numeric", Decimal(1), "=", Decimal("1e-5000")),
        ("double precision", 2.0**60, "=", 2**60),
        ("double precision", 1.0, "<", Decimal("1e400")),
        ("double precision", 1.0, ">", Decimal("1e-320")),
        ("real", 0.1, "=", 0.1),
        ("text", "a", "<", "b"),
        ("text", "red", "=", Colour.RED),
        ("text", "1", "=", 1),
        ("character", "a ", ">=", "a"),
        ("uuid", str(ONE), "=", "{" + str(ONE) + "}"),
        ("uuid", str(ONE), "=", ONE.hex),
        ("bytea", b"a", "=", "\\x61"),
        ("date", "2026-01-31", "=", "31.1.2026"),
        ("date", "2026-01-31", "=", "2026-02-31"),
        ("date", "2026-01-31", "=", "today"),
        ("date", "2026-01-31", "=", datetime(2026, 1, 31, tzinfo=UTC)),
        ("date", "0044-03-15 BC", "<", date(2026, 1, 1)),
        ("date", "10000-01-01", ">", date(2026, 1, 1)),
        ("timestamp without time zone", "10000-01-01T00:00:00", ">", datetime(2026, 1, 1)),
        ("timestamp without time zone", "0044-03-15T00:00:00 BC", "<", datetime(2026, 1, 1)),
        ("timestamp without time zone", "2026-01-31T00:00:00", "=", "2026-01-31T00:00:00Z"),
        ("timestamp without time zone", "2026-01-31T00:00:00", "=", datetime(2026, 1, 31, tzinfo=UTC)),
        ("timestamp with time zone", "2026-01-31T00:00:00+00:00", "=", datetime(2026, 1, 31)),
        ("timestamp with time zone", "2026-01-31T00:00:00+00:00", "=", date(2026, 1, 31)),
        ("timestamp with time zone", "2026-01-31T00:00:00+00:00", "=", "2026-01-31T00:00:00"),
        ("timestamp with time zone", "2026-01-31T00:00:00+01:00", "=", "2026-01-31T00:00:00Z"),
        ("timestamp with time zone", "0044-03-15T00:00:00+00:00 BC", "<", "2026-01-31T00:00:00Z"),
        ("timestamp with time zone", "0001-01-01T00:00:00+00:00", ">", datetime(1, 1, 1, tzinfo=PLUS_2)),
        ("time without time zone", "10:00:00", "=", "10:00:00"),
        ("interval", "P1D", "=", timedelta(days=1)),
        ("jsonb", {"a": 1}, "=", '{"a": 1}'),
        ("integer[]", [1], "=", [1]),
        ("citext", "A", "=", "a"),
        ("money", "$1.00", "=", 1),
    ],
)
def test_undecided_is_maybe_but_null_stays_null(type_name: str, image: Any, symbol: Operator, operand: Any) -> None:
    assert outcome(type_name, image, symbol, operand) == MAYBE
    assert outcome(type_name, None, symbol, operand) == NULL
    assert outcome(type_name, image, symbol, None) == NULL


def test_an_enum_equals_its_label_and_has_no_order_here() -> None:
    assert outcome("mood", "sad", "=", "sad", enum=True) == TRUE
    assert outcome("mood", "sad", "<>", "sad", enum=True) == FALSE
    assert outcome("mood", "sad", "<", "ok", enum=True) == MAYBE


def test_text_is_undecided_under_a_collation_that_is_not_deterministic() -> None:
    assert outcome("text", "a", "=", "b", deterministic=False) == MAYBE
    assert outcome("character", "a", "=", "b", deterministic=False) == MAYBE
    assert outcome("integer", 1, "=", 2, deterministic=False) == FALSE


@pytest.mark.parametrize(
    "condition", [Compare("x", "=", P), OneOf("x", (P,)), AnyOf("x", Parameter("list")), Not(Compare("x", "<", P))]
)
def test_what_is_not_there_may_be_anything(condition: Condition) -> None:
    parameters = {"p": 1, "list": [1]}
    integer, hidden = ColumnType("integer"), ColumnType("integer", hidden=True)
    assert bind(condition, {"x": integer}, parameters).outcome({"x": UNAVAILABLE}) == MAYBE
    assert bind(condition, {"x": integer}, parameters).outcome({}) == MAYBE
    assert bind(condition, {"x": hidden}, parameters).outcome({"x": 5}) == MAYBE
    assert bind(condition, {"x": hidden}, parameters).outcome({"x": None}) == MAYBE
    assert bind(condition, {}, parameters).outcome({"x": 5}) == MAYBE
    assert bind(condition, {"x": integer}, {}).outcome({"x": 5}) == MAYBE


@pytest.mark.parametrize("condition", [IsNull("x"), Distinct("x", P), Distinct("x", Constant(None))])
def test_null_tests_are_never_null(condition: Condition) -> None:
    integer, hidden = ColumnType("integer"), ColumnType("integer", hidden=True)
    assert bind(condition, {"x": integer}, {"p": 1}).outcome({}) == EITHER
    assert bind(condition, {"x": hidden}, {"p": 1}).outcome({"x": None}) == EITHER
    assert bind(Distinct("x", P), {"x": integer}, {}).outcome({"x": None}) == EITHER


def test_is_null() -> None:
    assert answers(IsNull("x")) == {1: FALSE, 2: FALSE, None: TRUE, UNAVAILABLE: EITHER}
    assert answers(IsNull("x"), "jsonb") == {1: FALSE, 2: FALSE, None: TRUE, UNAVAILABLE: EITHER}


def test_a_composite_whose_fields_are_all_null_is_null() -> None:
    assert answers(IsNull("x"), "address") == {1: EITHER, 2: EITHER, None: TRUE, UNAVAILABLE: EITHER}
    assert answers(Distinct("x", Constant(None)), "address")[1] == TRUE


def test_distinct() -> None:
    assert answers(Distinct("x", P), p=1) == {1: FALSE, 2: TRUE, None: TRUE, UNAVAILABLE: EITHER}
    assert answers(Distinct("x", P), p=None) == {1: TRUE, 2: TRUE, None: FALSE, UNAVAILABLE: EITHER}
    assert answers(Distinct("x", P), p=object()) == {1: EITHER, 2: EITHER, None: EITHER, UNAVAILABLE: EITHER}


def test_in() -> None:
    one, null = Constant(1), Constant(None)
    assert answers(OneOf("x", (one,))) == {1: TRUE, 2: FALSE, None: NULL, UNAVAILABLE: MAYBE}
    assert answers(OneOf("x", (one, null))) == {1: TRUE, 2: NULL, None: NULL, UNAVAILABLE: TRUE | NULL}
    assert answers(OneOf("x", (null,))) == {1: NULL, 2: NULL, None: NULL, UNAVAILABLE: NULL}
    assert answers(OneOf("x", (one, P)), p=1.5) == {1: TRUE, 2: MAYBE, None: NULL, UNAVAILABLE: MAYBE}
    assert answers(OneOf("x", (one, null, P)), p=1.5)[2] == TRUE | NULL


def test_any() -> None:
    assert answers(AnyOf("x", P), p=[1]) == {1: TRUE, 2: FALSE, None: NULL, UNAVAILABLE: MAYBE}
    assert answers(AnyOf("x", P), p=(1, None)) == {1: TRUE, 2: NULL, None: NULL, UNAVAILABLE: TRUE | NULL}
    assert answers(AnyOf("x", P), p=None) == {1: NULL, 2: NULL, None: NULL, UNAVAILABLE: NULL}
    assert answers(AnyOf("x", P), p=[]) == {1: FALSE, 2: FALSE, None: FALSE, UNAVAILABLE: FALSE}


@pytest.mark.parametrize("members", ["{1,2}", {1}, [[1]], [1, Decimal(1)], [Level.LOW], iter([1])])
def test_any_of_what_is_no_plain_list_is_undecided(members: object) -> None:
    assert answers(AnyOf("x", P), p=members) == {1: MAYBE, 2: MAYBE, None: FALSE | NULL, UNAVAILABLE: MAYBE}


def test_a_list_of_naive_and_aware_times_is_undecided() -> None:
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    bound = bind(
        AnyOf("x", P), {"x": ColumnType("timestamp with time zone")}, {"p": [moment, moment.replace(tzinfo=None)]}
    )
    assert bound.outcome({"x": "2026-01-31T00:00:00+00:00"}) == MAYBE


@pytest.mark.parametrize(
    ("condition", "rejects"),
    [
        (Compare("x", "=", P), True),
        (Compare("x", "<>", P), True),
        (Not(Compare("x", "=", P)), True),
        (OneOf("x", (P, Constant(1))), True),
        (Not(OneOf("x", (P, Constant(1)))), True),
        (AnyOf("x", P), True),
        (Not(AnyOf("x", P)), False),
        (IsNull("x"), False),
        (Not(IsNull("x")), True),
        (Distinct("x", Constant(1)), False),
        (Distinct("x", Constant(None)), True),
        (Distinct("x", P), False),
        (Not(Distinct("x", P)), False),
        (Not(Distinct("x", Constant(1))), True),
        (Undecided(), False),
        (NO_CONDITION, False),
        (Some(()), True),
        (All((Undecided(), Compare("x", "=", P))), True),
        (Not(All((Undecided(), Compare("x", "=", P)))), False),
        (Some((IsNull("x"), Compare("x", "=", P))), False),
        (Some((Compare("y", ">", P), Compare("x", "=", P))), True),
    ],
)
def test_rejecting_nulls_whatever_the_parameters(condition: Condition, rejects: bool) -> None:
    assert rejects_nulls(condition) is rejects


def test_a_bound_parameter_may_decide_whether_nulls_are_rejected() -> None:
    assert bind(Distinct("x", P), {}, {"p": None}).rejects_nulls()
    assert bind(Not(Distinct("x", P)), {}, {"p": 1}).rejects_nulls()
    assert not bind(Distinct("x", P), {}, {"p": 1}).rejects_nulls()


def test_may() -> None:
    bound = bind(Compare("x", "=", P), {"x": ColumnType("integer")}, {"p": 1})
    assert [bound.may({"x": value}) for value in (1, 2, None, UNAVAILABLE)] == [True, False, False, True]


TYPES = {"x": ColumnType("integer"), "y": ColumnType("text"), "z": ColumnType("text", hidden=True)}


def covers(condition: Condition, **parameters: Any) -> list[list[Any]]:
    return [
        [sorted(probe.values) if isinstance(probe, Points) else (probe.low, probe.high) for probe in cover]
        for cover in bind(condition, TYPES, parameters).covers
    ]


def test_covers() -> None:
    x_is_1, y_is_a = Compare("x", "=", Constant(1)), Compare("y", "=", Constant("a"))
    low, high = Compare("x", ">=", Constant(1)), Compare("x", "<", Constant(5))
    assert covers(x_is_1) == [[[1]]]
    assert covers(All((x_is_1, y_is_a, Undecided()))) == [[[1]], [["a"]]]
    assert covers(low) == [[(1, GREATEST)]]
    assert covers(high) == [[(LEAST, 5)]]
    assert covers(All((low, high))) == [[(1, 5)]]
    assert covers(All((low, All((high, y_is_a))))) == [[["a"]], [(1, 5)]]
    assert covers(Some((x_is_1, y_is_a))) == [[[1], ["a"]]]
    assert covers(Some((All((low, x_is_1)), y_is_a))) == [[[1], ["a"]]]
    assert covers(Some((x_is_1, Undecided()))) == []
    assert covers(AnyOf("x", P), p=[1, None, 2]) == [[[1, 2]]]
    assert covers(Compare("z", "=", P), p="a") == []
    assert covers(Compare("y", "<", P), p="a") == []
    assert covers(Not(x_is_1)) == []


@pytest.mark.parametrize(
    "condition",
    [
        Compare("x", "=", P),
        All((Compare("x", "=", P), Undecided())),
        OneOf("x", (P,)),
        AnyOf("x", P),
        All((Compare("x", ">", Constant(5)), Compare("x", "<", Constant(1)))),
        Some(()),
    ],
)
def test_what_never_is_true_has_an_empty_cover(condition: Condition) -> None:
    assert covers(condition, p=None) == [[]]


values = st.one_of(st.none(), st.integers(0, 3))
operands = st.one_of(st.builds(Constant, values), st.just(P), st.just(Parameter("q")))
columns = st.sampled_from("xyz")
conditions: st.SearchStrategy[Condition] = st.recursive(
    st.one_of(
        st.builds(Compare, columns, st.sampled_from(list(OPERATORS)), operands),
        st.builds(OneOf, columns, st.lists(operands, max_size=3).map(tuple)),
        st.builds(AnyOf, columns, st.just(Parameter("list"))),
        st.builds(Distinct, columns, operands),
        st.builds(IsNull, columns),
        st.builds(Undecided),
    ),
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Some, st.lists(inner, max_size=3).map(tuple)),
    ),
)
rows = st.fixed_dictionaries({name: st.one_of(values, st.just(UNAVAILABLE)) for name in "xyz"})


def probe_hits(probe: Points | Range, row: dict[str, Any]) -> bool:
    value = row[probe.column]
    if value is None or value is UNAVAILABLE:
        return value is UNAVAILABLE
    if isinstance(probe, Points):
        return value in probe.values
    return bool(probe.low <= value <= probe.high)


@given(conditions, rows, values, values, st.one_of(st.none(), st.lists(values, max_size=3)))
def test_whatever_may_be_true_is_hit_by_every_cover(
    condition: Condition, row: dict[str, Any], p: Any, q: Any, members: Any
) -> None:
    bound = bind(condition, dict.fromkeys("xyz", ColumnType("integer")), {"p": p, "q": q, "list": members})
    if bound.may(row):
        assert all(any(probe_hits(probe, row) for probe in cover) for cover in bound.covers)


@given(conditions, rows, values, values, st.one_of(st.none(), st.lists(values, max_size=3)), st.data())
def test_knowing_less_never_rules_out_what_is_so(
    condition: Condition, row: dict[str, Any], p: Any, q: Any, members: Any, data: st.DataObject
) -> None:
    parameters = {"p": p, "q": q, "list": members}
    types = dict.fromkeys("xyz", ColumnType("integer"))
    decided = bind(condition, types, parameters).outcome(row)
    assert decided
    blurred = {name: value for name, value in row.items() if data.draw(st.booleans())}
    assert bind(condition, types, parameters).outcome(blurred) & decided == decided
    assert bind(condition, types, {}).outcome(row) & decided == decided
    nulls = dict.fromkeys("xyz")
    if rejects_nulls(condition):
        assert not bind(condition, types, parameters).may(nulls)
    assert bind(condition, types, parameters).rejects_nulls() >= rejects_nulls(condition)


@pytest.mark.parametrize(
    ("type_name", "image", "value", "expected"),
    [
        ("integer", 3, 3, TRUE),
        ("integer", 3, "3", TRUE),
        ("integer", 3, Decimal("3.4"), MAYBE),  # the cast makes it 3
        ("integer", 3, True, MAYBE),
        ("date", "2026-01-02", date(2026, 1, 2), TRUE),
        ("date", "2026-01-02", datetime(2026, 1, 2, 3), MAYBE),  # the cast cuts the time
    ],
)
def test_a_parameter_that_is_cast_counts_only_where_it_stays_the_same(
    type_name: str, image: Any, value: Any, expected: int
) -> None:
    condition = Compare("x", "=", Parameter("p", cut=True))
    assert bind(condition, {"x": ColumnType(type_name)}, {"p": value}).outcome({"x": image}) == expected
    among = AnyOf("x", Parameter("p", cut=True))
    assert bind(among, {"x": ColumnType(type_name)}, {"p": [value]}).outcome({"x": image}) == expected
