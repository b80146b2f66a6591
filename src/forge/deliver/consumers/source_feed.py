"""Any source of `forge.capture` as the feed of a consumer; all saved state is in Forge's PostgreSQL.

A source has cursors only between its batches. Within a batch the saved text is

    {cursor of its start}#{number of its handled changes}

and the batch is stored in forge.consumer_page, from the first such save until its end is saved. A worker that continues
inside a batch reads it from there and not from the source: the rest of a snapshot may have other rows by then, changes
may have other ids after a failover, and the consumer another filter, so only the stored batch shows for certain what
was handled. For the same reason a batch of a snapshot is stored before its first change is handled: otherwise a row
that was handled, and deleted before the snapshot continued, would leave no trace.

In place of a cursor the text may be `now` or `start`, until a worker has reached the source and resolved it.

The source may forget (`ack`) what lies before a cursor that is saved, on disk, and outside of a snapshot.
"""

import time
from asyncio import sleep
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final

import msgspec
import psycopg

from forge import wire
from forge.backoff import Backoff
from forge.capture.source import SourceBatch, Status, changes, in_snapshot
from forge.change import Change
from forge.deliver.consumers.feed import SAVE, ConsumerFeed, Place
from forge.deliver.consumers.lag import ConsumerLag
from forge.deliver.consumers.lease import ShardLease
from forge.deliver.consumers.origin import INSIDE, NOW, START, ConsumerOrigin
from forge.deliver.consumers.sql import sql
from forge.errors import ConsumerLost, ForgeError
from forge.postgres.connection import AsyncConnection

KEEP: Final = 1.0
"""Seconds after which a batch in progress is worth storing; one that is handled sooner is never stored."""
ACK: Final = 1.0
"""The minimum interval between two acknowledgements, in seconds."""
MEASURE: Final = 10.0
"""Seconds between two requests to the source for its lag."""
_AWAY: Final = (ForgeError, psycopg.Error, OSError, TimeoutError)


class SourcePage(msgspec.Struct, frozen=True):
    """The remaining changes of a batch, in order; `done` were handled before these."""

    start: str
    end: str
    changes: Sequence[Change]
    done: int = 0
    inside: bool = False
    """Whether it must be stored from the beginning."""

    def cursor(self, place: int) -> str:
        """Return the saved text after the given number of handled changes.

        >>> page = SourcePage("a1_7", "a1_9", [None, None])
        >>> [page.cursor(place) for place in range(3)]
        ['a1_7', 'a1_7#1', 'a1_9']
        >>> SourcePage("a1_7", "a1_9", [None, None], done=5).cursor(1)
        'a1_7#6'
        """
        if place >= len(self.changes):
            return self.end
        done = self.done + place
        return f"{self.start}{INSIDE}{done}" if done or self.inside else self.start


def standing(text: str) -> tuple[str, int]:
    """Return the cursor of a saved text, and the number of handled changes after it.

    >>> standing("a1_7#6"), standing("a1_7")
    (('a1_7', 6), ('a1_7', 0))
    """
    cursor, _, done = text.partition(INSIDE)
    return cursor, int(done or 0)


class SourceFeed(ConsumerFeed):
    """The changes that a consumer of a source must handle."""

    at: str

    def __init__(self, origin: ConsumerOrigin, id: int, cursor: str) -> None:
        self._source = origin.open()
        self._id = id
        self.at = cursor
        self._held = INSIDE in cursor
        """Whether the batch under way is kept in the database."""
        self._kept: SourceBatch | None = None
        self._page = SourcePage(cursor, cursor, ())
        self._saved = self._acked = cursor
        self._streaming = False
        self._handled = time.monotonic()
        self._status: Status | None = None

    @property
    def save_after(self) -> float:
        return SAVE if self._held else KEEP

    @asynccontextmanager
    async def opened(self, connection: AsyncConnection) -> AsyncIterator[None]:
        if self._held:
            row = await (await connection.execute(sql("kept_page"), {"id": self._id}, binary=True)).fetchone()
            if row is None:
                raise ConsumerLost("the cursor was moved just now", fix="nothing: it is taken up from there")
            end, stored = row
            self._kept = SourceBatch([wire.decode(text) for text in stored[standing(self.at)[1] :]], end)
        async with self._source:
            yield

    async def batches(self) -> AsyncGenerator[SourceBatch]:
        if (kept := self._kept) is not None:
            self._kept = None
            yield kept
            self._move(kept)
        if self.at == NOW:
            beginning = SourceBatch((), await self._source.now())
            yield beginning
            self._move(beginning)
        new = self.at == START
        async with aclosing(changes(self._source, None if new else self.at, snapshot=new)) as batches:
            async for batch in batches:
                self._streaming = not self._in_snapshot
                yield batch
                self._move(batch)

    def _move(self, batch: SourceBatch) -> None:
        """Advance: a batch is handled, and its end saved."""
        self.at = batch.cursor
        if batch.changes:
            self._handled = time.monotonic()

    @property
    def _in_snapshot(self) -> bool:
        return self.at == START or in_snapshot(self.at)

    def page(self, batch: SourceBatch) -> SourcePage:
        start, done = standing(self.at)
        self._page = SourcePage(start, batch.cursor, batch.changes, done, self._in_snapshot)
        return self._page

    def settles(self, cursor: Place) -> bool:
        return (INSIDE in str(cursor)) != self._held

    async def settle(self, connection: AsyncConnection, text: str) -> None:
        if not self.settles(text):
            return
        if self._held:
            await connection.execute(sql("drop_page"), {"id": self._id})
        else:
            assert not self._page.done, "what is left of a batch that was kept"
            kept = [wire.encode(change).decode() for change in self._page.changes]
            await connection.execute(sql("keep_page"), {"id": self._id, "cursor": self._page.end, "changes": kept})

    def saved(self, text: str) -> None:
        self._saved = text
        self._held = INSIDE in text
        if self._held:
            self._handled = time.monotonic()

    # Beside reading

    async def tend(self, flush: Callable[[], Awaitable[None]], failed: Callable[[Exception], None]) -> None:
        """Acknowledge saved cursors, and measure the lag."""
        backoff = Backoff(ACK, 30.0)
        due = 0.0
        while True:
            wait = ACK
            ready = self._to_acknowledge()
            if ready is not None:
                await flush()
            try:
                if ready is not None:
                    await self._source.ack(ready)
                    self._acked = ready
                if time.monotonic() >= due:
                    self._status = await self._source.status()
                    due = time.monotonic() + MEASURE
                    backoff.reset()
            except _AWAY as error:
                failed(error)
                wait = backoff.next()
            await sleep(wait)

    def _to_acknowledge(self) -> str | None:
        """Return the saved cursor, if it is new to the source and the source is open."""
        text = self._saved
        if text == self._acked or not self._streaming or INSIDE in text or in_snapshot(text):
            return None
        return text

    async def lag(self, lease: ShardLease, saved: str) -> ConsumerLag | None:
        """Return the lag that the source reports, and the seconds since a change was handled; zero when it reports none
        left."""
        if self._status is None:
            return None
        left = (self._status.lag_changes, self._status.lag_bytes)
        seconds = 0.0 if 0 in left else time.monotonic() - self._handled
        return ConsumerLag(left[0], seconds, left[1])
