"""How long to wait before the next try: twice as long each time up to a limit, and never the same for two readers."""

import random
from typing import Final

FIRST: Final = 0.1
MOST: Final = 10.0


class Backoff:
    """Seconds between tries.

    >>> backoff = Backoff()
    >>> waits = [backoff.next() for _ in range(9)]
    >>> 0.05 <= waits[0] <= 0.1, 0.1 <= waits[1] <= 0.2, 5.0 <= waits[8] <= 10.0
    (True, True, True)
    """

    def __init__(self) -> None:
        self._limit = FIRST

    def next(self) -> float:
        """From half of the limit to all of it."""
        limit, self._limit = self._limit, min(MOST, self._limit * 2)
        return random.uniform(limit / 2, limit)

    def reset(self) -> None:
        """All is well again."""
        self._limit = FIRST
