"""Reading a source to an end that the test marks by a write."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from forge.capture.source import SourceBatch
from forge.capture.wal import WalSource
from forge.change import Change, Op
from forge.postgres.connection import Connection

END = "the_end"


def mark(connection: Connection) -> None:
    """Write what `to_end` reads up to."""
    connection.execute(f"CREATE TABLE IF NOT EXISTS {END} (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY)")
    connection.execute(f"INSERT INTO {END} DEFAULT VALUES")


async def to_end(source: WalSource, after: str | None, *, ack: bool = False, timeout: float = 20) -> list[SourceBatch]:
    """Every batch after the cursor up to that of the next mark."""
    found: list[SourceBatch] = []
    async with asyncio.timeout(timeout), aclosing(source.stream(after)) as batches:
        async for batch in batches:
            found.append(batch)
            if ack:
                await source.ack(batch.cursor)
            if any(change.table == END and change.op is Op.INSERT for change in batch.changes):
                return found
    raise AssertionError("the stream ended")


def changes(batches: list[SourceBatch]) -> list[Change]:
    """What the batches hold, less the mark."""
    return [change for batch in batches for change in batch.changes if change.table != END]


async def rows(source: WalSource, after: str | None = None) -> tuple[list[Change], str]:
    """A whole snapshot, and the cursor behind it."""
    found: list[Change] = []
    cursor = ""
    async with asyncio.timeout(20), aclosing(source.snapshot(after)) as batches:
        async for batch in batches:
            found += batch.changes
            cursor = batch.cursor
    return found, cursor


async def until(look: Callable[[], Any], fine: Callable[[Any], bool], timeout: float = 10) -> Any:
    """Look again and again; what was seen when it was fine."""
    async with asyncio.timeout(timeout):
        while True:
            found = look()
            if fine(found):
                return found
            await asyncio.sleep(0.02)


def said(change: Change) -> tuple[str, object, object]:
    """A change as tests compare it: what happened, to which key, and the row after."""
    return change.op.value, change.row_id, change.after
