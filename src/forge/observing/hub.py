"""Subscriptions to the bus, and the delivery of events.

    listening = forge.on("query", callback, slower_than=0.2, sample=0.1)
    forge.on("error", callback)
    listening.off()                                     # or `with forge.on(…):`

Invariants:

- Without subscriptions, a source checks `hub.listening`, which is false, and does nothing else.
- A callback cannot do harm: its exception is logged, the first time, and the other callbacks still run; the statement
  and its result are unaffected.
- Statements that a callback itself runs are not reported, so that there are no loops.
- A callback runs where the statement ran, in its thread and context. An async callback is started on the event loop
  that runs there, otherwise on the one where `on` was called; at most 1,000 wait, and further events are dropped.
"""

import asyncio
import inspect
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from time import perf_counter, time
from typing import Any, Final, Self, TypeAlias

from forge.errors import ConfigError
from forge.observing.event import Kind, QueryEvent, semantic_op
from forge.observing.redaction import shown
from forge.tracking.current import current

Callback: TypeAlias = Callable[[QueryEvent], Awaitable[None] | None]

KINDS: Final[tuple[Kind, ...]] = ("query", "error")
MOST_WAITING: Final = 1000

logger = logging.getLogger(__name__)
_telling: ContextVar[bool] = ContextVar("forge_telling", default=False)


class EventSubscription:
    """A callback that gets events until `off`; `failures` and `dropped` count the events it missed."""

    def __init__(self, kind: Kind, callback: Callback, sample: float, slower_than: float, params: bool) -> None:
        self.kind = kind
        self.sample = sample
        self.slower_than = slower_than
        self.params = params
        self.failures = 0
        self.dropped = 0
        self._callback = callback
        self._waiting: set[Any] = set()
        self._home: asyncio.AbstractEventLoop | None = None
        if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(getattr(callback, "__call__", None)):  # noqa: B004
            try:
                self._home = asyncio.get_running_loop()
            except RuntimeError:
                self._home = None

    def off(self) -> None:
        """Stop the subscription; events in progress still arrive."""
        hub.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.off()

    def wants(self, seconds: float) -> bool:
        return seconds >= self.slower_than and (self.sample >= 1.0 or random.random() < self.sample)

    def tell(self, event: QueryEvent) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._drop("it is told more than it handles")
            return
        try:
            answer = self._callback(event)
            if inspect.isawaitable(answer):
                self._start(answer)
        except Exception as error:
            self._failed(error)

    def _start(self, answer: Awaitable[None]) -> None:
        async def run() -> None:
            await answer

        coroutine = run()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            if self._home is None or not self._home.is_running():
                coroutine.close()
                if inspect.iscoroutine(answer):
                    answer.close()
                self._drop("no event loop runs that it could run on")
                return
            started: Any = asyncio.run_coroutine_threadsafe(coroutine, self._home)
        else:
            started = running.create_task(coroutine)
        self._waiting.add(started)
        started.add_done_callback(self._done)

    def _done(self, ended: Any) -> None:
        self._waiting.discard(ended)
        if not ended.cancelled() and isinstance(error := ended.exception(), Exception):
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            logger.error("a subscriber of %r fails; this is said once", self.kind, exc_info=error)

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if self.dropped == 1:
            logger.warning("a subscriber of %r misses events: %s; this is said once", self.kind, why)


class QueryBus:
    """The subscriptions of the process."""

    def __init__(self) -> None:
        self.listening = False
        self._lock = threading.Lock()
        self._subscriptions: dict[str, tuple[EventSubscription, ...]] = dict.fromkeys(KINDS, ())

    def add(self, subscription: EventSubscription) -> None:
        with self._lock:
            self._subscriptions[subscription.kind] += (subscription,)
            self.listening = True

    def remove(self, subscription: EventSubscription) -> None:
        with self._lock:
            kept = tuple(other for other in self._subscriptions[subscription.kind] if other is not subscription)
            self._subscriptions[subscription.kind] = kept
            self.listening = any(self._subscriptions.values())

    def tell(
        self,
        sql: str,
        params: Any,
        seconds: float,
        *,
        source: str,
        engine: str,
        row_count: int | None = None,
        many: int = 1,
        error: BaseException | None = None,
    ) -> None:
        """Deliver a statement that ran or failed."""
        subscriptions = self._subscriptions["query" if error is None else "error"]
        wanting = [subscription for subscription in subscriptions if subscription.wants(seconds)]
        if not wanting or _telling.get():
            return
        token = _telling.set(True)
        try:
            events: dict[bool, QueryEvent] = {}
            for subscription in wanting:
                if (event := events.get(subscription.params)) is None:
                    event = events[subscription.params] = QueryEvent(
                        sql,
                        shown(sql, params, values=subscription.params),
                        seconds * 1000.0,
                        row_count if row_count is not None and row_count >= 0 else None,
                        semantic_op(sql),
                        source,
                        engine,
                        current(),
                        datetime.fromtimestamp(time() - seconds, UTC),
                        many,
                        error,
                    )
                subscription.tell(event)
        except Exception:
            # a parameter without a type name, or a context that cannot be found, must not affect the statement
            logger.exception("a statement could not be told")
        finally:
            _telling.reset(token)


hub: Final = QueryBus()


@contextmanager
def untold() -> Iterator[None]:
    """Do not report the statements of this thread or task inside the block."""
    token = _telling.set(True)
    try:
        yield
    finally:
        _telling.reset(token)


class Timed:
    """Context manager around one statement: reports its outcome and duration."""

    __slots__ = ("_engine", "_many", "_params", "_source", "_sql", "_started", "row_count")

    def __init__(self, sql: str, params: Any, *, source: str, engine: str, many: int = 1) -> None:
        self._sql = sql
        self._params = params
        self._source = source
        self._engine = engine
        self._many = many
        self.row_count: int | None = None

    def __enter__(self) -> Self:
        self._started = perf_counter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        seconds = perf_counter() - self._started
        hub.tell(
            self._sql,
            self._params,
            seconds,
            source=self._source,
            engine=self._engine,
            row_count=self.row_count if error is None else None,
            many=self._many,
            error=error,
        )


def on(
    kind: Kind, callback: Callback, /, *, sample: float = 1.0, slower_than: float = 0.0, params: bool = False
) -> EventSubscription:
    """Subscribe to every observed statement that ran ("query") or failed ("error").

    `sample` is the share of statements reported, at random; `slower_than`, in seconds, skips faster ones. `params=True`
    shows the values of parameters, except under names that sound like secrets; otherwise only their types are shown.
    """
    if kind not in KINDS:
        raise ConfigError(f"there is no event {kind!r}", fix=f"listen to one of {', '.join(KINDS)}")
    if not callable(callback):
        raise ConfigError(f"a {type(callback).__name__} cannot be called", fix="pass a function of one event")
    if not 0.0 < sample <= 1.0:
        raise ConfigError(f"sample is {sample!r}", fix="pass a share above 0 and up to 1, as 0.1 for a tenth")
    if not slower_than >= 0.0:
        raise ConfigError(f"slower_than is {slower_than!r}", fix="pass seconds, as 0.2")
    subscription = EventSubscription(kind, callback, sample, slower_than, params)
    hub.add(subscription)
    return subscription
