"""How long to wait before the next try: twice as long each time up to a limit, and never the same for two clients."""

import random
from collections.abc import Callable


class Backoff:
    """Waits between tries, in seconds.

    >>> backoff = Backoff(first=0.25, most=1.0, chance=lambda: 1.0)
    >>> [backoff.next() for _ in range(4)], backoff.next(at_least=5.0)
    ([0.25, 0.5, 1.0, 1.0], 6.0)
    >>> backoff.reset()
    >>> backoff.next()
    0.25
    """

    def __init__(self, *, first: float = 0.25, most: float = 30.0, chance: Callable[[], float] = random.random) -> None:
        self._first = first
        self._most = most
        self._chance = chance
        self._limit = first

    def next(self, at_least: float = 0.0) -> float:
        """From half of the limit to all of it, after what the server asked to wait."""
        limit, self._limit = self._limit, min(self._most, self._limit * 2)
        return at_least + limit * (0.5 + 0.5 * self._chance())

    def reset(self) -> None:
        """All is well again."""
        self._limit = self._first
