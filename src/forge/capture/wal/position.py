"""Positions of a reader of the WAL.

A transaction is identified by the LSN of its commit record, a change in it by its own LSN. The position of a reader
that has handled whole transactions is the LSN behind the last of them; inside a transaction it also has the LSN of the
last handled change. It belongs to a server, a timeline, a database and a slot, and is meaningless anywhere else.

    wal1_{system}-{timeline}-{database}-{slot}_{lsn}[.{lsn inside}][@{lsn to begin at}][~{more} | +{more}]

`more` has what a stream needs to be the same wherever it starts: digests of the tables' definitions, the snapshots
whose transactions are not to be streamed again, and, with a `+`, what a snapshot still has to read.

>>> here = WalCursor("7310000000000000001", 1, 16384, "forge_shop", 0x16B3748)
>>> str(here)
'wal1_7310000000000000001-1-16384-forge_shop_0/16B3748'
>>> WalCursor.parse(str(here)) == here
True
>>> inside = here.moved(0x16B3748, inside=0x16B3700, more=More(known={16400: b"abc"}))
>>> WalCursor.parse(str(inside)) == inside
True
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forge.cursor import Snapshot, wal_position
from forge.errors import CursorInvalid

MOST_KNOWN: Final = 128
"""Maximum number of table definitions that a cursor remembers: those seen last."""

_LSN = r"[0-9A-F]{1,8}/[0-9A-F]{1,8}"
_FORM: Final = re.compile(
    r"wal1_(?P<system>[0-9]{1,20})-(?P<timeline>[0-9]{1,10})-(?P<database>[0-9]{1,10})-(?P<slot>[a-z0-9_]{1,63})"
    rf"_(?P<lsn>{_LSN})(?:\.(?P<inside>{_LSN}))?(?:@(?P<begin>{_LSN}))?(?:(?P<mark>[~+])(?P<more>[A-Za-z0-9_=-]+))?"
)


def lsn_text(lsn: int) -> str:
    """
    >>> lsn_text(0x1_0000_00FF)
    '1/FF'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """A part of a table that a snapshot has not read yet: its first key column from `low` to below `high`, and keys
    after `last`. Keys are in the texts that order them (`forge.capture.wal.snapshot`)."""

    table: int
    low: str | None = None
    high: str | None = None
    last: tuple[str, ...] | None = None


class Rest(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot still has to read: some parts, and every table whose oid is greater than `done`."""

    done: int = 0
    units: tuple[Unit, ...] = ()
    finished: bool = False


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """One read of rows under a snapshot: what was left to read by then, and an LSN behind all that it shows."""

    snapshot: str
    until: int
    rest: Rest = Rest()

    @property
    def seen(self) -> Snapshot:
        return Snapshot.parse(self.snapshot)


class More(msgspec.Struct, frozen=True, array_like=True):
    """Additional content of a cursor."""

    known: dict[int, bytes] = {}
    epochs: tuple[Epoch, ...] = ()
    rest: Rest | None = None
    base: int = 0
    """The LSN that names the rows of a snapshot, the same however often it is resumed; `taken` is when it began."""
    taken: int = 0


_decode: Final = msgspec.msgpack.Decoder(More).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_NOTHING: Final = More()


class WalCursor(msgspec.Struct, frozen=True):
    """A cursor; `more` is its text, so that streaming does not encode it for each batch."""

    system: str
    timeline: int
    database: int
    slot: str
    lsn: int
    inside: int | None = None
    begin: int | None = None
    """Where the server must start sending, if that is before `lsn`: a prepared transaction is still open."""
    more: str = ""

    @classmethod
    def parse(cls, value: str) -> "WalCursor":
        """Read the text form; raise CursorInvalid for anything else."""
        match = _FORM.fullmatch(value.strip())
        if match is None:
            raise _invalid(value)
        inside, begin = match["inside"], match["begin"]
        found = cls(
            match["system"],
            int(match["timeline"]),
            int(match["database"]),
            match["slot"],
            wal_position(match["lsn"]),
            None if inside is None else wal_position(inside),
            None if begin is None else wal_position(begin),
            (match["mark"] or "") + (match["more"] or ""),
        )
        if (found.extra().rest is not None) != (match["mark"] == "+"):
            raise _invalid(value)
        return found

    def __str__(self) -> str:
        inside = "" if self.inside is None else f".{lsn_text(self.inside)}"
        begin = "" if self.begin is None else f"@{lsn_text(self.begin)}"
        return (
            f"wal1_{self.system}-{self.timeline}-{self.database}-{self.slot}_{lsn_text(self.lsn)}"
            f"{inside}{begin}{self.more}"
        )

    @property
    def in_snapshot(self) -> bool:
        return self.more.startswith("+")

    @property
    def start(self) -> int:
        """Return the LSN from which the server must send, and before which it may forget."""
        return self.lsn if self.begin is None else min(self.begin, self.lsn)

    def extra(self) -> More:
        if not self.more:
            return _NOTHING
        try:
            found = _decode(urlsafe_b64decode(self.more[1:]))
            for epoch in found.epochs:
                Snapshot.parse(epoch.snapshot)
            return found
        except (ValueError, msgspec.DecodeError):
            raise _invalid(str(self)) from None

    def moved(
        self, lsn: int, *, inside: int | None = None, begin: int | None = None, more: More = _NOTHING
    ) -> "WalCursor":
        """Return the same reader at another position."""
        return WalCursor(self.system, self.timeline, self.database, self.slot, lsn, inside, begin, more_text(more))


def more_text(more: More) -> str:
    """Return the suffix of a cursor."""
    if more == _NOTHING:
        return ""
    mark = "~" if more.rest is None else "+"
    return mark + urlsafe_b64encode(_encode(more)).decode()


def remembered(known: dict[int, bytes]) -> dict[int, bytes]:
    """Return the definitions that a cursor may carry."""
    return known if len(known) <= MOST_KNOWN else dict(list(known.items())[-MOST_KNOWN:])


class Timelines:
    """The history of a server: the timeline on which an LSN was written.

    >>> history = Timelines(3, "1\\t0/5000\\tno recovery target\\n2\\t0/9000\\tbefore\\n")
    >>> [history.of(lsn) for lsn in (0x4000, 0x5000, 0x9000)], history.holds(1, 0x5000), history.holds(1, 0x6000)
    ([1, 2, 3], True, False)
    """

    def __init__(self, current: int, history: str = "") -> None:
        self.current: Final = current
        lines = (line.split("\t") for line in history.splitlines() if line and not line.startswith("#"))
        self._ends: Final[Sequence[tuple[int, int]]] = [(int(line[0]), wal_position(line[1])) for line in lines]

    def of(self, lsn: int) -> int:
        return next((timeline for timeline, end in self._ends if lsn < end), self.current)

    def holds(self, timeline: int, lsn: int) -> bool:
        """Tell whether what was written on that timeline up to the LSN is in this server's history."""
        if timeline == self.current:
            return True
        return any(known == timeline and lsn <= end for known, end in self._ends)


def _invalid(value: Any) -> CursorInvalid:
    return CursorInvalid(f"{str(value)[:60]!r} is not a cursor of a WAL", fix="use a cursor that forge printed")
