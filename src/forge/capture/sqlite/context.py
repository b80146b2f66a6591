"""The actor and the reason of a transaction on a SQLite file.

    with transaction(connection, user_id=7, function_name="orders.ship", order=118):
        connection.execute("UPDATE orders SET …")

A trigger cannot see a connection's own settings, but it sees the tables of its file, and SQLite has one writer at a
time. So the context is a row of one of Forge's tables: written when the transaction begins, which takes the write lock,
and removed before it commits. No other connection can write meanwhile; a rollback, or a crash, undoes it.

Invariants:

- Everything is checked before anything is written. A malformed context is a ContextError.
- The context lasts as long as its block. A block within a transaction is a savepoint, and keeps the values of the outer
  one unless it overrides them, `more` name by name; when it ends, the outer context is restored.
- Every outermost block gets a name, which is `source.transaction` of its changes.
- A commit inside of a block by other means leaves the context behind: if foreign keys are enforced, SQLite refuses that
  commit; else the block removes the context when it ends, and raises ContextError.
"""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from forge.errors import ContextError, NotInstalled

LONGEST: Final = {"user_id": 255, "function_name": 255, "trace_id": 64}
MOST_MORE: Final = 8192
"""Maximum bytes of JSON: every row of the queue that the transaction writes carries it."""
_SAVEPOINT: Final = "forge_context"


class Connection(Protocol):
    """A connection of sqlite3 or of APSW."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statements: str, bindings: Any = (), /) -> Any: ...


@contextmanager
def transaction(
    connection: Connection,
    /,
    *,
    user_id: str | int | uuid.UUID | None = None,
    function_name: str | None = None,
    trace_id: str | None = None,
    **more: Any,
) -> Iterator[None]:
    """Open a transaction, or a savepoint within one, whose changes carry this context."""
    said = _said(user_id, function_name, trace_id, more)
    nested = connection.in_transaction
    connection.execute(f"SAVEPOINT {_SAVEPOINT}" if nested else "BEGIN IMMEDIATE")
    try:
        outer = _current(connection)
        _put(connection, _joined(outer, said))
        yield
        if not connection.in_transaction:
            raise _left_behind(connection)
        _put(connection, outer)
        connection.execute(f"RELEASE {_SAVEPOINT}" if nested else "COMMIT")
    except BaseException:
        if connection.in_transaction:
            if nested:
                connection.execute(f"ROLLBACK TO {_SAVEPOINT}")
                connection.execute(f"RELEASE {_SAVEPOINT}")
            else:
                connection.execute("ROLLBACK")
        raise


def _current(connection: Connection) -> dict[str, Any] | None:
    """Return the context of the surrounding transaction."""
    there = "SELECT 1 FROM sqlite_schema WHERE name = 'forge_context'"
    if connection.execute(there).fetchone() is None:
        raise NotInstalled("no table of this file is tracked", fix="forge enable TABLE --database-url sqlite:///FILE")
    row = connection.execute("SELECT text FROM forge_context").fetchone()
    found: dict[str, Any] | None = None if row is None else json.loads(row[0])
    return found


def _put(connection: Connection, said: dict[str, Any] | None) -> None:
    connection.execute("DELETE FROM forge_context")
    if said is not None:
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
        connection.execute("INSERT INTO forge_context (text, open) VALUES (?, 1)", (text,))


def _joined(outer: dict[str, Any] | None, said: dict[str, Any]) -> dict[str, Any]:
    if outer is None:
        return {"transaction": uuid.uuid4().hex, **said}
    more = {**outer.get("more", {}), **said.get("more", {})}
    return {**outer, **said, **({"more": more} if more else {})}


def _left_behind(connection: Connection) -> ContextError:
    connection.execute("DELETE FROM forge_context")
    return ContextError(
        "the transaction was ended inside of the block; what was written since may carry its context",
        fix="let the block commit, or raise to roll back",
    )


def _said(
    user_id: str | int | uuid.UUID | None, function_name: str | None, trace_id: str | None, more: dict[str, Any]
) -> dict[str, Any]:
    if isinstance(user_id, int | uuid.UUID) and not isinstance(user_id, bool):
        user_id = str(user_id)
    said: dict[str, Any] = {}
    for name, value in (("user_id", user_id), ("function_name", function_name), ("trace_id", trace_id)):
        if value is None:
            continue
        if not isinstance(value, str) or not value:
            raise ContextError(f"{name} is not a text, or empty", fix=f"pass {name} as text, or leave it out")
        if len(value) > LONGEST[name]:
            raise ContextError(f"{name} is longer than {LONGEST[name]} characters", fix=f"shorten {name}")
        said[name] = value
    if more:
        said["more"] = more
    try:
        size = len(json.dumps(said, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ContextError(f"the context is not JSON: {line}", fix="pass numbers, text, lists and dicts") from None
    if size > MOST_MORE:
        raise ContextError(
            f"the context has {size} bytes; {MOST_MORE} is the most", fix="pass a key to the data instead"
        )
    return said
