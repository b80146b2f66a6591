"""`cache.fetch`: rows and other values, kept while the tables that they were read from stay as they are."""

import asyncio
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import forge
from forge.cache import Cache, values
from forge.errors import ConfigError, NotCachable, TrackingError
from forge.postgres.connection import Connection
from tests.cache.shop import shop_node
from tests.changelog.following import eventually
from tests.servers.redis import RedisServer

OF_SEVEN = "SELECT id, status, now() AS at FROM orders WHERE customer_id = %(id)s ORDER BY id"


@pytest.fixture(params=["memory", "redis"])
def url(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "memory" else str(request.getfixturevalue("redis").url)


async def ready(cache: Cache) -> None:
    """Return when the cache follows the log."""
    await cache.fetch("SELECT 1 AS one", tables=["orders"])
    assert cache._own is not None
    await eventually(lambda: cache._own is not None and cache._own.ledger.alive)


@pytest.mark.contract("M11")
async def test_rows_are_fetched_once_until_their_table_changes(
    database: str, shop: Connection, url: str | None
) -> None:
    async with Cache(url, database=database, timeout=10) as cache:
        await ready(cache)
        first = await cache.fetch(OF_SEVEN, {"id": 7}, tables=["orders"], ttl=60)
        assert await cache.fetch(OF_SEVEN, {"id": 7}, tables=["orders"], ttl=60) == first
        assert await cache.fetch(OF_SEVEN, {"id": 8}, tables=["orders"], ttl=60) != first
        shop.execute("UPDATE notes SET text = 'b'")
        shop.execute("UPDATE orders SET status = 'paid' WHERE id = 1")

        async def shows() -> bool:
            rows = await cache.fetch(OF_SEVEN, {"id": 7}, tables=["orders"], ttl=60)
            return bool(rows[0]["status"] == "paid")

        await eventually(shows, 10.0)


async def test_a_transaction_that_must_be_shown_is(database: str, shop: Connection, url: str | None) -> None:
    async with Cache(url, database=database, timeout=10) as cache:
        await ready(cache)
        for number in range(20):
            await cache.fetch("SELECT total FROM orders WHERE id = 1", tables=["orders"])
            with shop.transaction():
                shop.execute("UPDATE orders SET total = %s WHERE id = 1", (number,))
                row = shop.execute("SELECT pg_current_xact_id()::text").fetchone()
            assert row is not None
            rows = await cache.fetch("SELECT total FROM orders WHERE id = 1", tables=["orders"], after=row[0])
            assert rows == [{"total": number}]


@pytest.mark.contract("M11")
async def test_manual_invalidation_by_table_name_and_prefix(database: str, shop: Connection, url: str | None) -> None:
    loads: list[str] = []

    async def load() -> Any:
        loads.append("")
        return len(loads)

    async with Cache(url, database=database, timeout=10) as cache:
        await ready(cache)

        async def fetched(name: str = "top/1", table: str = "orders") -> Any:
            return await cache.fetch(name, tables=[table], load=load)

        assert [await fetched(), await fetched()] == [1, 1]
        for number, how in enumerate(({"key": "top/1"}, {"prefix": "top/"}, {}), start=2):
            await cache.invalidate(**how)
            assert [await fetched(), await fetched()] == [number, number]
        await cache.invalidate("orders")
        assert await fetched() == 5
        await cache.invalidate("notes", "sales.orders", key="top", prefix="bottom")
        assert await fetched() == 5


@pytest.mark.contract("M11")
async def test_times_to_live_and_settings_of_tables(database: str, shop: Connection) -> None:
    settings = {"notes": False, "orders": 0.05, "sales.t": True}
    async with Cache(database=database, tables=settings, ttl=60) as cache:
        await ready(cache)
        assert cache.life(["public.orders"], 10) == 0.05
        assert cache.life(["public.x", "sales.t"], 10) == 10
        assert cache.life(["public.x"]) == 60
        assert cache.life(["public.orders", "public.notes"], 10) is None
        statement = "SELECT clock_timestamp()::text AS at FROM notes"
        rows = await cache.fetch(statement, tables=["notes"])
        assert await cache.fetch(statement, tables=["notes"]) != rows
        statement = "SELECT clock_timestamp()::text AS at FROM orders"
        rows = await cache.fetch(statement, tables=["orders"])

        async def expired() -> bool:
            return bool(await cache.fetch(statement, tables=["orders"]) != rows)

        await eventually(expired)


async def test_a_table_that_nobody_tracks_is_refused(database: str, shop: Connection) -> None:
    shop.execute("CREATE TABLE plain (id int)")
    async with Cache(database=database) as cache:
        with pytest.raises(TrackingError, match="plain is not tracked") as caught:
            await cache.fetch("SELECT * FROM plain", tables=["plain"])
        assert caught.value.fix == "forge enable plain"
        with pytest.raises(ConfigError, match="must name the tables"):
            await cache.fetch("SELECT * FROM plain", tables=[])


async def test_without_a_database_a_statement_is_refused() -> None:
    async with Cache() as cache:
        with pytest.raises(ConfigError, match="needs a database"):
            await cache.fetch("SELECT 1", tables=["t"])


async def test_values_come_back_as_they_were() -> None:
    given = {
        "a": [1, 2**80, -(2**63), True, None, 1.5, "é", b"\x00", Decimal("1.10")],
        "b": (date(2026, 1, 31), datetime(2026, 1, 31, 12, tzinfo=UTC), time(1, 2, 3), timedelta(1, 2, 3)),
        "c": uuid.UUID(int=7),
        7: {},
    }
    found = values.decode(values.encode(given))
    assert found == {**given, "b": list(given["b"])}  # type: ignore[call-overload]
    assert [type(value) for value in found["a"]] == [type(value) for value in given["a"]]  # type: ignore[attr-defined]
    with pytest.raises(NotCachable, match="a object cannot be cached"):
        values.encode([object()])


async def test_an_application_shares_its_cache_with_what_is_fetched(
    database: str, shop: Connection, url: str | None
) -> None:
    async with shop_node(database, Cache(url, timeout=10)) as node:
        await ready(node.cache)
        statement = "SELECT total FROM orders WHERE id = 1"
        assert await node.cache.fetch(statement, tables=["orders"]) == [{"total": 0}]
        for number in range(1, 10):
            await node.change("total", id=1, to=number)
            assert await node.cache.fetch(statement, tables=["orders"]) == [{"total": number}]
            assert await node.cache.fetch(statement, tables=["orders"]) == [{"total": number}]
        await node.cache.invalidate(key="notes")
        await node.ask("notes")
        assert await node.hit("notes")
        await node.cache.invalidate(prefix="no")
        assert not await node.hit("notes")


@pytest.fixture
def engine(tmp_path: Path) -> sa.Engine:
    metadata = sa.MetaData()
    sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("total", sa.Integer))
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    metadata.create_all(engine)
    return forge.track(engine)


