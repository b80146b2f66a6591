"""Who writes and why, said once for a transaction.

    with forge.transaction(connection, user_id=7, function_name="orders.ship", order=118):
        connection.execute("UPDATE orders SET …")

    async with forge.transaction(async_connection, user_id=7):
        ...

What always holds:

- Everything is checked before anything is sent. A malformed context is a ContextError, and nothing was written.
- The context lasts as long as its block: it ends with it however that ends, so the next user of a pooled
  connection starts with none. What was not given is null in the log.
- A block within a block (a savepoint) keeps what the outer one said unless it says otherwise, `more` name by name;
  when it ends, the outer context is back.
- The context costs one round trip. On a connection in autocommit mode BEGIN travels with it; else psycopg sends
  BEGIN by itself first, as it does for every transaction.
- Where the server's wal_level is logical the context is in the WAL too, at no further round trip, so that who follows
  the WAL learns it (`forge.capture.wal`).
- Without a `trace_id`, that of OpenTelemetry's current span is taken where there is one.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from importlib import import_module
from typing import Any, Final, TypeAlias, overload
from uuid import UUID

import msgspec
import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from forge.changelog.connection import typed_errors
from forge.errors import ContextError, ForgeError

_otel: Any = None
with suppress(ImportError):
    _otel = import_module("opentelemetry.trace")

UserId: TypeAlias = str | int | UUID

LONGEST_USER: Final = 255
LONGEST_FUNCTION: Final = 255
LONGEST_TRACE: Final = 64
MOST_MORE: Final = 8192
"""Bytes of JSON: every log row of the transaction carries it."""

# What the WAL's readers get of the context; forge.capture.wal.decode reads it.
_EMIT: Final = """
    CASE WHEN current_setting('wal_level') = 'logical' AND current_setting('transaction_read_only') = 'off'
         THEN pg_logical_emit_message(true, 'forge', json_build_object(
                  'user_id', {user}, 'function_name', {function}, 'trace_id', {trace}, 'more', {more},
                  'session_user', session_user, 'application_name', current_setting('application_name'))::text) END"""
_SET: Final = (
    "SELECT public.forge_context(%(user)s, %(function)s, coalesce(%(trace)s, %(span)s), %(more)s::jsonb),"
    + _EMIT.format(
        user="%(user)s::text",
        function="%(function)s::text",
        trace="coalesce(%(trace)s::text, %(span)s)",
        more="%(more)s::jsonb",
    )
)
# The outer context is read, as one row, before any of it is replaced.
_NEST: Final = """
    WITH outer_context AS MATERIALIZED (
        SELECT nullif(current_setting('forge.user_id', true), '') AS "user",
               nullif(current_setting('forge.function_name', true), '') AS function,
               nullif(current_setting('forge.trace_id', true), '') AS trace,
               nullif(current_setting('forge.context', true), '') AS more
    ), inner_context AS (
        SELECT coalesce(%(user)s, "user") AS "user", coalesce(%(function)s, function) AS function,
               coalesce(%(trace)s, trace, %(span)s) AS trace,
               coalesce(more::jsonb || %(more)s::jsonb, %(more)s::jsonb, more::jsonb) AS more
        FROM outer_context
    )
    SELECT o."user", o.function, o.trace, o.more, public.forge_context(i."user", i.function, i.trace, i.more),""" + (
    _EMIT.format(user='i."user"', function="i.function", trace="i.trace", more="i.more")
    + " FROM outer_context o, inner_context i"
)
_FIELDS: Final = ("user", "function", "trace", "more")
_RESTORE: Final = "SELECT public.forge_context(%(user)s, %(function)s, %(trace)s, %(more)s::jsonb)," + _EMIT.format(
    user="%(user)s::text", function="%(function)s::text", trace="%(trace)s::text", more="%(more)s::jsonb"
)


@overload
def transaction(
    connection: psycopg.Connection[Any],
    /,
    *,
    user_id: UserId | None = None,
    function_name: str | None = None,
    trace_id: str | None = None,
    **more: Any,
) -> AbstractContextManager[psycopg.Transaction]: ...


@overload
def transaction(
    connection: psycopg.AsyncConnection[Any],
    /,
    *,
    user_id: UserId | None = None,
    function_name: str | None = None,
    trace_id: str | None = None,
    **more: Any,
) -> AbstractAsyncContextManager[psycopg.AsyncTransaction]: ...


def transaction(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    /,
    *,
    user_id: UserId | None = None,
    function_name: str | None = None,
    trace_id: str | None = None,
    **more: Any,
) -> AbstractContextManager[psycopg.Transaction] | AbstractAsyncContextManager[psycopg.AsyncTransaction]:
    """A transaction, or a savepoint within one, whose changes carry this context; used by `with` or `async with`."""
    if isinstance(user_id, int | UUID) and not isinstance(user_id, bool):
        user_id = str(user_id)
    values = {
        "user": text_value("user_id", user_id, LONGEST_USER),
        "function": text_value("function_name", function_name, LONGEST_FUNCTION),
        "trace": text_value("trace_id", trace_id, LONGEST_TRACE),
        "span": current_trace_id() if trace_id is None else None,
        "more": _more(more),
    }
    if isinstance(connection, psycopg.AsyncConnection):
        return _async_block(connection, values)
    return _block(connection, values)


def text_value(name: str, value: object, longest: int) -> str | None:
    """The value, if PostgreSQL and the log can hold it as it is."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ContextError(f"{name} is of type {type(value).__name__}", fix=f"pass {name} as text")
    if not value:
        raise ContextError(f"{name} is empty", fix="pass None, or leave it out, where there is none")
    if len(value) > longest:
        raise ContextError(f"{name} has {len(value)} characters; {longest} is the most", fix=f"shorten {name}")
    if problem := unstorable(value):
        raise ContextError(f"{name} has {problem}", fix="pass text that PostgreSQL can store")
    return value


