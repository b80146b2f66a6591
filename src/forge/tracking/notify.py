"""Application messages over PostgreSQL's LISTEN and NOTIFY.

    with forge.transaction(connection, user_id=7):
        connection.execute("UPDATE …")
        forge.notify(connection, "orders", {"shipped": 118})      # an AsyncConnection: await forge.notify(…)

    async for message in listen(url, "orders"):
        print(message.channel, message.payload)

A message belongs to the sender's transaction: it is delivered after the commit, in commit order, and never after a
rollback. A payload that is too large for NOTIFY is stored in a table for a day and sent by reference; `listen` delivers
it in full. A receiver that is not listening at that moment misses the message: use the log for guaranteed delivery.

`listen` has its own connection. It probes an idle connection, so that a half-open connection is detected, and it
reconnects after every loss; messages sent in between are missed.
"""

import asyncio
import logging
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Self, TypeVar, overload

import msgspec
import psycopg
from psycopg import sql

from forge.errors import NotifyError, ServerError
from forge.postgres.connection import AsyncConnection, connect_async, typed_errors
from forge.postgres.text import unstorable
from forge.tasks import observed
from forge.tracking.checks import json_text

RESERVED: Final = "forge_changes"
LONGEST_CHANNEL: Final = 63

_QUIET: Final = 10.0
_ANSWER: Final = 5.0
_FETCH: Final = 60.0
_LONGEST_PAUSE: Final = 10.0
_SEND: Final = "SELECT public.forge_notify(%s, %s)"
_PAYLOAD: Final = (
    "SELECT CASE WHEN octet_length(p.text) <= coalesce(%s::bigint, 2147483647) THEN p.text END"
    " FROM (SELECT public.forge_payload(%s::uuid) AS text OFFSET 0) p"
)
_REFERENCE: Final = re.compile(r'\{"forge_ref" ?: ?"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"\}')

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Notification(msgspec.Struct, frozen=True):
    """A message as sent; a payload that was not text is JSON."""

    channel: str
    payload: str


@overload
def notify(connection: psycopg.Connection[Any], channel: str, payload: object) -> None: ...


@overload
def notify(connection: psycopg.AsyncConnection[Any], channel: str, payload: object) -> Awaitable[None]: ...


def notify(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], channel: str, payload: object
) -> Awaitable[None] | None:
    """Send a message within the connection's transaction: text unchanged, anything else as JSON."""
    values = (checked_channel(channel), _text(payload))
    if isinstance(connection, psycopg.AsyncConnection):
        return _notify(connection, values)
    with typed_errors():
        connection.execute(_SEND, values)
    return None


async def _notify(connection: psycopg.AsyncConnection[Any], values: tuple[str, str]) -> None:
    with typed_errors():
        await connection.execute(_SEND, values)


def checked_channel(channel: object) -> str:
    """Return the channel name if messages can be sent to it."""
    if not isinstance(channel, str) or not channel or unstorable(channel) or channel == RESERVED:
        problem = f"{channel!r} cannot be a channel"
    elif len(channel.encode()) > LONGEST_CHANNEL:
        problem = f"the channel {channel[:20]!r}… has more than {LONGEST_CHANNEL} bytes"
    else:
        return channel
    raise NotifyError(problem, fix=f"use a name of 1 to {LONGEST_CHANNEL} bytes other than {RESERVED}")


def _text(payload: object) -> str:
    if not isinstance(payload, str):
        return json_text("the payload", payload, NotifyError)
    if problem := unstorable(payload):
        raise NotifyError(f"the payload has {problem}", fix="send text that PostgreSQL can store, or JSON")
    return payload


def listen(url: str, *channels: str, longest: int | None = None) -> "NotificationListener":
    """Iterate over the messages on these channels, without end.

    It starts to listen when the first message is awaited, or on entering `async with`; after that, no message is missed
    while the connection holds. The first connection must succeed; later ones are retried.

    With `longest`, a larger or late payload is an empty text: for receivers that do not trust the senders.
    """
    if not channels:
        raise NotifyError("there is no channel to listen on", fix="name one or more")
    return NotificationListener(url, tuple(checked_channel(channel) for channel in channels), longest)


class NotificationListener(AsyncIterator[Notification]):
    """An endless iterator of messages; `aclose`, or leaving `async with`, closes its connection."""

    def __init__(self, url: str, channels: tuple[str, ...], longest: int | None = None) -> None:
        self._longest = longest
        self._url = url
        self._channels = channels
        self._connection: AsyncConnection | None = None
        self._received: deque[psycopg.Notify] = deque()
        self._closed = False
        self.on_reconnect: Callable[[], None] | None = None
        """Called when it listens again after a lost connection: messages sent in between are lost."""

    async def __aenter__(self) -> Self:
        if self._connection is None:
            self._connection = await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notification:
        if self._connection is None and not self._closed:
            self._connection = await self._connect()
        while not self._closed:
            try:
                if (message := await self._next()) is not None:
                    return message
            except (psycopg.OperationalError, TimeoutError) as error:
                if not self._closed:
                    logger.warning("the listener's connection is lost: %s", error)
                    await self._reconnect()
        raise StopAsyncIteration

    async def _next(self) -> Notification | None:
        """Return one message, or None if none arrived for some time but the server answers."""
        connection = self._connection
        assert connection is not None
        if not self._received:
            async for received in connection.notifies(timeout=_QUIET, stop_after=1):
                self._received.append(received)
        if not self._received:
            await _within(_ANSWER, connection, connection.execute("SELECT 1"))
            return None
        first = self._received[0]
        payload = await _within(_FETCH, connection, self._resolve(connection, first.payload))
        self._received.popleft()
        return None if payload is None else Notification(first.channel, payload)

    async def _resolve(self, connection: AsyncConnection, payload: str) -> str | None:
        if (match := _REFERENCE.fullmatch(payload)) is None:
            return payload
        cursor = await connection.execute(_PAYLOAD, (self._longest, match[1]))
        row = await cursor.fetchone()
        if row is None or row[0] is None:
            if self._longest is not None:
                return ""
            logger.warning("a large payload came too late: it is kept for a day only")
            return None
        return str(row[0])

    async def _connect(self) -> AsyncConnection:
        connection = await connect_async(self._url, application_name="forge listen")
        try:
            for channel in self._channels:
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _reconnect(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                await self._connection.close()
        pause = 0.1
        while not self._closed:
            try:
                self._connection = await self._connect()
                if self.on_reconnect is not None:
                    self.on_reconnect()
                return
            except (psycopg.OperationalError, ServerError) as error:
                logger.warning("the listener cannot connect: %s", error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(_LONGEST_PAUSE, 2 * pause)


async def _within(seconds: float, connection: AsyncConnection, work: Awaitable[T]) -> T:
    """Return the result; after a timeout, close the connection without sending anything to the silent server."""
    task = observed(asyncio.ensure_future(work))
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError("the server does not answer")
        return task.result()
    finally:
        if not task.done():
            await connection.close()
            task.cancel()
            await asyncio.wait({task})
