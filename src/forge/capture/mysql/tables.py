"""Table maps: the columns of one version of a table, as in the binary log.

A table map has the types of the columns. With `binlog_row_metadata=FULL` it also has their names, signs, character
sets, the words of enums and sets and the primary key; what it lacks is taken from the catalog (`KnownTable`), and if
the catalog does not fit the map, the table has no decoder (`TableMapMismatch`): nothing is guessed.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from forge.errors import TableMapMismatch

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR = 10, 11, 12, 13
NEWDATE, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 14, 15, 16, 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED, VECTOR, JSON, NEWDECIMAL, ENUM, SET = 140, 141, 242, 245, 246, 247, 248
BLOB, VAR_STRING, STRING, GEOMETRY = 252, 253, 254, 255

_META = {
    FLOAT: 1, DOUBLE: 1, TIMESTAMP2: 1, DATETIME2: 1, TIME2: 1, BLOB: 1, BLOB_COMPRESSED: 1, GEOMETRY: 1, JSON: 1,
    VECTOR: 1, VARCHAR: 2, VARCHAR_COMPRESSED: 2, BIT: 2, NEWDECIMAL: 2, STRING: 2, VAR_STRING: 2, ENUM: 2, SET: 2,
}  # fmt: skip
_NUMERIC = {TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE}
_TEXTS = {VARCHAR, VAR_STRING, STRING, BLOB, VARCHAR_COMPRESSED, BLOB_COMPRESSED}


class KnownColumn(NamedTuple):
    """A column in the current catalog."""

    name: str
    type: str
    """In the form of `column_type`, in lower case: `bigint(20) unsigned`."""
    charset: str | None
    values: tuple[str, ...] = ()
    collation: str | None = None
    generated: str = ""
    """`ROW START` and `ROW END` of system-versioned tables, or the server's own text."""


class KnownTable(NamedTuple):
    """A table in the current catalog."""

    columns: tuple[KnownColumn, ...]
    key: tuple[str, ...]
    ends: str | None = None
    """In a system-versioned table, the column with the end of a row's validity."""
    sequence: bool = False
    """Whether it is one of MariaDB's sequences, which are logged like tables."""


class MappedColumn(msgspec.Struct):
    """A column in a table map."""

    type: int
    meta: int
    name: str = ""
    unsigned: bool = False
    collation: int | None = None
    charset: str | None = None
    values: tuple[str, ...] = ()
    raw: tuple[bytes, ...] = ()
    """The words of an enum or set in its own character set, if the map has them."""
    known: str = ""


class Map(msgspec.Struct):
    """A table map event."""

    schema: str
    table: str
    fields: list[MappedColumn]
    key: list[int] | None = None
    named: bool = False
    ends: str | None = None
    implied: tuple[str, ...] = ()
    sequence: bool = False


def lenenc(data: bytes, at: int) -> tuple[int, int]:
    """Return a length-encoded number and where it ends."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def parse_names(data: bytes) -> tuple[str, str, int]:
    """Return schema and table of a table map's body, and where its columns begin."""
    size = data[8]
    schema = data[9 : 9 + size].decode()
    at = 10 + size
    size = data[at]
    return schema, data[at + 1 : at + 1 + size].decode(), at + size + 2


