"""A lake stays tidy, and what was purged is known to be gone."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from forge.errors import HistoryUnavailable, LakeError
from forge.pipeline import bronze, horizon, instants
from forge.pipeline.asof import table_as_of
from forge.pipeline.changes import seq
from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.maintain import maintain
from forge.pipeline.tables import load
from forge.values import Column
from tests.pipeline.by_hand import append, change

pytestmark = pytest.mark.long

NOW = datetime(2026, 2, 10, 12, tzinfo=UTC)
HISTORY = (
    "id long, _seq string, _end_seq string, _op string, _valid_from timestamp, _valid_to timestamp,"
    " _is_current boolean, _transaction long, _end_transaction long"
)


def ago(days: int) -> datetime:
    return NOW - timedelta(days=days)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two rows that were inserted ten days ago; one of them was changed four days ago, and again today."""
    lake = Lake(str(tmp_path_factory.mktemp("tidy")))
    changes = [
        change("0001", "snapshot", ago(11)),
        change(seq(1, 1), "insert", ago(10), row_id="1", transaction=101),
        change(seq(1, 2), "insert", ago(10), row_id="2", transaction=101),
        change(seq(1, 3), "update", ago(4), row_id="1", transaction=103),
        change(seq(1, 4), "update", ago(0), row_id="1", transaction=104),
    ]
    for some in (changes[:4], changes[4:]):
        append(spark, lake, some)
    versions: list[tuple[Any, ...]] = [
        (1, seq(1, 1), seq(1, 3), "insert", ago(10), ago(4), False, 101, 103),
        (1, seq(1, 3), seq(1, 4), "update", ago(4), ago(0), False, 103, 104),
        (1, seq(1, 4), None, "update", ago(0), None, True, 104, None),
        (2, seq(1, 2), None, "insert", ago(10), None, True, 101, None),
    ]
    for some_versions in (versions[:3], versions[3:]):
        frame = spark.createDataFrame(some_versions, HISTORY).coalesce(1)
        frame.write.format("delta").partitionBy("_is_current").mode("append").save(lake.history("public.orders"))
    bronze.keep(spark, lake, [Definition(1, "public", "orders", (Column("id", "bigint"),), ("id",))])
    instants.copy(spark, lake, [(ago(9), "102:102:"), (ago(1), "104:104:")])
    return lake


def test_small_files_are_put_together_and_lost_ones_removed(spark: SparkSession, lake: Lake) -> None:
    steps: list[str] = []
    done = {each.table: each for each in maintain(spark, lake, vacuum_hours=None, progress=steps.append)}
    assert (done["silver/history/public.orders"].removed, done["silver/history/public.orders"].added) == (2, 1)
    assert steps == [f"optimizing {table}" for table in done]
    lost = [Path(lake.changes, "day=2026-02-10", f"part-{name}.snappy.parquet") for name in ("old", "new")]
    for file, hours in zip(lost, (49, 47), strict=True):
        file.write_bytes(b"of a batch that was killed")
        os.utime(file, (time.time() - hours * 3600,) * 2)
    assert {each.what for each in maintain(spark, lake, optimize=False, vacuum_hours=48)} == {"vacuumed"}
    assert [file.exists() for file in lost] == [False, True]
    assert load(spark, lake.changes).count() == 5
    with pytest.raises(LakeError, match="younger than 24 hours"):
        maintain(spark, lake, vacuum_hours=1)


def test_what_is_past_retention_is_purged_and_that_is_known(spark: SparkSession, lake: Lake) -> None:
    assert {row["id"] for row in table_as_of(spark, lake, "orders", ago(8)).collect()} == {1, 2}
    done = maintain(spark, lake, optimize=False, vacuum_hours=None, bronze_days=7, now=NOW)
    assert [(each.table, each.removed) for each in done] == [("bronze/changes", 2)]
    left = load(spark, lake.changes).orderBy("seq").select("op").collect()
    assert [row["op"] for row in left] == ["snapshot", "update", "update"], "what happened to whole tables stays"
    assert horizon.horizons(spark, lake) == {horizon.CHANGES: datetime(2026, 2, 3, tzinfo=UTC)}
    assert {row["id"] for row in table_as_of(spark, lake, "orders", ago(8)).collect()} == {1, 2}, "from the history"
    done = maintain(spark, lake, optimize=False, vacuum_hours=None, history_days=3, now=NOW)
    assert [each.removed for each in done] == [1]
    with pytest.raises(HistoryUnavailable, match="kept since 2026-02-07"):
        table_as_of(spark, lake, "orders", ago(8))
    assert {row["id"] for row in table_as_of(spark, lake, "orders", ago(1)).collect()} == {1, 2}
