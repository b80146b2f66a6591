"""A backlog through bronze, current state and history, end to end; and the memory that it takes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import psutil

from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_least, at_most, figure
from benchmarks.lakes import HEAP, pay_orders, place_orders, shop, sparked
from forge.pipeline.lake import Lake
from forge.pipeline.ledger import LedgerEntry
from forge.pipeline.run import LakeSettings, pipeline

MOST = 500_000


def run(bench: Bench) -> list[Figure]:
    """Insert-heavy first, then as many updates; the first batch of all warms Spark up and does not count."""
    events = 1_000_000 if bench.quick else 2_000_000
    with shop() as (url, connection), sparked() as (spark, folder):
        place_orders(connection, 1, 50_000)
        lake = Lake(str(folder / "lake"))
        entries: list[LedgerEntry] = []
        with pipeline(spark, url, lake, LakeSettings(most=MOST), on_batch=entries.append) as running:
            bench.say("warming up")
            running.once()
            bench.say(f"writing {events:,} changes")
            place_orders(connection, 100_001, events // 2)
            pay_orders(connection, 100_001, events // 2)
            warm = len(entries)
            bench.say(f"{events:,} changes into the lake")
            with peak() as memory:
                began = perf_counter()
                running.once()
                seconds = perf_counter() - began
        speeds = [entry.changes / entry.seconds for entry in entries[warm:]]
    taken = sum(entry.changes for entry in entries[warm:])
    assert taken == events, f"{taken} of {events} changes"
    return [
        at_least(
            figure("lake_flow", f"{events:,} changes into bronze, current and history", [events / seconds], "rate"),
            20_000,
        ),
        figure("lake_flow", f"a batch of {MOST:,}", speeds, "rate"),
        at_most(figure("lake_flow", f"memory of driver and tasks, heap of {HEAP}", [memory.most / 2**20], "MB"), 6144),
    ]


class Memory:
    """The most memory that this process and its children had at once."""

    most = 0.0


@contextmanager
def peak() -> Iterator[Memory]:
    """Watches memory for this block, PostgreSQL left out."""
    memory, over = Memory(), threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not over.wait(0.5):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    if "postgres" not in process.name():
                        total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            memory.most = max(memory.most, total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield memory
    finally:
        over.set()
        watcher.join()
