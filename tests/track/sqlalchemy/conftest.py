"""The same tests on every kind of database: with Forge's triggers and without, sync and async."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from forge.changelog.connection import connect
from forge.postgres import PostgresServer
from forge.testing import fresh_database
from forge.testing.mariadb import MariadbServer, fresh_mariadb, mariadb_missing, temporary_mariadb
from tests.conftest import TEMPLATE, versions
from tests.track.sqlalchemy.harness import Harness, made_tables

KINDS = ["triggers", "postgres", "mariadb", "sqlite", "psycopg-async", "aiosqlite"]


@pytest.fixture(scope="session")
def tracked_maria() -> Iterator[MariadbServer]:
    if missing := mariadb_missing():
        pytest.skip(missing)
    with temporary_mariadb() as server:
        yield server


@pytest.fixture(scope="module", params=KINDS)
def url(
    request: pytest.FixtureRequest, servers: Callable[[int], PostgresServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, Engine]]:
    """A kind of database, the URL of one with the tables of `harness`, and an engine, for the tests of a module."""
    kind: str = request.param
    with _database(request, kind, servers, tmp_path_factory) as url:
        plain = made_tables(url)
        if kind == "triggers":
            with connect(url.replace("+psycopg", "")) as connection:
                for table in ("orders", "lines", "tags"):
                    connection.execute("SELECT forge_enable_reactivity(%s)", [table])
        yield kind, url, plain
        plain.dispose()


def _database(
    request: pytest.FixtureRequest,
    kind: str,
    servers: Callable[[int], PostgresServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    from contextlib import contextmanager, nullcontext

    if kind == "mariadb":

        @contextmanager
        def maria() -> Iterator[str]:
            with fresh_mariadb(request.getfixturevalue("tracked_maria")) as found:
                yield found.replace("mysql://", "mariadb+pymysql://")

        return maria()
    if kind in ("sqlite", "aiosqlite"):
        path: Path = tmp_path_factory.mktemp("track") / "app.db"
        return nullcontext(f"sqlite{'+aiosqlite' if kind == 'aiosqlite' else ''}:///{path}")

    @contextmanager
    def postgres() -> Iterator[str]:
        server = servers(versions()[-1])
        with fresh_database(server, template=TEMPLATE if kind == "triggers" else None) as found:
            yield found.replace("postgresql://", "postgresql+psycopg://")

    return postgres()


@pytest.fixture
def db(url: tuple[str, str, Engine]) -> Iterator[Harness]:
    """A tracked engine on the database, its tables empty."""
    kind, address, plain = url
    with asyncio.Runner() as runner:
        harness = Harness(kind, address, runner, plain)
        try:
            harness.empty()
            yield harness
        finally:
            harness.close()
