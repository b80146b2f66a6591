"""Convert values of Debezium's connectors to values of a Change, and derive their columns.

`forge.debezium.codecs` decodes the forms that depend only on a column's type. This module first undoes encodings that
depend on the connector's configuration: decimals in base64 (`decimal.handling.mode=precise`), nanoseconds, bits.

The schema part of an event describes its columns; `columns_of` reads it. Without a schema part the columns come from
the lake's definitions, or are inferred.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from forge.change import UNAVAILABLE
from forge.debezium import PLACEHOLDER, times
from forge.debezium import codecs as forms
from forge.pipeline.archive import infer
from forge.pipeline.archive.images import MOST_AFTER_POINT, document
from forge.values import Column, too_deep
from forge.wire import malformed, timestamp

Row = Mapping[str, Any]


class ConversionStep(NamedTuple):
    """A conversion of a column's values before the conversion of its type, or with `last` instead of it."""

    read: Callable[[Any], Any]
    last: bool = False


class Described(NamedTuple):
    """The columns of a schema part."""

    columns: tuple[Column, ...]
    steps: Mapping[str, ConversionStep]

    def row(self, row: Row | None) -> dict[str, Any] | None:
        return read_row(row, self.columns, self.steps)


def read_row(row: Row | None, columns: Sequence[Column], steps: Mapping[str, ConversionStep]) -> dict[str, Any] | None:
    """Return the values of a Change; raise ValueError for a value in no form of its column."""
    if row is None:
        return None
    try:
        return _read_row(row, columns, steps)
    except (ValueError, ArithmeticError, TypeError, KeyError):
        types = {column.name: column.type for column in columns}
        for name, value in row.items():
            try:
                _read_row({name: value}, columns, steps)
            except (ValueError, ArithmeticError, TypeError, KeyError):
                raise ValueError(f"the value of {name[:60]!r} is no {types.get(name)}") from None
        raise


def _read_row(row: Row, columns: Sequence[Column], steps: Mapping[str, ConversionStep]) -> dict[str, Any]:
    done: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in row.items():
        step = steps.get(name)
        if step is None or value is None:
            rest[name] = value
        elif step.last:
            done[name] = UNAVAILABLE if value in _PLACEHOLDERS else step.read(value)
        else:
            rest[name] = value if value in _PLACEHOLDERS else step.read(value)
    formed = forms.decode_row(rest, columns) or {}
    return {name: done[name] if name in done else formed[name] for name in row}


_PLACEHOLDERS: Final = (PLACEHOLDER, b64encode(PLACEHOLDER.encode()).decode(), [PLACEHOLDER])


def unsent(value: Any) -> Any:
    """Return the value unchanged, or UNAVAILABLE for the connectors' placeholder."""
    return UNAVAILABLE if value in _PLACEHOLDERS else value


# --- without a schema part


def bare_steps(columns: Sequence[Column], base64: Collection[str], *, inferred: bool) -> dict[str, ConversionStep]:
    """Return the steps for columns whose types are known from elsewhere; `base64` names the columns with base64
    decimals."""
    steps: dict[str, ConversionStep] = {}
    for column in columns:
        if column.kind in ("numeric", "numeric[]"):
            steps[column.name] = ConversionStep(_each(partial(_decimal, _scale(column.type), column.name in base64)))
        elif column.kind == "jsonb":
            steps[column.name] = ConversionStep(_json, last=True)
        elif inferred and column.type == "json":
            steps[column.name] = ConversionStep(_text, last=True)
    return steps


def bare_trait(value: Any) -> int:
    """Return the trait of a value whose type comes from JSON alone, like `infer.trait`.

    >>> from forge.pipeline.archive.infer import type_of
    >>> wide, scaled = Decimal("0.12345678901234567890"), {"scale": 1, "value": "AQ=="}
    >>> [type_of(bare_trait(value))[0] for value in (Decimal("0.1"), wide, scaled)]
    ['double precision', 'numeric', 'numeric']
    """
    if isinstance(value, Decimal):
        return infer.FLOAT if value.is_finite() and Decimal(repr(float(value))) == value else infer.DECIMAL
    if isinstance(value, dict) and value.keys() == {"scale", "value"}:
        return infer.SCALED
    if isinstance(value, str) and value not in _PLACEHOLDERS:
        return infer.TEXT | (infer.BASE64 if _is_base64(value) and not _NUMBER.fullmatch(value) else 0)
    return infer.trait(unsent(value))


_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[Ee][+-]?[0-9]+)?|NAN|NaN|-?Infinity|(?:POSITIVE|NEGATIVE)_INFINITY")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def _is_base64(value: str) -> bool:
    return bool(value) and _BASE64.fullmatch(value) is not None


