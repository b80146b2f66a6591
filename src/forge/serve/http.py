"""HTTP endpoints: queries and mutations by POST, live results by server-sent events.

A stream is a plain ASGI callable that writes what its session has ready, without a layer in between. A slow client
blocks only its own writer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forge.cursor import After
from forge.errors import (
    AuthFailed,
    BadArguments,
    CursorError,
    CursorInvalid,
    Forbidden,
    ForgeError,
    KeysUnavailable,
    LimitReached,
    NotJson,
    ResultTooLarge,
    ServerError,
    TooLarge,
    UnknownName,
    UnknownSession,
)
from forge.history.instants import NOW
from forge.react.registry import OWN, nested_too_deep
from forge.serve import openapi
from forge.serve.auth import TokenIdentity, bearer
from forge.serve.messages import error_fields, fields, shared_sse, sse
from forge.serve.node import Node
from forge.serve.openapi_bodies import AuthBody, SubscribeBody, UnsubscribeBody
from forge.serve.permissions import local, same_origin
from forge.serve.session import Mode, Session
from forge.serve.slow_queries import given_up
from forge.serve.stream import Stream

BODY_SECONDS: Final = 10.0
_log = logging.getLogger(__name__)


_STATUS: Final[tuple[tuple[type[ForgeError], int], ...]] = (
    (KeysUnavailable, 503),
    (AuthFailed, 401),
    (Forbidden, 403),
    (UnknownName, 404),
    (UnknownSession, 404),
    (LimitReached, 429),
    (TooLarge, 413),
    (NotJson, 415),
    (ResultTooLarge, 413),
    (BadArguments, 400),
    (CursorInvalid, 400),
    (CursorError, 410),
    (ServerError, 503),
)


def status(error: ForgeError) -> int:
    """Return the HTTP status of an error."""
    return next((number for kind, number in _STATUS if isinstance(error, kind)), 422)


def failure(error: ForgeError) -> Response:
    """Return the response for an error."""
    headers = {"www-authenticate": "Bearer"} if isinstance(error, AuthFailed) else {}
    retry = getattr(error, "retry_after_secs", None)
    if retry is not None:
        headers["retry-after"] = str(retry)
    return as_json({"error": error_fields(error)}, status(error), headers)


def as_json(value: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response from a value or from encoded bytes."""
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Response(body, code, headers, "application/json")


