"""Lag of a lake behind its database."""

from datetime import UTC, datetime

import msgspec

from forge.changelog.queries import query
from forge.cursor import Cursor
from forge.pipeline.source.offset import NOWHERE
from forge.pipeline.source.statements import source_query
from forge.postgres.connection import Connection


class LakeLag(msgspec.Struct, frozen=True):
    """The number of committed changes that are not in the lake, and the age of the oldest."""

    changes: int
    seconds: float


def lag(connection: Connection, cursor: Cursor, tables: str | None) -> LakeLag:
    """Measure the log after the cursor, for these tables (comma-separated names; None for all)."""
    last = cursor.last or NOWHERE
    identity = connection.execute(query("identity")).fetchone()
    assert identity is not None
    row = connection.execute(
        source_query("waiting"),
        {
            **cursor.snapshot.bounds,
            "place": last.rank,
            "id": last.id,
            "first": identity[3],
            "tables": None if tables is None else [name.strip() for name in tables.split(",")],
        },
    ).fetchone()
    assert row is not None
    changes, oldest = row
    return LakeLag(changes, 0.0 if oldest is None else max(0.0, (datetime.now(UTC) - oldest).total_seconds()))
