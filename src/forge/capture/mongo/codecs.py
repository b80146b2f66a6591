"""BSON values as values of a Change: a document in, a row out; its top-level fields are the columns.

==================================  ==========================================================
BSON                                in a Change
==================================  ==========================================================
null                                None
bool                                bool
int, long                           int
double                              float; nan, ±inf and -0.0 too
decimal                             Decimal; NaN and ±Infinity too
string, symbol                      str
objectId                            str, its 24 hex digits
date                                str, ISO 8601 in UTC: 2026-01-31T12:00:00.5+00:00
binData, subtype 4 (UUID)           str, as 8-4-4-4-12 hex digits
binData, any other                  bytes
object, array                       dict, list, with values of these forms
a DBRef                             dict, its `$ref`, `$id` and `$db`
undefined                           None
regex, timestamp, javascript,       str, canonical extended JSON: {"$timestamp":{"t":1,"i":2}}
minKey, maxKey, a date beyond the
years 1 to 9999
==================================  ==========================================================

Text that is not UTF-8, which a server stores as it comes, has U+FFFD for what cannot be decoded.

>>> from bson import Decimal128, Int64, ObjectId, Timestamp
>>> row({"_id": ObjectId("65f0c0ffee65f0c0ffee65f0"), "n": Int64(7), "price": Decimal128("1.50")})
{'_id': '65f0c0ffee65f0c0ffee65f0', 'n': 7, 'price': Decimal('1.50')}
>>> row({"at": [Timestamp(1, 2)]})
{'at': ['{"$timestamp":{"t":1,"i":2}}']}
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from bson import json_util
from bson.binary import Binary, UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId

CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    document_class=dict,
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
)
"""Options for decoding the server's replies."""

_JSON: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL, uuid_representation=UuidRepresentation.STANDARD
)
_PLAIN: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None)})


def row(document: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a document to a row."""
    return {name: value if type(value) in _PLAIN else form(value) for name, value in document.items()}


def form(value: Any) -> Any:
    """Convert a value to the form stated above."""
    make = _FORMS.get(type(value))
    return _extended(value) if make is None else make(value)


def _same(value: Any) -> Any:
    return value


def _list(value: list[Any]) -> list[Any]:
    return [each if type(each) in _PLAIN else form(each) for each in value]


def _instant(value: datetime) -> str:
    text = value.isoformat()
    return text if not value.microsecond else text[:-6].rstrip("0") + text[-6:]


def _reference(value: DBRef) -> dict[str, Any]:
    return row(value.as_doc())


def _extended(value: Any) -> str:
    return json_util.dumps(value, json_options=_JSON, separators=(",", ":"))


_FORMS: Final[dict[type, Callable[[Any], Any]]] = {
    **dict.fromkeys(_PLAIN, _same),
    bytes: _same,
    dict: row,
    list: _list,
    ObjectId: str,
    Int64: int,
    Decimal128: Decimal128.to_decimal,
    datetime: _instant,
    UUID: str,
    Binary: bytes,
    DBRef: _reference,
}
