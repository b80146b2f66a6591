"""Follow the log without end: read from a cursor, woken by the protocol of `forge.changelog.wakeup`.

`follow` keeps three connections: one reads, one listens, one holds the pacemaker's locks. If a connection fails, it
reconnects and continues from its cursor, so what it yields has no gap and no duplicate. It raises only when it cannot
continue correctly: CursorExpired, CursorForeign, NotInstalled when Forge was removed from the database, DecodeError
when a logged row is malformed; and ServerError when the very first connection fails, unless the server reports that it
is starting up or shutting down.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, Final, Literal

import msgspec
import psycopg

from forge.changelog.queries import query
from forge.changelog.reader import Batch, Reader
from forge.changelog.wakeup import CHANNEL, Load, Protocol, WakeupStep, listener, pacemaker
from forge.cursor import Cursor
from forge.errors import ServerError, one_line
from forge.generator_close import Closing
from forge.postgres import locks
from forge.postgres.connection import AsyncConnection, answering, connect_async, hang_up, rejecting, translate
from forge.postgres.held_session import LOST, AsyncHeldSession, Reconnect

Wakeup = Literal["auto", "notify", "poll"]

POLL: Final = 0.005
"""Seconds between two reads while awake."""
SLOW_POLL: Final = 1.0
"""Seconds after which a sleeping follower reads even without a NOTIFY."""
ALIVE: Final = 5.0
"""Seconds after which a connection that does not answer counts as lost."""
PING: Final = 1.0
"""Seconds between two pings of the session that holds the pacemaker's locks."""
CANDIDACY: Final = 1.0
"""Seconds between two attempts to become the pacemaker."""
READ: Final = 300.0
"""Seconds after which a read without an answer counts as lost."""
SLOW_CONSUMER: Final = 0.020
"""Seconds a consumer may take before writers must send NOTIFY again."""

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
    """Yield every change committed after the cursor (or from now on), in order, batch by batch, without end.

    With `durable` a batch is yielded only when no crash can undo it. Without it changes arrive a little earlier, and
    after a crash of the server changes that were not on disk may arrive again.

    `on_open` is called each time following starts, at first and after each lost connection, when the cursor to start
    from is fixed. Its argument is True if the server was restarted, so changes that were not on disk may be lost.
    `on_read` is called after every read, even an empty one, when its changes have been handled; its arguments are the
    cursor reached and the start of the server that it belongs to.
    """
    cursor, kept = after, after
    started: object = None
    reconnect, closing = Reconnect(_log, "the log"), Closing()
    while True:
        try:
            async with AsyncExitStack() as stack:
                node = await Follower.open(stack, url, wakeup)
                restarted = started is not None and started != node.started
                if restarted and not durable:
                    cursor = kept
                started = node.started
                reconnect.opened()
                if cursor is None:
                    cursor = kept = await node.reader.now()
                if on_open is not None:
                    on_open(restarted)
                async with aclosing(node.batches(cursor, tables, durable)) as batches:
                    async for batch in batches:
                        cursor = batch.cursor
                        if batch.flushed:
                            kept = batch.cursor
                        reconnect.works()
                        if batch.changes:
                            node.handing_over()
                            try:
                                with closing:
                                    yield batch
                            finally:
                                node.handed_over()
                        if on_read is not None:
                            on_read(cursor, _text_of(started))
        except LOST as error:
            if closing.ends(error):
                return
            if not reconnect.connected:
                if not await asyncio.to_thread(rejecting, url):
                    raise _unreached(error) from error  # report the error instead of waiting
                reconnect.opened()  # the server is there, but starting up or shutting down
            await asyncio.sleep(reconnect.failed(error))
        except psycopg.ProgrammingError as error:  # Forge was removed from the database
            raise translate(error) or error from error


def _unreached(error: Exception) -> Exception:
    """Return the reason why the first connection failed; the server may also have closed it while connecting."""
    if not isinstance(error, psycopg.Error):
        return error
    return translate(error) or ServerError(f"the server ended the connection: {one_line(error)}", fix="try again soon")


