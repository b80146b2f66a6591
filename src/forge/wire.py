"""Forge's wire form: encode a Change to one JSON object, and decode exactly the same Change.

The object has `table`, `schema`, `operation` in upper case, `id` (the key as one string, null if unknown), `timestamp`
(ISO 8601, UTC, microseconds, Z) and, for an update, `changed_columns`, for a redaction `redacted_columns`; then Forge's
additions: `change_id`, `key`, `before`, `after`, `source`, `context`, and `hidden` if there is any.

`JSON.parse` in a browser must lose nothing, so a value that it would round or could not read is tagged with a key in
`$`: see the table in `forge.values`. An object of a jsonb value that has such a key of its own is wrapped as
`{"$object": …}`, so a tag is always a tag. Column names are never tags.

>>> from decimal import Decimal
>>> encode_value([1, 9007199254740993, Decimal("12.30"), {"$int": None}])
[1, {'$int': '9007199254740993'}, {'$numeric': '12.30'}, {'$object': {'$int': None}}]
>>> decode_value({"$numeric": "12.30"})
Decimal('12.30')

Whatever `decode` is given, it returns a Change or raises DecodeError.
"""

import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Final

import msgspec

from forge.change import JSON_NULL, UNAVAILABLE, Change, ChangeSource, Context, JsonNull, Op, Unavailable
from forge.errors import DecodeError, EncodeError
from forge.values import MOST_LEVELS

MOST_EXACT_INT: Final = 2**53 - 1
"""The greatest whole number that a browser holds exactly; its negative is the least."""


def encode(change: Change, *, rows: bool = True) -> bytes:
    """Encode the change as one JSON object; without `rows`, only its identification and `change_id`.

    Raise EncodeError for a value nested deeper than Python can handle, which no reader of a log returns.
    """
    try:
        return msgspec.json.encode(_wire(change, rows=rows))
    except RecursionError:
        raise too_deep(change) from None


def _wire(change: Change, *, rows: bool) -> dict[str, Any]:
    wire: dict[str, Any] = {
        "table": change.table,
        "schema": change.schema,
        "operation": change.op.name,
        "id": None if change.key is None else change.row_id,
        "timestamp": timestamp(change.at),
    }
    if change.op is Op.UPDATE:
        wire["changed_columns"] = change.changed
    elif change.op is Op.REDACT:
        wire["redacted_columns"] = change.hidden
    wire["change_id"] = change.id
    if rows:
        source, context = change.source, change.context
        wire["key"] = encode_row(change.key)
        wire["before"] = encode_row(change.before)
        wire["after"] = encode_row(change.after)
        wire["source"] = {
            "kind": source.kind,
            "name": source.name,
            "position": source.position,
            "transaction": source.transaction,
        }
        wire["context"] = {
            "user_id": context.user_id,
            "function_name": context.function_name,
            "trace_id": context.trace_id,
            "session_user": context.session_user,
            "application_name": context.application_name,
            "more": encode_row(context.more),
        }
        if change.hidden:
            wire["hidden"] = change.hidden
    return wire


def decode(raw: bytes | str) -> Change:
    """Return the change that `encode` was given, with its rows."""
    try:
        wire = _decoder.decode(raw)
        return Change(
            id=wire.change_id,
            op=Op[wire.operation],
            schema=wire.schema,
            table=wire.table,
            source=wire.source,
            at=wire.timestamp,
            key=decode_row(wire.key),
            before=decode_row(wire.before),
            after=decode_row(wire.after),
            context=_context(wire.context),
            hidden=wire.hidden,
        )
    except KeyError:
        raise malformed("an unknown operation") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise malformed(error) from None


