"""Databases with the tables of change versions: copies of a template, made when first asked for."""

from collections.abc import Iterator

import pytest

from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database
from forge.versions.install import install
from forge.versions.resources import declare
from tests.versions.journals import COURSES, PLANS, SCHOOLS, STUDENTS

TEMPLATE = "forge_versions_installed"


@pytest.fixture(scope="session")
def versions_templates() -> set[str]:
    """The servers that have the template."""
    return set()


@pytest.fixture
def versions_url(server: PostgresServer, versions_templates: set[str]) -> Iterator[str]:
    """The URL of a new database with change versions and some resources."""
    if server.url() not in versions_templates:
        with connect(server.url()) as admin:
            admin.execute(f"create database {TEMPLATE}".encode())
        with connect(server.url(TEMPLATE)) as connection:
            install(connection)
            for resource in (STUDENTS, SCHOOLS, COURSES, PLANS):
                declare(connection, resource)
        versions_templates.add(server.url())
    with fresh_database(server, template=TEMPLATE) as url:
        yield url


@pytest.fixture
def versions(versions_url: str) -> Iterator[Connection]:
    """An autocommit connection to `versions_url`."""
    with connect(versions_url) as connection:
        yield connection
