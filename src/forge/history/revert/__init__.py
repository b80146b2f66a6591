"""Undoing what a request, a transaction or a user did, as one new transaction that is logged like any other.

    plan = plan_revert(connection, Choice(trace="3f2a9c0e"))
    done = revert(connection, Choice(trace="3f2a9c0e"), by="ada")

Several changes of one row are undone by one write: back to what each column was before the first of them. It is
refused, whole, with a line for each reason, where a change of somebody else would be lost:

- an update is undone only if the columns that it wrote are what they were after it; other columns may have changed;
- an insert is undone only if the row is, in all columns, what it was after the last chosen change, and no other row
  refers to it;
- a delete is undone only if no row has its key, and the log has values of all its columns.

Rows are locked before they are compared. Tables are written in the order of their foreign keys, deferrable constraints
are deferred, and triggers of users fire. Reverting the transaction of a revert brings back what it undid.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from forge.errors import RevertRefused
from forge.history.revert import chosen, tables
from forge.history.revert.apply import REDACTED, Conflict, Settings, Writer, pinned
from forge.history.revert.chosen import MOST_BYTES, MOST_CHANGES, Choice, Image, Logged
from forge.history.revert.collapse import Kind, collapse
from forge.history.revert.tables import Table
from forge.postgres.connection import Connection, typed_errors
from forge.postgres.text import check_storable

__all__ = [
    "MOST_BYTES",
    "MOST_CHANGES",
    "UNSEEN",
    "Choice",
    "Conflict",
    "Plan",
    "Reverted",
    "Step",
    "plan_revert",
    "revert",
]

FUNCTION = "forge.revert"
LOCK_TIMEOUT = "10s"
UNSEEN = msgspec.Raw(b'{"$unavailable":true}')
"""What a step has in place of a value that nobody is shown."""
_WHOLE = {"T": "truncated", "S": "redefined", "X": "changed in a way that was not logged"}


class Step(msgspec.Struct, frozen=True):
    """One row's way back: what is written, and what is there now.

    Values are JSON, as the log has them; those of columns that are excluded or masked now, or were when they were
    dropped, are UNSEEN.
    """

    op: Kind
    table: str
    key: str
    now: Mapping[str, msgspec.Raw]
    then: Mapping[str, msgspec.Raw]
    changes: int


class Plan(msgspec.Struct, frozen=True):
    """What a revert would do. `changes` are the chosen ones; with a conflict, nothing is done."""

    choice: Choice
    changes: int
    steps: Sequence[Step]
    conflicts: Sequence[Conflict]


class Reverted(msgspec.Struct, frozen=True):
    """What a revert did: `transaction` is its own, None when all was as before already.

    `adjusted` names rows of which triggers made something else as they were written, with the columns.
    """

    choice: Choice
    changes: int
    transaction: str | None
    steps: Sequence[Step]
    adjusted: Mapping[str, Sequence[str]]

    @property
    def counts(self) -> dict[str, int]:
        """How many rows were written, by table."""
        return dict(Counter(step.table for step in self.steps))


def plan_revert(connection: Connection, choice: Choice) -> Plan:
    """What would be done, and every conflict; nothing is locked or written."""
    with _transaction(connection, "REPEATABLE READ, READ ONLY") as settings:
        found = _Found(connection, choice, settings)
        return Plan(choice, len(found.changes), found.steps(), found.conflicts(lock=False))


def revert(connection: Connection, choice: Choice, *, by: str | None = None) -> Reverted:
    """Undo the chosen changes; the log says that the user `by` did it, else the database's user, in `forge.revert`."""
    check_storable("by", by, error=RevertRefused)
    try:
        with _transaction(connection, "READ COMMITTED") as settings:
            connection.execute(
                "SELECT set_config('lock_timeout', %s, true) WHERE current_setting('lock_timeout') = '0'",
                (LOCK_TIMEOUT,),
            )
            found = _Found(connection, choice, settings)
            if conflicts := found.conflicts(lock=True):
                raise RevertRefused(
                    f"{len(conflicts)} {'row' if len(conflicts) == 1 else 'rows'} cannot be reverted, so nothing was",
                    fix="look at them with --dry-run; revert what came later first, or choose fewer tables",
                    conflicts=[str(conflict) for conflict in conflicts],
                )
            if not found.undos:
                return Reverted(choice, len(found.changes), None, [], {})
            more = {"reverted": msgspec.to_builtins(choice), "changes": len(found.changes)}
            connection.execute(
                "SELECT public.forge_context(coalesce(%s, session_user::text), %s, NULL, %s::text::jsonb)",
                (by, FUNCTION, msgspec.json.encode(more).decode()),
            )
            adjusted = found.writer.write(found.undos)
            row = connection.cursor(row_factory=tuple_row).execute("SELECT pg_current_xact_id()::text").fetchone()
            assert row is not None
            names = {f"{found.tables[undo.tracked].title} {undo.target}": columns for undo, columns in adjusted}
            return Reverted(choice, len(found.changes), row[0], found.steps(), names)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise RevertRefused(
            "another transaction holds one of the rows; nothing was reverted", fix="try again when it has ended"
        ) from error


