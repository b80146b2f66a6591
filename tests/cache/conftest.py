"""A Redis for the cache's tests, and a shop to ask about."""

from collections.abc import Iterator

import pytest

from forge.cache import recent_changes as ledger
from forge.cache import validity as keeper
from forge.postgres.connection import Connection
from tests.servers.redis import RedisServer, temporary_redis


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, what is asked for by these tests is not cut short by time."""
    monkeypatch.setattr(ledger, "SILENCE", 60.0)
    monkeypatch.setattr(keeper, "PATIENCE", 60.0)


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """A server that the tests of this process share: use a prefix of your own."""
    with temporary_redis() as server:
        yield server


@pytest.fixture
def redis(shared_redis: RedisServer) -> RedisServer:
    """The shared server, empty."""
    shared_redis.command("FLUSHALL")
    return shared_redis


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A server that may be killed, frozen and started again."""
    with temporary_redis() as server:
        yield server


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, customer_id int, status text, total int DEFAULT 0)")
    connection.execute("CREATE TABLE notes (id int PRIMARY KEY, text text)")
    for table in ("orders", "notes"):
        connection.execute("SELECT public.forge_enable_reactivity(%s)", (table,))
    connection.execute("INSERT INTO orders VALUES (1, 7, 'placed'), (2, 8, 'placed')")
    connection.execute("INSERT INTO notes VALUES (1, 'a')")
    return connection
