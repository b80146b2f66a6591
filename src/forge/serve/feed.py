"""The raw feed: every change of the log as server-sent events, from any cursor on, each once.

    GET /forge/changes?table=orders&table=public.items&op=insert&backpressure=pause&from=now

An event `change` has a change as `forge.wire` writes it, and an id that is a cursor: whoever comes back with it, in
`Last-Event-ID` or `from`, gets exactly what follows. The keep-alive has an id too, so the cursor of a client that is
shown little does not grow old.

The reactor reads the log once for all. A client that begins in the past reads it with a reader of its own, while what
the reactor reads is held for it; when it has come to a snapshot, it is sent what that snapshot does not show. The hub
hands out only what no crash can take back, and reads the log itself where the reactor may have left something out.

A client that does not read costs at most 256 events or a megabyte, or one page of the log, which all clients share.
Then, as it wishes, the oldest are dropped and a `gap` says how many and from which cursor they can be had (`drop`), or
it is given no more until it has read those and goes on from the log (`pause`).

With tokens a client sees the rows of its tenant only, or all where its token opens the console: a row that leaves the
tenant is a delete with the old image, one that comes an insert with the new. What concerns a whole table is shown
without rows. Who did it, and why, is shown only where all rows that the transaction changed are known to be the
tenant's, by the rule of `forge.changelog.tenancy`. Of what is read from the log that is always known; of what happens
now, it is not when a batch was too large for one page.
"""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

import msgspec
import psycopg
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from forge.backoff import Backoff
from forge.change import Op
from forge.changelog.reader import Batch, Reader
from forge.changelog.tenancy import SIGNED, Tenant, parameters
from forge.cursor import Cursor
from forge.errors import CursorError, ForgeError, ServerError
from forge.postgres.connection import translate
from forge.react.registry import BadArguments
from forge.serve.auth import Identity, bearer
from forge.serve.http import address_of, failure, session_events
from forge.serve.limits import TooMany
from forge.serve.messages import error_fields, fields, sse
from forge.serve.node import Node
from forge.serve.pages import Event, Page, View
from forge.serve.permissions import Forbidden
from forge.serve.session import Session
from forge.serve.stream import HEADERS, left
from forge.tasks import observed

MOST_WAITING: Final = 256
MOST_BYTES: Final = 1024 * 1024
MOST_READERS: Final = 8
"""Clients of a node that read the past at once."""
MOST_HELD: Final = 10_000
"""Changes held for a client while it reads the past; beyond it reads on."""
MOST_BATCHES: Final = 64
"""Of the reactor that wait for the hub; beyond it the hub reads the log itself."""
MOST_TABLES: Final = 100
PATIENCE: Final = 5.0
"""Seconds that a client may keep a reader without taking anything, or a request wait for one."""

_CHUNK: Final = 64 * 1024
_log = logging.getLogger(__name__)

Backpressure = Literal["drop", "pause"]


# One reader for all


class Hub:
    """Hands the reactor's batches to the clients of a node, safe from crashes and without a gap."""

    def __init__(self, node: Node) -> None:
        self.url = node.reactor.url
        self.room = asyncio.Semaphore(MOST_READERS)
        self.users = 0
        self.clients: dict[Client, None] = {}
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
        """Begin, once."""
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
        """After everything that is committed."""
        async with self._using:
            if self._reader is None:
                raise ServerError("the database cannot be reached", fix="try again soon")
            with _typed():
                return await self._reader.now()

    async def _connect(self) -> None:
        async with self._using:
            self._reader = None
            await self._stack.aclose()
            self._resyncs = self._reactor.metrics.resyncs
            with _typed():
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
        """Hand out what there is, or wait for it a while."""
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
        """Read from the log what the reactor may have left out."""
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
        page = Page(batch, self._cursor)
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


_HUBS: WeakKeyDictionary[Node, Hub] = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def _hub(node: Node) -> AsyncIterator[Hub]:
    """The hub of a node, which lasts as long as it has users."""
    hub = _HUBS.get(node)
    if hub is None:
        hub = _HUBS[node] = Hub(node)
    hub.users += 1
    try:
        await hub.open()
        yield hub
    finally:
        hub.users -= 1
        if not hub.users:
            if _HUBS.get(node) is hub:
                del _HUBS[node]
            await hub.close()


