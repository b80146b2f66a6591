"""Changing the triggers of the tables while others read and write.

Making or dropping a trigger waits for those who use the table and makes others wait behind it. So it waits a tenth of a
second at the most, and tries again; and half of the deadlock timeout at the most, so that when it waits for a reader of
one table who waits for another, it is this one that gives way. For the same reason it takes at once the strongest lock
that it needs. Once it is done every writer that comes has the triggers, whatever its snapshot.
"""

import time
from collections.abc import Callable
from typing import Final, LiteralString

import psycopg

from forge.postgres.connection import Connection
from forge.postgres.queries import query_file
from forge.versions.errors import StrategyBusy
from forge.versions.operation import operation

sql: Final = query_file("forge.versions", "sql/postgresql/triggers.sql")

PATIENCE: Final = 30.0
"""Seconds after which it is given up."""
_GIVE_WAY: Final = (
    "SELECT set_config('lock_timeout', least(100, greatest(setting::integer / 2, 1)) || 'ms', true)"
    " FROM pg_settings WHERE name = 'deadlock_timeout'"
)


def switch(connection: Connection, act: Callable[[], None], *, drops: bool = True, patience: float = PATIENCE) -> None:
    """Do it in a transaction that never makes others wait for long; raise StrategyBusy when they never let it.

    What only makes triggers, and drops nothing, is in the way of writers alone.
    """
    lock: LiteralString = "ACCESS EXCLUSIVE" if drops else "SHARE ROW EXCLUSIVE"
    deadline = time.monotonic() + patience
    while True:
        try:
            with operation(connection):
                connection.execute(_GIVE_WAY)
                connection.execute("LOCK TABLE forge_versions.document, forge_versions.reference IN " + lock + " MODE")
                act()
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if time.monotonic() > deadline:
                raise StrategyBusy(
                    f"somebody used the documents for all of {patience:g} s", fix="end long transactions, and try again"
                ) from error
            time.sleep(0.05)
