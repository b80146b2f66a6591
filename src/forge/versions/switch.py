"""Change the triggers of the tables under concurrent reads and writes.

Creating or dropping a trigger waits for the users of the table and makes later ones wait behind it. So it waits at most
a tenth of a second, and retries; and at most half of the deadlock timeout, so that when it waits for a reader of one
table who waits for another, it is the one that gives up. For the same reason it takes the strongest lock that it needs
at once. Once it is done every new writer has the triggers, whatever its snapshot.
"""

import time
from collections.abc import Callable
from typing import Final, LiteralString

import psycopg

from forge.errors import StrategyBusy
from forge.postgres.connection import Connection
from forge.postgres.queries import query_file
from forge.versions.operation import operation

sql: Final = query_file("forge.versions", "sql/postgresql/triggers.sql")

PATIENCE: Final = 30.0
"""Seconds after which the change is given up."""
_GIVE_WAY: Final = (
    "SELECT set_config('lock_timeout', least(100, greatest(setting::integer / 2, 1)) || 'ms', true)"
    " FROM pg_settings WHERE name = 'deadlock_timeout'"
)


def switch(connection: Connection, act: Callable[[], None], *, drops: bool = True, patience: float = PATIENCE) -> None:
    """Run the change in a transaction that makes others wait only briefly; raise StrategyBusy when it gets no lock.

    A change that only creates triggers, and drops nothing, blocks only writers.
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
