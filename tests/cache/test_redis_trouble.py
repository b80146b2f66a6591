"""Redis that is not there, hangs, is slow, is restarted, or full: queries run uncached, and nothing waits or fails."""

import asyncio
import time

import pytest

from forge.cache import Cache
from forge.cache.entry import CacheEntry
from forge.cache.redis import Redis
from forge.embedded.system import free_port
from forge.errors import ConfigError
from forge.postgres.connection import Connection
from tests.cache.shop import shop_node
from tests.changelog.following import eventually
from tests.servers.redis import RedisServer


@pytest.mark.contract("M12")
async def test_without_redis_everything_works_uncached(database: str, shop: Connection) -> None:
    async with shop_node(database, Cache(f"redis://127.0.0.1:{free_port()}")) as node:
        assert await node.ask("orders_of", customer_id=7) == [{"id": 1, "status": "placed"}]
        await node.change("pay", id=1)
        assert await node.ask("orders_of", customer_id=7) == [{"id": 1, "status": "paid"}]
        await node.cache.invalidate("orders")
        assert node.cache.metrics.bypassed == 2


@pytest.mark.contract("M12")
async def test_a_redis_that_hangs_costs_one_timeout_and_then_nothing(
    database: str, shop: Connection, own_redis: RedisServer
) -> None:
    async with shop_node(database, Cache(own_redis.url, timeout=0.3)) as node:
        await node.ask("orders_of", customer_id=7)
        own_redis.freeze()
        began = time.monotonic()
        assert await node.ask("orders_of", customer_id=7) == [{"id": 1, "status": "placed"}]
        assert time.monotonic() - began < 10
        assert not node.cache.store.up
        for _ in range(20):
            await node.change("pay", id=1)
            assert await node.ask("orders_of", customer_id=7) == [{"id": 1, "status": "paid"}]
        assert node.runs.count("orders_of") == 22
        own_redis.thaw()
        await eventually(lambda: node.cache.store.up)
        await node.ask("orders_of", customer_id=7)

        async def cached() -> bool:
            return await node.hit("orders_of", customer_id=7)

        await eventually(cached)


@pytest.mark.contract("M12")
async def test_a_redis_that_is_killed_and_started_again_is_used_again(
    database: str, shop: Connection, own_redis: RedisServer
) -> None:
    async with shop_node(database, Cache(own_redis.url, timeout=10)) as node:
        await node.ask("orders_of", customer_id=7)
        own_redis.kill()
        assert await node.ask("orders_of", customer_id=7) == [{"id": 1, "status": "placed"}]
        await node.change("pay", id=1)
        await asyncio.to_thread(own_redis.start)
        await eventually(lambda: node.cache.store.up)
        assert await node.ask("orders_of", customer_id=7) == [{"id": 1, "status": "paid"}]
        assert await node.hit("orders_of", customer_id=7)


async def test_a_redis_that_brings_back_old_entries_shows_nobody_any(
    database: str, shop: Connection, own_redis: RedisServer
) -> None:
    async with shop_node(database, Cache(own_redis.url, timeout=10)) as node:
        await node.ask("orders_of", customer_id=7)
        await node.ask("notes")
        own_redis.command("SAVE")
        await node.change("pay", id=1)
        await node.cache.invalidate("notes")
        own_redis.kill()
        await asyncio.to_thread(own_redis.start)
        assert int(own_redis.command("DBSIZE")[1:]) >= 2, "it has what it had saved"
        await eventually(lambda: node.cache.store.up)
        assert await node.ask("orders_of", customer_id=7) == [{"id": 1, "status": "paid"}]
        assert not await node.hit("notes"), "it was invalidated, though Redis has forgotten that"


async def test_an_eviction_of_the_stamps_voids_everything(database: str, shop: Connection, redis: RedisServer) -> None:
    async with shop_node(database, Cache(redis.url, timeout=10)) as node:
        await node.ask("notes")
        await node.cache.invalidate("notes")
        redis.command("DEL", "forge:stamps")
        assert not await node.hit("notes")
        assert await node.hit("notes")


