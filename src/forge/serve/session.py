"""One client's connection: its subscriptions, and what waits to be sent to it.

A client that reads slowly costs little: of each subscription only the latest push waits, of small messages (channels,
answers) the last 256. Nothing here waits for a client but its own writer.

- `full`: the latest result wins; results in between are left out.
- `delta`: when a delta does not follow the one sent last, a `gap` goes out and then the whole result.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Literal

from forge.errors import ForgeError
from forge.react.group import Group
from forge.react.push import Push
from forge.serve.auth import Identity
from forge.serve.limits import Hold
from forge.serve.messages import Frame, error_fields, fields, shared

Mode = Literal["full", "delta"]
Taken = Literal["snapshot", "update", "delta", "unchanged", "recovered", ""]
MOST_WAITING: Final = 256
MOST_BYTES: Final = 1024 * 1024


class Subscription:
    """A subscription of a session; what `forge.react.push.Subscriber` asks for."""

    def __init__(self, session: "Session", name: str, mode: Mode, known: str | None) -> None:
        self._session = session
        self.name = name
        self.mode = mode
        self.group: Group | None = None
        self.asked: tuple[str, Any] = ("", None)
        """The query and its arguments, as they were sent."""
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
        """Keep it until the writer comes; a push that waits already is replaced."""
        self._missed = self._missed or self._latest is not None
        self._latest, self._error = push, None
        self._session.ready(self)

    def fail(self, error: ForgeError, /) -> None:
        self._error = error
        self._session.ready(self)

    def reset(self) -> None:
        """What waits is of another scope and is not to be sent."""
        self._latest, self._error, self._missed = None, None, False

    def take(self) -> tuple[Push | None, Taken, bool]:
        """The push to send, the event that it is, and whether others were left out before it; None when there is none.

        The event is `unchanged` when the client said that it holds this very result, and `recovered` when it holds it
        and was told of an error meanwhile.
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
        """The error to send."""
        error, self._error = self._error, None
        self._told_error = self._told_error or error is not None
        return error

    def frames(self) -> list[Frame]:
        """What is to be sent now: a result, and after it an error that came later."""
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
    """What one client is subscribed to and what it is to be sent. `closed` says why it is over."""

    def __init__(self, identity: Identity, address: str, clock: Callable[[], float]) -> None:
        self.id = secrets.token_urlsafe(18)
        self.identity = identity
        self.address = address
        self.subscriptions: dict[str, Subscription] = {}
        self.channels: set[str] = set()
        self.closed: str | None = None
        self.written = clock()
        self.on_ready: Callable[[], bool] | None = None
        """Writes at once what is ready, or returns False; None while that may not be done."""
        self.warned = False
        self._dropped = 0
        self._clock = clock
        self._ready: dict[Subscription, None] = {}
        self._small: deque[Frame] = deque()
        self._small_bytes = 0
        self._room = asyncio.Event()
        self._wake = asyncio.Event()
        self._pinged = False

    @property
    def waiting(self) -> int:
        """How many messages wait for the writer."""
        return len(self._ready) + len(self._small)

    def ready(self, subscription: Subscription) -> None:
        """A subscription has something to send."""
        self._ready[subscription] = None
        if self.on_ready is None or self._small or self.closed is not None or not self.on_ready():
            self._wake.set()

    def send(self, frame: Frame) -> None:
        """Send a small message; when 256 wait, the oldest goes."""
        if len(self._small) >= MOST_WAITING:
            self._small_bytes -= len(self._small.popleft().body)
            self._dropped += 1
        self._small.append(frame)
        self._small_bytes += len(frame.body)
        self._wake.set()

    async def room(self) -> None:
        """Return when little waits to be sent, or the session is closed."""
        while self._small_bytes > MOST_BYTES and self.closed is None:
            self._room.clear()
            await self._room.wait()

    def wake(self) -> None:
        """Have the writer look for something to send; where it finds nothing it sends a ping."""
        self._pinged = True
        self._wake.set()

    def close(self, reason: str) -> None:
        """End it, after what waits has been sent."""
        self.closed = self.closed or reason
        self._wake.set()
        self._room.set()

    def forget(self, subscription: Subscription) -> None:
        """Send nothing more of a subscription."""
        self._ready.pop(subscription, None)

    async def wait(self) -> None:
        """Return when there is something to send, a ping is due, or the session is closed."""
        if not self._ready and not self._small and not self._pinged and self.closed is None:
            self._wake.clear()
            await self._wake.wait()
        self._pinged = False
        self.written = self._clock()

    def ready_subscriptions(self) -> list[Subscription]:
        """Those that have something to send, which they have not from now on."""
        ready, self._ready = self._ready, {}
        return list(ready)

    def frames(self) -> list[Frame]:
        """All that is to be sent now."""
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
