"""Worker of one route: it claims messages, sends them, and deletes them from the outbox.

Any number of workers may work on one route, on any nodes.

Invariants:

- A message is claimed by locking its row in a transaction that lasts until it is sent and deleted. A worker that dies
  loses its connection and its locks, so others continue immediately; one that hangs or is disconnected loses them when
  its lease expires. It begins no call after that, and cannot settle anything, because no other session has the locks.
- Of one key only the messages from the first on are claimed, without gaps, so no two workers send the same key
  concurrently. A message that was committed late, with a smaller number than others, is found like any other.
- Nothing is sent before its commit is on disk: a commit that a crash of the server could undo is never sent.
- Messages that are sent and not yet deleted when a worker dies are sent again, with the same id.
- The connection to a server that does not answer is closed and opened again.
- A message that fails waits, longer each time, and the messages of its key behind it wait too; others continue. One
  that is refused, or failed too often, is parked, and later messages of its key wait behind it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from forge.backoff import Backoff
from forge.config import default
from forge.deliver.message import Message
from forge.deliver.outbox.routes import Route
from forge.deliver.outbox.sending import Claimed, SendOutcome, deliver
from forge.deliver.outbox.session import OutboxSession
from forge.deliver.outbox.sql import sql
from forge.postgres.connection import AsyncConnection, answering, connect_async, typed_errors
from forge.postgres.held_session import Reconnect

_MOST_BYTES: Final = 16 << 20
"""The maximum total of the payloads of one claim, not counting the last of them."""
_LONGEST_DOWN: Final = 5.0
_NOTHING: Final = "3:3:"
_log = logging.getLogger("forge.outbox")


class OutboxSettings(msgspec.Struct, frozen=True):
    """Settings of a node's outbox workers; the configuration supplies most defaults. Times in seconds."""

    poll: float = default("deliver.outbox_poll_interval")
    """Interval between two polls without a notification."""
    blocked: float = 0.01
    """The first wait before another claim where a message is behind one that another worker has."""
    budget: float = default("deliver.outbox_batch_timeout")
    """Time after which no further call begins for a batch: it is settled, so that finished work is not repeated."""
    answer: float = default("deliver.outbox_server_timeout")
    """Time after which a server that has not answered counts as lost."""
    report: float = default("deliver.report_interval")
    """Interval between two reports that the outbox changed."""
    measure: float = default("deliver.outbox_lag_interval")
    """Interval between two counts of waiting messages."""

    def lease(self, timeout: float) -> float:
        """Return how long a worker whose calls take at most `timeout` may be silent before it loses its rows."""
        return self.budget + timeout + self.answer


class ClaimedPage(NamedTuple):
    """The result of a claim: the messages to send, those to park behind a dead letter, and the end of the page."""

    claimed: list[Claimed]
    behind: list[int]
    snapshot: str
    lsn: str
    flushed: bool
    sure: bool
    last: int
    full: bool
    blocked: bool


class OutboxCounts(msgspec.Struct):
    """The counts of a worker: sent messages, failed tries, parked messages."""

    sent: int = 0
    retried: int = 0
    parked: int = 0