def _text_of(started: object) -> str:
    return " ".join(map(str, started)) if isinstance(started, tuple) else str(started)


class Follower:
    """The connections of one follower and its wake-up state."""

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
    async def open(cls, stack: AsyncExitStack, url: str, wakeup: Wakeup) -> "Follower":
        """Connect; listening starts before anything is read."""

        async def held(name: str, **more: Any) -> AsyncHeldSession:
            return await stack.enter_async_context(await AsyncHeldSession.open(url, name, answer=ALIVE, **more))

        ears = await stack.enter_async_context(Ears(await held("forge")))
        connection = await stack.enter_async_context(await connect_async(url))
        reader = await Reader.over(ears.vouch(connection))
        ears.ignore(reader.connection.info.backend_pid)
        row = await (await reader.connection.execute(query("started"))).fetchone()
        pace = None
        if wakeup != "notify":
            session = await held("forge", silence=ALIVE, settings={"lock_timeout": f"{ALIVE:.0f}s"})
            ears.vouch(session.connection)
            pace = await stack.enter_async_context(Pace(session))
        return cls(reader, ears, pace, wakeup, row)

    def handing_over(self) -> None:
        """Note that the consumer has a batch; if it is slow, writers must wake the other nodes themselves."""
        if self._pace is not None and self._pace.asked:
            self._letting_go = asyncio.get_running_loop().call_later(SLOW_CONSUMER, self._give_up)

    def handed_over(self) -> None:
        """Note that the consumer is done with the batch."""
        if self._letting_go is not None:
            self._letting_go.cancel()
            self._letting_go = None

    def _give_up(self) -> None:
        self._let_go = True
        if self._pace is not None:
            self._pace.let_go()

    async def batches(self, cursor: Cursor, tables: Collection[str] | None, durable: bool) -> AsyncGenerator[Batch]:
        """Yield every batch after the cursor, including empty ones, until a connection is lost."""
        protocol: Protocol = listener()
        answer: int | bool | None = None
        step = next(protocol)
        pause = POLL
        candidate_at = 0.0
        while True:
            answer = None
            if step is WakeupStep.READ:
                found = 0
                asked = self._pace is not None and self._pace.asked
                # writers are silent while K is held or requested, and this read may be the first to find their changes
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
            elif step is WakeupStep.SLEEP:
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
            elif step is WakeupStep.PAUSE:
                await asyncio.sleep(pause)
            elif step is WakeupStep.WRITERS:
                row = await (await self.reader.connection.execute(query("writers"))).fetchone()
                answer = row == (True,)
            elif self._pace is not None:
                await (self._pace.hold() if step is WakeupStep.HOLD else self._pace.release())
            step = protocol.send(answer)

    async def _read(self, cursor: Cursor, tables: Collection[str] | None, durable: bool) -> AsyncGenerator[Batch]:
        self._ears.check()
        if self._pace is not None:
            self._pace.check()
        async with aclosing(self.reader.read(cursor, tables=tables)) as reading:
            while (batch := await self._next(reading)) is not None:
                if durable and not batch.flushed:
                    if not batch.changes and cursor.last is None:
                        return  # not worth a flush: the next read starts at the same cursor
                    await self.reader.flushed(batch.lsn)
                    batch = msgspec.structs.replace(batch, flushed=True)
                yield batch

    async def _next(self, reading: AsyncGenerator[Batch]) -> Batch | None:
        with answering(self.reader.connection, READ):
            return await anext(reading, None)


def _only(tables: Collection[str] | None, batch: Batch) -> Batch:
    """Keep the changes of these tables. The pacemaker reads all tables, because it must notify the other nodes."""
    if tables is None or not batch.changes:
        return batch
    pairs = zip(batch.changes, batch.columns, strict=True)
    wanted = [(c, columns) for c, columns in pairs if c.table in tables or f"{c.schema}.{c.table}" in tables]
    return msgspec.structs.replace(
        batch, changes=[change for change, _ in wanted], columns=[columns for _, columns in wanted]
    )


