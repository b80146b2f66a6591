"""The raw feed of a server: every change in order, after a cursor, across any number of reconnects.

Nothing is skipped: a slow consumer slows down the server's sending. The cursor is that of the last change returned. An
application that saves it after it handled the change, and resumes from it, gets every change at least once.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Final, Self

from forge.backoff import Backoff
from forge.change import Change
from forge.client.error_responses import passing, told
from forge.client.http import PATIENT, EventStream, Http
from forge.client.messages import AuthTold, Bye, NoticeMessage, read
from forge.client.sse import ServerSentEvent
from forge.cursor import Cursor
from forge.errors import DecodeError, ForgeError, Unreachable
from forge.wire import decode

_SETTLED: Final = 5.0


class Changes:
    """An async iterator of changes. An exception ends it; iterating again continues from the cursor."""

    def __init__(
        self,
        http: Http,
        tables: Sequence[str],
        after: Cursor | str | None,
        where: Callable[[Change], bool] | None = None,
        backoff: Callable[[], Backoff] = PATIENT,
    ) -> None:
        self._http = http
        self._parameters = [("backpressure", "pause"), *(("table", table) for table in tables)]
        self._where = where
        self._new_backoff = backoff
        self._cursor = None if after is None else str(after)
        self._events: EventStream | None = None
        self._reading: AsyncGenerator[Change, None] | None = None
        self._closed = False
        self._wait = 0.0
        self._expelled: str | None = None
        self.error: Exception | None = None
        """The reason why no changes arrive; None if there is no problem."""

    @property
    def cursor(self) -> str | None:
        """The cursor after the last change returned; None before the server has sent one.

        It also advances while no matching change happens, so that it stays recent.
        """
        return (self._events and self._events.last_id) or self._cursor

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        if self._closed:
            raise StopAsyncIteration
        self._reading = self._reading or self._read()
        try:
            return await anext(self._reading)
        except BaseException:
            await self._stop()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the feed."""
        self._closed = True
        await self._stop()

    async def _stop(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            await reading.aclose()

    async def _read(self) -> AsyncGenerator[Change, None]:
        backoff = self._new_backoff()
        connected = False
        while True:
            opened = time.monotonic()
            self._wait, self._expelled = 0.0, None
            try:
                async with self._http.stream("/forge/changes", self._parameters, self._cursor) as self._events:
                    connected, self.error = True, None
                    async for event in self._events:
                        if event.name == "change":
                            change = self._decoded(event)
                            if self._where is None or self._where(change):
                                yield change
                        else:
                            self._handle(event)
                self.error = Unreachable("the server ended the stream", fix="it is opened again")
                await self._renew()
            except ForgeError as error:
                if not passing(error, connected=connected):
                    raise
                self.error = error
                self._wait = max(self._wait, getattr(error, "retry_after_secs", 0.0))
            finally:
                self._cursor, self._events = self.cursor, None
            if time.monotonic() - opened > _SETTLED:
                backoff.reset()
            await asyncio.sleep(backoff.next(self._wait))

    def _decoded(self, event: ServerSentEvent) -> Change:
        try:
            return decode(event.data)
        except DecodeError:
            self._events = None  # the cursor stays before the unreadable change
            raise

    def _handle(self, event: ServerSentEvent) -> None:
        if event.name == "error":
            message = read(NoticeMessage, event.data)
            raise told(message.code, message.message, message.fix, retry_after_secs=message.retry_after_secs)
        if event.name == "auth":
            self._expelled = read(AuthTold, event.data).reason
        elif event.name == "bye":
            self._wait = read(Bye, event.data).retry_after_ms / 1000

    async def _renew(self) -> None:
        if self._expelled is not None:
            await self._http.tokens.replace(self._expelled)
