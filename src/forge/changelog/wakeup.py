"""Who wakes a reader: the protocol, free of I/O.

NOTIFY costs every writer a lock across all databases at commit, so writers send it only when nobody is awake.
One node, the pacemaker, is awake while there is load: it holds the advisory lock K (or waits for it) and polls.
A writer's trigger writes its log rows first and then tries K in shared mode. If that fails somebody is awake and
the writer stays silent; otherwise it NOTIFYs at commit.

To fall asleep the pacemaker

1. gives K up, so that every writer from now on will NOTIFY;
2. looks whether any transaction holds a RowExclusiveLock on the log: each writer that stayed silent and has not
   finished holds one, prepared transactions included;
3. if there is none, reads once more: all that stayed silent is visible by now; then sleeps until a NOTIFY.
   If there is one, it takes K again and goes on polling.

So no change is left for the slow poll to find, which is there all the same. A node that is not the pacemaker
only ever listens: writers wake it while K is free, the pacemaker does once a batch while it holds K.

`pacemaker` and `listener` are generators: they yield what to do next and are sent what came of it. The real
driver is `forge.changelog.follow`; the tests drive them through every interleaving with writers.
"""

from collections.abc import Callable, Generator
from enum import Enum, auto
from typing import Final

CHANNEL: Final = "forge_changes"


class Step(Enum):
    """What the driver shall do, and what it sends back."""

    HOLD = auto()
    """Ask for K, without waiting until it is granted."""
    RELEASE = auto()
    """Give K up, or withdraw the request."""
    READ = auto()
    """Read from the cursor and hand on what there is → how many changes, or None when K was given up meanwhile."""
    WRITERS = auto()
    """Look for writers in flight → whether there is one."""
    PAUSE = auto()
    """Wait for one poll interval."""
    SLEEP = auto()
    """Wait for a NOTIFY, or for the slow poll → whether it was a NOTIFY."""


Protocol = Generator[Step, int | bool | None, None]


class Load:
    """Tells whether changes come so fast that polling beats being notified: wake-ups close together, many changes each.

    A few hundred single changes per second are no load: a NOTIFY each costs little and is quicker than polling.
    """

    def __init__(self, clock: Callable[[], float], *, gap: float = 0.030, times: int = 4, many: int = 4) -> None:
        self._clock, self._gap, self._times, self._many = clock, gap, times, many
        self._last = float("-inf")
        self._close = 0

    def heavy(self, found: int) -> bool:
        """Count one wake-up and what it found; true when the last few came close together and found much."""
        now = self._clock()
        self._close = self._close + 1 if now - self._last < self._gap and found >= self._many else 0
        self._last = now
        return self._close >= self._times


def listener() -> Protocol:
    """A node that leaves K alone."""
    while True:
        yield Step.READ
        yield Step.SLEEP


def pacemaker(load: Load, *, patience: int = 6, always: bool = False) -> Protocol:
    """The one node that may hold K. It sleeps after `patience` empty reads; never when `always`."""
    yield Step.READ
    while True:
        if not always:
            while True:
                notified = yield Step.SLEEP
                found = yield Step.READ
                if notified and found and load.heavy(found):
                    break
        yield from _awake(patience, always)


def _awake(patience: int, always: bool) -> Protocol:
    while True:
        yield Step.HOLD
        quiet = 0
        while always or quiet < patience:
            found = yield Step.READ
            if found is None:
                break
            quiet = 0 if found else quiet + 1
            yield Step.PAUSE
        yield Step.RELEASE
        busy = yield Step.WRITERS
        if busy:
            yield Step.PAUSE
            continue
        found = yield Step.READ
        if not found:
            return
