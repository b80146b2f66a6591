"""How long to wait before the next try: twice as long each time up to a limit, and never the same for two readers."""

import random
from typing import Final


class Backoff:
    """Seconds between tries.

    >>> backoff = Backoff(0.1, 5.0)
    >>> waits = [backoff.next() for _ in range(7)]
    >>> 0.05 <= waits[0] <= 0.1, 0.1 <= waits[1] <= 0.2, 2.5 <= waits[6] <= 5.0
    (True, True, True)
    >>> backoff.spent
    True
    >>> backoff.reset()
    >>> backoff.next() <= 0.1
    True
    """

    def __init__(self, first: float = 0.1, most: float = 5.0) -> None:
        self._first: Final = first
        self._most: Final = most
        self._limit = first

    @property
    def spent(self) -> bool:
        """Whether the next wait is one of the longest."""
        return self._limit >= self._most

    def next(self) -> float:
        """From half of the limit to all of it."""
        limit, self._limit = self._limit, min(self._most, self._limit * 2)
        return random.uniform(limit / 2, limit)

    def reset(self) -> None:
        """All is well again."""
        self._limit = self._first
