"""Canonical forms of values, one per type, for comparing them.

Equal values have equal forms with equal hashes, and the forms of an ordered type are ordered. NaN is `GREATEST`. The
form of a date or time is its text: with four-digit years, a trimmed fraction and UTC, the texts sort in the order of
time, and '-infinity' and 'infinity' sort first and last. Dates before year 1 and after 9999 have no such form and are
`UNKNOWN`, as is any value that PostgreSQL might compare differently.
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, final
from uuid import UUID

import msgspec


class ColumnType(msgspec.Struct, frozen=True):
    """The properties of a column that conditions need.

    `type` is the base type under all domains, as format_type prints it without a modifier (`integer`, `text`,
    `character varying`, `timestamp with time zone`, an enum's own name …); `enum` marks enums. `deterministic` is false
    for a collation under which unequal strings may be equal. `hidden` columns are excluded from the log, or masked.
    """

    type: str
    enum: bool = False
    deterministic: bool = True
    hidden: bool = False


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
"""The form of a value that has no canonical form."""


class CanonicalForm(msgspec.Struct, frozen=True, eq=False):
    """Conversion of the values of a type into their canonical form.

    `read` converts a value of an image, `operand` the value that it is compared with; both return UNKNOWN if there is
    no canonical form. `read` returns None for NULL; `operand` is never called with NULL.
    """

    read: Callable[[Any], Any]
    operand: Callable[[Any], Any]
    ordered: bool = True


PLAIN: Final = frozenset((int, str, Decimal, float, bool, bytes, date, datetime, UUID))
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
    """Read values of one Python type that are their own canonical form."""
    return lambda value: value if value is None or type(value) is kind else UNKNOWN


def _matching(pattern: re.Pattern[str]) -> Callable[[Any], Any]:
    """Read texts of one form that are their own canonical form, and the infinities."""
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
    """Read numbers of any size, and text that is an integer of up to `bits` bits."""
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
    """Write a time in the form of an image: microseconds without trailing zeros."""
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


HIDDEN: Final = CanonicalForm(_unknown, _unknown)
_OPAQUE: Final = CanonicalForm(lambda value: None if value is None else UNKNOWN, _unknown)
_TEXT: Final = CanonicalForm(_kept(str), _text_operand, ordered=False)
_CHARACTER: Final = CanonicalForm(_unpadded, lambda value: _unpadded(_text_operand(value)), ordered=False)
_FORMS: Final[Mapping[str, CanonicalForm]] = {
    "smallint": CanonicalForm(_kept(int), _whole_operand(16)),
    "integer": CanonicalForm(_kept(int), _whole_operand(32)),
    "bigint": CanonicalForm(_kept(int), _whole_operand(64)),
    "numeric": CanonicalForm(_read_numeric, _numeric_operand),
    "double precision": CanonicalForm(_read_float, _float_operand),
    "boolean": CanonicalForm(_kept(bool), _boolean_operand),
    "text": _TEXT,
    "character varying": _TEXT,
    "character": _CHARACTER,
    "bpchar": _CHARACTER,
    "uuid": CanonicalForm(_kept(str), _uuid_operand),
    "bytea": CanonicalForm(_kept(bytes), _bytes_operand),
    "date": CanonicalForm(_matching(_DATE), _date_operand),
    "timestamp without time zone": CanonicalForm(_matching(_STAMP), _timestamp_operand),
    "timestamp with time zone": CanonicalForm(_matching(_STAMP_IN_UTC), _timestamptz_operand),
}
_OTHER_SCALARS: Final = re.compile(
    r".*\[\]|real|jsonb?|interval|time with(?:out)? time zone|inet|cidr|macaddr8?|money|bit|bit varying|xml|name|oid"
    r"|tsvector|tsquery|(?:int4|int8|num|ts|tstz|date)(?:multi)?range",
)


def form_of(column: ColumnType | None) -> CanonicalForm:
    if column is None or column.hidden:
        return HIDDEN
    if column.enum:
        return _TEXT
    form = _FORMS.get(column.type, _OPAQUE)
    return form if column.deterministic or (form is not _TEXT and form is not _CHARACTER) else _OPAQUE


def is_scalar(column: ColumnType) -> bool:
    """Tell whether IS NULL tests the value itself: for a composite it tests every field."""
    return column.enum or column.type in _FORMS or _OTHER_SCALARS.fullmatch(column.type) is not None
