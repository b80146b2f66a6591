"""Node that works on the outbox: the workers of its routes, and a clock for scheduled messages.

The clock is notified of every message, so it also notifies the watchers of the outbox tables, and counts the waiting
messages.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, NamedTuple

import msgspec
import psycopg

from forge.deliver.outbox.control import TopicLag, lag_of
from forge.deliver.outbox.routes import Routes
from forge.deliver.outbox.sending import line_of
from forge.deliver.outbox.session import CHANNEL
from forge.deliver.outbox.sql import sql
from forge.deliver.outbox.worker import OutboxCounts, OutboxSettings, OutboxWorker
from forge.errors import ForgeError
from forge.postgres.held_session import AsyncHeldSession, Reconnect

_log = logging.getLogger("forge.outbox")
_SLACK: Final = 0.001
_COUNTED: Final = 10_000
NOBODY: Final = "(none)"
"""The name in place of a route for a topic that has none."""


class OutboxSample(NamedTuple):
    """Prometheus metrics of a route: the work of this node, and the state of the outbox across all nodes."""

    route: str
    counts: OutboxCounts
    lag: TopicLag | None


class OutboxNode:
    """Works on the outbox while `running` lasts."""

    def __init__(self, url: str, routes: Routes, settings: OutboxSettings = OutboxSettings()) -> None:  # noqa: B008
        self.routes = routes
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when a worker ends without being stopped, with the reason."""
        self.told: Callable[[], Awaitable[None]] = _nobody
        """Called when the outbox has changed."""
        self._url = url
        self.settings = settings
        self.workers = [
            OutboxWorker(url, route, routes.leave(route), settings)
            for route in routes.named.values()
            for _ in range(route.workers)
        ]
        self._lags: dict[str, TopicLag] | None = None
        self._news = True
        self._done = 0
        self._ending = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self, patience: float = 10.0) -> AsyncIterator[None]:
        """Work while the block lasts; raise immediately a failure of the first connection. At the end, running batches
        have `patience` seconds. Without routes, do nothing."""
        if not self.workers:
            yield
            return
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(worker.run()) for worker in self.workers}
        started = loop.create_task(self._started())
        clock = loop.create_task(self._tick())
        try:
            done, _ = await asyncio.wait({started, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {started}:
                await task
            for task in tasks:
                task.add_done_callback(self._over)
            yield
        finally:
            self._ending.set()
            for helper in (started, clock):
                helper.cancel()
            for worker in self.workers:
                worker.stop()
            await asyncio.wait(tasks, timeout=patience)
            for task in tasks:
                task.cancel()
            await asyncio.gather(started, clock, *tasks, return_exceptions=True)
            if not self.ended.done():
                self.ended.cancel()

    async def close(self) -> None:
        """Close the sinks, after all workers have ended."""
        for route in self.routes.named.values():
            if route.sink is not None:
                await route.sink.close()

    def samples(self) -> Iterator[OutboxSample]:
        """Return the metrics of the routes; waiting messages are counted up to 10,000."""
        counts = {pattern: OutboxCounts() for pattern in self.routes.named}
        for worker in self.workers:
            own, more = counts[worker.route.pattern], worker.counts
            own.sent, own.retried, own.parked = (
                own.sent + more.sent,
                own.retried + more.retried,
                own.parked + more.parked,
            )
        for pattern, done in counts.items():
            yield OutboxSample(
                pattern, done, None if self._lags is None else self._lags.get(pattern, TopicLag(pattern))
            )
        if self._lags is not None and NOBODY in self._lags:
            yield OutboxSample(NOBODY, OutboxCounts(), self._lags[NOBODY])

    async def _started(self) -> None:
        for worker in self.workers:
            await worker.working.wait()

    def _over(self, task: "asyncio.Task[None]") -> None:
        if self.ended.done() or task.cancelled():
            return
        if (error := task.exception()) is None:
            self.ended.set_result(None)
        else:
            _log.error("outbox: a worker has ended: %s", line_of(error))
            self.ended.set_exception(error)

    async def _tick(self) -> None:
        """Move scheduled messages into the outbox when they are due."""
        reconnect = Reconnect(_log, "the outbox's clock")
        reconnect.opened()  # the workers report an unreachable server
        while not self._ending.is_set():  # a statement that fails during its cancellation hides the cancellation
            try:
                answer = self.settings.answer
                async with await AsyncHeldSession.open(self._url, "forge outbox (clock)", answer=answer) as session:
                    await session.listen(CHANNEL)
                    reconnect.works()
                    await self._look(session)
            except Exception as error:
                if self._ending.is_set():
                    return
                await asyncio.sleep(reconnect.failed(error))

    async def _look(self, session: AsyncHeldSession) -> None:
        settings = self.settings
        measured = reported = -math.inf
        while True:
            wait = await self._promoted(session)
            now = time.monotonic()
            if now - measured >= settings.measure:
                await self._measure(session)
                measured = now
            if now - reported >= settings.report and await self._report():
                reported = now
            until = min(now + wait, measured + settings.measure, max(now, reported) + settings.report)
            await self._heard(session, until)

    async def _promoted(self, session: AsyncHeldSession) -> float:
        """Move due messages into the outbox; return the seconds until the next check."""
        while True:
            rows = await session.ask(sql("next_due"), prepare=True)
            due = rows[0][0] if rows else None
            if due is None or due > 0:
                return self.settings.poll if due is None else min(self.settings.poll, due + _SLACK)
            await session.ask(sql("promote"))

    async def _measure(self, session: AsyncHeldSession) -> None:
        rows = await session.ask(sql("lag"), {"topic": None, "most": _COUNTED})
        found: dict[str, TopicLag] = {}
        for lag in map(lag_of, rows):
            route = self.routes.route(lag.topic)
            name = NOBODY if route is None else route.pattern
            found[name] = lag + found[name] if name in found else msgspec.structs.replace(lag, topic=name)
        self._lags = found

    async def _report(self) -> bool:
        """Notify watchers of the outbox if it changed; best effort: a watcher that misses it gets the next one."""
        done = sum(each.counts.sent + each.counts.retried + each.counts.parked for each in self.workers)
        if not self._news and done == self._done:
            return False
        self._news, self._done = False, done
        try:
            await self.told()
        except (ForgeError, psycopg.Error, OSError) as error:
            _log.warning("outbox: nobody could be told of news: %s", line_of(error))
        return True

    async def _heard(self, session: AsyncHeldSession, until: float) -> None:
        """Return when a message was scheduled, or at the deadline."""
        while (left := until - time.monotonic()) > 0:
            found = [notice.payload for notice in await session.heard(left)]
            self._news = self._news or bool(found)
            if "" in found:
                return


async def _nobody() -> None:
    """Notify nobody."""
