"""The raw feed: every change of the log as server-sent events, from any cursor, each exactly once.

    GET /forge/changes?table=orders&table=public.items&op=insert&backpressure=pause&from=now

A `change` event has a change in the format of `forge.wire`, and a cursor as its id. A client that reconnects with it,
in `Last-Event-ID` or `from`, gets exactly the changes that follow. The keep-alive also has an id, so that the cursor of
a client with few matching changes stays recent.

The reactor reads the log once for all clients. A client that starts in the past uses its own reader, while the
reactor's batches are held for it; once its reader reaches a snapshot, it gets what that snapshot does not contain. The
hub delivers only what no crash can undo, and reads the log itself where the reactor may have skipped something.

A slow client costs at most 256 events or a megabyte, or one page of the log, which all clients share. After that,
depending on `backpressure`, the oldest events are dropped and a `gap` event gives their number and the cursor to read
them from (`drop`), or the client gets no more until it has read the queue and then continues from the log (`pause`).

With tokens, a client sees only the rows of its tenant, or all rows if its token opens the console. A row that leaves
the tenant is a delete with the old image; a row that enters is an insert with the new image. Changes of a whole table
are shown without rows. The actor and the reason are shown only if all rows that the transaction changed are known to
be the tenant's, by the rule of `forge.changelog.tenancy`. This is always known for changes read from the log; for live
changes it is unknown if the batch was too large for one page.
"""

import asyncio
import contextlib
import logging
import random
from collections import deque
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from forge.change import Op
from forge.changelog.reader import Batch, Reader
from forge.changelog.tenancy import SIGNED, Tenant, parameters
from forge.cursor import Cursor
from forge.errors import BadArguments, CursorError, Forbidden, ForgeError, LimitReached, ServerError
from forge.serve.auth import TokenIdentity, bearer
from forge.serve.feed_hub import FeedHub, flushed, hub_of, typed_errors
from forge.serve.http import address_of, failure, session_events
from forge.serve.messages import error_fields, fields, sse
from forge.serve.node import Node
from forge.serve.pages import ClientView, EncodedChange, LogPage
from forge.serve.session import Session
from forge.serve.stream import HEADERS, left
from forge.tasks import observed

MOST_WAITING: Final = 256
MOST_BYTES: Final = 1024 * 1024
MOST_HELD: Final = 10_000
"""Maximum number of changes held for a client while it reads the past; beyond it, the client continues to read."""
MOST_TABLES: Final = 100
PATIENCE: Final = 5.0
"""Maximum time, in seconds, for a client to hold a reader without reading, or for a request to wait for one."""

_CHUNK: Final = 64 * 1024
_log = logging.getLogger(__name__)

Backpressure = Literal["drop", "pause"]


# One reader for all


# One client


class Asked(msgspec.Struct, frozen=True):
    """The parameters of a request."""

    tables: frozenset[str]
    ops: frozenset[Op]
    backpressure: Backpressure
    begin: str


