"""Stamps, and how far they can be trusted.

One sequence gives every stamp. `stamped` gives one to a change and keeps triggers from giving another. A stamp is taken
before its transaction commits, so the sequence's last value is no answer to "up to where is everything there?": a lower
one may still be uncommitted. `newest` is that answer: nothing will ever appear at or below what it told.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from psycopg.pq import TransactionStatus

from forge.changelog.connection import Connection
from forge.versions.operation import typed

SETTLE_LOCK: Final = int.from_bytes(b"Forge\0\0v")
"""Held for the moment in which a pair is recorded."""


@contextmanager
def stamped(connection: Connection) -> Iterator[int]:
    """The stamp of a change that is journaled inside; for all of it the transaction holds what it changes already."""
    row = connection.execute("SELECT forge_versions.own_stamp()").fetchone()
    assert row is not None
    yield int(row[0])
    connection.execute("SELECT set_config('forge_versions.stamping', '', true)")


def newest(connection: Connection) -> int:
    """The greatest version at or below which nothing is uncommitted; 0 before the first.

    On a connection in autocommit, outside of a transaction, it is fresh. Inside of one it is what others last found,
    for the transaction's own xid, once it has one, would hold everybody's newest back until it ends.
    """
    fresh = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
    with typed():
        row = connection.execute("SELECT forge_versions.newest(%s, %s)", (fresh, SETTLE_LOCK)).fetchone()
    assert row is not None
    return int(row[0])
