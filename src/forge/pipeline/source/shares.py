"""The statements that read a share of a table as it was in a snapshot.

A table then is what it is now, less what the log says happened since: a row that nobody changed is taken from the
table, for every other row its image before its first change. So no snapshot is held open while a table is read, each
share is read in a snapshot of its own, and all shares together are the table as of the one that was asked for, at
every try.

When the table was truncated or defined anew since, its rows of then are not known any more, and there are none: what
happened comes later in the stream, and with it the end of these rows or a new reading of the table.
"""

from collections.abc import Iterator
from typing import Any, Final

from forge.changelog.connection import Connection
from forge.cursor import Snapshot
from forge.pipeline.source.offset import TableShare, snapshot_bounds
from forge.pipeline.source.statements import bound, quoted, source_query

_PINS: Final = (
    "SET LOCAL search_path = pg_catalog, pg_temp",
    "SET LOCAL row_security = off",
    "SET LOCAL DateStyle = 'ISO, YMD'",
    "SET LOCAL IntervalStyle = 'iso_8601'",
    "SET LOCAL extra_float_digits = 1",
    "SET LOCAL bytea_output = 'hex'",
    "SET LOCAL lc_monetary = 'C'",
    "SET LOCAL enable_seqscan = on",
)


def statements(connection: Connection, share: TableShare, log: str, first_id: int) -> Iterator[str]:
    """What to run, in order, in the transaction that was begun: the announcement of the snapshot, then the rows."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    table = _relation(connection, share, "forge_now")
    if table is None:
        return
    alias = _alias(table[8])
    table = _relation(connection, share, alias)
    assert table is not None
    relation, version, key, schema, name, row_id, source, versions, _ = table
    generation = f"{share.generation:04x}"
    values = {
        **snapshot_bounds(Snapshot.parse(share.snapshot)),
        "versions": versions,
        "first": first_id,
        "generation": generation,
        "name": f"{log}:{generation}:{share.tracked}",
        "schema": schema,
        "table": name,
        "version": version,
        "at": share.at,
        "first_share": share.share == 0,
    }
    whole = connection.execute(source_query("whole"), values).fetchone() == (True,)
    for pin in _PINS:
        connection.execute(pin)
    yield bound(connection, source_query("announced"), values)
    if whole:
        return
    stored, logged = _belongs(share, row_id, alias)
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
    statement = bound(connection, source_query("keyed_rows" if key else "counted_rows"), values)
    for word, text in words.items():
        statement = statement.replace("{" + word + "}", text)
    yield statement


def _relation(connection: Connection, share: TableShare, alias: str) -> tuple[Any, ...] | None:
    return connection.execute(source_query("relation"), {"tracked": share.tracked, "alias": alias}).fetchone()


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
