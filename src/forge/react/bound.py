"""A condition with its parameters bound, and what it may be on a row image: true, false or null.

In come a condition, the types of its columns and parameters as the application hands them to psycopg; out comes a
`Bound`. An outcome is a mask of what may be. It always has what PostgreSQL answers; it has nothing else where a
comparison is decided here exactly as PostgreSQL would. That is so for

- smallint, integer, bigint, numeric: with int, Decimal, and text that is a plain number;
- double precision: with float, int up to 2^53, Decimal and such text; NaN is equal to itself and greater than all;
- boolean, uuid, bytea, and equality of text, character varying, character and enums;
- date and timestamp with date, naive datetime and ISO text; timestamptz with aware datetime and ISO text that has
  an offset, because whatever has none depends on the session's TimeZone.

Everything else is undecided: other types and values, subclasses of the plain Python types (psycopg may send them as
something else), and columns that are hidden, `UNAVAILABLE` or missing. Comparisons are taken to be strict, as all of
PostgreSQL's own are: with a NULL on either side they are null.

Values are compared in a canonical form, one for each type: equal values are equal and hash alike, and where the type
is ordered so are they. NaN is `GREATEST`. A date or time is its text: in four-digit years, with a trimmed fraction
and in UTC the order of the texts is the order of time, and '-infinity' and 'infinity' come first and last by
themselves. Dates before year 1 and after 9999 have no such form and are undecided.

`Bound.covers` is what an index of many conditions needs: each cover is a set of probes of which at least one hits
every row on which the condition may be true. A cover without probes says that it never is.
"""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any, Final, final
from uuid import UUID

import msgspec

from forge.change import UNAVAILABLE, Row
from forge.react.condition import All, AnyOf, Compare, Condition, Constant, Distinct, IsNull, Not, OneOf, Operand
from forge.react.condition import Any as Some
from forge.react.readset import ColumnType

TRUE: Final = 1
FALSE: Final = 2
NULL: Final = 4
MAYBE: Final = TRUE | FALSE | NULL
_EITHER: Final = TRUE | FALSE

Outcome = Callable[[Row], int]


@final
class Extreme:
    """The type of `LEAST` and `GREATEST`, which compare with anything."""

    __slots__ = ("_greatest",)

    def __init__(self, *, greatest: bool) -> None:
        self._greatest = greatest

    def __lt__(self, other: object) -> bool:
        return not self._greatest and other is not self

    def __le__(self, other: object) -> bool:
        return not self._greatest or other is self

    def __gt__(self, other: object) -> bool:
        return self._greatest and other is not self

    def __ge__(self, other: object) -> bool:
        return self._greatest or other is self


LEAST: Final = Extreme(greatest=False)
GREATEST: Final = Extreme(greatest=True)
UNKNOWN: Final = object()
"""What a value is when it has no canonical form."""


class Form(msgspec.Struct, frozen=True, eq=False):
    """How the values of a type are compared.

    `read` makes the canonical form of a value of an image, `operand` that of what it is compared with; both give
    UNKNOWN where there is none. `read` gives None for NULL; `operand` is not asked about NULL.
    """

    read: Callable[[Any], Any]
    operand: Callable[[Any], Any]
    ordered: bool = True


class Points(msgspec.Struct, frozen=True, eq=False):
    """Hits rows whose column is one of the values."""

    column: str
    form: Form
    values: frozenset[Any]


class Range(msgspec.Struct, frozen=True, eq=False):
    """Hits rows whose column lies between two values, or is one of them."""

    column: str
    form: Form
    low: Any
    high: Any


Probe = Points | Range
Cover = tuple[Probe, ...]
NEVER: Final[Cover] = ()


