"""The log's daily partitions: made ahead, dropped when they are old, and never in a writer's way.

A partition is made by CREATE … LIKE and ATTACH, which lock out neither writers nor readers, and dropped after
DETACH … CONCURRENTLY. `forge.log_day` tells writers which days have one; it is widened only after a partition is
there and narrowed before one goes, so a writer never meets a missing partition: for a day that has none the
row goes to the overflow.
"""

import re
from datetime import date, timedelta
from typing import Final

from psycopg import sql

from forge.changelog.connection import Connection

AHEAD: Final = 7
_PREFIX: Final = "forge_event_log_"


def partition_name(day: date) -> str:
    """
    >>> partition_name(date(2026, 11, 15))
    'forge_event_log_20261115'
    """
    return f"{_PREFIX}{day:%Y%m%d}"


def partition_day(name: str) -> date | None:
    """The day of a partition's name, or None when it is not one.

    >>> partition_day("forge_event_log_20261115"), partition_day("forge_event_overflow")
    (datetime.date(2026, 11, 15), None)
    """
    match = re.fullmatch(_PREFIX + r"(\d{4})(\d{2})(\d{2})", name)
    return date(int(match[1]), int(match[2]), int(match[3])) if match else None


def attached(connection: Connection) -> list[date]:
    """The days that have a partition, in order."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'forge.forge_event_log'::regclass AND NOT i.inhdetachpending"
    ).fetchall()
    return sorted(day for (name,) in rows if (day := partition_day(name)) is not None)


def make_first(connection: Connection, today: date) -> None:
    """Make the partitions of a new log, or those that an existing one lacks, and tell writers."""
    for day in missing(attached(connection), today):
        make(connection, day)
    announce(connection)


def missing(days: list[date], today: date) -> list[date]:
    """The days from today on that should have a partition and do not.

    >>> missing([date(2026, 1, 1)], date(2026, 1, 1))[0]
    datetime.date(2026, 1, 2)
    """
    return [day for n in range(AHEAD + 1) if (day := today + timedelta(days=n)) not in days]


def make(connection: Connection, day: date) -> None:
    """Make one day's partition."""
    name = sql.Identifier("forge", partition_name(day))
    bounds = sql.SQL("day >= {} AND day < {}").format(sql.Literal(day), sql.Literal(day + timedelta(days=1)))
    with connection.transaction():
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} (LIKE forge.forge_event_log INCLUDING DEFAULTS INCLUDING INDEXES, CHECK ({}))").format(
                name, bounds
            )
        )
        connection.execute(
            sql.SQL("ALTER TABLE forge.forge_event_log ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
                name, sql.Literal(day), sql.Literal(day + timedelta(days=1))
            )
        )


def announce(connection: Connection, *, since: date | None = None) -> None:
    """Tell writers which days have a partition: all that are attached, none before `since`."""
    days = [day for day in attached(connection) if since is None or day >= since]
    runs = contiguous(days)
    first, last = runs[-1] if runs else (date.max, date.max - timedelta(days=1))
    connection.execute(
        sql.SQL(
            "CREATE OR REPLACE FUNCTION forge.log_day(at timestamptz) RETURNS date LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN"
            " CASE WHEN at >= {} AND at < {} THEN (at AT TIME ZONE 'UTC')::date ELSE 'infinity'::date END"
        ).format(sql.Literal(f"{first} 00:00:00+00"), sql.Literal(f"{last + timedelta(days=1)} 00:00:00+00"))
    )


def contiguous(days: list[date]) -> list[tuple[date, date]]:
    """The runs of days without a hole.

    >>> contiguous([date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 5)])
    [(datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)), (datetime.date(2026, 1, 5), datetime.date(2026, 1, 5))]
    """
    runs: list[tuple[date, date]] = []
    for day in days:
        if runs and runs[-1][1] + timedelta(days=1) == day:
            runs[-1] = (runs[-1][0], day)
        else:
            runs.append((day, day))
    return runs
