"""Write a stream of events: directly if the client keeps up, otherwise when it can take more.

Most pushes meet a client that has read everything. They are written directly, without waking a task, because in a
fan-out to thousands of clients the wake-ups would be most of the cost. With a slow client, the server's `send` blocks;
then the session's own task waits, and new pushes queue in the session, the latest per subscription.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from starlette.types import Message, Receive, Send

from forge.serve.messages import PING
from forge.serve.session import Session

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Stream:
    """The response of one session."""

    def __init__(self, session: Session, send: Send, events: Callable[[Session], bytes]) -> None:
        self._session = session
        self._send = send
        self._events = events
        self._begun: Awaitable[None] | None = None

    async def run(self, receive: Receive, hello: bytes) -> None:
        """Write until either side ends the stream."""
        session = self._session
        leaving = asyncio.get_running_loop().create_task(left(session, receive))
        try:
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._send(_body(hello))
            session.on_ready = self._write_at_once
            while session.closed != "gone":
                await session.wait()
                if self._begun is not None:
                    await self._begun
                    self._begun = None
                closed = session.closed  # read before the queue is drained: the close reason is sent too
                body = self._events(session)
                if body or closed is None:
                    await self._write(body or PING)
                if closed is not None:
                    break
            if session.closed != "gone":
                await self._send({"type": "http.response.body", "body": b""})
        except OSError:
            pass  # the client has disconnected
        finally:
            session.on_ready = None
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving

    async def _write(self, body: bytes) -> None:
        self._session.on_ready = None  # keeps the order: later pushes wait for this one
        await self._send(_body(body))
        self._session.on_ready = self._write_at_once

    def _write_at_once(self) -> bool:
        """Write what is ready; return False if the session's task must do it."""
        if self._begun is not None:
            return False
        body = self._events(self._session)
        if body:
            try:
                self._begun = begun(self._send({"type": "http.response.body", "body": body, "more_body": True}))
            except OSError:
                self._session.close("gone")
        return self._begun is None


def begun(work: Any) -> Awaitable[None] | None:
    """Run a coroutine until it waits; return None if it finished, otherwise an awaitable for the rest."""
    try:
        first = work.send(None)
    except StopIteration:
        return None
    return _Rest(work, first)


class _Rest:
    """The rest of a coroutine that is already waiting for a future."""

    def __init__(self, work: Coroutine[Any, Any, None], first: Any) -> None:
        self._work = work
        self._first = first

    def __await__(self) -> Generator[Any, Any, None]:
        waiting = self._first
        while True:
            raised: BaseException | None = None
            try:
                yield waiting
            except BaseException as error:
                raised = error
            try:
                waiting = self._work.send(None) if raised is None else self._work.throw(raised)
            except StopIteration:
                return


def _body(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def left(session: Session, receive: Receive) -> None:
    """Close the session when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    session.close("gone")
