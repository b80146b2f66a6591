"""What committed, told within this process: to subscribers of a table, and to whoever listens to everything.

An Event says what happened to one row, as its subscriber sees it (`added`, `changed`, `removed`), or that rows which
cannot be named may have changed (`invalidate`: of a table, or of every table when `table` is None).

    stop = listen(lambda engine, events: ...)       # every transaction of every tracked engine, after its commit

What always holds:

- Nothing is told before the commit succeeded, nothing after a rollback, nothing of a savepoint that was rolled back.
- The events of a transaction come together and in the order of its statements, in the thread or task that committed,
  before its commit returns. Transactions that commit at the same moment may be told in either order.
- A listener that fails harms neither the writer nor the other listeners; it is logged as `forge.tracking`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable
from threading import Lock
from typing import Any, Final, Literal, TypeAlias

import msgspec

from forge.change import NO_CONTEXT, Context

LOGGER: Final = logging.getLogger("forge.tracking")

Kind: TypeAlias = Literal["added", "changed", "removed", "invalidate"]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row, or the rows of a table, changed by a transaction that has committed.

    `name` is the table's resource name (`names=` of `forge.tracking`), its own name unless told. `key` is None when the
    row is unknown. `before` and `after` hold values in the forms that `forge.values` states, and are None where there
    is no such row or it was not read.
    """

    kind: Kind
    table: str | None
    name: str | None = None
    schema: str | None = None
    key: Mapping[str, Any] | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    context: Context = NO_CONTEXT
    transaction: str | None = None


Listener: TypeAlias = Callable[[Any, list[Event]], object]
"""Takes the engine (SQLAlchemy's, the synchronous one of an AsyncEngine) and what one transaction changed."""

_listeners: tuple[tuple[Listener, bool], ...] = ()
_lock: Final = Lock()


def listen(callback: Listener, *, rows: bool = True) -> Callable[[], None]:
    """Hear of every committed transaction of every tracked engine in this process; returns how to stop it.

    Without `rows` it is content to hear `invalidate` where naming the rows would cost more reads: on tables whose
    changes Forge's triggers record.
    """
    global _listeners
    item = (callback, rows)
    with _lock:
        _listeners = (*_listeners, item)

    def stop() -> None:
        global _listeners
        with _lock:
            _listeners = tuple(kept for kept in _listeners if kept is not item)

    return stop


def listeners() -> Sequence[Listener]:
    """Whoever listens to everything."""
    return [callback for callback, _ in _listeners]


def heard() -> bool:
    """Whether anybody listens to everything."""
    return bool(_listeners)


def rows_wanted() -> bool:
    """Whether anybody who listens to everything wants to know the rows."""
    return any(rows for _, rows in _listeners)


def tell(callback: Callable[..., object], *arguments: Any, wait: Callable[[Any], object] | None = None) -> None:
    """Call it; a failure is logged and goes no further. What it returns to be awaited is given to `wait`."""
    try:
        found = callback(*arguments)
        if isawaitable(found):
            if wait is None:
                close = getattr(found, "close", None)
                if close is not None:
                    close()
                raise TypeError("an async subscriber needs an AsyncEngine")
            wait(found)
    except Exception:
        LOGGER.exception("a subscriber of changes failed: %r", callback)
