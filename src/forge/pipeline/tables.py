"""Small things about Delta tables at a path."""

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession


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
