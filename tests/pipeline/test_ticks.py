"""Ticks: bronze is ahead of silver, positions survive, and a lake of an older Forge goes on."""

import threading
import time

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from forge.cursor import Cursor, LogIdentity, Snapshot
from forge.errors import LakeError
from forge.pipeline import about, bronze, ledger, ticks
from forge.pipeline.compare import compare
from forge.pipeline.lake import Lake
from forge.pipeline.run import LakeSettings, pipeline, together
from forge.pipeline.silver.types import Types
from forge.pipeline.source import register
from forge.pipeline.source.offset import Offset, TableShare
from forge.pipeline.tables import exists, load
from forge.pipeline.ticks import Tick
from forge.postgres.connection import Connection

TABLE = "public.orders"


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("SELECT forge.current_identity()")
    connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, status text)")
    connection.execute("INSERT INTO orders SELECT i, 'old' FROM generate_series(1, 9) i")
    connection.execute("SELECT forge_enable_reactivity('orders')")
    connection.execute("UPDATE orders SET status = 'paid' WHERE id <= 3")
    return connection


def every_change_once(spark: SparkSession, lake: Lake, connection: Connection) -> bool:
    taken = [row[0] for row in load(spark, lake.changes).where("transaction IS NOT NULL").select("id").collect()]
    logged = connection.execute("SELECT count(*) FROM forge.forge_event_log").fetchone()
    return (len(set(taken)),) == (len(taken),) == logged


@pytest.mark.timeout(900)
@pytest.mark.contract("X10")
def test_bronze_is_ahead_of_silver_until_ticks_are_merged(
    spark: SparkSession, shop: Connection, database: str, lake: Lake
) -> None:
    """A run that stops before it merges leaves its ticks in bronze; the next one merges them."""

    def logged() -> bool:
        rows = shop.execute("SELECT count(*) FROM forge.forge_event_log").fetchone()
        return exists(spark, lake.changes) and rows == (
            load(spark, lake.changes).where("transaction IS NOT NULL").count(),
        )

    with pipeline(spark, database, lake, LakeSettings(merge_after=3600)) as running:
        thread = threading.Thread(target=running.follow, args=(0.1,))
        thread.start()
        deadline = time.monotonic() + 120
        while not logged() and time.monotonic() < deadline:
            time.sleep(0.2)
        shop.execute("DELETE FROM orders WHERE id = 9")
        while not logged() and time.monotonic() < deadline:
            time.sleep(0.2)
        running.stop()
        thread.join(120)
    assert logged()
    assert not exists(spark, lake.current(TABLE)), "nothing was due"
    assert ledger.last(spark, lake) is None

    with pipeline(spark, database, lake) as running:
        running.once()
    assert compare(spark, lake, database).equal
    assert every_change_once(spark, lake, shop)
    whose = about.need(spark, lake)
    assert len(ticks.since(spark, lake, whose, None)) >= 3, "the snapshot, its changes, the delete"
    kept = ledger.offset(spark, lake, whose.run)
    assert kept is not None
    assert kept[1] == ticks.since(spark, lake, whose, None)[-1].offset

    # Of two writers of the same tick the second one finds out.
    offset, number = kept[1], kept[0]
    nothing = load(spark, lake.changes).drop("day", "batch").limit(0)
    with pytest.raises(LakeError, match="another run writes to the lake"):
        ticks.append(spark, lake, whose, nothing, number, offset)


@pytest.mark.timeout(900)
@pytest.mark.contract("X10")
def test_a_lake_that_was_kept_as_a_stream_goes_on(
    spark: SparkSession, shop: Connection, database: str, lake: Lake
) -> None:
    """An older Forge wrote a checkpoint, ending with a batch in bronze that was not in silver and another planned."""
    whose = about.begin(spark, lake, shop, generation=0, start="history", tables=None, types=Types())

    def into_bronze(changes: DataFrame, batch: int) -> None:
        if batch == 1:
            raise RuntimeError("killed")
        bronze.append(changes, lake, whose.application, whose.run, batch)

    register(spark)
    stream = spark.readStream.format("forge").option("url", database).option("start", "history").load()
    writer = stream.writeStream.foreachBatch(into_bronze).option("checkpointLocation", lake.checkpoint(whose.run))
    with pytest.raises(StreamingQueryException, match="killed"):
        writer.trigger(availableNow=True).start().awaitTermination()
    assert load(spark, lake.changes).select("batch").distinct().count() == 1
    shop.execute("UPDATE orders SET status = 'sent' WHERE id = 5")
    with pipeline(spark, database, lake) as running:
        running.once()
    assert compare(spark, lake, database).equal
    assert every_change_once(spark, lake, shop)
    assert load(spark, lake.changes).where("op = 'snapshot'").count() == 1, "the table was not read again"


def tick(number: int, rows: int, generation: int | None = None) -> Tick:
    cursor = Cursor(LogIdentity("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "73", 1), Snapshot(5, 5))
    shares = () if generation is None else (TableShare(3, "5:5:", "", generation, 0, 1, rows),)
    return Tick(1, number, Offset(cursor, generation or 1, pieces=shares), rows)


def test_ticks_of_one_snapshot_at_most_are_merged_together() -> None:
    some = [tick(0, 5, 1), tick(1, 5, 1), tick(2, 5), tick(3, 5, 2), tick(4, 5)]
    assert [each.number for each in together(some, 100)] == [0, 1, 2]
    assert [each.number for each in together(some[3:], 100)] == [3, 4]
    assert [each.number for each in together(some, 10)] == [0, 1]
    assert [each.number for each in together(some, 1)] == [0], "at least one"
