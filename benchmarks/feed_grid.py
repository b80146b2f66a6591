"""How many changes per second reach 500 and 4,000 authorized clients, and how late, beside what Supabase publishes.

There as here a change is of concern to a fifth of the clients: those of one of five tenants. The rate goes up in steps
until a change does not reach all of them, or the 95th of a hundred comes as late as there; the highest that held is
reported, for the raw feed and for a live query with the debounce of the defaults.
"""

from collections.abc import Iterator
from math import inf, isfinite
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.clients import Client, Clients, connected
from benchmarks.figures import Figure, at_least, figure
from benchmarks.served import Serving, prepare, serving, token
from benchmarks.writer import INSERT, Writer, writing

TENANTS = 5
TWICE = 2
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
KINDS = {"raw feed": "/forge/changes?table=probe", "live query": "/forge/live/own?mode=delta"}


class Cell(NamedTuple):
    """Changes per second to so many clients, and the 95th percentile of their latency in milliseconds."""

    clients: int
    rate: int
    p95: float


# As published with Supabase's guide to Postgres Changes (its table of throughput by compute, with row-level security
# and without filters; messages for a client are a fifth of the changes): 500 clients on the smallest and on the largest
# compute, and 4,000 on the largest. Measured by them on their machines.
PUBLISHED = (Cell(500, 30, 228.0), Cell(500, 40, 618.0), Cell(4_000, 5, 918.0))


class Held(NamedTuple):
    """A rate that held, and how late changes came."""

    rate: float
    p95: float


def run(bench: Bench) -> list[Figure]:
    """Each kind with each number of clients; a quick run has the fewest only."""
    found: list[Figure] = []
    published = PUBLISHED[:2] if bench.quick else PUBLISHED
    for kind, path in KINDS.items():
        for number in sorted({cell.clients for cell in published}):
            cells = [cell for cell in published if cell.clients == number]
            with bench.database() as url:
                bench.say(f"{kind} to {number:,} clients: connecting")
                prepare(url, 1)
                steps = list(_steps(bench, url, f"{kind} to {number:,} clients", path, cells))
            for cell in cells:
                found += _figures(kind, cell, steps)
    for cell in published:
        name = f"Supabase, as published, {cell.clients:,} clients, p95 of {cell.p95:.0f} ms"
        found.append(figure("feed_grid", name, [cell.rate], "rate"))
    return found


def _figures(kind: str, cell: Cell, steps: list[Held]) -> Iterator[Figure]:
    name = f"{kind}, {cell.clients:,} clients, p95 below {cell.p95:.0f} ms"
    best = highest(steps, cell.p95)
    yield at_least(figure("feed_grid", name, [best.rate], "rate"), TWICE * cell.rate)
    if isfinite(best.p95):
        yield figure("feed_grid", f"{name}: the p95 then", [best.p95], "ms")


def highest(steps: list[Held], p95: float) -> Held:
    """The highest rate before the first that came too late; 0 when there is none, with what the first step took.

    >>> highest([Held(30, 20.0), Held(60, 90.0), Held(90, 300.0), Held(120, 80.0)], 228.0)
    Held(rate=60, p95=90.0)
    >>> highest([Held(30, 300.0)], 228.0)
    Held(rate=0.0, p95=300.0)
    """
    best = Held(0.0, steps[0].p95)
    for step in steps:
        if step.p95 >= p95:
            break
        best = step
    return best


def _steps(bench: Bench, url: str, name: str, path: str, cells: list[Cell]) -> Iterator[Held]:
    steps, seconds = ((2, 4), 2) if bench.quick else (STEPS, 4)
    base, latest = min(cell.rate for cell in cells), max(cell.p95 for cell in cells)
    tokens = [token(f"t{number}") for number in range(1, TENANTS + 1)]
    clients = [Client(path, tokens[number % TENANTS]) for number in range(cells[0].clients)]
    with (
        serving(Serving(url, tokens=True)) as served,
        connected(served.port, clients) as watching,
        writing(url, INSERT, TENANTS) as writer,
    ):
        _step(watching, writer, TENANTS, base, len(clients))  # warms up
        for times in steps:
            rate = base * times
            bench.say(f"{name}, {rate}/s")
            held = _step(watching, writer, max(TENANTS, rate * seconds), rate, len(clients))
            yield held
            if held.p95 >= latest:
                return


def _step(clients: Clients, writer: Writer, changes: int, rate: int, number: int) -> Held:
    """What came of one rate; a latency without end when changes were lost, or could not be written that fast."""
    changes -= changes % TENANTS
    expected = changes * (number // TENANTS)
    clients.time(expected, changes / rate + 5)
    writer.begin(rate, changes)
    written, timed = writer.end(), clients.timed()
    held = timed.values == expected and written.rate >= 0.98 * rate
    return Held(rate, timed.p95 if held else inf)
