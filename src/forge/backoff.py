"""Exponential backoff with jitter."""

import random
from collections.abc import Callable
from typing import Final


class Backoff:
    """Seconds between retries: doubled each time up to a limit, with jitter so that two waiters differ.

    >>> backoff = Backoff(0.25, 1.0, chance=lambda: 1.0)
    >>> [backoff.next() for _ in range(4)], backoff.spent, backoff.next(at_least=5.0)
    ([0.25, 0.5, 1.0, 1.0], True, 6.0)
    >>> backoff.reset()
    >>> backoff.next()
    0.25
    >>> Backoff(0.25, 8.0, failures=3, chance=lambda: 1.0).next()  # the waits before are counted elsewhere
    2.0
    """

    def __init__(
        self,
        first: float = 0.1,
        most: float = 5.0,
        *,
        failures: int = 0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._first: Final = first
        self._most: Final = most
        self._chance: Final = chance
        self._limit = min(most, first * 2.0 ** min(failures, 60)) if failures else first

    @property
    def spent(self) -> bool:
        """Tell whether the next wait is one of the longest."""
        return self._limit >= self._most

    def next(self, at_least: float = 0.0) -> float:
        """Return the next wait: `at_least`, plus a random time from half of the limit to all of it."""
        limit, self._limit = self._limit, min(self._most, self._limit * 2)
        return at_least + limit * (0.5 + 0.5 * self._chance())

    def reset(self) -> None:
        """Start again with the shortest wait, after a success."""
        self._limit = self._first
