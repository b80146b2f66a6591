"""A group: one query with its arguments and scope, its subscribers, its last result, and the changes since then."""

import asyncio
import time
from collections.abc import Sequence

import msgspec

from forge.backoff import Backoff
from forge.change import Change
from forge.changelog.follow import Wakeup
from forge.config import default
from forge.cursor import Snapshot
from forge.errors import ForgeError
from forge.react.index import BoundRead
from forge.react.push import MOST_CAUSES, RunCause, Subscriber
from forge.react.registry import Call
from forge.react.result import Result

GroupKey = tuple[str, bytes, bytes]


class Settings(msgspec.Struct, frozen=True):
    """Settings for re-running queries; the configuration supplies missing values. Times in seconds."""

    quiet: float = default("realtime.debounce")
    longest: float = default("realtime.max_debounce")
    runs: int = default("realtime.max_concurrent_runs")
    resync: float = default("realtime.resync_interval")
    check: float = default("realtime.check_interval")
    idle: float = default("realtime.idle_timeout")
    max_result_bytes: int = default("realtime.max_cached_result_bytes")
    wakeup: Wakeup = default("wakeup")


class ReactorMetrics(msgspec.Struct):
    """Counters. `missed` must stay 0: it counts stale results whose query no change had touched."""

    changes: int = 0
    touched: int = 0
    pruned: int = 0
    runs: int = 0
    wasted: int = 0
    pushed: int = 0
    failed: int = 0
    missed: int = 0
    checked: int = 0
    resyncs: int = 0


class Group:
    """One query with its arguments and scope, its subscribers and its last result."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.key: GroupKey = call.group
        self.subscribers: set[Subscriber] = set()
        self.newcomers: set[Subscriber] = set()
        """Subscribers that have not received a push yet."""
        self.stale = False
        """Touched while it had no subscribers: the result must not be shown before another run."""
        self.result: Result | None = None
        self.error: ForgeError | None = None
        self.reads: Sequence[BoundRead] = ()
        self.coverage = Snapshot(1, 1)
        self.lsn = 0
        self.running = False
        self.waiting = False
        self.causes: list[RunCause] = []
        self.more = 0
        self.unseen: set[int] = set()
        self.forced = False
        self.touched_at: float | None = None
        self.idle_since = 0.0
        self.refreshed = 0.0
        self.backoff = Backoff(0.2, 5.0)
        self.retry: asyncio.TimerHandle | None = None
        self.runs = self.pushed = self.wasted = self.failed = 0
        self.took: float | None = None
        """Duration of the last run, in seconds."""
        self.ran_at: float | None = None
        """End of the last run, in seconds since the epoch."""

    def touch(self, change: Change, transaction: int, *, actor: bool = True) -> None:
        """Record a cause for the next run; include the actor only if the group's subscribers may see it."""
        self.unseen.add(transaction)
        self.touched_at = self.touched_at or time.monotonic()
        if len(self.causes) < MOST_CAUSES:
            self.causes.append(RunCause.of(change, actor=actor))
        else:
            self.more += 1

    def covered(self) -> list[RunCause]:
        """Return the causes that arrived during a run and are in its result; they need no further run."""
        seen = [cause for cause in self.causes if self.coverage.sees(int(cause.transaction or 0))]
        self.causes = [cause for cause in self.causes if cause not in seen]
        self.unseen = {transaction for transaction in self.unseen if not self.coverage.sees(transaction)}
        if not self.unseen:
            self.more, self.touched_at = 0, None
        return seen

    def busy(self) -> bool:
        """Whether a run is in flight."""
        return self.running

    def settled(self) -> bool:
        """Whether the last result contains every change that touched the group, so that no run is needed."""
        return not self.forced and self.error is None and all(map(self.coverage.sees, self.unseen))

    def begin(self) -> tuple[tuple[RunCause, ...], int]:
        """Start a run for everything that has touched the group so far."""
        causes = tuple(self.causes), self.more
        self.causes, self.more, self.forced = [], 0, False
        self.unseen.clear()
        return causes
