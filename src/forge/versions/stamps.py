"""Stamps, and how far they can be trusted.

One sequence gives every stamp. `stamped` gives one to a change and keeps triggers from giving another. A stamp is taken
before its transaction commits, so the sequence's last value is no answer to "up to where is everything there?": a lower
one may still be uncommitted. `newest` is that answer: nothing will ever appear at or below what it told.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.pq import TransactionStatus

from forge.postgres.connection import Connection
from forge.versions.errors import TransactionUnfit
from forge.versions.operation import typed


@contextmanager
def stamped(connection: Connection) -> Iterator[int]:
    """The stamp of a change that is journaled inside; for all of it the transaction holds what it changes already."""
    row = connection.execute("SELECT forge_versions.own_stamp()").fetchone()
    assert row is not None
    yield int(row[0])
    connection.execute("SELECT set_config('forge_versions.stamping', '', true)")


def newest(connection: Connection) -> int:
    """The greatest version at or below which nothing is uncommitted; 0 before the first.

    It is asked on a connection in autocommit, outside of a transaction: it takes a transaction id, and one of the
    caller's would hold everybody's newest back until he ends. On a standby it is what the primary found.

    An id is taken only where that may tell something new: not where no stamp was given since the last pair, nor while a
    pair of the last 100 ms, or tenth of the time that somebody hangs, waits for one who runs. That a settled pair is
    recent is no reason: who has just committed would not find his own change.
    """
    if not outside(connection):
        raise TransactionUnfit(
            "the newest version cannot be found inside of a transaction",
            fix="use a connection in autocommit, outside of a transaction; `settled` is what others found last",
        )
    return _newest(connection, fresh=True)


def settled(connection: Connection) -> int:
    """What was last found as the newest, by anybody: safe, but maybe old, and 0 where nobody asked."""
    return _newest(connection, fresh=False)


def outside(connection: Connection) -> bool:
    """Whether a connection's next statement is a transaction of its own."""
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


def _newest(connection: Connection, *, fresh: bool) -> int:
    with typed():
        row = connection.execute("SELECT forge_versions.newest(%s)", (fresh,)).fetchone()
    assert row is not None
    return int(row[0])
