"""How far back a lake goes: what was purged from bronze, and from the history of which table, noted before it is done.

A note that is there says: what is older than `until` is gone, or may be. Whoever computes from bronze (a replay, gold)
or answers from a history (as-of) asks here first.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from forge.pipeline.lake import Lake
from forge.pipeline.tables import exists, load, of_micros

CHANGES: Final = "*"
"""Stands for bronze, where a table's name stands for its history."""

SCHEMA: Final = StructType([StructField("what", StringType(), False), StructField("until", TimestampType(), False)])


def note(spark: SparkSession, lake: Lake, what: str, until: datetime) -> None:
    """Say that what is older is about to be purged."""
    spark.createDataFrame([(what, until)], SCHEMA).coalesce(1).write.format("delta").mode("append").save(lake.horizon)


def horizons(spark: SparkSession, lake: Lake) -> dict[str, datetime]:
    """From when on bronze, and the histories of tables, are whole; what was never purged is not in it."""
    if not exists(spark, lake.horizon):
        return {}
    rows = load(spark, lake.horizon).groupBy("what").agg(F.max(F.unix_micros("until")).alias("until")).collect()
    return {row["what"]: of_micros(row["until"]) for row in rows}
