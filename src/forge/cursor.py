"""Cursors: the position of a reader of the log.

A cursor is a snapshot, not a number: all that was visible in it has been read, nothing else has. The batch between two
cursors is always the same set of changes. Within a batch changes have an order, and a cursor may be inside one:
`Cursor(old, new, last)` has read all of `old`, and of `new` what comes up to `last`.

A cursor belongs to one log on one server and one timeline (`LogIdentity`); it is meaningless anywhere else. Its text
form is stable, has no spaces and can be pasted into a shell:

>>> log = LogIdentity("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "7310000000000000001", 1)
>>> cursor = Cursor(log, Snapshot.parse("5:9:6,7"))
>>> str(cursor)
'forge1_6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11_7310000000000000001_1_5:9:6,7'
>>> Cursor.parse(str(cursor)) == cursor
True
>>> inside = Cursor(log, Snapshot.parse("5:9:6,7"), Snapshot.parse("7:12:7"), Position(118, 120))
>>> Cursor.parse(str(inside)) == inside
True
"""

import re
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from forge.errors import CursorInvalid

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_FORM = (
    rf"forge1_(?P<uuid>{_UUID})_(?P<system>[0-9]{{1,20}})_(?P<timeline>[0-9]{{1,10}})_(?P<old>[0-9:,]+)"
    r"(?:_(?P<new>[0-9:,]+)_(?P<rank>[0-9]{1,19})\.(?P<id>[0-9]{1,19}))?"
)
_MAX_XID8 = 2**64 - 1
_MAX_ID = 2**63 - 1
_MOST_AFTER: Final = 64


class LogIdentity(msgspec.Struct, frozen=True):
    """The identity of a log: a restored, promoted or recreated server is another log."""

    uuid: str
    system_identifier: str
    timeline: int

    def __str__(self) -> str:
        return f"{self.uuid}_{self.system_identifier}_{self.timeline}"


class Snapshot(msgspec.Struct, frozen=True):
    """The finished transactions: all below `xmax` except `running`. PostgreSQL's pg_snapshot.

    >>> snapshot = Snapshot.parse("5:9:6,7")
    >>> [xid for xid in range(4, 11) if snapshot.sees(xid)]
    [4, 5, 8]
    """

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, value: str) -> "Snapshot":
        """Parse PostgreSQL's text form `xmin:xmax:xid,xid`."""
        match = re.fullmatch(r"([0-9]{1,20}):([0-9]{1,20}):((?:[0-9]{1,20}(?:,[0-9]{1,20})*)?)", value)
        if match is None:
            raise CursorInvalid(f"{value[:60]!r} is not a snapshot", fix="use a cursor that forge printed")
        xmin, xmax = int(match[1]), int(match[2])
        running = tuple(int(xid) for xid in match[3].split(",")) if match[3] else ()
        ordered = all(left < right for left, right in pairwise(running))
        inside = all(xmin <= xid < xmax for xid in running)
        if not (0 < xmin <= xmax <= _MAX_XID8 and ordered and inside):
            raise CursorInvalid(f"{value[:60]!r} is not a snapshot", fix="use a cursor that forge printed")
        return cls(xmin, xmax, running)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    @property
    def bounds(self) -> dict[str, str | list[str]]:
        """Return the parameters of the SQL fragment `since`, which holds for what this snapshot does not see.

        >>> Snapshot.parse("5:9:6,7").bounds
        {'xmax': '9', 'running': ['6', '7']}
        """
        return {"xmax": str(self.xmax), "running": [str(xid) for xid in self.running]}

    def sees(self, xid: int) -> bool:
        """Tell whether the transaction was finished in this snapshot."""
        if xid >= self.xmax or not self.running:
            return xid < self.xmax
        place = bisect_left(self.running, xid)  # a client's cursor may name thousands
        return place == len(self.running) or self.running[place] != xid

    def without(self, xids: Iterable[int]) -> "Snapshot":
        """Return a snapshot that does not see some transactions that this one sees.

        >>> str(Snapshot.parse("6:9:6").without([8, 4]))
        '4:9:4,6,8'
        """
        running = tuple(sorted({*self.running, *xids}))
        return Snapshot(min((self.xmin, *running)), self.xmax, running)

    def covers(self, older: "Snapshot") -> bool:
        """Tell whether this snapshot sees all that another one sees.

        >>> [Snapshot.parse("5:9:5").covers(Snapshot.parse(old)) for old in ("5:9:5,7", "5:7:5", "5:9:7", "5:10:5")]
        [True, True, False, False]
        """
        return older.xmax <= self.xmax and not any(map(older.sees, self.running))


