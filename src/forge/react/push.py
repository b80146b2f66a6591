"""What subscribers are given: a result, what it was before, and why it changed."""

from collections.abc import Hashable
from datetime import datetime
from functools import cached_property
from typing import Final, Protocol

import msgspec

from forge.change import NO_CONTEXT, Change
from forge.cursor import Snapshot
from forge.errors import ForgeError
from forge.react.result import Delta, Result, difference

MOST_CAUSES: Final = 20


class Cause(msgspec.Struct, frozen=True):
    """A change that made a query run again: which, by whom, when, in which transaction."""

    id: str
    table: str
    op: str
    user: str | None
    function: str | None
    trace: str | None
    at: datetime
    transaction: str | None

    @classmethod
    def of(cls, change: Change, *, actor: bool = True) -> "Cause":
        """Of a change; without the actor where that is not to be known."""
        context = change.context if actor else NO_CONTEXT
        return cls(
            change.id,
            f"{change.schema}.{change.table}",
            change.op.value,
            context.user_id,
            context.function_name,
            context.trace_id,
            change.at,
            change.source.transaction,
        )


class Push:
    """A fresh result. `coverage` shows which transactions are in it; `causes` are some of those that led to it."""

    def __init__(
        self, result: Result, previous: Result | None, coverage: Snapshot, causes: tuple[Cause, ...], more: int
    ) -> None:
        self.result = result
        self.previous = previous
        self.coverage = coverage
        self.causes = causes
        self.more = more
        """How many causes there are beyond those listed."""

    @cached_property
    def delta(self) -> Delta | None:
        """What leads here from the previous result; None when there was none, or rows have no key."""
        return None if self.previous is None else difference(self.previous, self.result)


class Subscriber(Protocol):
    """Whoever wants a query's results. Nothing here may wait."""

    @property
    def session(self) -> Hashable:
        """Subscribers of one session see all that one batch of changes touched on one snapshot."""
        ...

    def push(self, push: Push, /) -> None:
        """The result is this now."""
        ...

    def fail(self, error: ForgeError, /) -> None:
        """The query cannot run now; what was pushed may be old."""
        ...
