"""Following the log from tests: in a task of this process, or in a process of its own that can be killed.

`python -m tests.changelog.following URL CURSOR WAKEUP` prints the id and the key of each change on a line.
"""

import asyncio
import inspect
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forge.change import Change
from forge.changelog import partitions
from forge.changelog.follow import Wakeup, follow
from forge.changelog.maintenance import Policy, run_once
from forge.changelog.reader import Batch, Reader
from forge.cursor import Cursor, Position
from forge.postgres import locks
from forge.postgres.connection import AsyncConnection, Connection, connect, connect_async

LONG = 30.0
"""Seconds that a condition may take to come true where nothing promises that it is faster."""


async def eventually(condition: Callable[[], bool | Awaitable[bool]], timeout: float = LONG) -> None:
    """Return as soon as the condition holds; it must before the deadline."""
    deadline = time.monotonic() + timeout
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


async def now(url: str) -> Cursor:
    """After everything that is committed."""
    async with Reader.open(url) as reader:
        return await reader.now()


async def batches(reader: Reader, after: Cursor, tables: Collection[str] | None = None) -> list[Batch]:
    """All that was committed after the cursor, batch by batch."""
    return [batch async for batch in reader.read(after, tables=tables)]


async def changes(reader: Reader, after: Cursor, tables: Collection[str] | None = None) -> list[Change]:
    """All that was committed after the cursor."""
    return [change for batch in await batches(reader, after, tables) for change in batch.changes]


async def trim_all(url: str, connection: Connection) -> None:
    """Have all that is in the log trimmed, as if it had been written forty days ago."""
    day = datetime.now(UTC).date() - timedelta(days=40)
    partitions.make(connection, day)
    connection.execute("UPDATE forge.forge_event_log SET day = %s, at = at - interval '40 days'", (day,))
    report = await asyncio.to_thread(run_once, url, Policy())
    assert (report.dropped, report.problems) == ([partitions.partition_name(day)], [])
    assert connection.execute("SELECT count(*) FROM forge.forge_event_log").fetchone() == (0,)


def between(old: Cursor, new: Cursor) -> Cursor:
    """A cursor from which is read what lies between two others, and nothing more."""
    return Cursor(old.log, old.snapshot, new.snapshot, Position(0, 0))


def track(connection: Connection, table: str) -> None:
    """Track a table, in a log that knows that it is a copy of the template's."""
    connection.execute("SELECT forge.current_identity()")
    connection.execute("SELECT forge_enable_reactivity(%s)", (table,))


def orders(connection: Connection) -> None:
    """A tracked table."""
    connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, note text)")
    track(connection, "orders")


def add(connection: Connection, *ids: int) -> None:
    """Insert orders, each in a transaction of its own when the connection is in autocommit mode."""
    for id in ids:
        connection.execute("INSERT INTO orders VALUES (%s, 'new')", (id,))


def keys(found: list[Change]) -> list[Any]:
    """The keys of the changes, in their order."""
    return [change.key["id"] if change.key else None for change in found]


class Follower:
    """Follows in a task and keeps what it is given. After the block it has ended, and has not failed."""

    def __init__(
        self,
        url: str,
        after: Cursor | None,
        *,
        wakeup: Wakeup = "auto",
        tables: Collection[str] | None = None,
        durable: bool = True,
        each: Callable[[Batch], Awaitable[None]] | None = None,
    ) -> None:
        self._stream = follow(url, after=after, tables=tables, wakeup=wakeup, durable=durable)
        self._each = each
        self.batches: list[Batch] = []
        self.times: list[float] = []

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.task.done() and error is None:
            self.task.result()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _run(self) -> None:
        async with aclosing(self._stream) as stream:
            async for batch in stream:
                self.batches.append(batch)
                self.times.append(time.monotonic())
                if self._each is not None:
                    await self._each(batch)

    @property
    def changes(self) -> list[Change]:
        """All that it was given so far."""
        return [change for batch in self.batches for change in batch.changes]

    @property
    def keys(self) -> list[Any]:
        """The keys of all that it was given so far."""
        return keys(self.changes)

    async def got(self, count: int, timeout: float = LONG) -> list[Any]:
        """The keys, once there are that many."""
        await eventually(lambda: self.task.done() or len(self.changes) >= count, timeout)
        if self.task.done():
            self.task.result()
        return self.keys


class Process:
    """A follower that is a process. What it printed can be asked for at any time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(line.decode().strip())

    @property
    def keys(self) -> list[int]:
        """The keys of the changes that it printed."""
        return [int(line.split()[1]) for line in self.lines]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it."""
        self._process.send_signal(number)

    async def ended(self) -> None:
        """Return when it is gone and all that it printed has been read."""
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def following_process(url: str, after: Cursor, wakeup: Wakeup = "auto") -> AsyncIterator[Process]:
    """A process that follows, gone after the block."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.changelog.following", url, str(after), wakeup),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    process = Process(started)
    try:
        yield process
    finally:
        if started.returncode is None:
            started.kill()
        await process.ended()


class Locks:
    """Who holds or awaits the pacemaker's locks, as a look into the server says."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _pids(self, key: int, granted: bool) -> list[int]:
        rows = self._connection.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted = %s"
            " AND classid = %s AND objid = %s"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            (granted, key >> 32, key & 0xFFFFFFFF),
        ).fetchall()
        return [pid for (pid,) in rows]

    @property
    def leader(self) -> int | None:
        """The session of the pacemaker."""
        return next(iter(self._pids(locks.PACE, True)), None)

    @property
    def awake(self) -> int | None:
        """The session that holds K."""
        return next(iter(self._pids(locks.WAKE, True)), None)

    @property
    def waiting(self) -> list[int]:
        """The sessions that wait for K."""
        return self._pids(locks.WAKE, False)

    def sessions(self) -> int:
        """How many connections there are to the database, but for this one."""
        row = self._connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        ).fetchone()
        assert row is not None
        return int(row[0])


@asynccontextmanager
async def hearing(url: str) -> AsyncIterator[list[tuple[int, str]]]:
    """The sender's pid and the payload of every NOTIFY of the wake-up, as they come."""
    heard: list[tuple[int, str]] = []

    async def listen(connection: AsyncConnection) -> None:
        async for notify in connection.notifies():
            heard.append((notify.pid, notify.payload))

    async with await connect_async(url) as connection:
        await connection.execute("LISTEN forge_changes")
        listening = asyncio.create_task(listen(connection))
        try:
            yield heard
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def _main(url: str, after: str, wakeup: Wakeup) -> None:
    async with aclosing(follow(url, after=Cursor.parse(after), wakeup=wakeup)) as stream:
        async for batch in stream:
            for change in batch.changes:
                print(change.id, change.key["id"] if change.key else "*", flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], sys.argv[3]))  # type: ignore[arg-type]
