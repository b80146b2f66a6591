"""Results of comparing a lake with its database, stored as one row per comparison."""

from datetime import UTC, datetime
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import BooleanType, LongType, StructField, StructType, TimestampType

from forge.pipeline import ledger
from forge.pipeline.bronze import number
from forge.pipeline.lake import Lake
from forge.pipeline.ledger import LedgerEntry

SCHEMA: Final = StructType(
    [
        StructField("batch", LongType(), False),
        StructField("equal", BooleanType(), False),
        StructField("at", TimestampType(), False),
    ]
)


def note(spark: SparkSession, lake: Lake, equal: bool, entry: LedgerEntry | None = None) -> None:
    """Store the result of a comparison of all tables after a batch; default: the newest batch."""
    entry = entry or ledger.last(spark, lake)
    assert entry is not None
    row = (number(entry.run, entry.batch), equal, datetime.now(UTC))
    spark.createDataFrame([row], SCHEMA).coalesce(1).write.format("delta").mode("append").save(lake.checks)