async def flushed(reader: Reader, after: Cursor, tables: frozenset[str] | None) -> AsyncGenerator[Batch]:
    """What the log has after a cursor, when no crash can take it back."""
    async with contextlib.aclosing(reader.read(after, tables=tables or None)) as batches:
        async for batch in batches:
            if not batch.flushed:
                await reader.flushed(batch.lsn)
            yield batch


# One client


class Asked(msgspec.Struct, frozen=True):
    """What a request asks for."""

    tables: frozenset[str]
    ops: frozenset[Op]
    backpressure: Backpressure
    begin: str


class Output:
    """The response; it begins with the first write."""

    def __init__(self, send: Send) -> None:
        self.started = False
        self.at = 0.0
        self._send = send
        self._writing: asyncio.Task[None] | None = None

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Return when the client has room for more."""
        await self.written()
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self.at = asyncio.get_running_loop().time()

    async def try_write(self, data: bytes) -> bool:
        """Write; false when the client has no room after a while: `written` waits for it."""
        await self.written()
        writing = observed(asyncio.get_running_loop().create_task(self.write(data)))
        await asyncio.wait({writing}, timeout=PATIENCE)
        if not writing.done():
            self._writing = writing
            return False
        writing.result()
        return True

    async def written(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    def abandon(self) -> None:
        """Wait for nothing any more."""
        if self._writing is not None:
            self._writing.cancel()


class Client:
    """One connection: what waits to be sent, and where in the log it stands."""

    def __init__(self, node: Node, hub: Hub, session: Session, asked: Asked, output: Output) -> None:
        self.dropped = 0
        self._node = node
        self._hub = hub
        self._session = session
        self._asked = asked
        self._output = output
        self._identity = session.identity
        self._view = view(node, asked, session.identity)
        self._cursor: Cursor | None = None
        self._queue: deque[Event] = deque()
        self._size = 0
        self._taken = ""
        self._gap_from = ""
        self._held: list[Page] | None = None
        self._holding = 0
        self._behind = True
        self._error: ForgeError | None = None
        self._known: tuple[View, dict[str, bool]] = self._view, {}
        """Of the transactions on the last page that was read, which are signed; a large one goes on on the next."""

    # Called by the hub, never waiting

    def offer(self, page: Page) -> None:
        """Take a page of the log."""
        if self._held is None:
            self._put(page)
            return
        self._held.append(page)
        self._holding += len(page.batch.changes)
        if self._holding > MOST_HELD:
            self._fall_behind()

    def fail(self, error: ForgeError) -> None:
        """The feed cannot go on."""
        self._error = error
        self._session.wake()

    def _put(self, page: Page) -> None:
        assert self._cursor is not None
        since = self._cursor.snapshot
        after = page.after(since)
        if after is None:
            return
        if self._cursor.until not in (None, page.until):
            self._fall_behind()
            return
        events = page.events(self._view, since)
        drained = not self._queue
        for event in events:
            if self._asked.backpressure == "pause" and self._size >= MOST_BYTES:
                self._cursor = Cursor.parse(self._queue[-1].id)
                self._fall_behind()
                return
            self._queue.append(event)
            self._size += len(event.data)
        if self._asked.backpressure == "drop" and not drained:
            self._drop()
        self._cursor = after
        if events:
            self._session.wake()

    def _drop(self) -> None:
        """Let the oldest go that are too many. Of one page none is: a client may have read all that came before."""
        while len(self._queue) > MOST_WAITING or (self._size > MOST_BYTES and len(self._queue) > 1):
            self._size -= len(self._queue.popleft().data)
            self._gap_from = self._gap_from or self._taken
            self.dropped += 1

    def _fall_behind(self) -> None:
        """Take nothing more: the log has it."""
        self._hub.clients.pop(self, None)
        self._held, self._holding, self._behind = None, 0, True
        self._session.wake()

    # The writer

    async def run(self) -> None:
        """Send until either side ends it; raises what kept it from starting."""
        session, output = self._session, self._output
        try:
            while session.closed is None:
                if self._error is not None:
                    raise self._error
                self._authorize()
                if self._behind and not self._queue:
                    await self._catch_up()
                    await output.written()
                    continue
                if self._queue:
                    session.wake()
                await session.wait()
                if self._valid():
                    await output.write(self._frames() + self._take() or self._alive())
        except ForgeError as error:
            if not output.started:
                raise
            await output.write(sse("error", b"{" + fields(**error_fields(error))))
        finally:
            self._hub.clients.pop(self, None)
        if session.closed != "gone":
            await output.write(self._frames())
            await output.write(b"", more=False)

    def _authorize(self) -> None:
        """When the session has a new token: see what that may see, from what was sent last on."""
        if self._session.identity is self._identity:
            return
        self._identity = self._session.identity
        now = view(self._node, self._asked, self._identity)
        if now == self._view:
            return
        self._view = now
        if self._taken:
            self._cursor = Cursor.parse(self._taken)
        self._queue.clear()
        self._size, self.dropped, self._gap_from = 0, 0, ""
        self._fall_behind()

    def _valid(self) -> bool:
        """Whether the session goes on, with the token that the view is of."""
        return self._session.closed is None and self._session.identity is self._identity

    def _frames(self) -> bytes:
        return session_events(self._session)

    def _take(self) -> bytes:
        """The next events that wait, some at a time."""
        parts = []
        if self.dropped:
            parts.append(sse("gap", b"{" + fields(dropped=self.dropped, cursor=self._gap_from)))
            self.dropped, self._gap_from = 0, ""
        size = 0
        while self._queue and size < _CHUNK:
            event = self._queue.popleft()
            size += len(event.data)
            parts.append(event.data)
            self._taken = event.id
        self._size -= size
        return b"".join(parts)

    def _alive(self) -> bytes:
        """A sign of life, and where the client stands."""
        self._taken = str(self._cursor)
        return f": \nid: {self._taken}\n\n".encode()

    # The past

    async def _catch_up(self) -> None:
        """Send what the log has; afterwards the client is live, or still behind."""
        try:
            if self._cursor is None and self._asked.begin == "now":
                self._hold()
                self._cursor = await self._hub.now()
                await self._go_live()
                return
            if await self._may_read():
                try:
                    with _typed():
                        async with Reader.open(self._hub.url) as reader:
                            await self._read(reader)
                finally:
                    self._hub.room.release()
        except CursorError:
            raise
        except ForgeError as error:
            self._fall_behind()
            if not self._output.started or not isinstance(error, ServerError):
                raise
            _log.warning("the log cannot be read for a client, trying again: %s", error)
            await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _may_read(self) -> bool:
        """Wait for a turn among the readers."""
        while self._session.closed is None:
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._hub.room.acquire()
                return True
            except TimeoutError:
                if not self._output.started:
                    raise TooMany("too many read the past at once", fix="try again soon", retry_after_secs=5) from None
                await self._output.write(self._frames() or self._alive())
        return False

    async def _read(self, reader: Reader) -> None:
        self._hold()
        if self._cursor is None:
            self._cursor = reader.start() if self._asked.begin == "start" else Cursor.parse(self._asked.begin)
        inside = True
        while inside:
            inside = self._cursor.last is not None
            async with contextlib.aclosing(flushed(reader, self._cursor, self._view.tables)) as batches:
                async for batch in batches:
                    if not await self._send(Page(batch, self._cursor, await self._signed(reader, batch))):
                        self._fall_behind()
                        return
        await self._go_live()

    async def _signed(self, reader: Reader, batch: Batch) -> frozenset[str] | None:
        """The transactions of a batch whose actor the client may learn, whatever tables it asks for; None for all."""
        if self._view.tenant is None:
            return None
        transactions = {change.source.transaction or "" for change in batch.changes}
        asked, known = self._known
        if self._view is not asked:
            known = {}
        values = {"transactions": list(transactions - known.keys()), **parameters(self._view.tenant)}
        rows = await (await reader.connection.execute(SIGNED.encode(), values)).fetchall()
        found = {row[0] for row in rows}
        known = {number: known.get(number, number in found) for number in transactions}
        self._known = self._view, known
        return frozenset(number for number, signed in known.items() if signed)

    async def _send(self, page: Page) -> bool:
        """Send a page that was read; false when it must be read again from where the client stands."""
        assert self._cursor is not None
        if not self._output.started:
            await self._output.write(self._alive())
        since = self._cursor.snapshot
        parts, size = [], 0
        for event in page.events(self._view, since):
            parts.append(event.data)
            size += len(event.data)
            if size >= _CHUNK:
                if not await self._sent(parts, Cursor.parse(event.id)):
                    return False
                parts, size = [], 0
        after = page.after(since)
        return await self._sent(parts, self._cursor if after is None else after)

    async def _sent(self, parts: list[bytes], after: Cursor) -> bool:
        if not self._valid():
            return False
        self._cursor, self._taken = after, str(after)
        data = self._frames() + b"".join(parts)
        if not data and asyncio.get_running_loop().time() - self._output.at >= self._node.options.keepalive:
            data = self._alive()
        return not data or await self._output.try_write(data)

    def _hold(self) -> None:
        """Have what the reactor reads from now on kept."""
        self._held, self._holding, self._behind = [], 0, False
        self._hub.clients[self] = None

    async def _go_live(self) -> None:
        """Take what was held, less what is known already."""
        if not self._output.started:
            await self._output.write(self._alive())
        self._taken = str(self._cursor)
        held, self._held = self._held, None
        for page in held or ():
            if not self._behind:
                self._put(page)


# Requests


async def changes(node: Node, scope: Scope, receive: Receive, send: Send) -> None:
    """GET /forge/changes"""
    request = Request(scope, receive)
    output = Output(send)
    try:
        asked = _asked(request)
        identity = await node.identify(bearer(request.headers))
        view(node, asked, identity)
        session = node.open(identity, address_of(request))
        leaving = asyncio.get_running_loop().create_task(left(session, receive))
        try:
            async with _hub(node) as hub:
                await Client(node, hub, session, asked, output).run()
        except OSError:
            pass  # the client is gone, and there is nobody to tell
        finally:
            output.abandon()
            node.close(session)
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving
    except ForgeError as error:
        if output.started:
            raise
        await failure(error)(scope, receive, send)


def view(node: Node, asked: Asked, identity: Identity) -> View:
    """What somebody may see of what is asked for; raises Forbidden when that is nothing."""
    if node.options.auth is None or node.oversees(identity):
        return View(asked.tables, asked.ops)
    column = node.options.tenant_column
    if column is None:
        raise Forbidden(
            "the feed is closed: no column says whose a row is",
            fix="set tenant_column to the column that holds the tenant",
        )
    if identity.auth.tenant is None:
        raise Forbidden("the token names no tenant", fix="have the issuer set the tenant claim")
    return View(asked.tables, asked.ops, Tenant(column, identity.auth.tenant))


def _asked(request: Request) -> Asked:
    given = request.query_params
    tables, ops = given.getlist("table"), given.getlist("op")
    if len(tables) > MOST_TABLES or any(not name or "\0" in name for name in tables):
        raise BadArguments(f"table names a table, at most {MOST_TABLES} times", fix="leave it out for all tables")
    try:
        wanted = frozenset(Op(op.lower()) for op in ops)
    except ValueError:
        raise BadArguments("there is no such op", fix=f"use {', '.join(op.value for op in Op)}") from None
    backpressure: Any = given.get("backpressure", "drop")
    if backpressure not in ("drop", "pause"):
        raise BadArguments("backpressure is drop or pause", fix="leave it out for drop")
    begin = request.headers.get("last-event-id") or given.get("from") or "now"
    if begin not in ("start", "now"):
        Cursor.parse(begin)
    return Asked(frozenset(tables), wanted, backpressure, begin)


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    """The server's errors as Forge's."""
    try:
        yield
    except psycopg.Error as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise translate(error) or ServerError(f"the log cannot be read: {line}", fix="look at the server") from error
