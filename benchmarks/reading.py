"""Reading the log back into Change objects, against a bare psycopg loop that fetches the same columns, in pages of the
same size, and makes nothing of them."""

import asyncio
from contextlib import aclosing
from time import perf_counter

from psycopg import sql
from psycopg.types.string import ByteaBinaryLoader

from benchmarks.bench import FORGE, Bench, script, track
from benchmarks.figures import Figure, at_least, figure, ratios
from forge.changelog.reader import PAGE, Reader
from forge.postgres.connection import connect, connect_async

CHANGES = 300_000
RATE, SHARE = 150_000, 0.60
COLUMNS = (
    "SELECT l.id, coalesce(l.rank, l.id), l.transaction_id, l.at, l.version, l.op, l.before, l.after, l.hidden,"
    " l.user_id, l.function_name, l.trace_id, l.context, l.db_user, l.application_name"
    " FROM forge.forge_event_log l ORDER BY coalesce(l.rank, l.id), l.id"
)


def run(bench: Bench) -> list[Figure]:
    """Read everything, in turns."""
    rounds = 3 if bench.quick else 5
    changes = CHANGES // 3 if bench.quick else CHANGES
    forge: list[float] = []
    bare: list[float] = []
    with bench.database() as url:
        bench.say(f"writing {changes:,} changes to read back")
        _write(url, changes)
        for turn in range(rounds):
            bench.say(f"reading the log back, round {turn + 1} of {rounds}")
            bare.append(asyncio.run(_bare(url, changes)))
            forge.append(asyncio.run(_forge(url, changes)))
    share = figure("reading", "of what a bare psycopg loop reads", ratios(forge, bare), "percent")
    rate = figure("reading", "changes read into objects", forge, "rate")
    return [
        _either(at_least(rate, RATE), share.value >= SHARE),
        _either(at_least(share, SHARE), rate.value >= RATE),
        figure("reading", "rows by a bare psycopg loop", bare, "rate"),
    ]


def _either(found: Figure, other: bool) -> Figure:
    """One of the two targets is enough."""
    return Figure(
        found.group,
        found.name,
        found.value,
        found.form,
        found.low,
        found.high,
        f"{found.target} (either)",
        bool(found.met) or other,
    )


def _write(url: str, changes: int) -> None:
    """Half inserts and half updates, in transactions of 1,000 rows."""
    with connect(url) as connection:
        connection.execute(script("tables").replace(b"{0}", b"forge"))
        track(connection, FORGE, "orders_forge")
        for first in range(1, changes // 2, 1000):
            connection.execute(
                "INSERT INTO orders_forge (id, customer_id, status, total, note) OVERRIDING SYSTEM VALUE"
                " SELECT g, g %% 1000 + 1, 'placed', (g %% 10000) / 100.0, 'note ' || g"
                " FROM generate_series(%s::bigint, %s) g",
                (first, first + 999),
            )
            connection.execute(
                "UPDATE orders_forge SET status = 'paid' WHERE id BETWEEN %s AND %s", (first, first + 999)
            )
        connection.execute("VACUUM ANALYZE forge.forge_event_log")


async def _forge(url: str, changes: int) -> float:
    async with Reader.open(url) as reader:
        count = 0
        start = perf_counter()
        async with aclosing(reader.read(reader.start())) as batches:
            async for batch in batches:
                count += len(batch.changes)
        taken = perf_counter() - start
    return _rate(count, changes, taken)


async def _bare(url: str, changes: int) -> float:
    connection = await connect_async(url)
    connection.adapters.register_loader("json", ByteaBinaryLoader)
    count = 0
    async with connection, connection.transaction():
        rows = connection.cursor(binary=True)
        start = perf_counter()
        await connection.execute(f"DECLARE bare NO SCROLL CURSOR FOR {COLUMNS}")
        while True:
            await rows.execute(sql.SQL("FETCH {} FROM bare").format(PAGE))
            page = await rows.fetchall()
            count += len(page)
            if len(page) < PAGE:
                break
        taken = perf_counter() - start
    return _rate(count, changes, taken)


def _rate(count: int, changes: int, taken: float) -> float:
    if count < changes:
        raise RuntimeError(f"only {count} of {changes} changes were read")
    return count / taken
