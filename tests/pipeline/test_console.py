"""What the console reads of a lake without Spark is what Spark says of it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from forge.cursor import Cursor, LogIdentity, Snapshot
from forge.pipeline import bronze, checks, ledger
from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.source.offset import Offset
from forge.pipeline.status import status
from forge.serve.console.lake import RUN
from forge.serve.console.lake import ConsoleLake as Seen
from forge.values import Column

pytestmark = pytest.mark.long

NOON = datetime(2026, 2, 10, 12, tzinfo=UTC)
CURSOR = Cursor(LogIdentity("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "73", 1), Snapshot(5, 5))


def test_a_lake_is_seen_as_it_is(spark: SparkSession, lake: Lake) -> None:
    bronze.keep(spark, lake, [Definition(1, "public", "odd name", (Column("id", "bigint"),), ("id",))])
    for folder in (lake.current("public.odd name"), lake.history("public.odd name")):
        rows = spark.range(10).repartition(2)
        rows.write.format("delta").option("delta.enableDeletionVectors", "true").save(folder)
    seen = Seen(Path(lake.path))
    before = seen.look()
    assert (before.batches, before.recent, before.tables[0]["current_rows"]) == (0, [], 10)
    spark.sql(f"DELETE FROM delta.`{lake.current('public.odd name')}` WHERE id = 3")
    for batch in range(2):
        entry = ledger.LedgerEntry(1, batch, CURSOR, 1, True, 9, 0, {"public.odd name": 9}, NOON, 1.5, NOON)
        ledger.record(spark, lake, "app", entry, [Offset(CURSOR, 1)])
    checks.note(spark, lake, True)
    told = status(spark, lake)
    # what is read on from where it was left, and what is read again
    for looked in (seen.look(), Seen(Path(lake.path)).look()):
        assert (looked.batches, looked.recent[0]["at"], looked.cursor) == (told.batches, told.last_at, CURSOR)
        assert (looked.recent[0]["newest"], looked.recent[0]["batch"]) == (NOON, RUN + 1)
        assert [batch for batch, (equal, _) in looked.checks.items() if equal] == [RUN + 1]
        assert [tuple(each.values()) for each in looked.tables] == [
            (each.name, each.current_rows, each.history_rows, each.bytes, each.files, each.quarantined)
            for each in told.tables
        ]
        assert looked.tables[0]["current_rows"] == 9
