"""Following the log for ever: reading from a cursor, woken as `forge.changelog.wakeup` says.

`follow` keeps three connections: one reads, one listens, one holds the pacemaker's locks. Whatever happens to
them, it connects again and goes on from its cursor, so what it yields has no gap and no duplicate. It raises only
when going on would be a lie: CursorExpired, CursorForeign, NotInstalled when Forge is gone from the database,
DecodeError when a logged row is not one; and ServerError when the very first connection fails, unless the server
says that it is starting up or shutting down.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Final, Literal

import msgspec
import psycopg

from forge.backoff import Backoff
from forge.changelog.queries import query
from forge.changelog.reader import Batch, Reader
from forge.changelog.wakeup import CHANNEL, Load, Protocol, Step, listener, pacemaker
from forge.cursor import Cursor
from forge.errors import ServerError, one_line
from forge.generator_close import Closing
from forge.postgres import locks
from forge.postgres.connection import AsyncConnection, answering, connect_async, hang_up, rejecting, translate

Wakeup = Literal["auto", "notify", "poll"]

POLL: Final = 0.005
"""Seconds between two reads while awake."""
SLOW_POLL: Final = 1.0
"""Seconds after which a sleeper reads all the same."""
ALIVE: Final = 5.0
"""Seconds after which a connection that does not answer counts as lost."""
CANDIDACY: Final = 1.0
"""Seconds between two attempts to become the pacemaker."""
READ: Final = 300.0
"""Seconds after which a read that has not answered counts as lost."""
SLOW_CONSUMER: Final = 0.020
"""Seconds after which a consumer that has not come back must not keep writers silent."""

_log = logging.getLogger("forge.follow")


async def follow(
    url: str,
    *,
    after: Cursor | None = None,
    tables: Collection[str] | None = None,
    wakeup: Wakeup = "auto",
    durable: bool = True,
    on_open: Callable[[bool], None] | None = None,
    on_read: Callable[[Cursor, str], None] | None = None,
) -> AsyncGenerator[Batch]:
    """Every change committed after the cursor (or from now on), in order, batch by batch, for ever.

    With `durable` a batch is yielded only when no crash can take it back. Without it changes come a little
    earlier, and after a crash of the server those that were not on disk may come again.

    `on_open` is called whenever the log is followed, at first and after each lost connection, from a cursor that is
    fixed by then; with True when the server was restarted, so what was not on disk may be gone. `on_read` is called
    after every read, when what it found has been handled, be it nothing: with where that leads to, and which start of
    the server it is.
    """
    cursor, kept = after, after
    started: object = None
    backoff, closing = Backoff(), Closing()
    while True:
        try:
            async with AsyncExitStack() as stack:
                node = await Node.open(stack, url, wakeup)
                restarted = started is not None and started != node.started
                if restarted and not durable:
                    cursor = kept
                started = node.started
                if cursor is None:
                    cursor = kept = await node.reader.now()
                if on_open is not None:
                    on_open(restarted)
                async with aclosing(node.batches(cursor, tables, durable)) as batches:
                    async for batch in batches:
                        cursor = batch.cursor
                        if batch.flushed:
                            kept = batch.cursor
                        backoff.reset()
                        if batch.changes:
                            node.handing_over()
                            try:
                                with closing:
                                    yield batch
                            finally:
                                node.handed_over()
                        if on_read is not None:
                            on_read(cursor, _text_of(started))
        except (
            psycopg.OperationalError,
            psycopg.InterfaceError,
            ServerError,
            OSError,
            TimeoutError,
        ) as error:
            if closing.ends(error):
                return
            if started is None and not await asyncio.to_thread(rejecting, url):
                raise _unreached(error) from error  # the very first connection: a person wants to know, not to wait
            delay = backoff.next()
            _log.warning("lost the log, trying again in %.2f s: %s", delay, one_line(error))
            await asyncio.sleep(delay)
        except psycopg.ProgrammingError as error:  # Forge itself is gone from the database
            raise translate(error) or error from error


def _unreached(error: Exception) -> Exception:
    """Why there was no first connection; that the server ended it while it was made is a reason too."""
    if not isinstance(error, psycopg.Error):
        return error
    return translate(error) or ServerError(f"the server ended the connection: {one_line(error)}", fix="try again soon")


def _text_of(started: object) -> str:
    return " ".join(map(str, started)) if isinstance(started, tuple) else str(started)


class Node:
    """The connections of one follower, and the state of its wake-up."""

    def __init__(self, reader: Reader, ears: "Ears", pace: "Pace | None", wakeup: Wakeup, started: object) -> None:
        self.reader = reader
        self.started = started
        self._ears = ears
        self._pace = pace
        self._wakeup = wakeup
        self._letting_go: asyncio.TimerHandle | None = None
        self._let_go = False
        self._leading = False
        self._silenced = False

    @classmethod
    async def open(cls, stack: AsyncExitStack, url: str, wakeup: Wakeup) -> "Node":
        """Connect; listening begins before anything is read."""

        async def connected() -> AsyncConnection:
            connection = await connect_async(url)
            stack.push_async_callback(connection.close)
            return connection

        ears = await stack.enter_async_context(Ears(await connected()))
        reader = await Reader.over(ears.vouch(await connected()))
        ears.ignore(reader.connection.info.backend_pid)
        row = await (await reader.connection.execute(query("started"))).fetchone()
        pace = None if wakeup == "notify" else await stack.enter_async_context(Pace(ears.vouch(await connected())))
        return cls(reader, ears, pace, wakeup, row)

    def handing_over(self) -> None:
        """A batch goes to the consumer; if it is slow, writers must wake the other nodes by themselves."""
        if self._pace is not None and self._pace.asked:
            self._letting_go = asyncio.get_running_loop().call_later(SLOW_CONSUMER, self._give_up)

    def handed_over(self) -> None:
        """The consumer is back."""
        if self._letting_go is not None:
            self._letting_go.cancel()
            self._letting_go = None

    def _give_up(self) -> None:
        self._let_go = True
        if self._pace is not None:
            self._pace.let_go()

    async def batches(self, cursor: Cursor, tables: Collection[str] | None, durable: bool) -> AsyncGenerator[Batch]:
        """Every batch after the cursor, empty ones too, for as long as the connections live."""
        protocol: Protocol = listener()
        answer: int | bool | None = None
        step = next(protocol)
        pause = POLL
        candidate_at = 0.0
        while True:
            answer = None
            if step is Step.READ:
                found = 0
                asked = self._pace is not None and self._pace.asked
                # writers are silent while K is held or asked for, and this read may be the first to find them
                silenced, self._silenced = asked or self._silenced, asked
                async with aclosing(self._read(cursor, None if self._leading else tables, durable)) as reading:
                    async for batch in reading:
                        if batch.changes and silenced and not found:
                            await self.reader.connection.execute("SELECT pg_notify(%s, '')", (CHANNEL,))
                        found += len(batch.changes)
                        cursor = batch.cursor
                        yield _only(tables, batch) if self._leading else batch
                answer = None if self._let_go else found
                self._let_go = False
                pause = POLL if found else min(pause * 1.1, 4 * POLL)
            elif step is Step.SLEEP:
                answer = await self._ears.heard(SLOW_POLL)
                if self._leading or self._pace is None or time.monotonic() < candidate_at:
                    pass
                elif not await self._pace.lead():
                    candidate_at = time.monotonic() + CANDIDACY
                else:
                    self._leading = True
                    protocol = pacemaker(Load(time.monotonic), always=self._wakeup == "poll")
                    step = next(protocol)
                    continue
            elif step is Step.PAUSE:
                await asyncio.sleep(pause)
            elif step is Step.WRITERS:
                row = await (await self.reader.connection.execute(query("writers"))).fetchone()
                answer = row == (True,)
            elif self._pace is not None:
                await (self._pace.hold() if step is Step.HOLD else self._pace.release())
            step = protocol.send(answer)

    async def _read(self, cursor: Cursor, tables: Collection[str] | None, durable: bool) -> AsyncGenerator[Batch]:
        self._ears.check()
        if self._pace is not None:
            self._pace.check()
        async with aclosing(self.reader.read(cursor, tables=tables)) as reading:
            while (batch := await self._next(reading)) is not None:
                if durable and not batch.flushed:
                    if not batch.changes and cursor.last is None:
                        return  # not worth a flush: the next read begins where this one did
                    await self.reader.flushed(batch.lsn)
                    batch = msgspec.structs.replace(batch, flushed=True)
                yield batch

    async def _next(self, reading: AsyncGenerator[Batch]) -> Batch | None:
        with answering(self.reader.connection, READ):
            return await anext(reading, None)


def _only(tables: Collection[str] | None, batch: Batch) -> Batch:
    """The changes of these tables: the pacemaker reads them all, because it must tell the other nodes of each."""
    if tables is None or not batch.changes:
        return batch
    pairs = zip(batch.changes, batch.columns, strict=True)
    wanted = [(c, columns) for c, columns in pairs if c.table in tables or f"{c.schema}.{c.table}" in tables]
    return msgspec.structs.replace(
        batch, changes=[change for change, _ in wanted], columns=[columns for _, columns in wanted]
    )


class Ears:
    """A connection that does nothing but listen, and notices when nobody is at the other end.

    It vouches for others to the same server: when it ends they are ended, so whoever waits for one gets an error.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._others: list[AsyncConnection] = []
        self._heard = asyncio.Event()
        self._own = 0

    async def __aenter__(self) -> "Ears":
        try:
            with answering(self._connection, ALIVE):
                await self._connection.execute(f"LISTEN {CHANNEL}")
        except psycopg.errors.ReadOnlySqlTransaction:
            raise ServerError(
                "this server is a standby; the log can be read on a primary only", fix="connect to the primary"
            ) from None
        self._task: asyncio.Task[None] = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def vouch(self, connection: AsyncConnection) -> AsyncConnection:
        """End this connection too when this one ends."""
        self._others.append(connection)
        if self._task.done():
            hang_up(connection)
        return connection

    def ignore(self, pid: int) -> None:
        """Do not wake for what this backend sends."""
        self._own = pid

    async def _listen(self) -> None:
        try:
            while True:
                async for notify in self._connection.notifies(timeout=ALIVE):
                    if notify.pid != self._own:
                        self._heard.set()
                with answering(self._connection, ALIVE):
                    await self._connection.execute("SELECT 1")
        finally:
            self._heard.set()
            for other in self._others:
                hang_up(other)

    def check(self) -> None:
        """Raise if listening has ended; forget what was heard before a read that will find it."""
        self._heard.clear()
        _raise_if_ended(self._task)

    async def heard(self, timeout: float) -> bool:
        """Wait for a NOTIFY; false when none came in time."""
        try:
            async with asyncio.timeout(timeout):  # before Python 3.12 wait_for may swallow a cancellation
                await self._heard.wait()
        except TimeoutError:
            return False
        return True