def encode_row(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return column values in their wire form; the names are not examined."""
    return None if row is None else {name: encode_value(value) for name, value in row.items()}


def decode_row(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Invert `encode_row`; raise DecodeError for anything that it never returns."""
    return None if row is None else {name: decode_value(value) for name, value in row.items()}


def encode_value(value: Any) -> Any:
    """Convert a value of a Change to what JSON can represent exactly."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return value if -MOST_EXACT_INT <= value <= MOST_EXACT_INT else {"$int": str(value)}
    if isinstance(value, Decimal):
        return {"$numeric": str(value)}
    if isinstance(value, float):
        return {"$float": name} if (name := special_float(value)) else value
    if isinstance(value, Mapping):
        coded = {name: encode_value(inner) for name, inner in value.items()}
        return {"$object": coded} if any(name.startswith("$") for name in coded) else coded
    if isinstance(value, (list, tuple)):
        return [encode_value(inner) for inner in value]
    if isinstance(value, bytes):
        return {"$bytes": b64encode(value).decode()}
    if isinstance(value, Unavailable):
        return {"$unavailable": True}
    if isinstance(value, JsonNull):
        return {"$json": None}
    raise TypeError(f"a {type(value).__name__} is not a value of a Change")


def decode_value(value: Any) -> Any:
    """Invert `encode_value`; raise DecodeError for anything that it never returns."""
    if isinstance(value, dict):
        tagged = [name for name in value if name.startswith("$")]
        if not tagged:
            return {name: decode_value(inner) for name, inner in value.items()}
        read = _TAGS.get(tagged[0]) if len(value) == 1 else None
        if read is None:
            raise malformed(f"unknown tag {tagged[0][:40]!r}")
        try:
            return read(value[tagged[0]])
        except (ValueError, ArithmeticError, TypeError):
            raise malformed(f"a malformed value under {tagged[0]!r}") from None
    if isinstance(value, list):
        return [decode_value(inner) for inner in value]
    return value


def timestamp(at: datetime) -> str:
    """Format as ISO 8601 in UTC, always with microseconds.

    >>> timestamp(datetime(2026, 1, 31, tzinfo=UTC))
    '2026-01-31T00:00:00.000000Z'
    """
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def special_float(value: float) -> str | None:
    """Return the name of a float that JSON numbers, or their readers, do not preserve."""
    if math.isfinite(value):
        return "-0" if value == 0 and math.copysign(1, value) < 0 else None
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def too_deep(change: Change) -> EncodeError:
    """Return the error for a change with a value that is nested too deep to encode."""
    return EncodeError(
        f"a value in a change of {change.schema}.{change.table} is nested too deep to be written",
        fix=f"give a value of more than {MOST_LEVELS} levels as its JSON text",
    )


def malformed(reason: object) -> DecodeError:
    """Return the error for a text that is not an encoded change."""
    line = " ".join(str(reason).split())[:200].encode(errors="replace").decode()
    return DecodeError(f"not an encoded change: {line}", fix="pass what forge encoded, whole and unaltered")


class _Context(msgspec.Struct, frozen=True):
    user_id: str | None = None
    function_name: str | None = None
    trace_id: str | None = None
    session_user: str | None = None
    application_name: str | None = None
    more: dict[str, Any] = {}


class _Wire(msgspec.Struct, frozen=True):
    table: str
    schema: str
    operation: str
    timestamp: Annotated[datetime, msgspec.Meta(tz=True)]
    change_id: str
    source: ChangeSource
    context: _Context
    key: dict[str, Any] | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    hidden: tuple[str, ...] = ()


_decoder: Final = msgspec.json.Decoder(_Wire)


def _context(context: _Context) -> Context:
    return Context(
        user_id=context.user_id,
        function_name=context.function_name,
        trace_id=context.trace_id,
        more=decode_row(context.more) or {},
        session_user=context.session_user,
        application_name=context.application_name,
    )


def _int(value: Any) -> int:
    if not re.fullmatch(r"-?[0-9]{1,4300}", value):
        raise ValueError
    return int(value)


def _numeric(value: Any) -> Decimal:
    if not re.fullmatch(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:E[+-]?[0-9]+)?|NaN|Infinity)", value):
        raise ValueError
    return Decimal(value)


def _float(value: Any) -> float:
    if value not in ("NaN", "Infinity", "-Infinity", "-0"):
        raise ValueError
    return float(value)


def _bytes(value: Any) -> bytes:
    return b64decode(value, validate=True)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return {name: decode_value(inner) for name, inner in value.items()}


def _only(expected: object, meaning: object) -> Callable[[Any], object]:
    def read(value: Any) -> object:
        if value is not expected:
            raise ValueError
        return meaning

    return read


_TAGS: Final[dict[str, Callable[[Any], Any]]] = {
    "$int": _int,
    "$numeric": _numeric,
    "$float": _float,
    "$bytes": _bytes,
    "$object": _object,
    "$unavailable": _only(True, UNAVAILABLE),
    "$json": _only(None, JSON_NULL),
}
