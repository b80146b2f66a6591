"""Circuit breaker: an endpoint that fails repeatedly gets no requests for a while, longer each time.

While it is closed, all requests pass. After `after` failures in a row it is open for a while, and none pass. Then one
request passes, the trial: if it succeeds the breaker closes, else it stays open twice as long, up to `LONGEST`. The
times have no jitter: one breaker sends one trial.
"""

import time
from collections.abc import Callable
from typing import Final

from forge.backoff import Backoff

AFTER: Final = 5
FIRST: Final = 1.0
LONGEST: Final = 60.0


class Breaker:
    """
    >>> now = 0.0
    >>> breaker = Breaker(after=2, clock=lambda: now)
    >>> breaker.failed(); breaker.rest()
    0.0
    >>> breaker.failed(); breaker.failed(); breaker.rest()
    1.0
    >>> now = 1.0; breaker.rest(), breaker.trial(), breaker.rest()  # others wait for what comes of it
    (0.0, True, 1.0)
    >>> breaker.failed(); breaker.rest()
    2.0
    >>> breaker.succeeded(); breaker.rest(), breaker.trial()
    (0.0, False)
    """

    def __init__(self, after: int = AFTER, clock: Callable[[], float] = time.monotonic) -> None:
        self._after = after
        self._clock = clock
        self._failures = 0
        self._waits = Backoff(FIRST, LONGEST, chance=lambda: 1.0)
        self._pause = 0.0
        self._until = 0.0
        self._trying = False

    @property
    def failures(self) -> int:
        """The number of failures in a row."""
        return self._failures

    def rest(self) -> float:
        """Return the seconds for which no request may be sent."""
        return self._pause if self._trying else max(0.0, self._until - self._clock())

    def trial(self) -> bool:
        """Whether the caller must send one request alone, the trial; it then reports the result."""
        self._trying = self._pause > 0 and not self.rest()
        return self._trying

    def failed(self) -> None:
        """Record a failed request. Requests in flight when the breaker opened change nothing."""
        self._failures += 1
        if self._trying or (not self._pause and self._failures >= self._after):
            self._trying = False
            self._pause = self._waits.next()
            self._until = self._clock() + self._pause

    def abandoned(self) -> None:
        """Record that the trial ended without an answer from the endpoint."""
        self._trying = False

    def succeeded(self) -> None:
        """Record an accepted request."""
        self._failures, self._pause, self._until, self._trying = 0, 0.0, 0.0, False
        self._waits.reset()
