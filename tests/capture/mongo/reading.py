"""How tests read a source: so much of it, and no longer than a deadline."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from forge.capture import SourceBatch
from forge.change import Change

DEADLINE = 20.0
UNCLOSED = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
"""PyMongo ends its monitors by cancelling them, and one that is just then connecting does not close its socket
(`_async_create_connection` closes it after an OSError or a timeout only): the collector does, with a warning. So it may
be in any test whose server is not there."""


async def take(batches: AsyncGenerator[SourceBatch], count: int) -> list[Change]:
    """The first changes of a stream, at least so many."""
    return [change for batch in await batches_with(batches, count) for change in batch.changes]


async def batches_with(batches: AsyncGenerator[SourceBatch], count: int) -> list[SourceBatch]:
    """The first batches of a stream, until they have at least so many changes."""
    taken: list[SourceBatch] = []
    async with asyncio.timeout(DEADLINE), aclosing(batches):
        async for batch in batches:
            taken.append(batch)
            if sum(len(each.changes) for each in taken) >= count:
                break
    return taken


async def whole(batches: AsyncGenerator[SourceBatch]) -> list[SourceBatch]:
    """A snapshot."""
    async with asyncio.timeout(DEADLINE), aclosing(batches):
        return [batch async for batch in batches]


def told(changes: list[Change]) -> list[tuple[str, str, str]]:
    return [(change.op.value, change.table, change.row_id) for change in changes]
