"""Following the log for ever: reading from a cursor, woken as `forge.changelog.wakeup` says.

`follow` keeps three connections: one reads, one listens, one holds the pacemaker's locks. Whatever happens to
them, it connects again and goes on from its cursor, so what it yields has no gap and no duplicate. It raises only
when going on would be a lie: the cursor expired, or belongs to another log.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Collection
from contextlib import AsyncExitStack, aclosing
from typing import Final, Literal

import msgspec
import psycopg

from forge.changelog.connection import AsyncConnection, connect_async, translate
from forge.changelog.queries import query
from forge.changelog.reader import Batch, Reader
from forge.changelog.wakeup import CHANNEL, PACE_LOCK, WAKE_LOCK, Load, Protocol, Step, listener, pacemaker
from forge.cursor import Cursor
from forge.errors import NotInstalled, ServerError

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
) -> AsyncGenerator[Batch]:
    """Every change committed after the cursor (or from now on), in order, batch by batch, for ever.

    With `durable` a batch is yielded only when no crash can take it back. Without it changes come a little
    earlier, and after a crash of the server those that were not on disk may come again.
    """
    cursor, kept = after, after
    started: object = None
    tries = 0
    while True:
        try:
            async with AsyncExitStack() as stack:
                node = await Node.open(stack, url, wakeup)
                if started is not None and started != node.started and not durable:
                    cursor = kept
                started = node.started
                if cursor is None:
                    cursor = kept = await node.reader.now()
                async with aclosing(node.batches(cursor, tables, durable)) as batches:
                    async for batch in batches:
                        cursor = batch.cursor
                        if batch.flushed:
                            kept = batch.cursor
                        tries = 0
                        if batch.changes:
                            node.handing_over()
                            yield batch
                            node.handed_over()
        except (
            psycopg.OperationalError,
            psycopg.InterfaceError,
            ServerError,
            OSError,
            TimeoutError,
        ) as error:
            if tries == 0 and started is None:
                _refuse_hopeless(error)
            tries += 1
            delay = min(5.0, 0.05 * 2 ** min(tries, 7)) * random.uniform(0.5, 1.0)
            _log.warning("lost the log, trying again in %.2f s: %s", delay, str(error).splitlines()[0])
            await asyncio.sleep(delay)


def _refuse_hopeless(error: Exception) -> None:
    """The very first connection fails: a person wants to know rather than wait."""
    if isinstance(error, ServerError | NotInstalled):
        raise error
    if isinstance(error, psycopg.Error) and (typed := translate(error)) is not None:
        raise typed from error
    raise error


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

    @classmethod
    async def open(cls, stack: AsyncExitStack, url: str, wakeup: Wakeup) -> "Node":
        """Connect; listening begins before anything is read."""

        async def connected() -> AsyncConnection:
            connection = await connect_async(url)
            stack.push_async_callback(connection.close)
            return connection

        ears = await stack.enter_async_context(Ears(await connected()))
        reader = await Reader.over(await connected())
        ears.ignore(reader.connection.info.backend_pid)
        row = await (await reader.connection.execute("SELECT pg_postmaster_start_time()")).fetchone()
        pace = None if wakeup == "notify" else await stack.enter_async_context(Pace(await connected()))
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
        leading = False
        protocol: Protocol = listener()
        answer: int | bool | None = None
        step = next(protocol)
        pause = POLL
        candidate_at = 0.0
        while True:
            answer = None
            if step is Step.READ:
                found, before = 0, cursor
                async with aclosing(self._read(cursor, tables, durable)) as reading:
                    async for batch in reading:
                        found += len(batch.changes)
                        cursor = batch.cursor
                        yield batch
                # writers are silent while K is held or asked for: the other nodes hear it from here, what they read too
                news = found if tables is None else cursor.snapshot != before.snapshot
                if news and self._pace is not None and self._pace.asked:
                    await self.reader.connection.execute("SELECT pg_notify(%s, '')", (CHANNEL,))
                answer = None if self._let_go else found
                self._let_go = False
                pause = POLL if found else min(pause * 1.1, 4 * POLL)
            elif step is Step.SLEEP:
                answer = await self._ears.heard(SLOW_POLL)
                if leading or self._pace is None or time.monotonic() < candidate_at:
                    pass
                elif not await self._pace.lead():
                    candidate_at = time.monotonic() + CANDIDACY
                else:
                    leading = True
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
            while (batch := await self._ears.unless_deaf(anext(reading, None))) is not None:
                if durable and not batch.flushed:
                    await self.reader.flushed(batch.lsn)
                    batch = msgspec.structs.replace(batch, flushed=True)
                yield batch


class Ears:
    """A connection that does nothing but listen, and notices when nobody is at the other end."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._heard = asyncio.Event()
        self._own = 0

    async def __aenter__(self) -> "Ears":
        await self._connection.execute(f"LISTEN {CHANNEL}")
        self._task: asyncio.Task[None] = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def ignore(self, pid: int) -> None:
        """Do not wake for what this backend sends."""
        self._own = pid

    async def _listen(self) -> None:
        try:
            while True:
                async for notify in self._connection.notifies(timeout=ALIVE):
                    if notify.pid != self._own:
                        self._heard.set()
                await asyncio.wait_for(self._connection.execute("SELECT 1"), ALIVE)
        finally:
            self._heard.set()

    def check(self) -> None:
        """Raise if listening has ended; forget what was heard before a read that will find it."""
        self._heard.clear()
        _raise_if_ended(self._task)

    async def heard(self, timeout: float) -> bool:
        """Wait for a NOTIFY; false when none came in time."""
        try:
            await asyncio.wait_for(self._heard.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def unless_deaf(self, reading: Awaitable[Batch | None]) -> Batch | None:
        """The outcome of a read, unless the line turns out to be dead meanwhile."""
        task = asyncio.ensure_future(reading)
        try:
            await asyncio.wait({task, self._task}, timeout=READ, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                _raise_if_ended(self._task)
                raise TimeoutError("the log does not answer")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class Pace:
    """The session that holds the pacemaker's locks. It is pinged every second; hung for five, the server ends it."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._asking: asyncio.Task[None] | None = None
        self._pinging = asyncio.create_task(self._ping())
        self._background: set[asyncio.Task[None]] = set()
        self._busy = asyncio.Lock()
        self._giving = asyncio.Lock()

    async def __aenter__(self) -> "Pace":
        async with self._busy:
            await self._connection.execute("SET idle_session_timeout = '5s'")
        return self

    async def __aexit__(self, *_: object) -> None:
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
                await asyncio.wait_for(self._connection.execute("SELECT 1"), ALIVE)

    async def lead(self) -> bool:
        """Try to become the pacemaker."""
        async with self._busy:
            cursor = await self._connection.execute("SELECT pg_try_advisory_lock(%s)", (PACE_LOCK,))
            return await cursor.fetchone() == (True,)

    async def hold(self) -> None:
        """Ask for K in the background."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        async with self._busy:
            await self._connection.execute("SELECT pg_advisory_lock(%s)", (WAKE_LOCK,))

    async def release(self) -> None:
        """Give K up. When this returns no writer can find it taken."""
        async with self._giving:
            asking = self._asking
            if asking is None:
                return
            if not asking.done():
                await self._connection.cancel_safe(timeout=ALIVE)
            await asyncio.gather(asking, return_exceptions=True)
            async with self._busy:
                await self._connection.execute("SELECT pg_advisory_unlock(%s)", (WAKE_LOCK,))
            self._asking = None

    def let_go(self) -> None:
        """As `release`, in the background."""
        task = asyncio.create_task(self.release())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _raise_if_ended(task: asyncio.Task[None]) -> None:
    if task.done():
        raise (None if task.cancelled() else task.exception()) or psycopg.OperationalError("a connection ended")
