"""10,000 subscribers, each to the rows of a customer of its own, and writes of which nine in ten concern none of them.

Beside it the same with invalidation by table: a change makes all queries run again that read its table. The reactor is
a process of its own, and its processor time and that of PostgreSQL count from the first write until all has settled.
"""

import asyncio
import contextlib
import time
from collections.abc import Hashable
from typing import Any, TypeVar

import msgspec
import psutil

from benchmarks.bench import Bench
from benchmarks.figures import Figure, figure, ratios
from benchmarks.process import child, question, reply
from benchmarks.served import prepare
from forge.change import Change
from forge.errors import ForgeError
from forge.postgres.connection import AsyncConnection, connect_async
from forge.react.database import QueryContext
from forge.react.group import Settings
from forge.react.index import BoundRead, Index
from forge.react.push import Push
from forge.react.reactor import Reactor
from forge.react.registry import ANYONE, Registry
from forge.react.runner import Runner

Key = TypeVar("Key", bound=Hashable)
WRITES = 20
GAP = 0.1
"""Seconds between two writes."""
BY_ROW, BY_TABLE = "by row", "by table"


class Watching(msgspec.Struct, frozen=True):
    """What a reactor is to do."""

    url: str
    subscribers: int
    invalidation: str


class Spent(msgspec.Struct, frozen=True):
    """Seconds of processor time of the reactor, and how many queries ran and how many results were pushed."""

    seconds: float
    runs: int
    pushed: int


class TableIndex(Index[Key]):
    """Invalidation by table."""

    def __init__(self) -> None:
        super().__init__()
        self._readers: dict[tuple[str, str], set[Key]] = {}

    def put(self, key: Key, reads: Any) -> None:
        found: list[BoundRead] = list(reads)
        super().put(key, found)
        for read in found:
            self._readers.setdefault((read.schema, read.table), set()).add(key)

    def touched(self, change: Change) -> set[Key]:
        return self._readers.get((change.schema, change.table), set())


class Silent:
    """A subscriber that only counts."""

    def __init__(self, session: int) -> None:
        self.session = session
        self.pushes = 0

    def push(self, push: Push, /) -> None:
        self.pushes += 1

    def fail(self, error: ForgeError, /) -> None:
        raise error


def run(bench: Bench) -> list[Figure]:
    """Both kinds, in turns where there are rounds."""
    rounds, number = (1, 500) if bench.quick else (1, 10_000)
    spent: dict[str, list[Spent]] = {BY_ROW: [], BY_TABLE: []}
    servers: dict[str, list[float]] = {BY_ROW: [], BY_TABLE: []}
    for _ in range(rounds):
        for kind in (BY_ROW, BY_TABLE):
            with bench.database() as url:
                bench.say(f"invalidation {kind}, {number:,} subscribers")
                prepare(url, number * 10)
                with child("benchmarks.pruning", msgspec.to_builtins(Watching(url, number, kind))) as (process, _):
                    before = _processor(bench)
                    spent[kind].append(msgspec.convert(process.ask("write"), Spent))
                    servers[kind].append(_processor(bench) - before)
    for kind, found in spent.items():
        if any(one.pushed != WRITES // 10 for one in found):
            raise RuntimeError(f"invalidation {kind} pushed {found}, not {WRITES // 10} results")
    seconds = {kind: [one.seconds for one in found] for kind, found in spent.items()}
    less = figure("pruning", "processor time by table over by row", ratios(seconds[BY_TABLE], seconds[BY_ROW]), "ratio")
    return [
        less,
        *(figure("pruning", f"processor time {kind}", seconds[kind], "s") for kind in spent),
        *(figure("pruning", f"processor time of PostgreSQL {kind}", servers[kind], "s") for kind in spent),
        *(figure("pruning", f"queries run {kind}", [one.runs for one in spent[kind]], "count") for kind in spent),
    ]


def _processor(bench: Bench) -> float:
    """Processor seconds of the server's processes so far, those that have ended included."""
    first = psutil.Process(bench.server.pid)
    ended = first.cpu_times()
    total = float(ended.user + ended.system + ended.children_user + ended.children_system)
    for process in first.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


async def _watch(what: Watching) -> None:
    registry = Registry()

    async def customer(ctx: QueryContext, id: int) -> Any:
        return await ctx.db.fetch("SELECT customer_id, sent FROM probe WHERE customer_id = %(id)s")

    registry.query(customer, scope="public")
    reactor = Reactor(Runner(what.url), what.url, Settings(check=1e9, resync=1e9))
    if what.invalidation == BY_TABLE:
        reactor._index = TableIndex()
    await reactor.start()
    subscribers = [Silent(number) for number in range(1, what.subscribers + 1)]
    for one in subscribers:
        reactor.subscribe(registry.call("customer", {"id": one.session}, ANYONE), one)
    connection = await connect_async(what.url)
    await _settled(reactor, connection)
    if not all(one.pushes for one in subscribers):
        raise RuntimeError("a subscriber got nothing")
    reply("ready")
    await asyncio.to_thread(question)
    runs, pushed, before = reactor.metrics.runs, reactor.metrics.pushed, time.process_time()
    for number in range(WRITES):
        # one in ten concerns a subscriber
        customer_id = number + 1 if number % 10 == 0 else what.subscribers + 1 + number
        await connection.execute("UPDATE probe SET sent = sent + 1 WHERE customer_id = %s", (customer_id,))
        await asyncio.sleep(GAP)
    await _settled(reactor, connection)
    metrics = reactor.metrics
    reply(msgspec.to_builtins(Spent(time.process_time() - before, metrics.runs - runs, metrics.pushed - pushed)))
    question()  # connections stay, so that what they used can be read


async def _settled(reactor: Reactor, connection: AsyncConnection) -> None:
    """Return when all that is committed has been read, matched and run."""
    row = await (
        await connection.execute("SELECT max(transaction_id::text::bigint) FROM forge.forge_event_log")
    ).fetchone()
    assert row is not None
    while True:
        busy = any(group.running for group in reactor.groups.values()) or len(reactor._debounce)
        if reactor.reached is not None and reactor.reached.snapshot.sees(row[0]) and not busy:
            return
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(_watch(msgspec.convert(question(), Watching)))
