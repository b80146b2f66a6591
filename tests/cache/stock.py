"""The promise of the cache as a second game: items that move between shelves, so that queries see them come and go.

Every write of an item gives it the next version, and the log knows them all. A read is judged when the game is over, by
what its client, or the node that answered, had been told before: an item that is shown must not be older than that, and
one that is not shown must have been elsewhere in some version between that and the answer. Queries have conditions, of
equality and range, so entries are ended by predicate; nodes read the log late, and one is a process that gets killed.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx
import msgspec

from forge.app import Forge
from forge.cache import Cache
from forge.cache import redis as store
from forge.cursor import NOW, After
from forge.embedded.system import free_port
from forge.postgres.connection import Connection
from forge.react.registry import ANYONE
from forge.serve.auth import TokenIdentity
from forge.serve.node import Node
from tests.cache.promise import late
from tests.cache.shop import QUICK
from tests.changelog.following import eventually

ITEMS = 8
SHELVES = 3
HEAVIEST = 4
TABLE = """
CREATE TABLE items (id int PRIMARY KEY, shelf int, n int, v int);
SELECT public.forge_enable_reactivity('items');
INSERT INTO items SELECT g, 1, 1, 0 FROM generate_series(1, 8) g;
"""
PATIENCE = 60.0


class State(NamedTuple):
    """An item in one version."""

    shelf: int
    n: int


class Question(NamedTuple):
    """A query: its condition, in SQL and in Python."""

    where: str
    sees: Callable[[State, Mapping[str, int]], bool]


QUESTIONS = {
    "on_shelf": Question("shelf = %(shelf)s", lambda item, given: item.shelf == given["shelf"]),
    "heavy": Question("n >= %(n)s", lambda item, given: item.n >= given["n"]),
    "light_on_shelf": Question(
        "shelf = %(shelf)s AND n < %(n)s", lambda item, given: item.shelf == given["shelf"] and item.n < given["n"]
    ),
    "elsewhere": Question("shelf <> %(shelf)s", lambda item, given: item.shelf != given["shelf"]),
}

Versions = dict[int, int]
"""Items, and a version of each."""


class Gone(Exception):
    """The node does not answer."""


class Shelver(Protocol):
    """A node of the game. `acknowledged` is what it has told anybody since it started."""

    acknowledged: Versions

    async def ask(self, query: str, given: Mapping[str, int], after: After) -> list[list[int]]: ...

    async def change(self, given: Mapping[str, Any]) -> tuple[int, int]: ...


class Read(NamedTuple):
    """What was shown, what had been told before it was asked, and what may have been written until it was answered."""

    query: str
    given: Mapping[str, int]
    shown: Versions
    least: Versions
    most: Versions


def application(database: str | None, cache: Cache, dice: random.Random) -> Forge:
    """The stock's queries, some of them slow by chance."""
    app = Forge(database, settings=QUICK, cache=cache)

    async def found(ctx: Any, where: str) -> Any:
        rows = await ctx.db.fetch(f"SELECT id, v FROM items WHERE {where}")
        await asyncio.sleep(dice.choice((0, 0, dice.uniform(0, 0.02))))
        return [[row["id"], row["v"]] for row in rows]

    @app.query(cache=60)
    async def on_shelf(ctx: Any, shelf: int) -> Any:
        return await found(ctx, QUESTIONS["on_shelf"].where)

    @app.query(cache=60)
    async def heavy(ctx: Any, n: int) -> Any:
        return await found(ctx, QUESTIONS["heavy"].where)

    @app.query(cache=60)
    async def light_on_shelf(ctx: Any, shelf: int, n: int) -> Any:
        return await found(ctx, QUESTIONS["light_on_shelf"].where)

    @app.query(cache=60)
    async def elsewhere(ctx: Any, shelf: int) -> Any:
        return await found(ctx, QUESTIONS["elsewhere"].where)

    @app.mutation
    async def change(ctx: Any, id: int, shelf: int, n: int, again: bool) -> Any:
        # whoever waits for a row that is deleted meanwhile would find none
        await ctx.db.fetch_value("SELECT pg_advisory_xact_lock(%(id)s)::text AS locked")
        if not again:
            return await ctx.db.fetch_value(
                "UPDATE items SET shelf = %(shelf)s, n = %(n)s, v = v + 1 WHERE id = %(id)s RETURNING v"
            )
        version = await ctx.db.fetch_value("DELETE FROM items WHERE id = %(id)s RETURNING v + 1 AS v")
        await ctx.db.execute("INSERT INTO items VALUES (%(id)s, %(shelf)s, %(n)s, %(version)s)", version=version)
        return version

    return app


