"""The statements that read a share of a table as it was in a snapshot.

A table then is what it is now, less what the log says happened since: a row that nobody changed is taken from the
table, for every other row its image before its first change. So no snapshot is held open while a table is read, each
share is read in a snapshot of its own, and all shares together are the table as of the one that was asked for, at
every try.

When the table was truncated or defined anew since, its rows of then are not known any more, and there are none: what
happened comes later in the stream, and with it the end of these rows or a new reading of the table.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from forge.changelog import session
from forge.changelog.connection import Connection
from forge.cursor import Snapshot
from forge.pipeline.source.offset import TableShare, snapshot_bounds
from forge.pipeline.source.statements import bound, quoted, source_query

_PINS: Final = session.set_local(session.TEXTS, session.CATALOG, session.ALL_ROWS, {"enable_seqscan": "on"})


class Then(NamedTuple):
    """A table as it was: SQL for its rows, `(row_id, image)`, or None when they cannot be told any more."""

    schema: str
    table: str
    version: int
    key: tuple[str, ...]
    images: str | None


def statements(connection: Connection, share: TableShare, log: str, first_id: int) -> Iterator[str]:
    """What to run, in order, in the transaction that was begun: the announcement of the snapshot, then the rows."""
    then = as_of(connection, share.tracked, Snapshot.parse(share.snapshot), first_id, share)
    if then is None:
        return
    generation = f"{share.generation:04x}"
    values = {
        "generation": generation,
        "name": f"{log}:{generation}:{share.tracked}",
        "schema": then.schema,
        "table": then.table,
        "version": then.version,
        "at": share.at,
        "first_share": share.share == 0,
    }
    yield bound(connection, source_query("announced"), values)
    if then.images is not None:
        rows = bound(connection, source_query("keyed_rows" if then.key else "counted_rows"), values)
        yield rows.replace("{images}", then.images)


def as_of(
    connection: Connection, tracked: int, snapshot: Snapshot, first_id: int, share: TableShare | None = None
) -> Then | None:
    """A tracked table, or a share of it, as it was; None when it is not tracked any more.

    To be called first in a transaction, and what it returns is to be run in the same one.
    """
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    table = _relation(connection, tracked, "forge_now")
    if table is None:
        return None
    alias = _alias(table[8])
    table = _relation(connection, tracked, alias)
    assert table is not None
    relation, version, key, schema, name, row_id, source, versions, _ = table
    since = {**snapshot_bounds(snapshot), "versions": versions, "first": first_id}
    whole = connection.execute(source_query("whole"), since).fetchone() == (True,)
    for pin in _PINS:
        connection.execute(pin)
    if whole:
        return Then(schema, name, version, tuple(key), None)
    stored, logged = ("true", "true") if share is None else _belongs(share, row_id, alias)
    words = {
        "relation": relation,
        "alias": quoted(alias),
        "image": quoted(f"{alias}_image"),
        "source": source,
        "row_id": row_id,
        "stored_here": stored,
        "logged_here": logged,
        "before": source_query("before"),
    }
    images = bound(connection, source_query("keyed_images" if key else "counted_images"), since)
    for word, text in words.items():
        images = images.replace("{" + word + "}", text)
    return Then(schema, name, version, tuple(key), images)


def _relation(connection: Connection, tracked: int, alias: str) -> tuple[Any, ...] | None:
    return connection.execute(source_query("relation"), {"tracked": tracked, "alias": alias}).fetchone()


def _belongs(share: TableShare, row_id: str, alias: str) -> tuple[str, str]:
    """Two conditions for what belongs to a share: of a row in the table, and of a change in the log."""
    if share.shares == 1:
        return "true", "true"
    if share.key is None:
        by = "mod(hashtextextended({}, 0) & 9223372036854775807, {}) = {}"
        return by.format(row_id, share.shares, share.share), by.format("l.row_id", share.shares, share.share)
    bounds = [(">=", share.low), ("<", share.high)]
    conditions = [f"{{}} {sign} {bound}" for sign, bound in bounds if bound is not None]
    stored = f"{quoted(alias)}.{quoted(share.key)}"
    return (
        " AND ".join(condition.format(stored) for condition in conditions),
        " AND ".join(condition.format("l.row_id::bigint") for condition in conditions),
    )


def _alias(columns: list[str]) -> str:
    """A name that no column has: row_to_json(name) would mean the column."""
    alias = "forge_now"
    while alias in columns or f"{alias}_image" in columns:
        alias += "_"
    return alias