def unstorable(value: str) -> str | None:
    """What in a text PostgreSQL cannot store; None when it can."""
    if "\0" in value:
        return "a NUL character"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair"
    return None


def json_text(name: str, value: object, error: type[ForgeError]) -> str:
    """The value as JSON that a jsonb column can hold, or an error of the given type."""
    try:
        plain = msgspec.to_builtins(value, str_keys=True)
        found = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        problem = _unstorable_part(plain)
    except (TypeError, ValueError, RecursionError) as reason:
        line = str(reason).splitlines()[0] if str(reason) else type(reason).__name__
        raise error(f"{name} is not JSON: {line}", fix="pass numbers, text, lists, dicts, dates and the like") from None
    if problem:
        raise error(f"{name} has {problem}", fix="pass text that PostgreSQL can store")
    return found


def _unstorable_part(value: object) -> str | None:
    if isinstance(value, str):
        return unstorable(value)
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        return None
    return next((problem for part in parts if (problem := _unstorable_part(part))), None)


def _more(more: dict[str, Any]) -> str | None:
    if not more:
        return None
    for name, value in more.items():
        json_text(name, value, ContextError)
    found = json_text("the context", more, ContextError)
    if (size := len(found.encode())) > MOST_MORE:
        raise ContextError(
            f"the context has {size} bytes; {MOST_MORE} is the most", fix="keep the data in a table and pass its key"
        )
    return found


def current_trace_id() -> str | None:
    """The trace of OpenTelemetry's current span, as 32 hexadecimal digits; None where there is none."""
    if _otel is None:
        return None
    span = _otel.get_current_span().get_span_context()
    return format(span.trace_id, "032x") if span.is_valid else None


@contextmanager
def _block(connection: psycopg.Connection[Any], values: dict[str, str | None]) -> Iterator[psycopg.Transaction]:
    nested = connection.info.transaction_status != TransactionStatus.IDLE
    cursor = connection.cursor(row_factory=tuple_row)
    with ExitStack() as stack:
        if connection.info.pipeline_status != PipelineStatus.OFF:
            stack.enter_context(connection.pipeline())
        with typed_errors(), ExitStack() as together:
            if (nested or connection.autocommit) and psycopg.Pipeline.is_supported():
                together.enter_context(connection.pipeline())
            opened = stack.enter_context(psycopg.Transaction(connection))
            cursor.execute(_NEST if nested else _SET, values, prepare=False)
        outer = cursor.fetchone()
        yield opened
        if nested and outer is not None:
            cursor.execute(_RESTORE, dict(zip(_FIELDS, outer, strict=False)), prepare=False)


@asynccontextmanager
async def _async_block(
    connection: psycopg.AsyncConnection[Any], values: dict[str, str | None]
) -> AsyncIterator[psycopg.AsyncTransaction]:
    nested = connection.info.transaction_status != TransactionStatus.IDLE
    cursor = connection.cursor(row_factory=tuple_row)
    async with AsyncExitStack() as stack:
        if connection.info.pipeline_status != PipelineStatus.OFF:
            await stack.enter_async_context(connection.pipeline())
        with typed_errors():
            async with AsyncExitStack() as together:
                if (nested or connection.autocommit) and psycopg.AsyncPipeline.is_supported():
                    await together.enter_async_context(connection.pipeline())
                opened = await stack.enter_async_context(psycopg.AsyncTransaction(connection))
                await cursor.execute(_NEST if nested else _SET, values, prepare=False)
        outer = await cursor.fetchone()
        yield opened
        if nested and outer is not None:
            await cursor.execute(_RESTORE, dict(zip(_FIELDS, outer, strict=False)), prepare=False)
