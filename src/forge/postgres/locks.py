"""Advisory locks of a database with a log: their numbers, no two the same.

Any role that may connect may take an advisory lock, so these only make things faster: a foreign session that holds one
delays a wake-up by `forge.changelog.follow.SLOW_POLL`, or makes every commit send a NOTIFY. `forge doctor` names it.
A lease elects the one session that does a job: `forge.postgres.leases`.

>>> WAKE, PACE
(5075401093471535105, 5075401093471535106)
"""

from typing import Final

_FORGE: Final = int.from_bytes(b"Forge\0\0\0") + 1

WAKE: Final = _FORGE
"""Held by the awake reader: writers then send no NOTIFY. forge.wakeup_lock() has the same number."""
PACE: Final = _FORGE + 1
"""Held by the pacemaker."""
DEMO: Final = _FORGE + 94
