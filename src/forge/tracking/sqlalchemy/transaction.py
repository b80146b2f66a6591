"""State of a connection's transaction, kept with the DBAPI connection until it commits or rolls back.

A `TrackedTransaction` starts with the first write after a commit or rollback. It holds the events to deliver after a
successful commit, marks savepoints so that a rollback to one drops the later events, and knows which context the
database has.

SQLAlchemy announces a commit before it happens. `on_end` therefore wraps the dialect's own commit and rollback to run
code after them; this also covers a connection that returns to its pool with an open transaction. A statement may also
end a transaction: DDL in MySQL and MariaDB commits it. Their servers report this with every answer, and `still_open`
reads it.
"""

from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, Engine
from sqlalchemy.pool.base import _ConnectionFairy

from forge.tracking.current import NOTHING, Current

_PLACE: Final = "forge.transaction"


class TrackedTransaction:
    """The writes of one database transaction, in order."""

    def __init__(self) -> None:
        self.id: Final = uuid4().hex
        self.done: list[Any] = []
        self.told: Current | None = NOTHING
        """The context that the database has; None if a rollback to a savepoint may have changed it."""
        self._savepoints: dict[str, int] = {}

    def savepoint(self, name: str) -> None:
        """Mark a savepoint; later writes may be undone."""
        self._savepoints[name] = len(self.done)

    def rollback_to(self, name: str) -> None:
        """Drop the writes since a savepoint."""
        del self.done[self._savepoints.get(name, 0) :]
        self.told = None


def transaction(connection: Connection) -> TrackedTransaction:
    """Return the transaction of a connection; a new one after each commit or rollback."""
    info = connection.info
    found: TrackedTransaction | None = info.get(_PLACE)
    if found is None:
        found = info[_PLACE] = TrackedTransaction()
    return found


def taken(connection: Connection) -> TrackedTransaction | None:
    """Remove and return the transaction of a connection; None if it has done nothing."""
    found: TrackedTransaction | None = connection.info.pop(_PLACE, None)
    return found if found is not None and found.done else None


def still_open(connection: Connection) -> bool:
    """Whether the server had an open transaction at its last answer; True if the driver does not report it."""
    status = getattr(connection.connection.driver_connection, "server_status", None)
    return not isinstance(status, int) or bool(status & _IN_TRANSACTION)


_IN_TRANSACTION: Final = 1
"""SERVER_STATUS_IN_TRANS of the MySQL protocol."""


def on_end(engine: Engine, committed: Callable[[TrackedTransaction], object]) -> None:
    """Call `committed` after each successful commit of a transaction that wrote; a rollback drops it."""
    dialect: Any = engine.dialect

    def ended(connection: Any, *, kept: bool) -> None:
        if isinstance(connection, Connection):
            connection = connection.connection
        if isinstance(connection, _ConnectionFairy) and connection.is_valid:
            found: TrackedTransaction | None = connection.info.pop(_PLACE, None)
            if kept and found is not None and found.done:
                committed(found)

    def around(name: str, *, kept: bool) -> None:
        original = getattr(dialect, name)

        def wrapped(connection: Any, *arguments: Any, **options: Any) -> None:
            if not kept:
                ended(connection, kept=False)
            original(connection, *arguments, **options)
            if kept:
                ended(connection, kept=True)

        setattr(dialect, name, wrapped)

    def before(name: str, act: Callable[[TrackedTransaction, str], None]) -> None:
        original = getattr(dialect, name)

        def wrapped(connection: Connection, savepoint: str) -> None:
            act(transaction(connection), savepoint)
            original(connection, savepoint)

        setattr(dialect, name, wrapped)

    before("do_savepoint", TrackedTransaction.savepoint)
    before("do_rollback_to_savepoint", TrackedTransaction.rollback_to)
    around("do_commit", kept=True)
    around("do_commit_twophase", kept=True)
    around("do_rollback", kept=False)
    around("do_rollback_twophase", kept=False)
