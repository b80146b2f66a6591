"""Forge's feeds beside the Debezium engine, on the same server, the same rows, in turns of one run.

Rows of about 150 bytes in transactions of 1,000, read as a backlog: by Forge into Changes, by the engine into its
batches of JSON. Latency is from the return of a commit to the Change, or to the engine's batch, at 50 commits/s.
What `forge.debezium.encode` adds for one who wants envelopes is measured by itself.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from itertools import islice
from statistics import quantiles
from time import perf_counter

from benchmarks import debezium, mysql, wal
from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_least, figure, ratios
from forge import debezium as envelopes
from forge.capture.mysql import MysqlSource
from forge.capture.wal import WalSource
from forge.change import Change
from forge.postgres.connection import connect
from forge.testing import fresh_database, temporary_postgres
from forge.testing.mariadb import connect_mariadb, fresh_mariadb, temporary_mariadb
from forge.testing.mariadb import run as execute
from forge.values import Column
from tests.servers.debezium import debezium_missing, mariadb_properties, postgres_properties

POLLS = {"polling every 10 ms": "10", "by default": "500"}


def run(bench: Bench) -> list[Figure]:
    """PostgreSQL, then MariaDB; nothing where the engine cannot run."""
    if missing := debezium_missing():
        bench.say(f"no comparison with Debezium: {missing}")
        return []
    found: list[Figure] = []
    for measure in (_postgres, _mariadb):
        found += (figures := measure(bench))
        for each in figures:
            bench.say(f"{each.name}: {each.shown}")
    return found


def _postgres(bench: Bench) -> list[Figure]:
    rows = 200_000 if bench.quick else 1_000_000
    rounds = 1 if bench.quick else 3
    ours: list[float] = []
    theirs: list[float] = []
    with temporary_postgres(settings={"fsync": "on"}) as server:
        with fresh_database(server) as url:
            cursor = asyncio.run(wal._begin(url))
            for turn in range(rounds):
                with connect(url) as connection:
                    connection.execute("TRUNCATE r")
                    connection.execute("INSERT INTO r VALUES (-1, 'seed', 1, 'seed')")
                    properties = postgres_properties(url, "public.r", slot_name=f"debezium{turn}")
                    with debezium.placed(properties, lambda: None) as folder:
                        bench.say(f"PostgreSQL beside Debezium, round {turn + 1} of {rounds}")
                        cursor = asyncio.run(WalSource(url).now())
                        wal._write(url, rows)
                        ours.append(asyncio.run(wal._forge(url, cursor, rows))[0])
                        theirs.append(debezium.rate(properties, folder, rows))
                    connection.execute("SELECT pg_drop_replication_slot(%s)", (properties["slot.name"],))
            encoded = asyncio.run(_encoding(url, cursor))
        bench.say("latency of PostgreSQL beside Debezium")
        commits = 250 if bench.quick else 1_000
        with fresh_database(server) as url:
            found = _cuts("PostgreSQL, commit to Change", asyncio.run(wal._waits(url, commits)))
        for name, poll in POLLS.items():
            with fresh_database(server) as url, connect(url) as connection:
                connection.execute("CREATE TABLE r (id bigint PRIMARY KEY, name text, n int, note text)")
                properties = postgres_properties(url, "public.r", poll_interval_ms=poll)

                def insert(number: int, connection: object = connection) -> None:
                    connection.execute("INSERT INTO r VALUES (%s, 'name', 1, 'note')", (number,))  # type: ignore[attr-defined]

                waits = debezium.waits(properties, insert, commits)
            found += _cuts(f"PostgreSQL, commit to Debezium {name}", waits)
    return [*_rates("PostgreSQL", ours, theirs, 3.0), figure("feeds", "encoding an envelope", encoded, "µs"), *found]


def _mariadb(bench: Bench) -> list[Figure]:
    rows = 200_000 if bench.quick else 1_000_000
    rounds = 1 if bench.quick else 3
    ours: list[float] = []
    theirs: list[float] = []
    with temporary_mariadb(mysql.SETTINGS) as server:
        for turn in range(rounds):
            with fresh_mariadb(server) as url:
                execute(url, mysql.TABLE, "INSERT INTO orders (id) VALUES (-1)")
                properties = mariadb_properties(url, f"{_name(url)}.orders")
                with debezium.placed(properties, lambda: None) as folder:
                    bench.say(f"MariaDB beside Debezium, round {turn + 1} of {rounds}")
                    cursor = asyncio.run(MysqlSource(url).now())
                    mysql._write(url, rows)
                    ours.append(asyncio.run(mysql._read(url, cursor, rows)))
                    theirs.append(debezium.rate(properties, folder, rows))
        bench.say("latency of MariaDB beside Debezium")
        commits = 250 if bench.quick else 1_000
        with fresh_mariadb(server) as url:
            found = _cuts("MariaDB, commit to Change", asyncio.run(mysql._latency(url, commits)))
        for name, poll in POLLS.items():
            with fresh_mariadb(server) as url:
                execute(url, "CREATE TABLE marker (id int PRIMARY KEY)", "INSERT INTO marker VALUES (-2)")
                properties = mariadb_properties(url, f"{_name(url)}.marker", poll_interval_ms=poll)
                writer = connect_mariadb(url).cursor()

                def insert(number: int, execute: Callable[[str], object] = writer.execute) -> None:
                    execute(f"INSERT INTO marker VALUES ({number})")

                waits = debezium.waits(properties, insert, commits)
                writer.connection.close()
            found += _cuts(f"MariaDB, commit to Debezium {name}", waits)
    return [*_rates("MariaDB", ours, theirs, 2.0), *found]


def _rates(server: str, ours: list[float], theirs: list[float], target: float) -> list[Figure]:
    over = figure("feeds", f"{server}, Forge over the Debezium engine", ratios(ours, theirs), "ratio")
    return [
        at_least(over, target),
        figure("feeds", f"{server}, changes by Forge", ours, "rate"),
        figure("feeds", f"{server}, events by the Debezium engine", theirs, "rate"),
    ]


def _cuts(name: str, waits: list[float]) -> list[Figure]:
    cuts = quantiles(waits, n=100)
    return [figure("feeds", f"{name} (p50)", [cuts[49]], "ms"), figure("feeds", f"{name} (p99)", [cuts[98]], "ms")]


async def _encoding(url: str, cursor: str, count: int = 20_000) -> list[float]:
    """Microseconds for an envelope, in three rounds over changes that are there."""
    found: list[tuple[Change, tuple[Column, ...]]] = []
    async with WalSource(url) as source, aclosing(source.stream(cursor)) as batches:
        async for batch in batches:
            found += islice(zip(batch.changes, batch.columns, strict=True), count - len(found))
            if len(found) == count:
                break
    taken = []
    for _ in range(3):
        start = perf_counter()
        for change, columns in found:
            envelopes.encode(change, columns=columns)
        taken.append(1e6 * (perf_counter() - start) / count)
    return taken


def _name(url: str) -> str:
    return url.rsplit("/", 1)[1]