@final
class Bound:
    """A condition of which the parameters are known.

    >>> from forge.react.condition import Parameter
    >>> bound = bind(Compare("a", "=", Parameter("p")), {"a": ColumnType("integer")}, {"p": 1})
    >>> bound.outcome({"a": 1}) == TRUE, bound.outcome({"a": None}) == NULL, bound.outcome({}) == MAYBE
    (True, True, True)
    """

    __slots__ = ("_condition", "_parameters", "columns", "covers", "outcome")

    def __init__(self, condition: Condition, types: Mapping[str, ColumnType], parameters: Mapping[str, object]) -> None:
        self._condition = condition
        self._parameters = parameters
        outcome, covers = _compile(condition, types, parameters)
        self.outcome: Final = outcome
        self.covers: Final = covers
        self.columns: Final = frozenset(_columns(condition))

    def may(self, row: Row) -> bool:
        """Whether the condition may be true on the row."""
        return self.outcome(row) & TRUE != 0

    def rejects_nulls(self) -> bool:
        """Whether the condition surely is not true where every column is NULL, as outer joins make them."""
        return not _on_nulls(self._condition, self._parameters) & TRUE


def bind(condition: Condition, types: Mapping[str, ColumnType], parameters: Mapping[str, object]) -> Bound:
    """Binds a condition; a column without a type and a parameter without a value are undecided."""
    return Bound(condition, types, parameters)


def rejects_nulls(condition: Condition) -> bool:
    """As `Bound.rejects_nulls`, whatever the parameters are.

    >>> from forge.react.condition import Parameter
    >>> rejects_nulls(Compare("a", "=", Parameter("p"))), rejects_nulls(IsNull("a"))
    (True, False)
    """
    return not _on_nulls(condition, {}) & TRUE


# The logic.


def _bits(mask: int) -> Iterator[int]:
    return (bit for bit in (TRUE, FALSE, NULL) if mask & bit)


def _pairwise(combine: Callable[[int, int], int]) -> tuple[tuple[int, ...], ...]:
    """A table of masks from what a pair of outcomes makes."""
    return tuple(
        tuple(
            reduce(operator.or_, (combine(left, right) for left in _bits(some) for right in _bits(others)), 0)
            for others in range(8)
        )
        for some in range(8)
    )


_AND: Final = _pairwise(
    lambda left, right: FALSE if FALSE in (left, right) else NULL if NULL in (left, right) else TRUE
)
_OR: Final = _pairwise(lambda left, right: TRUE if TRUE in (left, right) else NULL if NULL in (left, right) else FALSE)
_NOT: Final = tuple(mask & NULL | (mask & TRUE and FALSE) | (mask & FALSE and TRUE) for mask in range(8))
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


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
            return FALSE if value is None else TRUE if type(value) in _PLAIN else _EITHER
        case IsNull():
            return TRUE
        case Not():
            return _NOT[_on_nulls(condition.condition, parameters)]
        case All():
            return reduce(lambda mask, part: _AND[mask][_on_nulls(part, parameters)], condition.conditions, TRUE)
        case Some():
            return reduce(lambda mask, part: _OR[mask][_on_nulls(part, parameters)], condition.conditions, FALSE)
        case _:
            return MAYBE


def _columns(condition: Condition) -> Iterator[str]:
    match condition:
        case Not():
            yield from _columns(condition.condition)
        case All() | Some():
            for part in condition.conditions:
                yield from _columns(part)
        case Compare() | OneOf() | AnyOf() | Distinct() | IsNull():
            yield condition.column


# Compiling.

_Compiled = tuple[Outcome, tuple[Cover, ...]]


def _compile(condition: Condition, types: Mapping[str, ColumnType], parameters: Mapping[str, object]) -> _Compiled:
    match condition:
        case Compare():
            form = _form(types.get(condition.column))
            return _compare(condition, form, _canonical(form, _value(condition.operand, parameters)))
        case OneOf():
            members = [_value(operand, parameters) for operand in condition.operands]
            return _among(condition.column, _form(types.get(condition.column)), members)
        case AnyOf():
            form = _form(types.get(condition.column))
            return _any_of(condition.column, form, _value(condition.operand, parameters))
        case Distinct():
            form = _form(types.get(condition.column))
            return _distinct(condition.column, form, _canonical(form, _value(condition.operand, parameters))), ()
        case IsNull():
            column_type = types.get(condition.column)
            otherwise = FALSE if column_type is not None and _is_scalar(column_type) else _EITHER
            return _null_test(condition.column, _form(column_type), TRUE, otherwise), ()
        case Not():
            inner, _ = _compile(condition.condition, types, parameters)
            return (lambda row: _NOT[inner(row)]), ()
        case All():
            return _all([_compile(part, types, parameters) for part in condition.conditions])
        case Some():
            return _some([_compile(part, types, parameters) for part in condition.conditions])
        case _:
            return _always(MAYBE), ()


