"""Debezium's change-event envelope: a Change in, one JSON object (the value's payload, no schema part) out.

The envelope is that of Debezium's PostgreSQL connector on a table with REPLICA IDENTITY FULL, with
`skipped.operations=none`, `decimal.handling.mode=string` and otherwise its defaults:
`time.precision.mode=adaptive`, `interval.handling.mode=numeric`, `binary.handling.mode=bytes`,
`provide.transaction.metadata=false`. Given the table's columns, values take the forms of that connector:

=============================  =====================================================================
numeric                        string; NAN, POSITIVE_INFINITY, NEGATIVE_INFINITY
real, double precision         number; "NaN", "Infinity", "-Infinity"
date                           days since 1970-01-01; infinities are the connector's two constants
timestamp                      microseconds since 1970-01-01, milliseconds if its precision is 3 or less;
                               infinities are the connector's two constants
timestamptz                    ISO 8601 in UTC with Z and as many decimals as the precision; "infinity"
time                           microseconds, or milliseconds, since midnight
interval                       microseconds, a month being 365.25 / 12 days
bytea                          base64
json, jsonb                    string of JSON
arrays                         lists of such values, literals with other bounds as they are
anything else                  as in a Change: time with time zone, bits, money, geometry, hstore and
                               arrays of json keep PostgreSQL's text form, which the connector does not
=============================  =====================================================================

Without columns nothing is known but the values: Decimal becomes a string, bytes base64, UNAVAILABLE the
placeholder, a JSON null null, and the rest stays.

What a log of Forge does not know is null: `lsn`, `xmin`, and in `sequence` the commit's place; `db` is empty.
`ts_ms` and its kin are the change's own time, so an event is the same whenever it is encoded. What the
envelope has no place for goes to a field `forge`, which consumers ignore and `decode` reads.

`decode` inverts `encode` when it is given the same columns, but an interval comes back as hours, minutes and
seconds, and a text that equals the placeholder as UNAVAILABLE.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import version
from typing import Any, Final, Literal, NamedTuple

import msgspec

from forge import wire
from forge.change import JSON_NULL, UNAVAILABLE, Change, Context, Op, Source
from forge.values import Column

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""What stands for UNAVAILABLE; in a bytea column its base64, in some arrays a list of it or of its codes."""

_OPS: Final = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.READ: "r", Op.TRUNCATE: "t"}
_BACK: Final = {letter: op for op, letter in _OPS.items()}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VERSION: Final = version("forge-changes")


class Order(NamedTuple):
    """The place of an event in its transaction, counted from 1: among all, and among those of its table."""

    total: int
    in_table: int


