"""Messages to subscribers: a result, the previous result, and the causes of the change."""

from collections.abc import Hashable
from datetime import datetime
from functools import cached_property
from typing import Final, Protocol

import msgspec

from forge.change import NO_CONTEXT, Change
from forge.cursor import Snapshot
from forge.errors import ForgeError
from forge.react.result import Result, ResultDelta, difference

MOST_CAUSES: Final = 20


class RunCause(msgspec.Struct, frozen=True):
    """A change that made a query run again: the change, its actor, its time and its transaction."""

    id: str
    table: str
    op: str
    user: str | None
    function: str | None
    trace: str | None
    at: datetime
    transaction: str | None

    @classmethod
    def of(cls, change: Change, *, actor: bool = True) -> "RunCause":
        """Create a cause from a change; omit the actor if subscribers must not see it."""
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
    """A fresh result. `coverage` is the snapshot it contains; `causes` lists some of the changes that led to it."""

    def __init__(
        self, result: Result, previous: Result | None, coverage: Snapshot, causes: tuple[RunCause, ...], more: int
    ) -> None:
        self.result = result
        self.previous = previous
        self.coverage = coverage
        self.causes = causes
        self.more = more
        """Number of causes beyond the listed ones."""

    @cached_property
    def delta(self) -> ResultDelta | None:
        """Return the delta from the previous result; None if there is no previous result or rows have no key."""
        return None if self.previous is None else difference(self.previous, self.result)


class Subscriber(Protocol):
    """A receiver of a query's results. Its methods must not block."""

    @property
    def session(self) -> Hashable:
        """Key of the session. Subscribers of one session see everything that one batch touched on one snapshot."""
        ...

    def push(self, push: Push, /) -> None:
        """Receive a new result."""
        ...

    def fail(self, error: ForgeError, /) -> None:
        """Receive an error: the query cannot run at present, and the last pushed result may be stale."""
        ...
