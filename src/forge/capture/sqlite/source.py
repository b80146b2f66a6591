"""The queue of a SQLite file as a source, kind `sqlite`. In: a URL and a filter. Out: batches.

SQLite blocks, so it runs in threads: one for each reader, one for everything else. A stream holds no lock and no
transaction while its consumer works. It detects commits of other connections by PRAGMA data_version, which costs
microseconds, every millisecond during activity and every 20 ms while idle.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from math import inf
from threading import Event, Lock
from time import monotonic
from typing import Final, Protocol, Self, TypeVar

from forge.backoff import Backoff
from forge.capture.capabilities import Capabilities
from forge.capture.filters import Filter
from forge.capture.source import SourceBatch, Status
from forge.capture.sqlite.cursor import KIND, SqliteCursor
from forge.capture.sqlite.file import PATIENCE, SqliteFile, may_pass
from forge.capture.sqlite.queue import LOOK_AROUND, Queue
from forge.capture.sqlite.snapshot import SqliteSnapshot
from forge.errors import CursorInvalid, SourceError

CAPABILITIES: Final = Capabilities(
    durable=True,
    replayable=False,
    retention="until it is acknowledged, by whichever consumer",
    other_processes=True,
    before="always",
    context=True,
    ordered=True,
    transactions=False,
    snapshots=True,
    truncates=False,
    schema_changes=True,
    filters=("tables",),
)
MANY: Final = 1_000_000
"""Number of unacknowledged rows that causes a warning."""

Result = TypeVar("Result")


class SqliteSource:
    """The queue of one file."""

    kind: Final = KIND
    capabilities: Final = CAPABILITIES

    def __init__(self, url: str, filter: Filter | None = None, *, patience: float = PATIENCE) -> None:
        self._file = SqliteFile(url, patience=patience)
        self._filter = filter or Filter()
        self._filter.check()
        self.name: Final = self._file.name
        self._entered = False
        self._beside: Queue | None = None
        self._using = Lock()

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._entered = False
        await asyncio.to_thread(self._close)

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield what is committed after the cursor, or from now on, without end."""
        cursor = None if after is None else _outside(after)
        stop = Event()
        async with _thread(stop) as run:
            follower = _Follower(self._file, self._filter, stop)
            try:
                cursor = await run(lambda: follower.begin(cursor))
                while True:
                    place = cursor
                    batch = await run(lambda: follower.next(place))  # noqa: B023
                    if batch is not None:
                        cursor = SqliteCursor.parse(batch.cursor)
                        yield batch
            finally:
                stop.set()
                await run(follower.close)

    async def until_now(self, after: str) -> AsyncGenerator[SourceBatch]:
        """Yield what is committed after the cursor and before this call."""
        cursor = _outside(after)
        async with _thread(Event()) as run:
            queue = await run(self._open)
            try:
                await run(queue.refresh)
                await run(queue.check_columns)
                end = await run(queue.head)
                await run(lambda: queue.check(cursor))
                while cursor.id < end.id:
                    place = cursor
                    batch = await run(lambda: queue.read(place))  # noqa: B023
                    if batch is None:
                        return
                    cursor = SqliteCursor.parse(batch.cursor)
                    yield batch
            finally:
                await run(queue.close)

    async def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield the rows of the tracked tables, then a batch that only moves the cursor out of the snapshot."""
        cursor = None if after is None else SqliteCursor.parse(after)
        if cursor is not None and cursor.place is None:
            raise CursorInvalid("the cursor does not stand inside a snapshot", fix="let stream() go on from it")
        async with _thread(Event()) as run:
            reading = await run(lambda: SqliteSnapshot(self._file, self._filter, cursor))
            try:
                inside = True
                while inside:
                    batch = await run(reading.next)
                    inside = "+" in batch.cursor
                    yield batch
            finally:
                await run(reading.close)

    async def now(self) -> str:
        """Return the cursor behind all that is committed."""
        return str(await self._once(Queue.head))

    async def start(self) -> str:
        """Return the cursor before all that is kept."""
        return str(await self._once(Queue.start))

    async def ack(self, cursor: str) -> None:
        """Remove what is before the cursor; if others keep the file locked, leave it to the next call."""
        parsed = SqliteCursor.parse(cursor)
        try:
            await self._once(lambda queue: queue.remove(parsed))
        except SourceError as error:
            if may_pass(error.__cause__) != inf:
                raise

    async def status(self) -> Status:
        """Return the status of the queue; `lag_changes` is the number of unacknowledged changes."""
        head, facts = await self._once(lambda queue: (queue.head(), queue.facts()))
        waiting = facts["waiting"]
        assert isinstance(waiting, int)
        return Status(
            kind=self.kind,
            name=self.name,
            capabilities=self.capabilities,
            position=str(head),
            lag_changes=waiting,
            in_feed=tuple(part for part in self._filter.parts if part in self.capabilities.filters),
            in_forge=tuple(part for part in self._filter.parts if part not in self.capabilities.filters),
            details=facts,
            warnings=tuple(_warnings(facts, waiting)),
        )

    def _open(self) -> Queue:
        return Queue(self._file, self._filter)

    async def _once(self, work: Callable[[Queue], Result]) -> Result:
        """Run work beside the reading, on a connection that stays open as long as the source."""

        def run() -> Result:
            with self._using:
                if self._beside is not None and not self._beside.is_same_file():
                    self._drop()
                queue = self._beside = self._beside or self._open()
                try:
                    return work(queue)
                except SourceError:
                    self._drop()
                    raise
                finally:
                    if not self._entered:
                        self._drop()

        return await asyncio.to_thread(run)

    def _close(self) -> None:
        with self._using:
            self._drop()

    def _drop(self) -> None:
        if self._beside is not None:
            self._beside.close()
            self._beside = None


class _Follower:
    """Reads without end, in a thread; opens the file again if it was replaced, and retries transient errors."""

    def __init__(self, file: SqliteFile, filter: Filter, stop: Event) -> None:
        self._file = file
        self._filter = filter
        self._stop = stop
        self._queue: Queue | None = None
        self._more = True
        self._failing_since: float | None = None
        self._backoff = Backoff(0.05, 2.0)

    def begin(self, after: SqliteCursor | None) -> SqliteCursor:
        """Open the file, and return where to start. Errors are raised at once here."""
        queue = self._open()
        queue.check_columns()
        if after is None:
            return queue.head()
        queue.check(after)
        return after

    def _open(self) -> Queue:
        queue = Queue(self._file, self._filter)
        self._queue = queue
        queue.moved()
        queue.refresh()
        self._more = True
        return queue

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def next(self, after: SqliteCursor) -> SourceBatch | None:
        """Return the next batch, or None if there is none within a second."""
        try:
            found = self._next(after)
        except SourceError as error:
            self._failed(error)
            return None
        self._failing_since = None
        self._backoff.reset()
        return found

    def _next(self, after: SqliteCursor) -> SourceBatch | None:
        queue = self._queue
        if queue is None:
            queue = self._open()
            queue.check(after)
        if not self._more:
            if not queue.wait(self._stop, LOOK_AROUND):
                if not self._stop.is_set() and not queue.is_same_file():
                    self.close()
                return None
            queue.refresh()
        batch = queue.read(after)
        self._more = batch is not None
        return batch

    def _failed(self, error: SourceError) -> None:
        """Wait a little before the next retry; raise a permanent error, or one that lasts too long."""
        now = monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since >= may_pass(error.__cause__):
            raise error
        self.close()
        self._stop.wait(self._backoff.next())


class _Run(Protocol):
    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]: ...


@asynccontextmanager
async def _thread(stop: Event) -> AsyncIterator[_Run]:
    """Run a thread that does one job after the other; when its user leaves, the running job is told to stop."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="forge-sqlite")
    loop = asyncio.get_running_loop()

    async def run(work: Callable[[], Result], /) -> Result:
        return await loop.run_in_executor(pool, work)

    try:
        yield run
    finally:
        stop.set()
        pool.shutdown(wait=False)


def _outside(text: str) -> SqliteCursor:
    cursor = SqliteCursor.parse(text)
    if cursor.place is not None:
        raise CursorInvalid("the cursor stands inside a snapshot", fix="let snapshot() go on from it first")
    return cursor


def _warnings(facts: dict[str, object], waiting: int) -> Iterator[str]:
    if not facts["tables"]:
        yield "no table is tracked: forge enable TABLE"
    if facts["journal_mode"] != "wal":
        yield "readers and writers wait for each other: PRAGMA journal_mode=WAL"
    if not facts["triggers_current"]:
        yield "the schema changed since the triggers were made: a stream, or forge enable, makes them again"
    if waiting > MANY:
        yield f"{waiting:,} changes were never acknowledged and fill the file: ack what is handled"
