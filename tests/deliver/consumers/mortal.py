"""A worker in a process of its own, which is killed: by who started it, or by itself at a change that it is told.

It writes down every change that it handles: through `ctx.tx` into the table `received`, or as a line of a file.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from forge.change import Change
from forge.deliver.consumers import ConsumerContext, ConsumerNode, Consumers, source_feed
from tests.deliver.consumers.working import QUICK


class Task(msgspec.Struct, frozen=True):
    """Where to work, and the number of the change at which to die, after it was written down and before it is saved."""

    url: str
    source: str
    batch: int | None = None
    file: str | None = None
    """Where to write, if not into the database."""
    die_at: int | None = None


class Receipt(msgspec.Struct, frozen=True):
    """One change as it was handled."""

    id: str
    op: str
    key: str
    v: int | None


def made(task: Task) -> Consumers:
    """The one consumer, which begins with the rows that are there."""
    consumers = Consumers()
    count = 0

    async def take(ctx: ConsumerContext, given: Any) -> None:
        nonlocal count
        for change in [given] if isinstance(given, Change) else given:
            receipt = Receipt(change.id, change.op.value, change.row_id, (change.after or {}).get("v"))
            if task.file is None:
                await ctx.tx.execute("INSERT INTO received VALUES (DEFAULT, %s, %s, %s, %s)", list(_fields(receipt)))
            else:
                _append(Path(task.file), receipt)
            count += 1
            if count == task.die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    options = {"batch": task.batch, "source": task.source, "start": "start", "backoff": (0.01, 0.1)}
    consumers.consumer("mortal", tables=["item"], tries=None, **options)(take)
    return consumers


def _append(path: Path, receipt: Receipt) -> None:
    with path.open("ab", buffering=0) as out:
        out.write(msgspec.json.encode(receipt) + b"\n")


def _fields(receipt: Receipt) -> tuple[Any, ...]:
    found: tuple[Any, ...] = msgspec.structs.astuple(receipt)
    return found


def work(task: Task) -> None:
    """Work until killed."""
    logging.disable(logging.CRITICAL)
    source_feed.ACK = 0.05  # type: ignore[misc]
    asyncio.run(_work(task))


async def _work(task: Task) -> None:
    await ConsumerNode(task.url, made(task).named.values(), QUICK).run()


def started(task: Task) -> BaseProcess:
    """A process that works."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.deliver.consumers.mortal"])
    process = context.Process(target=work, args=(task,), daemon=True)
    process.start()
    return process
