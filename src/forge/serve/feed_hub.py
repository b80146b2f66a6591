"""Hub of the raw feed: delivers the reactor's batches to the clients of a node, crash-safe and without gaps."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import psycopg

from forge.backoff import Backoff
from forge.changelog.reader import Batch, Reader
from forge.cursor import Cursor
from forge.errors import CursorError, ForgeError, ServerError
from forge.postgres.connection import translate
from forge.serve.node import Node
from forge.serve.pages import LogPage

if TYPE_CHECKING:
    from forge.serve.feed import FeedClient

_log = logging.getLogger(__name__)

MOST_READERS: Final = 8
"""Maximum number of clients per node that read the past at once."""


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Convert the server's errors to Forge's errors."""
    try:
        yield
    except psycopg.Error as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise translate(error) or ServerError(f"the log cannot be read: {line}", fix="look at the server") from error


MOST_BATCHES: Final = 64
"""Maximum number of reactor batches queued for the hub; beyond it, the hub reads the log itself."""


class FeedHub:
    """Deliver the reactor's batches to the clients of a node, crash-safe and without gaps."""

    def __init__(self, node: Node) -> None:
        self.url = node.reactor.url
        self.room = asyncio.Semaphore(MOST_READERS)
        self.users = 0
        self.clients: dict[FeedClient, None] = {}
        self._reactor = node.reactor
        self._reader: Reader | None = None
        self._using = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._cursor: Cursor | None = None
        self._batches: deque[Batch] = deque()
        self._resyncs = 0
        self._doubted = False
        self._wake = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start, once."""
        async with self._opening:
            if self._task is None:
                self._reactor.on_batch.append(self._take)
                try:
                    await self._connect()
                except BaseException:
                    self._reactor.on_batch.remove(self._take)
                    raise
                self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._reactor.on_batch.remove(self._take)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stack.aclose()

    async def now(self) -> Cursor:
        """Return the cursor after everything committed."""
        async with self._using:
            if self._reader is None:
                raise ServerError("the database cannot be reached", fix="try again soon")
            with typed_errors():
                return await self._reader.now()

    async def _connect(self) -> None:
        async with self._using:
            self._reader = None
            await self._stack.aclose()
            self._resyncs = self._reactor.metrics.resyncs
            with typed_errors():
                reader = await self._stack.enter_async_context(Reader.open(self.url))
                self._cursor = self._cursor or await reader.now()
            self._reader = reader

    def _take(self, batch: Batch) -> None:
        self._batches.append(batch)
        if len(self._batches) > MOST_BATCHES:
            self._batches.clear()
            self._doubted = True
        self._wake.set()

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                if self._reader is None:
                    await self._connect()
                await self._step()
                backoff.reset()
            except CursorError as error:
                _log.warning("the feed cannot go on from where it was: %s", error)
                self._cursor, self._reader = None, None
                for client in list(self.clients):
                    client.fail(error)
            except (psycopg.Error, ForgeError, OSError) as error:
                self._doubted, self._reader = True, None
                _log.warning("the feed lost its connection, trying again: %s", error)
                await asyncio.sleep(backoff.next())

    async def _step(self) -> None:
        """Deliver what is available, or wait for it for a limited time."""
        if self._doubted or self._resyncs != self._reactor.metrics.resyncs:
            self._resyncs, self._doubted = self._reactor.metrics.resyncs, False
            await self._read_on()
        if not self._batches:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._wake.wait()
            return
        batch = self._batches.popleft()
        if not batch.flushed:
            async with self._using:
                assert self._reader is not None
                await self._reader.flushed(batch.lsn)
        await self._deliver(batch)

    async def _read_on(self) -> None:
        """Read from the log what the reactor may have skipped."""
        self._batches.clear()
        async with self._using:
            assert self._reader is not None
            assert self._cursor is not None
            inside = True
            while inside:
                inside = self._cursor.last is not None
                async with contextlib.aclosing(flushed(self._reader, self._cursor, None)) as batches:
                    async for batch in batches:
                        await self._deliver(batch)

    async def _deliver(self, batch: Batch) -> None:
        assert self._cursor is not None
        page = LogPage(batch, self._cursor)
        if batch.cursor.log != self._cursor.log or self._cursor.until not in (None, page.until):
            self._doubted = True
            return
        after = page.after(self._cursor.snapshot)
        if after is None:
            return
        self._cursor = after
        for number, client in enumerate(list(self.clients)):
            client.offer(page)
            if number % 100 == 99:
                await asyncio.sleep(0)


HUBS: WeakKeyDictionary[Node, FeedHub] = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def hub_of(node: Node) -> AsyncIterator[FeedHub]:
    """Yield the hub of a node; it exists while it has users."""
    hub = HUBS.get(node)
    if hub is None:
        hub = HUBS[node] = FeedHub(node)
    hub.users += 1
    try:
        await hub.open()
        yield hub
    finally:
        hub.users -= 1
        if not hub.users:
            if HUBS.get(node) is hub:
                del HUBS[node]
            await hub.close()


async def flushed(reader: Reader, after: Cursor, tables: frozenset[str] | None) -> AsyncGenerator[Batch]:
    """Yield the log's batches after a cursor, once no crash can undo them."""
    async with contextlib.aclosing(reader.read(after, tables=tables or None)) as batches:
        async for batch in batches:
            if not batch.flushed:
                await reader.flushed(batch.lsn)
            yield batch
