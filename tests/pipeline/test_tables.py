"""Times are the same in every zone, and what Delta raises when two write is known."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from forge.errors import LakeError
from forge.pipeline import bronze
from forge.pipeline.changes import CHANGES
from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.silver import table
from forge.pipeline.tables import CONFLICTS, exists, load, rows
from forge.values import Column
from tests.pipeline.by_hand import change, frame


@pytest.fixture
def tokyo(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A session in another zone than UTC, on a machine in a third, where clocks are turned back in November."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", str(before))


def test_days_and_times_do_not_depend_on_where_somebody_is(spark: SparkSession, lake: Lake, tokyo: None) -> None:
    twice = [datetime(2026, 11, 1, hour, 30, tzinfo=UTC) for hour in (5, 6)]
    times = [datetime(2026, 1, 31, 23, 59, 59, 999_999, tzinfo=UTC), datetime(1969, 12, 31, 23, tzinfo=UTC), *twice]
    changes = frame(spark, [change(f"{n}", "insert", at) for n, at in enumerate(times)]).select(*CHANGES.names)
    bronze.append(changes, lake, "tests", 1, 0)
    found = load(spark, lake.changes).orderBy("seq")
    assert [row["day"] for row in found.collect()] == [date(2026, 1, 31), date(1969, 12, 31), *[date(2026, 11, 1)] * 2]
    listed = found.select(
        "at", F.array("at", F.lit(None)).alias("odd `name`.x"), F.lit(None).cast("timestamp").alias("n")
    )
    assert list(rows(listed)) == [{"at": at, "odd `name`.x": [at, None], "n": None} for at in times]


def test_two_tables_of_one_name_are_refused() -> None:
    one, other = Definition(1, "a.b", "c", ()), Definition(2, "a", "b.c", ())
    bronze._check_names([one, Definition(3, "a.b", "c", ())])
    with pytest.raises(LakeError, match=r"two tables are called a\.b\.c"):
        bronze._check_names([one, other])


def test_a_definition_that_nobody_knows_is_named_before_anything_is_written(spark: SparkSession, lake: Lake) -> None:
    known = Definition(1, "public", "orders", (Column("id", "bigint"),), ("id",))
    changes = frame(spark, [change("1", "insert", datetime(2026, 1, 31, tzinfo=UTC), version=2)])
    with pytest.raises(LakeError, match="version 2"):
        table.take(spark, lake, {1: known}, changes, application="tests", batch=0, versions=frozenset({1, 2}))
    assert not exists(spark, lake.history("public.orders"))


def test_a_conflict_of_delta_is_known(spark: SparkSession, tmp_path: Path) -> None:
    path, began, gate = str(tmp_path / "table"), tmp_path / "began", tmp_path / "gate"
    spark.range(10).coalesce(1).write.format("delta").save(path)

    @F.udf("long", useArrow=False)
    def held_up(number: int) -> int:
        began.touch()
        deadline = time.monotonic() + 60
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return number

    def merge() -> None:
        source = spark.range(5).coalesce(1).select(held_up("id").alias("id"))
        table = DeltaTable.forPath(spark, path).alias("t").merge(source.alias("s"), "t.id = s.id")
        table.whenMatchedDelete().execute()

    with ThreadPoolExecutor(1) as pool:
        merging = pool.submit(merge)
        deadline = time.monotonic() + 60
        while not began.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        DeltaTable.forPath(spark, path).delete("id = 3")
        gate.touch()
        with pytest.raises(CONFLICTS):
            merging.result()
