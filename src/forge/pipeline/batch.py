"""Merge ticks that are in bronze: the silver of each table, redactions, gold if it is due, and the ledger.

The ticks that are merged together are a batch, with the number of its last tick. A batch that was interrupted is merged
again, whichever ticks it has then: every step is idempotent for any set of changes.

Tables are independent of each other, so several are merged in parallel. When a table fails, the batch fails and is
retried as a whole; every step that was already done is skipped.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forge.change import Op
from forge.changelog.reader import START
from forge.cursor import Snapshot
from forge.pipeline import bronze, instants, ledger, redaction
from forge.pipeline.about import LakeRun
from forge.pipeline.definitions import Definition
from forge.pipeline.gold import Gold, daily
from forge.pipeline.gold.building import Models
from forge.pipeline.gold.models import load
from forge.pipeline.lake import Lake
from forge.pipeline.ledger import LedgerEntry
from forge.pipeline.silver import table
from forge.pipeline.silver.types import Types
from forge.pipeline.source.offset import TableShare
from forge.pipeline.tables import of_micros
from forge.pipeline.ticks import Tick
from forge.postgres.connection import Connection

AT_A_TIME: Final = 3
"""The number of tables that are merged in parallel: one plans while another computes."""

PAGE: Final = 50_000
"""The number of instants that are copied per page."""

_INSTANTS: Final = (
    "SELECT i.at, i.snapshot::text FROM forge.instant i WHERE i.at > coalesce(%s, '-infinity'::timestamptz)"
    " ORDER BY i.at LIMIT %s"
)
ROWS: Final = tuple(map(str, (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)))


class TableChanges(msgspec.Struct, frozen=True):
    """The changes of one table in a batch."""

    name: str
    versions: tuple[int, ...]
    changes: int
    whole: bool
    """Whether an event of the whole table is among the changes."""
    redacted: bool = False
    """Whether the values of some rows must be redacted."""


class Batches:
    """Process the batches of one run, one after the other."""

    def __init__(
        self, spark: SparkSession, lake: Lake, about: LakeRun, connection: Connection, models: str | None, types: Types
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._about = about
        self._connection = connection
        self._models = Models(spark, lake, load(models)) if models is not None else None
        self._types = types
        self._definitions: dict[int, Definition] = {}
        self._gold = Gold(spark, lake)
        self._began: Snapshot | None = None

    def take(self, ticks: Sequence[Tick], began: float) -> LedgerEntry:
        """Merge consecutive ticks and return their ledger entry."""
        spark, lake, about = self._spark, self._lake, self._about
        offset, batch = ticks[-1].offset, ticks[-1].number
        kept = bronze.between(spark, lake, ticks[0].batch, ticks[-1].batch)
        found, newest, days = found_in(kept)
        versions = [version for each in found for version in each.versions]
        self._definitions = bronze.learn(
            spark, lake, self._connection, self._definitions or bronze.definitions(spark, lake), versions
        )
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            quarantined = sum(pool.map(lambda each: self._table(each, kept, batch), found))
        for each in found:
            if each.redacted:
                redaction.obey(spark, lake, self._known(each), kept, self._types)
        cursor = offset.cursor
        whole = cursor.last is None and not offset.waiting and not offset.stale
        self._copy_instants(ticks)
        self._gold.take(days)
        if self._models is not None:
            self._models.build(kept, ticks[-1].batch, ticks[0].batch - 1)
        entry = LedgerEntry(
            about.run,
            batch,
            cursor,
            offset.generation,
            whole,
            sum(each.changes for each in found),
            quarantined,
            {each.name: each.changes for each in found},
            newest,
            time.monotonic() - began,
            datetime.now(UTC),
        )
        ledger.record(spark, lake, about.application, entry, [tick.offset for tick in ticks])
        return entry

    def rest(self) -> None:
        """Run deferred work that is due; called while the stream is idle."""
        self._gold.catch_up()

    def finish(self) -> None:
        """Run all deferred work."""
        self._gold.flush()

    def _table(self, found: TableChanges, changes: DataFrame, batch: int) -> int:
        """Merge the changes of one table into silver; return the number of rows that did not fit."""
        known = self._known(found)
        one = next(iter(known.values()))
        mine = changes.where((F.col("schema") == one.schema) & (F.col("table") == one.table))
        return table.take(
            self._spark,
            self._lake,
            known,
            mine,
            application=f"{self._about.application}-{found.name}",
            batch=batch,
            versions=frozenset(found.versions),
            whole=found.whole,
            most=found.changes,
            types=self._types,
        )

    def _known(self, found: TableChanges) -> dict[int, Definition]:
        return {version: each for version, each in self._definitions.items() if each.name == found.name}

    def _copy_instants(self, ticks: Sequence[Tick]) -> None:
        """Copy the recorded instants whose snapshot the lake has reached, page by page."""
        spark, lake, offset = self._spark, self._lake, ticks[-1].offset
        since, began = instants.newest(spark, lake), self._first_snapshot(ticks)
        while rows := self._connection.execute(_INSTANTS, (since, PAGE)).fetchall():
            covered = instants.covered(rows, offset.cursor.snapshot)
            instants.copy(spark, lake, instants.following(covered, began))
            if len(covered) < len(rows) or len(rows) < PAGE:
                break
            since = rows[-1][0]

    def _first_snapshot(self, ticks: Sequence[Tick]) -> Snapshot:
        """Return the snapshot that the run began with; before it, this run did not follow the log."""
        if self._began is None:
            pieces = [piece for tick in ticks for piece in tick.offset.pieces]
            shares = [Snapshot.parse(piece.snapshot) for piece in pieces if isinstance(piece, TableShare)]
            known = ledger.first_snapshot(self._spark, self._lake, self._about.run)
            self._began = known or next(iter(shares), START)
        return self._began


def found_in(changes: DataFrame) -> tuple[list[TableChanges], datetime | None, set[date]]:
    """Return the changes of a batch per table, the largest first, the write time of its newest change, and the days of
    changes that gold counts."""
    rows = (
        changes.groupBy("schema", "table")
        .agg(
            F.collect_set("version").alias("versions"),
            F.count_if(F.col("op").isin(*ROWS)).alias("rows"),
            F.count("*").alias("all"),
            F.count_if(F.col("op") == Op.REDACT).alias("redactions"),
            F.max(F.unix_micros("at")).alias("newest"),
            F.collect_set(F.when(F.col("op").isin(*daily.OPS), F.col("day"))).alias("days"),
        )
        .collect()
    )
    found = [
        TableChanges(
            f"{row['schema']}.{row['table']}",
            tuple(row["versions"]),
            row["rows"],
            row["all"] > row["rows"] + row["redactions"],
            row["redactions"] > 0,
        )
        for row in rows
    ]
    newest = of_micros(max((row["newest"] for row in rows), default=None))
    days = {day for row in rows for day in row["days"]}
    return sorted(found, key=lambda each: -each.changes), newest, days
