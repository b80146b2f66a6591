"""The lease of a lake: one run at a time holds it; the election is in the database that the lake mirrors.

The lease is bound to its connection, so a run that dies releases it, and a run that loses the database stops.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from forge.errors import LakeError
from forge.postgres import leases
from forge.postgres.connection import Connection, connect, typed_errors


@contextmanager
def lease(url: str, lake: str, *, fix: str = "stop that run first, or give another --lake") -> Iterator[Connection]:
    """Hold the lease of a lake for this block; the connection that holds it may be used for queries."""
    with typed_errors(), connect(url, application_name="forge pipeline") as connection:
        if not leases.take(connection, f"pipeline {lake.rstrip('/')}"):
            raise LakeError(f"another run keeps the lake {lake}", fix=fix)
        yield connection


def held(connection: Connection) -> bool:
    """Whether this process still holds the lease: the connection is alive."""
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True
