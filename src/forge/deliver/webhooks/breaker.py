"""A circuit breaker: an endpoint that fails again and again is left alone for a while, longer each time.

Closed, all requests go. After `after` failures in a row it is open for a while, and none do. Then one is let through:
if that succeeds it is closed, else open for twice as long, up to `longest`.
"""

import time
from collections.abc import Callable
from typing import Final

AFTER: Final = 5
FIRST: Final = 1.0
LONGEST: Final = 60.0


class Breaker:
    """
    >>> now = 0.0
    >>> breaker = Breaker(after=2, clock=lambda: now)
    >>> breaker.failed(); breaker.rest, breaker.trial
    (0.0, False)
    >>> breaker.failed(); breaker.rest, breaker.trial
    (1.0, True)
    >>> now = 1.0; breaker.rest, breaker.trial
    (0.0, True)
    >>> breaker.failed(); breaker.rest
    2.0
    >>> breaker.succeeded(); breaker.rest, breaker.trial
    (0.0, False)
    """

    def __init__(self, after: int = AFTER, clock: Callable[[], float] = time.monotonic) -> None:
        self._after = after
        self._clock = clock
        self._failures = 0
        self._pause = 0.0
        self._until = 0.0

    @property
    def rest(self) -> float:
        """Seconds for which no request may go."""
        return max(0.0, self._until - self._clock())

    @property
    def trial(self) -> bool:
        """Whether the next request is to go alone."""
        return self._pause > 0

    @property
    def failures(self) -> int:
        """How many there were in a row."""
        return self._failures

    def failed(self) -> None:
        """A request failed; those that were under way when it opened count once."""
        self._failures += 1
        if self._failures >= self._after and not self.rest:
            self._pause = min(LONGEST, self._pause * 2 or FIRST)
            self._until = self._clock() + self._pause

    def succeeded(self) -> None:
        """A request was taken."""
        self._failures, self._pause, self._until = 0, 0.0, 0.0
