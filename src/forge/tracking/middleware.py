"""Request context: user, route and trace; for ASGI (Starlette, FastAPI) and WSGI (Flask).

    web.add_middleware(forge.ContextMiddleware)                                     # scope["user"], where there is one
    web.add_middleware(forge.ContextMiddleware, user=lambda scope: scope["session"].get("user_id"))
    flask_app.wsgi_app = forge.WsgiContextMiddleware(flask_app.wsgi_app, user=lambda environ: g.get("user_id"))

Invariants:

- Nothing is evaluated until a write (or a call of `forge.current()`): by then authentication has run and the route is
  known, at any position of the middleware in the stack. A value that the log cannot store is a ContextError there.
- No header determines the user, unless `user_header` names it: then a proxy must set it and strip the client's own.
- The context is visible to everything the request runs, including threads of the framework's pool and background tasks
  it starts, and to nothing else.
- The trace is that of OpenTelemetry's span, otherwise that of a well-formed W3C `traceparent`.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final, TypeAlias
from uuid import UUID

from forge.tracking.checks import UserId, function_text, more_text, user_text
from forge.tracking.current import Current, context, current_trace_id

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Environ: TypeAlias = dict[str, Any]
WsgiApp: TypeAlias = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]

Who: TypeAlias = Callable[[Any], UserId | None]
More: TypeAlias = Callable[[Any], Mapping[str, Any]]

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")

_asking: ContextVar[tuple["LookupOnce", ...]] = ContextVar("forge_asking", default=())


class ContextMiddleware:
    """ASGI middleware that gives the requests and WebSockets of an application a context.

    `user` returns the user from the scope, `user_header` names a header with the user; without either, it is
    `scope["user"]`: a text, number or UUID itself, or an object's `id`, `identity` or `display_name`, unless the object
    is not authenticated. `more` returns additional fields.
    """

    def __init__(
        self, app: AsgiApp, *, user: Who | None = None, user_header: str | None = None, more: More | None = None
    ) -> None:
        self._app = app
        self._user = _who(user, user_header, _header, _scope_user)
        self._more = more

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        trace = trace_of(_header(scope, "traceparent"))
        user = LookupOnce(lambda: self._user(scope))

        def find() -> Current:
            return found(user(), route_of(scope), trace, self._more(scope) if self._more else {})

        with context.found_by(find):
            await self._app(scope, receive, send)


class WsgiContextMiddleware:
    """WSGI middleware that gives the requests of an application a context, until their last byte is sent.

    `user` and `more` get the environ; both are called within the request, so that Flask's `g`, `session` and
    `current_user` are available. Without `user` or `user_header`, it is REMOTE_USER, which only a server can set.
    """

    def __init__(
        self, app: WsgiApp, *, user: Who | None = None, user_header: str | None = None, more: More | None = None
    ) -> None:
        self._app = app
        self._user = _who(user, user_header, _environ_header, lambda environ: environ.get("REMOTE_USER") or None)
        self._more = more

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        trace = trace_of(_environ_header(environ, "traceparent"))
        user = LookupOnce(lambda: self._user(environ))

        route: str | None = None

        def find() -> Current:
            more = self._more(environ) if self._more else {}
            return found(user(), route or _werkzeug_route(environ), trace, more)

        def started(*arguments: Any, **named: Any) -> Any:
            nonlocal route
            route = _werkzeug_route(environ)  # Flask drops it before the body is produced
            return start_response(*arguments, **named)

        block = context.found_by(find)
        with block:
            return _Body(block, self._app(environ, started))


class _Body:
    """A response body; each part is produced within the request's context, and the thread has none of it in between."""

    def __init__(self, block: context, chunks: Iterable[bytes]) -> None:
        self._block = block
        self._chunks = chunks
        self._rest = iter(chunks)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._block:
            return next(self._rest)

    def close(self) -> None:
        if close := getattr(self._chunks, "close", None):
            with self._block:
                close()


class LookupOnce:
    """The user, looked up until it is known. The lookup may use the database; until it returns, there is no user."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._known: str | None = None

    def __call__(self) -> str | None:
        if self._known is None and self not in (asking := _asking.get()):
            token = _asking.set((*asking, self))
            try:
                self._known = user_text(self._ask())
            finally:
                _asking.reset(token)
        return self._known


def found(user: str | None, function: str | None, trace: str | None, more: Mapping[str, Any]) -> Current:
    """Check a request's values and return its context."""
    more_text(more)
    return Current(user, function_text(function), current_trace_id() or trace, more)


def trace_of(traceparent: str | None) -> str | None:
    """Return the trace of a W3C traceparent; None if it is missing or malformed.

    >>> trace_of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    '4bf92f3577b34da6a3ce929d0e0e4736'
    >>> trace_of("00-00000000000000000000000000000000-00f067aa0ba902b7-01")
    """
    matched = _TRACEPARENT.fullmatch(traceparent or "")
    return matched[1] if matched else None


def route_of(scope: Mapping[str, Any]) -> str | None:
    """Return the method and the declared path of the route, or the endpoint's name; None while neither is known."""
    route = scope.get("route")
    template = getattr(route, "path", None)
    if isinstance(template, str):
        # root_path holds the mounts' part of the path, after the server's own root path
        mounts = scope.get("root_path", "").removeprefix(scope.get("app_root_path", ""))
        return f"{scope.get('method', 'WEBSOCKET')} {mounts}{template if hasattr(route, 'endpoint') else ''}"
    endpoint = scope.get("endpoint")
    if endpoint is None:
        return None
    name = getattr(endpoint, "__qualname__", None) or type(endpoint).__qualname__
    return f"{getattr(endpoint, '__module__', '')}.{name}"


def user_value(user: Any) -> UserId | None:
    """Return the user id of an authentication library's user object."""
    if user is None or user == "" or getattr(user, "is_authenticated", True) is False:
        return None
    if isinstance(user, str | int | UUID):
        return user
    for name in ("id", "identity", "display_name"):
        try:
            value = getattr(user, name, None)
        except NotImplementedError:  # Starlette's SimpleUser has no identity
            continue
        if value not in (None, ""):
            return value  # type: ignore[no-any-return]
    return user  # type: ignore[no-any-return]  # refused, by the name of its type


def _who(user: Who | None, header: str | None, read: Callable[[Any, str], str | None], default: Who) -> Who:
    if user is not None and header is not None:
        raise TypeError("user and user_header are two answers to one question: give one")
    if header is not None:
        return lambda request: read(request, header) or None
    return user or default


def _scope_user(scope: Mapping[str, Any]) -> UserId | None:
    return user_value(scope.get("user"))


def _header(scope: Mapping[str, Any], name: str) -> str | None:
    """Return the header's value; None if it is missing or repeated, because then none can be trusted."""
    wanted = name.lower().encode()
    values = [value for key, value in scope["headers"] if key.lower() == wanted]
    return values[0].decode("latin-1").strip() if len(values) == 1 else None


def _environ_header(environ: Environ, name: str) -> str | None:
    value = environ.get("HTTP_" + name.upper().replace("-", "_"))
    return value.strip() if isinstance(value, str) else None


def _werkzeug_route(environ: Environ) -> str | None:
    """Return the rule that Flask, or another application on Werkzeug, has matched."""
    request = environ.get("werkzeug.request")
    rule = getattr(request, "url_rule", None)
    return f"{environ['REQUEST_METHOD']} {environ.get('SCRIPT_NAME', '')}{rule.rule}" if rule is not None else None