class Here:
    """A node of this process."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.acknowledged: Versions = dict.fromkeys(range(1, ITEMS + 1), 0)

    async def ask(self, query: str, given: Mapping[str, int], after: After) -> list[list[int]]:
        shown = await self.node.query(query, dict(given), TokenIdentity(ANYONE), after)
        rows: list[list[int]] = msgspec.json.decode(shown.value)
        return rows

    async def change(self, given: Mapping[str, Any]) -> tuple[int, int]:
        result, answer = await self.node.mutate("change", dict(given), TokenIdentity(ANYONE), None)
        return int(result.rows[0]), int(answer.xid or 0)

    @property
    def hits(self) -> int:
        assert self.node.cached is not None
        counted = self.node.cached.keeper.metrics
        return counted.hits + counted.joined + counted.waited


class There:
    """A node that is a process of its own, served over HTTP; it may be killed and started again."""

    def __init__(self, database: str, redis: str, client: httpx.AsyncClient) -> None:
        self.acknowledged: Versions = {}
        self.answered = self.hits = 0
        self._client = client
        self._port = free_port()
        self._environment = {**os.environ, "FORGE_DATABASE_URL": database, "STOCK_REDIS": redis}
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, and return when it answers."""
        self.acknowledged = dict.fromkeys(range(1, ITEMS + 1), 0)
        self.answered = 0
        self._process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-m", "forge", "serve", "tests.cache.stock:app", "--port", str(self._port)],
            cwd=Path(__file__).parents[2],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        async def ready() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, "it ended"
            try:
                return (await self._client.get(f"{self._url}/readyz")).status_code == 200
            except httpx.TransportError:
                return False

        await eventually(ready, PATIENCE)

    def kill(self) -> int:
        """Kill it as a crash would; returns how it ended."""
        assert self._process is not None
        self._process.kill()
        return self._process.wait()

    async def ask(self, query: str, given: Mapping[str, int], after: After) -> list[list[int]]:
        headers = {"Forge-After": str(after)} if after else {}
        answer = await self._post(f"query/{query}", given, headers)
        self.hits += answer.headers.get("forge-cache") == "hit"
        self.answered += 1
        rows: list[list[int]] = answer.json()["result"]
        return rows

    async def change(self, given: Mapping[str, Any]) -> tuple[int, int]:
        told = (await self._post("mutation/change", given, {})).json()
        return int(told["result"]), int(told["xid"])

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def _post(self, path: str, given: Mapping[str, Any], headers: Mapping[str, str]) -> httpx.Response:
        try:
            answer = await self._client.post(f"{self._url}/forge/{path}", json=dict(given), headers=dict(headers))
        except httpx.TransportError as error:
            raise Gone(str(error)) from error
        answer.raise_for_status()
        return answer


@asynccontextmanager
async def shelvers(database: str, caches: Sequence[Cache], seed: int) -> AsyncIterator[list[Here]]:
    """Nodes of this process, late by random moments."""
    async with AsyncExitStack() as stack:
        found = []
        for number, cache in enumerate(caches):
            dice = random.Random(f"{seed}/{number}")
            node = await stack.enter_async_context(application(database, cache, dice).running())
            await eventually(lambda node=node: node.cached.keeper.ledger.alive)  # type: ignore[misc]
            late(node, dice)
            found.append(Here(node))
        yield found


