"""Column values in a Change, and the decoding of logged row images to such values.

A value has one defined form, whatever the settings of the writer's session, and nothing is rounded:

==========================  ========================================  ====================================
PostgreSQL                  in a Change                               on the wire (`forge.wire`)
==========================  ========================================  ====================================
NULL                        None                                      null
boolean                     bool                                      true, false
smallint, integer, bigint   int                                       1, or {"$int": "9007199254740993"}
                                                                      beyond ±(2^53 - 1)
numeric                     Decimal; NaN and ±Infinity too            {"$numeric": "12.30"}
real, double precision      float; nan, ±inf and -0.0 too             1.5, or {"$float": "NaN"} for those
bytea                       bytes                                     {"$bytes": "3q2+7w=="}
jsonb                       decoded: int for whole numbers, Decimal   the same, with the tags of its parts;
                            for others; JSON_NULL for a JSON null     {"$json": null}; an object with a key
                            at the top, None inside                   in "$…" as {"$object": {"$…": 1}}
json                        str, its text verbatim                    "…"
date, time, timestamp       str, ISO 8601, or 'infinity', '-infinity'  "2026-01-31T12:00:00"
timestamptz                 str, ISO 8601 in UTC, or the infinities   "2026-01-31T12:00:00+00:00"
interval                    str, ISO 8601 duration                    "P1DT2H"
an array                    list, nested for more dimensions; None    […]
                            is a NULL element
an array whose lower        str, its literal                          "[0:1]={a,b}"
bounds are not 1, or of
json, ranges, composites
or types of extensions
text, uuid, ranges, enums,  str, PostgreSQL's text form               "…"
composites, anything else
not sent, or redacted       UNAVAILABLE                               {"$unavailable": true}
==========================  ========================================  ====================================

A `real` is the float that its shortest text names: 0.1 stays 0.1. A whole number of more than 4,300 digits
inside a jsonb value is a Decimal. A jsonb value nested deeper than 200 levels is a str, its JSON text, so that
recursion over values ends well before Python's limit.

`Images` is compiled once for a version of a table and decodes its row images, JSON objects as row_to_json
prints them:

>>> images = Images([Column("id", "bigint"), Column("price", "numeric(10,2)", "numeric"),
...     Column("secret", "text", "hidden")], key=["id"])
>>> row = images.row('{"id": 9007199254740993, "price": 12.30}')
>>> row
{'id': 9007199254740993, 'price': Decimal('12.30'), 'secret': UNAVAILABLE}
>>> images.key(row)
{'id': 9007199254740993}
>>> {**row, **images.partial('{"price": 12}')}
{'id': 9007199254740993, 'price': Decimal('12'), 'secret': UNAVAILABLE}

If values were redacted from the log, the image names their columns under `$redacted`:

>>> images.row('{"id": 1, "price": {"$redacted": true}, "$redacted": ["price"]}')
{'id': 1, 'price': UNAVAILABLE, 'secret': UNAVAILABLE}
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from forge.change import JSON_NULL, UNAVAILABLE
from forge.errors import DecodeError

MOST_LEVELS: Final = 200
"""Maximum nesting depth of arrays and objects in a value."""

REDACTED: Final = "$redacted"
"""The name under which an image lists its redacted columns; a column of that name is a column."""

_MOST_DIGITS = 4300
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]')


class Column(msgspec.Struct, frozen=True):
    """A column of a table: `type` as PostgreSQL's format_type prints it, `kind` how its values are logged.

    The kinds are `plain`, `masked` (both used unchanged), `float`, `numeric`, `bytea`, `jsonb`, `hidden` (never in an
    image), and `plain[]`, `float[]`, `numeric[]`, `bytea[]`.
    """

    name: str
    type: str
    kind: str = "plain"


class Images:
    """Decodes the row images of one version of a table."""

    def __init__(self, columns: Sequence[Column], key: Sequence[str]) -> None:
        self.columns: Final = tuple(columns)
        self.key_names: Final = tuple(key)
        for column in self.columns:
            if column.kind not in _FIXES:
                raise ValueError(f"column {column.name!r} has the unknown kind {column.kind!r}")
        self._unsent = dict.fromkeys((column.name for column in self.columns), UNAVAILABLE)
        if unknown := set(key) - self._unsent.keys():
            raise ValueError(f"the key has columns that the table lacks: {sorted(unknown)}")
        self._hidden = tuple(column.name for column in self.columns if column.kind == "hidden")
        self._fixes = tuple((column.name, fix) for column in self.columns if (fix := _FIXES[column.kind]) is not None)
        self._whole = None if self._hidden else self._unsent.keys()
        self._marks = REDACTED not in self._unsent
        self._only_key = self.key_names[0] if len(self.key_names) == 1 else None
        floats = any(column.kind in ("float", "float[]") for column in self.columns)
        self._read = _decode_negative_zero if floats else _decode
        self._decode = self._decode_nested if any(column.kind == "jsonb" for column in self.columns) else self._read

    def row(self, raw: bytes | str) -> dict[str, Any]:
        """Return all columns in the order of the image, which is the table's, then names that the table does not have.

        A column that the image lacks, and every hidden one, is UNAVAILABLE.
        """
        row = self._decode(raw)
        if row.keys() != self._whole:
            row = self._fill(row)
        try:
            for name, fix in self._fixes:
                value = row[name]
                if value is not None:
                    row[name] = fix(value)
        except (ValueError, ArithmeticError, TypeError) as error:
            raise _not_an_image(error) from None
        return row

    def partial(self, raw: bytes | str) -> dict[str, Any]:
        """Return only the columns that the image has."""
        row = self._decode(raw)
        if REDACTED in row and self._marks:
            _take_out(row)
        for name in self._hidden:
            row.pop(name, None)
        try:
            for name, fix in self._fixes:
                value = row.get(name)
                if value is not None:
                    row[name] = fix(value)
        except (ValueError, ArithmeticError, TypeError) as error:
            raise _not_an_image(error) from None
        return row

    def key(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the key columns of a row that `row()` returned; None if the table has no key."""
        name = self._only_key
        if name is not None:
            return {name: row[name]}
        return {name: row[name] for name in self.key_names} or None

    def _decode_nested(self, raw: bytes | str) -> dict[str, Any]:
        """Do the same as `_read`, for tables with jsonb. Only texts with many brackets are checked for their depth."""
        row = self._read(raw)
        marks = ("[", "{") if isinstance(raw, str) else (b"[", b"{")
        if sum(map(raw.count, marks)) > MOST_LEVELS and too_deep(row):  # type: ignore[arg-type]
            return _decode_deep(raw)
        return row

    def _fill(self, row: dict[str, Any]) -> dict[str, Any]:
        if REDACTED in row and self._marks:
            _take_out(row)
        filled = {**self._unsent, **row}
        for name in self._hidden:
            filled[name] = UNAVAILABLE
        return filled


