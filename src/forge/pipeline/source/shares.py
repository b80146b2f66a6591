"""Statements that read a share of a table as of a snapshot.

No snapshot is held open while a table is read: each share is read in its own snapshot and rewound
(`forge.changelog.rewind`), and all shares together are the table as of the requested snapshot, at every attempt.

When the table was truncated or redefined since, its rows cannot be reconstructed. Then the share is one `invalidate`
event instead of the announcement and the rows: as-of must know that the rows are unknown until the truncate, or until
the new read of the table, which come later in the stream.
"""

from collections.abc import Iterator
from typing import NamedTuple

from forge.changelog import rewind
from forge.changelog.rewind import CurrentTable
from forge.cursor import Snapshot
from forge.pipeline.source.offset import TableShare
from forge.pipeline.source.statements import bound, source_query
from forge.postgres.connection import Connection
from forge.postgres.names import quoted


class TableAsOf(NamedTuple):
    """A table as of a snapshot: SQL for its rows, or None when they cannot be reconstructed."""

    now: CurrentTable
    images: str | None


def statements(connection: Connection, share: TableShare, log: str, first_id: int) -> Iterator[str]:
    """Yield the statements to run in the open transaction: the announcement of the snapshot, then the rows; or the
    event that says that they are unknown."""
    then = as_of(connection, share.tracked, Snapshot.parse(share.snapshot), first_id, share)
    if then is None:
        return
    generation = f"{share.generation:04x}"
    values = {
        "generation": generation,
        "name": f"{log}:{generation}:{share.tracked}",
        "schema": then.now.schema,
        "table": then.now.name,
        "version": then.now.version,
        "at": share.at,
        "share": share.share,
    }
    if then.images is None:
        yield bound(connection, source_query("unknown_rows"), values)
        return
    if share.share == 0:
        yield bound(connection, source_query("announced"), values)
    rows = bound(connection, source_query("keyed_rows" if then.now.key else "counted_rows"), values)
    yield rows.replace("{images}", then.images)


def as_of(
    connection: Connection, tracked: int, snapshot: Snapshot, first_id: int, share: TableShare | None = None
) -> TableAsOf | None:
    """Return a tracked table, or a share of it, as of a snapshot; None when it is not tracked.

    It must be the first call in a transaction, and its result must run in the same transaction.
    """
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    row = connection.execute(rewind.rewind_query("tables"), {"table": tracked, "first_table": 0}).fetchone()
    if row is None:
        return None
    table = CurrentTable(*row)
    since = table.since(snapshot, first_id)
    whole = connection.execute(rewind.rewind_query("whole"), since).fetchone()
    for pin in rewind.PINS:
        connection.execute(pin)
    connection.execute("SET LOCAL enable_seqscan = on")
    if whole is not None:
        return TableAsOf(table, None)
    if not table.key:
        return TableAsOf(table, bound(connection, table.counted(), since))
    stored, logged = ("true", "true") if share is None else _belongs(share, table)
    return TableAsOf(table, bound(connection, table.keyed(stored_bounds=stored, logged_bounds=logged), since))


def _belongs(share: TableShare, table: CurrentTable) -> tuple[str, str]:
    """Return two conditions for membership in a share: of a row in the table, and of a change in the log."""
    if share.shares == 1:
        return "true", "true"
    if share.key is None:
        by = "mod(hashtextextended({}, 0) & 9223372036854775807, {}) = {}"
        return by.format(table.row_id, share.shares, share.share), by.format("l.row_id", share.shares, share.share)
    limits = [(">=", share.low), ("<", share.high)]
    conditions = [f"{{}} {sign} {limit}" for sign, limit in limits if limit is not None]
    stored = f"{table.alias}.{quoted(share.key)}"
    return (
        " AND ".join(condition.format(stored) for condition in conditions),
        " AND ".join(condition.format("l.row_id::bigint") for condition in conditions),
    )
