"""One worker of one shard of a consumer: reads, calls the handler, and saves the cursor behind what it handled.

What always holds:

- The cursor is saved after the side effect, by the holder of the current fence alone. With `ctx.tx` it is saved in the
  handler's own transaction. So what a crash interrupts comes again, with the same ids, and nothing else does.
- No call begins once the lease is not ours for sure.
- Changes of one row are handled in their order. One that cannot be handled is parked, and those of its row that follow
  are parked behind it; others go on.
- At most one page is in memory, and what a source reads ahead of it, however long a handler takes.

What is read, and what a saved cursor says of it, is the feed's (`forge.deliver.consumers.feed`): the log's, or a
source's.

Between two calls of a handler that does not use `ctx.tx` the cursor is saved when so many seconds have passed as the
feed says, and at the end of each page: that is how much may come again after a crash.
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
from forge.deliver.consumers.context import Context, Transaction
from forge.deliver.consumers.definition import Consumer
from forge.deliver.consumers.errors import ConsumerLost, HandlerMisused, HandlerTimeout
from forge.deliver.consumers.feed import Feed, Page, Place
from forge.deliver.consumers.feeds import feed_of
from forge.deliver.consumers.keys import Blocked, whole
from forge.deliver.consumers.lag import Lag
from forge.deliver.consumers.lease import Lease
from forge.deliver.consumers.limit import Limit
from forge.deliver.consumers.sql import sql
from forge.deliver.sink import NotDelivered, Refused
from forge.errors import one_line
from forge.postgres.connection import parameters, pin, typed_errors
from forge.postgres.session import USERS

BREATH: Final = 0.01
"""Seconds after which a worker lets others have a turn, if its handler never waits for anything."""
_FIX: Final = "nothing: whoever holds it now goes on from the last cursor that was saved"
_log = logging.getLogger("forge.consumers")


class Stopped(Exception):
    """The worker was asked to stop, and has saved where it stands."""


class Counts:
    """What a worker did since it was last asked."""

    def __init__(self) -> None:
        self.delivered = 0
        self.retried = 0
        self.parked = 0
        self.error: str | None = None

    def __bool__(self) -> bool:
        return bool(self.delivered or self.retried or self.parked or self.error)

    def __add__(self, other: "Counts") -> "Counts":
        found = Counts()
        found.delivered = self.delivered + other.delivered
        found.retried = self.retried + other.retried
        found.parked = self.parked + other.parked
        found.error = other.error or self.error
        return found


class Worker:
    """Works on one shard while its fence holds."""

    def __init__(
        self,
        consumer: Consumer,
        url: str,
        lease: Lease,
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
        self.counts = Counts()
        self.tries = 0
        """How often the call under way has failed."""
        self.saved = cursor
        self.calling: float | None = None
        """Since when a handler runs, by time.monotonic; None while none does."""
        self._feed: Feed = feed_of(consumer, url, id=id, shard=shard, cursor=cursor, wakeup=wakeup)
        self._url = url
        self._lease = lease
        self._context = Context(consumer.name, shard, consumer.shards, fence)
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
        """Work until stopped (Stopped), fenced off (ConsumerLost), or the cursor leads nowhere (CursorError)."""
        with typed_errors():
            named = parameters(self._url, application_name=f"forge {self.consumer.name}"[:63])
            self._tx = await Transaction.connect(**named)
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
        """Begin no other call; True when none is under way, all that was handled is saved, and it will not end by
        itself: then it may be cancelled."""
        self._stopping.set()
        return not self._turn.locked() and not self._ending

    async def idle(self, seconds: float) -> None:
        """Save where reading has come to without finding anything, so that the log may forget what is before it."""
        if self._turn.locked() or time.monotonic() - self._saved_at < seconds:
            return
        async with self._turn:
            await self._save(self._feed.at)

    async def lag(self) -> Lag | None:
        """How far behind it is, as far as its feed can tell."""
        return await self._feed.lag(self._lease, self.saved)

    # Handling

    async def _handle(self, batch: Any) -> None:
        """All of a batch of the feed."""
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

    async def _blocked(self, page: Page) -> Blocked:
        found = await letters.blocked(self._tx, self.consumer.name, page.changes)
        await self._tx.abandon()
        return found

    async def _some(self, page: Page, place: int, blocked: Blocked) -> int:
        """Handle the next change, or the next few in one call; returns how many of the page are done then."""
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

    async def _one_or_parked(self, page: Page, place: int, blocked: Blocked) -> int:
        if blocked.blocks(page.changes[place]):
            await self._park(page, place, letters.BEHIND, 0, blocked, behind=True)
            return place + 1
        return await self._call_until_done(page, place, place + 1, blocked)

    async def _each(self, page: Page, place: int, blocked: Blocked) -> int:
        """Call the handler for one change after the other, quickly; one that fails is handled with patience. Returns
        how many of the page are done then."""
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
        self, page: Page, place: int, end: int, blocked: Blocked, error: Exception | None = None
    ) -> int:
        """Have the changes of some places handled in one call, tried again as often as need be; returns how many of
        the page are done then: perhaps fewer, and the last of them perhaps parked. `error` is that of a first try."""
        consumer, context, changes = self.consumer, self._context, page.changes
        backoff = Backoff(*consumer.backoff)
        self.tries = 0
        try:
            while True:
                if error is None:
                    error = await self._call(changes[place:end], page.cursor(end))
                if error is None:
                    return end
                kept = not context.used  # what a receiver took before it failed; in ctx.tx nothing is
                await self._undo(error)
                self.counts.error = one_line(error, named=True)
                if isinstance(error, Refused):
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
                    if end - place > 1:  # one of them is the reason: find it
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
        """One call of the handler; returns what it raised. With `ctx.tx`, the cursor is saved in it."""
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
        """What a call failed by; raises what is not the call's own."""
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

    async def _breathe(self, page: Page, place: int) -> None:
        """Between two calls: save now and then, stop if asked, let others work."""
        now = time.monotonic()
        if now - self._saved_at >= self._feed.save_after:
            await self._save(page.cursor(place))
        await self._stop_if_asked(page, place)
        if now - self._breathed >= BREATH:
            await asyncio.sleep(0)
            self._breathed = time.monotonic()

    async def _pause(self, page: Page, place: int, seconds: float) -> None:
        """Wait before the next try, or until stopped."""
        if time.monotonic() - self._saved_at >= self._feed.save_after:
            await self._save(page.cursor(place))
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        await self._stop_if_asked(page, place)

    async def _stop_if_asked(self, page: Page, place: int) -> None:
        if self._stopping.is_set():
            await self._save(page.cursor(place))
            raise Stopped

    # Saving

    async def _save(self, cursor: Place) -> None:
        """By a statement of its own, unless the feed has something to write beside it."""
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
        """With what the handler wrote in `ctx.tx`, in one transaction."""
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
        """Have on disk all that was saved so far; saves do not wait for that."""
        if not await self._lease.ask(sql("flush"), {"id": self.id, "fence": self.fence}):
            raise self._fenced()

    def _failed(self, error: Exception) -> None:
        """Something beside the calls went wrong, and is tried again."""
        self.counts.error = one_line(error, named=True)
        _log.warning("%s: %s", self.consumer.name, one_line(error, named=True))

    async def _undo(self, error: Exception) -> None:
        """Roll back what a failed call wrote; raise where the connection is gone, because then it is no one's fault."""
        self._context.used = False
        if self._tx.closed or self._tx.info.transaction_status is TransactionStatus.UNKNOWN:
            raise psycopg.OperationalError("the connection of ctx.tx is lost") from error
        await self._tx.abandon()

    async def _park(
        self, page: Page, place: int, error: str, tries: int, blocked: Blocked, *, behind: bool = False
    ) -> None:
        """Put a change aside, and the cursor behind it, at once."""
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
        """Send the letters of this shard that somebody wants sent again, in order, each once, before what comes next.

        One that fails stays, and with it those of its row that wait behind it.
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

    async def _again(self, letter: letters.Letter) -> None:
        """One letter: handled and gone in one transaction with what the handler wrote in `ctx.tx`, or it stays."""
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
    """Run them all until one ends; raise what it raised."""
    tasks = [asyncio.get_running_loop().create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
