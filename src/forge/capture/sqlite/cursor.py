"""Cursors of the queue: behind a row of it, and within a snapshot also in a table.

    sqlite1_{file}_{row}.{time}             behind a row of the queue
    sqlite1_{file}_{row}.{time}+{place}     inside the snapshot that was begun behind that row

The time is that of the row, in milliseconds. It distinguishes two rows with the same number: those of a file and of its
older copy that was restored and written to.
"""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final, NamedTuple

from forge import wire
from forge.errors import CursorForeign, CursorInvalid, DecodeError

KIND: Final = "sqlite"
_TEXT: Final = re.compile(r"sqlite1_([0-9a-f]{32})_([0-9]{1,19})\.([0-9]{1,15})(?:\+([A-Za-z0-9_=-]+))?")
_OTHER: Final = re.compile(r"[a-z]+[0-9]+_\S+")
_MOST: Final = 2**63 - 1


class SnapshotPosition(NamedTuple):
    """A place in a snapshot: its start time and schema version, the table, and the last row that was read."""

    at: int
    schema_version: int
    table: str = ""
    row: tuple[Any, ...] = ()


class SqliteCursor(NamedTuple):
    """The cursor behind row `id` of the queue of a file."""

    file: str
    id: int
    time: int
    place: SnapshotPosition | None = None

    @classmethod
    def parse(cls, text: str) -> "SqliteCursor":
        """
        >>> place = SnapshotPosition(1767225600500, 4, "orders", (2**60,))
        >>> cursor = SqliteCursor("6f1c0b523f0e4c579a530d6f2a3b9c11", 7, 1767225600000, place)
        >>> SqliteCursor.parse(str(cursor)) == cursor
        True
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            if _OTHER.fullmatch(text) and not text.startswith("sqlite1_"):
                raise CursorForeign(f"{text[:40]!r} is a cursor of another source", fix="use one of this file's queue")
            raise CursorInvalid(f"{text[:60]!r} is not a cursor", fix="use a cursor that Forge gave out")
        try:
            place = None if match[4] is None else _place(match[4])
        except (ValueError, TypeError, DecodeError, RecursionError) as error:
            raise CursorInvalid(f"{text[:60]!r} is not a cursor", fix="use a cursor that Forge gave out") from error
        if int(match[2]) > _MOST:
            raise CursorInvalid(f"{text[:60]!r} is not a cursor", fix="use a cursor that Forge gave out")
        return cls(match[1], int(match[2]), int(match[3]), place)

    def __str__(self) -> str:
        start = f"sqlite1_{self.file}_{self.id}.{self.time}"
        if self.place is None:
            return start
        at, version, table, row = self.place
        coded = json.dumps([at, version, table, *map(wire.encode_value, row)], separators=(",", ":"))
        return f"{start}+{urlsafe_b64encode(coded.encode()).decode()}"


def _place(coded: str) -> SnapshotPosition:
    at, version, table, *row = json.loads(urlsafe_b64decode(coded))
    if type(at) is not int or type(version) is not int or type(table) is not str:
        raise ValueError("not a place")
    return SnapshotPosition(at, version, table, tuple(map(wire.decode_value, row)))
