"""Declaration of a consumer: its name, its handler, the changes that it wants, and its retries.

An invalid declaration raises ConsumerInvalid immediately, never while changes wait.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec

from forge.capture.filters import Filter
from forge.change import Op
from forge.config import nearest
from forge.deliver.consumers.origin import START, ConsumerOrigin
from forge.deliver.consumers.sending import sending
from forge.deliver.payload import Envelope, Payload, encoder
from forge.deliver.sink import Sink
from forge.errors import ConfigError, ConsumerInvalid

Handler = Callable[..., Awaitable[object]]
H = TypeVar("H", bound=Handler)
Start = Literal["now", "start"]

USUAL: Final = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE)
"""The default operations of a handler; schema, invalidate and redact must be requested."""
MOST_BATCH: Final = 10_000
WEBHOOK: Final = "webhook:"
"""The prefix of the names of consumers for endpoints in the database."""
MOST_SHARDS: Final = 256
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}")


class Consumer(msgspec.Struct, frozen=True):
    """The settings of one consumer. Times in seconds."""

    name: str
    handler: Handler
    wanted: Filter = Filter()
    batch: int | None = None
    """The maximum number of changes per call; None for a handler of one change."""
    shards: int = 1
    tries: int | None = 8
    """The number of tries before a change is parked; None for no limit."""
    timeout: float | None = 60.0
    backoff: tuple[float, float] = (0.1, 60.0)
    """The first and the longest wait after a failure."""
    start: Start = "now"
    """The start of a consumer that is new to the database: commits from now on, or everything that the log retains;
    with a source, the existing rows and then new changes."""
    sink: Sink | None = None
    origin: ConsumerOrigin | None = None
    """The source to read in place of the log."""

    def check(self) -> None:
        """Raise ConsumerInvalid for settings that cannot work."""
        if not _NAME.fullmatch(self.name):
            raise ConsumerInvalid(
                f"{self.name!r} is not a consumer's name",
                fix="up to 63 letters, digits and . : _ -, such as orders-to-nats",
            )
        if not inspect.iscoroutinefunction(self.handler):
            raise ConsumerInvalid(
                f"the handler of {self.name} is not an async function",
                fix="async def handle(ctx, change), with what blocks in asyncio.to_thread",
            )
        _check_parameters(self)
        limits: list[tuple[bool, str, object, str]] = [
            (self.batch is None or _whole(self.batch, 1, MOST_BATCH), "batch", self.batch, f"1 to {MOST_BATCH:,}"),
            (_whole(self.shards, 1, MOST_SHARDS), "shards", self.shards, f"1 to {MOST_SHARDS}"),
            (self.tries is None or _whole(self.tries, 1, 1000), "tries", self.tries, "1 to 1,000, or None for ever"),
            (self.timeout is None or self.timeout > 0, "timeout", self.timeout, "seconds above 0, or None"),
            (0 < self.backoff[0] <= self.backoff[1], "backoff", self.backoff, "(first, longest) seconds"),
            (self.start in ("now", "start"), "start", self.start, '"now" or "start"'),
        ]
        for holds, what, value, wanted in limits:
            if not holds:
                raise ConsumerInvalid(f"{what} of {self.name} cannot be {value!r}", fix=f"give {wanted}")
        self.wanted.check()
        if self.origin is not None:
            _check_origin(self, self.origin)


class Consumers:
    """The consumers of an application, by name."""

    def __init__(self) -> None:
        self.named: dict[str, Consumer] = {}

    def consumer(self, name: str, /, **options: Any) -> Callable[[H], H]:
        """Register an async function as the handler of a consumer; see `declare`. By default `ops` are inserts,
        updates, deletes and truncates, and for a source also the existing rows if the consumer starts with these."""

        def mark(handler: H) -> H:
            self.declare(name, handler, **{**options, "ops": options.get("ops") or _usual(options)})
            return handler

        return mark

    def declare(
        self,
        name: str,
        handler: Handler,
        *,
        tables: Sequence[str] = (),
        ops: Sequence[Op | str] = (),
        columns: Sequence[str] = (),
        where: str | None = None,
        source: str | None = None,
        sink: Sink | None = None,
        **options: Any,
    ) -> Consumer:
        """Add a consumer; `source` is the URL that it reads in place of the log, and the options are the fields of
        `Consumer`."""
        if isinstance(tables, str) or isinstance(ops, str) or isinstance(columns, str):
            raise ConsumerInvalid(f"tables, ops and columns of {name} are lists", fix='tables=["orders"]')
        unknown = options.keys() - {"batch", "shards", "tries", "timeout", "backoff", "start"}
        if unknown:
            raise ConsumerInvalid(
                f"a consumer has no option {min(unknown)}",
                fix="use tables, ops, columns, where, source, batch, shards, tries, timeout, backoff or start",
            )
        wanted = Filter(tuple(tables), tuple(_op(name, op) for op in ops), tuple(columns), where)
        origin = None if source is None else ConsumerOrigin.of(name, source, wanted)
        found = Consumer(name, handler, wanted, sink=sink, origin=origin, **options)
        found.check()
        if name in self.named:
            raise ConsumerInvalid(f"there are two consumers called {name}", fix="give one another name")
        self.named[name] = found
        return found

    def deliver(
        self,
        name: str,
        *,
        to: Sink,
        envelope: Envelope = "forge",
        payload: Payload = None,
        topic: str | None = None,
        batch: int = 100,
        tries: int | None = None,
        **options: Any,
    ) -> Consumer:
        """Add a consumer that sends every change to a sink as a message; `payload` as in `forge.deliver.payload`.

        A message that the receiver does not accept is retried without limit unless `tries` is given, because the
        receiver is down; a message that it refuses is parked.
        """
        if not callable(getattr(to, "send", None)) or not callable(getattr(to, "close", None)):
            raise ConsumerInvalid(f"{name} is to deliver to a {type(to).__name__}, which is no sink", fix="pass a Sink")
        try:
            encode = encoder(envelope, payload)
        except ConfigError as error:
            raise ConsumerInvalid(f"{name}: {error}", fix=error.fix) from None
        handler = sending(to, topic=topic, encode=encode)
        if payload is not None:  # a user-defined body is about rows
            options["ops"] = options.get("ops") or _usual(options)
        return self.declare(name, handler, sink=to, batch=batch, tries=tries, **options)


def _usual(options: Mapping[str, Any]) -> tuple[Op, ...]:
    return USUAL if options.get("source") is None else (*USUAL, Op.READ)


def _check_origin(consumer: Consumer, origin: ConsumerOrigin) -> None:
    if consumer.shards > 1:
        raise ConsumerInvalid(
            f"{consumer.name} cannot have {consumer.shards} shards: a source is read by one reader",
            fix="leave shards out; a queue with partitions (app.deliver) spreads the work",
        )
    origin.check_start(consumer.name, consumer.start)
    ops = consumer.wanted.operations
    if consumer.start == START and ops and Op.READ not in ops:
        raise ConsumerInvalid(
            f'{consumer.name} begins with the rows that are there (start="start"), and its ops leave these out',
            fix='add "read" to ops, or start="now"',
        )


def _op(name: str, value: Op | str) -> Op:
    try:
        return Op(value.lower())
    except ValueError:
        close = nearest(value, [op.value for op in Op])
        fix = f"did you mean {close}?" if close else f"use {', '.join(Op)}"
        raise ConsumerInvalid(f"ops of {name} cannot have {value!r}", fix=fix) from None


def _whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _check_parameters(consumer: Consumer) -> None:
    try:
        inspect.signature(consumer.handler).bind(None, None)
    except TypeError:
        what = "change" if consumer.batch is None else "changes"
        raise ConsumerInvalid(
            f"the handler of {consumer.name} does not take (ctx, {what})", fix=f"async def handle(ctx, {what})"
        ) from None