def _value(operand: Operand, parameters: Mapping[str, object]) -> object:
    return operand.value if isinstance(operand, Constant) else parameters.get(operand.name, UNKNOWN)


def _canonical(form: Form, value: object) -> Any:
    return None if value is None else form.operand(value)


def _always(mask: int) -> Outcome:
    return lambda row: mask


def _compare(condition: Compare, form: Form, operand: Any) -> _Compiled:
    column, read, symbol = condition.column, form.read, condition.operator
    if operand is None:
        return _always(NULL), (NEVER,)
    if operand is UNKNOWN or not (form.ordered or symbol in ("=", "<>")):
        return (lambda row: NULL if read(row.get(column, UNAVAILABLE)) is None else MAYBE), ()
    holds = _OPERATORS[symbol]

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


def _among(column: str, form: Form, members: Iterable[object]) -> _Compiled:
    """One of the members is equal. There is none: false, even for NULL."""
    canonical = {_canonical(form, member) for member in members}
    if not canonical:
        return _always(FALSE), (NEVER,)
    read, values = form.read, frozenset(canonical - {None, UNKNOWN})
    miss = NULL if None in canonical else FALSE
    undecided = _OR[miss][MAYBE] if values or UNKNOWN in canonical else miss
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


def _any_of(column: str, form: Form, value: object) -> _Compiled:
    if value is None:
        return _always(NULL), (NEVER,)
    if (type(value) is list or type(value) is tuple) and _is_uniform(value):
        return _among(column, form, value)
    read = form.read
    return (lambda row: FALSE | NULL if read(row.get(column, UNAVAILABLE)) is None else MAYBE), ()


def _is_uniform(members: Collection[object]) -> bool:
    """Whether psycopg sends an array in which each member is what it would be alone."""
    kinds = {
        (type(member), isinstance(member, datetime) and member.tzinfo is not None)
        for member in members
        if member is not None
    }
    return not kinds or (len(kinds) == 1 and kinds.pop()[0] in _PLAIN)


def _distinct(column: str, form: Form, operand: Any) -> Outcome:
    if operand is None:
        return _null_test(column, form, FALSE, TRUE)
    if operand is UNKNOWN:
        return _always(_EITHER)
    read = form.read

    def outcome(row: Row) -> int:
        value = read(row.get(column, UNAVAILABLE))
        if value is UNKNOWN:
            return _EITHER
        return TRUE if value is None or value != operand else FALSE

    return outcome


def _null_test(column: str, form: Form, when_null: int, otherwise: int) -> Outcome:
    if form is _HIDDEN:
        return _always(_EITHER)

    def outcome(row: Row) -> int:
        value = row.get(column, UNAVAILABLE)
        return when_null if value is None else _EITHER if value is UNAVAILABLE else otherwise

    return outcome


def _all(parts: list[_Compiled]) -> _Compiled:
    if len(parts) == 1:
        return parts[0]
    outcomes = tuple(outcome for outcome, _ in parts)

    def outcome(row: Row) -> int:
        mask = TRUE
        for part in outcomes:
            mask = _AND[mask][part(row)]
            if mask == FALSE:
                break
        return mask

    return outcome, _narrowed(cover for _, covers in parts for cover in covers)


def _narrowed(covers: Iterable[Cover]) -> tuple[Cover, ...]:
    """The same covers, with one range for all ranges of a column; NEVER alone when it is among them."""
    ranges: dict[tuple[str, Form], Range] = {}
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
    outcomes = tuple(outcome for outcome, _ in parts)

    def outcome(row: Row) -> int:
        mask = FALSE
        for part in outcomes:
            mask = _OR[mask][part(row)]
            if mask == TRUE:
                break
        return mask

    if not all(covers for _, covers in parts):
        return outcome, ()
    return outcome, (tuple(probe for _, covers in parts for probe in min(covers, key=_breadth)),)


