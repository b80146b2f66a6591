"""Node that works on consumers: it takes free shards, and releases some when more nodes join.

Any number of nodes may run the same application. Each has one lease; only the holder of a shard's lock works on it. A
node that ends, dies or is disconnected loses its locks, and the others take its shards within about a second. When a
node joins, the nodes with the most shards release shards one by one, each after its current call.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
import psycopg

from forge.backoff import Backoff
from forge.capture.log import columns_query
from forge.changelog.follow import Wakeup
from forge.changelog.reader import Reader
from forge.config import default
from forge.deliver.consumers.definition import Consumer
from forge.deliver.consumers.lag import ConsumerLag
from forge.deliver.consumers.lease import ShardLease
from forge.deliver.consumers.sql import sql
from forge.deliver.consumers.watchdog import Watchdog
from forge.deliver.consumers.worker import ConsumerCounts, ConsumerWorker
from forge.errors import (
    ConfigError,
    ConsumerInvalid,
    ConsumerLost,
    CursorError,
    ForgeError,
    WorkerStopped,
    one_line,
)
from forge.postgres.held_session import LOST, Reconnect

_PATIENCE: Final = 5.0
"""Seconds after which any node may take a free shard, whatever its share."""
Configured = Callable[[ShardLease], Awaitable[dict[str, Consumer]]]
"""Consumers that are declared in the database: polled regularly, each the same object until it changes."""
_log = logging.getLogger("forge.consumers")


class ConsumerSettings(msgspec.Struct, frozen=True):
    """Settings of a node; the configuration supplies most defaults. Times in seconds."""

    tick: float = default("deliver.tick_interval")
    """Interval between two checks for free, paused and moved shards."""
    report: float = default("deliver.report_interval")
    """Interval between two reports of the state of its shards."""
    lag: float = default("deliver.lag_interval")
    """Interval between two measurements of the lag."""
    idle: float = default("deliver.idle_interval")
    """Interval after which the cursor of an idle consumer is saved."""
    blocked: float = default("deliver.blocked_after")
    """Time after which a handler that blocks the event loop is reported."""
    wakeup: Wakeup = "notify"
    """The way in which the first worker learns of a commit; the others listen. With "auto" it limits the notifications
    of writers under load, which in `forge serve` the node already does."""


class Shard(NamedTuple):
    """A shard's row in the database."""

    id: int
    name: str
    shard: int
    shards: int
    state: str
    fence: int
    replay: bool


class ConsumerSample(NamedTuple):
    """Prometheus metrics of a shard that this node works on."""

    consumer: str
    shard: int
    counts: ConsumerCounts
    lag: ConsumerLag | None
    tries: int


class _Held:
    """A shard that this node works on."""

    def __init__(self, worker: ConsumerWorker, task: "asyncio.Task[None]", owner: str) -> None:
        self.worker = worker
        self.task = task
        self.owner = owner
        self.lag: ConsumerLag | None = None
        self.told: tuple[int, ConsumerLag | None] | None = None
        self.stopping = False


