"""The outbox: how fast a backlog is drained by a handler that does nothing, and how soon a message arrives when idle.

Beside it, where `PGQUEUER` names a directory in which pgqueuer is installed, pgqueuer drains a backlog of its own in
the same run, on the same server: `pip install --target DIR pgqueuer asyncpg`.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from psycopg import sql

import forge
from benchmarks.bench import Bench, checkpoint
from benchmarks.figures import Figure, at_least, at_most, figure, ratios
from benchmarks.latency import GAP, PER_ROUND
from forge.deliver.message import Message
from forge.deliver.outbox import OutboxNode, Routes
from forge.postgres.connection import connect, connect_async

GROUP = "outbox"
MEASURED = {100: 10_400, 10: 3_750}
"""What pgqueuer drained a second, measured once on a machine like this one."""


def run(bench: Bench) -> list[Figure]:
    """Backlogs with keys, then single messages 50 ms apart."""
    rounds, backlog = (2, 4_000) if bench.quick else (5, 20_000)
    found: list[Figure] = []
    with bench.database() as url:
        for batch in (100, 10):
            ours, theirs = [], []
            for _ in range(rounds):
                bench.say(f"outbox: draining {backlog:,}, batch {batch}")
                ours.append(_drained(url, backlog, batch))
                if (other := _pgqueuer(bench, backlog, batch)) is not None:
                    theirs.append(other)
            rate = figure(GROUP, f"backlog drained, batch {batch}", ours, "rate")
            if theirs:
                found.append(rate)
                found.append(figure(GROUP, f"pgqueuer's own, batch {batch}", theirs, "rate"))
                over = figure(GROUP, f"batch {batch}, over pgqueuer", ratios(ours, theirs), "ratio")
                found.append(at_least(over, 1.0))
            else:
                found.append(at_least(rate, MEASURED[batch]))
        bench.say("outbox: commit to handler")
        found.append(at_most(figure(GROUP, "commit to handler, 20 a second (p50)", _latency(url, rounds), "ms"), 2.0))
    return found


def _drained(url: str, backlog: int, batch: int) -> float:
    with connect(url) as connection:
        connection.execute(
            sql.SQL(
                "INSERT INTO forge.outbox (topic, key, payload, content_type)"
                " SELECT 'bench', g::text, '{{}}', 'application/json' FROM generate_series(1, {}) g"
            ).format(backlog)
        )
        checkpoint(connection)
    return asyncio.run(_drain(url, backlog, batch))


async def _drain(url: str, backlog: int, batch: int) -> float:
    routes, done, left = Routes(), asyncio.Event(), backlog

    @routes.on("bench", batch=batch)
    async def handle(message: Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    start = perf_counter()
    async with OutboxNode(url, routes).running():
        await done.wait()
        return backlog / (perf_counter() - start)


def _latency(url: str, rounds: int) -> list[float]:
    return asyncio.run(_arrivals(url, rounds))


async def _arrivals(url: str, rounds: int) -> list[float]:
    routes = Routes()
    sent: dict[str, float] = {}
    seen: dict[str, float] = {}

    @routes.on("bench")
    async def handle(message: Message) -> None:
        seen[message.id] = perf_counter()

    async with OutboxNode(url, routes).running(), await connect_async(url) as writer:
        for _ in range(rounds * PER_ROUND):
            async with writer.transaction():
                id = await forge.outbox(writer, "bench", {}, key=1)
            sent[id] = perf_counter()
            await asyncio.sleep(GAP)
        async with asyncio.timeout(30):
            while sent.keys() - seen.keys():  # noqa: ASYNC110
                await asyncio.sleep(GAP)
    taken = [max(0.0, seen[id] - at) * 1000 for id, at in sent.items()]
    return [median(taken[at : at + PER_ROUND]) for at in range(0, len(taken), PER_ROUND)]


def _pgqueuer(bench: Bench, backlog: int, batch: int) -> float | None:
    """Jobs a second, or None where pgqueuer is not there."""
    where = os.environ.get("PGQUEUER")
    if not where or not (Path(where) / "pgqueuer").is_dir():
        return None
    with bench.database() as url:
        command = [sys.executable, str(Path(__file__).parent / "pgqueuer_drain.py"), url, str(backlog), str(batch)]
        environment = {**os.environ, "PYTHONPATH": where}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"pgqueuer failed: {done.stderr.strip()[-500:]}")
    return float(done.stdout)
