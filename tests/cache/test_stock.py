"""Entries that are ended by predicate, on several nodes, one of which crashes: nobody is shown less than was told."""

import asyncio
from collections.abc import Iterable

import msgspec
import pytest

from forge.cache import Cache
from forge.cache import redis as store
from forge.change import Change, Op
from forge.postgres.connection import Connection
from forge.react.cached import ReadMatcher
from tests.cache.stock import KILLED, PATIENCE, TABLE, Game, Here, There, history, process, shelvers, stale
from tests.changelog.following import eventually
from tests.servers.redis import RedisServer


@pytest.fixture
def stock(connection: Connection) -> Connection:
    connection.execute(TABLE.encode())
    return connection


@pytest.mark.contract("T10")
@pytest.mark.contract("M11")
@pytest.mark.parametrize(
    ("seed", "again"), [(1, False), *(pytest.param(seed, True, marks=pytest.mark.long) for seed in range(2, 10))]
)
async def test_a_node_that_crashes_takes_nothing_along_and_leaves_nothing_old(
    database: str, stock: Connection, redis: RedisServer, seed: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And comes back, if `again`, to entries that others have kept meanwhile."""
    monkeypatch.setattr(store, "LEASE", 0.5)
    caches = [Cache(redis.url, timeout=10) for _ in range(2)]
    async with shelvers(database, caches, seed) as nodes, process(database, redis.url) as other:
        crash = asyncio.create_task(_crash(other))
        game = Game()
        await game.play([*nodes, other], seed, moves=50)
        assert await crash == KILLED
        await game.play(nodes, seed + 1000, moves=10)  # what it was computing is computed by others
        if again:
            await other.start()
            await game.play([*nodes, other], seed + 2000, moves=30)
            assert other.answered > 0
    _judge(stock, game, nodes)
    assert other.hits > 0


async def _crash(other: There) -> int:
    await eventually(lambda: other.answered >= 20, PATIENCE)
    return other.kill()


def _judge(stock: Connection, game: Game, nodes: list[Here]) -> None:
    assert stale(game.reads, history(stock)) == []
    assert sum(node.hits for node in nodes) > 0, "nothing was shown from the cache, so nothing was tried"
    assert len(game.reads) > 50


@pytest.mark.contract("M11")
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
async def test_items_that_come_and_go_in_memory(database: str, stock: Connection, seed: int) -> None:
    async with shelvers(database, [Cache() for _ in range(3)], seed) as nodes:
        game = Game()
        await game.play(nodes, seed)
    _judge(stock, game, nodes)


@pytest.mark.parametrize("blind", ["before", "after"])
async def test_the_game_is_lost_where_one_side_of_a_change_is_not_looked_at(
    database: str, stock: Connection, blind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that leaves a result is known by its image before, one that enters it by the one after."""
    true = ReadMatcher.touched

    def touched(self: ReadMatcher, change: Change) -> Iterable[str]:
        if change.op is Op.UPDATE:
            side = change.after if blind == "before" else change.before
            change = msgspec.structs.replace(change, before=side, after={**(side or {}), "v": -1})
        return true(self, change)

    monkeypatch.setattr(ReadMatcher, "touched", touched)
    async with shelvers(database, [Cache() for _ in range(2)], 3) as nodes:
        game = Game()
        for number in range(20):
            await game.play(nodes, number, moves=30)
            if stale(game.reads, history(stock)):
                return
    pytest.fail("it was never lost")
