"""Translate wal2json's format 2 to pgoutput messages, for servers that allow only that plug-in (`plugin=wal2json`).

Everything else then works the same. A message of wal2json names a table and the columns that it has; columns omitted
because they are stored out of line and did not change are known only from the table's definition in the catalog
(`Shape`). Numbers are requested as text, so nothing is rounded and NaN is not null.

wal2json has no publications, does not stream unfinished transactions and does not report prepared ones: the server
spools, and Forge filters tables and operations.
"""

import struct
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from zlib import crc32

import msgspec

from forge.capture.wal.protocol import EPOCH, HEAD, RelationColumn, RelationMessage
from forge.cursor import wal_position
from forge.errors import DecodeError

OPTIONS: Final[Mapping[str, str]] = {
    "format-version": "2",
    "include-xids": "true",
    "include-timestamp": "true",
    "include-lsn": "true",
    "include-pk": "true",
    "include-type-oids": "true",
    "include-transaction": "true",
    "numeric-data-types-as-string": "true",
}
_BYTEA: Final = 17


class _Column(msgspec.Struct):
    name: str
    typeoid: int = 0
    value: Any = None


class Wal2JsonLine(msgspec.Struct):
    """One line of wal2json."""

    action: str
    xid: int | None = None
    timestamp: str | None = None
    lsn: str | None = None
    nextlsn: str | None = None
    schema: str = ""
    table: str = ""
    columns: list[_Column] | None = None
    identity: list[_Column] | None = None
    transactional: bool = False
    prefix: str = ""
    content: str = ""


_decode: Final = msgspec.json.Decoder(Wal2JsonLine).decode


def event(data: bytes) -> Wal2JsonLine:
    """Return the event in a `w` message of the server; raise DecodeError if there is none."""
    try:
        return _decode(data[HEAD:])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise DecodeError(
            f"wal2json sent what is no event of its format 2: {' '.join(str(error).split())[:200]}",
            fix="upgrade wal2json to 2.5 or newer, or use plugin=pgoutput",
        ) from None


class Translator:
    """Translates one connection's events; it must know the definitions of the tables that they name."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], RelationMessage] = {}

    def knows(self, found: Wal2JsonLine) -> bool:
        """Tell whether the event fits the known definition of its table."""
        if found.action not in "IUDT":
            return True
        known = self._known.get((found.schema, found.table))
        if known is None:
            return False
        types = {column.name: column.type for column in known.columns}
        named = (*(found.columns or ()), *(found.identity or ()))
        if not all(types.get(column.name) == column.typeoid for column in named):
            return False
        return found.action != "I" or len(found.columns or ()) == len(types)

    def define(self, data: bytes, found: Wal2JsonLine, shape: RelationMessage | None) -> bytes:
        """Learn a table from the event and the catalog; return its relation message."""
        named = {column.name: column.typeoid for column in (*(found.columns or ()), *(found.identity or ()))}
        identity = {column.name for column in found.identity or ()}
        if shape is None:
            columns = tuple(RelationColumn(name, kind, -1, name in identity) for name, kind in named.items())
            shape = RelationMessage(_number(found), found.schema, found.table, "d", columns)
        elif found.action != "T":
            there = {column.name: column for column in shape.columns}
            columns = tuple(
                column if (column := there.get(name)) is not None and column.type == kind else
                RelationColumn(name, kind, -1, name in identity)
                for name, kind in _in_order(named, shape, whole=found.action == "I").items()
            )  # fmt: skip
            shape = shape._replace(columns=columns)
        self._known[found.schema, found.table] = shape
        body = b"".join(
            bytes([column.identity]) + column.name.encode() + b"\0" + struct.pack(">Ii", column.type, column.modifier)
            for column in shape.columns
        )
        return (
            data[:HEAD] + b"R" + struct.pack(">I", shape.oid) + shape.schema.encode() + b"\0" + shape.table.encode()
            + b"\0" + shape.identity.encode() + struct.pack(">H", len(shape.columns)) + body
        )  # fmt: skip

    def message(self, data: bytes, found: Wal2JsonLine) -> bytes:
        """Return the event as a pgoutput message."""
        head = data[:HEAD]
        if found.action in "BC":
            commit, end = wal_position(found.lsn or "0/0"), wal_position(found.nextlsn or "0/0")
            at = _micros(found.timestamp)
            if found.action == "B":
                return head + b"B" + struct.pack(">qqI", commit, at, found.xid or 0)
            return head + b"C" + struct.pack(">Bqqq", 0, commit, end, at)
        if found.action == "M":
            content = found.content.encode()
            place = struct.pack(">BQ", found.transactional, wal_position(found.lsn or "0/0"))
            return head + b"M" + place + found.prefix.encode() + b"\0" + struct.pack(">I", len(content)) + content
        relation = self._known[found.schema, found.table]
        oid = struct.pack(">I", relation.oid)
        if found.action == "T":
            return head + b"T" + struct.pack(">IB", 1, 0) + oid
        new = b"" if found.columns is None else b"N" + _tuple(relation, found.columns)
        if found.action == "I":
            return head + b"I" + oid + new
        full = relation.identity == "f"
        old = (b"O" if full else b"K") + _tuple(relation, found.identity or (), key=not full)
        if found.action == "D":
            return head + b"D" + oid + old
        values = {column.name: column.value for column in found.columns or ()}
        same = all(values.get(column.name) == column.value for column in found.identity or ())
        return head + b"U" + oid + (b"" if same and not full else old) + new


def _in_order(named: Mapping[str, int], shape: RelationMessage, *, whole: bool) -> dict[str, int]:
    """Return the columns of an event in the table's order, with those that it omits unless it must have all."""
    types = {column.name: column.type for column in shape.columns}
    if whole or not named.keys() <= types.keys():
        return dict(named)
    return {name: named.get(name, kind) for name, kind in types.items()}


def _tuple(relation: RelationMessage, columns: Sequence[_Column], *, key: bool = False) -> bytes:
    values = {column.name: column.value for column in columns}
    parts = [struct.pack(">H", len(relation.columns))]
    for column in relation.columns:
        if column.name not in values:
            parts.append(b"n" if key else b"u")
        elif (value := values[column.name]) is None:
            parts.append(b"n")
        else:
            raw = _text(value, column.type).encode()
            parts.append(b"t" + struct.pack(">I", len(raw)) + raw)
    return b"".join(parts)


def _text(value: Any, kind: int) -> str:
    if isinstance(value, bool):
        return "t" if value else "f"
    return f"\\x{value}" if kind == _BYTEA else str(value)


def _micros(timestamp: str | None) -> int:
    """
    >>> _micros("2000-01-01 00:00:01.5+00")
    1500000
    """
    if timestamp is None:
        return 0
    return (datetime.fromisoformat(timestamp) - EPOCH) // timedelta(microseconds=1)


def _number(found: Wal2JsonLine) -> int:
    """Return a substitute for the oid of a table that is not in the catalog."""
    return crc32(f"{found.schema}.{found.table}".encode()) | 0x80000000
