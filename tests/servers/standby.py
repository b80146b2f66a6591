"""A streaming standby of a server in tests."""

from collections.abc import Iterator
from contextlib import contextmanager

from forge.embedded import PostgresServer
from forge.embedded import system as machine
from forge.testing.postgres import TEST_SETTINGS


@contextmanager
def standby_of(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A running standby, from a base backup of the primary beside it; gone after the block."""
    standby = PostgresServer(
        primary.data.parent / "standby", bin=primary.bin, settings=TEST_SETTINGS, tcp=True, durable=False
    )
    with standby._lock():
        standby.cluster.mkdir(mode=0o700)
        machine.give(standby.cluster)
        done = standby._run(
            "pg_basebackup",
            *("-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres", "-D", str(standby.cluster)),
            *("-R", "-X", "stream", "-c", "fast", "--no-sync", "--no-manifest"),
        )
        assert done == 0, standby.log.read_text()
        (standby.cluster / "forge.conf").unlink()  # it would take the primary's port
    try:
        standby.start()
        yield standby
    finally:
        standby.stop("immediate")