@asynccontextmanager
async def process(database: str, redis: str) -> AsyncIterator[There]:
    """A node that is started, and is gone in the end."""
    async with httpx.AsyncClient(timeout=PATIENCE, verify=False) as client:
        node = There(database, redis, client)
        try:
            await node.start()
            yield node
        finally:
            node.kill()


class Game:
    """Clients that ask and change, and what they were shown."""

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self._begun: Versions = dict.fromkeys(range(1, ITEMS + 1), 0)

    async def play(self, nodes: Sequence[Shelver], seed: int, *, clients: int = 4, moves: int = 50) -> None:
        """Some clients at once, each with so many moves."""
        await asyncio.gather(*(self._client(nodes, random.Random(f"{seed}/c{n}"), moves) for n in range(clients)))

    async def _client(self, nodes: Sequence[Shelver], dice: random.Random, moves: int) -> None:
        """Asks any node, sends back what it was told; of a node that is gone it knows nothing, and goes to another."""
        after, known = NOW, dict.fromkeys(self._begun, 0)
        own = (1, 1)
        for _ in range(moves):
            node = dice.choice(nodes)
            shelf, n = dice.randint(1, SHELVES), dice.randint(1, HEAVIEST)
            try:
                if dice.random() < 0.75:
                    shelf, n = own if dice.random() < 0.5 else (shelf, n)
                    await self._read(node, dice.choice(list(QUESTIONS)), {"shelf": shelf, "n": n}, after, known)
                else:
                    own = (shelf, n)
                    item, told = dice.randint(1, ITEMS), node.acknowledged
                    self._begun[item] += 1
                    given = {"id": item, "shelf": shelf, "n": n, "again": dice.random() < 0.2}
                    version, xid = await node.change(given)
                    after = after.superseded(after, xid)
                    known[item] = max(known[item], version)
                    told[item] = max(told[item], version)
            except Gone:
                continue

    async def _read(self, node: Shelver, query: str, choices: dict[str, int], after: After, known: Versions) -> None:
        given = {name: value for name, value in choices.items() if f"%({name})s" in QUESTIONS[query].where}
        least = {item: max(known[item], node.acknowledged[item]) for item in known}
        shown = {item: version for item, version in await node.ask(query, given, after)}  # noqa: C416
        self.reads.append(Read(query, given, shown, least, dict(self._begun)))


def history(connection: Connection) -> dict[int, list[State]]:
    """Every version that an item had, by the log."""
    found: dict[int, list[State]] = {item: [] for item in range(1, ITEMS + 1)}
    rows = connection.execute(
        "SELECT (new_data ->> 'id')::int, (new_data ->> 'v')::int, (new_data ->> 'shelf')::int,"
        " (new_data ->> 'n')::int FROM forge_events WHERE table_name = 'items' AND new_data IS NOT NULL ORDER BY 1, 2"
    )
    for item, version, shelf, n in rows:
        assert version == len(found[item]), "the log has every version once"
        found[item].append(State(shelf, n))
    return found


def stale(reads: Sequence[Read], versions: Mapping[int, Sequence[State]]) -> list[Read]:
    """The reads that showed less than had been told before."""
    return [read for read in reads if any(_missed(read, item, states) for item, states in versions.items())]


def _missed(read: Read, item: int, states: Sequence[State]) -> bool:
    sees, least = QUESTIONS[read.query].sees, read.least[item]
    shown = read.shown.get(item)
    if shown is not None:
        assert sees(states[shown], read.given), "a row is shown only where its query's condition holds"
        return shown < least
    return all(sees(state, read.given) for state in states[least : read.most[item] + 1])


def __getattr__(name: str) -> Any:
    """The application of the process: `forge serve tests.cache.stock:app`."""
    if name == "app":
        store.LEASE = 0.5  # type: ignore[misc]
        return application(None, Cache(os.environ["STOCK_REDIS"], timeout=10), random.Random(time.time()))
    raise AttributeError(name)


KILLED = -signal.SIGKILL
