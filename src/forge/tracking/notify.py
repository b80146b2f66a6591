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
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Self, overload

import msgspec
import psycopg

from forge.backoff import Backoff
from forge.errors import NotifyError
from forge.postgres.connection import typed_errors
from forge.postgres.held_session import LOST, AsyncHeldSession, Reconnect
from forge.postgres.text import unstorable
from forge.tracking.checks import json_text

RESERVED: Final = "forge_changes"
LONGEST_CHANNEL: Final = 63

_QUIET: Final = 10.0
_ANSWER: Final = 5.0
_FETCH: Final = 60.0
_PAUSES: Final = (0.1, 10.0)
_SEND: Final = "SELECT public.forge_notify(%s, %s)"
_PAYLOAD: Final = (
    "SELECT CASE WHEN octet_length(p.text) <= coalesce(%(longest)s::bigint, 2147483647) THEN p.text END"
    " FROM (SELECT public.forge_payload(%(reference)s::uuid) AS text OFFSET 0) p"
)
_REFERENCE: Final = re.compile(r'\{"forge_ref" ?: ?"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"\}')

logger = logging.getLogger(__name__)


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
        self._session: AsyncHeldSession | None = None
        self._reconnect = Reconnect(logger, f"listening on {', '.join(channels)}", Backoff(*_PAUSES))
        self._received: deque[psycopg.Notify] = deque()
        self._closed = False
        self.on_reconnect: Callable[[], None] | None = None
        """Called when it listens again after a lost connection: messages sent in between are lost."""

    async def __aenter__(self) -> Self:
        if self._session is None:
            await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notification:
        while not self._closed:
            try:
                if self._session is None:
                    await self._open()
                if (message := await self._next()) is not None:
                    return message
            except LOST as error:
                if not self._closed:
                    await self._lose(error)
        raise StopAsyncIteration

    async def _next(self) -> Notification | None:
        """Return one message, or None if none arrived for some time but the server answers."""
        session = self._session
        if session is None or self._closed:
            return None
        if not self._received:
            self._received += await session.heard(_QUIET)
        if not self._received:
            await session.ping()
            return None
        first = self._received[0]
        payload = await self._resolve(session, first.payload)
        self._received.popleft()
        return None if payload is None else Notification(first.channel, payload)

    async def _resolve(self, session: AsyncHeldSession, payload: str) -> str | None:
        if (match := _REFERENCE.fullmatch(payload)) is None:
            return payload
        asked = {"longest": self._longest, "reference": match[1]}
        async with session.turn:
            rows = await session.ask_in_turn(_PAYLOAD, asked, answer=_FETCH)
        if not rows or rows[0][0] is None:
            if self._longest is not None:
                return ""
            logger.warning("a large payload came too late: it is kept for a day only")
            return None
        return str(rows[0][0])

    async def _open(self) -> None:
        session = await AsyncHeldSession.open(self._url, "forge listen", answer=_ANSWER)
        try:
            await session.listen(*self._channels)
        except BaseException:
            await session.close()
            raise
        self._session = session
        if self._closed:
            await session.close()
        elif self._reconnect.connected and self.on_reconnect is not None:
            self.on_reconnect()
        self._reconnect.opened()
        self._reconnect.works()

    async def _lose(self, error: Exception) -> None:
        """Close the lost session, and wait before the next is opened."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await asyncio.sleep(self._reconnect.failed(error))
