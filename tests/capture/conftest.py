"""A MariaDB server for all tests of feeds of one process."""

from collections.abc import Iterator

import pytest

from forge.testing.mariadb import MariadbServer, mariadb_missing, temporary_mariadb


@pytest.fixture(scope="session")
def maria() -> Iterator[MariadbServer]:
    """A running server that all tests of this process share: leave it as it is."""
    if missing := mariadb_missing():
        pytest.skip(missing)
    with temporary_mariadb() as server:
        yield server
