"""Rows that did not fit are kept once, whatever is done again."""

from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from forge.pipeline.lake import Lake
from forge.pipeline.silver import quarantine
from forge.pipeline.silver.quarantine import QuarantineCount
from forge.pipeline.silver.rows import MISFITS
from forge.pipeline.tables import load


def misfits(spark: SparkSession, table: str, *reasons: str) -> DataFrame:
    at = datetime(2026, 1, 31, tzinfo=UTC)
    rows = [
        (f"{number:04}", f"{table}:{number}", "public", table, 1, "insert", "price", reason, "{}", at)
        for number, reason in enumerate(reasons)
    ]
    return spark.createDataFrame(rows, MISFITS)


def test_misfits_are_kept_once_and_counted_by_kind(spark: SparkSession, lake: Lake) -> None:
    assert quarantine.counts(spark, lake) == []
    overflow, late = (
        "numeric field overflow: 1 does not fit decimal(2,2)",
        "time out of range: infinity does not fit date",
    )
    quarantine.append(spark, lake, misfits(spark, "orders", overflow, late), "app", 1)
    # Two tables of a batch, and a batch that is done again with more than before.
    quarantine.append(spark, lake, misfits(spark, "lines", late), "app", 1)
    quarantine.append(spark, lake, misfits(spark, "orders", overflow, late, overflow), "app", 1)
    assert quarantine.counts(spark, lake) == [
        QuarantineCount("public.orders", "numeric field overflow", 2),
        QuarantineCount("public.lines", "time out of range", 1),
        QuarantineCount("public.orders", "time out of range", 1),
    ]
    assert load(spark, lake.quarantine).schema.fieldNames() == MISFITS.fieldNames()