def _breadth(cover: Cover) -> tuple[int, int]:
    """How much a cover is likely to hit: ranges more than points."""
    points = [len(probe.values) for probe in cover if isinstance(probe, Points)]
    return len(cover) - len(points), sum(points)


# The forms of values, by type.

_PLAIN: Final = frozenset((int, str, Decimal, float, bool, bytes, date, datetime, UUID))
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?")
_TIME_AND_OFFSET: Final = re.compile(_TIME.pattern + r"(?:Z|[+-][0-9]{2}(?::[0-9]{2})?)")
_STAMP: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{0,5}[1-9])?")
_STAMP_IN_UTC: Final = re.compile(_STAMP.pattern + r"\+00:00")
_INFINITIES: Final = ("infinity", "-infinity")
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_MOST_DIGITS: Final = 1000
_EXACT_IN_FLOAT: Final = 2**53
_LEAST_NORMAL: Final = 2.3e-308


def _kept(kind: type) -> Callable[[Any], Any]:
    """Values of one Python type that are their own canonical form."""
    return lambda value: value if value is None or type(value) is kind else UNKNOWN


def _matching(pattern: re.Pattern[str]) -> Callable[[Any], Any]:
    """Texts of one form that are their own canonical form, and the infinities."""
    matches = pattern.fullmatch

    def read(value: Any) -> Any:
        if type(value) is str:
            return value if matches(value) or value in _INFINITIES else UNKNOWN
        return None if value is None else UNKNOWN

    return read


def _read_numeric(value: Any) -> Any:
    if type(value) is Decimal:
        return GREATEST if value.is_nan() else value
    return value if value is None or type(value) is int else UNKNOWN


def _numeric_operand(value: Any) -> Any:
    kind = type(value)
    if kind is int:
        return value
    if kind is str and (_NUMBER.fullmatch(value) or value in _NOT_FINITE):
        value = Decimal(value)
    elif kind is not Decimal:
        return UNKNOWN
    if value.is_nan():
        return GREATEST
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and max(-exponent, abs(value.adjusted())) > _MOST_DIGITS:
        return UNKNOWN
    return value


def _whole_operand(bits: int) -> Callable[[Any], Any]:
    """Numbers of any size, and text that is an integer of so many bits."""
    most = 2 ** (bits - 1)

    def operand(value: Any) -> Any:
        if type(value) is not str:
            return _numeric_operand(value)
        if not _WHOLE.fullmatch(value):
            return UNKNOWN
        whole = int(value)
        return whole if -most <= whole < most else UNKNOWN

    return operand


def _read_float(value: Any) -> Any:
    if type(value) is float:
        return value if value == value else GREATEST
    return None if value is None else UNKNOWN


def _float_operand(value: Any) -> Any:
    if type(value) is float:
        return _read_float(value)
    if type(value) is int and abs(value) > _EXACT_IN_FLOAT:
        return UNKNOWN
    exact = _numeric_operand(value)
    if exact is GREATEST or exact is UNKNOWN:
        return exact
    near = float(exact)
    if math.isinf(near) != (type(exact) is Decimal and exact.is_infinite()) or (exact and abs(near) < _LEAST_NORMAL):
        return UNKNOWN
    return near


def _boolean_operand(value: Any) -> Any:
    if type(value) is str:
        return {"true": True, "t": True, "false": False, "f": False}.get(value, UNKNOWN)
    return value if type(value) is bool else UNKNOWN


def _text_operand(value: Any) -> Any:
    return value if type(value) is str else UNKNOWN


def _unpadded(value: Any) -> Any:
    if type(value) is str:
        return value.rstrip(" ")
    return None if value is None else UNKNOWN


def _uuid_operand(value: Any) -> Any:
    if type(value) is UUID:
        return str(value)
    return value.lower() if type(value) is str and _UUID.fullmatch(value) else UNKNOWN


