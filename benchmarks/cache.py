"""A cached query against the same query uncached, in memory and in Redis, and what a cache costs mutations.

All in one process, without HTTP: what is measured is the node's answer. The query reads the newest 50 of a tenant's
10,000 rows by an index, so it is as cheap as a query of a live page. Calls with and without a cache go in turns, so
that what disturbs one disturbs the other.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_least, at_most, figure, ratios
from benchmarks.served import prepare
from forge.app import Forge
from forge.cache import Cache
from forge.postgres.connection import connect
from forge.react.database import QueryContext
from forge.react.registry import ANYONE
from forge.serve.auth import TokenIdentity
from forge.serve.node import Node
from tests.servers.redis import redis_missing, temporary_redis

ROWS = 10_000
MEMORY, REDIS, UNCACHED = "memory", "Redis", "uncached"
LEAST_GAIN = 10.0
MOST_COST = 1.25
"""What a mutation may take with a cache, of what it takes without."""


def run(bench: Bench) -> list[Figure]:
    """Rounds of questions, then of mutations."""
    with bench.database() as url, nullcontext() if redis_missing() else temporary_redis() as redis:
        bench.say("cached and uncached queries")
        prepare(url, 1)
        with connect(url) as connection:
            connection.execute(
                "INSERT INTO probe (tenant, customer_id, sent) SELECT 't', g, g FROM generate_series(1, %s) g", (ROWS,)
            )
            connection.execute("VACUUM ANALYZE probe")
        caches = {MEMORY: Cache(), **({REDIS: Cache(redis.url, timeout=10)} if redis is not None else {})}
        return asyncio.run(_measured(url, caches, bench.quick))


async def _measured(url: str, caches: dict[str, Cache], quick: bool) -> list[Figure]:
    rounds, calls, writes = (3, 100, 50) if quick else (7, 500, 300)
    found: list[Figure] = []
    async with _node(url, None) as plain:
        for name, cache in caches.items():
            async with _node(url, cache) as node:
                hits, again, with_cache, without = [], [], [], []
                for turn in range(rounds + 1):
                    hit, miss = await _in_turns(_ask, node, plain, calls)
                    cached, bare = await _in_turns(_write, node, plain, writes)
                    if turn:  # the first only warms up
                        hits.append(hit)
                        again.append(miss)
                        with_cache.append(cached)
                        without.append(bare)
                gain = figure("cache", f"uncached over a hit, {name}", ratios(again, hits), "ratio")
                cost = figure(
                    "cache", f"a mutation with a cache over one without, {name}", ratios(with_cache, without), "ratio"
                )
                found += [
                    *([figure("cache", "a query, uncached (p50)", _micro(again), "µs")] if not found else []),
                    figure("cache", f"a hit, {name} (p50)", _micro(hits), "µs"),
                    at_least(gain, LEAST_GAIN) if name == MEMORY else gain,
                    figure("cache", f"a mutation with a cache, {name} (p50)", _micro(with_cache), "µs"),
                    at_most(cost, MOST_COST),
                ]
    return found


@asynccontextmanager
async def _node(url: str, cache: Cache | None) -> AsyncIterator[Node]:
    app = Forge(url, cache=cache)

    @app.query(scope="public", key="id", cache=False if cache is None else 600)
    async def recent(ctx: QueryContext, tenant: str) -> Any:
        return await ctx.db.fetch("SELECT id, sent FROM probe WHERE tenant = %(tenant)s ORDER BY id DESC LIMIT 50")

    @app.mutation
    async def write(ctx: QueryContext) -> Any:
        return await ctx.db.execute("UPDATE probe SET sent = sent + 1 WHERE customer_id = 1 AND tenant = 'none'")

    async with app.running() as node:
        while node.cached is not None and not node.cached.keeper.ledger.alive:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield node


async def _ask(node: Node) -> None:
    shown = await node.query("recent", {"tenant": "t"}, TokenIdentity(ANYONE))
    assert len(shown.value) > 1000


async def _write(node: Node) -> None:
    await node.mutate("write", {}, TokenIdentity(ANYONE), None)


async def _in_turns(call: Callable[[Node], Awaitable[None]], one: Node, other: Node, times: int) -> list[float]:
    """The medians of the seconds that a call takes on each of two nodes."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(times):
        for node, seconds in zip((one, other), took, strict=True):
            began = perf_counter()
            await call(node)
            seconds.append(perf_counter() - began)
    return [median(seconds) for seconds in took]


def _micro(seconds: list[float]) -> list[float]:
    return [one * 1e6 for one in seconds]
