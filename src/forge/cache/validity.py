"""Validity of cached answers: the conditions for returning an entry, and the proof that it is not stale.

Notation. C is the snapshot of an entry: the entry contains at least C. F is the snapshot up to which this node has
followed the log; all changes in F have been matched against the entries that the node knows. W is the set of
transactions that the caller must see (`forge.cursor.After`). P is the set of transactions that this node acknowledged
and that F does not contain yet.

Invariants: an entry is returned only if

1. *no change touched it*: no change that F contains and C does not matches its reads;
2. *the caller's own writes are in it, or do not concern it*: C contains each member of W; or F contains it, and then
   (1) proves that it does not concern the entry; or it is a member of P that wrote none of the entry's tables;
3. *this node's writes are in it, or do not concern it*: C contains each member of P, or it wrote none of the entry's
   tables;
4. F is current: the log has been read within the last seconds (`recent_changes.SILENCE`);
5. its era is the present one: same log, same timeline, same start of the server. After a crash, PostgreSQL assigns
   transaction numbers again, and snapshots from before the crash prove nothing;
6. its stamps are unchanged: it was not invalidated by hand.

A client that sends back its transactions (2) therefore never sees less than it wrote. On the node that ran a mutation,
no caller does, from before the mutation returned (3). Every other caller sees a change as soon as this node has read it
from the log (1, 4). None of this depends on the store: a store that restarts, evicts, or returns an old entry returns
its C with it.

Proof of (1). An entry that this node computed enters the matching of the log's changes when its run ends. What C lacks
was committed after C was taken, so it arrives in a batch read after the run started: the changes since then are in the
ledger's record and are matched against the entry at that point. If the record does not have all of them, or the log was
lost in between, the entry is not stored. This closes the race of a result that is computed before a commit and stored
after its invalidation. An entry that another node computed is matched against the whole record, which has every change
that F contains and the record's `since` does not. This is complete if C covers `since`; if not, the entry is not used.

The C of a result from a replica is the snapshot that the primary had at a WAL position that the replica had passed: the
result contains at least C. If C does not contain W and P, the primary runs the query.

A caller that joins a run in progress may get a result older than its request. The caller gets it only if nothing was
stamped in between (only Redis knows its stamps, so with Redis the caller never gets it), and if it meets the conditions
above, or if C covers F and contains P as they were when the caller arrived: it is then no older than an entry could
have been. Otherwise the caller asks again: a run that started after the caller arrived is new enough, if it contains W.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Final, Generic, Literal, Protocol, TypeVar

import msgspec

from forge.cache.entry import EPOCH, CacheEntry, fresh
from forge.cache.flight import Flights
from forge.cache.recent_changes import Ledger, transaction
from forge.cache.store import ComputeLease, Store
from forge.change import Change
from forge.cursor import NOW, After, Cursor, Snapshot
from forge.errors import ForgeError

TRIES: Final = 3
PATIENCE: Final = 5.0
"""Maximum wait, in seconds, for another node that computes the same entry."""
_log = logging.getLogger(__name__)

How = Literal["stored", "waited", "computed"]
"""Source of an answer: the store, another node that was computing it, or this node."""
Reads = TypeVar("Reads", bound=Hashable | Sequence[object])


class Matcher(Protocol[Reads]):
    """Match changes against reads. `encode` is for other nodes; reads that cannot be encoded stay here."""

    def put(self, key: str, reads: Reads) -> None: ...

    def remove(self, key: str) -> None: ...

    def touched(self, change: Change) -> Iterable[str]: ...

    def touches(self, reads: Reads, changes: Iterable[Change]) -> bool: ...

    def encode(self, reads: Reads) -> bytes: ...

    def decode(self, entry: CacheEntry) -> Reads: ...


class ComputedValue(msgspec.Struct, Generic[Reads], frozen=True):
    """The result of a computation. `ttl` of None: do not store it. `snapshot` is None where no log reports writes."""

    value: bytes
    hash: str
    snapshot: Snapshot | None
    tables: tuple[str, ...]
    reads: Reads
    ttl: float | None


class Shown(msgspec.Struct, frozen=True):
    """The answer to a caller. `hit`: it was not computed for this caller; None if no cache was used."""

    value: bytes
    hash: str
    snapshot: str
    hit: bool | None


class CacheMetrics(msgspec.Struct):
    """Counters."""

    hits: int = 0
    misses: int = 0
    joined: int = 0
    """Requests answered by a run that was in progress."""
    waited: int = 0
    """Requests answered by a run in progress on another node."""
    stored: int = 0
    touched: int = 0
    """Entries invalidated by changes of the log."""
    late: int = 0
    """Results that were touched before they could be stored."""
    bypassed: int = 0
    """Requests answered without the cache, because the log or the store was unreachable."""


class _Known:
    """An entry that this node has matched against the log."""

    __slots__ = ("deadline", "snapshot", "tables", "touched", "version")

    def __init__(self, entry: CacheEntry, snapshot: Snapshot, deadline: float) -> None:
        self.version = entry.version
        self.snapshot = snapshot
        self.tables = entry.tables
        self.deadline = deadline
        self.touched = False


class _Landed(msgspec.Struct, frozen=True):
    """The result of a flight: an answer, and the data that decides which callers may get it."""

    entry: CacheEntry
    snapshot: Snapshot | None
    how: How
    kept: bool
    stamped: int
    """Number of stamps written here before it started."""


class _Came(msgspec.Struct, frozen=True):
    """The state when a caller arrived: flights started, stamps written here, and the known state of the log."""

    flights: int
    stamped: int
    followed: Snapshot | None
    pending: tuple[int, ...]


Run = Callable[[After], Awaitable[ComputedValue[Reads]]]


class ValidCache(Generic[Reads]):
    """Answers by key, kept in a store, invalidated by the log; without a log (`logged` is false), by stamps."""

    def __init__(
        self,
        store: Store,
        matcher: Matcher[Reads],
        *,
        logged: bool = True,
        max_entry_bytes: int = 4 << 20,
        max_known: int = 50_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = CacheMetrics()
        self.ledger = Ledger(clock)
        self._store = store
        self._matcher = matcher
        self._logged = logged
        self._max_entry_bytes = max_entry_bytes
        self._max_known = max_known
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._flights: Flights[_Landed] = Flights()

    # The log

    def take(self, changes: Sequence[Change]) -> None:
        """Match changes against all known entries."""
        for change in changes:
            xid = transaction(change)
            for key in list(self._matcher.touched(change)):
                known = self._known.get(key)
                if known is not None and not known.snapshot.sees(xid):
                    self.metrics.touched += 1
                    self._touch(key, known)
        if self._store.shared or len(self._flights):
            self.ledger.take(changes)
        else:
            self.ledger.skip(changes)

    def read(self, cursor: Cursor, started: str) -> None:
        """Record that the log has been followed up to here."""
        losses = self.ledger.mark().losses
        self.ledger.read(cursor, started)
        if self.ledger.mark().losses != losses:
            self._forget_all()

    def lose(self) -> None:
        """Discard everything known: the log was lost, or the meaning of queries changed."""
        self.ledger.lose()
        self._forget_all()

    def wrote(self, xid: int, tables: frozenset[str] | None) -> None:
        """Record a committed transaction of this node, before its writer gets the answer."""
        self.ledger.wrote(xid, tables)

    def gone(self, key: str, entry: CacheEntry) -> None:
        """Forget an entry that the store has removed."""
        known = self._known.get(key)
        if known is not None and known.version == entry.version:
            self._forget(key)

    async def close(self) -> None:
        await self._flights.end()
        self._forget_all()

    # Asking

    async def ask(self, key: str, name: str, run: Run[Reads], after: After = NOW) -> Shown:
        """Return the answer under a key: a valid entry, or a new computation shared by all concurrent callers."""
        came = _Came(self._flights.begun, self._store.stamped, self.ledger.followed, tuple(self.ledger.pending))
        for _ in range(TRIES):
            if not self._serving():
                break
            if not self._store.shared and (kept := await self._fetched(key, after)) is not None:
                self.metrics.hits += 1
                return _shown(kept, hit=True)
            landed, number, own = await self._flights.join(key, lambda: self._land(key, name, run, after))
            if own and landed.how == "computed":
                self.metrics.misses += 1
                return _shown(landed.entry, hit=False)
            if self._good(key, landed, number, came, after):
                self._count(landed.how)
                return _shown(landed.entry, hit=True)
        self.metrics.bypassed += 1
        found = await run(after.also(self.ledger.pending))
        return Shown(found.value, found.hash, str(found.snapshot or ""), False)

    def fresh(self, key: str, entry: CacheEntry, after: After) -> bool:
        """Whether an entry from the store may be returned, by the conditions above."""
        if not self._logged:
            return True
        followed = self.ledger.followed
        if followed is None or not self.ledger.alive or entry.era != self.ledger.era:
            return False
        known = self._known.get(key)
        if known is None or known.version != entry.version:
            known = self._adopted(key, entry)
        if known is None or known.touched:
            return False
        if after:
            concerned = frozenset(xid for xid in after.xids if not self.ledger.apart(xid, known.tables))
            if not After(concerned, after.upto).seen(known.snapshot, followed):
                return False
        return not self.ledger.waits(known.snapshot, known.tables)

    def _serving(self) -> bool:
        return self._store.up and (not self._logged or self.ledger.alive)

    def _good(self, key: str, landed: _Landed, number: int, came: _Came, after: After) -> bool:
        """Whether the result of a flight is valid for a caller that joined it."""
        snapshot, later = landed.snapshot, number > came.flights
        if later and landed.how == "computed":
            return snapshot is None or after.seen(snapshot)
        if not later and (self._store.shared or landed.stamped < came.stamped):
            return False
        if landed.kept and self.fresh(key, landed.entry, after):
            return True
        if snapshot is None or came.followed is None or not snapshot.covers(came.followed):
            return False
        return all(map(snapshot.sees, came.pending)) and after.seen(snapshot)

    def _adopted(self, key: str, entry: CacheEntry) -> _Known | None:
        """Match an entry of another node against all changes that it may lack."""
        try:
            snapshot = Snapshot.parse(entry.snapshot)
            lacking = self.ledger.lacking(snapshot)
            if lacking is None:
                return None
            reads = self._matcher.decode(entry)
        except (ForgeError, msgspec.MsgspecError, ValueError, TypeError, LookupError) as error:
            _log.warning("an entry of the cache cannot be read: %s", error)
            return None
        known = self._know(key, entry, snapshot, reads)
        if self._matcher.touches(reads, lacking):
            self._touch(key, known)
        return known

    async def _fetched(self, key: str, after: After) -> CacheEntry | None:
        entry = await self._store.get(key)
        return entry if entry is not None and self.fresh(key, entry, after) else None

    async def _land(self, key: str, name: str, run: Run[Reads], after: After) -> _Landed:
        """Return a stored entry, or one that another node is computing, otherwise compute it."""
        stamped = self._store.stamped
        if self._store.shared and (entry := await self._fetched(key, after)) is not None:
            return _Landed(entry, self._snapshot(entry), "stored", True, stamped)
        lease = await self._leased(key, after)
        if lease.entry is not None:
            return _Landed(lease.entry, self._snapshot(lease.entry), "waited", True, stamped)
        return await self._compute(key, name, run, after, lease, stamped)

    def _snapshot(self, entry: CacheEntry) -> Snapshot | None:
        return Snapshot.parse(entry.snapshot) if self._logged else None

    def _count(self, how: How) -> None:
        match how:
            case "stored":
                self.metrics.hits += 1
            case "waited":
                self.metrics.waited += 1
            case _:
                self.metrics.joined += 1

    async def _compute(
        self, key: str, name: str, run: Run[Reads], after: After, lease: ComputeLease, stamped: int
    ) -> _Landed:
        kept = False
        try:
            mark = self.ledger.mark()
            found = await run(after.also(self.ledger.pending))
            snapshot = str(found.snapshot) if found.snapshot is not None else ""
            stamps = _concerning(lease, name, found.tables)
            encoded = self._matcher.encode(found.reads) if self._store.shared else b""
            entry = CacheEntry(
                fresh(), mark.era, snapshot, name, found.tables, stamps, found.value, found.hash, encoded
            )
            if lease.token is None or lease.stamps is None or not found.ttl or entry.size > self._max_entry_bytes:
                return _Landed(entry, found.snapshot, "computed", False, stamped)
            if found.snapshot is not None:
                later = self.ledger.after(mark)
                lacking = None if later is None else _unseen(found.snapshot, later)
                if lacking is None or self._matcher.touches(found.reads, lacking):
                    self.metrics.late += 1
                    return _Landed(entry, found.snapshot, "computed", False, stamped)
                self._know(key, entry, found.snapshot, found.reads, found.ttl)
            kept = await self._store.put(key, entry, found.ttl, lease.token)
            if kept:
                self.metrics.stored += 1
            return _Landed(entry, found.snapshot, "computed", kept, stamped)
        finally:
            if lease.token is not None and not kept:
                await self._store.release(key, lease.token)

    async def _leased(self, key: str, after: After) -> ComputeLease:
        """Return the right to compute, or the entry that another process has computed; neither after a timeout."""
        deadline, pause = self._clock() + PATIENCE, 0.005
        while True:
            lease = await self._store.lease(key)
            if lease.entry is not None and not self.fresh(key, lease.entry, after):
                lease = msgspec.structs.replace(lease, entry=None)
            if lease.entry is not None:
                if lease.token is not None:
                    await self._store.release(key, lease.token)
                return lease
            if lease.token is not None or lease.stamps is None or self._clock() > deadline or not self._serving():
                return lease
            await asyncio.sleep(pause)
            pause = min(0.05, pause * 1.5)

    # Known entries

    def _know(self, key: str, entry: CacheEntry, snapshot: Snapshot, reads: Reads, ttl: float | None = None) -> _Known:
        self._forget(key)
        known = self._known[key] = _Known(entry, snapshot, self._clock() + (ttl or 3600.0))
        self._matcher.put(key, reads)
        while len(self._known) > self._max_known or self._oldest_expired():
            self._forget(next(iter(self._known)))
        return known

    def _oldest_expired(self) -> bool:
        return self._store.shared and next(iter(self._known.values())).deadline < self._clock()

    def _touch(self, key: str, known: _Known) -> None:
        """Mark an entry that will not be returned again."""
        known.touched = True
        self._matcher.remove(key)
        self._store.touched(key)

    def _forget(self, key: str) -> None:
        known = self._known.pop(key, None)
        if known is not None and not known.touched:
            self._matcher.remove(key)

    def _forget_all(self) -> None:
        for key in list(self._known):
            self._forget(key)


def _concerning(lease: ComputeLease, name: str, tables: tuple[str, ...]) -> dict[str, str]:
    """Return the stamps to check an entry against later: its own stamps, and the epoch."""
    probe = CacheEntry("", "", "", name, tables, {}, b"", "")
    return {stamp: value for stamp, value in (lease.stamps or {}).items() if stamp == EPOCH or probe.concerned(stamp)}


def _unseen(snapshot: Snapshot, changes: Iterable[Change]) -> list[Change]:
    return [change for change in changes if not snapshot.sees(transaction(change))]


def _shown(entry: CacheEntry, *, hit: bool) -> Shown:
    return Shown(entry.value, entry.hash, entry.snapshot, hit)
