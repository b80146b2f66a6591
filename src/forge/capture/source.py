"""The interface of every source, and the functions that read any of them.

A cursor is a text that only its source understands; it has no spaces and can be pasted into a shell. It begins with the
source's kind and names the server it belongs to, so a cursor of another source or server is refused (CursorForeign),
and so is one after which changes are gone (CursorExpired). A cursor with a `+` is inside a snapshot: `snapshot` resumes
there.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, Protocol, runtime_checkable

import msgspec

from forge.capture.capabilities import Capabilities
from forge.change import Change
from forge.values import Column


class SourceBatch(msgspec.Struct, frozen=True):
    """Changes in order, and the cursor of a consumer that has handled them all.

    `columns` has for each change the columns that its table had at that time, if the source knows them. A batch without
    changes only advances the cursor.
    """

    changes: Sequence[Change]
    cursor: str
    columns: Sequence[tuple[Column, ...]] = ()


class Status(msgspec.Struct, frozen=True):
    """The status of a source: its capabilities, its position, and its problems."""

    kind: str
    name: str
    capabilities: Capabilities
    position: str | None = None
    """Its newest cursor."""
    lag_bytes: int | None = None
    lag_changes: int | None = None
    in_feed: tuple[str, ...] = ()
    """The parts of the filter that run in the feed."""
    in_forge: tuple[str, ...] = ()
    details: Mapping[str, object] = {}
    warnings: tuple[str, ...] = ()


class Source(Protocol):
    """One feed of one database; an async context manager that connects as late as possible.

    Two tasks must not read from it at once. Every method may raise SourceError with a fix.
    """

    @property
    def kind(self) -> str:
        """Return `log`, `wal`, `mysql`, `sqlite`, `hook` or `mongo`: the prefix of its cursors."""

    @property
    def name(self) -> str:
        """Return the name of the database, without secrets."""

    @property
    def capabilities(self) -> Capabilities: ...

    def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield the existing rows, as `read`; from the last batch's cursor the stream continues without a gap."""

    def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield what is committed after the cursor, or from now on, without end.

        It reconnects and resumes on its own; it raises only when it cannot continue correctly.
        """

    async def now(self) -> str:
        """Return the cursor behind all that is committed."""

    async def ack(self, cursor: str) -> None:
        """Acknowledge a cursor that the consumer has saved: the source may forget what is before it."""

    async def status(self) -> Status: ...

    async def __aenter__(self) -> "Source": ...

    async def __aexit__(self, *exception: object) -> None: ...


@runtime_checkable
class Bounded(Protocol):
    """A source that can read up to now, exactly, and end."""

    def until_now(self, after: str) -> AsyncGenerator[SourceBatch]:
        """Yield what is committed after the cursor and before this call; the last cursor is behind all of it."""


@runtime_checkable
class Beginning(Protocol):
    """A source that can be read from the oldest change that it retains."""

    async def start(self) -> str:
        """Return the cursor before the oldest retained change."""


@runtime_checkable
class Exact(Protocol):
    """A source that knows a cursor behind each change of a batch, not only behind the last one."""

    def behind(self, change: Change, after: str | None, cursor: str) -> str:
        """Return the cursor right behind a change of a batch; `after` is the batch's start, `cursor` its end."""


QUIET: Final = 2.0
"""Seconds without changes after which a source that cannot report its end is assumed to have reached it."""


def in_snapshot(cursor: str) -> bool:
    """Tell whether a cursor is inside a snapshot.

    >>> in_snapshot("mysql1_0-1-7"), in_snapshot("mysql1_0-1-7+b3JkZXJz")
    (False, True)
    """
    return "+" in cursor


async def changes(source: Source, after: str | None = None, *, snapshot: bool = False) -> AsyncGenerator[SourceBatch]:
    """Yield everything after the cursor, without end; a snapshot first if the cursor is in one, or on request."""
    if in_snapshot(after) if after is not None else snapshot:
        async with aclosing(source.snapshot(after)) as batches:
            async for batch in batches:
                after = batch.cursor
                yield batch
    async with aclosing(source.stream(after)) as batches:
        async for batch in batches:
            yield batch


async def until_now(source: Source, after: str | None = None, *, snapshot: bool = False) -> AsyncGenerator[SourceBatch]:
    """Do the same as `changes`, but end behind all that is committed by now.

    A source that is not `Bounded` ends at the cursor of now, or when nothing came for `QUIET` seconds.
    """
    if in_snapshot(after) if after is not None else snapshot:
        async with aclosing(source.snapshot(after)) as batches:
            async for batch in batches:
                after = batch.cursor
                yield batch
    if after is None:
        return
    if isinstance(source, Bounded):
        async with aclosing(source.until_now(after)) as batches:
            async for batch in batches:
                yield batch
        return
    began = time.monotonic()
    end = await source.now()
    patience = QUIET + 3 * (time.monotonic() - began)
    async with aclosing(source.stream(after)) as batches:
        while after != end:
            try:
                async with asyncio.timeout(patience):
                    batch = await anext(batches)
            except TimeoutError:
                return
            after, patience = batch.cursor, QUIET
            yield batch
