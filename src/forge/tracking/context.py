"""Who writes and why, said once for a transaction.

    with forge.transaction(connection, user_id=7, function_name="orders.ship", order=118):
        connection.execute("UPDATE orders SET …")

    async with forge.transaction(async_connection, user_id=7):
        ...

What always holds:

- Everything is checked before anything is sent. A malformed context is a ContextError, and nothing was written.
- The context lasts as long as its block: it ends with it however that ends, so the next user of a pooled
  connection starts with none. What was not given is null in the log.
- What it is not told it takes from the `forge.context` around it, and within its block it is itself that context.
- A block within a block (a savepoint) keeps what the outer one said unless it says otherwise, `more` name by name;
  when it ends, the outer context is back.
- The context costs one round trip. On a connection in autocommit mode BEGIN travels with it; else psycopg sends
  BEGIN by itself first, as it does for every transaction.
- Where the server's wal_level is logical the context is in the WAL too, at no further round trip, so that who follows
  the WAL learns it (`forge.capture.wal`).
- Without a `trace_id`, that of OpenTelemetry's current span is taken where there is one.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Final, overload

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from forge.postgres.connection import typed_errors
from forge.tracking.checks import UserId, more_text
from forge.tracking.current import Current, context, current_trace_id

# What the WAL's readers get of the context; forge.capture.wal.decode reads it.
_EMIT: Final = """
    CASE WHEN current_setting('wal_level') = 'logical' AND current_setting('transaction_read_only') = 'off'
         THEN pg_logical_emit_message(true, 'forge', json_build_object(
                  'user_id', {user}, 'function_name', {function}, 'trace_id', {trace}, 'more', {more},
                  'session_user', session_user, 'application_name', current_setting('application_name'))::text) END"""
SET: Final = (
    "SELECT public.forge_context(%(user)s, %(function)s, coalesce(%(trace)s, %(span)s), %(more)s::jsonb),"
    + _EMIT.format(
        user="%(user)s::text",
        function="%(function)s::text",
        trace="coalesce(%(trace)s::text, %(span)s)",
        more="%(more)s::jsonb",
    )
)
"""Sets the context of the transaction that it runs in; its parameters are those that `parameters` gives."""
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
    mine = context(user_id=user_id, function_name=function_name, trace_id=trace_id, **more)
    values = parameters(mine.here())
    if isinstance(connection, psycopg.AsyncConnection):
        return _async_block(connection, values, mine)
    return _block(connection, values, mine)


def parameters(what: Current) -> dict[str, str | None]:
    """The parameters of `SET`: a context as the log holds it."""
    return {
        "user": what.user_id,
        "function": what.function_name,
        "trace": what.trace_id,
        "span": current_trace_id() if what.trace_id is None else None,
        "more": more_text(what.more),
    }


@contextmanager
def _block(
    connection: psycopg.Connection[Any], values: dict[str, str | None], mine: context
) -> Iterator[psycopg.Transaction]:
    nested = connection.info.transaction_status != TransactionStatus.IDLE
    cursor = connection.cursor(row_factory=tuple_row)
    with ExitStack() as stack:
        if connection.info.pipeline_status != PipelineStatus.OFF:
            stack.enter_context(connection.pipeline())
        with typed_errors(), ExitStack() as together:
            if (nested or connection.autocommit) and psycopg.Pipeline.is_supported():
                together.enter_context(connection.pipeline())
            opened = stack.enter_context(psycopg.Transaction(connection))
            cursor.execute(_NEST if nested else SET, values, prepare=False)
        outer = cursor.fetchone()
        with mine:
            yield opened
        if nested and outer is not None:
            cursor.execute(_RESTORE, dict(zip(_FIELDS, outer, strict=False)), prepare=False)


@asynccontextmanager
async def _async_block(
    connection: psycopg.AsyncConnection[Any], values: dict[str, str | None], mine: context
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
                await cursor.execute(_NEST if nested else SET, values, prepare=False)
        outer = await cursor.fetchone()
        with mine:
            yield opened
        if nested and outer is not None:
            await cursor.execute(_RESTORE, dict(zip(_FIELDS, outer, strict=False)), prepare=False)
