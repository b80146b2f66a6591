"""A real replica set for all tests of a process, a database for each.

`FORGE_TEST_MONGO_URL` names another one to use; tests that break a server start their own all the same.
"""

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase

from forge.testing.mongo import MongoServer, MongoUnavailable, find_mongod, temporary_mongo

Starting = Callable[..., AbstractContextManager[MongoServer]]


@pytest.fixture(scope="session")
def starting() -> Starting:
    """What starts a server of its own; skips where there is no mongod."""
    try:
        find_mongod()
    except MongoUnavailable as reason:
        pytest.skip(f"{reason}; {reason.fix}")
    return temporary_mongo


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server that all tests of this process share."""
    named = os.environ.get("FORGE_TEST_MONGO_URL")
    if named:
        yield named
        return
    with request.getfixturevalue("starting")() as server:
        yield server.url()


@pytest.fixture
def url(server_url: str) -> str:
    """The URL of a database that nobody else uses."""
    return urlsplit(server_url)._replace(path=f"/forge_{uuid.uuid4().hex[:12]}").geturl()


@pytest.fixture
async def database(url: str) -> AsyncIterator[AsyncDatabase[dict[str, Any]]]:
    """The database of `url`, gone afterwards."""
    async with AsyncMongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database()
        yield database
        await client.drop_database(database.name)