class ConsumerNode:
    """Works on consumers while `run` does."""

    def __init__(
        self,
        url: str,
        consumers: Iterable[Consumer],
        settings: ConsumerSettings = ConsumerSettings(),  # noqa: B008
        name: str | None = None,
        configured: Configured | None = None,
    ) -> None:
        self.consumers = {consumer.name: consumer for consumer in consumers}
        self._declared = self.consumers
        self._configured = configured
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self.settings = settings
        self.told: Callable[[], Awaitable[None]] = _nobody
        """Called after the state of the consumers was stored again."""
        self.working = asyncio.Event()
        """Set while the node has a lease."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when `running` ends without being stopped."""
        self._url = url
        self._held: dict[int, _Held] = {}
        self._totals: dict[tuple[str, int], ConsumerCounts] = {}
        self._waits: dict[int, Backoff] = {}
        self._due: dict[int, float] = {}
        self._free: dict[int, float] = {}
        self._stopping = asyncio.Event()
        self._news = False

    async def run(self) -> None:
        """Work until `stop` or cancellation. Raise permanent failures: a consumer that cannot be registered, Forge not
        installed, and a server that is unreachable at the start."""
        reconnect = Reconnect(_log, "consumers", also=ConsumerLost)
        async with Watchdog(self._busy, after=self.settings.blocked):
            while not self._stopping.is_set():
                try:
                    async with await ShardLease.of(self._url, f"forge consumers {self.name}") as lease:
                        if not reconnect.connected:
                            await self._register(lease)
                        reconnect.opened()
                        self.working.set()
                        await self._work(lease, reconnect)
                except (*LOST, ConsumerLost) as error:
                    delay = reconnect.failed(error)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(delay):
                            await self._stopping.wait()
                finally:
                    self.working.clear()

    @contextlib.asynccontextmanager
    async def running(self, patience: float = 10.0) -> AsyncIterator[None]:
        """Work while the block lasts; raise immediately the start failures of `run`. At the end, running calls have
        `patience` seconds. Without consumers, declared or configured, do nothing."""
        if not self.consumers and self._configured is None:
            yield
            return
        task = asyncio.get_running_loop().create_task(self.run())
        started = asyncio.get_running_loop().create_task(self.working.wait())
        try:
            await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            self.ended = task
            yield
        finally:
            started.cancel()
            self.stop()
            await asyncio.wait({task}, timeout=patience)
            task.cancel()
            await asyncio.gather(task, started, return_exceptions=True)

    def stop(self) -> None:
        """Let every running call finish, save, and end."""
        self._stopping.set()

    async def close(self) -> None:
        """Close the sinks, after all workers have ended."""
        for consumer in self.consumers.values():
            if consumer.sink is not None:
                await consumer.sink.close()

    def samples(self) -> Iterator[ConsumerSample]:
        """Return the metrics of the shards that this node works on or has worked on."""
        lags = {(held.worker.consumer.name, held.worker.shard): held for held in self._held.values()}
        for (name, shard), counts in sorted(self._totals.items()):
            held = lags.get((name, shard))
            now = counts if held is None else counts + held.worker.counts
            yield ConsumerSample(name, shard, now, held.lag if held else None, held.worker.tries if held else 0)

    def _busy(self) -> list[str]:
        held = list(self._held.values())
        return sorted({each.worker.consumer.name for each in held if each.worker.calling is not None})

    # Registering

    async def _register(self, lease: ShardLease) -> None:
        """Register every consumer that is new; its shards begin at one cursor."""
        async with Reader.open(self._url) as reader:
            now, start = str(await reader.now()), str(reader.start())
            columns = await (await reader.connection.execute(columns_query())).fetchall()
        for consumer in self.consumers.values():
            await self._check_origin(lease, consumer)
            values = {"name": consumer.name, "tables": list(consumer.wanted.tables)}
            if consumer.origin is not None:
                source = {"source": consumer.origin.text, "cursor": consumer.start}
                await lease.durably(sql("register_source"), {**values, **source})
                continue
            _check_columns(consumer, columns)
            await self._reshard(lease, consumer)
            cursor = {"shards": consumer.shards, "cursor": now if consumer.start == "now" else start}
            await lease.durably(sql("register"), {**values, **cursor})

    async def _check_origin(self, lease: ShardLease, consumer: Consumer) -> None:
        """Raise if a consumer changes its source, or shares another consumer's queue."""
        origin = consumer.origin
        text = None if origin is None else origin.text
        for name, source in await lease.ask(sql("readers"), {"name": consumer.name, "source": text}):
            if name == consumer.name and _kind(source) != _kind(text):
                raise ConsumerInvalid(
                    f"{name} reads {source or 'the log'} in the database, and {text or 'the log'} here",
                    fix=f"give it another name; or forge consumers forget {name}, and it begins again",
                )
            if name != consumer.name and origin is not None and not origin.shared:
                raise ConsumerInvalid(
                    f"{name} reads {text} already, which forgets what one reader has handled",
                    fix=f"let one consumer do both; or forge consumers forget {name}, if it is no more",
                )

    async def _reshard(self, lease: ShardLease, consumer: Consumer) -> None:
        """Change the number of a consumer's shards, if all are at one position and none has a worker."""
        rows = await lease.ask(sql("standing"), {"name": consumer.name})
        if not rows or rows[0][2] == consumer.shards:
            return
        places = {cursor for _, _, _, cursor in rows}
        if len(places) > 1:
            raise ConsumerInvalid(
                f"{consumer.name} has {rows[0][2]} shards in the database and {consumer.shards} here, and its shards"
                " stand at different places",
                fix=f"stop it, then: forge consumers rewind {consumer.name} --to oldest (delivers some changes again)",
            )
        _, workers = await lease.holders()
        if any(id in workers for id, *_ in rows):
            raise ConsumerInvalid(
                f"{consumer.name} is being worked on with {rows[0][2]} shards, and has {consumer.shards} here",
                fix="stop the nodes that run the older program first",
            )
        await lease.durably(sql("reshard"), {"name": consumer.name, "shards": consumer.shards, "cursor": places.pop()})

    # Working

    async def _work(self, lease: ShardLease, reconnect: Reconnect) -> None:
        """Hold this node's share of the shards, for as long as the lease lasts."""
        reported = measured = looked = 0.0
        joined: set[int] = set()
        try:
            while self._held or not self._stopping.is_set():
                if time.monotonic() - looked >= self.settings.report:
                    await self._look(lease)
                    looked = time.monotonic()
                shards = [Shard(*row) for row in await lease.ask(sql("shards"), {"names": list(self.consumers)})]
                for shard in shards:
                    if shard.shard == 0 and shard.id not in joined:
                        await lease.join(shard.id)
                        joined.add(shard.id)
                members, workers = await lease.holders()
                spread = Spread(shards, members, workers, lease.pid)
                await self._settle(lease, shards, spread)
                await self._take(lease, shards, spread)
                now = time.monotonic()
                if now - measured >= self.settings.lag:
                    await self._measure()
                    measured = now
                if now - reported >= self.settings.report:
                    await self._report(lease)
                    reported = now
                if self._news:
                    self._news = False
                    await self._pass_on()
                reconnect.works()
                await asyncio.sleep(self._tick())
        finally:
            await self._drop_all()

    def _tick(self) -> float:
        if self._stopping.is_set():
            return self.settings.tick / 10
        return self.settings.tick if self.consumers else self.settings.report

    async def _look(self, lease: ShardLease) -> None:
        """Read the configured consumers: added, changed and removed ones."""
        if self._configured is None:
            return
        before, self.consumers = self.consumers, {**await self._configured(lease), **self._declared}
        for consumer in before.values():
            if not any(held.worker.consumer is consumer for held in self._held.values()):
                await self._retire(consumer)

    async def _settle(self, lease: ShardLease, shards: list[Shard], spread: "Spread") -> None:
        """Check the held shards: workers that ended, are paused or fenced off, or must go to another node."""
        known = {shard.id: shard for shard in shards}
        extra = spread.extra()
        for id, held in list(self._held.items()):
            shard = known.get(id)
            if held.task.done():
                await self._ended(lease, id, held)
                continue
            held.stopping = (
                held.stopping
                or self._stopping.is_set()
                or id in extra
                or shard is None
                or shard.state != "running"
                or shard.fence != held.worker.fence
                or self.consumers.get(held.worker.consumer.name) is not held.worker.consumer
            )
            if held.stopping:
                if held.worker.stop():
                    _cancel(held.task)
                continue
            if shard is not None and shard.replay:
                held.worker.replay()
            with contextlib.suppress(ConsumerLost):  # moved just now: the next check finds its fence gone
                await held.worker.idle(self.settings.idle)

    async def _take(self, lease: ShardLease, shards: list[Shard], spread: "Spread") -> None:
        """Start workers for free shards, up to this node's share."""
        now = time.monotonic()
        for shard in shards:
            if shard.state != "running" or spread.taken(shard.id) or shard.id in self._held:
                self._free.pop(shard.id, None)
                continue
            since = self._free.setdefault(shard.id, now)
            if self._stopping.is_set() or now < self._due.get(shard.id, 0.0):
                continue
            if not spread.may_take(shard) and now - since < _PATIENCE:
                continue
            if await lease.lock(shard.id):
                spread.took(shard.id)
                await self._begin(lease, shard)

    async def _begin(self, lease: ShardLease, shard: Shard) -> None:
        rows = await lease.durably(sql("take_over"), {"id": shard.id})
        if not rows:
            await lease.unlock(shard.id)
            return
        cursor, fence = rows[0]
        alone = not any(held.worker.consumer.origin is None for held in self._held.values())
        leads = self.settings.wakeup != "notify" and alone
        await lease.ask(sql("own"), {"name": shard.name, "shard": shard.shard, "owner": self.name})
        worker = ConsumerWorker(
            self.consumers[shard.name],
            self._url,
            lease,
            id=shard.id,
            shard=shard.shard,
            cursor=cursor,
            fence=fence,
            wakeup=self.settings.wakeup if leads else "notify",
        )
        task = asyncio.get_running_loop().create_task(worker.run(), name=f"consumer {shard.name}/{shard.shard}")
        self._held[shard.id] = _Held(worker, task, self.name)
        self._totals.setdefault((shard.name, shard.shard), ConsumerCounts())

    async def _ended(self, lease: ShardLease, id: int, held: _Held) -> None:
        """Log why a worker ended without being stopped, and schedule a retry."""
        error = None if held.task.cancelled() else held.task.exception()
        worker, name = held.worker, held.worker.consumer.name
        if isinstance(error, CursorError):
            text = f"{error}; go on: forge consumers rewind {name} --to start, or --to now"
            _log.error("%s has expired: %s", name, text)
            await lease.ask(sql("expire"), {"name": name, "shard": worker.shard, "error": text})
        elif error is not None and not isinstance(error, (WorkerStopped, ConsumerLost)):
            worker.counts.error = one_line(error, named=True)
            fix = f" (fix: {error.fix})" if isinstance(error, ForgeError) else ""
            backoff = self._waits.setdefault(id, Backoff(0.5, 30.0))
            delay = backoff.next()
            self._due[id] = time.monotonic() + delay
            _log.error(
                "%s cannot go on, again in %.1f s: %s%s", name, delay, one_line(error, named=True), fix,
                exc_info=None if isinstance(error, (ForgeError, psycopg.Error)) else error,
            )  # fmt: skip
        await self._let_go(lease, id, held)

    async def _let_go(self, lease: ShardLease, id: int, held: _Held) -> None:
        await self._tell(lease, held)
        await lease.ask(
            sql("disown"), {"name": held.worker.consumer.name, "shard": held.worker.shard, "owner": held.owner}
        )
        await lease.unlock(id)
        del self._held[id]
        self._news = True
        await self._retire(held.worker.consumer)

    async def _retire(self, consumer: Consumer) -> None:
        """Close the sink of a changed or removed consumer that has no worker on this node."""
        if self.consumers.get(consumer.name) is not consumer and consumer.sink is not None:
            await consumer.sink.close()

    async def _drop_all(self) -> None:
        """Stop all workers: the lease is lost."""
        for held in self._held.values():
            _cancel(held.task)
        await asyncio.gather(*(held.task for held in self._held.values()), return_exceptions=True)
        for held in self._held.values():
            self._count(held)
            await self._retire(held.worker.consumer)
        self._held.clear()

    # Telling

    async def _measure(self) -> None:
        for held in self._held.values():
            held.lag = await held.worker.lag()

    async def _report(self, lease: ShardLease) -> None:
        for id, held in list(self._held.items()):
            if held.worker.counts.delivered:
                self._waits.pop(id, None)
            await self._tell(lease, held)

    async def _tell(self, lease: ShardLease, held: _Held) -> None:
        worker = held.worker
        told = (worker.tries, held.lag)
        if not worker.counts and told == held.told:
            return
        held.told = told
        self._news = True
        counts = self._count(held)
        values = {"delivered": counts.delivered, "retried": counts.retried, "parked": counts.parked}
        lag = {f"lag_{field}": held.lag and getattr(held.lag, field) for field in ConsumerLag._fields}
        await lease.ask(
            sql("report"),
            {
                **values,
                **lag,
                "error": counts.error,
                "tries": worker.tries,
                "name": worker.consumer.name,
                "shard": worker.shard,
            },
        )

    async def _pass_on(self) -> None:
        """Notify watchers; best effort, because a watcher that misses it gets the next one."""
        try:
            await self.told()
        except (ForgeError, psycopg.Error, OSError) as error:
            _log.warning("consumers: nobody could be told of news: %s", one_line(error, named=True))

    def _count(self, held: _Held) -> ConsumerCounts:
        """Take over the counts of a worker."""
        counts, held.worker.counts = held.worker.counts, ConsumerCounts()
        place = (held.worker.consumer.name, held.worker.shard)
        self._totals[place] = self._totals[place] + counts
        return counts


