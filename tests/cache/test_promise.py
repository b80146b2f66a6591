"""A read after an acknowledged write never shows older data to that client, whichever node answers from which store."""

import asyncio

import pytest

from forge.cache import Cache
from forge.cursor import NOW, After
from forge.postgres.connection import Connection
from tests.cache.promise import TABLE, Player, play, players
from tests.changelog.following import eventually
from tests.servers.redis import RedisServer

DEADLINE = 10.0


def caches(store: str, redis: RedisServer, count: int = 3) -> list[Cache]:
    return [Cache() if store == "memory" else Cache(redis.url, timeout=10) for _ in range(count)]


def hits(nodes: list[Player]) -> int:
    assert all(player.node.cached is not None for player in nodes)
    counted = [player.node.cached.keeper.metrics for player in nodes if player.node.cached is not None]
    return sum(one.hits + one.joined + one.waited for one in counted)


@pytest.mark.contract("T10")
@pytest.mark.contract("M11")
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_no_client_reads_less_than_was_acknowledged_to_it(
    database: str, connection: Connection, redis: RedisServer, store: str, seed: int
) -> None:
    connection.execute(TABLE.encode())
    async with players(database, caches(store, redis), seed) as nodes:
        assert await play(nodes, seed, moves=40) == []
        assert hits(nodes) > 0, "nothing was shown from the cache, so nothing was tried"
        for number in range(1000, 1003):
            connection.execute("UPDATE counters SET n = %s WHERE id = 1", (number,))
            for player in nodes:

                async def shows(player: Player = player, number: int = number) -> bool:
                    return await player.ask("counter", {"id": 1}, NOW) == number

                await eventually(shows, DEADLINE)


async def test_a_redis_that_comes_and_goes_shows_nobody_anything_old(
    database: str, connection: Connection, own_redis: RedisServer
) -> None:
    connection.execute(TABLE.encode())
    nodes_of = [Cache(own_redis.url, timeout=0.5) for _ in range(2)]

    async def trouble() -> None:
        for _ in range(2):
            await asyncio.sleep(0.2)
            own_redis.freeze()
            await asyncio.sleep(0.1)
            own_redis.thaw()
            await asyncio.sleep(0.1)
            own_redis.kill()
            await asyncio.sleep(0.1)
            await asyncio.to_thread(own_redis.start)

    async with players(database, nodes_of, 3) as nodes:
        troubled = asyncio.create_task(trouble())
        while not troubled.done():
            assert await play(nodes, 3, moves=30) == []
        await troubled


async def test_nodes_that_hear_nothing_show_no_client_less_than_it_wrote(
    database: str, connection: Connection, redis: RedisServer
) -> None:
    """As long as they do not know that they are deaf, which a silence of three seconds would tell."""
    connection.execute(TABLE.encode())
    async with players(database, caches("memory", redis), 6, deaf=True) as nodes:
        assert await play(nodes, 6, moves=25) == []


async def lost(nodes: list[Player], whose: str) -> None:
    """Play until somebody of these is shown something stale; fail if that does not happen."""
    for seed in range(20):
        if any(found.whose.startswith(whose) for found in await play(nodes, seed, moves=20)):
            return
    pytest.fail("it was never lost")


async def test_the_game_is_lost_when_tokens_are_not_heeded(
    database: str, connection: Connection, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(TABLE.encode())
    async with players(database, caches("memory", redis), 4, deaf=True) as nodes:
        monkeypatch.setattr(After, "seen", lambda self, *snapshots: True)
        await lost(nodes, "client")


async def test_the_game_is_lost_when_a_node_forgets_its_own_writes(
    database: str, connection: Connection, redis: RedisServer
) -> None:
    connection.execute(TABLE.encode())
    async with players(database, caches("memory", redis), 5, deaf=True) as nodes:
        for player in nodes:
            player.node.reactor.runner.on_commit = lambda xid, tables: None
        await lost(nodes, "the node")
