"""Cached queries of an application: what is shown again, to whom, and what ends it."""

import asyncio
from typing import Any

import pytest

from forge.cache import Cache
from forge.cache.redis import Redis
from forge.cursor import After
from forge.errors import RegistrationError
from forge.postgres.connection import Connection
from forge.react.registry import Auth, Registry
from tests.cache.shop import shop_node
from tests.changelog.following import eventually
from tests.servers.redis import RedisServer


@pytest.fixture(params=["memory", "redis"])
def cache(request: pytest.FixtureRequest) -> Cache:
    if request.param == "memory":
        return Cache()
    server: RedisServer = request.getfixturevalue("redis")
    return Cache(server.url, timeout=10)


DEADLINE = 10.0
"""Seconds after which a change must be shown by everybody; milliseconds where the machine has time."""


def another(cache: Cache) -> Cache:
    """That of another node: with Redis the same store."""
    return Cache(cache.store._url, timeout=10) if isinstance(cache.store, Redis) else Cache()


@pytest.mark.contract("M11")
async def test_a_second_call_is_a_hit_and_a_mutation_ends_it_before_it_returns(
    database: str, shop: Connection, cache: Cache
) -> None:
    async with shop_node(database, cache) as node:
        assert await node.ask("orders_of", customer_id=7) == [{"id": 1, "status": "placed"}]
        assert await node.hit("orders_of", customer_id=7)
        assert node.runs == ["orders_of"]
        await node.change("pay", id=1)
        assert await node.ask("orders_of", customer_id=7) == [{"id": 1, "status": "paid"}]
        assert await node.hit("orders_of", customer_id=7)


@pytest.mark.contract("M11")
async def test_only_what_a_change_may_concern_is_ended(database: str, shop: Connection, cache: Cache) -> None:
    async with shop_node(database, cache) as node:
        await node.ask("orders_of", customer_id=7)
        await node.ask("orders_of", customer_id=8)
        await node.ask("notes")
        xid = await node.change("pay", id=1)
        assert xid is not None
        assert await node.hit("notes", after=After(frozenset({xid}))), "another table, at once"
        await node.followed(xid)
        assert await node.hit("orders_of", customer_id=8), "another customer's, when the log has told whose it was"
        assert not await node.hit("orders_of", customer_id=7)
        xid = await node.change("total", id=1, to=5)
        await node.followed(xid)
        assert await node.hit("orders_of", customer_id=7), "a column that was not read"


@pytest.mark.contract("T10")
async def test_whoever_writes_by_whatever_means_ends_it_on_every_node(
    database: str, shop: Connection, cache: Cache
) -> None:
    other = another(cache)
    async with shop_node(database, cache) as one, shop_node(database, other) as two:
        for number in range(5):
            shop.execute("UPDATE orders SET status = %s WHERE id = 1", (f"by hand {number}",))
            for node in (one, two):

                async def shows(node: Any = node, number: int = number) -> bool:
                    rows = await node.ask("orders_of", customer_id=7)
                    return bool(rows == [{"id": 1, "status": f"by hand {number}"}])

                await eventually(shows, DEADLINE)


async def test_a_token_is_heeded_on_another_node(database: str, shop: Connection, cache: Cache) -> None:
    other = another(cache)
    async with shop_node(database, cache) as one, shop_node(database, other) as two:
        for number in range(20):
            await two.ask("orders_of", customer_id=7)
            xid = await one.change("pay", id=1, status=str(number))
            assert xid is not None
            rows = await two.ask("orders_of", customer_id=7, after=After(frozenset({xid})))
            assert rows == [{"id": 1, "status": str(number)}]


@pytest.mark.contract("R6")
async def test_nobody_is_shown_what_another_may_see(database: str, shop: Connection, cache: Cache) -> None:
    async with shop_node(database, cache) as node:
        for user in ("ada", "bob", None):
            rows = await node.ask("mine", Auth(user=user))
            assert {row["me"] for row in rows} == {user}
        assert await node.hit("mine", Auth(user="ada", claims={"exp": 99}))
        assert not await node.hit("mine", Auth(user="ada", tenant="x"))


async def test_a_hundred_misses_are_one_execution(database: str, shop: Connection, cache: Cache) -> None:
    async with shop_node(database, cache) as node:
        answers = await asyncio.gather(*(node.ask("slow") for _ in range(100)))
        assert node.runs == ["slow"]
        assert all(answer == answers[0] for answer in answers)


async def test_a_hundred_misses_on_two_nodes_are_one_execution(
    database: str, shop: Connection, redis: RedisServer
) -> None:
    async with (
        shop_node(database, Cache(redis.url, timeout=10)) as one,
        shop_node(database, Cache(redis.url, timeout=10)) as two,
    ):
        await asyncio.gather(*(node.ask("slow") for _ in range(50) for node in (one, two)))
        assert len(one.runs + two.runs) == 1


async def test_a_result_that_is_touched_while_it_is_computed_is_not_kept(
    database: str, shop: Connection, cache: Cache
) -> None:
    async with shop_node(database, cache) as node:
        asking = asyncio.create_task(node.ask("slow"))
        await eventually(lambda: node.runs == ["slow"])
        await asyncio.sleep(0.02)
        xid = await node.change("total", id=1, to=9)
        await node.followed(xid)
        assert (await asking)[0]["total"] == 0
        assert (await node.ask("slow"))[0]["total"] == 9


async def test_who_leaves_does_not_take_the_run_from_others(database: str, shop: Connection, cache: Cache) -> None:
    async with shop_node(database, cache) as node:
        first = asyncio.create_task(node.ask("slow"))
        await eventually(lambda: node.runs == ["slow"])
        second = asyncio.create_task(node.ask("slow"))
        await asyncio.sleep(0)
        first.cancel()
        assert len(await second) == 2
        assert node.runs == ["slow"]


def test_cache_is_seconds() -> None:
    async def query(ctx: Any) -> Any: ...

    with pytest.raises(RegistrationError, match="cache of query cannot be 0"):
        Registry().query(query, cache=0)
