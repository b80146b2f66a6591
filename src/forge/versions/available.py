"""Which versions can be asked about."""

import msgspec

from forge.postgres.connection import Connection
from forge.versions.operation import typed
from forge.versions.stamps import newest


class Available(msgspec.Struct, frozen=True):
    """Windows may begin at `oldest` and end at `newest`; nothing at or below `newest` is still to be committed."""

    oldest: int
    newest: int


def available(connection: Connection) -> Available:
    """What the journals still have, up to what is settled.

    The oldest is read last, so that a window that begins there can be answered. It follows the newest, which may have
    risen meanwhile: then it is asked for again, and is at least what the oldest followed.
    """
    last = newest(connection)
    with typed():
        row = connection.execute("SELECT oldest FROM forge_versions.setting").fetchone()
    assert row is not None
    oldest = int(row[0])
    return Available(oldest, last if oldest <= last + 1 else newest(connection))
