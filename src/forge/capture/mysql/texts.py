"""Convert rows of a query to the forms of a Change: the same values as from the binary log's bytes.

A snapshot reads texts, as the server prints them, with the session in UTC and UTF-8. `select_list` requests them
without loss, `Texts` converts them to values, and keys to literals that compare as the column does.
"""

import re
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from forge.capture.mysql import codecs as forms
from forge.capture.mysql.tables import KnownColumn, KnownTable
from forge.errors import CursorInvalid
from forge.values import Column

_WHOLE = ("tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year")
_TIMES = ("date", "time", "datetime", "timestamp")
_PLAIN = ("char", "varchar", "uuid", "inet4", "inet6")
_BINARY = ("binary", "varbinary")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_TIME = re.compile(r"-?[0-9: .-]+")


def word(column: KnownColumn) -> str:
    return re.split(r"[( ]", column.type, maxsplit=1)[0]


def quoted(name: str) -> str:
    """
    >>> quoted("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


class Texts:
    """A table as a snapshot reads it."""

    def __init__(self, known: KnownTable, *, prefixed: bool = False) -> None:
        self.known = known
        by_name = {column.name: column for column in known.columns}
        self.names = [column.name for column in known.columns]
        self.key = tuple(name for name in known.key if name != known.ends)
        self._key_columns = [by_name[name] for name in self.key]
        self._key_at = [self.names.index(name) for name in self.key]
        self.paged = bool(self.key) and not prefixed and all(map(_orderable, self._key_columns))
        """Whether it can be read in pages by its key."""
        self._forms: list[tuple[str, Callable[[Any], Any] | None]] = [
            (column.name, _form(column)) for column in known.columns
        ]
        self.columns = tuple(Column(column.name, column.type, _kind(column)) for column in known.columns)

    @property
    def select_list(self) -> str:
        return ", ".join(
            f"{quoted(column.name)} * 1e0" if word(column) == "float" else quoted(column.name)
            for column in self.known.columns
        )

    @property
    def order(self) -> str:
        return ", ".join(quoted(name) for name in self.key)

    def row(self, raw: Sequence[Any]) -> dict[str, Any]:
        """Convert a row of the query to the image of a Change."""
        return {
            name: value if value is None or form is None else form(value)
            for (name, form), value in zip(self._forms, raw, strict=True)
        }

    def marks(self, raw: Sequence[Any]) -> tuple[str, ...]:
        """Return the key of a row of the query, as `Progress` stores it."""
        return tuple(_mark(raw[at]) for at in self._key_at)

    def marks_of(self, key: Sequence[Any]) -> tuple[str, ...]:
        """Return the same from the key of a Change."""
        return tuple(_mark_of(column, value) for column, value in zip(self._key_columns, key, strict=True))

    def literals(self, marks: Sequence[str]) -> list[str]:
        """Return the key as SQL; raise CursorInvalid if it is not a key of this table."""
        if len(marks) != len(self._key_columns):
            raise _no_key()
        return [_literal(column, mark) for column, mark in zip(self._key_columns, marks, strict=True)]

    def behind(self, marks: Sequence[str]) -> str:
        """Return the condition for the rows behind a key.

        >>> columns = (KnownColumn("a", "int", None), KnownColumn("b", "date", None))
        >>> Texts(KnownTable(columns, ("a", "b"))).behind(("1", "2026-01-31"))
        "`a` >= 1 AND ((`a` > 1) OR (`a` = 1 AND `b` > CAST('2026-01-31' AS DATE)))"
        """
        pairs = list(zip(map(quoted, self.key), self.literals(marks), strict=True))
        parts = []
        for number, (name, value) in enumerate(pairs):
            equal = [f"{each} = {literal}" for each, literal in pairs[:number]]
            parts.append(f"({' AND '.join([*equal, f'{name} > {value}'])})")
        return f"{pairs[0][0]} >= {pairs[0][1]} AND ({' OR '.join(parts)})"


def _orderable(column: KnownColumn) -> bool:
    return word(column) in (*_WHOLE, *_TIMES, *_PLAIN, *_BINARY, "decimal")


def _mark(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _mark_of(column: KnownColumn, value: Any) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if word(column) in ("datetime", "timestamp"):
        return str(value).replace("T", " ").removesuffix("+00:00")
    return _mark(value)


def _literal(column: KnownColumn, mark: str) -> str:
    kind = word(column)
    if kind in _WHOLE or kind == "decimal":
        if not _NUMBER.fullmatch(mark):
            raise _no_key()
        return mark
    if kind in _TIMES:
        if not _TIME.fullmatch(mark):
            raise _no_key()
        whole = {"timestamp": "DATETIME(6)", "datetime": "DATETIME(6)", "time": "TIME(6)", "date": "DATE"}[kind]
        return f"CAST('{mark}' AS {whole})"
    if kind in _BINARY:
        if not re.fullmatch(r"([0-9a-f]{2})*", mark):
            raise _no_key()
        return f"x'{mark}'"
    if kind in ("uuid", "inet4", "inet6"):
        if not re.fullmatch(r"[0-9a-fA-F:.-]+", mark):
            raise _no_key()
        return f"CAST('{mark}' AS {kind})"
    text = f"CONVERT(_utf8mb4 x'{mark.encode().hex()}' USING {column.charset})"
    return f"{text} COLLATE {column.collation}" if column.collation else text


def _no_key() -> CursorInvalid:
    return CursorInvalid("the cursor has no key of the table it stands in", fix="use a cursor that this source gave")


def _kind(column: KnownColumn) -> str:
    kind = word(column)
    if kind in ("float", "double"):
        return "float"
    if kind == "decimal":
        return "numeric"
    if kind == "json":
        return "jsonb"
    if kind in (*_BINARY, "tinyblob", "blob", "mediumblob", "longblob", "vector") or kind in _SHAPES:
        return "bytea"
    return "plain"


_SHAPES = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
    "geomcollection",
)


def _form(column: KnownColumn) -> Callable[[Any], Any] | None:
    kind = word(column)
    if kind in _WHOLE:
        return int
    if kind == "decimal":
        return Decimal
    if kind == "double":
        return float
    if kind == "float":
        return _real
    if kind in ("time", "datetime", "timestamp"):
        return {"time": _trimmed, "datetime": _datetime, "timestamp": _timestamp}[kind]
    if kind == "bit":
        return forms.bit(int(column.type.partition("(")[2].partition(")")[0] or 1))
    if kind == "json":
        return forms.json_text
    return None


def _real(text: str) -> float:
    return forms.real(struct.pack("<f", float(text)))


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _datetime(text: str) -> str:
    return _trimmed(text).replace(" ", "T")


def _timestamp(text: str) -> str:
    return f"{_datetime(text)}+00:00"
