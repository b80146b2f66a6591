"""Transactional messages: put into the outbox together with the rows they describe, accepted once on arrival.

    with connection.transaction():
        connection.execute("UPDATE orders SET status = 'paid' WHERE id = 7")
        forge.outbox(connection, "order.paid", {"id": 7}, key=7)       # async kinds: await forge.outbox(…)

    with connection.transaction():
        if forge.inbox(connection, message_id, consumer="billing"):    # False if it was accepted before
            ...

Invariants:

- A message is in the outbox if, and only if, the transaction commits. It is one statement on the caller's connection:
  of psycopg or SQLAlchemy, a connection or a session, sync or async.
- Everything is checked before anything is sent: an invalid message is an OutboxError, and nothing was written.
- Text and bytes are sent unchanged, anything else as JSON.
- A message needs a transaction: a connection in autocommit mode is refused.
"""

import re
from collections.abc import Awaitable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, overload
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import scalar_row

from forge.errors import NotInstalled, OutboxError, ServerError
from forge.postgres.connection import translate
from forge.postgres.text import unstorable
from forge.tracking.checks import json_text
from forge.tracking.paused import without_tracking

if TYPE_CHECKING:
    import sqlalchemy.orm
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    Sync: TypeAlias = "psycopg.Connection[Any] | sqlalchemy.Connection | sqlalchemy.orm.Session"
    Async: TypeAlias = "psycopg.AsyncConnection[Any] | AsyncConnection | AsyncSession"

Key: TypeAlias = str | int | UUID
MOST_PAYLOAD: Final = 1024 * 1024
MOST_KEY: Final = 512
MOST_HEADERS: Final = 8192
LONGEST_WAIT: Final = timedelta(days=3660)
TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,199}")
TOPIC_FIX: Final = "use 1 to 200 letters, digits and . _ : / - such as order.paid"

_PUT: Final = (
    "SELECT public.forge_outbox(CAST({topic} AS text), CAST({payload} AS bytea), CAST({key} AS text),"
    " CAST({content_type} AS text), CAST({headers} AS jsonb), coalesce(CAST({at} AS timestamptz),"
    " clock_timestamp() + CAST({delay} AS double precision) * interval '1 second'))::text"
)
_TAKE: Final = "SELECT public.forge_inbox(CAST({consumer} AS text), CAST({message_id} AS text))"
_FIELDS: Final = ("topic", "payload", "key", "content_type", "headers", "at", "delay", "consumer", "message_id")
_NATIVE: Final = {name: f"%({name})s" for name in _FIELDS}
_ALCHEMY: Final = {name: f":{name}" for name in _FIELDS}


@overload
def outbox(
    tx: "Sync",
    topic: str,
    payload: object,
    *,
    key: Key | None = None,
    headers: Mapping[str, str] | None = None,
    after: datetime | timedelta | None = None,
) -> str: ...


@overload
def outbox(
    tx: "Async",
    topic: str,
    payload: object,
    *,
    key: Key | None = None,
    headers: Mapping[str, str] | None = None,
    after: datetime | timedelta | None = None,
) -> Awaitable[str]: ...


def outbox(
    tx: Any,
    topic: str,
    payload: object,
    *,
    key: Key | None = None,
    headers: Mapping[str, str] | None = None,
    after: datetime | timedelta | None = None,
) -> Any:
    """Put a message into the outbox within a transaction; return its id. It is sent after the commit, or `after` that.

    Messages with one key are sent in the order of non-overlapping transactions: call it when the row of the key is
    written, and therefore locked. Messages without a key are sent in any order.
    """
    return _ask(tx, _PUT, message(topic, payload, key=key, headers=headers, after=after))


@overload
def inbox(tx: "Sync", message_id: str, *, consumer: str) -> bool: ...


@overload
def inbox(tx: "Async", message_id: str, *, consumer: str) -> Awaitable[bool]: ...


def inbox(tx: Any, message_id: str, *, consumer: str) -> Any:
    """Whether this transaction is the first to accept the message; a rollback undoes it.

    A concurrent transaction that accepts the same message waits for the end of this one.
    """
    return _ask(tx, _TAKE, {"consumer": _name("consumer", consumer), "message_id": _name("message_id", message_id)})


def message(
    topic: object,
    payload: object,
    *,
    key: object = None,
    headers: object = None,
    after: object = None,
) -> dict[str, Any]:
    """Return the parts of a message in the database's form; raise OutboxError."""
    if not isinstance(topic, str) or not TOPIC.fullmatch(topic):
        raise OutboxError(f"{_short(topic)} cannot be a topic", fix=TOPIC_FIX)
    data, content_type = _payload(payload)
    if len(data) > MOST_PAYLOAD:
        raise OutboxError(
            f"the payload has {len(data):,} bytes; {MOST_PAYLOAD:,} is the most",
            fix="keep the data in a table and send its key",
        )
    at, delay = _due(after)
    return {
        "topic": topic,
        "payload": data,
        "key": _key(key),
        "content_type": content_type,
        "headers": _headers(headers),
        "at": at,
        "delay": delay,
    }


def _payload(payload: object) -> tuple[bytes, str]:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), "application/octet-stream"
    if isinstance(payload, str):
        try:
            return payload.encode(), "text/plain; charset=utf-8"
        except UnicodeEncodeError:
            raise OutboxError("the payload has half of a surrogate pair", fix="send it as bytes") from None
    return json_text("the payload", payload, OutboxError).encode(), "application/json"


