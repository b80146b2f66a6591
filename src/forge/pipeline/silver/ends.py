"""Ends of a whole table: a truncate, or a snapshot, which replaces the table's content. All ends are kept.

A change may arrive after a later end, so the ends of a table are needed as long as its history grows. They are few and
stored in one small table of the lake, which may hold an end twice: only its `seq` matters.
"""

import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from forge.pipeline.lake import Lake
from forge.pipeline.tables import exists, load

OPS: Final = ("truncate", "snapshot")
ENDS: Final = StructType(
    [
        StructField("table", StringType(), False),
        StructField("seq", StringType(), False),
        StructField("at", TimestampType(), False),
        StructField("transaction", LongType()),
    ]
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_one_creates = threading.Lock()


class End(msgspec.Struct, frozen=True):
    """Every row alive before `seq` ends there.

    >>> End("0001", datetime(2026, 1, 1, tzinfo=UTC)).micros
    1767225600000000
    """

    seq: str
    at: datetime
    transaction: int | None = None

    @property
    def micros(self) -> int:
        return (self.at - _EPOCH) // _MICROSECOND


def ends(changes: DataFrame) -> list[End]:
    """Return the ends among the changes of one table, in order."""
    return _collected(changes.where(F.col("op").isin(*OPS)))


def known(spark: SparkSession, lake: Lake, table: str) -> list[End]:
    """Return the stored ends of a table, in order."""
    path = path_of(lake)
    return _collected(load(spark, path).where(F.col("table") == table)) if exists(spark, path) else []


def keep(spark: SparkSession, lake: Lake, table: str, new: Iterable[End]) -> None:
    """Store ends of a table."""
    rows = [(table, end.seq, end.at, end.transaction) for end in new]
    if rows:
        frame = spark.createDataFrame(rows, ENDS).coalesce(1)
        with _one_creates:
            frame.write.format("delta").mode("append").save(path_of(lake))


def path_of(lake: Lake) -> str:
    return f"{lake.path.rstrip('/')}/silver/ends"


def _collected(rows: DataFrame) -> list[End]:
    """Collect ends with times as integer microseconds: a time returned by Spark has no zone."""
    found = rows.select("seq", F.unix_micros("at").alias("micros"), "transaction").distinct().collect()
    unsorted = {row["seq"]: End(row["seq"], _EPOCH + row["micros"] * _MICROSECOND, row["transaction"]) for row in found}
    return [unsorted[seq] for seq in sorted(unsorted)]
