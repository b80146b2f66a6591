"""One client's connection: its subscriptions, and its send queue.

A slow client costs little: the queue holds only the latest push per subscription, and the last 256 small messages
(channels, answers). Only the client's own writer waits for it.

- `full`: the latest result wins; intermediate results are skipped.
- `delta`: when a delta does not follow the last one sent, the client gets a `gap` and then the full result.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Literal

from forge.errors import ForgeError
from forge.react.group import Group
from forge.react.push import Push
from forge.serve.auth import TokenIdentity
from forge.serve.limits import Hold
from forge.serve.messages import Frame, error_fields, fields, shared

Mode = Literal["full", "delta"]
Taken = Literal["snapshot", "update", "delta", "unchanged", "recovered", ""]
MOST_WAITING: Final = 256
MOST_BYTES: Final = 1024 * 1024


class SessionSubscription:
    """A subscription of a session; implements `forge.react.push.Subscriber`."""

    def __init__(self, session: "Session", name: str, mode: Mode, known: str | None) -> None:
        self._session = session
        self.name = name
        self.mode = mode
        self.group: Group | None = None
        self.asked: tuple[str, Any] = ("", None)
        """The query and its arguments, as sent."""
        self.hold: Hold | None = None
        self._sent: str | None = known
        self._first = True
        self._latest: Push | None = None
        self._error: ForgeError | None = None
        self._missed = False
        self._told_error = False

    @property
    def session(self) -> Hashable:
        return self._session.id

    def push(self, push: Push, /) -> None:
        """Keep the push for the writer; it replaces a push that is already waiting."""
        self._missed = self._missed or self._latest is not None
        self._latest, self._error = push, None
        self._session.ready(self)

    def fail(self, error: ForgeError, /) -> None:
        self._error = error
        self._session.ready(self)

    def reset(self) -> None:
        """Drop what is queued, because it belongs to another scope."""
        self._latest, self._error, self._missed = None, None, False

    def take(self) -> tuple[Push | None, Taken, bool]:
        """Return the push to send (None if there is none), its event, and whether earlier pushes were skipped.

        The event is `unchanged` if the client said that it holds this result, and `recovered` if it holds it and got an
        error in between.
        """
        push, missed, first = self._latest, self._missed, self._first
        self._latest, self._missed = None, False
        if push is None:
            return None, "", False
        self._first = False
        known, self._sent = self._sent, push.result.hash
        if known == push.result.hash:
            recovered, self._told_error = self._told_error, False
            if first:
                return push, "unchanged", False
            return (push, "recovered", False) if recovered else (None, "", False)
        self._told_error = False
        if first or self.mode == "full":
            return push, "snapshot" if first else "update", False
        follows = push.previous is not None and push.previous.hash == known and push.delta is not None
        if follows:
            return push, "delta", False
        return push, "snapshot" if missed else "update", missed

    def take_error(self) -> ForgeError | None:
        """Remove and return the error to send."""
        error, self._error = self._error, None
        self._told_error = self._told_error or error is not None
        return error

    def frames(self) -> list[Frame]:
        """Return what to send: a result, followed by an error that arrived later."""
        push, event, missed = self.take()
        found = []
        if missed:
            found.append(Frame("gap", fields(subscription=self.name)))
        if push is not None and event in ("unchanged", "recovered"):
            known = {"hash": push.result.hash, "snapshot": str(push.coverage), "unchanged": True}
            found.append(Frame("snapshot", fields(subscription=self.name, **known)))
        elif push is not None and event in ("snapshot", "update", "delta"):
            body = shared(push, "delta" if event == "delta" else "full")
            assert body is not None
            found.append(Frame(event, fields(subscription=self.name)[:-1] + b"," + body))
        if (error := self.take_error()) is not None:
            found.append(Frame("error", fields(subscription=self.name, **error_fields(error))))
        return found


class Session:
    """One client's subscriptions and send queue. `closed` is the reason for its end."""

    def __init__(self, identity: TokenIdentity, address: str, clock: Callable[[], float]) -> None:
        self.id = secrets.token_urlsafe(18)
        self.identity = identity
        self.address = address
        self.subscriptions: dict[str, SessionSubscription] = {}
        self.channels: set[str] = set()
        self.closed: str | None = None
        self.written = clock()
        self.on_ready: Callable[[], bool] | None = None
        """Writes what is ready at once, or returns False; None while direct writes are not allowed."""
        self.warned = False
        self._dropped = 0
        self._clock = clock
        self._ready: dict[SessionSubscription, None] = {}
        self._small: deque[Frame] = deque()
        self._small_bytes = 0
        self._room = asyncio.Event()
        self._wake = asyncio.Event()
        self._pinged = False

    @property
    def waiting(self) -> int:
        """The number of queued messages."""
        return len(self._ready) + len(self._small)

    def ready(self, subscription: SessionSubscription) -> None:
        """Mark a subscription as ready to send."""
        self._ready[subscription] = None
        if self.on_ready is None or self._small or self.closed is not None or not self.on_ready():
            self._wake.set()

    def send(self, frame: Frame) -> None:
        """Queue a small message; beyond 256, the oldest is dropped."""
        if len(self._small) >= MOST_WAITING:
            self._small_bytes -= len(self._small.popleft().body)
            self._dropped += 1
        self._small.append(frame)
        self._small_bytes += len(frame.body)
        self._wake.set()

    async def room(self) -> None:
        """Wait until the queue is short, or the session is closed."""
        while self._small_bytes > MOST_BYTES and self.closed is None:
            self._room.clear()
            await self._room.wait()

    def wake(self) -> None:
        """Wake the writer; if nothing is queued, it sends a ping."""
        self._pinged = True
        self._wake.set()

    def close(self, reason: str) -> None:
        """End the session, after the queue is sent."""
        self.closed = self.closed or reason
        self._wake.set()
        self._room.set()

    def forget(self, subscription: SessionSubscription) -> None:
        """Drop a subscription from the queue."""
        self._ready.pop(subscription, None)

    async def wait(self) -> None:
        """Wait until there is something to send, a ping is due, or the session is closed."""
        if not self._ready and not self._small and not self._pinged and self.closed is None:
            self._wake.clear()
            await self._wake.wait()
        self._pinged = False
        self.written = self._clock()

    def ready_subscriptions(self) -> list[SessionSubscription]:
        """Drain and return the subscriptions that are ready to send."""
        ready, self._ready = self._ready, {}
        return list(ready)

    def frames(self) -> list[Frame]:
        """Drain and return everything to send."""
        found: list[Frame] = []
        if self._dropped:
            found.append(Frame("gap", fields(dropped=self._dropped)))
            self._dropped = 0
        found += self._small
        self._small.clear()
        self._small_bytes = 0
        self._room.set()
        for subscription in self.ready_subscriptions():
            found += subscription.frames()
        return found