class OutboxWorker:
    """Works on a route while `run` runs; `stop` lets the current batch finish."""

    def __init__(self, url: str, route: Route, leave: str | None, settings: OutboxSettings) -> None:
        self.route = route
        self.counts = OutboxCounts()
        self.working = asyncio.Event()
        """Set once it is connected."""
        self._url = url
        self._leave = leave
        self._settings = settings
        self._stopping = asyncio.Event()
        self._idle: asyncio.Task[Any] | None = None
        self._limit = route.batch
        """How many are sent at a time: one after a failure, so that it is known whose it was."""
        self._down = Backoff(0.05, _LONGEST_DOWN)
        self._not_before = 0.0
        self._safe = _NOTHING
        """A snapshot of which all that it shows is on disk."""
        self._other: AsyncConnection | None = None
        self._wrote = False
        self._reconnect = Reconnect(_log, f"outbox {route.pattern}")
        self._claimed_at = 0.0

    @property
    def asleep(self) -> bool:
        """Whether it waits for work."""
        return self._idle is not None

    def stop(self) -> None:
        """End after the current batch is settled."""
        self._stopping.set()
        if self._idle is not None:
            self._idle.cancel()

    async def run(self) -> None:
        """Work until stopped. Raise when the very first connection fails; later failures are retried, because an outbox
        without a worker is worse."""
        while not self._stopping.is_set():
            try:
                async with self._connected() as session:
                    self._reconnect.opened()
                    self.working.set()
                    await self._work(session)
            except Exception as error:
                await self._wait(asyncio.sleep(self._reconnect.failed(error)))

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[OutboxSession]:
        name, lease = f"forge outbox {self.route.pattern}", self._settings.lease(self.route.timeout)
        try:
            async with OutboxSession.open(self._url, name, lease=lease, answer=self._settings.answer) as session:
                self._safe = _NOTHING  # a server that crashed reuses numbers
                values = {"take": self.route.regex, "leave": self._leave, "bytes": _MOST_BYTES}
                with typed_errors():
                    await session.ask(
                        f"PREPARE forge_claim (bigint, bigint, bigint, text) AS {session.bound(sql('claim'), values)}",
                        f"PREPARE forge_sent (bigint[]) AS {sql('sent')}",
                        f"PREPARE forge_next_try AS {sql('next_try')}",
                    )
                yield session
        finally:
            if self._other is not None:
                await self._other.close()

    async def _work(self, session: OutboxSession) -> None:
        after, found, blocked = 0, False, False
        waits = Backoff(self._settings.blocked, self._settings.poll)
        page = await self._claim(session, [], after)
        self._reconnect.works()
        while not self._stopping.is_set():
            settling: list[str] = []
            if page.claimed or page.behind:
                found = True
                settling = self._settled(session, page, await self._deliver(session, page))
                waits.reset()
            blocked = blocked or page.blocked
            swept = not page.full
            after = 0 if swept else page.last
            if (swept and not found) or self._stopping.is_set() or self._not_before > time.monotonic():
                again = await self._ended(session, settling)
                pause = waits.next() if blocked else self._settings.poll
                await self._sleep(session, pause if again is None else min(pause, max(0.0, again)))
                settling, after, swept = [], 0, True
            if swept:
                found = blocked = False
            if not self._stopping.is_set():
                page = await self._claim(session, settling, after)

    async def _claim(self, session: OutboxSession, settling: list[str], after: int) -> ClaimedPage:
        """Settle the previous batch and claim the next one, in one round trip."""
        self._wrote = self._wrote or bool(settling)
        before = (*settling, "COMMIT", "BEGIN") if session.in_transaction else ("BEGIN",)
        self._claimed_at = time.monotonic()
        claim = f"EXECUTE forge_claim ({after}, {self.route.batch}, {self._limit}, '{self._safe}')"
        return self._page(await session.ask(*before, claim))

    def _page(self, rows: Sequence[tuple[Any, ...]]) -> ClaimedPage:
        snapshot, lsn, flushed, last, full, blocked, free = rows[0][:7]
        claimed: list[Claimed] = []
        behind: list[int] = []
        places: dict[str, int] = {}
        sure = True
        for *_, place, parked, seq, id, topic, key, payload, content_type, headers, at, tries, known in rows:
            if seq is None:
                break
            if key is not None:
                if places.get(key, 0) != place - 1:
                    continue  # another worker has one before it
                places[key] = place
            if parked:
                behind.append(seq)
            else:
                message = Message(id, topic, payload, at, key, headers or {}, content_type)
                claimed.append(Claimed(seq, tries, message))
                sure = sure and known
        taken = free and not claimed and not behind  # by another worker, which may release it soon
        return ClaimedPage(
            claimed[: self._limit], behind, snapshot, lsn, flushed, sure, last or 0, full, bool(blocked or taken)
        )

    async def _deliver(self, session: OutboxSession, page: ClaimedPage) -> SendOutcome:
        if not page.claimed:
            return SendOutcome()
        if not page.sure:
            if not page.flushed:
                await self._flushed(session, page.lsn)
            self._safe = page.snapshot
        with self._holding(session.connection) as holds:
            outcome = await deliver(self.route, page.claimed, holds)
        if outcome.down is not None:
            self._limit = 1
            self._not_before = time.monotonic() + self._down.next(outcome.down)
        else:
            self._limit = min(self.route.batch, self._limit * 2)
            if outcome.sent:
                self._down.reset()
        return outcome

    @contextlib.contextmanager
    def _holding(self, connection: AsyncConnection) -> Iterator[Callable[[], bool]]:
        """Whether the batch's time lasts, counted from its claim, and the session that has its locks is alive: to a
        session idle in transaction the server sends only one message, that it has ended."""
        loop, line = asyncio.get_running_loop(), connection.fileno()
        end = self._claimed_at + self._settings.budget
        ended = False

        def heard() -> None:
            nonlocal ended
            ended = True
            loop.remove_reader(line)

        loop.add_reader(line, heard)
        try:
            yield lambda: not ended and time.monotonic() < end
        finally:
            loop.remove_reader(line)

    async def _flushed(self, session: OutboxSession, lsn: str) -> None:
        """Return when the WAL is flushed up to this position; force the flush if no other session does."""
        for patience in (0.0, 0.001):
            await asyncio.sleep(patience)
            if (await session.ask(session.bound(sql("flushed"), {"lsn": lsn})))[0] == (True,):
                return
        if self._other is None or self._other.closed:
            self._other = await connect_async(self._url, application_name="forge outbox (flush)")
        with answering(self._other, self._settings.answer):
            await self._other.execute("SET synchronous_commit = local")  # overrides the setting of the database
            await self._other.execute(sql("flush"))

    def _settled(self, session: OutboxSession, page: ClaimedPage, outcome: SendOutcome) -> list[str]:
        """Return the statements that store the results of a batch."""
        found: list[str] = []
        tries = {each.seq: each.tries for each in page.claimed}
        parked = dict(outcome.refused)
        failed = {}
        for seq, failure in outcome.failed.items():
            if failure.counts and self.route.tries is not None and tries[seq] + 1 >= self.route.tries:
                parked[seq] = failure.error
            else:
                failed[seq] = failure
        if outcome.sent:
            found.append(f"EXECUTE forge_sent ('{{{','.join(map(str, outcome.sent))}}}')")
        if failed:
            errors = [each.error for each in failed.values()]
            values = {
                "seqs": list(failed),
                "counts": [int(each.counts) for each in failed.values()],
                "delays": [self._delay(tries[seq], each.after) for seq, each in failed.items()],
                "errors": errors,
            }
            found.append(session.bound(sql("failed"), values))
            _log.warning("outbox %s: %d failed, first: %s", self.route.pattern, len(failed), errors[0])
        if parked:
            values = {"seqs": list(parked), "errors": list(parked.values())}
            found.append(session.bound(sql("park"), values))
            first = next(iter(parked.values()))
            _log.error("outbox %s: %d parked, see forge outbox dead, first: %s", self.route.pattern, len(parked), first)
        if page.behind:
            found.append(sql("hold_dead"))
            found.append(session.bound(sql("park_behind"), {"seqs": page.behind}))
        self.counts.sent += len(outcome.sent)
        self.counts.retried += len(failed)
        self.counts.parked += len(parked)
        return found

    def _delay(self, tries: int, after: float | None) -> float:
        return Backoff(*self.route.backoff, failures=tries).next(at_least=after or 0.0)

    async def _ended(self, session: OutboxSession, settling: list[str]) -> float | None:
        """Settle the batch and end the transaction; return the seconds until the next retry. The WAL of this worker is
        flushed while it is idle, so that the next message need not wait for that."""
        asked = [*settling, "COMMIT"]
        if self._wrote or settling:
            asked += ["BEGIN", "SET LOCAL synchronous_commit = local", sql("flush"), "COMMIT"]
        ((again,),) = await session.ask(*asked, "EXECUTE forge_next_try")
        self._wrote = False
        return None if again is None else float(again)

    async def _sleep(self, session: OutboxSession, pause: float) -> None:
        """Wait for a message of the route, at most the given seconds; longer where the receiver is down."""
        if self._stopping.is_set():
            return
        if (wait := self._not_before - time.monotonic()) > 0:
            await self._wait(asyncio.sleep(wait))
        else:
            await self._wait(self._listen(session.connection, pause))

    async def _listen(self, connection: AsyncConnection, pause: float) -> None:
        end = time.monotonic() + pause
        heard = False
        while not heard and (left := end - time.monotonic()) > 0:
            async for notice in connection.notifies(timeout=left, stop_after=1):
                heard = heard or self.route.takes(notice.payload)

    async def _wait(self, what: Any) -> None:
        """Wait for it, unless stopped."""
        self._idle = asyncio.ensure_future(what)
        try:
            if not self._stopping.is_set():
                await self._idle
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._stopping.is_set() or (task is not None and task.cancelling()):
                raise
        finally:
            if not self._idle.done():
                self._idle.cancel()
            self._idle = None