def _take_out(row: dict[str, Any]) -> None:
    names = row.pop(REDACTED)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _not_an_image(f"{REDACTED} is no list of columns")
    row |= dict.fromkeys(names, UNAVAILABLE)


_fast = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal).decode
_zero_in_text = re.compile(r"-0[,}\]]").search
_zero_in_bytes = re.compile(rb"-0[,}\]]").search


def _decode(raw: bytes | str) -> dict[str, Any]:
    try:
        return _fast(raw)
    except (msgspec.DecodeError, UnicodeError):
        return _decode_slowly(raw)
    except RecursionError:
        return _decode_deep(raw)
    except ArithmeticError as error:
        raise _not_an_image(error) from None


def _decode_negative_zero(raw: bytes | str) -> dict[str, Any]:
    """Do the same as `_decode`, for tables with floats: there -0 means -0.0, and not the integer."""
    found = _zero_in_text(raw) if isinstance(raw, str) else _zero_in_bytes(raw)
    return _decode(raw) if found is None else _decode_slowly(raw)


def _decode_slowly(raw: bytes | str) -> dict[str, Any]:
    """Decode numbers that msgspec refuses (too many digits) or changes (-0) with the standard library."""
    try:
        row = json.loads(raw, parse_float=Decimal, parse_int=_whole_number, parse_constant=_no_constant)
    except RecursionError:
        return _decode_deep(raw)
    except (ValueError, ArithmeticError) as error:
        raise _not_an_image(error) from None
    if not isinstance(row, dict):
        raise _not_an_image("not a JSON object")
    return row