def _scale(type_name: str) -> int | None:
    """Return the number of decimals of a numeric; None when it is not fixed.

    >>> _scale("numeric(10,2)"), _scale("numeric(10)"), _scale("numeric")
    (2, 0, None)
    """
    match = re.search(r"\([0-9]+(?:,(-?[0-9]+))?\)", type_name)
    return None if match is None else int(match[1] or 0)


def _decimal(scale: int | None, base64: bool, value: Any) -> Any:
    """Read a decimal in any encoding of the connectors.

    Digits alone may be a number or base64. Where the type has decimals, a number would have a point; where it has none,
    `base64` decides.
    """
    if isinstance(value, dict):
        return _scaled(value)
    if not isinstance(value, str) or scale is None or not _is_base64(value):
        return value
    return _unscaled(value, scale) if base64 or scale > 0 or not _NUMBER.fullmatch(value) else value


# --- with a schema part


def columns_of(schema: bytes) -> Described | None:
    """Return the columns that a schema part describes, those of `after`; None when it describes no rows."""
    try:
        part = _parts.decode(schema)
    except (ValueError, RecursionError) as error:
        raise malformed(f"its schema part: {error}") from None
    if part is None:
        return None
    rows = {field.field: field.fields for field in part.fields or ()}
    fields = rows.get("after") or rows.get("before")
    if not fields:
        return None
    columns: dict[str, Column] = {}
    steps: dict[str, ConversionStep] = {}
    for field in fields:
        name = field.field or ""
        type_name, kind, step = _described(field)
        columns[name] = Column(name, type_name, kind)
        if step is not None:
            steps[name] = step
    return Described(tuple(columns.values()), steps)


class _Field(msgspec.Struct, frozen=True):
    type: str
    field: str | None = None
    name: str | None = None
    fields: "tuple[_Field, ...] | None" = None
    items: "_Field | None" = None
    parameters: dict[str, str] | None = None


_parts: Final = msgspec.json.Decoder(_Field | None)


def _described(field: _Field) -> tuple[str, str, ConversionStep | None]:
    """Return the type of a column, the kind of its values, and the step to apply first."""
    parameters = field.parameters or {}
    match field.name:
        case "org.apache.kafka.connect.data.Decimal":
            scale = int(parameters.get("scale", "0"))
            digits = parameters.get("connect.decimal.precision")
            name = f"numeric({int(digits)},{scale})" if digits else "numeric"
            return name, "numeric", ConversionStep(_each(lambda value: _precise(value, scale)))
        case "io.debezium.data.VariableScaleDecimal":
            return "numeric", "numeric", ConversionStep(_each(_scaled))
        case "io.debezium.data.Bits":
            length = int(parameters.get("length", "0"))
            name = f"bit({length})" if length else "bit varying"
            return name, "plain", ConversionStep(_each(lambda value: _bits(value, length)), last=True)
        case "io.debezium.time.ZonedTime":
            return "time with time zone", "plain", ConversionStep(_each(_zoned_time))
        case "io.debezium.time.NanoTimestamp":
            return "timestamp without time zone", "plain", ConversionStep(_each(_micros))
        case "io.debezium.time.ZonedTimestamp":
            return "timestamp with time zone", "plain", ConversionStep(_each(_utc))
        case "io.debezium.time.NanoTime":
            return "time without time zone", "plain", ConversionStep(_each(lambda value: _clock(_micros(value), 1)))
        case "io.debezium.time.MicroTime":
            return "time without time zone", "plain", ConversionStep(_each(lambda value: _clock(value, 1)))
        case "io.debezium.time.Time" | "org.apache.kafka.connect.data.Time":
            return "time(3) without time zone", "plain", ConversionStep(_each(lambda value: _clock(value, 1000)))
        case "io.debezium.time.NanoDuration":
            return "interval", "plain", ConversionStep(_each(_micros))
        case name if name in _NAMED:
            return (*_NAMED[name], None)
    if field.type == "array" and field.items is not None:
        name, kind, step = _described(field.items)
        if not name.endswith("[]") and name != "json":
            return f"{name}[]", f"{kind}[]", step
    if field.type in _TYPES:
        return (*_TYPES[field.type], None)
    return "json", "plain", ConversionStep(_text, last=True)


