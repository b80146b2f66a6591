"""Batches into tables of different sizes: work should grow with the changes, not with the table."""

import re
from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.bench import Bench, timed
from benchmarks.figures import Figure, at_most, figure, ratios
from benchmarks.lakes import sparked
from benchmarks.plot import Line, plot
from forge.pipeline.changes import CHANGES
from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.silver import table
from forge.values import Column

CHANGED = 1_000
SMALL = 100_000
ROUNDS = 4
KINDS = {"spread": 3.0, "recent": 1.5}
"""Where the changed keys lie, and how many times as long the largest table may take."""
BATCHES = (1_000, 10_000, 100_000, 1_000_000)
ORDERS = Definition(
    1,
    "public",
    "orders",
    (
        Column("id", "bigint"),
        Column("customer_id", "bigint"),
        Column("status", "text"),
        Column("total", "numeric(12,2)", "numeric"),
        Column("placed_at", "timestamp with time zone"),
        Column("note", "text"),
    ),
    ("id",),
)


def run(bench: Bench) -> list[Figure]:
    """The same batch, keys spread over all of the table and keys of its newest rows; then larger batches."""
    sizes = (SMALL, 1_000_000) if bench.quick else (SMALL, 1_000_000, 10_000_000)
    seconds: dict[tuple[int, str], list[float]] = {}
    larger: dict[int, float] = {}
    with sparked() as (spark, folder):
        lakes = {}
        for size in sizes:
            bench.say(f"a table of {size:,} rows")
            lakes[size] = Lake(str(folder / str(size)))
            _load(spark, lakes[size], size)
        for turn in range(ROUNDS + 1):
            for size in sizes:
                for kind in KINDS:
                    bench.say(f"{CHANGED} changes, {kind} keys, of {size:,}, round {turn} of {ROUNDS}")
                    taken = timed(partial(_change, spark, lakes[size], size, kind, turn))
                    if turn:
                        seconds.setdefault((size, kind), []).append(taken)
        for place, count in enumerate(BATCHES):
            bench.say(f"{count:,} changes of {1_000_000:,} rows")
            turn = ROUNDS + 1 + place
            larger[count] = timed(partial(_change, spark, lakes[1_000_000], 1_000_000, "spread", turn, count))
    return [*_figures(sizes, seconds), *(_larger(count, taken) for count, taken in larger.items())]


def plots(figures: Sequence[Figure]) -> dict[str, str]:
    """Time against the table's size, and against the batch's, by the name of the picture."""
    found = {figure.name: figure.value for figure in figures}
    by_size = [Line(f"{kind} keys", _points(found, rf"{kind} keys, ([\d,]+) rows")) for kind in KINDS]
    by_count = [Line("a table of 1,000,000 rows", _points(found, r"([\d,]+) changes, spread keys, 1,000,000 rows"))]
    return {
        "lake-size": plot("1,000 changes into tables of different sizes", "rows of the table", "seconds", by_size),
        "lake-events": plot("Batches of different sizes into one table", "changes", "seconds", by_count),
    }


def _points(found: Mapping[str, float], pattern: str) -> list[tuple[float, float]]:
    matches = ((re.fullmatch(pattern, name), value) for name, value in found.items())
    return sorted((float(match[1].replace(",", "")), value) for match, value in matches if match)


def _larger(count: int, seconds: float) -> Figure:
    return figure("lake_growth", f"{count:,} changes, spread keys, 1,000,000 rows", [seconds], "s")


def _figures(sizes: Sequence[int], seconds: dict[tuple[int, str], list[float]]) -> list[Figure]:
    found = []
    largest = sizes[-1]
    for kind, limit in KINDS.items():
        name = f"{CHANGED:,} changes, {kind} keys: {largest:,} rows over {SMALL:,}"
        ratio = ratios(seconds[largest, kind], seconds[SMALL, kind])
        found.append(at_most(figure("lake_growth", name, ratio, "ratio"), limit))
        found += [figure("lake_growth", f"{kind} keys, {size:,} rows", seconds[size, kind], "s") for size in sizes]
    return found


def _load(spark: SparkSession, lake: Lake, size: int) -> None:
    keys = spark.range(1, size + 1, 1, 4).withColumnRenamed("id", "key")
    _take(spark, lake, _changes(keys, "read", F.lit("0001!"), 0), 0)


def _change(spark: SparkSession, lake: Lake, size: int, kind: str, turn: int, count: int = CHANGED) -> None:
    step = size // count if kind == "spread" else 1
    first = 1 + turn % step if kind == "spread" else size - count * 5 + turn
    keys = spark.range(count).select((F.col("id") * step + first).alias("key"))
    number = (turn * 2 + (kind == "recent")) * 10_000_000
    seq = F.concat(F.lit("0001"), F.lower(F.lpad(F.hex(F.col("key") + number), 16, "0")))
    _take(spark, lake, _changes(keys, "update", seq, turn), turn * 2 + (kind == "recent") + 1)


def _changes(keys: DataFrame, op: str, seq: object, turn: int) -> DataFrame:
    """Changes as the source gives them."""
    image = F.concat(
        F.lit('{"id":'),
        F.col("key"),
        F.lit(',"customer_id":'),
        F.col("key") % 5000,
        F.lit(f',"status":"state {turn}","total":12.30,"placed_at":"2026-11-16T00:00:00+00:00","note":"order number '),
        F.col("key"),
        F.lit('"}'),
    )
    columns = {
        "seq": seq,
        "id": F.concat(F.lit("x:"), F.col("key")),
        "op": F.lit(op),
        "schema": F.lit("public"),
        "table": F.lit("orders"),
        "version": F.lit(1),
        "row_id": F.col("key").cast("string"),
        "after": image,
        "at": F.current_timestamp(),
        "transaction": F.lit(None if op == "read" else 1000 + turn).cast("long"),
    }
    return keys.select(
        *(columns.get(field.name, F.lit(None).cast(field.dataType)).alias(field.name) for field in CHANGES.fields)  # type: ignore[attr-defined]
    )


def _take(spark: SparkSession, lake: Lake, changes: DataFrame, batch: int) -> None:
    versions = frozenset([ORDERS.version])
    table.take(
        *(spark, lake, {1: ORDERS}, changes),
        application="benchmark",
        batch=batch,
        versions=versions,
        whole=False,
        most=changes.count(),
    )