def _decode_deep(raw: bytes | str) -> dict[str, Any]:
    """Decode an image with a value that is nested too deep: that value stays its JSON text.

    >>> _decode_deep('{"a": [1, "],{"], "b": {}}')
    {'a': [1, '],{'], 'b': {}}
    """
    text = raw if isinstance(raw, str) else raw.decode()
    row: dict[str, Any] = {}
    try:
        for name, value in members(text):
            if _levels(value) > MOST_LEVELS:
                row[name] = value.strip()
            else:
                row[name] = json.loads(value, parse_float=Decimal, parse_int=_whole_number, parse_constant=_no_constant)
    except (ValueError, ArithmeticError) as error:
        raise _not_an_image(error) from None
    return row


def too_deep(row: Mapping[str, Any]) -> bool:
    """Tell whether a decoded value is nested too deep; checked level by level, without recursion."""
    level: list[Any] = [row]
    for _ in range(MOST_LEVELS + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def _levels(text: str) -> int:
    """Return the nesting depth of a JSON text.

    >>> _levels('1'), _levels('[{"a": "[["}, []]')
    (0, 2)
    """
    depth = most = 0
    for match in _TOKEN.finditer(text):
        depth += (match[0] in "{[") - (match[0] in "]}")
        most = max(most, depth)
    return most


def parts(image: str | bytes) -> dict[str, msgspec.Raw]:
    """Return the values of a row image as raw JSON, at any nesting depth; raise msgspec.DecodeError if it is
    malformed.

    >>> {name: bytes(value) for name, value in parts('{"id": 1, "doc": {"a": [1.50]}}').items()}
    {'id': b'1', 'doc': b'{"a": [1.50]}'}
    >>> len(bytes(parts('{"id": 1, "doc": ' + "[" * 100_000 + "]" * 100_000 + "}")["doc"]))
    200000
    >>> parts('{"id": 1, "doc": ' + "[" * 3000)
    Traceback (most recent call last):
    msgspec.DecodeError: the JSON object has no end
    """
    try:
        return _parts(image)
    except RecursionError:
        text = image if isinstance(image, str) else image.decode()
    try:
        return {name: msgspec.Raw(value.strip().encode()) for name, value in members(text)}
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None


def members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a JSON object and the raw texts of its values; raise ValueError if it has no end.

    >>> dict(members('{"a": [1, "],{"], "b":{}}'))
    {'a': ' [1, "],{"]', 'b': '{}'}
    """
    depth, start, name = 0, 0, None
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in "{[":
            depth += 1
            if depth == 1:
                start = match.end()
        elif token == ":" and depth == 1:
            name, start = json.loads(text[start : match.start()]), match.end()
        elif token in "]},":
            if depth == 1 and name is not None:
                yield name, text[start : match.start()]
                name, start = None, match.end()
            elif depth == 1:
                start = match.end()
            depth -= token != ","
    if depth:
        raise ValueError("the JSON object has no end")


def _whole_number(digits: str) -> int | Decimal:
    return Decimal(digits) if len(digits) > _MOST_DIGITS or digits == "-0" else int(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _not_an_image(reason: object) -> DecodeError:
    line = " ".join(str(reason).split())[:200]
    return DecodeError(
        f"a logged row image cannot be decoded: {line}",
        fix="run `forge doctor`: the log was altered, or its table's definition was",
    )


def _float(value: Any) -> Any:
    return value if value is UNAVAILABLE else float(value)


def _numeric(value: Any) -> Any:
    if type(value) is Decimal or value is UNAVAILABLE:
        return value
    return Decimal(value)


def _bytea(value: Any) -> Any:
    if value is UNAVAILABLE:
        return value
    if not (isinstance(value, str) and value.startswith("\\x")):
        raise ValueError("a bytea value is not in hex form")
    return bytes.fromhex(value[2:])


def _jsonb(value: Any) -> Any:
    if type(value) is dict and "$json" in value:
        inner = value["$json"]
        return JSON_NULL if inner is None else inner
    return value


def _array(element: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def fix(value: Any) -> Any:
        if type(value) is not list:
            return value
        return [None if item is None else fix(item) if type(item) is list else element(item) for item in value]

    return fix


_FIXES: Final[dict[str, Callable[[Any], Any] | None]] = {
    "plain": None,
    "masked": None,
    "hidden": None,
    "plain[]": None,
    "float": _float,
    "numeric": _numeric,
    "bytea": _bytea,
    "jsonb": _jsonb,
    "float[]": _array(_float),
    "numeric[]": _array(_numeric),
    "bytea[]": _array(_bytea),
}
