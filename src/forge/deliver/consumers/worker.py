"""Worker of one shard of a consumer: it reads, calls the handler, and saves the cursor after the handled changes.

Invariants:

- The cursor is saved after the side effect, and only by the holder of the current fence. With `ctx.tx` it is saved in
  the handler's own transaction. So changes interrupted by a crash are delivered again, with the same ids, and no
  others.
- No call begins unless the worker certainly holds the lease.
- Changes of one row are handled in order. A change that cannot be handled is parked, and later changes of its row are
  parked behind it; other rows continue.
- At most one page is in memory, plus the read-ahead of a source, however long a handler takes.

The changes and the meaning of a saved cursor come from the feed (`forge.deliver.consumers.feed`): of the log, or of a
source.

For a handler that does not use `ctx.tx`, the cursor is saved between calls at the interval of the feed, and at the end
of each page: this bounds the changes that are delivered again after a crash.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from forge.backoff import Backoff
from forge.change import Change
from forge.changelog.follow import Wakeup
from forge.deliver.consumers import letters
from forge.deliver.consumers.barrier import Barrier
from forge.deliver.consumers.context import ConsumerContext, HandlerTransaction
from forge.deliver.consumers.definition import Consumer
from forge.deliver.consumers.feed import ConsumerFeed, FeedPage, Place
from forge.deliver.consumers.feeds import feed_of
from forge.deliver.consumers.keys import Blocked, whole
from forge.deliver.consumers.lag import ConsumerLag
from forge.deliver.consumers.lease import ShardLease
from forge.deliver.consumers.limit import Limit
from forge.deliver.consumers.sql import sql
from forge.errors import (
    ConsumerLost,
    DeliveryRefused,
    HandlerMisused,
    HandlerTimeout,
    NotDelivered,
    WorkerStopped,
    one_line,
)
from forge.postgres.connection import parameters, pin, typed_errors
from forge.postgres.session import USERS

BREATH: Final = 0.01
"""Seconds after which a worker yields to other tasks, if its handler never awaits anything."""
_FIX: Final = "nothing: whoever holds it now goes on from the last cursor that was saved"
_log = logging.getLogger("forge.consumers")


class ConsumerCounts:
    """The counts of a worker since they were last read."""

    def __init__(self) -> None:
        self.delivered = 0
        self.retried = 0
        self.parked = 0
        self.error: str | None = None

    def __bool__(self) -> bool:
        return bool(self.delivered or self.retried or self.parked or self.error)

    def __add__(self, other: "ConsumerCounts") -> "ConsumerCounts":
        found = ConsumerCounts()
        found.delivered = self.delivered + other.delivered
        found.retried = self.retried + other.retried
        found.parked = self.parked + other.parked
        found.error = other.error or self.error
        return found


class ConsumerWorker:
    """Works on one shard while its fence holds."""

    def __init__(
        self,
        consumer: Consumer,
        url: str,
        lease: ShardLease,
        *,
        id: int,
        shard: int,
        cursor: str,
        fence: int,
        wakeup: Wakeup = "notify",
    ) -> None:
        self.consumer = consumer
        self.id = id
        self.shard = shard
        self.fence = fence
        self.counts = ConsumerCounts()
        self.tries = 0
        """How often the call under way has failed."""
        self.saved = cursor
        self.calling: float | None = None
        """Since when a handler runs, by time.monotonic; None while none does."""
        self._feed: ConsumerFeed = feed_of(consumer, url, id=id, shard=shard, cursor=cursor, wakeup=wakeup)
        self._url = url
        self._lease = lease
        self._context = ConsumerContext(consumer.name, shard, consumer.shards, fence)
        self._turn = asyncio.Lock()
        self._saved_at = time.monotonic()
        self._breathed = 0.0
        self._stopping = asyncio.Event()
        self._ending = False
        self._replay = asyncio.Event()
        self._letters = False
        self._alone = 0
        self._barrier = Barrier(lease, consumer.name, shard, consumer.shards)

    # Reading

    async def run(self) -> None:
        """Work until stopped (WorkerStopped), fenced off (ConsumerLost), or the cursor is invalid (CursorError)."""
        with typed_errors():
            named = parameters(self._url, application_name=f"forge {self.consumer.name}"[:63])
            self._tx = await HandlerTransaction.connect(**named)
        try:
            await pin(self._tx, USERS)
            await self._tx.finish()
            self._context.connection = self._tx
            self._letters = await letters.any_left(self._tx, self.consumer.name)
            async with self._feed.opened(self._tx):
                await self._tx.abandon()
                await _first_to_end(self._follow(), self._replays(), self._feed.tend(self._flush, self._failed))
        finally:
            self._context.connection = None
            await self._tx.close()

    async def _follow(self) -> None:
        async with aclosing(self._feed.batches()) as batches:
            try:
                async for batch in batches:
                    async with self._turn:
                        await self._handle(batch)
            finally:
                self._ending = True

    def stop(self) -> bool:
        """Let no further call begin; return True when none is running, everything handled is saved, and the worker will
        not end without help: then it may be cancelled."""
        self._stopping.set()
        return not self._turn.locked() and not self._ending

    async def idle(self, seconds: float) -> None:
        """Save the position of an idle reader, so that the log may drop what is before it."""
        if self._turn.locked() or time.monotonic() - self._saved_at < seconds:
            return
        async with self._turn:
            await self._save(self._feed.at)

    async def lag(self) -> ConsumerLag | None:
        """Return the lag, as far as the feed knows it."""
        return await self._feed.lag(self._lease, self.saved)

    # Handling

    async def _handle(self, batch: Any) -> None:
        """Handle all changes of a batch of the feed."""
        consumer = self.consumer
        page = self._feed.page(batch)
        if self._feed.settles(begun := page.cursor(0)):
            await self._save(begun)
        changes = page.changes
        blocked = await self._blocked(page) if self._letters else Blocked()
        place = 0
        while place < len(changes):
            if not blocked and consumer.batch is None and consumer.shards == 1:
                place = await self._each(page, place, blocked)
            else:
                place = await self._some(page, place, blocked)
            await self._breathe(page, place)
        await self._save(page.end)

    async def _blocked(self, page: FeedPage) -> Blocked:
        found = await letters.blocked(self._tx, self.consumer.name, page.changes)
        await self._tx.abandon()
        return found

    async def _some(self, page: FeedPage, place: int, blocked: Blocked) -> int:
        """Handle the next change, or the next few in one call; return the number of finished changes of the page."""
        changes, shards = page.changes, self.consumer.shards
        change = changes[place]
        if shards > 1 and whole(change):
            await self._save(page.cursor(place))

            async def wait(seconds: float) -> None:
                await self._pause(page, place, seconds)

            if await self._barrier.meet(change.id, wait):
                await self._one_or_parked(page, place, blocked)
                await self._barrier.passed(change.id)
            return place + 1
        if blocked.blocks(change):
            return await self._one_or_parked(page, place, blocked)
        most = 1 if self._alone else self.consumer.batch or 1
        end = place + 1
        while end < len(changes) and end - place < most and not blocked.blocks(changes[end]):
            if shards > 1 and whole(changes[end]):
                break
            end += 1
        done = await self._call_until_done(page, place, end, blocked)
        self._alone = max(0, self._alone - (done - place))
        return done

    async def _one_or_parked(self, page: FeedPage, place: int, blocked: Blocked) -> int:
        if blocked.blocks(page.changes[place]):
            await self._park(page, place, letters.BEHIND, 0, blocked, behind=True)
            return place + 1
        return await self._call_until_done(page, place, place + 1, blocked)

    async def _each(self, page: FeedPage, place: int, blocked: Blocked) -> int:
        """Call the handler for one change after the other, on the fast path; a failing change goes through retries.
        Return the number of finished changes of the page."""
        handler, context, lease, changes = self.consumer.handler, self._context, self._lease, page.changes
        clock, total, counts = time.monotonic, len(changes), self.counts
        try:
            async with Limit(self.consumer.timeout) as limit:
                while place < total:
                    lease.check()
                    limit.begin()
                    self.calling = now = clock()
                    if now - self._breathed >= BREATH or self._stopping.is_set():
                        return place
                    result: object = await handler(context, changes[place])
                    if result is not None:
                        raise self._returned(result)
                    if context.used:
                        limit.end()
                        await self._commit(page.cursor(place + 1))
                    counts.delivered += 1
                    place += 1
        except (HandlerMisused, ConsumerLost):
            raise
        except (Exception, asyncio.CancelledError) as error:
            return await self._call_until_done(page, place, place + 1, blocked, self._typed(error))
        finally:
            self.calling = None
        return place

    async def _call_until_done(
        self, page: FeedPage, place: int, end: int, blocked: Blocked, error: Exception | None = None
    ) -> int:
        """Handle some changes in one call, with retries; return the number of finished changes of the page, which may
        be lower than requested, and the last of them may be parked. `error` is that of a first try."""
        consumer, context, changes = self.consumer, self._context, page.changes
        backoff = Backoff(*consumer.backoff)
        self.tries = 0
        try:
            while True:
                if error is None:
                    error = await self._call(changes[place:end], page.cursor(end))
                if error is None:
                    return end
                kept = not context.used  # whether deliveries before the failure count; in ctx.tx all are rolled back
                await self._undo(error)
                self.counts.error = one_line(error, named=True)
                if isinstance(error, DeliveryRefused):
                    taken = min(max(error.place, 0), end - place - 1)
                    if taken and not kept:
                        end, error = place + taken, None
                        continue
                    self.counts.delivered += taken
                    await self._park(page, place + taken, one_line(error, named=True), self.tries + 1, blocked)
                    return place + taken + 1
                tried = not isinstance(error, NotDelivered) or error.tried
                self.tries += tried
                self.counts.retried += tried
                wait = backoff.next()
                if isinstance(error, NotDelivered):
                    wait = max(wait, error.after or 0.0)
                    if taken := min(max(error.delivered, 0), end - place) if kept else 0:
                        self.counts.delivered += taken
                        self.tries = int(tried)
                        backoff = Backoff(*consumer.backoff)
                        wait = max(backoff.next(), error.after or 0.0) if tried else error.after or 0.0
                        place += taken
                        await self._save(page.cursor(place))
                        if place == end:
                            return end
                if tried and consumer.tries is not None and self.tries >= consumer.tries:
                    if end - place > 1:  # one of them is the cause: find it
                        self._alone = end - place
                        return place
                    await self._park(page, place, one_line(error, named=True), self.tries, blocked)
                    return end
                most = "" if consumer.tries is None else f" of {consumer.tries}"
                _log.warning(
                    "%s: try %d%s failed, again in %.2f s: %s",
                    consumer.name,
                    self.tries,
                    most,
                    wait,
                    one_line(error, named=True),
                )
                error = None
                await self._pause(page, place, wait)
        finally:
            self.tries = context.tries = 0

    async def _call(self, changes: Sequence[Change], cursor: Place) -> Exception | None:
        """Call the handler once; return its exception. With `ctx.tx`, the cursor is saved in that transaction."""
        consumer, context = self.consumer, self._context
        self._lease.check()
        context.tries = self.tries
        self.calling = time.monotonic()
        try:
            async with asyncio.timeout(consumer.timeout):
                result: object = await consumer.handler(
                    context, changes[0] if consumer.batch is None else list(changes)
                )
            if result is not None:
                raise self._returned(result)
            if context.used:
                await self._commit(cursor)
        except (HandlerMisused, ConsumerLost):
            raise
        except (Exception, asyncio.CancelledError) as error:
            return self._typed(error)
        finally:
            self.calling = None
        self.counts.delivered += len(changes)
        return None

    def _typed(self, error: BaseException) -> Exception:
        """Return the error of a call; raise errors that do not come from the call."""
        if not isinstance(error, Exception):
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise error
            return HandlerTimeout("the handler was cancelled by something of its own", fix="catch CancelledError there")
        if isinstance(error, TimeoutError):
            return HandlerTimeout(
                f"the handler took longer than {self.consumer.timeout:g} s", fix="make it quicker, or raise timeout="
            )
        return error

    def _returned(self, result: object) -> HandlerMisused:
        return HandlerMisused(
            f"the handler of {self.consumer.name} returned a {type(result).__name__}; a handler returns None",
            fix="return nothing; raise where something is wrong",
        )

    # Time

    async def _breathe(self, page: FeedPage, place: int) -> None:
        """Between two calls: save periodically, stop if asked, yield to other tasks."""
        now = time.monotonic()
        if now - self._saved_at >= self._feed.save_after:
            await self._save(page.cursor(place))
        await self._stop_if_asked(page, place)
        if now - self._breathed >= BREATH:
            await asyncio.sleep(0)
            self._breathed = time.monotonic()

    async def _pause(self, page: FeedPage, place: int, seconds: float) -> None:
        """Wait before the next try, or until stopped."""
        if time.monotonic() - self._saved_at >= self._feed.save_after:
            await self._save(page.cursor(place))
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        await self._stop_if_asked(page, place)

    async def _stop_if_asked(self, page: FeedPage, place: int) -> None:
        if self._stopping.is_set():
            await self._save(page.cursor(place))
            raise WorkerStopped

    # Saving

    async def _save(self, cursor: Place) -> None:
        """Save in a separate statement, unless the feed has data to write with it."""
        text = str(cursor)
        if text == self.saved:
            return
        if self._feed.settles(text):
            await self._commit(cursor)
            return
        if not await self._lease.ask(sql("save"), {"id": self.id, "fence": self.fence, "cursor": text}):
            raise self._fenced()
        self._saved(text)

    async def _commit(self, cursor: Place) -> None:
        """Commit together with the handler's writes in `ctx.tx`, in one transaction."""
        self._tx.check()
        text = str(cursor)
        await self._feed.settle(self._tx, text)
        saved = await self._tx.execute(sql("save"), {"id": self.id, "fence": self.fence, "cursor": text})
        if saved.rowcount != 1:
            raise self._fenced()
        await self._tx.finish()
        self._context.used = False
        self._saved(text)

    def _saved(self, text: str) -> None:
        self.saved, self._saved_at = text, time.monotonic()
        self._feed.saved(text)

    async def _flush(self) -> None:
        """Bring everything saved so far to disk; saves do not wait for that."""
        if not await self._lease.ask(sql("flush"), {"id": self.id, "fence": self.fence}):
            raise self._fenced()

    def _failed(self, error: Exception) -> None:
        """Record a failure outside of the calls; it is retried."""
        self.counts.error = one_line(error, named=True)
        _log.warning("%s: %s", self.consumer.name, one_line(error, named=True))

    async def _undo(self, error: Exception) -> None:
        """Roll back the writes of a failed call; raise when the connection is lost, because then the call is not at
        fault."""
        self._context.used = False
        if self._tx.closed or self._tx.info.transaction_status is TransactionStatus.UNKNOWN:
            raise psycopg.OperationalError("the connection of ctx.tx is lost") from error
        await self._tx.abandon()

    async def _park(
        self, page: FeedPage, place: int, error: str, tries: int, blocked: Blocked, *, behind: bool = False
    ) -> None:
        """Park a change and move the cursor after it, in one step."""
        change: Change = page.changes[place]
        await letters.park(self._tx, self.consumer.name, change, error, tries, behind)
        await self._commit(page.cursor(place + 1))
        blocked.add(change)
        self._letters = True
        self.counts.parked += 1
        if not behind:
            self.counts.error = error
            _log.error("%s: %s is parked after %d tries: %s", self.consumer.name, change.id, tries, error)

    def _fenced(self) -> ConsumerLost:
        return ConsumerLost(f"{self.consumer.name} is another worker's, or was moved", fix=_FIX)

    # Dead letters

    def replay(self) -> None:
        """Replay the letters of this shard that are marked for it, in order, each once, before the next changes.

        A letter that fails stays, and with it the letters of its row behind it.
        """
        self._replay.set()

    async def _replays(self) -> None:
        while True:
            await self._replay.wait()
            async with self._turn:
                self._replay.clear()
                await self._send_letters()

    async def _send_letters(self) -> None:
        while not self._stopping.is_set():
            found = await letters.next_to_replay(self._tx, self.consumer.name, self.shard, self.consumer.shards)
            await self._tx.abandon()
            if found is None:
                break
            await self._again(found)
        self._letters = await letters.any_left(self._tx, self.consumer.name)
        await self._tx.abandon()

    async def _again(self, letter: letters.ReplayLetter) -> None:
        """Replay one letter: it is handled and deleted in one transaction with the handler's writes in `ctx.tx`, or it
        stays."""
        self._lease.check()
        error: Exception | None = None
        self.calling = time.monotonic()
        try:
            change = letter.change
            async with asyncio.timeout(self.consumer.timeout):
                handled = self.consumer.handler(self._context, change if self.consumer.batch is None else [change])
                result: object = await handled
            if result is not None:
                raise self._returned(result)
            self._tx.check()
        except (HandlerMisused, ConsumerLost):
            raise
        except (Exception, asyncio.CancelledError) as caught:
            error = self._typed(caught)
            await self._undo(error)
        finally:
            self.calling = None
        held = await self._tx.execute(sql("fenced"), {"id": self.id, "fence": self.fence})
        if await held.fetchone() is None:
            raise self._fenced()
        if error is None:
            await letters.sent(self._tx, letter)
            self.counts.delivered += 1
        else:
            await letters.failed(self._tx, self.consumer.name, letter, one_line(error, named=True), 1)
            self.counts.error = one_line(error, named=True)
        await self._tx.finish()
        self._context.used = False


async def _first_to_end(*work: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends; raise its error."""
    tasks = [asyncio.get_running_loop().create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
