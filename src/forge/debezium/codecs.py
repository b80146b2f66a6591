"""The forms of values in an envelope, by the type of their column; encode and decode them."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from forge import wire
from forge.change import JSON_NULL, UNAVAILABLE
from forge.debezium import times
from forge.values import Column

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""Stands for UNAVAILABLE; in a bytea column its base64, in some arrays a list of it or of its codes."""


class _Form(NamedTuple):
    """Encoder and decoder of the values of a type, except None and UNAVAILABLE."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    unavailable: Any = PLACEHOLDER


def encode_row(
    row: Mapping[str, Any] | None, columns: Iterable[Column] | None, connector: str = "postgresql"
) -> dict[str, Any] | None:
    if row is None:
        return None
    forms = {column.name: _form(column.type, column.kind, connector) for column in columns or ()}
    coded = {}
    for name, value in row.items():
        form = forms.get(name, _PLAIN)
        if value is UNAVAILABLE:
            coded[name] = form.unavailable
        else:
            coded[name] = None if value is None else form.write(value)
    return coded


def decode_row(
    row: Mapping[str, Any] | None, columns: Iterable[Column] | None, connector: str = "postgresql"
) -> dict[str, Any] | None:
    if row is None:
        return None
    forms = {column.name: _form(column.type, column.kind, connector) for column in columns or ()}
    values: dict[str, Any] = {}
    for name, value in row.items():
        form = forms.get(name, _PLAIN)
        if value in (PLACEHOLDER, form.unavailable):
            values[name] = UNAVAILABLE
        else:
            values[name] = None if value is None else form.read(value)
    return values


@lru_cache(maxsize=4096)
def _form(type_name: str, kind: str, connector: str) -> _Form:
    """Return the form of a column; `kind` has what a domain's name does not show."""
    if connector in ("mysql", "mariadb"):
        return _mysql_form(type_name, kind)
    if connector != "postgresql":
        return _BY_KIND.get(kind, _PLAIN)
    match = re.fullmatch(r"(.*?)(?:\(([0-9]+)[^)]*\))?((?: with(?:out)? time zone)?)((?:\[\])?)", type_name)
    if match is None or kind in ("masked", "hidden"):
        return _PLAIN
    base, precision, array = match[1] + match[3], int(match[2] or 6), bool(match[4])
    if kind.removesuffix("[]") in _BY_KIND:
        form = _BY_KIND[kind.removesuffix("[]")]
    elif base == "timestamp with time zone":
        form = _Form(lambda value: times.zoned(value, precision), times.read_zoned)
    elif base in ("timestamp without time zone", "time without time zone"):
        form = _TEMPORAL[base, 1000 if precision <= 3 else 1]
    elif base == "bit":
        form = _bit_form(int(match[2] or 1))
    elif f"{base} ".startswith("interval "):
        form = _Form(times.interval, times.read_interval)
    else:
        form = _BY_TYPE.get(base, _PLAIN)
    if not (array or kind.endswith("[]")):
        return form
    return _Form(
        lambda value: _each(form.write, value),
        lambda value: _each(form.read, value),
        _UNAVAILABLE_ARRAYS.get(base, PLACEHOLDER),
    )


def _mysql_form(type_name: str, kind: str) -> _Form:
    """Return the form of a column of MySQL: its times have other names than PostgreSQL's, and bits are bytes."""
    match = re.fullmatch(r"([a-z ]+?)(?:\(([0-9]+)(?:,[0-9]+)?\))?(?: unsigned| zerofill| null)*", type_name.lower())
    if match is None or kind in ("masked", "hidden"):
        return _PLAIN
    base, digits = match[1], int(match[2] or 0)
    if kind in _BY_KIND and base != "bit":
        return _BY_KIND[kind]
    if base == "timestamp":
        return _real(_Form(lambda value: times.zoned(value, digits), times.read_zoned))
    if base == "datetime":
        return _real(_TEMPORAL["timestamp without time zone", 1000 if digits <= 3 else 1])
    if base == "time":
        return _Form(times.span, times.read_span)
    if base == "date":
        return _real(_BY_TYPE["date"])
    if base == "bit":
        return _bit_form(digits)
    return _PLAIN


def _real(form: _Form) -> _Form:
    """Return the form with null for an invalid day, such as 0000-00-00, as in the connector."""

    def write(value: Any) -> Any:
        return None if isinstance(value, str) and _NO_DAY.match(value) else form.write(value)

    return _Form(write, form.read, form.unavailable)


