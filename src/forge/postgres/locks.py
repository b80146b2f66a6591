"""Advisory locks of a database with a log: their numbers, no two the same.

Any role that may connect may take an advisory lock, so these only make things quicker: a stranger that holds one
delays a wake-up by `forge.changelog.follow.SLOW_POLL`, or has every commit send a NOTIFY. `forge doctor` names it. Who
does a job that one session at a time may do is elected by a lease: `forge.postgres.leases`.

>>> WAKE, PACE
(5075401093471535105, 5075401093471535106)
"""

from typing import Final

_FORGE: Final = int.from_bytes(b"Forge\0\0\0") + 1

WAKE: Final = _FORGE
"""Held by the reader that is awake: writers then send no NOTIFY. The same number stands in forge.wakeup_lock()."""
PACE: Final = _FORGE + 1
"""Who holds it is the pacemaker."""
DEMO: Final = _FORGE + 94