class _Found:
    """What a choice means in the database as it is."""

    def __init__(self, connection: Connection, choice: Choice, settings: Settings) -> None:
        wanted = tables.find(connection, choice.tables) if choice.tables else None
        self.changes = chosen.read(connection, choice, wanted)
        self.tables = tables.load(connection, {change.tracked for change in self.changes})
        self._whole = list(_whole_tables(connection, self.changes, self.tables))
        rows = [] if self._whole else [_renamed(change, self.tables[change.tracked]) for change in self.changes]
        self.undos = collapse(rows)
        keys = tables.foreign_keys(connection, self.tables.values())
        self.writer = Writer(connection, self.tables, keys, settings)

    def conflicts(self, *, lock: bool) -> list[Conflict]:
        return self._whole or self.writer.check(self.undos, lock=lock)

    def steps(self) -> list[Step]:
        """In the order of the plan: by table, newest change first."""
        return [
            Step(
                undo.kind,
                self.tables[undo.tracked].title,
                undo.now or undo.target or "*",
                self._shown(undo.tracked, undo.expected, None if undo.kind != "update" else undo.values),
                self._shown(undo.tracked, undo.values),
                undo.changes,
            )
            for undo in sorted(self.undos, key=lambda undo: (self.tables[undo.tracked].title, -undo.last.id))
        ]

    def _shown(self, tracked: int, image: Image, only: Iterable[str] | None = None) -> dict[str, msgspec.Raw]:
        veiled = self.tables[tracked].veiled
        names = image if only is None else only
        return {name: UNSEEN if name in veiled else msgspec.Raw(image[name]) for name in names if name in image}


@contextmanager
def _transaction(connection: Connection, isolation: str) -> Iterator[Settings]:
    """A transaction that reads the log's texts; yields the settings that triggers of users are to find."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise RevertRefused(
            "the connection is inside a transaction", fix="commit first, or use a connection in autocommit mode"
        )
    with typed_errors():
        with connection.transaction():
            connection.execute("SELECT forge.current_identity()")
        with connection.transaction():
            connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
            connection.execute("SET LOCAL row_security = off")
            yield pinned(connection)


def _whole_tables(connection: Connection, changes: Iterable[Logged], known: Mapping[int, Table]) -> Iterable[Conflict]:
    """What speaks of whole tables cannot be undone; nor can what was done to a table that is not tracked any more."""
    seen = set()
    names: dict[int, str] = dict(
        connection.cursor(row_factory=tuple_row).execute("SELECT id, table_name FROM forge.tracked_table").fetchall()
    )
    for change in changes:
        reason = f"it was {_WHOLE[change.op]}" if change.op in _WHOLE else None
        if reason is None and change.tracked not in known:
            reason = "it is no longer tracked, so nothing would be logged"
        if reason is not None and (change.tracked, reason) not in seen:
            seen.add((change.tracked, reason))
            yield Conflict(names[change.tracked], None, reason)


def _renamed(change: Logged, table: Table) -> Logged:
    """The change with its columns called as in the plan."""
    names = table.versions[change.version].names

    def renamed(image: Image | None) -> Image | None:
        if image is None:
            return None
        redacted = msgspec.json.decode(image["$redacted"]) if "$redacted" in image and "$redacted" not in names else []
        return {names[name]: REDACTED if name in redacted else value for name, value in image.items() if name in names}

    return msgspec.structs.replace(change, before=renamed(change.before), after=renamed(change.after))
