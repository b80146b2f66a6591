"""The advisory locks of a database with a log, so that no two of them have the same number.

>>> WAKE, PACE, MAINTENANCE, INSTALL
(5075401093471535105, 5075401093471535106, 5075401093471535107, 5075401093471535108)
"""

from typing import Final

_FORGE: Final = int.from_bytes(b"Forge\0\0\0") + 1

WAKE: Final = _FORGE
"""Held by the reader that is awake: writers then send no NOTIFY. The same number stands in forge.wakeup_lock()."""
PACE: Final = _FORGE + 1
"""Who holds it is the pacemaker."""
MAINTENANCE: Final = _FORGE + 2
INSTALL: Final = _FORGE + 3
OUTBOX: Final = _FORGE + 4
"""Held for the moment in which scheduled messages join the outbox."""
VERSIONS: Final = _FORGE + 5
"""Held by whoever maintains the journals of change versions."""
INSTANTS: Final = _FORGE + 6
"""Held while an instant is recorded."""
DEMO: Final = _FORGE + 94
