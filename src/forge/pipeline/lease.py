"""The lease of a lake: one run at a time holds it; the election is in the database that the lake mirrors.

The lease is bound to its session, so a run that dies releases it, and a run that loses the database stops.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from forge.errors import LakeError
from forge.postgres.connection import typed_errors
from forge.postgres.held_session import HeldSession


@contextmanager
def lease(url: str, lake: str, *, fix: str = "stop that run first, or give another --lake") -> Iterator[HeldSession]:
    """Hold the lease of a lake for this block; the connection of its session may be used for queries."""
    name = f"pipeline {lake.rstrip('/')}"
    with typed_errors(), HeldSession.open(url, "forge pipeline") as session:
        if not session.take(name):
            raise LakeError(f"another run keeps the lake {lake} ({session.holder(name) or 'just ended'})", fix=fix)
        yield session
