"""Values in PostgreSQL's text form, as a session with `PINS` prints them → the forms of `forge.values`.

A type's form is one word, which the query `types` finds in the catalog:

============================  ===========================================  =========
form                          types                                        kind
============================  ===========================================  =========
bool                          boolean                                      plain
int                           smallint, integer, bigint                    plain
float                         real, double precision                       float
numeric, bytea, jsonb         those                                        the same
timestamp, timestamptz        those                                        plain
text                          anything else, json and what users made too  plain
one of these with `[]`, box[] arrays of types of PostgreSQL's own          … with []
============================  ===========================================  =========

Arrays of json, jsonb, ranges, composites and users' types are text, as in the log.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from forge.change import JSON_NULL
from forge.postgres import session
from forge.values import Column, Images

PINS: Final = {**session.OWN, **session.TEXTS, **session.CATALOG, "client_encoding": "UTF8"}
"""Settings of a session whose texts are decoded here; the trigger log's functions print the same."""

Decode = Callable[[bytes], Any]

_jsonb_images = Images([Column("v", "jsonb", "jsonb")], [])


def jsonb(raw: bytes) -> Any:
    """
    >>> jsonb(b'{"a": 1.10}'), jsonb(b"null"), jsonb(b'{"$json": 1}'), jsonb(b"7")
    ({'a': Decimal('1.10')}, JSON_NULL, {'$json': 1}, 7)
    """
    if raw == b"null":
        return JSON_NULL
    if b'"$json"' in raw:
        return _jsonb_images.row(b'{"v":{"$json":' + raw + b"}}")["v"]
    return _jsonb_images.row(b'{"v":' + raw + b"}")["v"]


def _bool(raw: bytes) -> bool:
    return raw == b"t"


def _numeric(raw: bytes) -> Decimal:
    return Decimal(raw.decode())


def _bytea(raw: bytes) -> bytes:
    return bytes.fromhex(raw[2:].decode())


def _timestamp(raw: bytes) -> str:
    """
    >>> _timestamp(b"0044-03-15 12:00:00 BC"), _timestamp(b"infinity")
    ('0044-03-15T12:00:00 BC', 'infinity')
    """
    return raw.decode().replace(" ", "T", 1)


def _timestamptz(raw: bytes) -> str:
    """
    >>> _timestamptz(b"2026-01-31 10:00:00.5+00")
    '2026-01-31T10:00:00.5+00:00'
    """
    return raw.decode().replace(" ", "T", 1).replace("+00", "+00:00", 1)


SCALARS: Final[dict[str, Decode]] = {
    "bool": _bool,
    "int": int,
    "float": float,
    "numeric": _numeric,
    "bytea": _bytea,
    "jsonb": jsonb,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "text": bytes.decode,
}
_KINDS: Final = {"float": "float", "numeric": "numeric", "bytea": "bytea", "jsonb": "jsonb"}

_ITEMS: Final = {
    delimiter: re.compile(rf'\{{|\}}|"((?:[^"\\]|\\.)*)"|([^{{}}{delimiter}"]+)|{delimiter}', re.DOTALL)
    for delimiter in ",;"
}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def kind_of(form: str) -> str:
    """Return the kind in `forge.values`.

    >>> kind_of("int"), kind_of("numeric"), kind_of("timestamp[]"), kind_of("float[]")
    ('plain', 'numeric', 'plain[]', 'float[]')
    """
    base, bracket, _ = form.partition("[]")
    return _KINDS.get(base, "plain") + bracket


def decoder(form: str) -> Decode:
    """Return the decoder of a form."""
    if form == "box[]":
        return array_of(bytes.decode, ";")
    if form.endswith("[]"):
        return array_of(SCALARS[form[:-2]])
    return SCALARS[form]


def array_of(element: Decode, delimiter: str = ",") -> Decode:
    """Decode arrays as nested lists; one whose lower bounds are not 1, or a vector, as its text.

    >>> ints = array_of(int)
    >>> ints(b"{{1,2},{3,NULL}}"), ints(b"{}"), ints(b"[0:1]={1,2}")
    ([[1, 2], [3, None]], [], '[0:1]={1,2}')
    >>> array_of(bytes.decode)(rb'{a,"b \\"c\\\\","NULL",null}')
    ['a', 'b "c\\\\', 'NULL', None]
    >>> array_of(bytes.decode, ";")(b"{(2,2),(1,1);(0,0),(0,0)}")
    ['(2,2),(1,1)', '(0,0),(0,0)']
    """
    items = _ITEMS[delimiter].finditer

    def parse(raw: bytes) -> Any:
        text = raw.decode()
        if not text:
            return []
        if text[0] != "{":
            return text
        outer: list[Any] = []
        stack = [outer]
        for match in items(text):
            token = match[0]
            if token == "{":
                inner: list[Any] = []
                stack[-1].append(inner)
                stack.append(inner)
            elif token == "}":
                stack.pop()
            elif match[1] is not None:
                stack[-1].append(element(_ESCAPED.sub(r"\1", match[1]).encode()))
            elif match[2] is not None:
                stack[-1].append(None if token.upper() == "NULL" else element(token.encode()))
        return outer[0]

    return parse
