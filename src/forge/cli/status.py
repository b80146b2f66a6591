"""`forge status`: the tracked tables, the rate of changes, and the size of the log; or the status of another source.

Rates are of the last minute, read from the newest rows by index, so that a log of any size answers quickly. Changes are
counted exactly in a small log and otherwise not at all. `--json` prints a `LogStatus` that needs no parsing: numbers,
ISO 8601 times in UTC, and words of the stated sets; sentences are only for people. For another source it prints its
`forge.capture.Status`. Both include the capabilities of the source, and the place where each part of a filter runs.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import msgspec
import typer
from rich.table import Table

from forge import capture
from forge.capture import Capabilities, Filter, open_source
from forge.capture.capabilities import described
from forge.capture.log import LogSource
from forge.changelog.install import installed_version
from forge.changelog.partitions import attached
from forge.cli.feeds import Columns, Operations, Tables, Url, Where, chosen, filter_of
from forge.cli.session import CommandSession, session
from forge.config import Config, Wakeup, hide, shown_size
from forge.database import Database
from forge.doctor.finding import count
from forge.postgres import locks
from forge.postgres.connection import Connection
from forge.postgres.leases import MAINTENANCE, LeaseHolder, holders
from forge.terminal import ABSENT, latency, shown

WINDOW = 60
NEWEST = 200_000
COUNTED = 1_000_000

_TABLES = """
    WITH newest AS MATERIALIZED (
        SELECT version, at FROM forge.forge_event_log ORDER BY transaction_id DESC LIMIT %(newest)s
    ), recent AS (
        SELECT v.tracked_table AS id, max(n.at) AS last,
               count(*) FILTER (WHERE n.at > clock_timestamp() - make_interval(secs => %(window)s)) AS changes
        FROM newest n JOIN forge.table_version v ON v.id = n.version GROUP BY 1
    )
    SELECT k.schema_name, k.table_name, coalesce(recent.changes, 0)::float8 / %(window)s, recent.last,
           k.excluded, k.masked, k.replica, k.id
    FROM forge.tracked_table k LEFT JOIN recent ON recent.id = k.id
    WHERE k.disabled_at IS NULL ORDER BY 1, 2
"""
_COUNTS = """
    SELECT v.tracked_table, count(*) FROM forge.forge_event_log l JOIN forge.table_version v ON v.id = l.version
    GROUP BY 1
"""
_LOG = """
    SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint,
           coalesce(sum(greatest(s.n_live_tup, c.reltuples)), 0)::bigint,
           EXISTS (SELECT FROM forge.forge_event_overflow),
           (SELECT at FROM forge.forge_event_log ORDER BY transaction_id DESC LIMIT 1),
           (SELECT max(at) FROM forge.instant), clock_timestamp(),
           forge.sees_ddl(),
           (SELECT max(extract(epoch FROM clock_timestamp() - a.xact_start))::float8 FROM pg_stat_activity a
            WHERE a.datname = current_database() AND a.backend_xid IS NOT NULL)
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
    WHERE i.inhparent = 'forge.forge_event_log'::regclass
"""
_LOCKS = f"""
    SELECT (classid::bigint << 32 | objid::bigint) - {locks.WAKE}, count(*) FILTER (WHERE granted) > 0
    FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32 | objid::bigint) IN ({locks.WAKE}, {locks.PACE})
    GROUP BY 1
