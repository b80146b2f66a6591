"""Check the log's growth and maintenance: partitions in advance, retention, overflow and size limit."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from forge.changelog.partitions import AHEAD, attached, missing, sizes
from forge.changelog.retention import Policy, doomed
from forge.changelog.unread import hold, unread
from forge.config import shown_size
from forge.doctor.finding import Case, Finding, count, info, ok, problem, value, warning
from forge.postgres import leases

AWAY = timedelta(days=1)
"""The time that maintenance may be absent, as between two runs from cron."""
_SIZE = (
    "SELECT coalesce(sum(pg_total_relation_size(i.inhrelid)), 0)::bigint FROM pg_inherits i"
    " WHERE i.inhparent = 'forge.forge_event_log'::regclass"
)
_RUN = "keep forge maintain running as a service, or run forge trim from cron"


def growth(case: Case) -> Iterator[Finding]:
    """Compare the log's size with its limit."""
    size, limit = int(str(value(case, _SIZE))), case.log_size_limit
    if limit is None:
        yield ok("growth", f"the log takes {shown_size(size)}, no limit is set")
    elif size > limit * 0.8:
        say = problem if size > limit else warning
        yield say(
            "growth",
            f"the log takes {shown_size(size)} of {shown_size(limit)}; beyond it the oldest days are dropped",
            "raise log_size_limit, lower retention_days, or exclude what need not be logged",
        )
    else:
        yield ok("growth", f"the log takes {shown_size(size)} of {shown_size(limit)}")


def overflow(case: Case) -> Iterator[Finding]:
    """Report changes whose day had no partition."""
    rows = value(case, "SELECT count(*) FROM (SELECT FROM forge.forge_event_overflow LIMIT 100000) o")
    if rows:
        yield warning(
            "overflow",
            f"{rows} changes lie in the overflow because their day had no partition: maintenance was away, or"
            " the server's clock jumped; they are read all the same, but not trimmed by day",
            _RUN,
        )


def partitions_ahead(case: Case) -> Iterator[Finding]:
    """Check that there are partitions for today and the next days."""
    today = _now(case).date()
    gaps = missing(attached(case.connection), today)
    if today in gaps or today + timedelta(days=1) in gaps:
        yield problem(
            "partitions_ahead",
            f"the log has no partition for {gaps[0]}: changes go to the overflow",
            "forge trim makes them; " + _RUN,
        )
    elif len(gaps) > 1:
        yield warning(
            "partitions_ahead",
            f"the log has partitions for {AHEAD - len(gaps)} days ahead, not {AHEAD}",
            _RUN,
        )
    else:
        yield ok("partitions_ahead", f"partitions are ready for {AHEAD - len(gaps)} days ahead")


def retention(case: Case) -> Iterator[Finding]:
    """Report partitions that are past retention, half dropped, or not attached."""
    past = doomed(sizes(case.connection), _now(case) - AWAY, Policy(retention_days=case.retention_days))
    first_kept = (_now(case) - AWAY).date() - timedelta(days=case.retention_days)
    held = hold(past, unread(case.connection, past), first_kept, case.hold_days)
    old = [day for day in past if day not in held.kept]
    if old:
        yield warning(
            "retention",
            f"{count(len(old), 'day')} of the log should be gone by retention_days = {case.retention_days},"
            f" the oldest {old[0]}",
            "forge trim",
        )
    rows = case.connection.execute(
        "SELECT c.relname, i.inhdetachpending FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid"
        " WHERE c.relnamespace = 'forge'::regnamespace AND c.relkind = 'r'"
        " AND c.relname ~ '^forge_event_log_[0-9]{8}$' AND coalesce(i.inhdetachpending, true) ORDER BY 1"
    ).fetchall()
    for name, pending in rows:
        if pending:
            yield warning(
                "retention",
                f"forge.{name} is half detached: a DETACH CONCURRENTLY was cut short",
                f"forge trim, or ALTER TABLE forge.forge_event_log DETACH PARTITION forge.{name} FINALIZE",
            )
        else:
            yield warning(
                "retention",
                f"forge.{name} is detached but not dropped: no reader sees it",
                f"DROP TABLE forge.{name}",
            )


def maintenance(case: Case) -> Iterator[Finding]:
    """Check whether maintenance has run recently."""
    now, last = _now(case), value(case, "SELECT max(at) FROM forge.instant")
    holder = next((each for each in leases.holders(case.connection) if each.name == leases.MAINTENANCE), None)
    away = now - last if isinstance(last, datetime) else None
    if away is not None and away.total_seconds() <= case.patience:
        by = "" if holder is None else f", by {holder}"
        yield ok("maintenance", f"maintenance ran {int(away.total_seconds())} s ago{by}")
    elif holder is not None:
        yield ok("maintenance", f"maintenance is running: {holder}")
    elif away is not None and away <= AWAY:
        yield info(
            "maintenance",
            f"maintenance last ran {last:%Y-%m-%d %H:%M}: as-of an instant after it has what was committed by then",
        )
    else:
        since = "never ran" if away is None else f"last ran {last:%Y-%m-%d %H:%M}"
        yield warning("maintenance", f"maintenance {since}: no partitions ahead, no trimming, no as-of instants", _RUN)


def _now(case: Case) -> datetime:
    now = value(case, "SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now.astimezone(UTC)