def encode(change: Change, *, columns: Sequence[Column] | None = None, order: Order | None = None) -> bytes | None:
    """The envelope; None for a change that is no row event: schema, invalidate, redact.

    With `order`, and a transaction that is known, there is a `transaction` block.
    """
    op = _OPS.get(change.op)
    if op is None:
        return None
    micros = (change.at - _EPOCH) // timedelta(microseconds=1)
    times = {"ts_ms": micros // 1000, "ts_us": micros, "ts_ns": micros * 1000}
    source = change.source
    transaction = source.transaction
    envelope = {
        "before": _encode_row(change.before, columns),
        "after": _encode_row(change.after, columns),
        "source": {
            "version": _VERSION,
            "connector": "postgresql",
            "name": source.name,
            **times,
            "snapshot": "true" if change.op is Op.READ else "false",
            "db": "",
            "sequence": json.dumps([None, source.position], ensure_ascii=False, separators=(",", ":")),
            "schema": change.schema,
            "table": change.table,
            "txId": int(transaction) if transaction and re.fullmatch("[0-9]{1,20}", transaction) else None,
            "lsn": None,
            "xmin": None,
        },
        "op": op,
        **times,
        "transaction": None
        if order is None or transaction is None
        else {"id": transaction, "total_order": order.total, "data_collection_order": order.in_table},
        "forge": {
            "change_id": change.id,
            "key": wire.encode_row(change.key),
            "hidden": change.hidden,
            "source": {"kind": source.kind, "position": source.position, "transaction": transaction},
            "context": {
                **{name: getattr(change.context, name) for name in _CONTEXT},
                "more": wire.encode_row(change.context.more),
            },
        },
    }
    return msgspec.json.encode(envelope)


def decode(raw: bytes | str, columns: Sequence[Column] | None = None) -> Change:
    """The change as far as the envelope carries it; raise DecodeError for what is no envelope.

    An event that Forge did not write has no key, no context, and an id made of its content.
    """
    try:
        envelope = _decoder.decode(raw)
        source, forge = envelope.source, envelope.forge or _foreign(envelope)
        micros = envelope.source.ts_ms * 1000 if source.ts_us is None else source.ts_us
        return Change(
            id=forge.change_id,
            op=_BACK[envelope.op],
            schema=source.schema,
            table=source.table,
            source=Source(forge.source.kind, source.name, forge.source.position, forge.source.transaction),
            at=_EPOCH + timedelta(microseconds=micros),
            key=wire.decode_row(forge.key),
            before=_decode_row(envelope.before, columns),
            after=_decode_row(envelope.after, columns),
            context=msgspec.structs.replace(forge.context, more=wire.decode_row(forge.context.more) or {}),
            hidden=forge.hidden,
        )
    except (msgspec.DecodeError, ValueError, ArithmeticError, TypeError, RecursionError) as error:
        raise wire.malformed(error) from None


_CONTEXT: Final = tuple(name for name in Context.__struct_fields__ if name != "more")


class _Origin(msgspec.Struct, frozen=True):
    kind: str
    position: str
    transaction: str | None


class _Forge(msgspec.Struct, frozen=True):
    change_id: str
    source: _Origin
    key: dict[str, Any] | None = None
    hidden: tuple[str, ...] = ()
    context: Context = Context()


class _Source(msgspec.Struct, frozen=True):
    name: str
    schema: str
    table: str
    ts_ms: int
    ts_us: int | None = None
    sequence: str | None = None
    txId: int | None = None
    lsn: int | None = None


class _Transaction(msgspec.Struct, frozen=True):
    id: str


class _Envelope(msgspec.Struct, frozen=True):
    source: _Source
    op: Literal["c", "u", "d", "r", "t"]
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    transaction: _Transaction | None = None
    forge: _Forge | None = None


_decoder: Final = msgspec.json.Decoder(_Envelope)


def _foreign(envelope: _Envelope) -> _Forge:
    """What Forge would have said of an event that a Debezium connector wrote."""
    source, transaction = envelope.source, envelope.transaction
    content = msgspec.json.encode([source, envelope.op, envelope.before, envelope.after])
    if source.txId is not None:
        name: str | None = str(source.txId)
    else:
        name = transaction.id if transaction else None
    position = source.sequence or ("" if source.lsn is None else str(source.lsn))
    return _Forge(blake2b(content, digest_size=16).hexdigest(), _Origin("debezium", position, name))


class _Form(NamedTuple):
    """How the values of a type are written and read, None and UNAVAILABLE apart."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    unavailable: Any = PLACEHOLDER


def _encode_row(row: Mapping[str, Any] | None, columns: Iterable[Column] | None) -> dict[str, Any] | None:
    if row is None:
        return None
    forms = {column.name: _form(column.type, column.kind) for column in columns or ()}
    coded = {}
    for name, value in row.items():
        form = forms.get(name, _PLAIN)
        if value is UNAVAILABLE:
            coded[name] = form.unavailable
        else:
            coded[name] = None if value is None else form.write(value)
    return coded


def _decode_row(row: Mapping[str, Any] | None, columns: Iterable[Column] | None) -> dict[str, Any] | None:
    if row is None:
        return None
    forms = {column.name: _form(column.type, column.kind) for column in columns or ()}
    values: dict[str, Any] = {}
    for name, value in row.items():
        form = forms.get(name, _PLAIN)
        if value in (PLACEHOLDER, form.unavailable):
            values[name] = UNAVAILABLE
        else:
            values[name] = None if value is None else form.read(value)
    return values


@lru_cache(maxsize=4096)
def _form(type_name: str, kind: str) -> _Form:
    """The form of a column; `kind` knows what a domain's name does not tell."""
    match = re.fullmatch(r"(.*?)(?:\(([0-9]+)[^)]*\))?((?: with(?:out)? time zone)?)((?:\[\])?)", type_name)
    if match is None or kind in ("masked", "hidden"):
        return _PLAIN
    base, precision, array = match[1] + match[3], int(match[2] or 6), bool(match[4])
    if kind.removesuffix("[]") in _BY_KIND:
        form = _BY_KIND[kind.removesuffix("[]")]
    elif base == "timestamp with time zone":
        form = _Form(lambda value: _zoned(value, precision), _read_zoned)
    elif base in ("timestamp without time zone", "time without time zone"):
        form = _TEMPORAL[base, 1000 if precision <= 3 else 1]
    elif f"{base} ".startswith("interval "):
        form = _Form(_interval, _read_interval)
    else:
        form = _BY_TYPE.get(base, _PLAIN)
    if not (array or kind.endswith("[]")):
        return form
    return _Form(
        lambda value: _each(form.write, value),
        lambda value: _each(form.read, value),
        _UNAVAILABLE_ARRAYS.get(base, PLACEHOLDER),
    )


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
    """JSON as PostgreSQL prints a jsonb value."""
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

# Time. PostgreSQL's years run from 4713 BC to 294276, beyond what datetime knows, so days are counted here.

_DAY: Final = 86_400_000_000
_MONTH: Final = _DAY * 36525 // 1200
_INFINITIES: Final = {"infinity": 9223372036825200000, "-infinity": -9223372036832400000}
_INFINITE_DATES: Final = {"infinity": -2147472692, "-infinity": -2147472691}
_MOMENT: Final = re.compile(
    r"(?P<year>[0-9]{4,7})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"(?:[T ](?P<time>[0-9:.]+)(?:\+00(?::00)?)?)?(?P<bc> BC)?"
)
_ZONED: Final = re.compile(r"(?P<date>[+-]?[0-9]{4,7}-[0-9]{2}-[0-9]{2})T(?P<time>[0-9:.]+)Z")
_CLOCK: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?")
_DURATION: Final = re.compile(
    r"P(?=.)(?:(-?[0-9]+)Y)?(?:(-?[0-9]+)M)?(?:(-?[0-9]+)D)?"
    r"(?:T(?:(-?[0-9]+)H)?(?:(-?[0-9]+)M)?(?:(-?)([0-9]+)(?:\.([0-9]{1,6}))?S)?)?"
)


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar; the year 0 is 1 BC.

    >>> _days(1970, 1, 1), _days(2000, 3, 1), _civil(_days(-4712, 2, 29))
    (0, 11017, (-4712, 2, 29))
    """
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468


def _civil(days: int) -> tuple[int, int, int]:
    era, day = divmod(days + 719468, 146097)
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day += 1 - (153 * month + 2) // 5
    return year + era * 400 + (month >= 10), (month + 2) % 12 + 1, day


def _clock(value: Any) -> Any:
    """Microseconds since midnight, or what is no time of day as it is."""
    match = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    hours, minutes, seconds, fraction = match.groups(default="0")
    return (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1_000_000 + int(fraction.ljust(6, "0"))


def _read_clock(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def _moment(value: Any) -> Any:
    """Microseconds since 1970, or what is no timestamp or date as it is."""
    match = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    year = int(match["year"])
    days = _days(1 - year if match["bc"] else year, int(match["month"]), int(match["day"]))
    micros = _clock(match["time"] or "00:00:00")
    return days * _DAY + micros if isinstance(micros, int) else value


def _read_date(days: int) -> tuple[str, str]:
    """A date as PostgreSQL prints it, and what follows when it is before the year 1."""
    year, month, day = _civil(days)
    era = " BC" if year <= 0 else ""
    return f"{1 - year if era else year:04}-{month:02}-{day:02}", era


def _read_moment(micros: int, zone: str = "") -> str:
    days, time = divmod(micros, _DAY)
    date, era = _read_date(days)
    return f"{date}T{_read_clock(time)}{zone}{era}"


def _zoned(value: Any, precision: int) -> Any:
    micros = _moment(value)
    if not isinstance(micros, int):
        return value
    days, time = divmod(micros, _DAY)
    year, month, day = _civil(days)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    seconds, fraction = divmod(time, 1_000_000)
    decimals = f".{fraction:06}"[: precision + 1] if precision else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}T{_read_clock(seconds * 1_000_000)}{decimals}Z"


def _read_zoned(value: Any) -> Any:
    match = _ZONED.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    year, month, day = match["date"].rsplit("-", 2)
    micros = _clock(match["time"])
    if not isinstance(micros, int):
        return value
    return _read_moment(_days(int(year), int(month), int(day)) * _DAY + micros, "+00:00")


def _interval(value: Any) -> Any:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    years, months, days, hours, minutes, sign, seconds, fraction = match.groups(default="")
    micros = int(seconds or 0) * 1_000_000 + int(fraction.ljust(6, "0"))
    whole_minutes = int(hours or 0) * 60 + int(minutes or 0)
    return (
        (int(years or 0) * 12 + int(months or 0)) * _MONTH
        + int(days or 0) * _DAY
        + whole_minutes * 60_000_000
        + (-micros if sign else micros)
    )


def _read_interval(micros: Any) -> Any:
    """The duration in hours, minutes and seconds: months and days are not told apart in microseconds.

    >>> _read_interval(93_784_500_000), _read_interval(-1), _read_interval(0)
    ('PT26H3M4.5S', 'PT-0.000001S', 'PT0S')
    """
    if not isinstance(micros, int):
        return micros
    sign = "-" if micros < 0 else ""
    minutes, rest = divmod(abs(micros), 60_000_000)
    seconds, fraction = divmod(rest, 1_000_000)
    decimals = f".{fraction:06}".rstrip("0") if fraction else ""
    parts = [(minutes // 60, "", "H"), (minutes % 60, "", "M"), (seconds, decimals, "S")]
    text = "".join(f"{sign}{number}{more}{unit}" for number, more, unit in parts if number or more)
    return f"PT{text or '0S'}"


def _counted(
    write: Callable[[Any], Any],
    read: Callable[[int], str],
    unit: int,
    special: Mapping[str, int],
) -> _Form:
    """Times as a number of `unit`s of what `write` counts, with numbers of their own for the infinities."""
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
_BY_KIND: Final = {
    "numeric": _Form(_numeric, _read_numeric),
    "float": _Form(_float, float),
    "bytea": _Form(_bytes, _read_bytes, b64encode(PLACEHOLDER.encode()).decode()),
    "jsonb": _Form(_json, _read_json),
}
_BY_TYPE: Final = {
    "date": _counted(_moment, lambda micros: "".join(_read_date(micros // _DAY)), _DAY, _INFINITE_DATES),
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
        ("timestamp without time zone", _moment, _read_moment, _INFINITIES),
        ("time without time zone", _clock, _read_clock, {}),
    )
}
_UNAVAILABLE_ARRAYS: Final[dict[str, Any]] = {
    **{name: [PLACEHOLDER] for name in ("text", "character varying", "json", "jsonb")},
    **{name: list(PLACEHOLDER.encode()) for name in ("integer", "bigint", "date")},
}
