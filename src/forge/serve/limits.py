"""Limits per client: sessions, subscriptions, requests, bytes, messages per second.

A `Hold` keeps a count; it releases the count once, even if it is told to several times. A client that holds nothing
has no counter. Nothing here waits; `forge.serve.turns` counts the requests that may wait.

>>> gate = Gate(Limits(sessions_per_user=1))
>>> with gate.session("ada", "192.0.2.1"):
...     gate.session("ada", "192.0.2.2")
Traceback (most recent call last):
    ...
forge.errors.LimitReached: a user may have 1 sessions
fix: close some first
>>> len(gate)
0
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from types import TracebackType
from typing import Final

import msgspec

from forge.config import default
from forge.errors import ConfigError, LimitReached

Holder = tuple[str, Hashable]

RETRY_AFTER_SECS: Final = 5
"""Retry delay for a limit whose slots other requests hold."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits in force; the configuration supplies missing values."""

    sessions_per_user: int = default("realtime.max_sessions_per_user")
    sessions_per_ip: int = default("realtime.max_sessions_per_ip")
    subscriptions_per_user: int = default("realtime.max_subscriptions_per_user")
    """Callers without a user name are counted by address."""
    requests_per_user: int = default("serve.requests_per_user")
    """Queries and mutations that run at once; always leaves one connection free. By address as above."""
    waiting_per_user: int = default("serve.waiting_per_user")
    """Maximum number of requests that wait for a running one to end."""
    request_bytes: int = default("serve.request_bytes")
    argument_bytes: int = default("serve.argument_bytes")
    messages_per_second: float = default("serve.messages_per_second")
    """Per session."""
    message_burst: int = default("serve.message_burst")

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)) or (value < 1 and name != "messages_per_second"):
                raise ConfigError(f"{name} cannot be {value}", fix="use a number of 1 or more")


class Hold:
    """A count that is held until `release` (which may be called again) or the end of a `with` block."""

    def __init__(self, counts: Counter[Holder], holders: tuple[Holder, ...]) -> None:
        self._counts = counts
        self._holders = holders
        counts.update(holders)

    def release(self) -> None:
        holders, self._holders = self._holders, ()
        for holder in holders:
            self._counts[holder] -= 1
            if not self._counts[holder]:
                del self._counts[holder]

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Bucket:
    """Rate limit: `rate` messages per second, and `burst` at once after an idle time.

    >>> now = 0.0
    >>> bucket = Bucket(rate=2, burst=1, clock=lambda: now)
    >>> bucket.take()
    >>> now = 0.5
    >>> bucket.take()
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._at = clock()

    def take(self) -> None:
        """Let one message through, or raise LimitReached."""
        now = self._clock()
        self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)
        if self._left < 1:
            secs = max(1, math.ceil((1 - self._left) / self._rate))
            raise LimitReached(
                f"a session may send {self._rate:g} messages per second", fix="send fewer", retry_after_secs=secs
            )
        self._left -= 1


class Gate:
    """Count sessions and subscriptions, and refuse them above the limits. A user of None is counted by address."""

    def __init__(self, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or Limits()
        self._clock = clock
        self._sessions: Counter[Holder] = Counter()
        self._subscriptions: Counter[Holder] = Counter()

    def __len__(self) -> int:
        """The number of counters."""
        return len(self._sessions) + len(self._subscriptions)

    def session(self, user: Hashable | None, address: str) -> Hold:
        """Count a session; raise LimitReached if the user or the address is at its limit."""
        holders = {holder_of(user, address): self.limits.sessions_per_user} if user is not None else {}
        return _hold(self._sessions, {**holders, holder_of(None, address): self.limits.sessions_per_ip}, "sessions")

    def subscription(self, user: Hashable | None, address: str) -> Hold:
        """Count a subscription; raise LimitReached if the user is at its limit."""
        holder = {holder_of(user, address): self.limits.subscriptions_per_user}
        return _hold(self._subscriptions, holder, "subscriptions")

    def rate(self) -> Bucket:
        """Return the rate limit of one session."""
        return Bucket(self.limits.messages_per_second, self.limits.message_burst, self._clock)


def holder_of(user: Hashable | None, address: str) -> Holder:
    """Return the key for limits: the user, or the address of a caller without a user name."""
    return ("an address", address) if user is None else ("a user", user)


def _hold(counts: Counter[Holder], holders: Mapping[Holder, int], what: str) -> Hold:
    for holder, most in holders.items():
        if counts[holder] >= most:
            message = f"{holder[0]} may have {most} {what}"
            raise LimitReached(message, fix="close some first", retry_after_secs=RETRY_AFTER_SECS)
    return Hold(counts, tuple(holders))
