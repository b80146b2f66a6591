"""From the moment a commit returns to the moment `follow` yields the change, on one clock.

When idle it is compared with a bare NOTIFY and LISTEN: commits of both kinds in turns, 50 ms apart. Under load pgbench
writes on 8 connections all the while, `follow` takes in everything, and marker commits are timed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from statistics import median, quantiles
from time import perf_counter, sleep
from typing import Any, cast

from benchmarks.bench import FORGE, Bench, track
from benchmarks.figures import Figure, at_most, figure
from forge.changelog.follow import follow
from forge.changelog.reader import Reader
from forge.postgres.connection import Connection, connect, connect_async

GAP = 0.05
PER_ROUND = 40
DEADLINE = 30.0

Times = dict[int, float]


def run(bench: Bench) -> list[Figure]:
    """Idle rounds, then rounds under load."""
    rounds = 2 if bench.quick else 5
    with bench.database() as url:
        with connect(url) as connection:
            connection.execute("CREATE TABLE marker (id bigint PRIMARY KEY)")
            connection.execute("CREATE TABLE busy (id bigint PRIMARY KEY, name text, n int, note text)")
            connection.execute(
                "INSERT INTO busy SELECT g, 'name ' || g, g, repeat('x', 100) FROM generate_series(1, 100000) g"
            )
            track(connection, FORGE, "marker")
            track(connection, FORGE, "busy")
        bench.say("wake-up latency, idle")
        ours, bare = asyncio.run(_idle(url, rounds))
        bench.say("wake-up latency, under load")
        loaded = asyncio.run(_loaded(bench, url, rounds))
    extra = [a - b for a, b in zip(_medians(ours), _medians(bare), strict=True)]
    return [
        at_most(figure("latency", "idle, more than a bare LISTEN (p50)", extra, "ms"), 2.0),
        figure("latency", "idle, commit to follow() (p50)", _medians(ours), "ms"),
        figure("latency", "idle, commit to bare LISTEN (p50)", _medians(bare), "ms"),
        at_most(figure("latency", "full load, commit to follow() (p50)", _medians(loaded), "ms"), 10.0),
        figure("latency", "full load, commit to follow() (p99)", [quantiles(loaded, n=100)[98]], "ms"),
    ]


def _medians(taken: list[float]) -> list[float]:
    return [median(taken[at : at + PER_ROUND]) for at in range(0, len(taken), PER_ROUND)]


async def _idle(url: str, rounds: int) -> tuple[list[float], list[float]]:
    marks, hints = Commits(), Commits()

    def write(connection: Connection, number: int) -> None:
        marks.commit(number, lambda: connection.execute("INSERT INTO marker VALUES (%s)", (number,)))
        sleep(GAP)
        hints.commit(number, lambda: connection.execute("SELECT pg_notify('bare', %s)", (str(number),)))
        sleep(GAP)

    async with _following(url, marks), _listening(url, hints):
        await asyncio.to_thread(_writes, url, range(rounds * PER_ROUND), write)
        await marks.all_seen()
        await hints.all_seen()
    return marks.taken(), hints.taken()


async def _loaded(bench: Bench, url: str, rounds: int) -> list[float]:
    marks = Commits()

    def write(connection: Connection, number: int) -> None:
        marks.commit(number, lambda: connection.execute("INSERT INTO marker VALUES (%s)", (number,)))
        sleep(GAP)

    text = "\\set id random(1, 100000)\nUPDATE busy SET n = n + 1 WHERE id = :id;\n"
    numbers = range(100_000, 100_000 + rounds * PER_ROUND)
    async with _following(url, marks):
        load = bench.pgbench(url, text, seconds=3 + rounds * PER_ROUND * 2 * GAP)
        await asyncio.sleep(1)
        await asyncio.to_thread(_writes, url, numbers, write)
        await marks.all_seen()
        load.end()
    return marks.taken()


class Commits:
    """When numbered commits returned, and when they were seen."""

    def __init__(self) -> None:
        self._done: Times = {}
        self._seen: Times = {}
        self._arrived = asyncio.Event()

    def commit(self, number: int, action: Callable[[], object]) -> None:
        """Do it and note when it returned."""
        action()
        self._done[number] = perf_counter()

    def see(self, number: int) -> None:
        """Note that it arrived; the first time counts."""
        self._seen.setdefault(number, perf_counter())
        self._arrived.set()

    async def all_seen(self) -> None:
        """Wait for every commit to arrive."""
        async with asyncio.timeout(DEADLINE):
            while self._done.keys() - self._seen.keys():
                self._arrived.clear()
                await self._arrived.wait()

    def taken(self) -> list[float]:
        """Milliseconds from commit to arrival, in the order of the commits; below zero is none."""
        return [max(0.0, self._seen[number] - done) * 1000 for number, done in self._done.items()]


def _writes(url: str, numbers: range, write: Callable[[Connection, int], None]) -> None:
    with connect(url) as connection:
        for number in numbers:
            write(connection, number)


@asynccontextmanager
async def _following(url: str, marks: Commits) -> AsyncIterator[None]:
    async with Reader.open(url) as reader:
        cursor = await reader.now()

    async def take() -> None:
        async with aclosing(cast(Any, follow(url, after=cursor))) as batches:
            async for batch in batches:
                for change in batch.changes:
                    if change.table == "marker":
                        marks.see(change.key["id"])

    async with _meanwhile(take()):
        await asyncio.sleep(0.5)
        yield


@asynccontextmanager
async def _listening(url: str, hints: Commits) -> AsyncIterator[None]:
    connection = await connect_async(url)
    await connection.execute("LISTEN bare")

    async def take() -> None:
        async for notify in connection.notifies():
            hints.see(int(notify.payload))

    async with connection, _meanwhile(take()):
        yield


@asynccontextmanager
async def _meanwhile(work: Any) -> AsyncIterator[None]:
    """Have it done in the background, until the block ends."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
