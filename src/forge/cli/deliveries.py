"""Helpers shared by the commands of consumers, webhooks and the outbox."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any

from rich.table import Table


async def until_told(work: Coroutine[Any, Any, None]) -> None:
    """Run it; SIGTERM and SIGINT let the calls that are under way end."""
    task = asyncio.get_running_loop().create_task(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def columns(*headings: str) -> Table:
    """A table; numbers are to the right, and only errors may take several lines."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        numeric = heading in ("behind", "since", "handled", "a second", "retried", "dead", "tries")
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=heading != "last error")
    return table


def duration(value: float) -> str:
    """
    >>> duration(0.21), duration(90), duration(7200), duration(200_000)
    ('0.2 s', '90 s', '120 min', '56 h')
    """
    if value < 10:
        return f"{value:.1f} s"
    if value < 600:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 36_000 else f"{value / 3600:.0f} h"
