"""The log into Parquet: through Forge's source, against Spark's own JDBC reader on the log with as many partitions."""

import shutil
from functools import partial
from pathlib import Path

from psycopg import conninfo
from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench import Bench, timed
from benchmarks.figures import Figure, at_least, figure, ratios
from benchmarks.lakes import CORES, place_orders, shop, sparked
from forge.pipeline.source import register

COLUMNS = (
    "id, rank, transaction_id::text, at, version, op::text, row_id, before::text, after::text, hidden::text,"
    " user_id, function_name, trace_id, context::text, db_user, application_name"
)


def run(bench: Bench) -> list[Figure]:
    """Rounds of both, one after the other; the first round of each warms Spark up and does not count."""
    events, rounds = (400_000, 2) if bench.quick else (2_000_000, 3)
    with shop() as (url, connection), sparked() as (spark, folder):
        bench.say(f"writing {events:,} changes")
        place_orders(connection, 1, events)
        connection.execute("ANALYZE forge.forge_event_log")
        bounds = connection.execute("SELECT min(id), max(id) + 1 FROM forge.forge_event_log").fetchone()
        assert bounds is not None
        ours, theirs = [], []
        for turn in range(rounds + 1):
            bench.say(f"the log into Parquet, round {turn} of {rounds}")
            theirs.append(timed(partial(_write, _jdbc(spark, url, bounds), folder / "jdbc")))
            ours.append(timed(partial(_write, _forge(spark, url), folder / "forge")))
    speeds = [events / seconds for seconds in ours[1:]]
    return [
        at_least(
            figure(
                "lake_source",
                f"{events:,} changes: speed over Spark's JDBC reader",
                ratios(theirs[1:], ours[1:]),
                "ratio",
            ),
            1.0,
        ),
        figure("lake_source", "Forge's source", speeds, "rate"),
        figure("lake_source", "Spark's JDBC reader", [events / seconds for seconds in theirs[1:]], "rate"),
    ]


def _forge(spark: SparkSession, url: str) -> DataFrame:
    register(spark)
    return spark.read.format("forge").option("url", url).option("numPartitions", CORES).load()


def _jdbc(spark: SparkSession, url: str, bounds: tuple[int, int]) -> DataFrame:
    return (
        spark.read.format("jdbc")
        .option("url", jdbc_url(url))
        .option("driver", "org.postgresql.Driver")
        .option("dbtable", f"(SELECT {COLUMNS} FROM forge.forge_event_log) log")
        .option("partitionColumn", "id")
        .option("lowerBound", bounds[0])
        .option("upperBound", bounds[1])
        .option("numPartitions", CORES)
        .option("fetchsize", 10_000)
        .load()
    )


def jdbc_url(url: str) -> str:
    """The same database as JDBC names it."""
    given = conninfo.conninfo_to_dict(url)
    return f"jdbc:postgresql://{given['host']}:{given['port']}/{given['dbname']}?user={given['user']}"


def _write(frame: DataFrame, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    frame.write.parquet(str(path))
