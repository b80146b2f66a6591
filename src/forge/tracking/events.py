"""Committed changes as events within this process: for subscribers of a table, and for listeners to everything.

An Event describes the change of one row as its subscriber sees it (`added`, `changed`, `removed`), or says that unknown
rows may have changed (`invalidate`: of a table, or of every table when `table` is None).

    stop = listen(lambda engine, events: ...)       # every transaction of every tracked engine, after its commit

Invariants:

- No event is delivered before a successful commit, after a rollback, or for a savepoint that was rolled back.
- The events of a transaction are delivered together, in the order of its statements, in the thread or task that
  committed, before its commit returns. Concurrent transactions may be delivered in either order.
- A failing listener affects neither the writer nor the other listeners; the error is logged as `forge.tracking`.
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
    """One row, or the rows of a table, changed by a committed transaction.

    `name` is the table's resource name (`names=` of `forge.tracking`), by default its own name. `key` is None when the
    row is unknown. `before` and `after` hold values in the forms that `forge.values` defines, and are None if there is
    no such row or it was not read.
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
"""Receives the engine (SQLAlchemy's; the synchronous one of an AsyncEngine) and the changes of one transaction."""

_listeners: tuple[tuple[Listener, bool], ...] = ()
_lock: Final = Lock()


def listen(callback: Listener, *, rows: bool = True) -> Callable[[], None]:
    """Call back for every committed transaction of every tracked engine in this process; return a function to stop it.

    Without `rows`, the listener gets `invalidate` where finding the rows would cost more reads: on tables whose changes
    Forge's triggers record.
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
    """Return the listeners to everything."""
    return [callback for callback, _ in _listeners]


def heard() -> bool:
    """Whether there is a listener to everything."""
    return bool(_listeners)


def rows_wanted() -> bool:
    """Whether a listener to everything wants the rows."""
    return any(rows for _, rows in _listeners)


def tell(callback: Callable[..., object], *arguments: Any, wait: Callable[[Any], object] | None = None) -> None:
    """Call a listener; a failure is only logged. An awaitable return value is passed to `wait`."""
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
