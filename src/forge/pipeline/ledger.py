"""Ledger of batches: one row per batch, written after everything else of the batch is in the lake.

The newest row is the lake's position: `cursor` is that of the stream's checkpoint, and when `whole` is true, all tables
of the lake equal the database as of the cursor's snapshot.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from forge.cursor import Cursor, Snapshot
from forge.pipeline.bronze import number
from forge.pipeline.lake import Lake
from forge.pipeline.source.offset import Offset, TableShare
from forge.pipeline.tables import append_once, exists, load, micros, of_micros

SCHEMA: Final = StructType(
    [
        StructField("batch", LongType(), False),
        StructField("run", IntegerType(), False),
        StructField("cursor", StringType(), False),
        StructField("generation", IntegerType(), False),
        StructField("snapshot", StringType()),
        StructField("whole", BooleanType(), False),
        StructField("changes", LongType(), False),
        StructField("quarantined", LongType(), False),
        StructField("tables", StringType(), False),
        StructField("newest", TimestampType()),
        StructField("seconds", DoubleType(), False),
        StructField("at", TimestampType(), False),
        StructField("offset", StringType()),
    ]
)
"""`snapshot` is set where a generation begins: the snapshot in which its rows were read. `tables` is a JSON object of
the number of changes per table; `newest` is the write time of the newest change of the batch. `offset` is the stream's
offset after the batch, for lakes whose bronze has lost the commit that says it."""


class LedgerEntry(msgspec.Struct, frozen=True):
    """A batch that is in the lake."""

    run: int
    batch: int
    cursor: Cursor
    generation: int
    whole: bool
    changes: int
    quarantined: int
    tables: dict[str, int]
    newest: datetime | None
    seconds: float
    at: datetime

    @property
    def name(self) -> str:
        """The batch's name in messages.

        >>> from forge.cursor import LogIdentity
        >>> cursor = Cursor(LogIdentity("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "73", 1), Snapshot(5, 5))
        >>> LedgerEntry(2, 7, cursor, 1, True, 0, 0, {}, None, 0.1, datetime(2026, 1, 1)).name
        '2.7'
        """
        return f"{self.run}.{self.batch}"


def record(spark: SparkSession, lake: Lake, application: str, entry: LedgerEntry, offsets: Sequence[Offset]) -> None:
    """Record that a batch is in the lake, with the offsets after each of its ticks; repeated calls add one row."""
    began = [piece.snapshot for offset in offsets for piece in offset.pieces if isinstance(piece, TableShare)]
    row = (
        number(entry.run, entry.batch),
        entry.run,
        str(entry.cursor),
        entry.generation,
        began[0] if began else None,
        entry.whole,
        entry.changes,
        entry.quarantined,
        msgspec.json.encode(entry.tables).decode(),
        entry.newest,
        entry.seconds,
        datetime.now(UTC),
        msgspec.json.encode(offsets[-1].dump()).decode(),
    )
    frame = spark.createDataFrame([row], SCHEMA).coalesce(1)
    append_once(frame, lake.batches, f"{application}-batches", entry.batch)


def last(spark: SparkSession, lake: Lake, *, whole: bool = False) -> LedgerEntry | None:
    """Return the newest batch, or the newest after which the lake was whole."""
    if not exists(spark, lake.batches):
        return None
    rows = load(spark, lake.batches).withColumns({"newest": micros("newest"), "at": micros("at")})
    row = (rows.where("whole") if whole else rows).orderBy(F.col("batch").desc()).first()
    return None if row is None else _entry(row)


def offset(spark: SparkSession, lake: Lake, run: int) -> tuple[int, Offset] | None:
    """Return the number of a run's newest batch, and the offset after it; None when no row of the run has one."""
    if not exists(spark, lake.batches) or "offset" not in load(spark, lake.batches).columns:
        return None
    rows = load(spark, lake.batches).where(F.col("run") == run).where("offset IS NOT NULL")
    row = rows.orderBy(F.col("batch").desc()).select("batch", "offset").first()
    return None if row is None else (row[0] - number(run, 0), Offset.load(msgspec.json.decode(row[1])))


def generations(spark: SparkSession, lake: Lake) -> list[Cursor]:
    """Return the snapshots that the generations began with, in order, each with the identity of its log.

    A generation without a completed batch has the snapshot of the next one: no change belongs to it.
    """
    if not exists(spark, lake.batches):
        return []
    rows = load(spark, lake.batches).where("snapshot IS NOT NULL")
    first = rows.groupBy("generation").agg(F.first("cursor").alias("cursor"), F.first("snapshot").alias("snapshot"))
    found: list[Cursor] = []
    for row in first.orderBy("generation").collect():
        began = Cursor(Cursor.parse(row["cursor"]).log, Snapshot.parse(row["snapshot"]))
        found += [began] * (row["generation"] - len(found))
    return found


def first_snapshot(spark: SparkSession, lake: Lake, run: int) -> Snapshot | None:
    """Return the snapshot in which a run first read tables; None before that."""
    if not exists(spark, lake.batches):
        return None
    rows = load(spark, lake.batches).where(F.col("run") == run).where("snapshot IS NOT NULL")
    row = rows.orderBy("batch").select("snapshot").first()
    return None if row is None else Snapshot.parse(row["snapshot"])


def _entry(row: Row) -> LedgerEntry:
    run = row["run"]
    return LedgerEntry(
        run,
        row["batch"] - number(run, 0),
        Cursor.parse(row["cursor"]),
        row["generation"],
        row["whole"],
        row["changes"],
        row["quarantined"],
        msgspec.json.decode(row["tables"], type=dict[str, int]),
        of_micros(row["newest"]),
        row["seconds"],
        of_micros(row["at"]),
    )
