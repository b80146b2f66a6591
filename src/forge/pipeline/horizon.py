"""The horizon of a lake: what was purged from bronze and from the history of each table, noted before the purge.

A note means: everything older than `until` is gone, or may be. Code that computes from bronze (a replay, gold) or
answers from a history (as-of) checks the horizon first.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from forge.pipeline.lake import Lake
from forge.pipeline.tables import exists, load, of_micros

CHANGES: Final = "*"
"""The key for bronze; other keys are names of tables and mean their history."""

SCHEMA: Final = StructType([StructField("what", StringType(), False), StructField("until", TimestampType(), False)])


def note(spark: SparkSession, lake: Lake, what: str, until: datetime) -> None:
    """Note that everything older is about to be purged."""
    spark.createDataFrame([(what, until)], SCHEMA).coalesce(1).write.format("delta").mode("append").save(lake.horizon)


def horizons(spark: SparkSession, lake: Lake) -> dict[str, datetime]:
    """Return the times from which bronze and the histories are complete; tables never purged have no entry."""
    if not exists(spark, lake.horizon):
        return {}
    rows = load(spark, lake.horizon).groupBy("what").agg(F.max(F.unix_micros("until")).alias("until")).collect()
    return {row["what"]: of_micros(row["until"]) for row in rows}
