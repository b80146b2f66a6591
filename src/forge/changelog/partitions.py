"""The log's daily partitions: created ahead, dropped when old, never blocking a writer.

A partition is created by CREATE … LIKE and ATTACH, which block neither writers nor readers, and dropped after DETACH …
CONCURRENTLY. `forge.log_day` tells writers which days have a partition; it is widened only after a partition exists and
narrowed before one is removed, so a writer never meets a missing partition: a row of a day without one goes to the
overflow.

A detach waits for every transaction that uses the log. If that takes longer than the session's lock_timeout, the detach
stays pending: new statements do not see the partition, nothing waits, and `finish` completes it later. At most one
detach can be pending.
"""

import re
from datetime import date, timedelta
from typing import Final

from psycopg import sql

from forge.postgres.connection import Connection

AHEAD: Final = 7
OVERFLOW: Final = "forge_event_overflow"
_PREFIX: Final = "forge_event_log_"


def partition_name(day: date) -> str:
    """
    >>> partition_name(date(2026, 11, 15))
    'forge_event_log_20261115'
    """
    return f"{_PREFIX}{day:%Y%m%d}"


def partition_day(name: str) -> date | None:
    """Return the day in a partition's name, or None for any other name.

    >>> partition_day("forge_event_log_20261115"), partition_day("forge_event_overflow")
    (datetime.date(2026, 11, 15), None)
    """
    if (match := re.fullmatch(_PREFIX + r"(\d{4})(\d{2})(\d{2})", name)) is None:
        return None
    try:
        return date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return None


def missing(days: list[date], today: date) -> list[date]:
    """Return the days from today on that should have a partition but have none.

    >>> missing([date(2026, 1, 1)], date(2026, 1, 1))[0]
    datetime.date(2026, 1, 2)
    """
    return [day for n in range(AHEAD + 1) if (day := today + timedelta(days=n)) not in days]


def contiguous(days: list[date]) -> list[tuple[date, date]]:
    """Return the runs of consecutive days.

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


def window(days: list[date], today: date, since: date | None = None) -> tuple[date, date]:
    """Return the days that writers may use, [first, end): the run with today or the next one, none before `since`.

    >>> window([date(2026, 1, 1), date(2026, 1, 4), date(2026, 1, 5)], date(2026, 1, 4))
    (datetime.date(2026, 1, 4), datetime.date(2026, 1, 6))
    >>> window([], date(2026, 1, 4))
    (datetime.date(2026, 1, 4), datetime.date(2026, 1, 4))
    """
    usable = [day for day in days if since is None or day >= since]
    for first, last in contiguous(usable):
        if last >= today:
            return first, last + timedelta(days=1)
    return today, today


def sizes(connection: Connection) -> dict[str, int]:
    """Return the size in bytes of each part of the log by name: the days and the overflow."""
    rows = connection.execute(
        "SELECT c.relname, coalesce(pg_total_relation_size(c.oid), 0) FROM pg_inherits i"
        " JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'forge.forge_event_log'::regclass AND NOT i.inhdetachpending"
    ).fetchall()
    return {str(name): int(size) for name, size in rows}


def attached(connection: Connection) -> list[date]:
    """Return the days that have a partition, in order; days with a pending detach do not count."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'forge.forge_event_log'::regclass AND NOT i.inhdetachpending"
    ).fetchall()
    return sorted(day for (name,) in rows if (day := partition_day(name)) is not None)


def detaching(connection: Connection) -> list[date]:
    """Return the days whose partition has a pending detach: at most one."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'forge.forge_event_log'::regclass AND i.inhdetachpending"
    ).fetchall()
    return [day for (name,) in rows if (day := partition_day(name)) is not None]


def detached(connection: Connection) -> list[date]:
    """Return the days whose partition is detached from the log but not dropped: only trimmed days."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'forge'::regnamespace AND c.relkind = 'r'"
        " AND c.relname IN (SELECT t.partition FROM forge.trimmed t)"
        " AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)"
    ).fetchall()
    return sorted(day for (name,) in rows if (day := partition_day(name)) is not None)


def make_first(connection: Connection, today: date) -> list[date]:
    """Create the partitions that are missing from today on, and tell writers; return the days that were added."""
    days = missing(attached(connection), today)
    for day in days:
        make(connection, day)
    announce(connection, today)
    return days


def make(connection: Connection, day: date) -> None:
    """Create one day's partition. It is empty when it is attached, so there is nothing to check."""
    name = _identifier(day)
    with connection.transaction():
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (LIKE forge.forge_event_log INCLUDING DEFAULTS INCLUDING INDEXES)"
            ).format(name)
        )
        # otherwise a redaction could not update it where all tables are published
        connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(name))
        connection.execute(
            sql.SQL("ALTER TABLE forge.forge_event_log ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
                name, sql.Literal(day), sql.Literal(day + timedelta(days=1))
            )
        )


def announce(connection: Connection, today: date, *, since: date | None = None) -> None:
    """Tell writers which days have a partition, none before `since`; do nothing if they know already."""
    first, end = window(attached(connection), today, since)
    edges = [f"{day.isoformat()} 00:00:00+00" for day in (first, end)]
    if not _told(connection, first, end, edges):
        connection.execute(
            sql.SQL(
                "CREATE OR REPLACE FUNCTION forge.log_day(at timestamptz) RETURNS date"
                " LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN"
                " CASE WHEN at >= {} AND at < {} THEN (at AT TIME ZONE 'UTC')::date ELSE 'infinity'::date END"
            ).format(*map(sql.Literal, edges))
        )


def _told(connection: Connection, first: date, end: date, edges: list[str]) -> bool:
    """Tell whether `forge.log_day` exists and has these values."""
    if connection.execute("SELECT to_regprocedure('forge.log_day(timestamptz)')").fetchone() == (None,):
        return False
    known = connection.execute(
        "SELECT a < b AND forge.log_day(a) = %s AND forge.log_day(b - step) = %s"
        " AND forge.log_day(a - step) = 'infinity' AND forge.log_day(b) = 'infinity'"
        " FROM (SELECT %s::timestamptz AS a, %s::timestamptz AS b, interval '1 microsecond' AS step) edge",
        (first, end - timedelta(days=1), *edges),
    ).fetchone()
    return known == (True,)


def detach(connection: Connection, day: date) -> None:
    """Detach one day's partition from the log; the connection must be in autocommit mode."""
    connection.execute(
        sql.SQL("ALTER TABLE forge.forge_event_log DETACH PARTITION {} CONCURRENTLY").format(_identifier(day))
    )


def finish(connection: Connection, day: date) -> None:
    """Complete a pending detach."""
    connection.execute(
        sql.SQL("ALTER TABLE forge.forge_event_log DETACH PARTITION {} FINALIZE").format(_identifier(day))
    )


def drop(connection: Connection, day: date) -> None:
    """Drop a detached partition."""
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(_identifier(day)))


def _identifier(day: date) -> sql.Identifier:
    return sql.Identifier("forge", partition_name(day))
