"""The wake-up protocol of readers, free of I/O.

NOTIFY costs every writer a lock across all databases at commit, so writers send it only when no reader is awake. One
node, the pacemaker, is awake while there is load: it holds the advisory lock K (or waits for it) and polls. A writer's
trigger first writes its log rows and then tries K in shared mode. If that fails, a reader is awake and the writer stays
silent; otherwise it sends NOTIFY at commit.

To fall asleep the pacemaker

1. releases K, so that every later writer sends NOTIFY;
2. checks whether any transaction holds a RowExclusiveLock on the log: each silent writer that has not finished holds
   one, prepared transactions included;
3. if there is none, reads once more, because all changes of silent writers are visible by then, and sleeps until a
   NOTIFY. If there is one, it takes K again and continues polling.

So the slow poll has no change left to find; it exists as a safeguard. A node that is not the pacemaker only listens:
writers wake it while K is free, and the pacemaker wakes it once per batch while it holds K.

`pacemaker` and `listener` are generators: they yield the next step and are sent its result. The real driver is
`forge.changelog.follow`; the tests drive them through every interleaving with writers.
"""

from collections.abc import Callable, Generator
from enum import Enum, auto
from typing import Final

CHANNEL: Final = "forge_changes"


class WakeupStep(Enum):
    """A step for the driver, and the result it sends back."""

    HOLD = auto()
    """Request K, without waiting until it is granted."""
    RELEASE = auto()
    """Release K, or withdraw the request."""
    READ = auto()
    """Read from the cursor and deliver the changes → their number, or None when K was released meanwhile."""
    WRITERS = auto()
    """Look for writers in flight → whether there is one."""
    PAUSE = auto()
    """Wait for one poll interval."""
    SLEEP = auto()
    """Wait for a NOTIFY, or for the slow poll → whether it was a NOTIFY."""


Protocol = Generator[WakeupStep, int | bool | None, None]


class Load:
    """Tell whether changes come so fast that polling beats NOTIFY: frequent wake-ups with many changes each.

    A few hundred single changes per second are no load: a NOTIFY for each costs little and is faster than polling.
    """

    def __init__(self, clock: Callable[[], float], *, gap: float = 0.030, times: int = 4, many: int = 4) -> None:
        self._clock, self._gap, self._times, self._many = clock, gap, times, many
        self._last = float("-inf")
        self._close = 0

    def heavy(self, found: int) -> bool:
        """Count one wake-up and the changes it found; True when the last few came close together and found many."""
        now = self._clock()
        self._close = self._close + 1 if now - self._last < self._gap and found >= self._many else 0
        self._last = now
        return self._close >= self._times


def listener() -> Protocol:
    """Run a node that never touches K."""
    while True:
        yield WakeupStep.READ
        yield WakeupStep.SLEEP


def pacemaker(load: Load, *, patience: int = 6, always: bool = False) -> Protocol:
    """Run the one node that may hold K. It sleeps after `patience` empty reads; never if `always`."""
    yield WakeupStep.READ
    while True:
        if not always:
            while True:
                notified = yield WakeupStep.SLEEP
                found = yield WakeupStep.READ
                if notified and found and load.heavy(found):
                    break
        yield from _awake(patience, always)


def _awake(patience: int, always: bool) -> Protocol:
    while True:
        yield WakeupStep.HOLD
        quiet = 0
        while always or quiet < patience:
            found = yield WakeupStep.READ
            if found is None:
                break
            quiet = 0 if found else quiet + 1
            yield WakeupStep.PAUSE
        yield WakeupStep.RELEASE
        busy = yield WakeupStep.WRITERS
        if busy:
            yield WakeupStep.PAUSE
            continue
        found = yield WakeupStep.READ
        if not found:
            return
