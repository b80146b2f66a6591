"""Undo the changes of a request, a transaction or a user, in one new transaction that is logged like any other.

    plan = plan_revert(connection, Choice(trace="3f2a9c0e"))
    done = revert(connection, Choice(trace="3f2a9c0e"), by="ada")

One write undoes several changes of one row: it restores each column to its value before the first of them. The revert
is refused as a whole, with a line for each reason, if a change by another writer would be lost:

- an update is undone only if the columns that it wrote still have the values it left; other columns may have changed;
- an insert is undone only if all columns of the row are as they were after the last chosen change, and no other row
  refers to it;
- a delete is undone only if no row has its key, and the log has values of all its columns.

Rows are locked before they are compared. Tables are written in the order of their foreign keys, deferrable constraints
are deferred, and triggers of users fire. Reverting the transaction of a revert restores what it undid.
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
from forge.history.revert.apply import REDACTED, Conflict, RevertWriter, Settings, pinned
from forge.history.revert.chosen import MOST_BYTES, MOST_CHANGES, Choice, Image, Logged
from forge.history.revert.collapse import Kind, collapse
from forge.history.revert.tables import RevertTable
from forge.postgres.connection import Connection, typed_errors
from forge.postgres.text import check_storable

__all__ = [
    "MOST_BYTES",
    "MOST_CHANGES",
    "UNSEEN",
    "Choice",
    "Conflict",
    "RevertPlan",
    "RevertStep",
    "Reverted",
    "plan_revert",
    "revert",
]

FUNCTION = "forge.revert"
LOCK_TIMEOUT = "10s"
UNSEEN = msgspec.Raw(b'{"$unavailable":true}')
"""Placeholder in a step for a value that is never shown."""
_WHOLE = {"T": "truncated", "S": "redefined", "X": "changed in a way that was not logged"}


class RevertStep(msgspec.Struct, frozen=True):
    """The undo of one row: the values to write, and the current ones.

    Values are JSON, as in the log; those of columns that are excluded or masked, or were when they were dropped, are
    UNSEEN.
    """

    op: Kind
    table: str
    key: str
    now: Mapping[str, msgspec.Raw]
    then: Mapping[str, msgspec.Raw]
    changes: int


class RevertPlan(msgspec.Struct, frozen=True):
    """The plan of a revert. `changes` are the chosen ones; if there is a conflict, nothing is done."""

    choice: Choice
    changes: int
    steps: Sequence[RevertStep]
    conflicts: Sequence[Conflict]


class Reverted(msgspec.Struct, frozen=True):
    """The result of a revert: `transaction` is its own, None if nothing had to be written.

    `adjusted` names rows that triggers modified while they were written, with the columns.
    """

    choice: Choice
    changes: int
    transaction: str | None
    steps: Sequence[RevertStep]
    adjusted: Mapping[str, Sequence[str]]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of written rows by table."""
        return dict(Counter(step.table for step in self.steps))


def plan_revert(connection: Connection, choice: Choice) -> RevertPlan:
    """Return what would be done, and every conflict; lock and write nothing."""
    with _transaction(connection, "REPEATABLE READ, READ ONLY") as settings:
        found = _Found(connection, choice, settings)
        return RevertPlan(choice, len(found.changes), found.steps(), found.conflicts(lock=False))


def revert(connection: Connection, choice: Choice, *, by: str | None = None) -> Reverted:
    """Undo the chosen changes; the log shows `by` as the user, else the database's user, and `forge.revert`."""
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
    """The meaning of a choice in the current database."""

    def __init__(self, connection: Connection, choice: Choice, settings: Settings) -> None:
        wanted = tables.find(connection, choice.tables) if choice.tables else None
        self.changes = chosen.read(connection, choice, wanted)
        self.tables = tables.load(connection, {change.tracked for change in self.changes})
        self._whole = list(_whole_tables(connection, self.changes, self.tables))
        rows = [] if self._whole else [_renamed(change, self.tables[change.tracked]) for change in self.changes]
        self.undos = collapse(rows)
        keys = tables.foreign_keys(connection, self.tables.values())
        self.writer = RevertWriter(connection, self.tables, keys, settings)

    def conflicts(self, *, lock: bool) -> list[Conflict]:
        return self._whole or self.writer.check(self.undos, lock=lock)

    def steps(self) -> list[RevertStep]:
        """Return the steps in the order of the plan: by table, newest change first."""
        return [
            RevertStep(
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
    """Run a transaction that reads the log's texts; yield the settings that triggers of users should see."""
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


def _whole_tables(
    connection: Connection, changes: Iterable[Logged], known: Mapping[int, RevertTable]
) -> Iterable[Conflict]:
    """Yield conflicts for changes of whole tables, and of tables that are not tracked, which cannot be undone."""
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


def _renamed(change: Logged, table: RevertTable) -> Logged:
    """Return the change with its columns named as in the plan."""
    names = table.versions[change.version].names

    def renamed(image: Image | None) -> Image | None:
        if image is None:
            return None
        redacted = msgspec.json.decode(image["$redacted"]) if "$redacted" in image and "$redacted" not in names else []
        return {names[name]: REDACTED if name in redacted else value for name, value in image.items() if name in names}

    return msgspec.structs.replace(change, before=renamed(change.before), after=renamed(change.after))