def _key(key: object) -> str | None:
    if key is None:
        return None
    if isinstance(key, int | UUID) and not isinstance(key, bool):
        key = str(key)
    if not isinstance(key, str):
        raise OutboxError(f"key is of type {type(key).__name__}", fix="pass text, a whole number or a UUID")
    if not key or unstorable(key) or len(key.encode()) > MOST_KEY:
        raise OutboxError(f"{_short(key)} cannot be a key", fix=f"pass text of 1 to {MOST_KEY} bytes, without NUL")
    return key


def _headers(headers: object) -> str | None:
    if headers is None or headers == {}:
        return None
    if not isinstance(headers, Mapping) or not all(
        isinstance(name, str) and isinstance(value, str) for name, value in headers.items()
    ):
        raise OutboxError("headers are not text by text", fix='pass headers={"name": "value"}')
    if bad := next((name for name, value in headers.items() if not _printable(name, value)), None):
        raise OutboxError(f"the header {_short(bad)} has control characters, or no name", fix="pass printable text")
    found = json_text("headers", dict(headers), OutboxError)
    if len(found.encode()) > MOST_HEADERS:
        raise OutboxError(f"headers have more than {MOST_HEADERS:,} bytes", fix="put the data into the payload")
    return found


def _printable(name: str, value: str) -> bool:
    """Whether they cannot end a header and start another."""
    return bool(name.strip()) and not any(ord(letter) < 32 or ord(letter) == 127 for letter in name + value)


def _due(after: object) -> tuple[datetime | None, float | None]:
    if after is None:
        return None, None
    if isinstance(after, timedelta):
        if after > LONGEST_WAIT:
            raise OutboxError(f"a message cannot wait {after.days:,} days", fix="send it when its time comes")
        return None, max(0.0, after.total_seconds())
    if not isinstance(after, datetime):
        raise OutboxError(f"after is of type {type(after).__name__}", fix="pass a datetime or a timedelta")
    if after.tzinfo is None:
        raise OutboxError("after has no time zone", fix="pass datetime.now(UTC) + … or a timedelta")
    return after, None


def _name(what: str, value: object) -> str:
    if not isinstance(value, str) or not value or unstorable(value) or len(value.encode()) > MOST_KEY:
        raise OutboxError(f"{_short(value)} cannot be a {what}", fix=f"pass text of 1 to {MOST_KEY} bytes, without NUL")
    return value


def _short(value: object) -> str:
    found = repr(value)
    return found if len(found) <= 42 else found[:40] + "…"


def _ask(tx: Any, statement: str, values: dict[str, Any]) -> Any:
    if isinstance(tx, psycopg.AsyncConnection):
        return _ask_async(tx, statement, values)
    if isinstance(tx, psycopg.Connection):
        _check(tx)
        try:
            return tx.cursor(row_factory=scalar_row).execute(statement.format(**_NATIVE), values).fetchone()
        except psycopg.Error as error:
            _explain(error)
    if type(tx).__module__.startswith("sqlalchemy.") or _is_alchemy(tx):
        return _ask_alchemy(tx, statement, values)
    raise OutboxError(
        f"a {type(tx).__name__} is not a transaction's connection",
        fix="pass a connection of psycopg, or a connection or session of SQLAlchemy",
    )


async def _ask_async(tx: psycopg.AsyncConnection[Any], statement: str, values: dict[str, Any]) -> Any:
    _check(tx)
    try:
        cursor = await tx.cursor(row_factory=scalar_row).execute(statement.format(**_NATIVE), values)
        return await cursor.fetchone()
    except psycopg.Error as error:
        _explain(error)


def _check(tx: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if tx.autocommit and tx.info.transaction_status is TransactionStatus.IDLE:
        _no_transaction()


def _no_transaction() -> NoReturn:
    raise OutboxError("the connection is in no transaction", fix="call it within connection.transaction()")


def _is_alchemy(tx: object) -> bool:
    return any(base.__module__.startswith("sqlalchemy.") for base in type(tx).__mro__)


def _ask_alchemy(tx: Any, statement: str, values: dict[str, Any]) -> Any:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    query = text(statement.format(**_ALCHEMY))
    if isinstance(tx, AsyncConnection | AsyncSession | async_scoped_session):
        return _await_alchemy(tx, query, values)
    _check_alchemy(tx.connection() if hasattr(tx, "get_bind") else tx)
    try:
        with without_tracking():
            return tx.execute(query, values).scalar_one()
    except _database_errors() as error:
        _explain(error.orig if isinstance(error.orig, psycopg.Error) else error)


async def _await_alchemy(tx: Any, query: Any, values: dict[str, Any]) -> Any:
    connection = await tx.connection() if hasattr(tx, "get_bind") else tx
    _check_alchemy(connection.sync_connection)
    try:
        with without_tracking():
            return (await tx.execute(query, values)).scalar_one()
    except _database_errors() as error:
        _explain(error.orig if isinstance(error.orig, psycopg.Error) else error)


def _database_errors() -> Any:
    from sqlalchemy.exc import DBAPIError

    return DBAPIError


def _check_alchemy(connection: Any) -> None:
    if connection.dialect.name != "postgresql":
        raise OutboxError(f"{connection.dialect.name} has no outbox", fix="use the PostgreSQL that Forge is in")
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        _no_transaction()


def _explain(error: Exception) -> NoReturn:
    """Raise the Forge error for a server error."""
    state = getattr(error, "sqlstate", None)
    if state == "42501":
        raise OutboxError(
            "this role may not use the outbox",
            fix="as the owner: GRANT EXECUTE ON FUNCTION forge_outbox, forge_inbox TO the role",
        ) from error
    if state == "25006":
        raise OutboxError(
            "the transaction is read-only", fix="send messages from a transaction that may write"
        ) from error
    typed = translate(error) if isinstance(error, psycopg.Error) else None
    if isinstance(typed, OutboxError | NotInstalled | ServerError):
        raise typed from error
    raise error
