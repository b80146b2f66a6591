"""Record of the log's recent changes, and the position up to which the log was followed.

`followed` is the snapshot up to which every change has been received. `since` is an older one: every change that
`followed` contains and `since` does not is in the record. For a snapshot that covers `since`, the record therefore
has every change that it lacks. Both are None until the log has been followed for some time.

The record is bounded. Removal at its old end moves `since` forward; a large row loses its images, and then matches
every read of its table.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from forge.change import Change, Op
from forge.cursor import Cursor, Snapshot

MOST_CHANGES: Final = 5_000
MOST_BYTES: Final = 4_096
"""Maximum size of a change that is recorded with its images."""
ANY_TABLE: Final = "*"
"""Table name for entries that every write concerns."""
MOST_PENDING: Final = 10_000
SILENCE: Final = 3.0
"""Seconds without a read of the log after which nothing is known; a follower reads at least once per second."""


class Mark(msgspec.Struct, frozen=True):
    """A point in time: the number of changes received, the era, and the number of losses."""

    taken: int
    era: str
    losses: int


class Ledger:
    """The state of the log that a cache needs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = MOST_CHANGES) -> None:
        self.era = ""
        """Identifies the log, the server and its start: snapshots of different eras cannot be compared."""
        self.followed: Snapshot | None = None
        self.since: Snapshot | None = None
        self._clock = clock
        self._most = most
        self._heard = float("-inf")
        self._losses = 0
        self._taken = 0
        self._record: deque[Change] = deque()
        self._ends: deque[tuple[int, Snapshot]] = deque()
        self._reads_to_wait = 1
        self._pending: dict[int, frozenset[str] | None] = {}

    @property
    def alive(self) -> bool:
        """Whether the log is followed, as far as is known."""
        return self.followed is not None and self._clock() - self._heard <= SILENCE

    @property
    def pending(self) -> Iterable[int]:
        """Transactions that were acknowledged here and have not arrived through the log yet."""
        return self._pending

    def lose(self) -> None:
        """Discard everything known: the log starts again, or the meaning of queries changed."""
        self._losses += 1
        self._record.clear()
        self._ends.clear()
        self._pending.clear()
        self.followed = self.since = None
        # a read in progress may have started before the loss; the next one cannot have
        self._reads_to_wait = 2

    def take(self, changes: Sequence[Change]) -> None:
        """Record received changes."""
        self._record.extend(map(_bounded, changes))
        self._taken += len(changes)

    def skip(self, changes: Sequence[Change]) -> None:
        """Count received changes that no reader will ask for."""
        self._record.clear()
        self._ends.clear()
        self._taken += len(changes)
        self.since = None

    def read(self, cursor: Cursor, started: str) -> None:
        """Record that the log was read up to here, on this start of the server, and all its changes were received."""
        self._heard = self._clock()
        if cursor.until is not None:
            self._trim()
            return
        era = f"{cursor.log}/{started}"
        if era != self.era:
            if self.era:
                self.lose()
            self.era = era
        self._reads_to_wait = max(0, self._reads_to_wait - 1)
        if self._reads_to_wait:
            return
        self.followed = cursor.snapshot
        if self.since is None:
            self.since = cursor.snapshot
        if self._record and (not self._ends or self._ends[-1][0] != self._taken):
            self._ends.append((self._taken, cursor.snapshot))
        self._trim()
        for xid in [xid for xid in self._pending if cursor.snapshot.sees(xid)]:
            del self._pending[xid]

    def wrote(self, xid: int, tables: frozenset[str] | None) -> None:
        """Record an acknowledged transaction and the tables it wrote; None if they are unknown."""
        if self.followed is None or not self.followed.sees(xid):
            self._pending[xid] = tables
            if len(self._pending) > MOST_PENDING:
                self.lose()

    def mark(self) -> Mark:
        """Return the present point in time."""
        return Mark(self._taken, self.era, self._losses)

    def after(self, mark: Mark) -> Iterator[Change] | None:
        """Return the changes since a point in time; None if they are unknown."""
        if mark.era != self.era or mark.losses != self._losses or self._taken - mark.taken > len(self._record):
            return None
        start = len(self._record) - (self._taken - mark.taken)
        return (self._record[place] for place in range(start, len(self._record)))

    def lacking(self, snapshot: Snapshot) -> Iterator[Change] | None:
        """Return the received changes that a snapshot lacks; None if they are unknown."""
        if self.since is None or not snapshot.covers(self.since):
            return None
        return (change for change in self._record if not snapshot.sees(transaction(change)))

    def apart(self, xid: int, tables: Iterable[str]) -> bool:
        """Whether a transaction is known to have written none of these tables, before it arrives through the log."""
        written = self._pending.get(xid)
        return written is not None and not any(table == ANY_TABLE or table in written for table in tables)

    def waits(self, snapshot: Snapshot, tables: Iterable[str]) -> bool:
        """Whether a snapshot may lack an acknowledged write to these tables."""
        read = None
        for xid, written in self._pending.items():
            if snapshot.sees(xid):
                continue
            read = frozenset(tables) if read is None else read
            if written is None or ANY_TABLE in read or not written.isdisjoint(read):
                return True
        return False

    def _trim(self) -> None:
        while len(self._record) > self._most:
            if not self._ends:  # within one read, whose end is not known yet
                self._record.clear()
                self.since = None
                return
            end, self.since = self._ends.popleft()
            for _ in range(len(self._record) - (self._taken - end)):
                self._record.popleft()


def transaction(change: Change) -> int:
    """Return the transaction number of a change."""
    return int(change.source.transaction or 0)


def _bounded(change: Change) -> Change:
    size = sum(_length(value) for image in (change.before, change.after) if image for value in image.values())
    if size <= MOST_BYTES:
        return change
    return msgspec.structs.replace(change, op=Op.INVALIDATE, before=None, after=None)


def _length(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_length, value.values()), 16 * len(value))
    return sum(map(_length, value), 16) if isinstance(value, list) else 16
