"""Answers that are shown again while they are true: when an entry may be shown, and the proof that it is not stale.

Notation. C is the snapshot of an entry: what it shows (at least). F is the snapshot up to which this node has followed
the log, all of whose changes have been held against the entries that it knows. W is the transactions that the asker
must be shown (`forge.cursor.After`), P those that were acknowledged by this node and that F does not show yet.

An entry is shown only if

1. *nothing touched it*: no change that F shows and C does not meets what it read;
2. *the asker's own writes are in it, or do not concern it*: each of W is shown by C; or by F, and then (1) says that
   it does not concern the entry; or is one of P that wrote none of the entry's tables;
3. *nor do those of this node concern it*: each of P is shown by C, or wrote none of the entry's tables;
4. F is current: the log has been read within the last seconds (`ledger.SILENCE`);
5. its era is this one: same log, same timeline, same start of the server. After a crash PostgreSQL gives numbers of
   transactions again, and snapshots from before say nothing;
6. its stamps stand: nobody invalidated it by hand.

So a client that sends back what it was told (2) is never shown less than it wrote; on the node that ran a mutation
nobody is, from before the mutation returned (3); and everybody else is shown a change as soon as this node has read it
from the log (1, 4). None of it depends on what a store does: a store that was restarted, evicts, or brings back an old
entry brings back its C with it.

How (1) is known. An entry that this node computed is put where the log's changes are matched when the run ends. What C
lacks was committed after C was taken, so it comes with a batch read after the run began: the changes that came since
are in the ledger's record and are held against the entry there and then. If the record no longer has them all, or the
log was lost meanwhile, the entry is not kept. That is the race of a result computed before a commit and stored after
its invalidation. An entry that another node computed is held against the whole record, which has every change that F
shows and the record's `since` does not; that tells all if C covers `since`, and else the entry is not used.

A result from a replica has for C the snapshot that the primary had at a WAL position which the replica had passed: it
shows at least C. If W or P are not in that, the primary is asked.

Whoever joins a run that was under way when they came may get a result older than their question. It is shown to them
if it meets the conditions above, or if C covers F and shows P as they were when they came: that is no older than an
entry could have been; and if nothing was stamped between. Of stamps in Redis only Redis can tell, so there it is not
shown. Else they ask again, and what began after they came is new enough, if it shows W.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Final, Generic, Literal, Protocol, TypeVar

import msgspec

from forge.cache.entry import EPOCH, Entry, fresh
from forge.cache.flight import Flights
from forge.cache.recent_changes import Ledger, transaction
from forge.cache.store import Lease, Store
from forge.change import Change
from forge.cursor import NOW, After, Cursor, Snapshot
from forge.errors import ForgeError

TRIES: Final = 3
PATIENCE: Final = 5.0
"""Seconds to wait for another node that computes the same."""
_log = logging.getLogger(__name__)

How = Literal["stored", "waited", "computed"]
"""Where an answer came from: the store, another node that was computing it, or this node."""
Reads = TypeVar("Reads", bound=Hashable | Sequence[object])


class Matcher(Protocol[Reads]):
    """What changes touch what was read. `encode` is for other nodes; what cannot be encoded stays here."""

    def put(self, key: str, reads: Reads) -> None: ...

    def remove(self, key: str) -> None: ...

    def touched(self, change: Change) -> Iterable[str]: ...

    def touches(self, reads: Reads, changes: Iterable[Change]) -> bool: ...

    def encode(self, reads: Reads) -> bytes: ...

    def decode(self, entry: Entry) -> Reads: ...


class Found(msgspec.Struct, Generic[Reads], frozen=True):
    """What a computation gave. `ttl` of None: not to be kept. `snapshot` is None where no log tells of writes."""

    value: bytes
    hash: str
    snapshot: Snapshot | None
    tables: tuple[str, ...]
    reads: Reads
    ttl: float | None


class Shown(msgspec.Struct, frozen=True):
    """What an asker gets. `hit` when it was not computed for them; None where no cache was asked."""

    value: bytes
    hash: str
    snapshot: str
    hit: bool | None


class Metrics(msgspec.Struct):
    """What happened so far."""

    hits: int = 0
    misses: int = 0
    joined: int = 0
    """Questions that were answered by a run that was under way."""
    waited: int = 0
    """Questions that were answered by a run of another node that was under way."""
    stored: int = 0
    touched: int = 0
    """Entries that the log's changes ended."""
    late: int = 0
    """Results that were touched before they could be kept."""
    bypassed: int = 0
    """Questions answered without the cache, because the log or the store could not be reached."""


class _Known:
    """An entry that this node has held against the log."""

    __slots__ = ("deadline", "snapshot", "tables", "touched", "version")

    def __init__(self, entry: Entry, snapshot: Snapshot, deadline: float) -> None:
        self.version = entry.version
        self.snapshot = snapshot
        self.tables = entry.tables
        self.deadline = deadline
        self.touched = False


class _Landed(msgspec.Struct, frozen=True):
    """What a flight brought: an answer, and what decides for whom it is good."""

    entry: Entry
    snapshot: Snapshot | None
    how: How
    kept: bool
    stamped: int
    """How many stamps had been written here when it began."""


