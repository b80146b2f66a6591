"""The binary log of MariaDB into Change objects, against a bare loop of mysql-replication over the same events.

Also from commit to Change, with 50 commits per second, and the memory of a reader whose log is ten times as long. The
reader of that is a process of its own, `python -m benchmarks.mysql URL CURSOR ROWS`, which prints its peak memory in
kilobytes.
"""

import asyncio
import resource
import subprocess
import sys
from contextlib import aclosing
from statistics import quantiles
from time import perf_counter, sleep

from benchmarks.bench import Bench, python
from benchmarks.figures import Figure, at_least, at_most, figure, ratios
from benchmarks.latency import Commits
from forge.capture.mysql import MysqlSource
from forge.testing.mariadb import MariadbServer, connect_mariadb, fresh_mariadb, temporary_mariadb
from forge.testing.mariadb import run as execute

ROWS = 300_000
PACE = 0.02
TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, status varchar(20), total decimal(10,2),"
    " note varchar(200), at datetime)"
)
SETTINGS = {"innodb_buffer_pool_size": "256M", "innodb_log_file_size": "256M"}


def run(bench: Bench) -> list[Figure]:
    """Read everything in turns, then latency, then memory."""
    rounds = 3 if bench.quick else 5
    rows = ROWS // 3 if bench.quick else ROWS
    forge: list[float] = []
    bare: list[float] = []
    with temporary_mariadb(SETTINGS) as server:
        with fresh_mariadb(server) as url:
            execute(url, TABLE)
            cursor = asyncio.run(MysqlSource(url).now())
            bench.say(f"MariaDB: writing {rows:,} rows")
            _write(url, rows)
            for turn in range(rounds):
                bench.say(f"reading the binary log, round {turn + 1} of {rounds}")
                bare.append(_bare(server, cursor, rows))
                forge.append(asyncio.run(_read(url, cursor, rows)))
        with fresh_mariadb(server) as url:
            bench.say("MariaDB: from commit to Change")
            taken = asyncio.run(_latency(url, 200 if bench.quick else 1000))
        peaks = []
        few, many = (50_000, 500_000) if bench.quick else (1_000_000, 10_000_000)
        for count in (few, many):
            with fresh_mariadb(server) as url:
                bench.say(f"MariaDB: a log of {count:,} rows")
                peaks.append(_peak(url, count))
            execute(server.url(), "RESET MASTER")
    share = figure("mysql", "of a bare mysql-replication loop", ratios(forge, bare), "percent")
    growth = figure("mysql", f"peak memory for {many:,} over {few:,} rows", ratios(peaks[1:], peaks[:1]), "ratio")
    return [
        at_least(share, 0.9),
        figure("mysql", "rows read into changes", forge, "rate"),
        figure("mysql", "rows by a bare mysql-replication loop", bare, "rate"),
        figure("mysql", "commit to Change (p50)", [quantiles(taken, n=100)[49]], "ms"),
        figure("mysql", "commit to Change (p99)", [quantiles(taken, n=100)[98]], "ms"),
        at_most(growth, 1.15),
        figure("mysql", f"peak memory for {many:,} rows", peaks[1:], "MB"),
    ]


def _write(url: str, rows: int, size: int = 1000) -> None:
    """Transactions of `size` rows of about 150 bytes."""
    connection = connect_mariadb(url, read_timeout=600)
    with connection.cursor() as cursor:
        for first in range(0, rows, size):
            cursor.execute(
                f"INSERT INTO orders SELECT {first} + seq, seq % 1000, 'placed', seq % 10000 / 100,"
                f" concat('note ', repeat('x', 80), seq), '2026-01-31 12:00:00' FROM seq_1_to_{size}"
            )
    connection.close()


async def _read(url: str, cursor: str, rows: int) -> float:
    count = 0
    start = perf_counter()
    async with aclosing(MysqlSource(url).stream(cursor)) as batches:
        async for batch in batches:
            count += len(batch.changes)
            if count >= rows:
                break
    return count / (perf_counter() - start)


def _bare(server: MariadbServer, cursor: str, rows: int) -> float:
    from pymysqlreplication import BinLogStreamReader  # type: ignore[import-untyped]
    from pymysqlreplication.row_event import WriteRowsEvent  # type: ignore[import-untyped]

    file, offset, *_ = cursor.split("_")[2].split(":")
    start = perf_counter()
    events = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": server.port, "user": "root", "ssl_disabled": True},
        server_id=4711,
        resume_stream=True,
        log_file=file,
        log_pos=int(offset),
        only_events=[WriteRowsEvent],
        enable_logging=False,
    )
    count = 0
    for event in events:
        count += len(event.rows)
        if count >= rows:
            break
    events.close()
    return count / (perf_counter() - start)


async def _latency(url: str, commits: int) -> list[float]:
    execute(url, "CREATE TABLE marker (id int PRIMARY KEY)")
    marks = Commits()
    source = MysqlSource(url)
    cursor = await source.now()

    async def take() -> None:
        async with aclosing(source.stream(cursor)) as batches:
            async for batch in batches:
                for change in batch.changes:
                    if change.key is not None:
                        marks.see(change.key["id"])

    def write() -> None:
        connection = connect_mariadb(url)
        with connection.cursor() as writer:
            for number in range(commits):
                statement = f"INSERT INTO marker VALUES ({number})"
                marks.commit(number, lambda statement=statement: writer.execute(statement))  # type: ignore[misc]
                sleep(PACE)
        connection.close()

    task = asyncio.create_task(take())
    try:
        await asyncio.to_thread(write)
        await marks.all_seen()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return marks.taken()


def _peak(url: str, rows: int) -> float:
    execute(url, TABLE)
    cursor = asyncio.run(MysqlSource(url).now())
    _write(url, rows, 50_000)
    done = subprocess.run(python("benchmarks.mysql", url, cursor, str(rows)), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the reader failed: {done.stderr.strip()[-500:]}")
    return int(done.stdout) / 1024


if __name__ == "__main__":
    asyncio.run(_read(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
