"""Finding the groups that a change touches, among 1,000 to 100,000 groups that each read the rows of one customer.

The statement is analysed once as the application does, then bound to each customer. The changes are what the log has
of inserts and updates to customers all over the table, read again for each round. Each must touch exactly the group of
its customer, or the run fails.
"""

import asyncio
from contextlib import aclosing
from time import perf_counter

from psycopg import sql

from benchmarks.bench import FORGE, Bench, track
from benchmarks.figures import Figure, at_most, figure, ratios
from forge.change import Change
from forge.changelog.reader import Reader
from forge.postgres.connection import connect, connect_async
from forge.react.catalog import analyze
from forge.react.database import bound_reads
from forge.react.index import Index

SIZES = (1_000, 10_000, 100_000)
CHANGES = 10_000
LIMIT, GROWTH = 20.0, 1.5


def run(bench: Bench) -> list[Figure]:
    """Rounds over the sizes in turns."""
    rounds = 3 if bench.quick else 7
    taken: dict[int, list[float]] = {size: [] for size in SIZES}
    with bench.database() as url:
        indexes = {}
        for size in SIZES:
            bench.say(f"matching: {size:,} groups")
            _write(url, size)
            indexes[size] = asyncio.run(filled(url, size))
        for turn in range(rounds):
            bench.say(f"matching, round {turn + 1} of {rounds}")
            for size, index in indexes.items():
                changes = asyncio.run(changes_of(url, size))
                taken[size].append(_match(index, changes))
                _check(index, changes)
    few, most = SIZES[0], SIZES[-1]
    return [
        *(
            at_most(figure("matching", f"a change, {size:,} groups", found, "µs"), LIMIT)
            for size, found in taken.items()
        ),
        at_most(figure("matching", f"{most:,} groups over {few:,}", ratios(taken[most], taken[few]), "ratio"), GROWTH),
    ]


async def filled(url: str, size: int) -> Index[int]:
    """Groups for the customers from 1 on."""
    statement = f"SELECT id, status, total FROM orders_{size} WHERE customer_id = %(id)s"
    async with await connect_async(url) as connection:
        analysis = await analyze(connection, statement, {"id": 1})
    index: Index[int] = Index()
    for number in range(1, size + 1):
        index.put(number, bound_reads(analysis, {"id": number}))
    return index


async def changes_of(url: str, size: int) -> list[Change]:
    """What the log has of the table."""
    async with (
        Reader.open(url) as reader,
        aclosing(reader.read(reader.start(), tables=[f"public.orders_{size}"])) as batches,
    ):
        found = [change async for batch in batches for change in batch.changes if change.after is not None]
    if len(found) != CHANGES:
        raise RuntimeError(f"the log has {len(found)} of {CHANGES} changes")
    return found


def _match(index: Index[int], changes: list[Change]) -> float:
    """Microseconds for a change."""
    start = perf_counter()
    for change in changes:
        index.touched(change)
    return (perf_counter() - start) / len(changes) * 1e6


def _check(index: Index[int], changes: list[Change]) -> None:
    for change in changes:
        assert change.after is not None
        if (touched := index.touched(change)) != {change.after["customer_id"]}:
            raise RuntimeError(f"a change of customer {change.after['customer_id']} touched {touched}")


def _write(url: str, size: int) -> None:
    """Half inserts and half updates."""
    name = f"orders_{size}"
    with connect(url) as connection:
        connection.execute(
            sql.SQL(
                "CREATE TABLE {} (id bigint PRIMARY KEY, customer_id bigint NOT NULL, status text NOT NULL,"
                " total numeric(12, 2) NOT NULL, created_at timestamptz NOT NULL DEFAULT clock_timestamp(), note text)"
            ).format(sql.Identifier(name))
        )
        track(connection, FORGE, name)
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (id, customer_id, status, total, note)"
                " SELECT g, g * 7919 %% %s + 1, 'placed', (g %% 10000) / 100.0, 'note ' || g"
                " FROM generate_series(1, %s) g"
            ).format(sql.Identifier(name)),
            (size, CHANGES // 2),
        )
        connection.execute(sql.SQL("UPDATE {} SET status = 'paid'").format(sql.Identifier(name)))
