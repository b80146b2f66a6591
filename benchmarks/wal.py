"""PostgreSQL's WAL into Changes, against a bare loop that takes the same messages apart and makes nothing of them.

The bare loop is what anyone writes first: libpq's COPY_BOTH, and each column of a row as text. Both read the same slot
from the same place, in turns, over TCP, as one reads a server. Latency is from the return of COMMIT to the Change, at
50 commits per second. Memory is that of a process which reads many changes, a few and ten times as many:
`python -m benchmarks.wal URL CURSOR ROWS`.
"""

import asyncio
import resource
import struct
import subprocess
import sys
from contextlib import aclosing, closing
from statistics import quantiles
from time import perf_counter, process_time, sleep

import psycopg
from psycopg import pq

from benchmarks.bench import Bench, python
from benchmarks.figures import Figure, at_least, at_most, figure, ratios
from forge.capture.wal import WalSource
from forge.capture.wal.position import WalCursor, lsn_text
from forge.embedded import PostgresServer
from forge.postgres.connection import connect
from forge.testing import fresh_database, temporary_postgres

CHANGES = 1_000_000
RATE = 117_000
"""Three times what the Debezium engine reads."""
PER_SECOND = 50
_size = struct.Struct(">I").unpack_from


def run(bench: Bench) -> list[Figure]:
    """Throughput in turns, then latency, then memory."""
    with temporary_postgres(settings={"fsync": "on"}) as server:
        return _run(server, bench)


def _run(server: PostgresServer, bench: Bench) -> list[Figure]:
    rounds = 3 if bench.quick else 5
    changes = CHANGES // 5 if bench.quick else CHANGES
    forge: list[float] = []
    spent: list[float] = []
    bare: list[float] = []
    with fresh_database(server) as url:
        bench.say(f"writing {changes:,} rows into the WAL")
        cursor = asyncio.run(_begin(url))
        _write(url, changes)
        for turn in range(rounds):
            bench.say(f"reading the WAL, round {turn + 1} of {rounds}")
            bare.append(_bare(url, cursor, changes))
            rate, processor = asyncio.run(_forge(url, cursor, changes))
            forge.append(rate)
            spent.append(processor)
    return [
        at_least(figure("wal", "changes read from the WAL into objects", forge, "rate"), RATE),
        figure("wal", "of what a bare loop reads", ratios(forge, bare), "percent"),
        figure("wal", "rows by a bare loop", bare, "rate"),
        figure("wal", "processor time for a change", [1e6 * each for each in spent], "µs"),
        *_latency(server, bench),
        *_memory(server, bench),
    ]


async def _begin(url: str) -> str:
    with connect(url) as connection:
        connection.execute("CREATE TABLE r (id bigint PRIMARY KEY, name text, n int, note text)")
    return await WalSource(url).now()


def _write(url: str, rows: int) -> None:
    """Rows of about 150 bytes, in transactions of 1,000."""
    with connect(url) as connection:
        connection.execute("SET synchronous_commit = off")
        for first in range(0, rows, 1000):
            connection.execute(
                "INSERT INTO r SELECT g, 'name ' || g, g %% 1000000, repeat('x', 100)"
                " FROM generate_series(%s::bigint, %s) g",
                (first, first + 999),
            )


async def _forge(url: str, cursor: str, changes: int) -> tuple[float, float]:
    count = 0
    async with WalSource(url) as source, aclosing(source.stream(cursor)) as batches:
        start, processor = perf_counter(), process_time()
        async for batch in batches:
            count += len(batch.changes)
            if count >= changes:
                break
        taken, spent = perf_counter() - start, process_time() - processor
    return count / taken, spent / count


def _bare(url: str, cursor: str, changes: int) -> float:
    place = WalCursor.parse(cursor)
    with closing(psycopg.connect(url, autocommit=True, replication="database")) as opened:
        connection = opened.pgconn
        start = perf_counter()
        begun = connection.exec_(
            f"START_REPLICATION SLOT {place.slot} LOGICAL {lsn_text(place.lsn)}"
            f" (proto_version '2', publication_names '{place.slot}')".encode()
        )
        if begun.status != pq.ExecStatus.COPY_BOTH:
            raise RuntimeError(begun.error_message.decode())
        count = 0
        while count < changes:
            _, data = connection.get_copy_data(0)
            message = bytes(data)
            if message[:1] == b"w" and message[25:26] == b"I":
                _texts(message)
                count += 1
        return count / (perf_counter() - start)


def _texts(message: bytes) -> list[str | None]:
    found: list[str | None] = []
    place = 33
    while place < len(message):
        if message[place] == 116:
            end = place + 5 + _size(message, place + 1)[0]
            found.append(message[place + 5 : end].decode())
            place = end
        else:
            found.append(None)
            place += 1
    return found


def _latency(server: PostgresServer, bench: Bench) -> list[Figure]:
    bench.say(f"latency of the WAL at {PER_SECOND} commits per second")
    with fresh_database(server) as url:
        waits = asyncio.run(_waits(url, 250 if bench.quick else 1_000))
    cuts = quantiles(waits, n=100)
    return [
        figure("wal", "commit to Change, median", [cuts[49]], "ms"),
        figure("wal", "commit to Change, 99th percentile", [cuts[98]], "ms"),
    ]


async def _waits(url: str, count: int) -> list[float]:
    cursor = await _begin(url)
    committed: dict[str, float] = {}
    waits: list[float] = []

    def write() -> None:
        with connect(url) as connection:
            start = perf_counter()
            for number in range(count):
                while (left := start + number / PER_SECOND - perf_counter()) > 0:
                    sleep(left)
                connection.execute("INSERT INTO r VALUES (%s, 'name', 1, 'note')", (number,))
                committed[str(number)] = perf_counter()

    async with WalSource(url) as source, aclosing(source.stream(cursor)) as batches:
        writing = asyncio.create_task(asyncio.to_thread(write))
        seen: dict[str, float] = {}
        async for batch in batches:
            now = perf_counter()
            for change in batch.changes:
                seen[change.row_id] = now
            if len(seen) == count:
                break
        await writing
    waits = [max(0.0, seen[number] - at) * 1000 for number, at in committed.items()]
    return waits


def _memory(server: PostgresServer, bench: Bench) -> list[Figure]:
    few, many = (100_000, 1_000_000) if bench.quick else (1_000_000, 10_000_000)
    peaks = []
    for rows in (few, many):
        with fresh_database(server) as url:
            bench.say(f"memory for {rows:,} changes of the WAL")
            cursor = asyncio.run(_begin(url))
            _write(url, rows)
            done = subprocess.run(
                python("benchmarks.wal", url, cursor, str(rows)), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(f"the reader failed: {done.stderr.strip()[-500:]}")
            peaks.append(int(done.stdout) / 1024)
    growth = figure("wal", f"peak memory for {many:,} over {few:,} changes", ratios(peaks[1:], peaks[:1]), "ratio")
    return [at_most(growth, 1.15), figure("wal", f"peak memory for {many:,} changes", peaks[1:], "MB")]


async def _read(url: str, cursor: str, rows: int) -> None:
    count = 0
    source = WalSource(url)
    async with source, aclosing(source.stream(cursor)) as batches:
        async for batch in batches:
            count += len(batch.changes)
            await source.ack(batch.cursor)
            if count >= rows:
                return


if __name__ == "__main__":
    asyncio.run(_read(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
