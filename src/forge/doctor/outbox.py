"""Check the outbox: messages that wait too long or have no route, dead letters, and growing tables."""

from collections.abc import Iterator, Sequence
from typing import Final

from forge.deliver.outbox.control import TopicLag, lag_of
from forge.deliver.outbox.routes import Route
from forge.deliver.outbox.sql import sql
from forge.doctor.finding import Case, Finding, count, ok, value, warning

LARGE: int = 1 << 30
"""The size of a table in bytes above which it is reported."""
WORKER: Final = "forge outbox "
_LONGEST_NAME: Final = 63
_MOST: Final = 100_000
_NAMED: Final = 3


def outbox(case: Case) -> Iterator[Finding]:
    """Report messages that wait too long, and why; parked messages; growing tables."""
    patterns = _patterns(case)
    rows = case.connection.execute(sql("lag"), {"topic": None, "most": _MOST}).fetchall()
    lags = sorted(map(lag_of, rows), key=lambda lag: -lag.seconds)
    late = [lag for lag in lags if lag.waiting and lag.seconds >= case.patience]
    untaken = [lag for lag in late if patterns and not any(_takes(pattern, lag.topic) for pattern in patterns)]
    if late and not patterns:
        yield warning(
            "outbox",
            f"{_messages(late)} of the outbox wait for up to {late[0].seconds / 60:.0f} minutes, and nobody sends",
            "run a node of the application that has routes for them: forge serve, or forge outbox run shop:app",
        )
    elif late:
        if untaken:
            yield warning(
                "outbox",
                f"{_messages(untaken)} wait for a route: no node that runs takes {_topics(untaken)}",
                f'add one: @app.on_outbox("{untaken[0].topic}") or app.outbox_to(…); their keys wait with them',
            )
        if slow := [lag for lag in late if lag not in untaken]:
            yield warning(
                "outbox",
                f"{_messages(slow)} of {_topics(slow)} wait for up to {slow[0].seconds / 60:.0f} minutes",
                "forge outbox list shows why each did not go; add workers= to the route, or see to its receiver",
            )
    due = value(case, sql("next_due"))
    if isinstance(due, float) and (overdue := -due) >= case.patience:
        yield warning(
            "outbox",
            f"a scheduled message is {overdue / 60:.0f} minutes late: no node looks after the outbox",
            "run a node of the application that has routes: forge serve, or forge outbox run shop:app",
        )
    if dead := [lag for lag in lags if lag.dead]:
        yield warning(
            "outbox",
            f"the outbox has {count(sum(lag.dead for lag in dead), 'dead letter')}, of {_topics(dead)}",
            "forge outbox dead shows why; then forge outbox replay-dead, or drop-dead",
        )
    yield from _large(case)
    if patterns and not late:
        yield ok("outbox", f"{count(len(patterns), 'worker')}, and no message waits for long")


def _patterns(case: Case) -> list[str]:
    """Return the topic patterns of the connected workers, on all nodes."""
    rows = case.connection.execute(
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s",
        (WORKER + "%",),
    ).fetchall()
    names = [name.removeprefix(WORKER) for (name,) in rows]
    return [name for name in names if not name.startswith("(")]


def _takes(pattern: str, topic: str) -> bool:
    """Whether a worker's pattern matches; one truncated by the length of a session's name may match.

    >>> _takes("order.*", "order.paid"), _takes("order.paid", "order.new"), _takes("x" * 50, "x" * 60)
    (True, False, True)
    """
    cut = len(WORKER + pattern) >= _LONGEST_NAME
    return Route(pattern).takes(topic) or (cut and topic.startswith(pattern))


def _large(case: Case) -> Iterator[Finding]:
    rows = case.connection.execute(
        "SELECT c.relname, pg_total_relation_size(c.oid), greatest(c.reltuples, 0)::bigint FROM pg_class c"
        " WHERE c.relnamespace = 'forge'::regnamespace"
        " AND c.relname IN ('outbox', 'outbox_later', 'outbox_dead', 'inbox')"
        " AND pg_total_relation_size(c.oid) >= %s ORDER BY c.relname",
        (LARGE,),
    ).fetchall()
    for name, size, messages in rows:
        yield warning(
            "outbox",
            f"forge.{name} has grown to {size >> 20:,} MB, with about {count(messages, 'row')}",
            "with few rows a transaction that stays open keeps them from being vacuumed: end it, then"
            f" VACUUM (FULL) forge.{name}; with many, see forge outbox lag",
        )


def _messages(lags: Sequence[TopicLag]) -> str:
    return count(sum(lag.waiting for lag in lags), "message")


def _topics(lags: Sequence[TopicLag]) -> str:
    names = [lag.topic for lag in lags[:_NAMED]]
    more = len(lags) - len(names)
    return ", ".join(names) + (f" and {count(more, 'other topic')}" if more else "")
