"""Bind a condition's parameters and evaluate it on row images: true, false or null.

In: a condition, the types of its columns, and parameters as the application passes them to psycopg. Out: a `Bound`. An
outcome is a mask of possible results. It always includes PostgreSQL's answer; it includes nothing else where a
comparison is decided here exactly as PostgreSQL would. That is the case for

- smallint, integer, bigint, numeric: with int, Decimal, and text that is a plain number;
- double precision: with float, int up to 2^53, Decimal and such text; NaN is equal to itself and greater than all;
- boolean, uuid, bytea, and equality of text, character varying, character and enums;
- date and timestamp with date, naive datetime and ISO text; timestamptz with aware datetime and ISO text that has
  an offset, because a time without one depends on the session's TimeZone.

Everything else is undecided: other types and values, subclasses of the plain Python types (psycopg may send them as
something else), and columns that are hidden, `UNAVAILABLE` or missing. Comparisons are assumed to be strict, as all of
PostgreSQL's own are: with a NULL on either side they are null.

Values are compared in a canonical form: see `forge.conditions.canonical`.

`Bound.covers` is for an index of many conditions: each cover is a set of probes of which at least one hits every row on
which the condition may be true. A cover without probes means that it is never true.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import date, datetime
from functools import reduce
from typing import Any, Final, final

import msgspec

from forge.change import UNAVAILABLE, Row
from forge.conditions.canonical import (
    GREATEST,
    HIDDEN,
    LEAST,
    PLAIN,
    UNKNOWN,
    CanonicalForm,
    ColumnType,
    form_of,
    is_scalar,
)
from forge.conditions.logic import (
    AND,
    FALSE,
    MAYBE,
    NOT,
    NULL,
    OPERATORS,
    OR,
    TRUE,
    Outcome,
    always,
    conjunction,
    disjunction,
    negation,
)
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
    columns,
)
from forge.conditions.tree import Any as Some

_EITHER: Final = TRUE | FALSE


class Points(msgspec.Struct, frozen=True, eq=False):
    """Hits rows whose column equals one of the values."""

    column: str
    form: CanonicalForm
    values: frozenset[Any]


class Range(msgspec.Struct, frozen=True, eq=False):
    """Hits rows whose column is between two values, inclusive."""

    column: str
    form: CanonicalForm
    low: Any
    high: Any


Probe = Points | Range
Cover = tuple[Probe, ...]
NEVER: Final[Cover] = ()


@final
class Bound:
    """A condition whose parameters are known.

    >>> from forge.conditions.tree import Parameter
    >>> bound = bind(Compare("a", "=", Parameter("p")), {"a": ColumnType("integer")}, {"p": 1})
    >>> bound.outcome({"a": 1}) == TRUE, bound.outcome({"a": None}) == NULL, bound.outcome({}) == MAYBE
    (True, True, True)
    """

    __slots__ = ("_condition", "_parameters", "_types", "columns", "covers", "outcome")

    def __init__(self, condition: Condition, types: Mapping[str, ColumnType], parameters: Mapping[str, object]) -> None:
        self._condition = condition
        self._parameters = parameters
        self._types = types
        outcome, covers = _compile(condition, types, parameters)
        self.outcome: Final = outcome
        self.covers: Final = covers
        self.columns: Final = frozenset(columns(condition))

    def parts(self) -> tuple[Condition, Mapping[str, ColumnType], Mapping[str, object]]:
        """Return the condition, types and parameters that it was bound from."""
        return self._condition, self._types, self._parameters

    def may(self, row: Row) -> bool:
        """Tell whether the condition may be true on the row."""
        return self.outcome(row) & TRUE != 0

    def rejects_nulls(self) -> bool:
        """Tell whether the condition surely is not true if every column is NULL, as in outer joins."""
        return not _on_nulls(self._condition, self._parameters) & TRUE


def bind(condition: Condition, types: Mapping[str, ColumnType], parameters: Mapping[str, object]) -> Bound:
    """Bind a condition; a column without a type and a parameter without a value are undecided."""
    return Bound(condition, types, parameters)


def rejects_nulls(condition: Condition) -> bool:
    """Tell the same as `Bound.rejects_nulls`, for any parameters.

    >>> from forge.conditions.tree import Parameter
    >>> rejects_nulls(Compare("a", "=", Parameter("p"))), rejects_nulls(IsNull("a"))
    (True, False)
    """
    return not _on_nulls(condition, {}) & TRUE


def _on_nulls(condition: Condition, parameters: Mapping[str, object]) -> int:
    match condition:
        case Compare():
            return NULL
        case OneOf():
            return NULL if condition.operands else FALSE
        case AnyOf():
            return FALSE | NULL
        case Distinct():
            value = _value(condition.operand, parameters)
            return FALSE if value is None else TRUE if type(value) in PLAIN else _EITHER
        case IsNull():
            return TRUE
        case Not():
            return NOT[_on_nulls(condition.condition, parameters)]
        case All():
            return reduce(lambda mask, part: AND[mask][_on_nulls(part, parameters)], condition.conditions, TRUE)
        case Some():
            return reduce(lambda mask, part: OR[mask][_on_nulls(part, parameters)], condition.conditions, FALSE)
        case _:
            return MAYBE


# Compiling.

_Compiled = tuple[Outcome, tuple[Cover, ...]]


def _compile(condition: Condition, types: Mapping[str, ColumnType], parameters: Mapping[str, object]) -> _Compiled:
    match condition:
        case Compare():
            form = form_of(types.get(condition.column))
            return _compare(condition, form, _canonical(form, _value(condition.operand, parameters)))
        case OneOf():
            members = [_value(operand, parameters) for operand in condition.operands]
            return _among(condition.column, form_of(types.get(condition.column)), members)
        case AnyOf():
            form = form_of(types.get(condition.column))
            return _any_of(condition.column, form, _value(condition.operand, parameters))
        case Distinct():
            form = form_of(types.get(condition.column))
            return _distinct(condition.column, form, _canonical(form, _value(condition.operand, parameters))), ()
        case IsNull():
            column_type = types.get(condition.column)
            otherwise = FALSE if column_type is not None and is_scalar(column_type) else _EITHER
            return _null_test(condition.column, form_of(column_type), TRUE, otherwise), ()
        case Not():
            inner, _ = _compile(condition.condition, types, parameters)
            return negation(inner), ()
        case All():
            return _all([_compile(part, types, parameters) for part in condition.conditions])
        case Some():
            return _some([_compile(part, types, parameters) for part in condition.conditions])
        case _:
            return always(MAYBE), ()


def _value(operand: Operand, parameters: Mapping[str, object]) -> object:
    if isinstance(operand, Constant):
        return operand.value
    value = parameters.get(operand.name, UNKNOWN)
    return value if not operand.cut or all(map(_stays, value if type(value) is list else [value])) else UNKNOWN


def _stays(value: object) -> bool:
    """Tell whether a cast to a whole number or a date keeps the value unchanged, or fails."""
    return value is None or type(value) in (int, str, date)


def _canonical(form: CanonicalForm, value: object) -> Any:
    return None if value is None else form.operand(value)


def _compare(condition: Compare, form: CanonicalForm, operand: Any) -> _Compiled:
    column, read, symbol = condition.column, form.read, condition.operator
    if operand is None:
        return always(NULL), (NEVER,)
    if operand is UNKNOWN or not (form.ordered or symbol in ("=", "<>")):
        return (lambda row: NULL if read(row.get(column, UNAVAILABLE)) is None else MAYBE), ()
    holds = OPERATORS[symbol]

    def outcome(row: Row) -> int:
        value = read(row.get(column, UNAVAILABLE))
        if value is None:
            return NULL
        if value is UNKNOWN:
            return MAYBE
        return TRUE if holds(value, operand) else FALSE

    probe: Probe
    match symbol:
        case "<>":
            return outcome, ()
        case "=":
            probe = Points(column, form, frozenset((operand,)))
        case "<" | "<=":
            probe = Range(column, form, LEAST, operand)
        case _:
            probe = Range(column, form, operand, GREATEST)
    return outcome, ((probe,),)


def _among(column: str, form: CanonicalForm, members: Iterable[object]) -> _Compiled:
    """Compile "equal to one of the members". Without members it is false, even for NULL."""
    canonical = {_canonical(form, member) for member in members}
    if not canonical:
        return always(FALSE), (NEVER,)
    read, values = form.read, frozenset(canonical - {None, UNKNOWN})
    miss = NULL if None in canonical else FALSE
    undecided = OR[miss][MAYBE] if values or UNKNOWN in canonical else miss
    if UNKNOWN in canonical:
        miss = undecided

    def outcome(row: Row) -> int:
        value = read(row.get(column, UNAVAILABLE))
        if value is None:
            return NULL
        if value is UNKNOWN:
            return undecided
        return TRUE if value in values else miss

    if UNKNOWN in canonical:
        return outcome, ()
    return outcome, ((Points(column, form, values),) if values else NEVER,)


def _any_of(column: str, form: CanonicalForm, value: object) -> _Compiled:
    if value is None:
        return always(NULL), (NEVER,)
    if (type(value) is list or type(value) is tuple) and _is_uniform(value):
        return _among(column, form, value)
    read = form.read
    return (lambda row: FALSE | NULL if read(row.get(column, UNAVAILABLE)) is None else MAYBE), ()


def _is_uniform(members: Collection[object]) -> bool:
    """Tell whether psycopg sends an array in which each member has the type that it would have alone."""
    kinds = {
        (type(member), isinstance(member, datetime) and member.tzinfo is not None)
        for member in members
        if member is not None
    }
    return not kinds or (len(kinds) == 1 and kinds.pop()[0] in PLAIN)


def _distinct(column: str, form: CanonicalForm, operand: Any) -> Outcome:
    if operand is None:
        return _null_test(column, form, FALSE, TRUE)
    if operand is UNKNOWN:
        return always(_EITHER)
    read = form.read

    def outcome(row: Row) -> int:
        value = read(row.get(column, UNAVAILABLE))
        if value is UNKNOWN:
            return _EITHER
        return TRUE if value is None or value != operand else FALSE

    return outcome


def _null_test(column: str, form: CanonicalForm, when_null: int, otherwise: int) -> Outcome:
    if form is HIDDEN:
        return always(_EITHER)

    def outcome(row: Row) -> int:
        value = row.get(column, UNAVAILABLE)
        return when_null if value is None else _EITHER if value is UNAVAILABLE else otherwise

    return outcome


def _all(parts: list[_Compiled]) -> _Compiled:
    if len(parts) == 1:
        return parts[0]
    outcome = conjunction([outcome for outcome, _ in parts])
    return outcome, _narrowed(cover for _, covers in parts for cover in covers)


def _narrowed(covers: Iterable[Cover]) -> tuple[Cover, ...]:
    """Return the same covers, with one range for all ranges of a column; only NEVER if it is among them."""
    ranges: dict[tuple[str, CanonicalForm], Range] = {}
    rest: list[Cover] = []
    for cover in covers:
        if len(cover) == 1 and isinstance(probe := cover[0], Range):
            known = ranges.setdefault((probe.column, probe.form), probe)
            low, high = max(known.low, probe.low), min(known.high, probe.high)
            if low > high:
                return (NEVER,)
            ranges[probe.column, probe.form] = Range(probe.column, probe.form, low, high)
        elif not cover:
            return (NEVER,)
        else:
            rest.append(cover)
    return (*rest, *((probe,) for probe in ranges.values()))


def _some(parts: list[_Compiled]) -> _Compiled:
    outcome = disjunction([outcome for outcome, _ in parts])
    if not all(covers for _, covers in parts):
        return outcome, ()
    return outcome, (tuple(probe for _, covers in parts for probe in min(covers, key=_breadth)),)


def _breadth(cover: Cover) -> tuple[int, int]:
    """Estimate how much a cover hits: ranges more than points."""
    points = [len(probe.values) for probe in cover if isinstance(probe, Points)]
    return len(cover) - len(points), sum(points)
