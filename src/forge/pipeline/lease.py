"""The lease of a lake: one run at a time keeps it, elected in the database that the lake mirrors.

The lease goes with its connection, so a run that dies leaves none behind, and one that loses the database stops.
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
    """Whether the lease is still ours: the connection lives."""
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True
