"""The raw feed of a server: every change in order, from a cursor on, however often the connection breaks.

Nothing is left out: a consumer that is slow slows the server's sending to it. At least once: what follows the cursor of
a broken connection is sent again, and `cursor` is that of the last change given; save it after the change was handled.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, Self

from forge.change import Change
from forge.client.backoff import Backoff
from forge.client.errors import Failed, TooMany, Unauthorized, Unreachable, told
from forge.client.http import Http
from forge.client.messages import About, AuthTold, Bye, read
from forge.cursor import Cursor
from forge.wire import decode

_SETTLED: Final = 5.0


class Changes:
    """An async iterator of changes."""

    def __init__(
        self,
        http: Http,
        tables: Sequence[str],
        after: Cursor | str | None,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        self._http = http
        self._tables = tuple(tables)
        self._new_backoff = backoff
        self._reading: AsyncGenerator[tuple[Change, str | None], None] | None = None
        self._closed = False
        self.cursor: str | None = None if after is None else str(after)
        """What `after` takes to go on behind the last change given; None before the server has said where it is."""
        self.error: Exception | None = None
        """Why there is nothing new now; None when all is well."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        if self._closed:
            raise StopAsyncIteration
        if self._reading is None:
            self._reading = self._read()
        try:
            change, self.cursor = await anext(self._reading)
        except BaseException:
            # a read that was broken off starts again at the cursor
            reading, self._reading = self._reading, None
            if reading is not None:
                await reading.aclose()
            raise
        return change

    async def aclose(self) -> None:
        """End it."""
        self._closed = True
        reading, self._reading = self._reading, None
        if reading is not None:
            await reading.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _read(self) -> AsyncGenerator[tuple[Change, str | None], None]:
        backoff = self._new_backoff()
        while True:
            opened = time.monotonic()
            wait = 0.0
            expelled: str | None = None
            try:
                async with self._http.stream("/forge/changes", self._parameters(), self.cursor) as events:
                    async for event in events:
                        self.error = None
                        if event.name == "change":
                            yield decode(event.data), event.id or self.cursor
                        elif event.name == "error":
                            raise _error(read(About, event.data))
                        elif event.name == "auth":
                            expelled = read(AuthTold, event.data).reason
                        elif event.name == "bye":
                            wait = read(Bye, event.data).retry_after_ms / 1000
                        self.cursor = event.id or self.cursor
                self.error = Unreachable("the server ended the stream", fix="it is opened again")
                if expelled is not None:
                    await self._new_token(expelled)
            except (Failed, TooMany, Unreachable) as error:
                self.error = error
                wait = max(wait, getattr(error, "retry_after_secs", 0.0))
            if time.monotonic() - opened > _SETTLED:
                backoff.reset()
            await asyncio.sleep(backoff.next(wait))

    def _parameters(self) -> dict[str, str]:
        return {"tables": ",".join(self._tables)} if self._tables else {}

    async def _new_token(self, reason: str) -> None:
        tokens = self._http.tokens
        if not tokens.renewable:
            raise Unauthorized(f"the token is {reason}", fix="connect with a newer token", code=reason)
        await tokens.newer(await tokens.current())


def _error(message: About) -> Exception:
    return told(message.code, message.message, message.fix, retry_after_secs=message.retry_after_secs)
