"""Convert MongoDB documents in an envelope to texts of extended JSON, and back.

A Change has only its own types, so a whole number is `$numberLong` only beyond 32 bits, and an ObjectId, a UUID or a
time is the same text as in the Change.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from forge.change import JSON_NULL, UNAVAILABLE, Change, Op, Row
from forge.debezium.codecs import PLACEHOLDER


def encode(row: Row | None) -> str | None:
    """
    >>> encode({"_id": 1, "total": Decimal("12.30"), "n": 2**40, "raw": b"a"})
    '{"_id": 1, "total": {"$numberDecimal": "12.30"}, "n": {"$numberLong": "1099511627776"}, \
"raw": {"$binary": {"base64": "YQ==", "subType": "00"}}}'
    """
    return (
        None if row is None else json.dumps({name: _written(value) for name, value in row.items()}, ensure_ascii=False)
    )


def decode(text: str | None) -> dict[str, Any] | None:
    """
    >>> decode(encode({"_id": 1, "total": Decimal("12.30"), "nan": [float("inf"), b"a", 2**40, UNAVAILABLE]}))
    {'_id': 1, 'total': Decimal('12.30'), 'nan': [inf, b'a', 1099511627776, UNAVAILABLE]}
    """
    if text is None:
        return None
    row = json.loads(text)
    if not isinstance(row, dict):
        raise ValueError("a document is a JSON object")
    return {name: _read(value) for name, value in row.items()}


def description(change: Change) -> dict[str, Any] | None:
    """Return what an update set and removed, as far as the row before is known."""
    if change.op is not Op.UPDATE or change.before is None or change.after is None:
        return None
    removed = [name for name in change.before if name not in change.after]
    updated = encode({name: change.after[name] for name in change.changed if name in change.after})
    return {"removedFields": removed or None, "updatedFields": updated, "truncatedArrays": None}


def _written(value: Any) -> Any:
    if value is UNAVAILABLE:
        return PLACEHOLDER
    if value is None or value is JSON_NULL:
        return None
    if isinstance(value, Decimal):
        return {"$numberDecimal": str(value)}
    if isinstance(value, bytes):
        return {"$binary": {"base64": b64encode(value).decode(), "subType": "00"}}
    if isinstance(value, float) and not -1e308 < value < 1e308:
        return {"$numberDouble": str(Decimal(value))}
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**31) <= value < 2**31:
        return {"$numberLong": str(value)}
    if isinstance(value, Mapping):
        return {name: _written(inner) for name, inner in value.items()}
    return [_written(inner) for inner in value] if isinstance(value, list) else value


def _read(value: Any) -> Any:
    if value == PLACEHOLDER:
        return UNAVAILABLE
    if isinstance(value, list):
        return [_read(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$numberDecimal": str(digits)}:
            return Decimal(digits)
        case {"$numberLong": str(digits)}:
            return int(digits)
        case {"$numberDouble": str(digits)}:
            return float(digits)
        case {"$binary": {"base64": str(raw)}}:
            return b64decode(raw, validate=True)
        case _:
            return {name: _read(inner) for name, inner in value.items()}
