"""The outbox in tests: a node that runs while a block lasts, and waiting for a condition."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import forge
from forge.deliver.message import Message
from forge.deliver.outbox import OutboxNode, OutboxSettings, Routes
from forge.postgres.connection import Connection

SOON = 30.0


@asynccontextmanager
async def draining(url: str, routes: Routes, settings: OutboxSettings = OutboxSettings()) -> AsyncIterator[OutboxNode]:  # noqa: B008
    """A node while the block lasts."""
    node = OutboxNode(url, routes, settings)
    async with node.running():
        yield node
    await node.close()


async def until(condition: Callable[[], object], seconds: float = SOON) -> None:
    """Wait for it."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def collecting(pattern: str = "*", **options: Any) -> tuple[Routes, list[Message]]:
    """Routes with a handler that keeps what it gets."""
    routes, got = Routes(), list[Message]()

    @routes.on(pattern, **options)
    async def keep(message: Message) -> None:
        got.append(message)

    return routes, got


def put(connection: Connection, topic: str, payload: object, **options: Any) -> str:
    """One message in a transaction of its own."""
    with connection.transaction():
        return forge.outbox(connection, topic, payload, **options)


def rows(connection: Connection, table: str = "outbox", schema: str = "forge") -> int:
    """How many messages there are."""
    row = connection.execute(f"SELECT count(*) FROM {schema}.{table}".encode()).fetchone()
    assert row is not None
    return int(row[0])
