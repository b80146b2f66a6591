"""Cursors of a binary log, as a type and as a text.

`mysql1_{server}_{file}:{offset}:{created}` and then, if present, `:{events}` (the number of handled events of the
transaction that begins there), `_{gtid}` (MariaDB's position by global transaction ids) and `+{progress}` of a
snapshot. `created` is the second in which the server began the file: a server that was reset or restored has other
files of the same names, and this distinguishes its cursors.

>>> cursor = MysqlCursor.parse("mysql1_9f2c_mysql-bin.000002:328:6919c0de:3_0-1-42")
>>> cursor.place, cursor.events, cursor.gtid
(BinlogPosition(file='mysql-bin.000002', offset=328, created=1763295454), 3, '0-1-42')
>>> str(cursor)
'mysql1_9f2c_mysql-bin.000002:328:6919c0de:3_0-1-42'
>>> MysqlCursor.parse("mysql1_9f2c_nonsense")
Traceback (most recent call last):
  ...
forge.errors.CursorInvalid: 'mysql1_9f2c_nonsense' is not a cursor of a MySQL source
fix: use a cursor that this source gave
"""

import base64
import binascii
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from forge.errors import CursorForeign, CursorInvalid

KIND = "mysql"

_FORM = re.compile(
    r"mysql1_(?P<server>[0-9A-Za-z-]{1,64})_(?P<file>[^:+\s]{1,255}):(?P<offset>[0-9]{1,19}):(?P<created>[0-9a-f]{1,16})"
    r"(?::(?P<events>[0-9]{1,18}))?(?:_(?P<gtid>[0-9][0-9,-]*))?(?:\+(?P<progress>[0-9A-Za-z_-]+))?"
)


class BinlogPosition(NamedTuple):
    """The start of a transaction in a file that the server began at `created` (in Unix seconds)."""

    file: str
    offset: int
    created: int


class TableProgress(msgspec.Struct, frozen=True, array_like=True):
    """Progress of a snapshot: all tables before (`schema`, `table`) are read, and that one up to `key`, inclusive.

    `key` has the key's values as texts, bytes in hex; it is None before the table's first row, and `()` inside a table
    without a key.
    """

    schema: str
    table: str
    key: tuple[str, ...] | None = None


class MysqlCursor(msgspec.Struct, frozen=True):
    """Everything before `place` is handled, and the first `events` changing events of the transaction there."""

    server: str
    place: BinlogPosition
    events: int = 0
    gtid: str = ""
    progress: TableProgress | None = None

    @classmethod
    def parse(cls, text: str) -> "MysqlCursor":
        """Parse the text form; raise CursorInvalid for anything else, CursorForeign for another kind of source."""
        match = _FORM.fullmatch(text)
        if match is None:
            if re.fullmatch(r"(?!mysql)[a-z]+[0-9]+_\S+", text):
                raise CursorForeign(
                    f"{text[:60]!r} belongs to another kind of source", fix="use a cursor that this source gave"
                )
            raise _invalid(text)
        place = BinlogPosition(unquote(match["file"]), int(match["offset"]), int(match["created"], 16))
        progress = None
        if match["progress"] is not None:
            try:
                raw = base64.urlsafe_b64decode(match["progress"] + "=" * (-len(match["progress"]) % 4))
                progress = msgspec.json.decode(raw, type=TableProgress)
            except (binascii.Error, ValueError, msgspec.DecodeError):
                raise _invalid(text) from None
        return cls(match["server"], place, int(match["events"] or 0), match["gtid"] or "", progress)

    def __str__(self) -> str:
        text = f"{KIND}1_{self.server}_{quote(self.place.file, safe='')}:{self.place.offset}:{self.place.created:x}"
        if self.events:
            text += f":{self.events}"
        if self.gtid:
            text += f"_{self.gtid}"
        if self.progress is not None:
            text += "+" + base64.urlsafe_b64encode(msgspec.json.encode(self.progress)).rstrip(b"=").decode()
        return text


def _invalid(text: str) -> CursorInvalid:
    return CursorInvalid(f"{text[:60]!r} is not a cursor of a MySQL source", fix="use a cursor that this source gave")
