"""Django integration: requests have a context, and ORM writes carry the present context.

    MIDDLEWARE = [..., "forge.tracking.django.ContextMiddleware"]

The user is `request.user` (or the result of the function named in settings.FORGE_USER, called with the request), the
function is the request's method and the route of its URL, the trace is OpenTelemetry's or that of `traceparent`.
Commands and tasks use `with forge.context(user_id=…):` themselves; the ORM uses that context too.

Invariants:

- The context is sent before the first writing statement of a transaction, in one round trip, and again after it
  changed. Reads cost nothing. A write in autocommit mode gets its own transaction for this.
- The databases are those of settings.FORGE_DATABASES, by default only the default one; a database without Forge raises
  NotInstalled at the first write.
- A write by a function that a SELECT calls carries the context only after an earlier writing statement.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from asgiref.sync import iscoroutinefunction
from django import conf  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]
from django.db.backends.signals import connection_created  # type: ignore[import-untyped]
from django.db.transaction import atomic  # type: ignore[import-untyped]
from django.http import HttpRequest, HttpResponseBase  # type: ignore[import-untyped]
from django.utils.module_loading import import_string  # type: ignore[import-untyped]

from forge.postgres.connection import typed_errors
from forge.tracking.context import SET, parameters
from forge.tracking.current import NOTHING, Current, context, current, said
from forge.tracking.middleware import LookupOnce, found, trace_of

_WRITES: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "CALL", "DO", "TRUNCATE", "COPY"})
_IDLE: Final = 0
"""libpq's transaction status for a connection without a transaction."""

Execute = Callable[[Any, Any, bool, dict[str, Any]], Any]


def ContextMiddleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Middleware for settings.MIDDLEWARE, at any position, under WSGI and ASGI."""
    watch()
    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            with _context(request):
                answer: Awaitable[HttpResponseBase] = get_response(request)
                return await answer

        return asynchronous

    def synchronous(request: HttpRequest) -> HttpResponseBase:
        with _context(request):
            answer: HttpResponseBase = get_response(request)
            return answer

    return synchronous


ContextMiddleware.sync_capable = True  # type: ignore[attr-defined]
ContextMiddleware.async_capable = True  # type: ignore[attr-defined]


def watch() -> None:
    """Make ORM writes carry the context; one call is enough, and the middleware makes it."""
    connection_created.connect(_created, dispatch_uid="forge")
    for connection in connections.all(initialized_only=True):
        _created(connection=connection)


def _created(*, connection: Any, **_: Any) -> None:
    names = getattr(conf.settings, "FORGE_DATABASES", ("default",))
    if connection.vendor != "postgresql" or connection.alias not in names:
        return
    if not any(isinstance(wrapper, _Saying) for wrapper in connection.execute_wrappers):
        connection.execute_wrappers.append(_Saying())


class _Saying:
    """Wrapper of every statement of one connection: sends the context if the transaction does not have it yet."""

    def __init__(self) -> None:
        self._said: Current | None = None

    def __call__(self, execute: Execute, sql: Any, params: Any, many: bool, inner: dict[str, Any]) -> Any:
        connection = inner["connection"]
        if connection.connection.info.transaction_status == _IDLE:
            self._said = None
        verb = _verb(sql)
        if verb in _WRITES:
            if connection.get_autocommit():
                if said() == NOTHING and current().trace_id is None:
                    return execute(sql, params, many, inner)
                with atomic(using=connection.alias):
                    self._say(connection)
                    return execute(sql, params, many, inner)
            self._say(connection)
        elif verb == "ROLLBACK":  # to a savepoint: a context sent after it is undone
            self._said = None
        return execute(sql, params, many, inner)

    def _say(self, connection: Any) -> None:
        now = current()
        if now == (self._said or NOTHING):
            return
        with typed_errors(), connection.connection.cursor() as cursor:
            cursor.execute(SET, parameters(now))
        self._said = now


def _verb(sql: Any) -> str:
    words = str(sql).split(None, 1)
    return words[0].upper() if words else ""


def _context(request: HttpRequest) -> context:
    trace = trace_of(request.headers.get("traceparent"))
    user = LookupOnce(lambda: _user(request))

    def find() -> Current:
        return found(user(), _route(request), trace, {})

    return context.found_by(find)


def _user(request: HttpRequest) -> Any:
    if chosen := getattr(conf.settings, "FORGE_USER", None):
        return (import_string(chosen) if isinstance(chosen, str) else chosen)(request)
    user: Any = getattr(request, "user", None)
    return user.pk if user is not None and user.is_authenticated else None


def _route(request: HttpRequest) -> str | None:
    match = request.resolver_match
    return None if match is None else f"{request.method} /{match.route.lstrip('/')}"