class Pace:
    """The session that holds the pacemaker's locks. It is pinged every second; hung for five, the server ends it.

    A request for K is given up by the server after a while and then repeated, so that it does not outlive its node.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._asking: asyncio.Task[None] | None = None
        self._waiting = False
        self._background: set[asyncio.Task[None]] = set()
        self._busy = asyncio.Lock()
        self._giving = asyncio.Lock()

    async def __aenter__(self) -> "Pace":
        await self._connection.execute("SET idle_session_timeout = '5s'")
        await self._connection.execute("SET lock_timeout = '5s'")
        self._pinging = asyncio.create_task(self._ping())
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            with suppress(psycopg.Error):
                await self.release()
        finally:
            hang_up(self._connection)
            tasks = [self._pinging, *self._background, *([self._asking] if self._asking else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def asked(self) -> bool:
        """Whether K is held or asked for."""
        return self._asking is not None

    def check(self) -> None:
        """Raise if the session is lost."""
        _raise_if_ended(self._pinging)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            async with self._busy:
                with answering(self._connection, ALIVE):
                    await self._connection.execute("SELECT 1")

    async def lead(self) -> bool:
        """Try to become the pacemaker."""
        async with self._busy:
            cursor = await self._connection.execute("SELECT pg_try_advisory_lock(%s)", (locks.PACE,))
            return await cursor.fetchone() == (True,)

    async def hold(self) -> None:
        """Ask for K in the background."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        async with self._busy:
            self._waiting = True
            try:
                while True:
                    with suppress(psycopg.errors.LockNotAvailable):
                        await self._connection.execute("SELECT pg_advisory_lock(%s)", (locks.WAKE,))
                        return
            finally:
                self._waiting = False

    async def release(self) -> None:
        """Give K up. When this returns no writer can find it taken."""
        async with self._giving:
            asking = self._asking
            if asking is None:
                return
            while not asking.done():
                if self._waiting:
                    await self._connection.cancel_safe(timeout=ALIVE)
                else:
                    asking.cancel()
                await asyncio.wait({asking}, timeout=0.1)
            if not asking.cancelled():
                asking.exception()
            async with self._busy:
                await self._connection.execute("SELECT pg_advisory_unlock(%s)", (locks.WAKE,))
            self._asking = None

    def let_go(self) -> None:
        """As `release`, in the background."""
        task = asyncio.create_task(self.release())
        self._background.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            hang_up(self._connection)


def _raise_if_ended(task: asyncio.Task[None]) -> None:
    if task.done():
        raise (None if task.cancelled() else task.exception()) or psycopg.OperationalError("a connection ended")
