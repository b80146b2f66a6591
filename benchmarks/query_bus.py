"""What the query bus costs a statement: an observed engine with nobody listening, and with one listener.

The statement is `SELECT 1` by SQLAlchemy and psycopg on one connection to PostgreSQL on this machine, about the least
that an application ever waits for: the quickest 100 in a row of a round, so that the shares are the largest. What the
bus adds is far less than such waits differ by, so it is timed by itself: the calls that SQLAlchemy makes around a
statement, in the processor's time of the thread, less those that it makes without an observer.
"""

from time import perf_counter, thread_time
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, create_engine, text

import forge
from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_most, figure, ratios

STATEMENT = text("SELECT 1")
QUERIES, ROW, CALLS = 2_000, 100, 100_000
LIMIT = 0.01


def run(bench: Bench) -> list[Figure]:
    """Rounds over the three, in turns."""
    rounds = 3 if bench.quick else 7
    waits, unheard, heard = [], [], []
    told: list[float] = []
    with bench.database() as url:
        place = url.replace("postgresql://", "postgresql+psycopg://", 1)
        plain, observed = create_engine(place), forge.observe(create_engine(place))
        with plain.connect() as without, observed.connect() as within:
            for turn in range(rounds):
                bench.say(f"query bus, round {turn + 1} of {rounds}")
                waits.append(_ask(without))
                alone = _hooks(without)
                unheard.append(_hooks(within) - alone)
                with forge.on("query", lambda event: told.append(event.duration_ms)):
                    _ask(within)
                with forge.on("query", lambda event: None):
                    heard.append(_hooks(within) - alone)
        plain.dispose()
        observed.dispose()
    if len(told) != rounds * QUERIES:
        raise RuntimeError(f"{len(told)} of {rounds * QUERIES} statements were told")
    return [
        figure("query_bus", "a bare statement", waits, "µs"),
        figure("query_bus", "added, nobody listens", [each * 1000 for each in unheard], "ns"),
        at_most(figure("query_bus", "added over a bare statement", ratios(unheard, waits), "share"), LIMIT),
        figure("query_bus", "added, one listener", [each * 1000 for each in heard], "ns"),
        figure("query_bus", "added over a bare statement, one listener", ratios(heard, waits), "share"),
    ]


def _ask(connection: Connection) -> float:
    """Microseconds for a statement and its answer."""
    rows = []
    for _ in range(QUERIES // ROW):
        start = perf_counter()
        for _ in range(ROW):
            connection.execute(STATEMENT).scalar()
        rows.append(perf_counter() - start)
    return min(rows) / ROW * 1e6


def _hooks(connection: Connection) -> float:
    """Microseconds for what SQLAlchemy calls around a statement, as it calls it."""
    events: Any = connection.dispatch
    statement, parameters = "SELECT 1", dict[str, Any]()
    cursor, context = SimpleNamespace(rowcount=1), SimpleNamespace(compiled=None)
    worked = thread_time()
    for _ in range(CALLS):
        for before in events.before_cursor_execute:
            statement, parameters = before(connection, cursor, statement, parameters, context, False)
        events.after_cursor_execute(connection, cursor, statement, parameters, context, False)
    return (thread_time() - worked) / CALLS * 1e6