def parse_map(data: bytes, mariadb: bool) -> Map:
    """Parse a table map's body, without its checksum."""
    schema, table, at = parse_names(data)
    count, at = lenenc(data, at)
    kinds = data[at : at + count]
    size, at = lenenc(data, at + count)
    fields = _fields(kinds, data[at : at + size])
    made = Map(schema, table, fields)
    _optional(made, data, at + size + (count + 7) // 8, mariadb)
    return made


def _fields(kinds: bytes, meta: bytes) -> list[MappedColumn]:
    fields, at = [], 0
    for kind in kinds:
        size = _META.get(kind, 0)
        value = int.from_bytes(meta[at : at + size], "little")
        if kind == STRING:
            first, second = meta[at], meta[at + 1]
            if first & 0x30 != 0x30:
                kind, value = first | 0x30, second | ((first & 0x30) ^ 0x30) << 4
            else:
                kind, value = first, second
        elif kind in (BIT, NEWDECIMAL):
            value = meta[at] << 8 | meta[at + 1]
        at += size
        fields.append(MappedColumn(kind, value))
    return fields


def _optional(made: Map, data: bytes, at: int, mariadb: bool) -> None:
    numeric = _NUMERIC | {YEAR} if mariadb else _NUMERIC
    numbers = [field for field in made.fields if field.type in numeric]
    texts = [field for field in made.fields if field.type in _TEXTS or (mariadb and field.type == GEOMETRY)]
    choices = [field for field in made.fields if field.type in (ENUM, SET)]
    words: dict[int, list[tuple[bytes, ...]]] = {}
    while at < len(data):
        kind = data[at]
        size, at = lenenc(data, at + 1)
        part, at = data[at : at + size], at + size
        if kind == 1:
            for number, field in enumerate(numbers):
                field.unsigned = bool(part[number >> 3] & 0x80 >> (number & 7))
        elif kind in (2, 10):
            found = _numbers(part)
            exceptions = dict(zip(found[1::2], found[2::2], strict=True))
            for number, field in enumerate(texts if kind == 2 else choices):
                field.collation = exceptions.get(number, found[0])
        elif kind in (3, 11):
            for field, collation in zip(texts if kind == 3 else choices, _numbers(part), strict=True):
                field.collation = collation
        elif kind == 4:
            for field, name in zip(made.fields, _strings(part), strict=True):
                field.name = name.decode()
            made.named = True
        elif kind in (5, 6):
            words[SET if kind == 5 else ENUM] = _lists(part)
        elif kind == 8:
            made.key = _numbers(part)
        elif kind == 9:
            made.key = _numbers(part)[::2]
    for kind, lists in words.items():
        for field, values in zip((each for each in made.fields if each.type == kind), lists, strict=True):
            field.raw = values
    if made.named and made.key is None:
        made.key = []


def _numbers(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = lenenc(data, at)
        found.append(number)
    return found


def _strings(data: bytes, count: int | None = None, at: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while at < len(data) and len(found) != count:
        size, at = lenenc(data, at)
        found.append(data[at : at + size])
        at += size
    return found


def _lists(data: bytes) -> list[tuple[bytes, ...]]:
    found, at = [], 0
    while at < len(data):
        count, at = lenenc(data, at)
        words = _strings(data, count, at)
        for word in words:
            at = lenenc(data, at)[1] + len(word)
        found.append(tuple(words))
    return found


_SEQUENCE = (
    "next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment", "cache_size", "cycle_option",
    "cycle_count",
)  # fmt: skip
"""The columns of a sequence, which identify one that was dropped."""


def complete(made: Map, known: KnownTable | None, charsets: Mapping[int, str]) -> None:
    """Fill in from the catalog what the map lacks; raise TableMapMismatch if they do not fit."""
    made.ends = known.ends if known else None
    made.sequence = known.sequence if known else tuple(field.name for field in made.fields) == _SEQUENCE
    if made.ends is not None and known and made.ends not in {column.name for column in known.columns}:
        made.implied = ("row_start", "row_end")
    if made.named:
        by_name = {column.name: column for column in known.columns} if known else {}
        for field in made.fields:
            if field.collation is not None:
                field.charset = charsets.get(field.collation)
            now = by_name.get(field.name)
            field.known = now.type if now else ""
            if field.type in (ENUM, SET) and field.charset is None and now:  # MySQL before 8.0.17 does not log it
                field.charset = now.charset
        return
    if known is None or len(known.columns) != len(made.fields):
        raise TableMapMismatch
    for field, column in zip(made.fields, known.columns, strict=True):
        if not _fits(field, column):
            raise TableMapMismatch
        field.name, field.known = column.name, column.type
        field.unsigned = "unsigned" in column.type or "zerofill" in column.type
        field.charset = column.charset or "binary"
        field.values = column.values
    names = [column.name for column in known.columns]
    made.key = [names.index(name) for name in known.key]


_FITTING = {
    TINY: ("tinyint", "boolean"), SHORT: ("smallint",), LONG: ("int", "integer"), FLOAT: ("float",),
    DOUBLE: ("double", "real"), TIMESTAMP: ("timestamp",), TIMESTAMP2: ("timestamp",), LONGLONG: ("bigint",),
    INT24: ("mediumint",), DATE: ("date",), NEWDATE: ("date",), TIME: ("time",), TIME2: ("time",),
    DATETIME: ("datetime",), DATETIME2: ("datetime",), YEAR: ("year",), VARCHAR: ("varchar", "varbinary"),
    VAR_STRING: ("varchar", "varbinary"), BIT: ("bit",), JSON: ("json",), NEWDECIMAL: ("decimal", "numeric"),
    ENUM: ("enum",), SET: ("set",), BLOB: ("tinyblob", "blob", "mediumblob", "longblob", "tinytext", "text",
    "mediumtext", "longtext", "json", "vector"), STRING: ("char", "binary", "uuid", "inet6", "inet4"),
    GEOMETRY: ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geometrycollection", "geomcollection"), VECTOR: ("vector",), BLOB_COMPRESSED: ("tinyblob", "blob", "mediumblob",
    "longblob", "tinytext", "text", "mediumtext", "longtext"), VARCHAR_COMPRESSED: ("varchar", "varbinary"),
}  # fmt: skip


def _fits(field: MappedColumn, column: KnownColumn) -> bool:
    word = column.type.partition("(")[0].partition(" ")[0]
    if word not in _FITTING.get(field.type, ()):
        return False
    if field.type == NEWDECIMAL:
        return column.type.startswith((f"decimal({field.meta >> 8},{field.meta & 255})",))
    return True
