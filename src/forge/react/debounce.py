"""Debounce for touched groups: a group is due after a quiet period, with a maximum delay since its first touch.

The caller passes the time in; nothing here waits.

>>> debounce = Debounce(quiet=0.05, longest=0.2)
>>> debounce.touch("a", 10.00)
>>> debounce.touch("a", 10.04)
>>> debounce.due(10.05), round(debounce.next_due(), 2)
([], 10.09)
>>> for moment in (10.08, 10.12, 10.16):
...     debounce.touch("a", moment)
>>> debounce.due(10.19), debounce.due(10.20)
([], ['a'])
>>> debounce.next_due() is None
True
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Debounce(Generic[Key]):
    """Touched keys, each with the time at which it is due."""

    def __init__(self, quiet: float, longest: float) -> None:
        self._quiet = quiet
        self._longest = longest
        self._first: dict[Key, float] = {}
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def touch(self, key: Key, now: float) -> None:
        """Record that the key was touched at `now`."""
        first = self._first.setdefault(key, now)
        due = min(now + self._quiet, first + self._longest)
        known = self._due.get(key)
        self._due[key] = due
        if known is None:
            self._push(due, key)

    def drop(self, key: Key) -> None:
        """Forget the key."""
        self._first.pop(key, None)
        self._due.pop(key, None)

    def due(self, now: float) -> list[Key]:
        """Remove and return the keys that are due, earliest first."""
        found: list[Key] = []
        while self._heap and self._heap[0][0] <= now:
            _, _, key = heapq.heappop(self._heap)
            due = self._due.get(key)
            if due is None:
                continue
            if due > now:  # touched again since: the heap holds each key once, at its latest time
                self._push(due, key)
                continue
            self.drop(key)
            found.append(key)
        return found

    def next_due(self) -> float | None:
        """Return the earliest time at which a key is due; None if there is none."""
        while self._heap:
            moment, _, key = self._heap[0]
            due = self._due.get(key)
            if due == moment:
                return moment
            heapq.heappop(self._heap)
            if due is not None:
                self._push(due, key)
        return None

    def _push(self, due: float, key: Key) -> None:
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, key))
