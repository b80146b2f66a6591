"""Small things about Delta tables at a path."""

from datetime import UTC, datetime, timedelta
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def exists(spark: SparkSession, path: str) -> bool:
    """Whether there is a Delta table."""
    return DeltaTable.isDeltaTable(spark, path)


def load(spark: SparkSession, path: str) -> DataFrame:
    """The table as it is now."""
    return spark.read.format("delta").load(path)


def append_once(frame: DataFrame, path: str, application: str, version: int, *partitions: str) -> None:
    """Append the rows, unless this application has written this version, or a later one, before."""
    writer = frame.write.format("delta").mode("append")
    if partitions:
        writer = writer.partitionBy(*partitions)
    writer.option("txnAppId", application).option("txnVersion", version).save(path)


def micros(column: str) -> Column:
    """A time as a number: one that Spark hands over as a time says nothing of its zone."""
    return F.unix_micros(column).alias(column)


def of_micros(number: int | None) -> datetime | None:
    """The time that `micros` made a number of.

    >>> of_micros(1767225600000001)
    datetime.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=datetime.timezone.utc)
    """
    return None if number is None else _EPOCH + timedelta(microseconds=number)
