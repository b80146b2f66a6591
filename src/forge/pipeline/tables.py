"""Helpers for Delta tables at a path, and for times independent of the session's time zone."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, overload

from delta import exceptions
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, TimestampType

CONFLICTS: Final = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.DeltaConcurrentModificationException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)
"""Delta's errors for a concurrent write to the table; in Python they share no base class."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def exists(spark: SparkSession, path: str) -> bool:
    """Whether there is a Delta table."""
    return DeltaTable.isDeltaTable(spark, path)


def load(spark: SparkSession, path: str) -> DataFrame:
    """Return the table's present rows."""
    return spark.read.format("delta").load(path)


def append_once(
    frame: DataFrame, path: str, application: str, version: int, *partitions: str, metadata: str | None = None
) -> None:
    """Append the rows, unless this application has already written this version or a later one; add new columns."""
    writer = frame.write.format("delta").mode("append").option("mergeSchema", "true")
    if metadata is not None:
        writer = writer.option("userMetadata", metadata)
    if partitions:
        writer = writer.partitionBy(*partitions)
    writer.option("txnAppId", application).option("txnVersion", version).save(path)


def micros(column: str) -> Column:
    """Convert a time to microseconds: a time returned by Spark has no zone."""
    return F.unix_micros(column).alias(column)


def day_of(column: str) -> Column:
    """Return the UTC day of a time, independent of the session's time zone."""
    return F.expr(f"date_add(DATE '1970-01-01', CAST(floor(unix_seconds({column}) / 86400) AS INT))").alias("day")


def rows(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of a frame, part by part to bound memory; times are in UTC, with their zone."""
    times = {field.name: field.dataType for field in frame.schema if _has_times(field.dataType)}
    quoted = {name: F.col("`" + name.replace("`", "``") + "`") for name in times}
    numbers = {name: _numbers(quoted[name], type) for name, type in times.items()}
    for row in frame.withColumns(numbers).toLocalIterator():
        found = row.asDict(recursive=True)
        yield found | {name: _times(found[name]) for name in times}


def _has_times(type: Any) -> bool:
    return isinstance(type, TimestampType) or (isinstance(type, ArrayType) and _has_times(type.elementType))


def _numbers(value: Column, type: Any) -> Column:
    if isinstance(type, ArrayType):
        return F.transform(value, lambda item: _numbers(item, type.elementType))
    return F.unix_micros(value)


def _times(number: Any) -> Any:
    return [_times(item) for item in number] if isinstance(number, list) else of_micros(number)


@overload
def of_micros(number: int) -> datetime: ...


@overload
def of_micros(number: None) -> None: ...


@overload
def of_micros(number: int | None) -> datetime | None: ...


def of_micros(number: int | None) -> datetime | None:
    """Convert the microseconds of `micros` back to a time.

    >>> of_micros(1767225600000001)
    datetime.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=datetime.timezone.utc)
    """
    return None if number is None else _EPOCH + timedelta(microseconds=number)
