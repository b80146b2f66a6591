"""Exact encoding of values to bytes and back, safe to decode from any source.

None, bool, int, float, str, bytes, Decimal, date, datetime, time, timedelta, UUID, and lists, tuples and dicts of them;
nothing else, because a writer to the store must not be able to run code. A tuple is decoded as a list.

>>> value = {"total": Decimal("12.30"), "at": datetime(2026, 1, 31, 12), "ids": [1, 2**70], "none": None}
>>> decode(encode(value)) == value
True
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from forge.errors import NotCachable

_PLAIN: Final = (type(None), bool, float, str, bytes)
_LEAST, _MOST = -(2**63), 2**64 - 1
_TEXTS: Final[Mapping[str, tuple[type[Any], Callable[[Any], str], Callable[[str], Any]]]] = {
    "n": (Decimal, str, Decimal),
    "T": (datetime, datetime.isoformat, datetime.fromisoformat),
    "D": (date, date.isoformat, date.fromisoformat),
    "t": (time, time.isoformat, time.fromisoformat),
    "u": (UUID, str, UUID),
}
_TAGS: Final = {kind: (tag, write) for tag, (kind, write, _) in _TEXTS.items()}


def encode(value: Any) -> bytes:
    """Encode the value; raise NotCachable."""
    return msgspec.msgpack.encode(_tagged(value))


def decode(raw: bytes) -> Any:
    """Decode bytes from `encode`."""
    return _untagged(msgspec.msgpack.decode(raw))


def _tagged(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN or (kind is int and _LEAST <= value <= _MOST):
        return value
    if kind is list or kind is tuple:
        return ["l", *map(_tagged, value)]
    if kind is dict:
        return ["d", *(part for name, inner in value.items() for part in (_tagged(name), _tagged(inner)))]
    if kind is int:
        return ["i", str(value)]
    if kind is timedelta:
        return ["s", value.days, value.seconds, value.microseconds]
    if kind in _TAGS:
        tag, write = _TAGS[kind]
        return [tag, write(value)]
    raise NotCachable(f"a {kind.__name__} cannot be cached", fix="return plain values: numbers, texts, times, lists")


def _untagged(value: Any) -> Any:
    if type(value) is not list:
        return value
    match value[0]:
        case "l":
            return [_untagged(inner) for inner in value[1:]]
        case "d":
            return {_untagged(value[place]): _untagged(value[place + 1]) for place in range(1, len(value), 2)}
        case "i":
            return int(value[1])
        case "s":
            return timedelta(*value[1:])
        case tag:
            return _TEXTS[tag][2](value[1])