def write(engine: sa.Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(statement))


@pytest.mark.contract("M11")
async def test_writes_of_sqlalchemy_end_entries_before_they_return(engine: sa.Engine, url: str | None) -> None:
    """Also where no log tells of writes, and whatever could not be parsed ends everything."""

    async def load() -> Any:
        with engine.connect() as connection:
            return connection.execute(sa.text("SELECT count(*) FROM orders")).scalar()

    async with Cache(url, timeout=10) as one, Cache(url, timeout=10) as two:
        for number in range(1, 5):
            await one.fetch("orders", tables=["orders"], load=load)
            write(engine, f"INSERT INTO orders VALUES ({number}, 0)")
            assert await one.fetch("orders", tables=["orders"], load=load) == number
            assert await two.fetch("orders", tables=["orders"], load=load) == number
        for name in ("ORDERS", "main.Orders"):  # the same table for SQLite
            write(engine, f"DELETE FROM {name} WHERE id > 4")
            write(engine, f"INSERT INTO {name} VALUES (5, 0)")
            assert await one.fetch("orders", tables=["orders"], load=load) == 5
        write(engine, "DELETE FROM Orders WHERE id > 4")
        assert await one.fetch("orders", tables=["orders"], load=load) == 4
        before = one.metrics.hits
        assert await one.fetch("orders", tables=["orders"], load=load) == 4
        assert one.metrics.hits == before + 1
    engine.dispose()


@pytest.mark.contract("M12")
async def test_an_invalidation_that_redis_did_not_hear_is_owed(own_redis: RedisServer) -> None:
    loads: list[int] = []

    async def load() -> int:
        loads.append(1)
        return len(loads)

    async with Cache(own_redis.url, timeout=0.3) as cache:
        assert await cache.fetch("n", tables=["t"], load=load) == 1
        own_redis.freeze()
        await cache.invalidate("t")
        assert not cache.store.up
        own_redis.thaw()
        await eventually(lambda: cache.store.up)
        assert await cache.fetch("n", tables=["t"], load=load) == 2


async def test_a_failure_is_told_to_all_and_not_kept(redis: RedisServer) -> None:
    tried: list[int] = []

    async def load() -> int:
        tried.append(1)
        await asyncio.sleep(0.01)
        if len(tried) == 1:
            raise ValueError("once")
        return 7

    async with Cache(redis.url, timeout=10) as cache:
        failed = await asyncio.gather(
            *(cache.fetch("n", tables=["t"], load=load) for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(error, ValueError) for error in failed)
        assert len(tried) == 1
        assert await cache.fetch("n", tables=["t"], load=load) == 7