class _Came(msgspec.Struct, frozen=True):
    """What there was when somebody came: flights begun, stamps written here, and what was known of the log."""

    flights: int
    stamped: int
    followed: Snapshot | None
    pending: tuple[int, ...]


Run = Callable[[After], Awaitable[Found[Reads]]]


class Keeper(Generic[Reads]):
    """Answers by key, kept in a store, ended by the log. `logged` is false where there is no log: then stamps do it."""

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
        self.metrics = Metrics()
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
        """Hold changes against all that is known."""
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
        """The log has been followed up to here."""
        losses = self.ledger.mark().losses
        self.ledger.read(cursor, started)
        if self.ledger.mark().losses != losses:
            self._forget_all()

    def lose(self) -> None:
        """The log was lost, or what queries mean is another: nothing that is known holds."""
        self.ledger.lose()
        self._forget_all()

    def wrote(self, xid: int, tables: frozenset[str] | None) -> None:
        """A transaction of this node was committed; before its writer hears of it."""
        self.ledger.wrote(xid, tables)

    def gone(self, key: str, entry: Entry) -> None:
        """The store has forgotten an entry."""
        known = self._known.get(key)
        if known is not None and known.version == entry.version:
            self._forget(key)

    async def close(self) -> None:
        await self._flights.end()
        self._forget_all()

    # Asking

    async def ask(self, key: str, name: str, run: Run[Reads], after: After = NOW) -> Shown:
        """The answer under a key: shown again if that may be, else computed, once for all who ask meanwhile."""
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

    def fresh(self, key: str, entry: Entry, after: After) -> bool:
        """Whether an entry that the store gave may be shown: the conditions above."""
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
        """Whether what a flight brought is for somebody who joined it."""
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

    def _adopted(self, key: str, entry: Entry) -> _Known | None:
        """An entry of another node, held against all that it may lack."""
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

    async def _fetched(self, key: str, after: After) -> Entry | None:
        entry = await self._store.get(key)
        return entry if entry is not None and self.fresh(key, entry, after) else None

    async def _land(self, key: str, name: str, run: Run[Reads], after: After) -> _Landed:
        """What there is, or what is being computed elsewhere, or else what is computed now."""
        stamped = self._store.stamped
        if self._store.shared and (entry := await self._fetched(key, after)) is not None:
            return _Landed(entry, self._snapshot(entry), "stored", True, stamped)
        lease = await self._leased(key, after)
        if lease.entry is not None:
            return _Landed(lease.entry, self._snapshot(lease.entry), "waited", True, stamped)
        return await self._compute(key, name, run, after, lease, stamped)

    def _snapshot(self, entry: Entry) -> Snapshot | None:
        return Snapshot.parse(entry.snapshot) if self._logged else None

    def _count(self, how: How) -> None:
        match how:
            case "stored":
                self.metrics.hits += 1
            case "waited":
                self.metrics.waited += 1
            case _:
                self.metrics.joined += 1

    async def _compute(self, key: str, name: str, run: Run[Reads], after: After, lease: Lease, stamped: int) -> _Landed:
        kept = False
        try:
            mark = self.ledger.mark()
            found = await run(after.also(self.ledger.pending))
            snapshot = str(found.snapshot) if found.snapshot is not None else ""
            stamps = _concerning(lease, name, found.tables)
            encoded = self._matcher.encode(found.reads) if self._store.shared else b""
            entry = Entry(fresh(), mark.era, snapshot, name, found.tables, stamps, found.value, found.hash, encoded)
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

    async def _leased(self, key: str, after: After) -> Lease:
        """The right to compute, or what another has computed meanwhile; neither when it takes too long."""
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

    # What is known

    def _know(self, key: str, entry: Entry, snapshot: Snapshot, reads: Reads, ttl: float | None = None) -> _Known:
        self._forget(key)
        known = self._known[key] = _Known(entry, snapshot, self._clock() + (ttl or 3600.0))
        self._matcher.put(key, reads)
        while len(self._known) > self._max_known or self._oldest_expired():
            self._forget(next(iter(self._known)))
        return known

    def _oldest_expired(self) -> bool:
        return self._store.shared and next(iter(self._known.values())).deadline < self._clock()

    def _touch(self, key: str, known: _Known) -> None:
        """It will not be shown again."""
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


def _concerning(lease: Lease, name: str, tables: tuple[str, ...]) -> dict[str, str]:
    """The stamps that an entry must be held against later: those that concern it, and the epoch."""
    probe = Entry("", "", "", name, tables, {}, b"", "")
    return {stamp: value for stamp, value in (lease.stamps or {}).items() if stamp == EPOCH or probe.concerned(stamp)}


def _unseen(snapshot: Snapshot, changes: Iterable[Change]) -> list[Change]:
    return [change for change in changes if not snapshot.sees(transaction(change))]


def _shown(entry: Entry, *, hit: bool) -> Shown:
    return Shown(entry.value, entry.hash, entry.snapshot, hit)
