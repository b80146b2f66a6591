"""Databases for the command's tests: copies of a template with Forge and a small shop."""

from collections.abc import Iterator

import pytest

from forge.changelog.install import install
from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database, temporary_postgres

TEMPLATE = "forge_installed"
SHOP = """
    CREATE TABLE orders (id int PRIMARY KEY, status text, note text, secret text);
    CREATE TABLE customers (id int PRIMARY KEY, name text, secret text);
"""


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with temporary_postgres() as server:
        with connect(server.url()) as admin:
            admin.execute(f"create database {TEMPLATE}")
        with connect(server.url(TEMPLATE)) as template:
            install(template)
            template.execute(SHOP)
        yield server


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    """A database with Forge and two tables, of which none is tracked."""
    with fresh_database(server, template=TEMPLATE) as url:
        with connect(url) as copy:
            copy.execute("SELECT forge.current_identity()")  # a copy is a log of its own, from here on
        yield url


@pytest.fixture
def empty_database(server: PostgresServer) -> Iterator[str]:
    with fresh_database(server) as url:
        yield url


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with connect(database, application_name="tests") as connection:
        yield connection