class FeedResponse:
    """The response; it starts with the first write."""

    def __init__(self, send: Send) -> None:
        self.started = False
        self.at = 0.0
        self._send = send
        self._writing: asyncio.Task[None] | None = None

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Write, and return once the client can take more."""
        await self.written()
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self.at = asyncio.get_running_loop().time()

    async def try_write(self, data: bytes) -> bool:
        """Write; return False if the client cannot take it in time: then `written` waits for it."""
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
        """Stop waiting for anything."""
        if self._writing is not None:
            self._writing.cancel()


class FeedClient:
    """One connection: its queue and its position in the log."""

    def __init__(self, node: Node, hub: FeedHub, session: Session, asked: Asked, output: FeedResponse) -> None:
        self.dropped = 0
        self._node = node
        self._hub = hub
        self._session = session
        self._asked = asked
        self._output = output
        self._identity = session.identity
        self._view = view(node, asked, session.identity)
        self._cursor: Cursor | None = None
        self._queue: deque[EncodedChange] = deque()
        self._size = 0
        self._taken = ""
        self._gap_from = ""
        self._held: list[LogPage] | None = None
        self._holding = 0
        self._behind = True
        self._error: ForgeError | None = None
        self._known: tuple[ClientView, dict[str, bool]] = self._view, {}
        """Transactions of the last page whose actor may be shown; a large transaction continues on the next page."""

    # Called by the hub; these never block

    def offer(self, page: LogPage) -> None:
        """Queue a page of the log."""
        if self._held is None:
            self._put(page)
            return
        self._held.append(page)
        self._holding += len(page.batch.changes)
        if self._holding > MOST_HELD:
            self._fall_behind()

    def fail(self, error: ForgeError) -> None:
        """End the feed with an error."""
        self._error = error
        self._session.wake()

    def _put(self, page: LogPage) -> None:
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
        """Drop the oldest excess events, but none of a single page: a client may have read everything before it."""
        while len(self._queue) > MOST_WAITING or (self._size > MOST_BYTES and len(self._queue) > 1):
            self._size -= len(self._queue.popleft().data)
            self._gap_from = self._gap_from or self._taken
            self.dropped += 1

    def _fall_behind(self) -> None:
        """Stop queueing; the client continues from the log."""
        self._hub.clients.pop(self, None)
        self._held, self._holding, self._behind = None, 0, True
        self._session.wake()

    # The writer

    async def run(self) -> None:
        """Send until either side ends the stream; raise the error that prevented the start."""
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
        """After a token renewal: switch to the new token's view, from the last event sent."""
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
        """Whether the session is open and still has the token that the view was made for."""
        return self._session.closed is None and self._session.identity is self._identity

    def _frames(self) -> bytes:
        return session_events(self._session)

    def _take(self) -> bytes:
        """Return the next queued events, a limited number at a time."""
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
        """Return a keep-alive event with the client's cursor."""
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
                    with typed_errors():
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
        """Wait for a free reader."""
        while self._session.closed is None:
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._hub.room.acquire()
                return True
            except TimeoutError:
                if not self._output.started:
                    raise LimitReached(
                        "too many read the past at once", fix="try again soon", retry_after_secs=5
                    ) from None
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
                    if not await self._send(LogPage(batch, self._cursor, await self._signed(reader, batch))):
                        self._fall_behind()
                        return
        await self._go_live()

    async def _signed(self, reader: Reader, batch: Batch) -> frozenset[str] | None:
        """Return the batch's transactions whose actor the client may see, for any requested tables; None means all."""
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

    async def _send(self, page: LogPage) -> bool:
        """Send a page read from the log; return False if it must be read again from the client's position."""
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
        """Start to keep the reactor's batches for this client."""
        self._held, self._holding, self._behind = [], 0, False
        self._hub.clients[self] = None

    async def _go_live(self) -> None:
        """Queue the held batches, without what the client already has."""
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
    output = FeedResponse(send)
    try:
        asked = _asked(request)
        identity = await node.identify(bearer(request.headers))
        view(node, asked, identity)
        session = node.open(identity, address_of(request))
        leaving = asyncio.get_running_loop().create_task(left(session, receive))
        try:
            async with hub_of(node) as hub:
                await FeedClient(node, hub, session, asked, output).run()
        except OSError:
            pass  # the client has disconnected
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


def view(node: Node, asked: Asked, identity: TokenIdentity) -> ClientView:
    """Return the caller's view of the requested tables; raise Forbidden if the caller may see nothing."""
    if node.options.auth is None or node.oversees(identity):
        return ClientView(asked.tables, asked.ops)
    column = node.options.tenant_column
    if column is None:
        raise Forbidden(
            "the feed is closed: no column says whose a row is",
            fix="set tenant_column to the column that holds the tenant",
        )
    if identity.auth.tenant is None:
        raise Forbidden("the token names no tenant", fix="have the issuer set the tenant claim")
    return ClientView(asked.tables, asked.ops, Tenant(column, identity.auth.tenant))


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
