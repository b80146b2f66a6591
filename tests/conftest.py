"""Real servers for the tests: one for each version of PostgreSQL and process, started when first asked for.

Every test gets a database of its own, a copy of a template in which Forge is installed. A test marked
`every_version` runs on the oldest and the newest PostgreSQL of this machine, any other on the newest.
"""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

from forge.changelog.install import install
from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from forge.testing import available_versions, fresh_database, temporary_postgres
from forge.testing.mariadb import MariadbServer, mariadb_missing, temporary_mariadb

TEMPLATE = "forge_installed"
pytest_plugins = ("tests.browser", "tests.command")

# a busy machine makes no property false: Hypothesis judges values, not seconds
settings.register_profile("forge", deadline=None)
settings.load_profile("forge")


def versions() -> list[int]:
    """The oldest and the newest major version on this machine."""
    found = sorted(available_versions())
    return sorted({found[0], found[-1]})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", type=int, help="run files, and the tests of each, in a random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle if asked to; a file's tests stay together, because they may share what is slow to start."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    dice = random.Random(seed)
    files = dice.sample(list(by_file.values()), len(by_file))
    items[:] = [item for file in files for item in dice.sample(file, len(file))]


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.getoption("--shuffle")
    return [] if seed is None else [f"in a random order: --shuffle {seed}"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_version: runs on the oldest and the newest PostgreSQL")
    # a shell lets what it runs in the background ignore Ctrl-C, and nohup a closed terminal; so would every command
    # that a test interrupts, but for a handler here
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("every_version") and "server" in metafunc.fixturenames:
        names = [f"pg{version}" for version in versions()]
        metafunc.parametrize("server", versions(), indirect=True, ids=names)


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[int], PostgresServer]]:
    """The running server of a version, with the template database in it."""
    running: dict[int, PostgresServer] = {}
    with ExitStack() as stack:

        def start(version: int) -> PostgresServer:
            if version not in running:
                server = stack.enter_context(temporary_postgres(bin=available_versions()[version]))
                with connect(server.url()) as admin:
                    admin.execute(f"create database {TEMPLATE}")
                with connect(server.url(TEMPLATE)) as template:
                    install(template)
                running[version] = server
            return running[version]

        yield start


@pytest.fixture
def server(request: pytest.FixtureRequest, servers: Callable[[int], PostgresServer]) -> PostgresServer:
    """A running server that all tests of this process share: leave it as it is."""
    return servers(getattr(request, "param", versions()[-1]))


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    """The URL of a new database with Forge installed."""
    with fresh_database(server, template=TEMPLATE) as url:
        yield url


@pytest.fixture
def empty_database(server: PostgresServer) -> Iterator[str]:
    """The URL of a new database without Forge."""
    with fresh_database(server) as url:
        yield url


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """An autocommit connection to `database`."""
    with connect(database) as connection:
        yield connection


@pytest.fixture(scope="session")
def maria() -> Iterator[MariadbServer]:
    """A running MariaDB that all tests of this process share: leave it as it is."""
    if missing := mariadb_missing():
        pytest.skip(missing)
    with temporary_mariadb() as server:
        yield server
