"""What every source offers, and the one way to read any of them.

A cursor is a text that only its source understands; it has no spaces and can be pasted into a shell. It begins with
the source's kind and names the server it belongs to, so that one of another source or server is refused
(CursorForeign), and one whose successors are gone is too (CursorExpired). A cursor with a `+` stands inside a
snapshot: `snapshot` goes on from there.
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


class Batch(msgspec.Struct, frozen=True):
    """Changes in order, and the cursor of a consumer that has handled them all.

    `columns` has for each change the columns that its table had at the time, where the source knows them. A batch
    without changes only moves the cursor on.
    """

    changes: Sequence[Change]
    cursor: str
    columns: Sequence[tuple[Column, ...]] = ()


class Status(msgspec.Struct, frozen=True):
    """How a source stands: what it can do, how far it is, and what is wrong."""

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
    """One feed of one database; an async context manager that connects nothing before it must.

    Not to be shared by two tasks that read. Every method may raise SourceError with what to do.
    """

    @property
    def kind(self) -> str:
        """`log`, `wal`, `mysql`, `sqlite`, `hook` or `mongo`: what its cursors begin with."""

    @property
    def name(self) -> str:
        """The database, without secrets."""

    @property
    def capabilities(self) -> Capabilities: ...

    def snapshot(self, after: str | None = None) -> AsyncGenerator[Batch]:
        """The rows that are there, as `read`; the last batch's cursor is where the stream goes on without a gap."""

    def stream(self, after: str | None = None) -> AsyncGenerator[Batch]:
        """What is committed after the cursor, or from now on, for ever.

        It connects again by itself and goes on where it was; it raises only when going on would be a lie.
        """

    async def now(self) -> str:
        """The cursor behind all that is committed."""

    async def ack(self, cursor: str) -> None:
        """The consumer has saved this cursor: the source may forget what is before it."""

    async def status(self) -> Status: ...

    async def __aenter__(self) -> "Source": ...

    async def __aexit__(self, *exception: object) -> None: ...


@runtime_checkable
class Bounded(Protocol):
    """A source that can read up to now and end, in a way that is exact."""

    def until_now(self, after: str) -> AsyncGenerator[Batch]:
        """What is committed after the cursor and before this call; the last batch's cursor is behind all of it."""


@runtime_checkable
class Beginning(Protocol):
    """A source that can be read from the oldest change that it retains."""

    async def start(self) -> str:
        """The cursor before it."""


@runtime_checkable
class Exact(Protocol):
    """A source that knows a cursor behind each change of a batch, not only behind the last one."""

    def behind(self, change: Change, after: str | None, cursor: str) -> str:
        """The cursor right behind a change of a batch; `after` is the cursor before that batch, `cursor` its own."""


QUIET: Final = 2.0
"""Seconds after which a source that cannot say that it has come to its end is taken to have."""


def in_snapshot(cursor: str) -> bool:
    """Whether a cursor stands inside a snapshot.

    >>> in_snapshot("mysql1_0-1-7"), in_snapshot("mysql1_0-1-7+b3JkZXJz")
    (False, True)
    """
    return "+" in cursor


async def changes(source: Source, after: str | None = None, *, snapshot: bool = False) -> AsyncGenerator[Batch]:
    """Everything after the cursor, for ever; a snapshot first if one was begun, or is asked for and none was."""
    if in_snapshot(after) if after is not None else snapshot:
        async with aclosing(source.snapshot(after)) as batches:
            async for batch in batches:
                after = batch.cursor
                yield batch
    async with aclosing(source.stream(after)) as batches:
        async for batch in batches:
            yield batch


async def until_now(source: Source, after: str | None = None, *, snapshot: bool = False) -> AsyncGenerator[Batch]:
    """As `changes`, and ends behind all that is committed by now.

    A source that is not `Bounded` has come to its end at the cursor of now, or when nothing came for `QUIET` seconds.
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