class HttpRoutes:
    """The endpoints of a node."""

    def __init__(self, node: Node, title: str) -> None:
        self.node = node
        self._title = title

    # Calls

    async def query(self, request: Request) -> Response:
        """POST /forge/query/{name}"""

        async def answer(identity: TokenIdentity, body: bytes) -> Response:
            arguments = _decoded(body) if body else {}
            name, address = request.path_params["name"], address_of(request)
            if (asked := request.query_params.get("as_of")) is not None:
                at = _instant(asked)
                result, gap = await self.node.query_as_of(name, arguments, identity, at, address)
                told = {} if gap is None else gap.wire()
                instant = at or told.get("asked")
                head = fields(hash=result.hash, **({"as_of": instant} if instant else {}), **told)[:-1]
                return as_json(b"{" + head + b',"result":' + result.json() + b"}")
            after = After.parse(request.headers.get("forge-after"))
            shown = await self.node.query(name, arguments, identity, after, address)
            head = fields(hash=shown.hash, snapshot=shown.snapshot)[:-1]
            cached = {} if shown.hit is None else {"forge-cache": "hit" if shown.hit else "miss"}
            return as_json(b"{" + head + b',"result":' + shown.value + b"}", headers=cached)

        own = request.path_params["name"].startswith(OWN)  # they may be slow, and end with the server
        return await self._answered(request, answer, self.node.ending if own else None)

    async def mutation(self, request: Request) -> Response:
        """POST /forge/mutation/{name}"""

        async def answer(identity: TokenIdentity, body: bytes) -> Response:
            arguments = _decoded(body) if body else {}
            trace = _trace(request.headers.get("traceparent"))
            key = request.headers.get("idempotency-key")
            name, address = request.path_params["name"], address_of(request)
            result, answer = await self.node.mutate(name, arguments, identity, trace, key, address)
            repeated = {"forge-repeated": "true"} if answer.repeated else {}
            head = fields(xid=answer.xid)[:-1]
            return as_json(b"{" + head + b',"result":' + result.json() + b"}", headers=repeated)

        return await self._answered(request, answer)

    async def subscribe(self, request: Request) -> Response:
        """POST /forge/session/{id}/subscribe"""

        async def answer(identity: TokenIdentity, body: bytes) -> Response:
            asked = _read(SubscribeBody, body)
            session = self.node.session(request.path_params["id"], identity)
            self.node.subscribe(session, asked.subscription, asked.query, asked.args, asked.mode, asked.hash)
            return as_json({"subscription": asked.subscription})

        return await self._answered(request, answer)

    async def unsubscribe(self, request: Request) -> Response:
        """POST /forge/session/{id}/unsubscribe"""

        async def answer(identity: TokenIdentity, body: bytes) -> Response:
            asked = _read(UnsubscribeBody, body)
            session = self.node.session(request.path_params["id"], identity)
            return as_json({"unsubscribed": self.node.unsubscribe(session, asked.subscription)})

        return await self._answered(request, answer)

    async def renew(self, request: Request) -> Response:
        """POST /forge/session/{id}/auth"""

        async def answer(identity: TokenIdentity, body: bytes) -> Response:
            asked = _read(AuthBody, body)
            session = self.node.session(request.path_params["id"], identity)
            await self.node.renew(session, asked.token)
            return as_json({"expires_at": session.identity.expires_at})

        return await self._answered(request, answer)

    # About the node

    async def healthy(self, request: Request) -> Response:
        """GET /healthz: the process answers."""
        return as_json({"ok": True})

    async def ready(self, request: Request) -> Response:
        """GET /readyz: the database answers and the log is followed, regardless of load; names the log's maintainer."""
        try:
            async with asyncio.timeout(5):
                reached = await self.node.reactor.runner.reached()
                maintainer = await self.node.reactor.runner.maintainer()
        except (ForgeError, TimeoutError) as error:
            return as_json({"ok": False, "reason": str(error) or "the database does not answer"}, 503)
        if not self.node.reactor.following:
            return as_json({"ok": False, "reason": "the log cannot be followed now"}, 503)
        if self.node.stopping:
            return as_json({"ok": False, "reason": "stopping"}, 503)
        return as_json({"ok": True, "snapshot": str(reached.snapshot), "maintained_by": maintainer})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics"""
        body, kind = self.node.instruments.exposition()
        return Response(body, 200, media_type=kind)

    async def openapi(self, request: Request) -> Response:
        """GET /forge/openapi.json"""
        secured = self.node.options.auth is not None
        return as_json(openapi.document(self.node.registry, title=self._title, version="1", security=secured))

    # Streams

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /forge/live/{name}: one query, one stream."""
        request = Request(scope, receive)
        try:
            identity = await self._identity(request)
            arguments = _json_argument(request.query_params.get("args"))
            mode = _mode(request.query_params.get("mode"))
            session = self.node.open(identity, address_of(request))
            try:
                known = request.headers.get("last-event-id")
                self.node.subscribe(session, "live", request.path_params["name"], arguments, mode, known)
            except BaseException:
                self.node.close(session)
                raise
        except ForgeError as error:
            await failure(error)(scope, receive, send)
            return
        await self._run(Stream(session, send, _live_events), session, receive, b": forge\n\n")

    async def session(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /forge/session: a stream for any number of subscriptions."""
        request = Request(scope, receive)
        try:
            session = self.node.open(await self._identity(request), address_of(request))
        except ForgeError as error:
            await failure(error)(scope, receive, send)
            return
        hello = sse("session", b"{" + fields(session=session.id, expires_at=session.identity.expires_at))
        await self._run(Stream(session, send, session_events), session, receive, hello)

    async def _run(self, stream: Stream, session: Session, receive: Receive, hello: bytes) -> None:
        try:
            await stream.run(receive, hello)
        finally:
            self.node.close(session)

    # Requests

    async def _answered(
        self,
        request: Request,
        answer: Callable[[TokenIdentity, bytes], Awaitable[Response]],
        ending: asyncio.Event | None = None,
    ) -> Response:
        """Return the answer or the error; the work is cancelled if the client disconnects or `ending` is set."""
        limits = self.node.options.limits
        most = limits.request_bytes if "/session/" in request.url.path else limits.argument_bytes
        try:
            check_origin(request.headers, self.node.options.origins)
            _check_json(request)
            identity = await self._identity(request)
            return await _unless_left(request, answer(identity, await _body(request, most)), ending)
        except ForgeError as error:
            return failure(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            _log.exception("%s failed", request.url.path)
            return as_json(
                {"error": {"code": "failed", "message": "the function failed", "fix": "see the server's log"}}, 500
            )

    async def _identity(self, request: Request) -> TokenIdentity:
        return await self.node.identify(bearer(request.headers), local=local(request))


async def _body(request: Request, most: int) -> bytes:
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                found += part
                if len(found) > most:
                    raise TooLarge(f"the request has more than {most} bytes", fix="send less")
    except TimeoutError:
        raise TooLarge("the request took too long to arrive", fix="send it at once") from None
    return bytes(found)


async def _unless_left(request: Request, answer: Awaitable[Response], ending: asyncio.Event | None) -> Response:
    """Return the answer; cancel it if the client disconnects first or the server stops."""
    loop = asyncio.get_running_loop()
    answering = asyncio.ensure_future(answer)
    leaving = loop.create_task(_disconnected(request))
    tasks: set[asyncio.Future[Any]] = {answering, leaving}
    if ending is not None:
        tasks.add(loop.create_task(ending.wait()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise ClientDisconnect if leaving.done() else given_up()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def session_events(session: Session) -> bytes:
    return b"".join(sse(frame.event, b"{" + frame.body) for frame in session.frames())


def _live_events(session: Session) -> bytes:
    """Like `session_events`, for a stream of one subscription: without its name, so all clients get the same bytes."""
    found = []
    for subscription in session.ready_subscriptions():
        push, event, missed = subscription.take()
        if missed:
            found.append(sse("gap", b"{}"))
        if event == "unchanged":
            found.append(b": unchanged\n\n")
        elif push is not None and event == "recovered":
            known = fields(hash=push.result.hash, snapshot=str(push.coverage), unchanged=True)
            found.append(sse("snapshot", b"{" + known, push.result.hash))
        elif push is not None:
            found.append(shared_sse(push, "delta" if event == "delta" else "full", event) or b"")
        if (error := subscription.take_error()) is not None:
            found.append(sse("error", b"{" + fields(**error_fields(error))))
    if session.waiting:
        found.append(session_events(session))
    return found[0] if len(found) == 1 else b"".join(found)


def check_origin(headers: Mapping[str, str], allowed: Sequence[str]) -> None:
    """Refuse a page of another site that writes or listens through a visitor's browser, unless its origin is allowed.

    >>> check_origin({"host": "shop.example", "origin": "https://shop.example"}, ())
    >>> check_origin({"host": "shop.example", "origin": "https://evil.example"}, ())
    Traceback (most recent call last):
    forge.errors.Forbidden: the origin https://evil.example is not allowed
    fix: add it to origins in Options
    """
    origin = headers.get("origin")
    if origin is None or origin in allowed or "*" in allowed or same_origin(origin, headers.get("host", "")):
        return
    raise Forbidden(f"the origin {origin[:100]} is not allowed", fix="add it to origins in Options")


def _check_json(request: Request) -> None:
    """Require a JSON content type for calls of Forge's own functions."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.path_params.get("name", "").startswith(OWN) and kind != "application/json":
        raise NotJson("the request is not application/json", fix="send Content-Type: application/json")


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def _mode(value: str | None) -> Mode:
    if value in (None, "full"):
        return "full"
    if value == "delta":
        return "delta"
    raise BadArguments("mode is full or delta", fix="leave it out for full")


def _instant(value: str) -> datetime | None:
    """Parse an instant; None means now."""
    if value == NOW:
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise BadArguments("as_of is not an instant", fix="write it as 2026-01-31T12:00:00Z, or as now")
    return at


def _json_argument(value: str | None) -> Any:
    return {} if value is None else _decoded(value.encode())


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise nested_too_deep("an argument") from None
    except (msgspec.DecodeError, UnicodeError):
        raise BadArguments("the arguments are not JSON", fix='send an object, e.g. {"customer_id": 7}') from None


def _read(kind: type[Any], raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadArguments(f"the request is malformed: {error}", fix="see /forge/openapi.json") from None


def _trace(parent: str | None) -> str | None:
    """Return the trace id of a W3C traceparent header.

    >>> _trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    '0af7651916cd43dd8448eb211c80319c'
    """
    parts = (parent or "").split("-")
    if len(parts) < 4 or len(parts[1]) != 32 or not set(parts[1]) <= set("0123456789abcdef"):
        return None
    return parts[1]
