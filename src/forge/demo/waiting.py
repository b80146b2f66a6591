"""Progress line while the lake catches up: take counts, print the number of remaining changes.

On a terminal it is one line, overwritten each time, and removed at the end; elsewhere a line is printed at intervals.
"""

import time
from collections.abc import Callable
from typing import Final, TextIO

from forge.doctor.finding import count

EVERY: Final = 10.0
"""Seconds between two lines where they cannot be overwritten."""
_ANEW: Final = "\r\x1b[K"


class Waiting:
    """One wait; it prints nothing before the first call."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._said: float | None = None
        self._shown = False

    def tell(self, missing: int | None) -> None:
        """Print the number of remaining changes; None if it is unknown."""
        line = f"the lake takes in the rest: {_rest(missing)}   Ctrl-C ends the wait"
        if self._out.isatty():
            self._out.write(_ANEW + line)
            self._shown = True
        elif self._said is None or self._clock() - self._said >= EVERY:
            self._out.write(line + "\n")
            self._said = self._clock()
        self._out.flush()

    def clear(self) -> None:
        """Clear the line for other output."""
        if self._shown:
            self._out.write(_ANEW)
            self._shown = False


def _rest(missing: int | None) -> str:
    """
    >>> _rest(None), _rest(0), _rest(1204)
    ('Spark warms up for a minute', 'all is in, and is compared', '1,204 changes to come')
    """
    if missing is None:
        return "Spark warms up for a minute"
    return f"{count(missing, 'change')} to come" if missing else "all is in, and is compared"
