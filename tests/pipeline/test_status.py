"""The status of a lake is told from metadata; what somebody should look at is said in a line each."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from forge.pipeline import bronze, instants
from forge.pipeline.definitions import Definition
from forge.pipeline.gold.states import STATE, STATES
from forge.pipeline.lake import Lake
from forge.pipeline.silver.rows import MISFITS
from forge.pipeline.status import Size, status
from forge.values import Column
from tests.pipeline.by_hand import append, change

pytestmark = pytest.mark.long

NOON = datetime(2026, 2, 10, 12, tzinfo=UTC)


def test_an_empty_lake_has_a_status(spark: SparkSession, lake: Lake) -> None:
    found = status(spark, lake)
    assert (found.changes, found.tables, found.batches, found.last_batch) == (Size(), [], 0, None)
    assert list(found.problems()) == []


def test_status_counts_what_is_there(spark: SparkSession, lake: Lake) -> None:
    append(spark, lake, [change(f"0{number}", "insert", NOON, row_id=str(number)) for number in range(5)])
    history = spark.range(4).repartition(2)
    history.write.format("delta").option("delta.enableDeletionVectors", "true").save(lake.history("public.orders"))
    spark.sql(f"DELETE FROM delta.`{lake.history('public.orders')}` WHERE id = 3")
    bronze.keep(spark, lake, [Definition(1, "public", "orders", (Column("id", "bigint"),), ("id",))])
    instants.copy(spark, lake, [(NOON, "102:102:"), (NOON.replace(hour=13), "104:104:")])
    misfit = ("0", "0", "public", "orders", 1, "insert", "total", "overflow: total does not fit", "{}", NOON)
    spark.createDataFrame([misfit], MISFITS).coalesce(1).write.format("delta").save(lake.quarantine)
    failed = ("spent", "spent.sql", "", "failed", 7, NOON, 3, 2, "spent.sql:2: no such column")
    spark.createDataFrame([failed], STATES).coalesce(1).write.format("delta").save(lake.gold(STATE))
    found = status(spark, lake)
    assert (found.changes.rows, found.changes.files) == (5, 1)
    (orders,) = found.tables
    assert (orders.name, orders.current_rows, orders.history_rows, orders.quarantined) == ("public.orders", 0, 3, 1)
    assert orders.files == 2
    assert orders.bytes > 500
    assert (found.first_instant, found.last_instant, found.kept_since) == (NOON, NOON.replace(hour=13), None)
    assert list(found.problems()) == [
        "1 row of public.orders did not fit and is in quarantine",
        "a model has failed 3 times: spent.sql:2: no such column",
    ]