async def test_a_full_redis_is_a_cache_without_news(database: str, shop: Connection, own_redis: RedisServer) -> None:
    own_redis.command("CONFIG", "SET", "maxmemory", "1")
    own_redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    async with shop_node(database, Cache(own_redis.url, timeout=10)) as node:
        for _ in range(3):
            assert await node.ask("orders_of", customer_id=7) == [{"id": 1, "status": "placed"}]
        assert node.cache.store.up


async def test_what_is_no_entry_is_none(database: str, shop: Connection, redis: RedisServer) -> None:
    async with shop_node(database, Cache(redis.url, timeout=10)) as node:
        await node.ask("notes")
        (key,) = [word for word in redis.command("KEYS", "forge:e:*").decode().split() if word.startswith("forge:e:")]
        for garbage in ("", "garbage", "\x91\x01", "{}"):
            redis.command("SET", key, garbage)
            assert await node.ask("notes") == [{"id": 1, "text": "a"}]


@pytest.mark.contract("M11")
async def test_no_key_is_left_after_the_time_to_live(database: str, shop: Connection, redis: RedisServer) -> None:
    async with shop_node(database, Cache(redis.url, timeout=10, tables={"orders": 0.2}, prefix="app")) as node:
        await asyncio.gather(*(node.ask("orders_of", customer_id=n) for n in range(20)))

        def only_stamps() -> bool:
            return redis.command("KEYS", "*").decode().split()[2:] == ["app:stamps"]

        await eventually(only_stamps)
        assert int(redis.command("TTL", "app:stamps")[1:]) > 0


async def test_a_lease_is_held_as_long_as_its_holder_lives(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge.cache.redis.LEASE", 6)
    one, two = Redis(redis.url, timeout=10), Redis(redis.url, timeout=10)
    await one.open()
    await two.open()
    try:
        held = await one.lease("key")
        assert held.token is not None
        assert (await two.lease("key")).token is None
        lives = [int(redis.command("PTTL", "forge:l:key")[1:])]

        def renewed() -> bool:
            lives.append(int(redis.command("PTTL", "forge:l:key")[1:]))
            return lives[-1] > lives[-2]

        await eventually(renewed)
        assert (await two.lease("key")).token is None
        entry = CacheEntry("v", "", "", "q", (), dict(held.stamps or {}), b"", "")
        assert await one.put("key", entry, 60, held.token)
        assert (await two.lease("key")).entry == entry
        dead = await one.lease("other")
        await one.close()  # as if it had died: nobody renews
        assert dead.token is not None

        async def taken() -> bool:
            return (await two.lease("other")).token is not None

        await eventually(taken)
        await two.drop("key")
        assert await two.get("key") is None
    finally:
        await one.close()
        await two.close()


async def test_a_store_closes_while_its_leases_are_renewed(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation that arrives together with an answer of Redis is not lost."""
    monkeypatch.setattr("forge.cache.redis.LEASE", 0.006)
    async with asyncio.timeout(60):
        for number in range(40):
            store = Redis(redis.url, timeout=10)
            await store.open()
            assert (await store.lease(f"key {number}")).token is not None
            await asyncio.sleep(0.003 + number * 0.0001)
            await store.close()


async def test_who_lost_the_lease_keeps_nothing(redis: RedisServer) -> None:
    store = Redis(redis.url, timeout=10)
    await store.open()
    try:
        lease = await store.lease("key")
        await store.drop("key")
        entry = CacheEntry("v", "", "", "q", (), dict(lease.stamps or {}), b"", "")
        assert not await store.put("key", entry, 60, lease.token or "")
        assert await store.get("key") is None
    finally:
        await store.close()


@pytest.mark.parametrize("url", ["http://x", "memcached://x", "redis://host:port"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"is not the URL of a Redis|is malformed"):
        Cache(url)
