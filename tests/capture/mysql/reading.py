"""What tests of the MySQL source do over and over: collect changes until there are enough, wait for a condition."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from forge.capture import Filter
from forge.capture.mysql import MysqlSource
from forge.capture.source import SourceBatch
from forge.change import Change

SOON = 20.0
"""Seconds within which something comes, on a busy machine."""


def source(url: str, filter: Filter | None = None, **options: Any) -> MysqlSource:
    """A source that notices silence soon."""
    return MysqlSource(url, filter, **{"heartbeat": 1.0, **options})


async def batches(reader: MysqlSource, after: str | None, enough: Callable[[list[Change]], bool]) -> list[SourceBatch]:
    """Batches after the cursor, until their changes are enough."""
    found: list[SourceBatch] = []
    seen: list[Change] = []
    async with asyncio.timeout(SOON), aclosing(reader.stream(after)) as stream:
        if enough(seen):
            return found
        async for batch in stream:
            found.append(batch)
            seen += batch.changes
            if enough(seen):
                break
    return found


async def changes(reader: MysqlSource, after: str | None, count: int) -> list[Change]:
    """So many changes after the cursor."""
    found = await batches(reader, after, lambda seen: len(seen) >= count)
    return [change for batch in found for change in batch.changes]


async def snapshot(reader: MysqlSource, after: str | None = None) -> list[SourceBatch]:
    """A whole snapshot."""
    async with asyncio.timeout(SOON), aclosing(reader.snapshot(after)) as found:
        return [batch async for batch in found]


class Follower:
    """A stream that is read in the background."""

    def __init__(self) -> None:
        self.batches: list[SourceBatch] = []
        self.failed: BaseException | None = None
        self._changed = asyncio.Event()

    @property
    def changes(self) -> list[Change]:
        return [change for batch in self.batches for change in batch.changes]

    async def until(self, enough: Callable[[list[Change]], bool]) -> list[Change]:
        """Wait for enough changes, or for the stream's failure, which is raised."""
        async with asyncio.timeout(SOON):
            while not enough(self.changes):
                if self.failed is not None:
                    raise self.failed
                self._changed.clear()
                await self._changed.wait()
        return self.changes

    async def read(self, reader: MysqlSource, after: str | None) -> None:
        try:
            async with aclosing(reader.stream(after)) as stream:
                async for batch in stream:
                    self.batches.append(batch)
                    self._changed.set()
        except Exception as error:
            self.failed = error
            self._changed.set()


@asynccontextmanager
async def following(reader: MysqlSource, after: str | None = None) -> AsyncIterator[Follower]:
    """Read from the cursor, or from now on, while the block runs."""
    start = after if after is not None else await reader.now()
    follower = Follower()
    task = asyncio.create_task(follower.read(reader, start))
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it never came so"
        await asyncio.sleep(0.02)
