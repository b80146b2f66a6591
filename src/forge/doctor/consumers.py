"""Check consumers: stopped, expired or close to it, and the log kept for them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from forge.changelog import unread
from forge.changelog.partitions import sizes
from forge.changelog.queries import query
from forge.changelog.retention import Policy, doomed
from forge.cursor import Cursor
from forge.doctor.finding import Case, Finding, count, ok, problem, value, warning

FAR: float = 0.8
"""The part of the retention after which a lagging consumer is reported."""


def consumers(case: Case) -> Iterator[Finding]:
    """Report expired consumers, those that fall behind the retention, and dead letters."""
    rows = case.connection.execute(
        "SELECT c.name, c.state, c.last_error, CASE WHEN c.source IS NULL THEN r.cursor END,"
        " (SELECT count(*) FROM forge.dead_letter d WHERE d.consumer = c.name)"
        " FROM forge.consumer c JOIN forge.consumer_cursor r USING (name, shard) ORDER BY c.name, c.shard"
    ).fetchall()
    told: set[str] = set()
    parked: dict[str, int] = {}
    for name, state, error, cursor, letters in rows:
        if letters:
            parked[name] = letters
        if name in told:
            continue
        if state == "expired":
            told.add(name)
            yield problem(
                "consumers",
                f"consumer {name} has lost its place: {(error or 'what follows its cursor is gone').partition(';')[0]}",
                f"forge consumers rewind {name} --to start (all that is retained) or --to now; or forget it",
            )
            continue
        age = None if cursor is None else _age(case, cursor)
        if age is not None and age >= timedelta(days=case.retention_days) * FAR:
            told.add(name)
            yield warning(
                "consumers",
                f"consumer {name} is {age.days} days behind, and the log keeps {case.retention_days}"
                f" (and {case.hold_days} more for consumers)",
                f"see forge consumers; raise retention_days or hold_days, or forge consumers forget {name}",
            )
    for name, letters in parked.items():
        yield warning(
            "consumers",
            f"consumer {name} has {count(letters, 'dead letter')}",
            f"forge consumers dead {name}, then forge consumers replay-dead {name}",
        )
    yield from _held(case)
    yield from _idle(case)
    if rows and not told:
        yield ok("consumers", f"{count(len({row[0] for row in rows}), 'consumer')}, none near the end of retention")


def _idle(case: Case) -> Iterator[Finding]:
    """Report consumers that should run and have no worker."""
    rows = case.connection.execute(
        "SELECT c.name, count(*), c.shards FROM forge.consumer c JOIN forge.consumer_cursor r USING (name, shard)"
        " WHERE c.state = 'running' AND NOT EXISTS (SELECT FROM forge.held_lease l WHERE l.name = 'shard ' || r.id)"
        " GROUP BY c.name, c.shards ORDER BY c.name"
    ).fetchall()
    for name, idle, shards in rows:
        what = f"consumer {name}" if idle == shards else f"{idle} of {shards} shards of consumer {name}"
        yield warning(
            "consumers",
            f"nobody works on {what}",
            f"start a node that declares it, or forge consumers pause {name}",
        )


def _held(case: Case) -> Iterator[Finding]:
    """Report days that are kept only because a consumer has not read them."""
    now = value(case, "SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    policy = Policy(retention_days=case.retention_days, size_limit=case.log_size_limit, hold_days=case.hold_days)
    past = doomed(sizes(case.connection), now.astimezone(UTC), policy)
    for day, who in unread.unread(case.connection, past).items():
        yield warning(
            "consumers",
            f"{day} of the log is past retention and held for {', '.join(who)}",
            f"see to {who[0]}: forge consumers; it is dropped {case.hold_days} days past retention, read or not",
        )


def _age(case: Case, text: str) -> timedelta | None:
    """Return the age of the first change that a consumer has not handled; None when there is none."""
    snapshot = Cursor.parse(text).snapshot
    row = case.connection.execute(query("oldest_unread"), snapshot.bounds).fetchone()
    return row[0] if row is not None else None
