"""A consumer whose handler does nothing, over a backlog, against the bare reader of the log: both in turns."""

import asyncio
from time import perf_counter
from typing import Any

from benchmarks import reading
from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_least, figure, ratios
from forge.deliver.consumers import ConsumerContext, ConsumerNode, Consumers, ConsumerSettings
from forge.deliver.consumers.control import Control
from forge.postgres.connection import connect

SHARE = 0.50
SETTINGS = ConsumerSettings(tick=0.02)


def run(bench: Bench) -> list[Figure]:
    """Handle everything, in turns."""
    rounds = 3 if bench.quick else 5
    changes = reading.CHANGES // 3 if bench.quick else reading.CHANGES
    rates: dict[str, list[float]] = {"read": [], "one": [], "batch": [], "tx": []}
    with bench.database() as url:
        bench.say(f"writing {changes:,} changes to consume")
        reading._write(url, changes)
        with connect(url) as connection:
            connection.execute("CREATE TABLE tally (n bigint)")
        for turn in range(rounds):
            bench.say(f"consuming the log, round {turn + 1} of {rounds}")
            rates["read"].append(asyncio.run(reading._forge(url, changes)))
            for kind in ("one", "batch", "tx"):
                rates[kind].append(asyncio.run(_consumed(url, kind, changes)))
    share = figure(
        "consumers", "one change a call, of the bare reader's rate", ratios(rates["one"], rates["read"]), "percent"
    )
    return [
        at_least(share, SHARE),
        figure("consumers", "one change a call", rates["one"], "rate"),
        figure("consumers", "500 changes a call", rates["batch"], "rate"),
        figure("consumers", "500 changes a call, each with a statement in ctx.tx: exactly once", rates["tx"], "rate"),
        figure("consumers", "the bare reader", rates["read"], "rate"),
    ]


async def _consumed(url: str, kind: str, changes: int) -> float:
    """Changes per second, from the first call to the last."""
    seen = [0]
    fences: set[int] = set()
    first = last = 0.0
    done = asyncio.Event()

    def count(ctx: ConsumerContext, number: int) -> None:
        nonlocal first, last
        if not seen[0] or ctx.fence not in fences:
            first = perf_counter()
            fences.add(ctx.fence)
        seen[0] += number
        if seen[0] >= changes:
            last = perf_counter()
            done.set()

    async def one(ctx: ConsumerContext, change: Any) -> None:
        count(ctx, 1)

    async def batch(ctx: ConsumerContext, some: Any) -> None:
        count(ctx, len(some))

    async def tx(ctx: ConsumerContext, some: Any) -> None:
        await ctx.tx.execute("INSERT INTO tally VALUES (%s)", (len(some),))
        count(ctx, len(some))

    consumers = Consumers()
    handler = {"one": one, "batch": batch, "tx": tx}[kind]
    options: dict[str, Any] = {} if kind == "one" else {"batch": 500}
    consumers.declare(kind, handler, tables=["orders_forge"], ops=["insert", "update"], start="start", **options)
    node = ConsumerNode(url, consumers.named.values(), SETTINGS)
    async with node.running(), asyncio.timeout(300):
        await done.wait()
    await Control(url).forget(kind)
    if fences != {1}:  # the machine was so busy that the lease was lost: some changes came again
        return await _consumed(url, kind, changes)
    if seen[0] != changes:
        raise RuntimeError(f"{seen[0]} of {changes} changes were handled")
    return changes / (last - first)