class Ears:
    """A connection that only listens, and detects when the server is gone.

    It guards other connections to the same server: when it ends, they are closed too, so their waiters get an error.
    """

    def __init__(self, session: AsyncHeldSession) -> None:
        self._session = session
        self._others: list[AsyncConnection] = []
        self._heard = asyncio.Event()
        self._own = 0

    async def __aenter__(self) -> "Ears":
        try:
            await self._session.listen(CHANNEL)
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
        """Close the given connection too when this one ends."""
        self._others.append(connection)
        if self._task.done():
            hang_up(connection)
        return connection

    def ignore(self, pid: int) -> None:
        """Ignore notifications from this backend."""
        self._own = pid

    async def _listen(self) -> None:
        try:
            while True:
                notifications = await self._session.heard(ALIVE)
                if any(notification.pid != self._own for notification in notifications):
                    self._heard.set()
                if not notifications:
                    await self._session.ping()
        finally:
            self._heard.set()
            for other in self._others:
                hang_up(other)

    def check(self) -> None:
        """Raise if listening has ended; forget earlier notifications, whose changes the next read finds."""
        self._heard.clear()
        _raise_if_ended(self._task)

    async def heard(self, timeout: float) -> bool:
        """Wait for a NOTIFY; return False on timeout."""
        try:
            async with asyncio.timeout(timeout):  # before Python 3.12 wait_for may swallow a cancellation
                await self._heard.wait()
        except TimeoutError:
            return False
        return True


class Pace:
    """The session that holds the pacemaker's locks. It is pinged every second; the server ends it after 5 s of silence.

    The server cancels a request for K after a while and it is then repeated, so it does not outlive its node.
    """

    def __init__(self, session: AsyncHeldSession) -> None:
        self._session = session
        self._asking: asyncio.Task[None] | None = None
        self._waiting = False
        self._background: set[asyncio.Task[None]] = set()
        self._giving = asyncio.Lock()

    async def __aenter__(self) -> "Pace":
        self._pinging = asyncio.create_task(self._session.keep_alive(PING))
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            with suppress(psycopg.Error):
                await self.release()
        finally:
            self._session.hang_up()
            tasks = [self._pinging, *self._background, *([self._asking] if self._asking else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def asked(self) -> bool:
        """Tell whether K is held or requested."""
        return self._asking is not None

    def check(self) -> None:
        """Raise if the session is lost."""
        _raise_if_ended(self._pinging)

    async def lead(self) -> bool:
        """Try to become the pacemaker."""
        return await self._session.ask("SELECT pg_try_advisory_lock(%(lock)s)", {"lock": locks.PACE}) == [(True,)]

    async def hold(self) -> None:
        """Request K in the background."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        async with self._session.turn:
            self._waiting = True
            try:
                while True:
                    with suppress(psycopg.errors.LockNotAvailable):
                        await self._session.ask_in_turn(
                            "SELECT pg_advisory_lock(%(lock)s)", {"lock": locks.WAKE}, answer=2 * ALIVE
                        )
                        return
            finally:
                self._waiting = False

    async def release(self) -> None:
        """Release K. When this returns, no writer can find it taken."""
        async with self._giving:
            asking = self._asking
            if asking is None:
                return
            while not asking.done():
                if self._waiting:
                    await self._session.connection.cancel_safe(timeout=ALIVE)
                else:
                    asking.cancel()
                await asyncio.wait({asking}, timeout=0.1)
            if not asking.cancelled():
                asking.exception()
            await self._session.ask("SELECT pg_advisory_unlock(%(lock)s)", {"lock": locks.WAKE})
            self._asking = None

    def let_go(self) -> None:
        """Do the same as `release`, in the background."""
        task = asyncio.create_task(self.release())
        self._background.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._session.hang_up()


def _raise_if_ended(task: asyncio.Task[None]) -> None:
    if task.done():
        raise (None if task.cancelled() else task.exception()) or psycopg.OperationalError("a connection ended")
