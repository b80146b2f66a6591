"""Payload of a change: the whole change in an envelope, or a user-defined body.

    payload={"text": "Order {key.id} is {row.status}", "total": "{row.total}"}

Such a template is any JSON object with placeholders. A placeholder is a path into the change: `id`, `op`, `schema`,
`table`, `at`, `key`, `before`, `after`, `row` (after, or before for a delete), `changed`, `context`. A text that is one
placeholder alone becomes the value itself; in longer texts values are written as text. A missing value is null, and
empty inside a text; so is a value that the source did not send. `{{` and `}}` are braces. The content of a column is
never read as a placeholder.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec

from forge import debezium, wire
from forge.change import JSON_NULL, UNAVAILABLE, Change, text
from forge.errors import ConfigError, EncodeError

Envelope = Literal["forge", "debezium"]
Payload = Mapping[str, Any] | None
Encode = Callable[[Change], bytes | None]

_PLACE: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_ROOTS: Final = ("id", "op", "schema", "table", "at", "key", "before", "after", "row", "changed", "context")
_ROWS: Final = ("key", "before", "after", "row", "context")
_WORDS: Final = ("user_id", "function_name", "trace_id", "session_user", "application_name", "more")


def encoder(envelope: Envelope = "forge", payload: Payload = None) -> Encode:
    """Return a function that encodes a change as bytes, or as None if the envelope has no form for it. Raise
    ConfigError."""
    if envelope not in ("forge", "debezium"):
        raise ConfigError(f"the envelope {envelope!r} is unknown", fix='use "forge" or "debezium"')
    encode: Encode = debezium.encode if envelope == "debezium" else wire.encode
    if payload is None:
        return encode
    if not isinstance(payload, Mapping):
        raise ConfigError("the payload is no template", fix='payload={"text": "Order {key.id} is {row.status}"}')
    if envelope != "forge":
        raise ConfigError("a template is a body of its own, without an envelope", fix="leave out the envelope")
    template = _checked(payload)
    return lambda change: _filled(template, change)


def _checked(value: Any, depth: int = 0) -> Any:
    """Return a template if each of its placeholders is valid."""
    if depth > 32:
        raise ConfigError("the template is nested too deeply", fix="make it flatter: 32 levels are taken")
    if isinstance(value, str):
        for place in (found[1] for found in _PLACE.finditer(value) if found[1] is not None):
            root, _, rest = place.partition(".")
            if root not in _ROOTS or (rest and root not in _ROWS) or (root == "context" and rest and _odd(rest)):
                raise ConfigError(
                    f"the template's place {{{place}}} leads nowhere",
                    fix=f"begin with {', '.join(_ROOTS)}, such as {{row.status}} or {{context.user_id}}",
                )
        return value
    if isinstance(value, Mapping):
        return {str(name): _checked(part, depth + 1) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_checked(part, depth + 1) for part in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ConfigError(f"a template cannot have a {type(value).__name__}", fix="use what JSON has")


def _odd(rest: str) -> bool:
    word, dot, _ = rest.partition(".")
    return word not in _WORDS or (dot != "" and word != "more")


def _filled(template: Any, change: Change) -> bytes:
    """
    >>> from forge.change import Op, Source
    >>> change = Change("7:1", Op.UPDATE, "public", "orders", Source("log", "x", "1"), datetime(2026, 1, 1),
    ...     key={"id": 1}, before={"id": 1, "total": None}, after={"id": 1, "total": Decimal("9.50")})
    >>> template = {"text": "{op} of {table} {key.id}: {row.total}{row.x}", "was": "{before.total}", "is": "{row}"}
    >>> _filled(template, change)
    b'{"text":"update of orders 1: 9.50","was":null,"is":{"id":1,"total":"9.50"}}'
    """
    try:
        return msgspec.json.encode(_fill(template, change))
    except (RecursionError, TypeError, ValueError) as error:
        raise EncodeError(f"{change.id} does not fit into the template: {error}", fix="choose fewer columns") from None


def _fill(part: Any, change: Change) -> Any:
    if isinstance(part, str):
        if (alone := _PLACE.fullmatch(part)) is not None and alone[1] is not None:
            return _plain(_at(change, alone[1]))
        return _PLACE.sub(lambda place: place[0][0] if place[1] is None else _written(_at(change, place[1])), part)
    if isinstance(part, dict):
        return {name: _fill(inner, change) for name, inner in part.items()}
    if isinstance(part, list):
        return [_fill(inner, change) for inner in part]
    return part


def _at(change: Change, path: str) -> Any:
    root, _, rest = path.partition(".")
    if root == "row":
        found: Any = change.before if change.after is None else change.after
    elif root == "op":
        found = change.op.value
    elif root == "context":
        word, _, rest = rest.partition(".")
        found = getattr(change.context, word) if word else msgspec.structs.asdict(change.context)
    else:
        found = getattr(change, root)
    if not rest or found is None:
        return found
    return found.get(rest)


def _plain(value: Any) -> Any:
    """Return a value as ordinary JSON: numbers that JSON would round become texts."""
    if value is UNAVAILABLE or value is JSON_NULL:
        return None
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime):
        return wire.timestamp(value)
    if isinstance(value, Decimal | bytes | date | time) or (isinstance(value, int) and abs(value) > 2**53):
        return text(value)
    if isinstance(value, float) and wire.special_float(value):
        return text(value)
    return value


def _written(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else text(plain)
