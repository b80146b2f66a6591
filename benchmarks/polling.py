"""A poll that finds nothing new, on a small log and on a large one, both spread over 30 daily partitions.

The rows go straight into the log. They name transactions that the server really had, ten rows each, so the index that
a poll looks into is as large as it would be.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from datetime import date
from statistics import median
from time import perf_counter

from psycopg import sql

from benchmarks.bench import FORGE, Bench, past_days, track
from benchmarks.figures import Figure, at_most, figure, ratios
from forge.changelog.reader import Reader
from forge.postgres.connection import Connection, connect

PER_TRANSACTION = 10
POLLS = 200


def run(bench: Bench) -> list[Figure]:
    """Polls of both logs in turns."""
    few, many = (10_000, 1_000_000) if bench.quick else (10_000, 10_000_000)
    rounds = 5 if bench.quick else 9
    with bench.database() as small, bench.database() as large:
        bench.say(f"filling a log with {many:,} rows")
        with connect(large) as connection:
            _use_transactions(connection, many // PER_TRANSACTION)
        _fill(small, few)
        _fill(large, many)
        bench.say("polling for nothing new")
        below, above = asyncio.run(_polls(small, large, rounds))
    name = f"poll with nothing new, {_short(many)} over {_short(few)} rows"
    return [
        at_most(figure("polling", name, ratios(above, below), "ratio"), 1.2),
        figure("polling", f"a poll at {_short(few)} rows", below, "ms"),
        figure("polling", f"a poll at {_short(many)} rows", above, "ms"),
    ]


def _short(rows: int) -> str:
    return f"{rows // 1_000_000}M" if rows >= 1_000_000 else f"{rows // 1000}k"


async def _polls(small: str, large: str, rounds: int) -> tuple[list[float], list[float]]:
    below: list[float] = []
    above: list[float] = []
    async with Reader.open(small) as a, Reader.open(large) as b:
        for reader in (a, b):
            await _poll(reader)
        for _ in range(rounds):
            below.append(await _poll(a))
            above.append(await _poll(b))
    return below, above


async def _poll(reader: Reader) -> float:
    """The median of many polls, in milliseconds."""
    cursor = await reader.now()
    taken = []
    for _ in range(POLLS):
        start = perf_counter()
        async with aclosing(reader.read(cursor)) as batches:
            async for batch in batches:
                if batch.changes:
                    raise RuntimeError("a poll found something where there is nothing new")
                cursor = batch.cursor
        taken.append((perf_counter() - start) * 1000)
    return median(taken)


def _use_transactions(connection: Connection, count: int) -> None:
    """Make the server's transaction counter rise by this much, through subtransactions."""
    connection.execute("CREATE TEMP TABLE used (n int)")
    for first in range(0, count, 50_000):
        connection.execute("TRUNCATE used")
        connection.execute(
            sql.SQL(
                "DO $$ BEGIN FOR i IN 1..{} LOOP BEGIN INSERT INTO used VALUES (i);"
                " EXCEPTION WHEN division_by_zero THEN END; END LOOP; END $$"
            ).format(min(50_000, count - first))
        )


def _fill(url: str, rows: int) -> None:
    with connect(url) as connection:
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, name text, n int)")
        track(connection, FORGE, "t")
        xmax = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
        assert xmax is not None
        first_xid = xmax[0] - rows // PER_TRANSACTION
        if first_xid < 3:
            raise RuntimeError("the server has not had that many transactions")
    days = past_days()
    each = rows // len(days) + 1
    with ThreadPoolExecutor(2) as two:
        list(
            two.map(
                lambda n: _fill_day(url, days[n], n * each, min(each, rows - n * each), first_xid), range(len(days))
            )
        )
    with connect(url) as connection:
        connection.execute("SELECT setval('forge.event_id', %s)", (rows + 1,))
        connection.execute("VACUUM (ANALYZE) forge.forge_event_log")
        connection.execute("CHECKPOINT")


def _fill_day(url: str, day: date, first: int, rows: int, first_xid: int) -> None:
    with connect(url) as connection:
        connection.execute(
            "INSERT INTO forge.forge_event_log (id, transaction_id, at, day, version, op, row_id, after, db_user)"
            " SELECT g, (%(xid)s + (g - 1) / %(per)s)::text::xid8, %(day)s::timestamptz, %(day)s, v.id, 'I', g,"
            " json_build_object('id', g, 'name', 'name ' || g, 'n', g), 'postgres'"
            " FROM generate_series(%(first)s::bigint + 1, %(first)s + %(rows)s) g,"
            " (SELECT max(id) AS id FROM forge.table_version) v",
            {"xid": first_xid, "per": PER_TRANSACTION, "day": day, "first": first, "rows": rows},
        )
