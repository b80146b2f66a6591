"""Stamps, and the newest version below which all are committed.

One sequence gives every stamp. `stamped` assigns one to a change and keeps triggers from assigning another. A stamp is
taken before its transaction commits, so the sequence's last value does not mean that everything up to it is visible: a
lower one may still be uncommitted. `newest` answers that: nothing will ever appear at or below its result.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.pq import TransactionStatus

from forge.errors import TransactionUnfit
from forge.postgres.connection import Connection
from forge.versions.operation import typed


@contextmanager
def stamped(connection: Connection) -> Iterator[int]:
    """Yield the stamp of a change that is journaled inside; the transaction must already hold its locks."""
    row = connection.execute("SELECT forge_versions.own_stamp()").fetchone()
    assert row is not None
    yield int(row[0])
    connection.execute("SELECT set_config('forge_versions.stamping', '', true)")


def newest(connection: Connection) -> int:
    """Return the greatest version at or below which nothing is uncommitted; 0 before the first.

    It runs on a connection in autocommit, outside of a transaction: it takes a transaction id, and one of the caller's
    transaction would hold back the newest version for all sessions until it ends. On a standby it returns what the
    primary found.

    An id is taken only where the result may be new: not if no stamp was taken since the last pair, nor while a pair of
    the last 100 ms, or of a tenth of the age of the oldest pending pair, waits for a running transaction. A recent
    settled pair is no reason to skip: a session that has just committed would not find its own change.
    """
    if not outside(connection):
        raise TransactionUnfit(
            "the newest version cannot be found inside of a transaction",
            fix="use a connection in autocommit, outside of a transaction; `settled` is what others found last",
        )
    return _newest(connection, fresh=True)


def settled(connection: Connection) -> int:
    """Return the newest version that any session last found: safe, but possibly stale, and 0 before the first call."""
    return _newest(connection, fresh=False)


def outside(connection: Connection) -> bool:
    """Whether a connection's next statement is its own transaction."""
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


def _newest(connection: Connection, *, fresh: bool) -> int:
    with typed():
        row = connection.execute("SELECT forge_versions.newest(%s)", (fresh,)).fetchone()
    assert row is not None
    return int(row[0])
