"""From a commit to the event at a client: a served application, 200 changes per second, each in a process of its own.

What is measured begins just before the statement is sent that writes and commits, and ends when the event has been
read from the socket. There are 200 streams, each of the newest rows of a tenant of its own, and changes go round, so
that a query is left alone for longer than it waits for more: what is above the `quiet` that was configured is what
Forge and PostgreSQL took.
"""

from statistics import median

from benchmarks.bench import Bench
from benchmarks.clients import Client, Timed, connected
from benchmarks.figures import Figure, at_most, figure
from benchmarks.served import Serving, prepare, serving
from benchmarks.writer import INSERT, writing

RATE = 200
STREAMS = 200
MEDIAN, TAIL = 5.0, 25.0
DEBOUNCES = ((0.005, 0.02), (0.05, 0.2))


def run(bench: Bench) -> list[Figure]:
    """Rounds for a short debounce and for that of the defaults; then all changes at one query."""
    rounds, seconds = (1, 4) if bench.quick else (3, 10)
    found = []
    for quiet, longest in DEBOUNCES:
        name = f"{quiet * 1000:.0f}/{longest * 1000:.0f} ms"
        with bench.database() as url:
            bench.say(f"commit to client, debounce {name}")
            prepare(url, 1)
            each, took = _measured(Serving(url, quiet, longest), STREAMS, rounds, seconds)
            above = [(one.p50 - quiet * 1000, one.p99 - quiet * 1000) for one in each]
            found += [
                at_most(_figure(f"above a debounce of {name} (p50)", [p50 for p50, _ in above]), MEDIAN),
                at_most(_figure(f"above a debounce of {name} (p99)", [p99 for _, p99 in above]), TAIL),
                _figure(f"of which the write and its commit, {name} (p50)", took),
            ]
            if quiet == DEBOUNCES[0][0]:
                busy, _ = _measured(Serving(url, quiet, longest), 1, rounds, seconds)
                found.append(_figure(f"all at one query, {name}, debounce included (p50)", [one.p50 for one in busy]))
                found.append(_figure(f"all at one query, {name}, debounce included (p99)", [one.p99 for one in busy]))
    return found


def _figure(name: str, rounds: list[float]) -> Figure:
    return figure("live_latency", name, rounds, "ms")


def _measured(how: Serving, streams: int, rounds: int, seconds: int) -> tuple[list[Timed], list[float]]:
    """What each round found with so many streams, and the median of the write and commit in milliseconds."""
    found, took = [], []
    path = "/forge/live/recent?mode=delta&args=%7B%22tenant%22:%22t{}%22%7D"
    clients = [Client(path.format(number)) for number in range(1, streams + 1)]
    with (
        serving(how) as served,
        connected(served.port, clients) as watching,
        writing(how.url, INSERT, streams) as writer,
    ):
        for turn in range(rounds + 1):
            changes = RATE * (seconds if turn else 1)
            watching.time(changes, changes / RATE + 10)
            writer.begin(RATE, changes)
            written, timed = writer.end(), watching.timed()
            if timed.values < changes:
                raise RuntimeError(f"only {timed.values} of {changes} changes reached a client")
            if turn:  # the first only warms up
                found.append(timed)
                took.append(written.took)
    return found, [median(took)]
