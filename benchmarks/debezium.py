"""What the benchmarks ask of the Debezium engine: how fast it hands over a backlog, and when each commit arrives.

The engine hands its batches to Python, which counts them and looks at nothing: what a consumer would do with the events
comes on top. Its rate is that between the first batch and the last, so that its start costs nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from tests.servers.debezium import Engine, Properties

PER_SECOND = 50


@contextmanager
def placed(properties: Properties, touch: Callable[[], object]) -> Iterator[Path]:
    """A folder of an engine that has read up to now, and was ended: what is written then is its backlog.

    `touch` writes one row to a table of it.
    """
    with TemporaryDirectory(prefix="forge-debezium-") as folder:
        with Engine(properties, Path(folder)) as engine:
            touch()
            engine.events(lambda event: True)
            sleep(1.5)  # longer than offset.flush.interval.ms
        yield Path(folder)


def rate(properties: Properties, folder: Path, rows: int) -> float:
    """Events per second over a backlog."""
    with Engine(properties, folder, counting=True) as engine:
        found = engine.batches(rows)
    (first, began), (_, ended) = found[0], found[-1]
    return (sum(size for size, _ in found) - first) / (ended - began)


def waits(properties: Properties, insert: Callable[[int], object], commits: int) -> list[float]:
    """Milliseconds from the return of each of so many commits to its event; the first event is not counted."""
    done: dict[int, float] = {}
    with TemporaryDirectory(prefix="forge-debezium-") as folder, Engine(properties, Path(folder)) as engine:
        insert(-1)
        engine.events(lambda event: event["after"]["id"] == -1)
        start = perf_counter()
        for number in range(commits):
            sleep(max(0.0, start + number / PER_SECOND - perf_counter()))
            insert(number)
            done[number] = perf_counter()
        events = engine.events(lambda event: event["after"]["id"] == commits - 1)
    seen = {event.value["after"]["id"]: event.at for event in events}
    return [max(0.0, seen[number] - at) * 1000 for number, at in done.items()]
