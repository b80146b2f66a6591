"""Check clocks: the server's against this machine's, and against the times in its log."""

from collections.abc import Iterator
from datetime import UTC, datetime

from forge.doctor.finding import Case, Finding, ok, value, warning

TOLERANCE = 2.0


def skew(before: datetime, server: datetime, after: datetime) -> float:
    """Return the seconds that the server's clock is certainly ahead, negative when behind, 0 when it may be right.

    >>> t = datetime(2026, 1, 1, tzinfo=UTC)
    >>> from datetime import timedelta
    >>> skew(t, t + timedelta(seconds=9), t + timedelta(seconds=1)), skew(t, t, t)
    (8.0, 0.0)
    """
    if server > after:
        return (server - after).total_seconds()
    return min((server - before).total_seconds(), 0.0)


def clock(case: Case) -> Iterator[Finding]:
    """Check that the server's clock is right, as far as can be measured, and only moves forward."""
    before = datetime.now(UTC)
    server = value(case, "SELECT clock_timestamp()")
    after = datetime.now(UTC)
    assert isinstance(server, datetime)
    off = skew(before, server, after)
    if abs(off) > TOLERANCE:
        yield warning(
            "clock",
            f"the server's clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} this machine's:"
            " latencies and as-of instants are off by that",
            "synchronise both clocks (chrony, systemd-timesyncd)",
        )
    newest = value(
        case,
        "SELECT max(at) FROM (SELECT at FROM forge.forge_event_log ORDER BY transaction_id DESC LIMIT 1000) l",
    )
    if isinstance(newest, datetime) and (newest - server).total_seconds() > TOLERANCE:
        yield warning(
            "clock",
            f"the log has a change from {newest:%Y-%m-%d %H:%M:%S}, in the server's future: its clock went back",
            "synchronise the server's clock; as-of questions up to that instant are uncertain",
        )
    elif abs(off) <= TOLERANCE:
        yield ok("clock", "the server's clock agrees with this machine's")
