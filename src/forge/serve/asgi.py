"""The ASGI app of a node: routes, cross-origin rules, and a single start, at the latest with the first request.

Without tokens, the app first checks the host of every request, of any kind.

An app that is mounted into another app may get no lifespan events. It then starts with its first request and ends when
the application that created it calls `stop`.
"""

import asyncio
import functools
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import FrameType

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from forge.errors import ForgeError
from forge.serve.feed import changes
from forge.serve.files import HEADERS, client, console
from forge.serve.history import audited, history
from forge.serve.http import HttpRoutes, as_json, failure
from forge.serve.node import Node
from forge.serve.permissions import check_host
from forge.serve.versions import QUERIES, versions_available, versions_page
from forge.serve.ws import Socket, refuse

Opening = Callable[[], AbstractAsyncContextManager[Node]]


class ForgeApp:
    """An ASGI callable that opens its node on first use."""

    def __init__(
        self, opening: Opening, *, title: str, hosts: Callable[[], tuple[str, ...] | None] = lambda: None
    ) -> None:
        self._opening = opening
        self._title = title
        self._hosts = functools.cache(hosts)
        """Hosts that it serves, besides this machine; None means all. Evaluated once, with the first request."""
        self._stack = AsyncExitStack()
        self._app: ASGIApp | None = None
        self._lock = asyncio.Lock()
        self.node: Node | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        try:
            if (hosts := self._hosts()) is not None:
                check_host(HTTPConnection(scope), hosts)
            app = self._app or await self.start()
        except ForgeError as error:
            if scope["type"] == "websocket":
                await refuse(WebSocket(scope, receive, send), error)
            else:
                await failure(error)(scope, receive, send)
            return
        await app(scope, receive, send)

    async def start(self) -> ASGIApp:
        """Open the node, once."""
        async with self._lock:
            if self._app is None:
                self.node = await self._stack.enter_async_context(self._opening())
                self._app = _Direct(self.node, _routed(self.node, self._title), self._title)
                if self.node.options.origins:  # its headers apply to streams too
                    self._app = self._app.rest
            return self._app

    async def stop(self) -> None:
        """Close the node."""
        async with self._lock:
            self._app, self.node = None, None
            await self._stack.aclose()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except ForgeError as error:
                    await send({"type": "lifespan.startup.failed", "message": f"{error} (fix: {error.fix})"})
                    return
                self._mind_signals()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _mind_signals(self) -> None:
        """End all streams on a stop signal: the server waits for its connections, and streams never end alone."""
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()

        def ending(number: int, frame: FrameType | None) -> None:
            if self.node is not None:
                loop.call_soon_threadsafe(self.node.farewell)
            before = handlers[number]
            if callable(before):
                before(number, frame)

        handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in handlers:
            signal.signal(number, ending)


def _routed(node: Node, title: str) -> ASGIApp:
    routes = HttpRoutes(node, title)

    async def socket(websocket: WebSocket) -> None:
        await Socket(node, websocket).run()

    middleware = []
    if origins := node.options.origins:
        headers = ["authorization", "content-type", "forge-after", "idempotency-key", "last-event-id", "traceparent"]
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST"],
                allow_headers=headers,
                expose_headers=["forge-cache", "forge-repeated", "retry-after"],
            )
        )
    return Starlette(
        routes=[
            Route("/forge/query/{name}", routes.query, methods=["POST"]),
            Route("/forge/mutation/{name}", routes.mutation, methods=["POST"]),
            Route("/forge/live/{name}", _Streaming(routes.live), methods=["GET"]),
            Route("/forge/session", _Streaming(routes.session), methods=["GET"]),
            Route("/forge/session/{id}/subscribe", routes.subscribe, methods=["POST"]),
            Route("/forge/session/{id}/unsubscribe", routes.unsubscribe, methods=["POST"]),
            Route("/forge/session/{id}/auth", routes.renew, methods=["POST"]),
            Route("/forge/changes", _Streaming(lambda *call: changes(node, *call)), methods=["GET"]),
            Route("/forge/history/{table}/{key:key}", functools.partial(history, node), methods=["GET"]),
            Route("/forge/audit", functools.partial(audited, node), methods=["GET"]),
            Route("/versions/available", functools.partial(versions_available, node), methods=["GET"]),
            *(
                Route(
                    f"/versions/{{project}}/{{resource}}{path}",
                    functools.partial(versions_page, node, query),
                    methods=["GET"],
                )
                for path, query in QUERIES.items()
            ),
            Route("/forge/openapi.json", routes.openapi, methods=["GET"]),
            Route("/forge/client.js", client, methods=["GET"]),
            Route("/console", functools.partial(console, node), methods=["GET"]),
            Route("/console/{path:path}", functools.partial(console, node), methods=["GET"]),
            Route("/healthz", routes.healthy, methods=["GET"]),
            Route("/readyz", routes.ready, methods=["GET"]),
            Route("/metrics", routes.metrics, methods=["GET"]),
            WebSocketRoute("/forge/ws", socket),
        ],
        middleware=middleware,
        exception_handlers={HTTPException: _not_routed},
    )


async def _not_routed(request: Request, error: Exception) -> Response:
    """Answer a request without a route like every other error."""
    assert isinstance(error, HTTPException)
    code = error.detail.lower().replace(" ", "_")
    told = {"code": code, "message": f"{request.method} is not answered here", "fix": "/forge/openapi.json lists all"}
    secured = HEADERS if request.url.path.partition("/console")[1] else {}
    return as_json({"error": told}, error.status_code, {**(error.headers or {}), **secured})


class _Key(PathConvertor):
    """The key of a row in a path: any text, including slashes and line breaks."""

    regex = "(?s:.*)"


register_url_convertor("key", _Key())


class _Direct:
    """Route streams past the framework, because every layer between a stream and its client costs time per message."""

    def __init__(self, node: Node, rest: ASGIApp, title: str) -> None:
        self.rest = rest
        self._routes = HttpRoutes(node, title)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            if path == "/forge/session":
                await self._routes.session(scope, receive, send)
                return
            name = path.removeprefix("/forge/live/")
            if name != path and "/" not in name:
                await self._routes.live({**scope, "path_params": {"name": name}}, receive, send)
                return
        await self.rest(scope, receive, send)


class _Streaming:
    """An endpoint that is itself an ASGI app."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
