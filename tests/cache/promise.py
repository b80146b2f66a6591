"""The promise of the cache as a game: nodes that lag, clients with tokens, random reads and writes, and what they saw.

Counters only grow, and a mutation says what it made of one. So a read is stale, and a `Violation`, when it shows less
than was acknowledged to that client before it asked, or less than the node that answers had acknowledged to anybody.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from forge.app import Forge
from forge.cache import Cache
from forge.cursor import NOW, After
from forge.react.registry import ANYONE
from forge.serve.auth import TokenIdentity
from forge.serve.node import Node
from tests.cache.shop import QUICK
from tests.changelog.following import eventually

COUNTERS = 4
LAG = 0.03
"""Seconds at the most that a node of the game reads the log late."""
TABLE = """
CREATE TABLE counters (id int PRIMARY KEY, n int);
INSERT INTO counters SELECT g, 0 FROM generate_series(1, 4) g;
SELECT public.forge_enable_reactivity('counters');
"""


class Violation(NamedTuple):
    """A stale read: what was asked, what was shown, and what had to be shown at least."""

    query: str
    shown: int
    least: int
    whose: str


class Player:
    """A node of the game, and what it has acknowledged to anybody."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.acknowledged = dict.fromkeys(range(1, COUNTERS + 1), 0)

    async def ask(self, query: str, arguments: dict[str, Any], after: After) -> int:
        shown = await self.node.query(query, arguments, TokenIdentity(ANYONE), after)
        return int(msgspec.json.decode(shown.value))


def _application(database: str, cache: Cache, dice: random.Random) -> Forge:
    app = Forge(database, settings=QUICK, cache=cache)

    @app.query(cache=60)
    async def counter(ctx: Any, id: int) -> Any:
        value = await ctx.db.fetch_value("SELECT n FROM counters WHERE id = %(id)s")
        await asyncio.sleep(dice.choice((0, 0, dice.uniform(0, 0.02))))
        return value

    @app.query(cache=60)
    async def total(ctx: Any) -> Any:
        value = await ctx.db.fetch_value("SELECT sum(n)::int AS n FROM counters")
        await asyncio.sleep(dice.choice((0, 0, dice.uniform(0, 0.02))))
        return value

    @app.mutation
    async def bump(ctx: Any, id: int) -> Any:
        return await ctx.db.fetch_value("UPDATE counters SET n = n + 1 WHERE id = %(id)s RETURNING n")

    return app


def late(node: Node, dice: random.Random) -> None:
    """Have the node's cache hear of the log later than it could, in order."""
    reactor, waiting = node.reactor, deque[tuple[Callable[..., None], tuple[Any, ...]]]()

    def delayed(observer: Callable[..., None]) -> Callable[..., None]:
        def hear(*heard: Any) -> None:
            waiting.append((observer, heard))
            asyncio.get_running_loop().call_later(dice.choice((0, dice.uniform(0, LAG))), deliver, len(waiting))

        return hear

    def deliver(count: int) -> None:
        for _ in range(min(count, len(waiting))):
            observer, heard = waiting.popleft()
            observer(*heard)

    reactor.on_batch[:] = [delayed(observer) for observer in reactor.on_batch]
    reactor.on_read[:] = [delayed(observer) for observer in reactor.on_read]


@asynccontextmanager
async def players(
    database: str, caches: Sequence[Cache], seed: int, *, deaf: bool = False
) -> AsyncIterator[list[Player]]:
    """A node for each cache, late by random moments; or `deaf`, when it hears nothing of the log from now on."""
    async with AsyncExitStack() as stack:
        found = []
        for number, cache in enumerate(caches):
            dice = random.Random(f"{seed}/{number}")
            node = await stack.enter_async_context(_application(database, cache, dice).running())
            await eventually(lambda node=node: node.cached.keeper.ledger.alive)  # type: ignore[misc]
            if deaf:
                node.reactor.on_batch.clear()
                node.reactor.on_read.clear()
            else:
                late(node, dice)
            found.append(Player(node))
        yield found


class Client:
    """Asks any node, and sends back what it was told."""

    def __init__(self, name: str, nodes: Sequence[Player], dice: random.Random, violations: list[Violation]) -> None:
        self.reads = self.writes = 0
        self._name = name
        self._nodes = nodes
        self._dice = dice
        self._violations = violations
        self._after = NOW
        self._known = dict.fromkeys(range(1, COUNTERS + 1), 0)

    async def play(self, moves: int) -> None:
        for _ in range(moves):
            move = self._dice.random()
            if move < 0.7:
                await self._read()
            elif move < 0.95:
                await self._write()
            else:
                await asyncio.gather(self._write(), self._write())

    async def _read(self) -> None:
        node, id = self._dice.choice(self._nodes), self._dice.randint(1, COUNTERS)
        one = self._dice.random() < 0.8
        mine = self._known[id] if one else sum(self._known.values())
        theirs = node.acknowledged[id] if one else sum(node.acknowledged.values())
        query = "counter" if one else "total"
        shown = await node.ask(query, {"id": id} if one else {}, self._after)
        self.reads += 1
        if shown < mine:
            self._violations.append(Violation(query, shown, mine, self._name))
        elif shown < theirs:
            self._violations.append(Violation(query, shown, theirs, "the node"))

    async def _write(self) -> None:
        player, id = self._dice.choice(self._nodes), self._dice.randint(1, COUNTERS)
        known = self._after
        result, answer = await player.node.mutate("bump", {"id": id}, TokenIdentity(ANYONE), None)
        value = int(result.rows[0])
        self._after = self._after.superseded(known, int(answer.xid or 0))
        self._known[id] = max(self._known[id], value)
        player.acknowledged[id] = max(player.acknowledged[id], value)
        self.writes += 1


async def play(nodes: Sequence[Player], seed: int, *, clients: int = 5, moves: int = 60) -> list[Violation]:
    """A game; returns the stale reads."""
    violations: list[Violation] = []
    playing = [Client(f"client {n}", nodes, random.Random(f"{seed}/c{n}"), violations) for n in range(clients)]
    await asyncio.gather(*(client.play(moves) for client in playing))
    assert sum(client.writes for client in playing) > clients
    return violations
