"""Find the days of the log that consumers have not read; for maintenance, `forge trim` and `forge doctor`.

A consumer counts while it is running or paused; an expired one holds nothing back.
"""

from collections.abc import Iterable
from datetime import date, timedelta

import msgspec
from psycopg import sql

from forge.changelog import partitions
from forge.changelog.queries import query
from forge.cursor import Cursor
from forge.postgres.connection import Connection


class HeldDays(msgspec.Struct, frozen=True):
    """Days past retention or over the size limit, in order, with the consumers that have not read them."""

    kept: dict[date, list[str]]
    """Days not dropped, because a consumer has not read them and still may."""
    lost: dict[date, list[str]]
    """Days dropped although a consumer has not read them."""


def cursors(connection: Connection) -> list[tuple[str, Cursor]]:
    """Return the cursor of each active consumer in this log, by shard."""
    rows = connection.execute(
        "SELECT c.name, r.cursor FROM forge.consumer c JOIN forge.consumer_cursor r USING (name, shard)"
        " WHERE c.state <> 'expired' AND c.source IS NULL ORDER BY 1, c.shard"
    ).fetchall()
    if not rows:
        return []
    identity = connection.execute(
        "SELECT i.uuid::text, i.system_identifier, i.timeline FROM forge.log_identity i ORDER BY i.id DESC LIMIT 1"
    ).fetchone()
    found = [(name, Cursor.parse(text)) for name, text in rows]
    return [(name, cursor) for name, cursor in found if msgspec.structs.astuple(cursor.log) == identity]


def unread(connection: Connection, days: Iterable[date]) -> dict[date, list[str]]:
    """Map each day that some consumer has not read to its end to those consumers."""
    names = {day: partitions.partition_name(day) for day in sorted(days)}
    standing = cursors(connection) if names else []
    found: dict[date, list[str]] = {}
    for day, partition in names.items():
        if who := sorted({name for name, cursor in standing if _lacks(connection, partition, cursor)}):
            found[day] = who
    return found


def overflow_unread(connection: Connection) -> list[str]:
    """Return the consumers that have not read all of the overflow."""
    return sorted({name for name, at in cursors(connection) if _lacks(connection, partitions.OVERFLOW, at)})


def hold(going: dict[date, str], waiting: dict[date, list[str]], first_kept: date, hold_days: int) -> HeldDays:
    """Decide on the days to drop: a day that a consumer has not read is held for `hold_days` past retention, and not at
    all where the log is over its size limit.

    >>> days = [date(2026, 1, n) for n in (1, 2, 3)]
    >>> held = hold(dict.fromkeys(days, "retention"), {days[0]: ["a"], days[2]: ["a"]}, date(2026, 1, 9), 7)
    >>> held.kept, held.lost
    ({datetime.date(2026, 1, 3): ['a']}, {datetime.date(2026, 1, 1): ['a']})
    """
    found = HeldDays({}, {})
    for day, who in waiting.items():
        if day not in going:
            continue
        held = going[day] == "retention" and day >= first_kept - timedelta(days=hold_days)
        (found.kept if held else found.lost)[day] = who
    return found


def _lacks(connection: Connection, partition: str, cursor: Cursor) -> bool:
    statement = sql.SQL(query("unread_in")).format(partition=sql.Identifier("forge", partition))
    return connection.execute(statement, cursor.snapshot.bounds).fetchone() == (True,)
