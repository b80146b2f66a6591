"""Record instants: pairs of a time and a snapshot, from which the past is read by time.

Invariants:

- A pair (instant, snapshot) in `forge.instant` means: all that the snapshot sees was committed before the instant.
- Pairs are recorded while something changes; both values only grow, because one session at a time records, the one that
  holds the lease.
"""

from forge.changelog.queries import maintenance
from forge.cursor import Snapshot
from forge.postgres import leases
from forge.postgres.held_session import HeldSession


class InstantRecorder:
    """Records instants in a session."""

    def __init__(self, session: HeldSession) -> None:
        self._session = session
        self._last_id: int | None = None
        """The last id of a row at the instant recorded last."""
        self._unfinished: list[int] = []
        """Transactions that may have taken such an id, and had not ended."""

    def record(self) -> bool:
        """Record an instant and what was committed by then, if that changed since the last one."""
        connection = self._session.connection
        row = connection.execute(maintenance("last_event_id")).fetchone()
        last = None if row is None else row[0]
        moved = last != self._last_id
        if not moved and not self._unfinished:
            return False
        # The snapshot comes after the lease: otherwise a pair might not grow in both values.
        if not self._session.take(leases.INSTANTS):
            return False
        row = connection.execute(
            maintenance("record_instant"), {"moved": moved, "unfinished": [str(xid) for xid in self._unfinished]}
        ).fetchone()
        if row is None:
            return False
        snapshot, own = Snapshot.parse(row[0]), int(row[1])
        if moved:
            # Transactions that took an id up to this one have a number below our own. The newest may be missing in
            # `running`.
            self._last_id = last
            self._unfinished = [*snapshot.running, *range(snapshot.xmax, own)]
        else:
            self._unfinished = [xid for xid in self._unfinished if not snapshot.sees(xid)]
        return True
