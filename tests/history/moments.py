"""Recording an instant together with a copy of tables in the very snapshot that is recorded."""

from datetime import datetime
from typing import Any, NamedTuple

from psycopg import sql

from forge.change import UNAVAILABLE
from forge.postgres.connection import Connection

Rows = list[dict[str, Any]]


class Moment(NamedTuple):
    """A recorded instant, and what the tables held in its snapshot."""

    at: datetime
    copies: dict[str, Rows]


def begin(connection: Connection) -> None:
    """Let the log know itself: a test's database is a copy, and a copy is another log without instants."""
    connection.execute("SELECT forge.current_identity()")


def record(connection: Connection, tables: list[str]) -> Moment:
    """Record a pair as maintenance does, and copy the tables in the same snapshot."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for table in tables:  # before the snapshot: a TRUNCATE would show through it
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(table)))
        row = connection.execute(
            "INSERT INTO forge.instant (at, snapshot) SELECT greatest(clock_timestamp(),"
            " (SELECT max(at) + interval '1 microsecond' FROM forge.instant)), pg_current_snapshot() RETURNING at"
        ).fetchone()
        assert row is not None
        return Moment(row[0], {table: copy(connection, table) for table in tables})


def copy(connection: Connection, table: str) -> Rows:
    # never prepared: a column that comes or goes would invalidate the plan
    cursor = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)), prepare=False)
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def in_order(rows: Rows) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def differing(found: Rows, expected: Rows, key: tuple[str, ...], forgotten: set[str]) -> list[str]:
    """Rows that are not as they were; a value may be unknown only in columns that are not there any more."""
    wrong = []
    by_key = {tuple(row[name] for name in key): row for row in found}
    if len(by_key) != len(found) or len(found) != len(expected):
        wrong.append(f"{len(found)} rows, {len(expected)} expected")
    for row in expected:
        other = by_key.get(tuple(row[name] for name in key))
        if other is None or other.keys() != row.keys():
            wrong.append(f"{row} is {other}")
            continue
        wrong += [
            f"{row} is {other}"
            for name, value in row.items()
            if other[name] != value and not (other[name] is UNAVAILABLE and name in forgotten)
        ]
    return wrong
