"""WebSocket: the same events as over SSE, and requests on the same connection.

A client's messages are JSON objects with a `type`: `auth` (first, unless the handshake had a token), `subscribe`,
`unsubscribe`, `query`, `mutate`, `join`, `leave`, `publish`, `ping`. A request carries an `id` that the client
chooses, and its `answer` repeats the id. A malformed message gets an `error` answer; too many of them end the
connection.

Close codes: 4400 malformed, 4401 not authorized or expired, 4429 too many, 1012 the server restarts. The handshake
refuses a page of an origin that is not allowed, as over HTTP.
"""

import asyncio
import contextlib
import logging
from typing import Any, Final

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from forge.cursor import NOW, After
from forge.errors import AuthFailed, BadArguments, Forbidden, ForgeError, LimitReached
from forge.serve.auth import TokenIdentity, bearer
from forge.serve.http import check_origin, failure
from forge.serve.messages import Frame, error_fields, fields, socket
from forge.serve.node import Node
from forge.serve.permissions import local
from forge.serve.session import Mode, Session
from forge.tasks import spawn

FIRST_MESSAGE: Final = 10.0
MOST_ERRORS: Final = 20
MOST_CALLS: Final = 8
_log = logging.getLogger(__name__)
_CLOSE: Final = {"expired": 4401, "revoked": 4401, "restart": 1012}


