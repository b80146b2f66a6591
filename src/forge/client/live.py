"""One subscription of a client: what it asks, what it holds, and what its consumer has been given.

In come the messages of the server, out go results for whoever iterates. What always holds: a result that is given was
proven by its hash; the results given are in the server's order, none twice in a row; a slow consumer is given the
latest, and what it missed is not kept.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from forge.client.errors import ResultMismatch
from forge.client.messages import Cause, Delta, Whole
from forge.client.result_state import Held
from forge.cursor import Snapshot

Mode = Literal["full", "delta"]


@dataclass
class Metrics:
    """What a client counts."""

    connects: int = 0
    """Streams opened."""
    lost: int = 0
    """Streams that ended, or could not be opened."""
    results: int = 0
    """Whole results received."""
    deltas: int = 0
    unchanged: int = 0
    """Results that were still held after a reconnect."""
    gaps: int = 0
    """Times the server left out deltas because this client was slow."""
    mismatches: int = 0
    """Results that did not have their hash: thrown away, and asked for again."""
    replaced: int = 0
    """Results that were replaced by a newer one before the consumer took them."""
    errors: int = 0
    """Errors that the server told of a subscription."""


class View(msgspec.Struct, frozen=True):
    """A result with why it came, and the transactions that it shows."""

    held: Held
    cause: tuple[Cause, ...] = ()
    more_causes: int = 0
    snapshot: Snapshot | None = None


class Live:
    """The state of one subscription."""

    def __init__(self, query: str, args: bytes, mode: Mode, metrics: Metrics) -> None:
        self.query = query
        self.args = msgspec.Raw(args)
        self.mode: Mode = mode
        self.error: Exception | None = None
        """Why there is nothing new now; None when all is well."""
        self.failure: Exception | None = None
        """Why there will be nothing more."""
        self.closed = False
        self.shown: View | None = None
        """What the consumer was given last."""
        self.answered = False
        """Whether the server has sent a result since it was last asked."""
        self.mismatches = 0
        """How many in a row."""
        self._latest: View | None = None
        self._metrics = metrics
        self._news = asyncio.Event()

    @property
    def hash(self) -> str | None:
        """Of the result that the client holds, whether or not the consumer has taken it."""
        return None if self._latest is None else self._latest.held.hash

    def whole(self, message: Whole) -> None:
        """The server sent a result, or says that it is the one held."""
        if message.unchanged:
            if message.hash != self.hash:
                raise ResultMismatch("the server takes another result for held", fix="use one version of Forge")
            self._metrics.unchanged += 1
            self._well()
            return
        held = Held.of(message)
        self._metrics.results += 1
        self._hold(View(held, message.cause, message.more_causes, _snapshot(message.snapshot)))

    def delta(self, message: Delta) -> None:
        """The server sent what changed."""
        if self._latest is None:
            raise ResultMismatch("a delta came before a result", fix="use one version of Forge")
        held = self._latest.held.after(message)
        self._metrics.deltas += 1
        self._hold(View(held, message.cause, message.more_causes, _snapshot(message.snapshot)))

    def fail(self, error: Exception) -> None:
        """There will be nothing more."""
        self.failure = self.error = error
        self._news.set()

    def close(self) -> None:
        """Nothing more is wanted."""
        self.closed = True
        self._news.set()

    async def next(self) -> Any:
        """The next result; raise StopAsyncIteration once closed."""
        while not self.closed or self.failure is not None:
            if self._latest is not None and (self.shown is None or self.shown.held.hash != self._latest.held.hash):
                value = self._latest.held.value()
                self.shown = self._latest
                return value
            if self.failure is not None:
                raise self.failure
            self._news.clear()
            await self._news.wait()
        raise StopAsyncIteration

    def _hold(self, view: View) -> None:
        if self._latest is not self.shown and self._latest is not None:
            self._metrics.replaced += 1
        self._latest = view
        if self.shown is not None and self.shown.held.hash == view.held.hash:
            self.shown = view
        else:
            self._news.set()
        self._well()

    def _well(self) -> None:
        self.error, self.answered, self.mismatches = None, True, 0


def _snapshot(text: str | None) -> Snapshot | None:
    return None if text is None else Snapshot.parse(text)
