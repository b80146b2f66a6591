"""Context of running code: the actor and reason of everything done inside a block.

    with forge.context(user_id=7, function_name="orders.ship", order=118):      # `async with` too
        ship()                          # every forge.transaction in here takes its missing fields from it

    forge.current().user_id             # "7"

It is a context variable: a thread starts without one, an asyncio task starts with that of its creator, and they never
see each other's changes.

Invariants:

- Everything is checked when it is set. A malformed context is a ContextError, and nothing of the block has run.
- A nested block keeps the outer fields that it does not set, `more` name by name; when it ends, the outer context is
  restored.
- `current().trace_id` is the one that was set, otherwise the trace of OpenTelemetry's current span.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar, Token
from importlib import import_module
from typing import Any, Final, Self, TypeAlias

import msgspec

from forge.tracking.checks import UserId, function_text, more_text, trace_text, user_text

_otel: Any = None
with suppress(ImportError):
    _otel = import_module("opentelemetry.trace")


class Current(msgspec.Struct, frozen=True, omit_defaults=True):
    """The actor and the reason; fields that were not set are None or empty."""

    user_id: str | None = None
    function_name: str | None = None
    trace_id: str | None = None
    more: Mapping[str, Any] = {}


Said: TypeAlias = Current | Callable[[], Current]
"""A context, or a function that finds it on request."""

NOTHING: Final = Current()
_said: ContextVar[Said] = ContextVar("forge_context", default=NOTHING)


class context:
    """A block, with `with` or `async with`, that sets the context."""

    def __init__(
        self,
        /,
        *,
        user_id: UserId | None = None,
        function_name: str | None = None,
        trace_id: str | None = None,
        **more: Any,
    ) -> None:
        more_text(more)
        self._mine: Said = Current(user_text(user_id), function_text(function_name), trace_text(trace_id), more)
        self._alone = False
        self._tokens: list[Token[Said]] = []

    @classmethod
    def found_by(cls, find: Callable[[], Current], *, alone: bool = False) -> Self:
        """Return a block whose context is computed on each request, for values known only later, such as a route.

        `alone` ignores the surrounding context.
        """
        made = cls()
        made._mine = find
        made._alone = alone
        return made

    def here(self) -> Current:
        """Return the context that would apply inside this block if it were entered here."""
        return _found(self._within())

    def __enter__(self) -> Self:
        self._tokens.append(_said.set(self._within()))
        return self

    def __exit__(self, *exc: object) -> None:
        # a block left in another context than it was entered in, as by fixtures, has nothing to restore
        with suppress(ValueError):
            _said.reset(self._tokens.pop())

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__()

    def _within(self) -> Said:
        return self._mine if self._alone else _within(_said.get(), self._mine)


def current() -> Current:
    """Return the present context."""
    found = said()
    if found.trace_id is None and (trace := current_trace_id()) is not None:
        return msgspec.structs.replace(found, trace_id=trace)
    return found


def said() -> Current:
    """Return the context as set, without OpenTelemetry's trace."""
    return _found(_said.get())


def current_trace_id() -> str | None:
    """Return the trace of OpenTelemetry's current span, as 32 hexadecimal digits; None if there is none."""
    if _otel is None:
        return None
    span = _otel.get_current_span().get_span_context()
    return format(span.trace_id, "032x") if span.is_valid else None


def _found(what: Said) -> Current:
    return what if isinstance(what, Current) else what()


def _within(outer: Said, inner: Said) -> Said:
    if isinstance(outer, Current) and isinstance(inner, Current):
        return _merged(outer, inner)
    return lambda: _merged(_found(outer), _found(inner))


def _merged(outer: Current, inner: Current) -> Current:
    if outer is NOTHING:
        return inner
    more = inner.more
    if outer.more:
        more = {**outer.more, **inner.more}
        if inner.more:
            more_text(more)
    return Current(
        outer.user_id if inner.user_id is None else inner.user_id,
        outer.function_name if inner.function_name is None else inner.function_name,
        outer.trace_id if inner.trace_id is None else inner.trace_id,
        more,
    )
