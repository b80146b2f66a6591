"""Tables that a command names: all are found before anything is changed, then each is changed separately.

Every table has its own transaction, so no lock on one is held while waiting for another, and writers that use several
cannot deadlock with it. A wait for a lock, behind which new writers queue, is shorter than the server's
`deadlock_timeout` unless that was lowered; it times out and is retried, a limited number of times.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import psycopg
from psycopg.rows import TupleRow

from forge.config import nearest
from forge.errors import TrackingError
from forge.postgres.connection import Connection, translate

LOCK_TIMEOUT = "800ms"
ATTEMPTS = 10
PAUSE = 0.5

_NO_SUCH_TABLE = "FG101"
_TABLES = """
    SELECT c.relname, format('%I.%I', n.nspname, c.relname), c.oid::regclass::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND n.nspname NOT IN ('information_schema', 'forge')
      AND n.nspname NOT LIKE 'pg\\_%'
    ORDER BY NOT pg_table_is_visible(c.oid), 2
"""

_LOGGED = """
    SELECT EXISTS (SELECT FROM forge.table_version v
                   WHERE %(name)s IN (v.table_name, v.schema_name || '.' || v.table_name))
"""

Found = TypeVar("Found")


def find(connection: Connection, names: Sequence[str], query: str) -> list[TupleRow]:
    """What a query with forge.find_table(%s) has for each name; the error for a wrong one has the nearest right one."""
    rows = []
    for name in names:
        try:
            row = connection.execute(query.encode(), (name,)).fetchone()
        except psycopg.Error as error:
            typed = translate(error)
            close = _nearest(connection, name) if error.sqlstate == _NO_SUCH_TABLE else None
            if typed is not None and close is not None:
                typed.fix = f"did you mean {close}?"
            raise typed or error from error
        assert row is not None
        rows.append(row)
    return rows


def known(connection: Connection, names: Sequence[str]) -> None:
    """Raise for a name that is no table's now and of which nothing was ever logged, with the nearest right one."""
    for name in names:
        logged = connection.execute(_LOGGED, {"name": name}).fetchone()
        if logged != (True,):
            find(connection, [name], "SELECT forge.find_table(%s)::oid")


def _nearest(connection: Connection, asked: str) -> str | None:
    meant: dict[str, str] = {}
    for bare, qualified, shortest in connection.execute(_TABLES).fetchall():
        meant.setdefault(bare, shortest)
        meant.setdefault(qualified, qualified)
    close = nearest(asked, meant) or nearest(asked.lower(), meant)
    return None if close is None else meant[close]


def change(connection: Connection, name: str, work: Callable[[], Found], *, done: Sequence[str] = ()) -> Found:
    """Do what changes one table in a transaction of its own, and again while others hold it, but not for ever.

    What the command has `done` before is part of the error.
    """
    connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'".encode())
    before = f"; done by now: {', '.join(done)}" if done else ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE)
        try:
            with connection.transaction():
                return work()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            last = error
        except psycopg.Error as error:
            typed = translate(error)
            if typed is None:
                raise
            raise type(typed)(f"{typed}{before}", fix=typed.fix) from error
    raise TrackingError(
        f"{name} is in use by a transaction that does not end{before}",
        fix="try again later, or find it with forge doctor",
    ) from last