class Position(NamedTuple):
    """A position in the order of a batch: changes are ordered by `rank`, then by `id`."""

    rank: int
    id: int


class Cursor(msgspec.Struct, frozen=True):
    """The position of a reader; `until` and `last` are set together, if it is inside a batch."""

    log: LogIdentity
    snapshot: Snapshot
    until: Snapshot | None = None
    last: Position | None = None

    @classmethod
    def parse(cls, value: str) -> "Cursor":
        """Parse the text form; raise CursorInvalid for anything else."""
        match = re.fullmatch(_FORM, value.strip())
        fix = "use a cursor that forge printed, or --from start or --from now"
        if match is None:
            raise CursorInvalid(f"{value[:60]!r} is not a cursor", fix=fix)
        log = LogIdentity(match["uuid"], match["system"], int(match["timeline"]))
        old = Snapshot.parse(match["old"])
        if match["new"] is None:
            return cls(log, old)
        last = Position(int(match["rank"]), int(match["id"]))
        if max(last) > _MAX_ID:
            raise CursorInvalid(f"{value[:60]!r} is not a cursor", fix=fix)
        return cls(log, old, Snapshot.parse(match["new"]), last)

    def __str__(self) -> str:
        base = f"forge1_{self.log}_{self.snapshot}"
        if self.until is None or self.last is None:
            return base
        return f"{base}_{self.until}_{self.last.rank}.{self.last.id}"


def wal_position(lsn: str) -> int:
    """Convert PostgreSQL's text of a WAL position to a number that can be compared.

    >>> wal_position("1/10") - wal_position("0/FFFFFFFF")
    17
    """
    high, low = lsn.split("/")
    return int(high, 16) << 32 | int(low, 16)


class After(msgspec.Struct, frozen=True):
    """The transactions a client must see at least, because they were acknowledged to it: each of `xids`, all to `upto`.

    A mutation's answer has the number of its transaction; a client that sends it back (the header `Forge-After`) gets
    no result without it. Several are needed only for concurrent mutations: a snapshot that shows one transaction shows
    all that was acknowledged before that one began.

    >>> after = After.parse("775,~771")
    >>> [after.seen(Snapshot.parse(text)) for text in ("772:776:", "772:776:775", "771:776:771", "780:780:")]
    [True, False, False, True]
    >>> str(after)
    '775,~771'
    """

    xids: frozenset[int] = frozenset()
    upto: int = 0

    @classmethod
    def parse(cls, text: str | None) -> "After":
        """Parse the text form, as in a header; None is no condition."""
        if not text:
            return NOW
        form = r"~?[0-9]{1,20}(?:,~?[0-9]{1,20})*"
        parts = text.split(",") if len(text) <= 22 * _MOST_AFTER and re.fullmatch(form, text) else []
        if not 0 < len(parts) <= _MOST_AFTER:
            raise CursorInvalid(f"{text[:60]!r} does not say after what", fix="send the xid of a mutation's answer")
        upto = max((int(part[1:]) for part in parts if part[0] == "~"), default=0)
        return cls(frozenset(int(part) for part in parts if part[0] != "~"), upto)

    def __str__(self) -> str:
        return ",".join([*map(str, sorted(self.xids)), *([f"~{self.upto}"] if self.upto else [])])

    def __bool__(self) -> bool:
        return bool(self.xids or self.upto)

    def seen(self, *snapshots: Snapshot) -> bool:
        """Tell whether each transaction is shown by one of the snapshots."""
        if self.upto and not any(snapshot.xmin > self.upto for snapshot in snapshots):
            return False
        return all(any(snapshot.sees(xid) for snapshot in snapshots) for xid in self.xids)

    def also(self, xids: Iterable[int]) -> "After":
        """Add these transactions."""
        more = self.xids.union(xids)
        return self if len(more) == len(self.xids) else After(more, self.upto)

    def superseded(self, known: "After", xid: int) -> "After":
        """Add a transaction that began when `known` had been acknowledged, all of which it shows.

        >>> known = After(frozenset({5}))
        >>> str(known.also([6]).superseded(known, 9))
        '6,9'
        """
        upto = 0 if self.upto == known.upto else self.upto
        left = (self.xids - known.xids) | {xid}
        return After(left, upto) if len(left) < _MOST_AFTER else After(frozenset(), max(upto, *left))


NOW: Final = After()
"""No condition: any current state."""
