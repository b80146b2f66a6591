"""One query with 2,000 clients that changes all the time, against a bare server that writes the same bytes to as many.

Both servers keep their clients throughout and are measured in turns; what counts is what arrives at the clients. Where
those are the slower side, the bare server waits for them: the processor time that a message costs tells the rest.
"""

from benchmarks.bare import Bare, bare_server
from benchmarks.bench import Bench
from benchmarks.clients import Client, Clients, connected
from benchmarks.figures import Figure, at_least, figure, ratios
from benchmarks.served import Served, Serving, prepare, serving
from benchmarks.writer import UPDATE, Writer, writing

RATE = 100
"""Changes per second: more than there can be pushes, and few enough that a message does not list many causes."""
SHARE = 0.40


def run(bench: Bench) -> list[Figure]:
    """Rounds of both, one after the other."""
    rounds, seconds, number = (2, 3, 500) if bench.quick else (5, 6, 2_000)
    clients = [Client("/forge/live/customer?args=%7B%22id%22:1%7D")] * number
    forge: list[tuple[float, float]] = []
    bare: list[tuple[float, float]] = []
    bench.say(f"fan-out to {number:,} clients: connecting")
    with bench.database() as url:
        prepare(url, 1)
        with (
            serving(Serving(url, quiet=0.0, longest=0.0)) as served,
            connected(served.port, clients) as watching,
            writing(url, UPDATE, 1) as writer,
            bare_server() as other,
            connected(other.port, [Client("/")] * number) as listening,
        ):
            for turn in range(rounds):
                bench.say(f"fan-out to {number:,} clients, round {turn + 1} of {rounds}")
                *measured, sample = _forge(served, watching, writer, seconds)
                forge.append((measured[0], measured[1]))
                bare.append(_bare(other, listening, sample, seconds))
    rates, bare_rates = [rate for rate, _ in forge], [rate for rate, _ in bare]
    return [
        at_least(
            figure("fanout", f"{number:,} clients, of a bare server's", ratios(rates, bare_rates), "percent"), SHARE
        ),
        figure(
            "fanout",
            f"{number:,} clients, of a bare server's, by processor time",
            ratios([cost for _, cost in bare], [cost for _, cost in forge]),
            "percent",
        ),
        figure("fanout", "messages to clients", rates, "rate"),
        figure("fanout", "messages by a bare server", bare_rates, "rate"),
        figure("fanout", "processor time for a message", [cost for _, cost in forge], "µs"),
        figure("fanout", "processor time for a message, bare server", [cost for _, cost in bare], "µs"),
    ]


def _forge(served: Served, clients: Clients, writer: Writer, seconds: float) -> tuple[float, float, str]:
    """Messages per second, microseconds of processor time for one, and one as it is on the wire."""
    writer.begin(RATE, int(RATE * (seconds + 0.5)))
    before = served.process.processor
    clients.count(seconds)
    counted = clients.counted()
    used = served.process.processor - before
    writer.end()
    return counted.messages / counted.seconds, used / counted.messages * 1e6, counted.sample


def _bare(server: Bare, clients: Clients, message: str, seconds: float) -> tuple[float, float]:
    server.write(message, seconds + 0.2)
    before = server.process.processor
    clients.count(seconds)
    counted = clients.counted()
    used = server.process.processor - before
    server.written()
    return counted.messages / counted.seconds, used / counted.messages * 1e6
