"""The outbox in tests: a node that runs while a block lasts, and waiting for a condition."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from forge.deliver.outbox import OutboxNode, Routes, Settings

SOON = 20.0


@asynccontextmanager
async def draining(url: str, routes: Routes, settings: Settings = Settings()) -> AsyncIterator[OutboxNode]:  # noqa: B008
    """A node while the block lasts."""
    node = OutboxNode(url, routes, settings)
    async with node.running():
        yield node
    await node.close()


async def until(condition: Callable[[], object], seconds: float = SOON) -> None:
    """Wait for it."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