class ClientMessage(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A client's message; the type decides which fields are used."""

    type: str
    id: str | None = None
    token: str | None = None
    subscription: str | None = None
    query: str | None = None
    mutation: str | None = None
    args: Any = None
    mode: Mode = "full"
    hash: str | None = None
    channel: str | None = None
    data: Any = None
    after: str | None = None
    key: str | None = None


class Socket:
    """One WebSocket connection."""

    def __init__(self, node: Node, websocket: WebSocket) -> None:
        self._node = node
        self._websocket = websocket
        self._calls: set[asyncio.Task[None]] = set()
        self._after = NOW
        """The mutations answered on this connection: its queries contain them."""

    async def run(self) -> None:
        """Serve the connection until either side ends it."""
        try:
            check_origin(self._websocket.headers, self._node.options.origins)
        except Forbidden as error:
            await refuse(self._websocket, error)
            return
        await self._websocket.accept()
        try:
            session = await self._admitted()
        except LimitReached as error:
            await self._refuse(error, 4429)
            return
        except AuthFailed as error:
            await self._refuse(error, 4401)
            return
        except (BadArguments, KeyError, WebSocketDisconnect, TimeoutError) as error:
            if not isinstance(error, WebSocketDisconnect):
                await self._end(4400, "the first message is malformed or late")
            return
        writer = asyncio.get_running_loop().create_task(self._write(session))
        code = 1000
        try:
            code = await self._read(session)
        finally:
            self._node.close(session)
            for call in list(self._calls):
                call.cancel()
            with contextlib.suppress(Exception):
                code = await writer or code
            await self._end(code, session.closed or "")

    async def _admitted(self) -> Session:
        """Open a session for the token's user; the token is in the handshake's header or in the first message."""
        token = bearer(self._websocket.headers)
        if token is None and self._node.options.auth is not None:
            async with asyncio.timeout(FIRST_MESSAGE):
                first = _message(await self._websocket.receive_text())
            if first.type != "auth":
                raise AuthFailed("no token", fix='send {"type": "auth", "token": …} first')
            token = first.token
        identity: TokenIdentity = await self._node.identify(token, local=local(self._websocket))
        client = self._websocket.client
        session = self._node.open(identity, client.host if client else "")
        session.send(Frame("session", fields(session=session.id, expires_at=identity.expires_at)))
        return session

    async def _read(self, session: Session) -> int:
        """Handle messages until the client disconnects or sends too many errors; return the close code."""
        rate = self._node.gate.rate()
        wrong = 0
        while session.closed is None:
            try:
                text = await self._websocket.receive_text()
            except (WebSocketDisconnect, RuntimeError, KeyError):
                return 1000
            if len(text) > self._node.options.limits.request_bytes:
                return 1009
            message = None
            try:
                rate.take()
                message = _message(text)
                await self._handle(session, message)
            except ForgeError as error:
                session.send(Frame("error", fields(id=message.id if message else None, **error_fields(error))))
                wrong += 1
                if wrong > MOST_ERRORS:
                    return 4429 if isinstance(error, LimitReached) else 4400
        return _CLOSE.get(session.closed, 1000)

    async def _handle(self, session: Session, message: ClientMessage) -> None:
        node = self._node
        if message.type == "subscribe":
            node.subscribe(
                session, _given(message.subscription), _given(message.query), message.args, message.mode, message.hash
            )
            self._answer(session, message, subscription=message.subscription)
        elif message.type == "unsubscribe":
            self._answer(session, message, unsubscribed=node.unsubscribe(session, _given(message.subscription)))
        elif message.type in ("query", "mutate"):
            if len(self._calls) >= MOST_CALLS:
                raise LimitReached(f"{MOST_CALLS} calls are running", fix="wait for one to end", retry_after_secs=1)
            spawn(self._call(session, message), self._calls, _log)
        elif message.type == "auth":
            await node.renew(session, message.token)
        elif message.type == "join":
            own = await node.channels.join(session, _given(message.channel))
            members = node.channels.members(session, _given(message.channel))
            self._answer(session, message, you=own["id"], members=members)
        elif message.type == "leave":
            await node.channels.leave(session, _given(message.channel))
            self._answer(session, message)
        elif message.type == "publish":
            await node.channels.publish(session, _given(message.channel), message.data)
            self._answer(session, message)
        elif message.type == "ping":
            self._answer(session, message)
        else:
            raise BadArguments(f"there is no message type {message.type[:40]!r}", fix="see the docs of /forge/ws")

    async def _call(self, session: Session, message: ClientMessage) -> None:
        """Run a query or mutation; answers may arrive out of order."""
        identity = session.identity
        try:
            if message.type == "query":
                given = After.parse(message.after)
                after = After(given.xids | self._after.xids, max(given.upto, self._after.upto))
                shown = await self._node.query(_given(message.query), message.args, identity, after, session.address)
                head, body = fields(id=message.id, hash=shown.hash, snapshot=shown.snapshot), shown.value
            else:
                known = self._after
                mutation = _given(message.mutation)
                result, answer = await self._node.mutate(
                    mutation, message.args, identity, None, message.key, session.address
                )
                if answer.xid is not None:  # a repeated answer may not see mutations acknowledged since
                    self._after = self._after.superseded(NOW if answer.repeated else known, int(answer.xid))
                repeated = {"repeated": True} if answer.repeated else {}
                head, body = fields(id=message.id, xid=answer.xid, **repeated), result.json()
            await session.room()  # the calls of a slow client wait
            session.send(Frame("answer", head[:-1] + b',"result":' + body + b"}"))
        except ForgeError as error:
            session.send(Frame("error", fields(id=message.id, **error_fields(error))))
        except Exception:
            session.send(Frame("error", fields(id=message.id, code="failed", message="the function failed", fix="")))
            raise

    def _answer(self, session: Session, message: ClientMessage, **more: Any) -> None:
        if message.id is not None:
            session.send(Frame("answer", fields(id=message.id, **more)))

    async def _write(self, session: Session) -> int:
        """Send what the session has ready until it is closed; return the close code."""
        while True:
            await session.wait()
            closed = session.closed  # read before the queue is drained: the close reason is sent too
            frames = session.frames()
            for frame in frames:
                await self._websocket.send_text(socket(frame.event, frame.body))
            if closed is not None:
                code = _CLOSE.get(closed)
                if code is not None:
                    await self._end(code, closed)
                return code or 0
            if not frames:
                await self._websocket.send_text('{"event":"ping"}')

    async def _refuse(self, error: ForgeError, code: int) -> None:
        with contextlib.suppress(Exception):
            await self._websocket.send_text(socket("error", fields(**error_fields(error))))
        await self._end(code, str(error))

    async def _end(self, code: int, reason: str) -> None:
        with contextlib.suppress(RuntimeError, OSError, WebSocketDisconnect):
            await self._websocket.close(code, reason[:100])


async def refuse(websocket: WebSocket, error: ForgeError) -> None:
    """Answer the handshake with an error, as over HTTP if the web server supports it."""
    with contextlib.suppress(RuntimeError, OSError, WebSocketDisconnect):
        if "websocket.http.response" in websocket.scope.get("extensions", {}):
            await websocket.send_denial_response(failure(error))
        else:
            await websocket.close(4403, str(error)[:60])


def _message(text: str) -> ClientMessage:
    try:
        return msgspec.json.decode(text, type=ClientMessage)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadArguments(f"the message is malformed: {error}", fix="send a JSON object with a type") from None


def _given(value: str | None) -> str:
    if not value:
        raise BadArguments("the message lacks a field", fix="see the docs of /forge/ws")
    return value