def _bytes_operand(value: Any) -> Any:
    return value if type(value) is bytes else UNKNOWN


def _stamp(moment: datetime) -> str:
    """As an image has it: microseconds without trailing zeros."""
    text = moment.replace(tzinfo=None).isoformat()
    return text.rstrip("0") if moment.microsecond else text


def _date_operand(value: Any) -> Any:
    kind = type(value)
    if kind is date:
        return value.isoformat()
    if kind is datetime and value.tzinfo is None:
        return _stamp(value).removesuffix("T00:00:00")
    if kind is not str or value in _INFINITIES:
        return value if kind is str else UNKNOWN
    try:
        return date.fromisoformat(value).isoformat() if _DATE.fullmatch(value) else UNKNOWN
    except ValueError:
        return UNKNOWN


def _timestamp_operand(value: Any) -> Any:
    kind = type(value)
    if kind is date:
        return value.isoformat() + "T00:00:00"
    if kind is datetime:
        return _stamp(value) if value.tzinfo is None else UNKNOWN
    if kind is not str or value in _INFINITIES:
        return value if kind is str else UNKNOWN
    try:
        whole = _DATE.fullmatch(value) or _TIME.fullmatch(value)
        return _stamp(datetime.fromisoformat(value)) if whole else UNKNOWN
    except ValueError:
        return UNKNOWN


def _timestamptz_operand(value: Any) -> Any:
    kind = type(value)
    if kind is str and value in _INFINITIES:
        return value
    try:
        if kind is str and _TIME_AND_OFFSET.fullmatch(value):
            value = datetime.fromisoformat(value)
        elif kind is not datetime or value.utcoffset() is None:
            return UNKNOWN
        return _stamp(value.astimezone(UTC)) + "+00:00"
    except (ValueError, OverflowError):
        return UNKNOWN


def _unknown(value: Any) -> Any:
    return UNKNOWN


_HIDDEN: Final = Form(_unknown, _unknown)
_OPAQUE: Final = Form(lambda value: None if value is None else UNKNOWN, _unknown)
_TEXT: Final = Form(_kept(str), _text_operand, ordered=False)
_CHARACTER: Final = Form(_unpadded, lambda value: _unpadded(_text_operand(value)), ordered=False)
_FORMS: Final[Mapping[str, Form]] = {
    "smallint": Form(_kept(int), _whole_operand(16)),
    "integer": Form(_kept(int), _whole_operand(32)),
    "bigint": Form(_kept(int), _whole_operand(64)),
    "numeric": Form(_read_numeric, _numeric_operand),
    "double precision": Form(_read_float, _float_operand),
    "boolean": Form(_kept(bool), _boolean_operand),
    "text": _TEXT,
    "character varying": _TEXT,
    "character": _CHARACTER,
    "bpchar": _CHARACTER,
    "uuid": Form(_kept(str), _uuid_operand),
    "bytea": Form(_kept(bytes), _bytes_operand),
    "date": Form(_matching(_DATE), _date_operand),
    "timestamp without time zone": Form(_matching(_STAMP), _timestamp_operand),
    "timestamp with time zone": Form(_matching(_STAMP_IN_UTC), _timestamptz_operand),
}
_OTHER_SCALARS: Final = re.compile(
    r".*\[\]|real|jsonb?|interval|time with(?:out)? time zone|inet|cidr|macaddr8?|money|bit|bit varying|xml|name|oid"
    r"|tsvector|tsquery|(?:int4|int8|num|ts|tstz|date)(?:multi)?range",
)


def _form(column: ColumnType | None) -> Form:
    if column is None or column.hidden:
        return _HIDDEN
    if column.enum:
        return _TEXT
    form = _FORMS.get(column.type, _OPAQUE)
    return form if column.deterministic or (form is not _TEXT and form is not _CHARACTER) else _OPAQUE


def _is_scalar(column: ColumnType) -> bool:
    """Whether IS NULL asks about the value itself: of a composite it asks about every field."""
    return column.enum or column.type in _FORMS or _OTHER_SCALARS.fullmatch(column.type) is not None
