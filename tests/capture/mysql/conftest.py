"""A database of its own for each test.

With FORGE_TEST_MYSQL_URL, the URL of a server and a user that may do everything there, tests that ask for `database`
run on that server too.
"""

import os
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from forge.testing.mariadb import MariadbServer, fresh_mariadb, run

MYSQL = os.environ.get("FORGE_TEST_MYSQL_URL")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database" in metafunc.fixturenames:
        metafunc.parametrize("database", ["mariadb", *(["mysql"] if MYSQL else [])], indirect=True)


@pytest.fixture
def maria_database(maria: MariadbServer) -> Iterator[str]:
    """The URL of a new database on MariaDB, for what only MariaDB does."""
    with fresh_mariadb(maria) as url:
        yield url


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a new database."""
    if request.param == "mysql":
        assert MYSQL is not None
        parts = urlsplit(MYSQL)
        name = f"test_{uuid.uuid4().hex[:16]}"
        run(MYSQL, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        yield parts._replace(path=f"/{name}").geturl()
        run(MYSQL, f"DROP DATABASE {name}")
        return
    with fresh_mariadb(request.getfixturevalue("maria")) as url:
        yield url
