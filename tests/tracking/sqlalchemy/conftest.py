"""The same tests on every kind of database: with Forge's triggers and without, sync and async."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.embedded import PostgresServer
from forge.postgres.connection import connect
from forge.testing import fresh_database
from forge.testing.mariadb import fresh_mariadb
from tests.conftest import TEMPLATE, versions
from tests.tracking.sqlalchemy.harness import Harness, Place

KINDS = ["triggers", "postgres", "mariadb", "sqlite", "psycopg-async", "aiosqlite"]


@pytest.fixture(scope="module", params=KINDS)
def place(
    request: pytest.FixtureRequest, servers: Callable[[int], PostgresServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A database of each kind, for the tests of a module."""
    kind: str = request.param
    with _database(request, kind, servers, tmp_path_factory) as url, asyncio.Runner() as runner:
        found = Place(kind, url, runner)
        if kind == "triggers":
            with connect(url.replace("+psycopg", "")) as connection:
                for table in ("orders", "lines", "tags"):
                    connection.execute("SELECT forge_enable_reactivity(%s)", [table])
        yield found
        found.close()


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
            with fresh_mariadb(request.getfixturevalue("maria")) as found:
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
def db(place: Place) -> Iterator[Harness]:
    """A tracked engine on the database, its tables empty."""
    harness = Harness(place)
    try:
        harness.empty()
        yield harness
    finally:
        harness.close()
