"""Store in this process, with LRU eviction by number and by bytes; expired entries are removed.

Invariants:
- `bytes` is the sum of the sizes of the stored entries; `bytes` and the number of entries never exceed their limits.
- An expired entry is never returned, and is removed by the next use of the store.
"""

import heapq
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from forge.cache.entry import EPOCH, CacheEntry, fresh
from forge.cache.store import ComputeLease

MOST_STAMPS: Final = 1000
_HERE: Final = "here"


class _Held(NamedTuple):
    entry: CacheEntry
    deadline: float


class Memory:
    """A store for one process."""

    shared = False
    up = True

    def __init__(
        self, *, max_bytes: int = 64 << 20, max_entries: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.bytes = 0
        self.stamped = 0
        self.on_gone: Callable[[str, CacheEntry], None] = lambda key, entry: None
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._clock = clock
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._deadlines: list[tuple[float, str]] = []
        self._stamps = {EPOCH: fresh()}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        self._sweep()
        return len(self._held)

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        self._held.clear()
        self._deadlines.clear()
        self.bytes = 0

    async def get(self, key: str) -> CacheEntry | None:
        self._sweep()
        held = self._held.get(key)
        if held is None:
            return None
        if not held.entry.stands(self._stamps):
            self._forget(key)
            return None
        self._held.move_to_end(key)
        return held.entry

    async def lease(self, key: str) -> ComputeLease:
        with self._lock:
            return ComputeLease(_HERE, dict(self._stamps))

    async def put(self, key: str, entry: CacheEntry, ttl: float, token: str) -> bool:
        self._sweep()
        if key in self._held:
            self._forget(key)
        if entry.size > self._max_bytes or ttl <= 0 or not self._max_entries:
            return False
        deadline = self._clock() + ttl
        self._held[key] = _Held(entry, deadline)
        self.bytes += entry.size
        heapq.heappush(self._deadlines, (deadline, key))
        if len(self._deadlines) > 2 * len(self._held) + 64:
            self._deadlines = [(held.deadline, key) for key, held in self._held.items()]
            heapq.heapify(self._deadlines)
        while len(self._held) > self._max_entries or self.bytes > self._max_bytes:
            self._forget(next(iter(self._held)))
        return True

    async def release(self, key: str, token: str) -> None:
        """Do nothing: no other process waits for the lease."""

    async def drop(self, key: str) -> None:
        if key in self._held:
            self._forget(key)

    def touched(self, key: str) -> None:
        if key in self._held:
            self._forget(key)

    def stamp(self, names: Sequence[str]) -> None:
        with self._lock:
            self.stamped += 1
            if not names or len(self._stamps) > MOST_STAMPS:
                self._stamps = {EPOCH: fresh()}
            else:
                self._stamps = {**self._stamps, **{name: fresh() for name in names}}

    def _sweep(self) -> None:
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, key = heapq.heappop(self._deadlines)
            held = self._held.get(key)
            if held is not None and held.deadline == deadline:
                self._forget(key)

    def _forget(self, key: str) -> None:
        held = self._held.pop(key)
        self.bytes -= held.entry.size
        self.on_gone(key, held.entry)
