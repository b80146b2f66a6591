"""A node that works on the outbox: the workers of its routes, and a clock for what is scheduled."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Final

from forge.backoff import Backoff
from forge.changelog import locks
from forge.changelog.connection import AsyncConnection, connect_async
from forge.deliver.outbox.routes import Routes
from forge.deliver.outbox.sending import line_of
from forge.deliver.outbox.sql import sql
from forge.deliver.outbox.worker import CHANNEL, LOST, Settings, Worker

_log = logging.getLogger("forge.outbox")
_SLACK: Final = 0.001


class OutboxNode:
    """Works on the outbox while `running` lasts."""

    def __init__(self, url: str, routes: Routes, settings: Settings = Settings()) -> None:  # noqa: B008
        self.routes = routes
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when a worker ends by itself, with why."""
        self._url = url
        self._settings = settings
        self.workers = [
            Worker(url, route, routes.leave(route), settings)
            for route in routes.named.values()
            for _ in range(route.workers)
        ]

    @contextlib.asynccontextmanager
    async def running(self, patience: float = 10.0) -> AsyncIterator[None]:
        """Work while the block lasts; raises at once what a first connection raises. At its end batches that are under
        way have `patience` seconds. Without routes there is nothing to do."""
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
        """Close the sinks, when nothing runs any more."""
        for route in self.routes.named.values():
            if route.sink is not None:
                await route.sink.close()

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
        """Have what is scheduled join the outbox when it is due."""
        backoff = Backoff()
        while True:
            try:
                async with await connect_async(self._url, application_name="forge outbox clock") as connection:
                    backoff.reset()
                    await self._promote(connection)
            except LOST as error:
                delay = backoff.next()
                _log.warning("outbox: the clock's connection is lost, again in %.2f s: %s", delay, line_of(error))
                await asyncio.sleep(delay)

    async def _promote(self, connection: AsyncConnection) -> None:
        await connection.execute(f"LISTEN {CHANNEL}")
        while True:
            row = await (await connection.execute(sql("next_due"), prepare=True)).fetchone()
            due = row[0] if row is not None else None
            if due is not None and due <= 0:
                await connection.execute(sql("promote"), {"lock": locks.OUTBOX})
                continue
            wait = self._settings.poll if due is None else min(self._settings.poll, due + _SLACK)
            await self._scheduled(connection, wait)

    async def _scheduled(self, connection: AsyncConnection, wait: float) -> None:
        """Return when something was scheduled, or that many seconds have passed."""
        end = asyncio.get_running_loop().time() + wait
        while (left := end - asyncio.get_running_loop().time()) > 0:
            found = [notice.payload async for notice in connection.notifies(timeout=left, stop_after=1)]
            if "" in found:
                return
