"""Any source of `forge.capture` as the feed of a consumer, while all that is saved of it stays in Forge's PostgreSQL.

A source has cursors between its batches only. While a batch is under way the saved text is

    {cursor of its start}#{how many of its changes are handled}

and the batch is kept in forge.consumer_page, from the first such save on until its end is saved. A worker that goes on
from there takes it from there, and not from the source: what is left of a snapshot may be other rows by then, changes
may have other ids after a failover, and the consumer another filter, so that nothing else tells for certain what was
handled. For the same reason a batch of a snapshot is kept before its first change is handled: of a row that was
handled, and deleted before the snapshot went on, nobody would tell any more.

In place of a cursor the text may be `now` or `start`, until a worker has come to the source and found where that is.

The source may forget (`ack`) what lies before a cursor that is saved and on disk, and outside of a snapshot.
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
from forge.capture.source import Batch, Status, changes, in_snapshot
from forge.change import Change
from forge.deliver.consumers.errors import ConsumerLost
from forge.deliver.consumers.feed import SAVE, Feed, Place
from forge.deliver.consumers.lag import Lag
from forge.deliver.consumers.lease import Lease
from forge.deliver.consumers.origin import INSIDE, NOW, START, Origin
from forge.deliver.consumers.sql import sql
from forge.errors import ForgeError
from forge.postgres.connection import AsyncConnection

KEEP: Final = 1.0
"""Seconds after which a batch under way is worth to be kept; one that is handled sooner never is."""
ACK: Final = 1.0
"""Seconds between two acknowledgements at the least."""
MEASURE: Final = 10.0
"""Seconds between two questions to the source how far behind it is."""
_AWAY: Final = (ForgeError, psycopg.Error, OSError, TimeoutError)


class SourcePage(msgspec.Struct, frozen=True):
    """The changes of a batch that are left, in order; `done` were handled before these."""

    start: str
    end: str
    changes: Sequence[Change]
    done: int = 0
    inside: bool = False
    """Whether it has to be kept from the beginning."""

    def cursor(self, place: int) -> str:
        """Where a consumer stands that has handled so many of them.

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
    """The cursor of a saved text, and how many changes behind it are handled.

    >>> standing("a1_7#6"), standing("a1_7")
    (('a1_7', 6), ('a1_7', 0))
    """
    cursor, _, done = text.partition(INSIDE)
    return cursor, int(done or 0)


class SourceFeed(Feed):
    """What a consumer of a source is to handle."""

    at: str

    def __init__(self, origin: Origin, id: int, cursor: str) -> None:
        self._source = origin.open()
        self._id = id
        self.at = cursor
        self._held = INSIDE in cursor
        """Whether the batch under way is kept in the database."""
        self._kept: Batch | None = None
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
            self._kept = Batch([wire.decode(text) for text in stored[standing(self.at)[1] :]], end)
        async with self._source:
            yield

    async def batches(self) -> AsyncGenerator[Batch]:
        if (kept := self._kept) is not None:
            self._kept = None
            yield kept
            self._move(kept)
        if self.at == NOW:
            beginning = Batch((), await self._source.now())
            yield beginning
            self._move(beginning)
        new = self.at == START
        async with aclosing(changes(self._source, None if new else self.at, snapshot=new)) as batches:
            async for batch in batches:
                self._streaming = not self._in_snapshot
                yield batch
                self._move(batch)

    def _move(self, batch: Batch) -> None:
        """A batch is handled, and its end saved."""
        self.at = batch.cursor
        if batch.changes:
            self._handled = time.monotonic()

    @property
    def _in_snapshot(self) -> bool:
        return self.at == START or in_snapshot(self.at)

    def page(self, batch: Batch) -> SourcePage:
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
        """Acknowledge what is saved, and ask how far behind it is."""
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
        """The cursor that is saved, if it says something new to a source that is being read."""
        text = self._saved
        if text == self._acked or not self._streaming or INSIDE in text or in_snapshot(text):
            return None
        return text

    async def lag(self, lease: Lease, saved: str) -> Lag | None:
        """What the source tells, and the seconds since a change was handled; none when it tells that none is left."""
        if self._status is None:
            return None
        left = (self._status.lag_changes, self._status.lag_bytes)
        seconds = 0.0 if 0 in left else time.monotonic() - self._handled
        return Lag(left[0], seconds, left[1])