def _cancel(task: "asyncio.Task[None]") -> None:
    """Cancel a task once: a second cancellation would interrupt its cleanup."""
    if not task.cancelling():
        task.cancel()


def _check_columns(consumer: Consumer, known: Iterable[tuple[str, str, list[str]]]) -> None:
    """Raise ConsumerInvalid for a column that no table of the log has or had: the consumer would wait forever."""
    try:
        consumer.wanted.check_columns(known)
    except ConfigError as error:
        raise ConsumerInvalid(f"{consumer.name}: {error}", fix=error.fix) from None


def _kind(source: str | None) -> str | None:
    return source and source.partition(" ")[0]


async def _nobody() -> None:
    """Notify nobody."""


class Spread:
    """The distribution of shards over nodes, according to the locks."""

    def __init__(
        self, shards: Iterable[Shard], members: dict[int, set[int]], workers: dict[int, int], own: int
    ) -> None:
        self._own = own
        self._workers = dict(workers)
        self._ids: dict[str, list[int]] = {}
        for shard in shards:
            self._ids.setdefault(shard.name, []).append(shard.id)
        self._members = {name: members.get(ids[0], set()) | {own} for name, ids in self._ids.items()}

    def taken(self, id: int) -> bool:
        return id in self._workers

    def took(self, id: int) -> None:
        self._workers[id] = self._own

    def may_take(self, shard: Shard) -> bool:
        """Whether no other node has fewer shards of this consumer."""
        counts = self._counts(shard.name)
        return counts[self._own] <= min(counts.values())

    def extra(self) -> set[int]:
        """Return one shard of each consumer of which another node has at least two fewer than this one.

        >>> shards = [Shard(id, "c", id, 3, "running", 1, False) for id in range(3)]
        >>> Spread(shards, {0: {71, 72}}, {0: 71, 1: 71, 2: 71}, 71).extra()
        {2}
        >>> Spread(shards, {0: {71, 72}}, {0: 71, 1: 71, 2: 72}, 71).extra()
        set()
        """
        found = set()
        for name, ids in self._ids.items():
            counts = self._counts(name)
            if counts[self._own] - min(counts.values()) >= 2:
                found.add([id for id in ids if self._workers.get(id) == self._own][-1])
        return found

    def _counts(self, name: str) -> dict[int, int]:
        counts = dict.fromkeys(self._members[name], 0)
        for id in self._ids[name]:
            if (pid := self._workers.get(id)) is not None:
                counts[pid] = counts.get(pid, 0) + 1
        return counts
