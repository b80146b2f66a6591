"""Transaction context: the actor and reason of all changes, set once per transaction.

    with forge.transaction(connection, user_id=7, function_name="orders.ship", order=118):
        connection.execute("UPDATE orders SET …")

    async with forge.transaction(async_connection, user_id=7):
        ...

Invariants:

- Everything is checked before anything is sent. A malformed context is a ContextError, and nothing was written.
- The context ends with its block, also after an error, so the next user of a pooled connection starts without one.
  Fields that are not given are null in the log.
- Missing fields come from the surrounding `forge.context`; inside its block, the transaction is itself that context.
- A nested block (a savepoint) keeps the outer fields that it does not set, `more` name by name; when it ends, the outer
  context is restored.
- The context costs one round trip. On a connection in autocommit mode, BEGIN travels with it; otherwise psycopg sends
  BEGIN separately first, as for every transaction.
- If the server's wal_level is logical, the context is also in the WAL, without a further round trip, for readers of the
  WAL (`forge.capture.wal`).
- Without a `trace_id`, the trace of OpenTelemetry's current span is used, if there is one.
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

# The context for readers of the WAL; forge.capture.wal.decode parses it.
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
"""Sets the context of the current transaction; `parameters` returns its parameters."""
# Reads the outer context, as one row, before replacing any part of it.
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
    """Return a transaction, or a savepoint, whose changes carry this context; use `with` or `async with`."""
    mine = context(user_id=user_id, function_name=function_name, trace_id=trace_id, **more)
    values = parameters(mine.here())
    if isinstance(connection, psycopg.AsyncConnection):
        return _async_block(connection, values, mine)
    return _block(connection, values, mine)


def parameters(what: Current) -> dict[str, str | None]:
    """Return the parameters of `SET`: a context in the form of the log."""
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
