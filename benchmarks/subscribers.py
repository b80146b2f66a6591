"""What a subscriber costs that waits for something to happen: by how much the server's resident memory grows."""

from benchmarks.bench import Bench
from benchmarks.clients import Client, connected
from benchmarks.figures import Figure, at_most, figure
from benchmarks.served import Serving, prepare, serving

LIMIT = 30.0
FIRST = 100
"""Clients that come before, so that what is there once for all is there."""


def run(bench: Bench) -> list[Figure]:
    """A server for each kind of subscribers and each round."""
    rounds, number = (1, 500) if bench.quick else (3, 2_000)
    found: dict[str, list[float]] = {"each with a query of its own": [], "all on one query": []}
    with bench.database() as url:
        prepare(url, FIRST + number)
        for _ in range(rounds):
            for kind, growth in found.items():
                bench.say(f"memory of {number:,} subscribers, {kind}")
                growth.append(_growth(url, number, apart="own" in kind))
    return [
        at_most(figure("subscribers", f"{number:,} idle, {kind}: each", growth, "kB"), LIMIT)
        for kind, growth in found.items()
    ]


def _growth(url: str, number: int, *, apart: bool) -> float:
    """Kilobytes for one."""
    first = [_client(place) for place in range(1, FIRST + 1)]
    rest = [_client(FIRST + place if apart else FIRST + 1) for place in range(1, number + 1)]
    with serving(Serving(url)) as served, connected(served.port, first):
        before = served.process.memory
        with connected(served.port, rest):
            return (served.process.memory - before) / number / 1024


def _client(customer: int) -> Client:
    return Client(f"/forge/live/customer?args=%7B%22id%22:{customer}%7D")