_NAMED: Final[dict[str | None, tuple[str, str]]] = {
    "io.debezium.time.Date": ("date", "plain"),
    "org.apache.kafka.connect.data.Date": ("date", "plain"),
    "io.debezium.time.Timestamp": ("timestamp(3) without time zone", "plain"),
    "org.apache.kafka.connect.data.Timestamp": ("timestamp(3) without time zone", "plain"),
    "io.debezium.time.MicroTimestamp": ("timestamp without time zone", "plain"),
    "io.debezium.time.MicroDuration": ("interval", "plain"),
    "io.debezium.time.Interval": ("interval", "plain"),
    "io.debezium.data.Json": ("json", "plain"),
    "io.debezium.data.Uuid": ("uuid", "plain"),
    "io.debezium.data.Xml": ("xml", "plain"),
}
_TYPES: Final = {
    "boolean": ("boolean", "plain"),
    "int8": ("smallint", "plain"),
    "int16": ("smallint", "plain"),
    "int32": ("integer", "plain"),
    "int64": ("bigint", "plain"),
    "float": ("real", "float"),
    "float32": ("real", "float"),
    "double": ("double precision", "float"),
    "float64": ("double precision", "float"),
    "string": ("text", "plain"),
    "bytes": ("bytea", "bytea"),
}


def adapt(row: Row | None, columns: Sequence[Column]) -> dict[str, Any] | None:
    """Convert values typed by a schema part to values of the lake's own columns."""
    if row is None:
        return None
    kinds = {column.name: column.kind for column in columns}
    return {name: _adapted(value, kinds.get(name)) for name, value in row.items()}


def _adapted(value: Any, kind: str | None) -> Any:
    if kind == "jsonb" and isinstance(value, str):
        return _json(value)
    if kind == "numeric" and isinstance(value, float):
        return Decimal(repr(value))
    if kind == "numeric" and type(value) is int:
        return Decimal(value)
    if kind == "float" and isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        return float(value)
    return value


def _text(value: Any) -> Any:
    """Encode a value that is not text as JSON."""
    return value if isinstance(value, str) else document(value)


def _json(value: Any) -> Any:
    """Parse JSON text; text nested too deep is kept as text."""
    if not isinstance(value, str):
        return value
    try:
        row = forms.decode_row({"v": value}, _A_JSONB) or {}
    except RecursionError:
        return value
    return value if too_deep(row) else row["v"]


_A_JSONB: Final = (Column("v", "jsonb", "jsonb"),)


def _each(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Apply a function to every element of an array."""

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [None if item is None else one(item) for item in value]
        return read(value)

    return one


def _precise(value: Any, scale: int) -> Any:
    """Read a Decimal of Kafka Connect: base64, or a number if its converter is configured so."""
    return _unscaled(value, scale) if isinstance(value, str) else value


def _scaled(value: Any) -> Any:
    if isinstance(value, dict):
        return _unscaled(value["value"], int(value["scale"]))
    return value


def _unscaled(value: str, scale: int) -> Decimal:
    """
    >>> _unscaled("BM4=", 2), _unscaled("/w==", 0)
    (Decimal('12.30'), Decimal('-1'))
    """
    sign, digits, _ = Decimal(int.from_bytes(b64decode(value, validate=True), "big", signed=True)).as_tuple()
    if abs(scale) > MOST_AFTER_POINT:
        raise ValueError("a scale that no decimal has")
    return Decimal((sign, digits, -scale))


def _bits(value: Any, length: int) -> str:
    """Return bits as PostgreSQL prints them; a connector sends bytes in base64, the lowest first.

    >>> _bits("BQ==", 4)
    '0101'
    """
    if isinstance(value, bool):
        return "1" if value else "0"
    number = int.from_bytes(b64decode(value, validate=True), "little")
    return format(number, "b").zfill(length)


def _zoned_time(value: Any) -> Any:
    return re.sub(r"(?:Z|\+00:00)$", "+00", value) if isinstance(value, str) else value


def _utc(value: Any) -> Any:
    """
    >>> _utc("2026-01-31T12:00:00.5+02:00"), _utc("2026-01-31T12:00:00Z"), _utc("infinity")
    ('2026-01-31T10:00:00.500000Z', '2026-01-31T12:00:00Z', 'infinity')
    """
    if not isinstance(value, str) or not re.search(r"[0-9][+-][0-9]{2}:[0-9]{2}$", value):
        return value
    return timestamp(datetime.fromisoformat(value))


def _clock(value: Any, unit: int) -> Any:
    """Return a time of day unchanged, but a negative one, which MySQL has and PostgreSQL lacks, as text."""
    return f"-{times.read_clock(-value * unit)}" if isinstance(value, int) and value < 0 else value


def _micros(value: Any) -> Any:
    """Convert nanoseconds to microseconds; no source has fractions of a microsecond."""
    if not isinstance(value, int):
        return value
    micros, rest = divmod(value, 1000)
    if rest:
        raise ValueError("a time finer than a microsecond")
    return micros
