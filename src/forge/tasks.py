"""Background tasks whose failures are logged or handled, never left to asyncio's "exception was never retrieved".

Invariants: a task is referenced until it ends; a failure that nothing awaits is logged once, by its owner.

>>> async def failing():
...     raise OSError("the server is gone")
>>> async def given_up():
...     task = observed(asyncio.create_task(failing()))
...     await asyncio.wait([task])
...     return task.done()
>>> asyncio.run(given_up())
True
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Awaited = TypeVar("Awaited", bound="asyncio.Future[Any]")


def spawn(work: Coroutine[Any, Any, T], running: "set[asyncio.Task[T]]", logger: logging.Logger) -> "asyncio.Task[T]":
    """Start work that nothing awaits: `running` has it until it ends, and a failure is logged."""

    def ended(task: "asyncio.Task[T]") -> None:
        running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a background task failed: %s", task.get_name(), exc_info=error)

    task = asyncio.get_running_loop().create_task(work, name=getattr(work, "__qualname__", None))
    running.add(task)
    task.add_done_callback(ended)
    return task


def observed(task: Awaited) -> Awaited:
    """Return a task that is awaited unless its owner ends first; its failure is then ignored."""
    task.add_done_callback(_take)
    return task


def _take(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()
