"""Consumers in tests: a node that runs while a block lasts, and a table that is tracked."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from forge.deliver.consumers import ConsumerNode, Consumers, ConsumerSettings
from forge.postgres.connection import Connection

SOON = 20.0
QUICK = ConsumerSettings(tick=0.02, report=0.05, lag=0.1, idle=0.1)


def table(connection: Connection, name: str = "item") -> None:
    """A tracked table of numbers and texts."""
    connection.execute("SELECT forge.current_identity()")  # a copied database is another log, from here on
    connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)".encode())
    connection.execute("SELECT forge_enable_reactivity(%s)", (name,))


@asynccontextmanager
async def working(
    url: str, consumers: Consumers, settings: ConsumerSettings = QUICK, name: str | None = None
) -> AsyncIterator[ConsumerNode]:
    """A node while the block lasts; it is told to stop, and must."""
    node = ConsumerNode(url, consumers.named.values(), settings, name)
    task = asyncio.create_task(node.run())
    started = asyncio.create_task(node.working.wait())
    try:
        await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED, timeout=SOON)
        if task.done():
            task.result()
        yield node
    finally:
        started.cancel()
        node.stop()
        async with asyncio.timeout(SOON):
            await task


async def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds; fail after a while."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)
