"""One transaction of millions of rows streams through a reader whose memory does not grow with it.

The reader is a process of its own, `python -m benchmarks.memory URL ROWS`, which prints its peak memory in kilobytes.
"""

import asyncio
import resource
import subprocess
import sys
from contextlib import aclosing

from benchmarks.bench import FORGE, Bench, python, track
from benchmarks.figures import Figure, at_most, figure, ratios
from forge.changelog.reader import Reader
from forge.postgres.connection import connect


def run(bench: Bench) -> list[Figure]:
    """The same reading of one transaction, ten times as large the second time."""
    few, many = (50_000, 500_000) if bench.quick else (500_000, 5_000_000)
    peaks = []
    for rows in (few, many):
        with bench.database() as url:
            bench.say(f"one transaction of {rows:,} rows: writing")
            _write(url, rows)
            bench.say(f"one transaction of {rows:,} rows: reading")
            peaks.append(_peak(url, rows))
    return [
        at_most(figure("memory", f"peak for {many:,} over {few:,} rows", ratios(peaks[1:], peaks[:1]), "ratio"), 1.15),
        figure("memory", f"peak for one transaction of {few:,} rows", peaks[:1], "MB"),
        figure("memory", f"peak for one transaction of {many:,} rows", peaks[1:], "MB"),
    ]


def _write(url: str, rows: int) -> None:
    with connect(url) as connection:
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, name text, n int, note text)")
        track(connection, FORGE, "t")
        connection.execute(
            "INSERT INTO t SELECT g, 'name ' || g, g, repeat('x', 100) FROM generate_series(1, %s) g", (rows,)
        )


def _peak(url: str, rows: int) -> float:
    done = subprocess.run(python("benchmarks.memory", url, str(rows)), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the reader failed: {done.stderr.strip()[-500:]}")
    return int(done.stdout) / 1024


async def _read(url: str, rows: int) -> None:
    async with Reader.open(url) as reader, aclosing(reader.read(reader.start())) as batches:
        count = 0
        async for batch in batches:
            count += sum(change.table == "t" and change.after is not None for change in batch.changes)
    if count != rows:
        raise RuntimeError(f"{count} of {rows} rows were read")


if __name__ == "__main__":
    asyncio.run(_read(sys.argv[1], int(sys.argv[2])))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
