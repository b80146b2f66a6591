"""Activity of a node in the last two minutes, per second, counted as it happens, without reading a table.

>>> from types import SimpleNamespace as Some
>>> activity = Activity(Some(on_batch=[], on_push=[], on_latency=lambda stage, seconds: None), clock=lambda: 1000.2)
>>> activity.observe("run", 0.01); activity.observe("commit_to_push", 0.06)
>>> activity.seconds()[-1]["runs"], activity.seconds()[-1]["p95_ms"], len(activity.seconds())
(1, 60.0, 120)
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from forge.changelog.reader import Batch
from forge.react.group import Group
from forge.react.push import Push

SECONDS: Final = 120
MINUTE: Final = 60
MOST_LATENCIES: Final = 1000
"""Per second; the first samples represent the rest."""

Table = tuple[str, str]


class Watched(Protocol):
    """The part of `forge.react.reactor.Reactor` that the counters need."""

    on_batch: list[Callable[[Batch], None]]
    on_push: list[Callable[[Group, Push], None]]
    on_latency: Callable[[str, float], None]


class _Second:
    def __init__(self, at: int) -> None:
        self.at = at
        self.changes = self.runs = self.pushed = 0
        self.latencies: list[float] = []
        self.tables: Counter[Table] = Counter()


class Activity:
    """Counts of a reactor per second, without runs of Forge's own queries."""

    def __init__(self, reactor: Watched, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ring: deque[_Second] = deque(maxlen=SECONDS)
        self.last: dict[Table, datetime] = {}
        """Time of each table's last change that this node has seen."""
        reactor.on_batch.append(self._batch)
        reactor.on_push.append(self._pushed)
        before = reactor.on_latency

        def both(stage: str, seconds: float) -> None:
            before(stage, seconds)
            self.observe(stage, seconds)

        reactor.on_latency = both

    def observe(self, stage: str, seconds: float) -> None:
        """Record the duration of a stage of a push."""
        if stage == "run":
            self._now().runs += 1
        elif stage == "commit_to_push" and len(self._now().latencies) < MOST_LATENCIES:
            self._now().latencies.append(max(0.0, seconds))

    def seconds(self) -> list[dict[str, Any]]:
        """Return the last two minutes, oldest first, including the current second."""
        known = {each.at: each for each in self._ring}
        now = int(self._clock())
        return [_told(known.get(at) or _Second(at)) for at in range(now - SECONDS + 1, now + 1)]

    def latency(self, part: float) -> float | None:
        """Return this quantile of the latency from commit to push in the last two minutes, in milliseconds."""
        since = self._clock() - SECONDS
        return quantile([value for each in self._ring if each.at > since for value in each.latencies], part)

    def per_minute(self) -> Counter[Table]:
        """Return the number of changes per table in the last minute."""
        since = self._clock() - MINUTE
        found: Counter[Table] = Counter()
        for each in self._ring:
            if each.at > since:
                found.update(each.tables)
        return found

    def _now(self) -> _Second:
        at = int(self._clock())
        if not self._ring or self._ring[-1].at != at:
            self._ring.append(_Second(at))
        return self._ring[-1]

    def _batch(self, batch: Batch) -> None:
        second = self._now()
        second.changes += len(batch.changes)
        second.tables.update((change.schema, change.table) for change in batch.changes)
        for change in batch.changes:
            self.last[change.schema, change.table] = change.at

    def _pushed(self, group: Group, push: Push) -> None:
        if not group.call.query.own:
            self._now().pushed += 1


def quantile(values: Iterable[float], part: float) -> float | None:
    """Return a quantile, in milliseconds.

    >>> quantile([0.3, 0.1, 0.2], 0.5), quantile([0.1, 0.2], 0.95), quantile([], 0.5)
    (200.0, 200.0, None)
    """
    found: Sequence[float] = sorted(values)
    if not found:
        return None
    return round(found[min(len(found) - 1, int(len(found) * part))] * 1000, 1)


def _told(second: _Second) -> dict[str, Any]:
    return {
        "at": datetime.fromtimestamp(second.at, UTC),
        "changes": second.changes,
        "runs": second.runs,
        "pushed": second.pushed,
        "wasted": max(0, second.runs - second.pushed),
        "p50_ms": quantile(second.latencies, 0.5),
        "p95_ms": quantile(second.latencies, 0.95),
    }
