"""SQLite: what tracking costs a writer, how fast the queue is drained, and how soon a change is there.

Files in WAL mode with synchronous = NORMAL, as SQLite recommends for it; a row has about 150 bytes. The server of the
run is not used. Two processes are of this module:

    python -m benchmarks.sqlite write PATH SECONDS      commits 50 rows per second, each with the time of its commit
    python -m benchmarks.sqlite read PATH ROWS CURSOR   reads so many changes, prints its peak memory in kilobytes
"""

import asyncio
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import apsw

from benchmarks.bench import Bench, python
from benchmarks.figures import Figure, at_least, at_most, figure, ratios
from forge.capture.sqlite import Hook, SqliteSource, enable

TABLE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, mail TEXT UNIQUE, total REAL, state TEXT, note TEXT)"
INSERT = "INSERT INTO orders VALUES (?, ?, ?, 'open', ?)"
NOTE = "x" * 100
PER_TRANSACTION = 1000


def run(bench: Bench) -> list[Figure]:
    """Writers first, then readers."""
    rows = 20_000 if bench.quick else 100_000
    rounds = 3 if bench.quick else 7
    bench.say("SQLite: writing, tracked and untracked")
    found = _overhead(rows, rounds)
    bench.say("SQLite: draining the queue")
    found += _drained(rows, rounds)
    bench.say("SQLite: the hook")
    found += _hook(rows // 4, rounds)
    bench.say("SQLite: latency")
    found += _latency(5 if bench.quick else 20)
    bench.say("SQLite: memory")
    found += _memory(*((50_000, 500_000) if bench.quick else (500_000, 5_000_000)))
    return found


@contextmanager
def _file(*, tracked: bool) -> Iterator[tuple[Path, sqlite3.Connection]]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bench.db"
        connection = _connect(path)
        connection.execute(TABLE)
        if tracked:
            enable(f"sqlite:///{path}", ["orders"])
        yield path, connection
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _row(number: int) -> tuple[int, str, float, str]:
    return number, f"customer-{number}@example.com", number * 0.5, NOTE


def _fill(connection: sqlite3.Connection, rows: int, first: int = 0) -> None:
    for start in range(first, first + rows, PER_TRANSACTION):
        connection.execute("BEGIN")
        connection.executemany(INSERT, map(_row, range(start, min(start + PER_TRANSACTION, first + rows))))
        connection.execute("COMMIT")


def _single(connection: sqlite3.Connection, rows: int, first: int) -> None:
    for number in range(first, first + rows):
        connection.execute(INSERT, _row(number))


def _touch(connection: sqlite3.Connection, rows: int) -> None:
    for number in range(rows):
        connection.execute("UPDATE orders SET total = total + 1 WHERE id = ?", (number,))


def _timed(seconds: list[float], start: float) -> None:
    seconds.append(time.perf_counter() - start)


def _overhead(rows: int, rounds: int) -> list[Figure]:
    """The same writes on an untracked and on a tracked file, in turns."""
    names = (
        "inserts, 1,000 a transaction",
        "inserts, one a transaction",
        "updates by key, one a transaction",
        "one statement that updates every row",
    )
    taken: dict[tuple[str, bool], list[float]] = {(name, tracked): [] for name in names for tracked in (False, True)}
    for _ in range(rounds):
        for tracked in (False, True):
            with _file(tracked=tracked) as (_, connection):
                works: tuple[Callable[[], object], ...] = (
                    partial(_fill, connection, rows),
                    partial(_single, connection, rows // 10, rows),
                    partial(_touch, connection, rows // 10),
                    partial(connection.execute, "UPDATE orders SET total = total + 1"),
                )
                for name, work in zip(names, works, strict=True):
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    start = time.perf_counter()
                    work()
                    _timed(taken[name, tracked], start)
    return [
        at_most(
            figure("sqlite", f"tracked over untracked: {name}", ratios(taken[name, True], taken[name, False]), "ratio"),
            2.5,
        )
        for name in names
    ]


def _drained(rows: int, rounds: int) -> list[Figure]:
    """All changes of a queue as Changes, each batch acknowledged."""
    rates = []
    for _ in range(rounds):
        with _file(tracked=True) as (path, connection):
            source = SqliteSource(f"sqlite:///{path}")
            start = asyncio.run(source.now())
            _fill(connection, rows)
            rates.append(rows / asyncio.run(_drain(source, start, rows)))
    return [at_least(figure("sqlite", "changes drained and acknowledged", rates, "rate"), 100_000)]


async def _drain(source: SqliteSource, cursor: str, rows: int, *, ack: bool = True) -> float:
    """Read so many changes; the seconds that it took."""
    count, begun = 0, time.perf_counter()
    async with source, aclosing(source.stream(cursor)) as batches:
        while count < rows:
            batch = await anext(batches)
            count += len(batch.changes)
            if ack:
                await source.ack(batch.cursor)
    return time.perf_counter() - begun


def _hook(rows: int, rounds: int) -> list[Figure]:
    """What the hook adds to a write until there is a Change, and how soon that is."""
    extra, delays = [], []
    for _ in range(rounds):
        plain, hooked = (asyncio.run(_hooked(rows, watched=watched)) for watched in (False, True))
        extra.append((hooked - plain) / rows * 1e6)
        delays.append(asyncio.run(_hook_delay(rows // 50)))
    return [
        at_most(figure("sqlite", "hook: cost of a change", extra, "µs"), 20),
        figure("sqlite", "hook: commit to Change, p50", delays, "µs"),
    ]


async def _hooked(rows: int, *, watched: bool) -> float:
    with _file(tracked=False) as (path, own):
        own.close()
        connection = apsw.Connection(str(path))
        connection.execute("PRAGMA synchronous = NORMAL")
        hook = Hook(f"sqlite:///{path}", connection=connection, most=rows + 1)
        begun = time.perf_counter()
        if watched:
            async with hook:
                start = await hook.now()
                _fill_apsw(connection, rows)
                async with aclosing(hook.stream(start)) as batches:
                    count = 0
                    while count < rows:
                        count += len((await anext(batches)).changes)
        else:
            _fill_apsw(connection, rows)
        taken = time.perf_counter() - begun
        connection.close()
    return taken


def _fill_apsw(connection: apsw.Connection, rows: int) -> None:
    for start in range(0, rows, PER_TRANSACTION):
        with connection:
            connection.executemany(INSERT, map(_row, range(start, min(start + PER_TRANSACTION, rows))))


async def _hook_delay(rows: int) -> float:
    delays = []
    with _file(tracked=False) as (path, own):
        own.close()
        async with Hook(f"sqlite:///{path}") as hook, aclosing(hook.stream(await hook.now())) as batches:
            for number in range(rows):
                hook.connection.execute(INSERT, _row(number))
                committed = time.perf_counter()
                await anext(batches)
                delays.append((time.perf_counter() - committed) * 1e6)
    return median(delays)


def _latency(seconds: int) -> list[Figure]:
    """From the return of a commit in another process to the Change here, 50 commits per second."""
    with _file(tracked=True) as (path, connection):
        delays = asyncio.run(_delays(path, seconds))
        gaps = asyncio.run(_gaps(path, connection))
    cuts = quantiles(delays, n=100)
    return [
        figure("sqlite", "queue: commit to Change at 50/s, p50", [cuts[49]], "ms"),
        figure("sqlite", "queue: commit to Change at 50/s, p99", [cuts[98]], "ms"),
        figure("sqlite", "queue: ALTER TABLE to new triggers, p50", gaps, "ms"),
    ]


async def _delays(path: Path, seconds: int) -> list[float]:
    source = SqliteSource(f"sqlite:///{path}")
    cursor = await source.now()
    writer = subprocess.Popen(python("benchmarks.sqlite", "write", str(path), str(seconds)), stdout=subprocess.PIPE)  # noqa: ASYNC220
    arrived: dict[int, float] = {}
    async with aclosing(source.stream(cursor)) as batches:
        async for batch in batches:
            now = time.time()
            arrived |= {change.key["id"]: now for change in batch.changes if change.key}
            await source.ack(batch.cursor)
            if len(arrived) >= 50 * seconds:
                break
    out, _ = await asyncio.to_thread(writer.communicate)
    committed = [float(line) for line in out.split()]
    return [(arrived[number] - at) * 1000 for number, at in enumerate(committed)]


def _write(path: Path, seconds: int) -> None:
    """Commit at an even pace, and print when each commit returned."""
    connection = _connect(path)
    begun, committed = time.monotonic() + 0.5, []
    for number in range(50 * seconds):
        time.sleep(max(0.0, begun + number / 50 - time.monotonic()))
        connection.execute(INSERT, _row(number))
        committed.append(time.time())
    print(*committed)


async def _gaps(path: Path, connection: sqlite3.Connection) -> list[float]:
    """How long after an ALTER TABLE a stream has made new triggers."""
    source = SqliteSource(f"sqlite:///{path}")
    gaps = []
    async with aclosing(source.stream(await source.now())) as batches:
        for number in range(15):
            reading = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0.05)
            connection.execute(f"ALTER TABLE orders ADD COLUMN more_{number}")
            altered = time.perf_counter()
            await reading
            gaps.append((time.perf_counter() - altered) * 1000)
    return gaps


def _memory(few: int, many: int) -> list[Figure]:
    """The same reading of a queue, ten times as long the second time."""
    peaks = []
    for rows in (few, many):
        with _file(tracked=True) as (path, connection):
            cursor = asyncio.run(SqliteSource(f"sqlite:///{path}").now())
            connection.execute("BEGIN")
            connection.execute(
                "WITH RECURSIVE n (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id < ? - 1)"
                " INSERT INTO orders SELECT id, id, id, 'open', ? FROM n",
                (rows, NOTE),
            )
            connection.execute("COMMIT")
            peaks.append(_peak(path, cursor, rows))
    return [
        at_most(
            figure("sqlite", f"peak for {many:,} over {few:,} changes", ratios(peaks[1:], peaks[:1]), "ratio"), 1.15
        ),
        figure("sqlite", f"peak for one transaction of {many:,} changes", peaks[1:], "MB"),
    ]


def _peak(path: Path, cursor: str, rows: int) -> float:
    command = python("benchmarks.sqlite", "read", str(path), str(rows), cursor)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the reader failed: {done.stderr.strip()[-500:]}")
    return int(done.stdout) / 1024


if __name__ == "__main__":
    file = Path(sys.argv[2])
    if sys.argv[1] == "write":
        _write(file, int(sys.argv[3]))
    else:
        asyncio.run(_drain(SqliteSource(f"sqlite:///{file}"), sys.argv[4], int(sys.argv[3]), ack=False))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
