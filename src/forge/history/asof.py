"""A row, a table or several tables as of an instant.

    shop = table_as_of(connection, "orders", datetime(2026, 1, 31, 12, tzinfo=UTC), where="customer_id = 7")
    shop.at, shop.rows
    row_as_of(connection, "orders", 118, yesterday).row
    row_as_of(connection, "orders", 118, None).row                            # now
    with at_instant(connection, ["orders", "items"], yesterday) as then:      # one instant, any number of rows
        for row in then["orders"].rows():

As of an instant means: as committed in the last snapshot that maintenance recorded at or before it. `AsOf.at` is the
time of that snapshot. Snapshots are recorded about every second while something changes (`Policy.instants`), so some
changes committed within about a second before the instant may be missing; everything before `AsOf.at` is included, and
nothing after the instant. `AsOf.gap` is the distance from `at` to the instant, and the number of changes in between.

As of now (None), or of an instant after the newest recorded one, is answered from the table itself, minus what was
written after the instant. A transaction that was committed between such an instant and the query, but wrote before the
instant, is in the answer. An instant in the future means now.

The answer is computed in one read-only snapshot of the database: see `forge.history.past`. Its cost grows with the size
of the table and the number of changes since. Rows have the columns that the table had then. Values have the forms of
`forge.values`; excluded and virtual columns are UNAVAILABLE, masked ones are masked. UNAVAILABLE is also the value of a
column that was dropped or retyped since, in a row whose last change is not in the log.

HistoryUnavailable is raised, and no guess returned, if the log cannot answer: before the first recorded snapshot, when
the log since was trimmed, before the table was tracked, and across a TRUNCATE or a rewrite unless the log has every row
from before, because the table was empty when tracking began, or truncated before. It names the oldest instant that can
be answered.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from forge.errors import HistoryUnavailable
from forge.history import tracked
from forge.history.instants import Answered, Gap, answered, aware, current
from forge.history.past import Past
from forge.postgres.connection import Connection, typed_errors
from forge.values import Column


class AsOf(msgspec.Struct, frozen=True):
    """The past state: `rows` as committed at `at`, the last instant at or before `asked` that can be answered."""

    table: str
    gap: Gap
    """The requested and the answered instant, and the number of changes of the table in between."""
    rows: list[dict[str, Any]]
    columns: tuple[Column, ...] = ()
    """The columns that the table had then."""

    @property
    def asked(self) -> datetime:
        return self.gap.asked

    @property
    def at(self) -> datetime:
        return self.gap.at

    @property
    def row(self) -> dict[str, Any] | None:
        """Return the only row; None if there was none."""
        if len(self.rows) > 1:
            raise ValueError(f"there are {len(self.rows)} rows")
        return self.rows[0] if self.rows else None


def table_as_of(connection: Connection, table: str, at: datetime | None, *, where: str | None = None) -> AsOf:
    """Return all rows of a table as of an instant, unordered; only those that satisfy `where`, if given."""
    with at_instant(connection, [table], at) as then:
        past = then[table]
        return AsOf(past.name, past.gap, list(past.rows(where)), past.columns)


def row_as_of(connection: Connection, table: str, key: object, at: datetime | None) -> AsOf:
    """Return one row as of an instant by its key: the value of a one-column key, or a mapping of columns to values."""
    with at_instant(connection, [table], at) as then:
        past = then[table]
        row = past.row(key)
        return AsOf(past.name, past.gap, [] if row is None else [row], past.columns)


def as_of(connection: Connection, tables: Sequence[str], at: datetime | None) -> dict[str, AsOf]:
    """Return several tables as of the same instant."""
    with at_instant(connection, tables, at) as then:
        return {table: AsOf(past.name, past.gap, list(past.rows()), past.columns) for table, past in then.items()}


@contextmanager
def at_instant(
    connection: Connection, tables: Sequence[str], at: datetime | Answered | None
) -> Iterator[Mapping[str, Past]]:
    """Yield the pasts of tables for the block, all in one snapshot of the database and at one instant; None means now.

    An earlier `Past.answered` gives the same answer again.
    """
    if isinstance(at, datetime):
        aware(at)
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise HistoryUnavailable(
            "the connection is inside a transaction", fix="commit first, or use a connection in autocommit mode"
        )
    rows = connection.cursor(row_factory=tuple_row)
    with typed_errors():
        with connection.transaction():
            relations = {table: tracked.find(rows, table) for table in tables}
            for pin in tracked.PINS:
                connection.execute(pin)
            identity = rows.execute("SELECT (forge.current_identity()).first_id").fetchone()
            assert identity is not None
            names = [
                found[0]
                for oid in relations.values()
                if oid is not None and (found := rows.execute(_NAME, (oid,)).fetchone()) is not None
            ]
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            # Before the snapshot is taken: a TRUNCATE or rewrite in between would be visible in it.
            for name in names:
                connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.SQL(name)))
            for pin in tracked.PINS:
                connection.execute(pin)
            now = current(rows)
            loaded = {table: tracked.load(rows, table, oid) for table, oid in relations.items()}
            if not isinstance(at, Answered):
                at = answered(rows, now, at, identity[0], tuple(table.enabled_at for table in loaded.values()))
            yield {table: Past(connection, known, at, identity[0]) for table, known in loaded.items()}


_NAME = (
    "SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.oid = %s"
)
