"""Check a source other than the log, and what its retention loses: a URL in, findings out.

A source checks its own settings when it returns its status; a refusal is a problem, a warning is a warning. Checks
change nothing.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import psycopg

from forge.capture import Capabilities, Status, open_source
from forge.capture.capabilities import described
from forge.config import hide, shown_size
from forge.doctor.finding import Finding, count, info, ok, problem, warning
from forge.errors import ForgeError, one_line
from forge.postgres.connection import translate

LOST: Final = {
    "log": "a reader that is away for longer has lost what was trimmed, is told so, and must read its tables again"
    " (forge tail --snapshot)",
    "wal": "nothing is lost while the slot is there, but the server keeps all WAL since its last acknowledgement; when"
    " the slot is dropped or invalidated, a reader has lost what came since and must take a snapshot",
    "mysql": "a reader that is away until the binary log of its cursor is purged has lost what came since, is told so,"
    " and must take a snapshot",
    "sqlite": "nothing is lost, because a change stays in the queue until it is acknowledged; with no reader the file"
    " grows, and what was acknowledged cannot be read again",
    "hook": "everything that is written while no hook listens is lost, and so is what this process had not handled when"
    " it ended; only a snapshot makes it good",
    "mongo": "a reader that is away until the oplog has moved past its cursor has lost what came since, is told so"
    " (error 286), and must take a snapshot",
}
"""The loss of a reader that returns after a source's retention, by the source's kind."""


def examine_source(url: str) -> Iterator[Finding]:
    """Check whether the source can be read in its present setup, what it lacks, and what its retention loses."""
    try:
        found = asyncio.run(_asked(url))
    except ForgeError as error:
        yield problem("source", str(error), error.fix)
        return
    except (psycopg.Error, OSError) as error:
        typed = translate(error) if isinstance(error, psycopg.Error) else None
        line = one_line(typed or error)
        yield problem("source", f"{hide(url)} cannot be read: {line}", typed.fix if typed else "check the URL")
        return
    yield ok("source", f"{found.kind} source {found.name}: set up as it must be")
    yield from _warnings(found)
    if found.lag_bytes is not None or found.lag_changes is not None:
        yield info("lag", _lag(found))
    yield from lacking(found.capabilities)
    yield retention(found.kind, found.capabilities)


async def _asked(url: str) -> Status:
    async with open_source(url) as source:
        return await source.status()


def _warnings(found: Status) -> Iterator[Finding]:
    for text in found.warnings:
        what, mark, fix = text.rpartition("; ")
        yield warning("settings", what if mark else text, fix if mark else "see docs/reference/sources.md")


def _lag(found: Status) -> str:
    parts = []
    if found.lag_changes is not None:
        parts.append(f"{count(found.lag_changes, 'change')} wait to be acknowledged")
    if found.lag_bytes is not None:
        parts.append(f"{shown_size(found.lag_bytes)} are kept for readers")
    return ", ".join(parts)


def lacking(capabilities: Capabilities) -> Iterator[Finding]:
    """Report the capabilities that the source lacks."""
    _, unable = described(capabilities)
    if unable:
        yield info("capabilities", f"it cannot {', nor '.join(unable)}")


def retention(kind: str, capabilities: Capabilities) -> Finding:
    """Report the maximum age of a cursor, and what is lost after it.

    >>> from forge.capture.log import CAPABILITIES
    >>> retention("log", CAPABILITIES).what.partition(": ")[0]
    'cursors are good for whole days, 30 unless retention_days says otherwise, or up to log_size_limit'
    """
    lost = LOST.get(kind, "past that a reader must take a snapshot")
    return info("cursors", f"cursors are good for {capabilities.retention}: {lost}")