"""


class TrackedTableStatus(msgspec.Struct, frozen=True):
    """One tracked table; `changes` is None in a log too large to count."""

    table: str
    changes_per_second: float
    changes: int | None
    newest_change: datetime | None
    excluded: list[str]
    masked: list[str]
    replica: bool


class LogStatus(msgspec.Struct, frozen=True):
    """All of it, as of `at`. `lag_seconds` is the age of the oldest write that is not committed yet: no reader can be
    behind for longer than that by waiting."""

    at: datetime
    database: str
    embedded: bool
    server_version: str
    server_version_num: int
    schema_version: int
    changes_per_second: float
    log_bytes: int
    log_size_limit: int | None
    log_rows_estimated: int
    partitions: int
    first_day: date | None
    last_day: date | None
    overflow: bool
    newest_change: datetime | None
    lag_seconds: float
    readers: Literal["awake", "asleep", "none"]
    wakeup: Wakeup
    maintenance_running: bool
    leases: list[LeaseHolder]
    """The holders of leases: maintenance, the shards of consumers, lakes."""
    maintenance_last_ran: datetime | None
    ddl: Literal["event_trigger", "polled"]
    tables: list[TrackedTableStatus]
    capabilities: Capabilities
    in_feed: tuple[str, ...]
    """The parts of the filter that run in the feed."""
    in_forge: tuple[str, ...]


def register(app: typer.Typer) -> None:
    app.command(
        "status",
        epilog="Examples:\n\nforge status\n\nforge status --json\n\nforge status mysql://root@db/shop\n\n"
        "forge status 'postgresql://db/shop?feed=wal' --table orders --where \"total > 10\"",
    )(status)


def status(
    context: typer.Context,
    url: Url = None,
    tables: Tables = None,
    operations: Operations = None,
    columns: Columns = None,
    where: Where = None,
) -> None:
    """Show the tracked tables, changes per second, the log's size; or what another source can do, and how it stands.

    With a filter, where each part of it runs: in the feed, or in Forge.
    """
    run = session(context)
    filter = filter_of(tables, operations, columns, where)
    url, log = chosen(run, url)
    if not log:
        assert url is not None
        _source_status(run, url, filter)
        return
    run.use(url)
    with run.database() as database, run.connection() as connection:
        found = observe(connection, database, run.config, LogSource(database.url, filter))
    if run.json:
        run.emit(found)
    else:
        _print(run, found)


def _source_status(run: CommandSession, url: str, filter: Filter) -> None:
    async def asked() -> capture.Status:
        async with open_source(url, filter) as source:
            return await source.status()

    found = asyncio.run(asked())
    if run.json:
        run.emit(found)
        return
    facts = _facts()
    facts.add_row("source", shown(f"{found.kind}, {found.name}"))
    facts.add_row("position", shown(found.position or ABSENT))
    if found.lag_bytes is not None:
        facts.add_row("lag", shown_size(found.lag_bytes))
    if found.lag_changes is not None:
        facts.add_row("waiting", count(found.lag_changes, "change"))
    _capabilities(facts, found.capabilities, found.in_feed, found.in_forge)
    for name, value in found.details.items():
        if name != "waiting" or found.lag_changes is None:
            facts.add_row(name.replace("_", " "), shown(_value(value)))
    run.show(facts)
    for text in found.warnings:
        run.note(text)


def _value(value: object) -> str:
    if isinstance(value, str) or value is None:
        return value or ABSENT
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value, value)) or ABSENT
    return msgspec.json.encode(value).decode().strip('"')


def _facts() -> Table:
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    return facts


def _capabilities(facts: Table, can: Capabilities, in_feed: Sequence[str], in_forge: Sequence[str]) -> None:
    able, unable = described(can)
    facts.add_row("can", ", ".join(able))
    facts.add_row("cannot", ", ".join(unable) or ABSENT)
    facts.add_row("retention", can.retention)
    if in_feed or in_forge:
        where = [
            f"{', '.join(parts)} in {place}" for place, parts in (("the feed", in_feed), ("Forge", in_forge)) if parts
        ]
        facts.add_row("filter", "; ".join(where))
    elif can.filters:
        facts.add_row("filter", f"{', '.join(can.filters)} in the feed, anything else in Forge")


def observe(connection: Connection, database: Database, config: Config, source: LogSource) -> LogStatus:
    """The state of a log, as of now."""
    row = connection.execute(_LOG).fetchone()
    assert row is not None
    size, rows, overflow, newest, instant, now, seen, oldest = row
    locks: dict[int, bool] = dict(connection.execute(_LOCKS).fetchall())
    leases = holders(connection)
    counts: dict[int, int] | None = None
    if rows <= COUNTED:
        counts = dict(connection.execute(_COUNTS).fetchall())
    days = attached(connection)
    tables = [
        TrackedTableStatus(
            f"{schema}.{table}",
            rate,
            None if counts is None else counts.get(number, 0),
            _utc(last),
            excluded,
            masked,
            replica,
        )
        for schema, table, rate, last, excluded, masked, replica, number in connection.execute(
            _TABLES, {"newest": NEWEST, "window": WINDOW}
        ).fetchall()
    ]
    return LogStatus(
        at=now.astimezone(UTC),
        database=hide(database.url),
        embedded=database.embedded,
        server_version=(connection.info.parameter_status("server_version") or "").split(" ")[0],
        server_version_num=connection.info.server_version,
        schema_version=installed_version(connection),
        changes_per_second=sum(table.changes_per_second for table in tables),
        log_bytes=size,
        log_size_limit=config.log_size_limit,
        log_rows_estimated=rows,
        partitions=len(days),
        first_day=days[0] if days else None,
        last_day=days[-1] if days else None,
        overflow=overflow,
        newest_change=_utc(newest),
        lag_seconds=oldest or 0.0,
        readers="awake" if 0 in locks else "asleep" if locks.get(1) else "none",
        wakeup=config.wakeup,
        maintenance_running=any(holder.name == MAINTENANCE for holder in leases),
        leases=leases,
        maintenance_last_ran=_utc(instant),
        ddl="event_trigger" if seen else "polled",
        tables=tables,
        capabilities=source.capabilities,
        in_feed=source.in_feed,
        in_forge=source.in_forge,
    )


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC)


def _print(run: CommandSession, found: LogStatus) -> None:
    facts = _facts()
    limit = found.log_size_limit
    where = "embedded" if found.embedded else found.database
    for name, value in (
        ("database", f"PostgreSQL {found.server_version}, {where}"),
        ("rate", f"{found.changes_per_second:.1f} changes/s in the last minute"),
        ("newest change", _ago(found, found.newest_change)),
        ("lag", f"the oldest open write began {latency(timedelta(seconds=found.lag_seconds))} ago"
         if found.lag_seconds else "none: no write is open"),
        ("log", f"{shown_size(found.log_bytes)}{f' of {shown_size(limit)}' if limit else ''},"
         f" about {found.log_rows_estimated} changes"),
        ("partitions", f"{found.partitions} ({found.first_day} to {found.last_day})"
         + (", and changes in the overflow" if found.overflow else "")),
        ("readers", f"{'none follows' if found.readers == 'none' else found.readers} (wake-up {found.wakeup})"),
        ("maintenance", _maintenance(found)),
        ("DDL", "seen at once" if found.ddl == "event_trigger" else "polled"),
    ):  # fmt: skip
        facts.add_row(name, shown(value))
    _capabilities(facts, found.capabilities, found.in_feed, found.in_forge)
    run.show(facts)
    if not found.tables:
        run.note("no table is tracked")
        run.hint("forge enable TABLE, or forge enable --all")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("table")
    for heading in ("changes/s", "changes", "newest"):
        table.add_column(heading, justify="right")
    table.add_column("settings")
    for item in found.tables:
        table.add_row(*_cells(found, item))
    run.show("")
    run.show(table)


def _maintenance(found: LogStatus) -> str:
    for holder in found.leases:
        if holder.name == MAINTENANCE:
            return f"running ({holder})"
    last = found.maintenance_last_ran
    return "never ran" if last is None else f"last ran {_ago(found, last)}"


def _cells(found: LogStatus, item: TrackedTableStatus) -> list[str]:
    settings: list[Any] = [f"exclude {name}" for name in item.excluded] + [f"mask {name}" for name in item.masked]
    return [
        shown(item.table.removeprefix("public.")),
        f"{item.changes_per_second:.1f}",
        ABSENT if item.changes is None else f"{item.changes:,}",
        _ago(found, item.newest_change),
        shown(", ".join(settings + (["replica"] if item.replica else []))),
    ]


def _ago(found: LogStatus, at: datetime | None) -> str:
    return ABSENT if at is None else f"{latency(found.at - at)} ago"