_NO_DAY: Final = re.compile(r"[0-9]{4}-(?:00-|[0-9]{2}-00)")


def _bit_form(digits: int) -> _Form:
    return _BIT if digits <= 1 else _bits(digits)


def _bits(digits: int) -> _Form:
    """Return the connector's form of bits: bytes, the least significant first.

    >>> form = _bits(10)
    >>> form.write("1000000101"), form.read(form.write("1000000101"))
    ('BQI=', '1000000101')
    """
    size = (digits + 7) // 8

    def write(value: Any) -> Any:
        return b64encode(int(value, 2).to_bytes(size, "little")).decode()

    def read(value: Any) -> str:
        return format(int.from_bytes(b64decode(value, validate=True), "little"), f"0{digits}b")

    return _Form(write, read)


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [
        None if item is None else _each(function, item) if isinstance(item, list) else function(item) for item in value
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if value is JSON_NULL else value


def _same(value: Any) -> Any:
    return value


_NUMERIC_NAMES: Final = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
_NUMERIC_VALUES: Final = {name: text for text, name in _NUMERIC_NAMES.items()}


def _numeric(value: Any) -> str:
    return _NUMERIC_NAMES.get(str(value), str(value))


def _read_numeric(value: Any) -> Decimal:
    return Decimal(_NUMERIC_VALUES.get(value, value))


def _float(value: Any) -> Any:
    name = wire.special_float(value) if isinstance(value, float) else None
    return value if name in (None, "-0") else name


def _bytes(value: Any) -> Any:
    return b64encode(value).decode() if isinstance(value, bytes) else value


def _read_bytes(value: Any) -> bytes:
    return b64decode(value, validate=True)


def _json(value: Any) -> str:
    """Return JSON as PostgreSQL prints a jsonb value."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_json(name)}: {_json(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(None if value is JSON_NULL else value, ensure_ascii=False)


def _read_json(value: Any) -> Any:
    decoded = _json_decoder.decode(value)
    return JSON_NULL if decoded is None else decoded


_json_decoder: Final = msgspec.json.Decoder(float_hook=Decimal)


def _counted(
    write: Callable[[Any], Any],
    read: Callable[[int], str],
    unit: int,
    special: Mapping[str, int],
) -> _Form:
    """Return the form of times: a number of `unit`s of what `write` counts, special numbers for the infinities."""
    texts = {number: text for text, number in special.items()}

    def encode_time(value: Any) -> Any:
        if isinstance(value, str) and value in special:
            return special[value]
        count = write(value)
        return count // unit if isinstance(count, int) else count

    def decode_time(value: Any) -> Any:
        if not isinstance(value, int):
            return value
        return texts[value] if value in texts else read(value * unit)

    return _Form(encode_time, decode_time)


_PLAIN: Final = _Form(_plain, _same)
_BIT: Final = _Form(lambda value: value == "1", lambda value: "1" if value else "0")
_BY_KIND: Final = {
    "numeric": _Form(_numeric, _read_numeric),
    "float": _Form(_float, float),
    "bytea": _Form(_bytes, _read_bytes, b64encode(PLACEHOLDER.encode()).decode()),
    "jsonb": _Form(_json, _read_json),
}
_BY_TYPE: Final = {
    "date": _counted(
        times.moment, lambda micros: "".join(times.read_date(micros // times.DAY)), times.DAY, times.INFINITE_DATES
    ),
    "numeric": _BY_KIND["numeric"],
    "real": _BY_KIND["float"],
    "double precision": _BY_KIND["float"],
    "bytea": _BY_KIND["bytea"],
    "jsonb": _BY_KIND["jsonb"],
}
_TEMPORAL: Final = {
    (name, unit): _counted(write, read, unit, {text: number // unit for text, number in special.items()})
    for unit in (1, 1000)
    for name, write, read, special in (
        ("timestamp without time zone", times.moment, times.read_moment, times.INFINITIES),
        ("time without time zone", times.clock, times.read_clock, {}),
    )
}
_UNAVAILABLE_ARRAYS: Final[dict[str, Any]] = {
    **{name: [PLACEHOLDER] for name in ("text", "character varying", "json", "jsonb")},
    **{name: list(PLACEHOLDER.encode()) for name in ("integer", "bigint", "date")},
}
