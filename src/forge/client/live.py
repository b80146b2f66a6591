"""State of one client subscription: its query, its result, and what its consumer has received.

Input: messages of the server. Output: results for the iterator.

Invariants:
- Every returned result is verified by its hash.
- Results are returned in the server's order, never the same one twice in succession.
- A slow consumer gets the latest result; skipped results are not kept.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from forge.client.messages import Cause, DeltaMessage, Whole
from forge.client.result_state import HeldResult
from forge.cursor import Snapshot
from forge.errors import ResultMismatch

Mode = Literal["full", "delta"]


@dataclass
class ClientMetrics:
    """Counters of a client."""

    connects: int = 0
    """Streams opened."""
    lost: int = 0
    """Streams that ended, or could not be opened."""
    results: int = 0
    """Full results received."""
    deltas: int = 0
    unchanged: int = 0
    """Results that were still valid after a reconnect."""
    gaps: int = 0
    """Number of times the server skipped deltas because this client was slow."""
    mismatches: int = 0
    """Results that did not match their hash: dropped, and requested again."""
    replaced: int = 0
    """Results that a newer one replaced before the consumer took them."""
    errors: int = 0
    """Errors that the server sent for a subscription."""


class LiveResult(msgspec.Struct, frozen=True):
    """A result with its causes and the transactions it contains."""

    held: HeldResult
    cause: tuple[Cause, ...] = ()
    more_causes: int = 0
    snapshot: Snapshot | None = None


class Live:
    """The state of one subscription."""

    def __init__(self, query: str, args: bytes, mode: Mode, metrics: ClientMetrics) -> None:
        self.query = query
        self.args = msgspec.Raw(args)
        self.mode: Mode = mode
        self.error: Exception | None = None
        """The reason why no results arrive; None if there is no problem."""
        self.failure: Exception | None = None
        """The error that ended the subscription."""
        self.closed = False
        self.shown: LiveResult | None = None
        """The last result returned to the consumer."""
        self.answered = False
        """Whether the server has sent a result since the last request."""
        self.mismatches = 0
        """Number of successive mismatches."""
        self._latest: LiveResult | None = None
        self._metrics = metrics
        self._news = asyncio.Event()

    @property
    def hash(self) -> str | None:
        """Hash of the client's result, whether or not the consumer has taken it."""
        return None if self._latest is None else self._latest.held.hash

    def whole(self, message: Whole) -> None:
        """Handle a full result, or the message that the client's result is current."""
        if message.unchanged:
            if message.hash != self.hash:
                raise ResultMismatch("the server takes another result for held", fix="use one version of Forge")
            self._metrics.unchanged += 1
            self._well()
            return
        held = HeldResult.of(message)
        self._metrics.results += 1
        self._hold(LiveResult(held, message.cause, message.more_causes, _snapshot(message.snapshot)))

    def delta(self, message: DeltaMessage) -> None:
        """Handle a delta."""
        if self._latest is None:
            raise ResultMismatch("a delta came before a result", fix="use one version of Forge")
        held = self._latest.held.after(message)
        self._metrics.deltas += 1
        self._hold(LiveResult(held, message.cause, message.more_causes, _snapshot(message.snapshot)))

    def fail(self, error: Exception) -> None:
        """End the subscription with an error."""
        self.failure = self.error = error
        self._news.set()

    def close(self) -> None:
        """End the subscription."""
        self.closed = True
        self._news.set()

    async def next(self) -> Any:
        """Wait for the next result; raise StopAsyncIteration once closed."""
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

    def _hold(self, view: LiveResult) -> None:
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
