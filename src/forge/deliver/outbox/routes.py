"""Routes of the outbox: topic patterns, each with a sink or a handler.

A topic belongs to one route: the one that names it, else the one with the longest pattern (`order.*`, `*`). An invalid
route raises OutboxError when it is declared, never while messages wait.
"""

import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from forge.deliver.message import Message
from forge.deliver.sink import Sink
from forge.errors import OutboxError

Handler = Callable[[Message], Awaitable[object]]
H = TypeVar("H", bound=Callable[..., Awaitable[object]])
MOST_BATCH: Final = 1000
_PATTERN: Final = re.compile(r"(?=.)(?:[A-Za-z0-9][A-Za-z0-9_.:/-]{0,198})?\*?")


class Route(msgspec.Struct, frozen=True):
    """The receiver and the settings for the messages of some topics. Times in seconds."""

    pattern: str
    handler: Handler | None = None
    sink: Sink | None = None
    batch: int = 100
    """The number of messages that are claimed at a time, and passed to a sink in one call."""
    workers: int = 1
    """The number of workers per node, each with its own connection."""
    concurrency: int = 16
    """The number of concurrent calls of a handler per worker; calls of one key are never concurrent."""
    tries: int | None = 12
    """The number of tries before a message is parked; None for no limit."""
    timeout: float = 30.0
    backoff: tuple[float, float] = (0.25, 300.0)
    """The first and the longest wait of a message that failed."""

    @property
    def regex(self) -> str:
        """The pattern as a regular expression of PostgreSQL and Python.

        >>> Route("order.*").regex, Route("order.paid").regex, Route("*").regex
        ('^order\\\\..*$', '^order\\\\.paid$', '^.*$')
        """
        plain = re.escape(self.pattern.removesuffix("*")).replace("/", "\\/")
        return f"^{plain}{'.*' if self.pattern.endswith('*') else ''}$"

    def takes(self, topic: str) -> bool:
        """Whether the pattern matches, regardless of other routes."""
        return topic.startswith(self.pattern[:-1]) if self.pattern.endswith("*") else topic == self.pattern

    def check(self) -> None:
        """Raise OutboxError for settings that cannot work."""
        if not _PATTERN.fullmatch(self.pattern):
            raise OutboxError(
                f"{self.pattern!r} is no topic or pattern",
                fix='write "order.paid", "order.*" or "*": * at the end only',
            )
        if self.handler is not None and not inspect.iscoroutinefunction(self.handler):
            raise OutboxError(
                f"the handler of {self.pattern} is not an async function",
                fix="async def handle(message), with what blocks in asyncio.to_thread",
            )
        if self.handler is not None:
            try:
                inspect.signature(self.handler).bind(None)
            except TypeError:
                raise OutboxError(
                    f"the handler of {self.pattern} does not take (message)", fix="async def handle(message)"
                ) from None
        if self.sink is not None and not (callable(getattr(self.sink, "send", None)) and hasattr(self.sink, "close")):
            raise OutboxError(f"{self.pattern} is to go to a {type(self.sink).__name__}, no sink", fix="pass a Sink")
        limits: list[tuple[bool, str, str]] = [
            (_whole(self.batch, 1, MOST_BATCH), "batch", f"1 to {MOST_BATCH:,}"),
            (_whole(self.workers, 1, 16), "workers", "1 to 16"),
            (_whole(self.concurrency, 1, 1000), "concurrency", "1 to 1,000"),
            (self.tries is None or _whole(self.tries, 1, 1000), "tries", "1 to 1,000, or None for ever"),
            (0 < self.timeout <= 3600, "timeout", "seconds above 0, up to 3600"),
            (0 < self.backoff[0] <= self.backoff[1], "backoff", "(first, longest) seconds"),
        ]
        for holds, name, wanted in limits:
            if not holds:
                raise OutboxError(f"{name} of {self.pattern} cannot be {getattr(self, name)!r}", fix=f"give {wanted}")


class Routes:
    """The routes of an application, by pattern."""

    def __init__(self) -> None:
        self.named: dict[str, Route] = {}

    def to(self, pattern: str, sink: Sink, **options: Any) -> Route:
        """Send the messages of some topics to a sink. A receiver that is down is retried without limit unless `tries`
        is given; a message that it refuses is parked."""
        return self._declare(pattern, sink=sink, **{"tries": None, **options})

    def on(self, pattern: str, **options: Any) -> Callable[[H], H]:
        """Register an async function of one message as the receiver of some topics."""

        def mark(handler: H) -> H:
            self._declare(pattern, handler=handler, **options)
            return handler

        return mark

    def _declare(self, pattern: str, **options: Any) -> Route:
        if unknown := options.keys() - set(Route.__struct_fields__):
            raise OutboxError(
                f"a route has no option {min(unknown)}",
                fix="use batch, workers, concurrency, tries, timeout or backoff",
            )
        route = Route(pattern, **options)
        route.check()
        if pattern in self.named:
            raise OutboxError(f"there are two routes for {pattern}", fix="send to both from one handler")
        self.named[pattern] = route
        return route

    def route(self, topic: str) -> Route | None:
        """Return the route of a topic.

        >>> routes = Routes()
        >>> @routes.on("*")
        ... async def other(message): ...
        >>> @routes.on("order.*")
        ... async def order(message): ...
        >>> [routes.route(topic).pattern for topic in ("order.paid", "user.new")]
        ['order.*', '*']
        """
        return max((each for each in self.named.values() if each.takes(topic)), key=_weight, default=None)

    def leave(self, route: Route) -> str | None:
        """Return a regular expression for the topics that match a route's pattern and belong to other routes."""
        stronger = [each.regex for each in self.named.values() if _weight(each) > _weight(route)]
        return "|".join(stronger) or None


def _weight(route: Route) -> tuple[bool, int]:
    return not route.pattern.endswith("*"), len(route.pattern)


def _whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
