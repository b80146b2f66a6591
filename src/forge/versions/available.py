"""Range of versions that can be queried."""

import msgspec

from forge.postgres.connection import Connection
from forge.versions.operation import typed
from forge.versions.stamps import newest


class Available(msgspec.Struct, frozen=True):
    """Windows may begin at `oldest` and end at `newest`; nothing at or below `newest` is uncommitted."""

    oldest: int
    newest: int


def available(connection: Connection) -> Available:
    """Return the range that the journals still have, up to the newest settled version.

    The oldest is read last, so that a window that begins there can be answered. It may have risen above the newest
    meanwhile: then the newest is read again, and is at least the value that the oldest followed.
    """
    last = newest(connection)
    with typed():
        row = connection.execute("SELECT oldest FROM forge_versions.setting").fetchone()
    assert row is not None
    oldest = int(row[0])
    return Available(oldest, last if oldest <= last + 1 else newest(connection))
