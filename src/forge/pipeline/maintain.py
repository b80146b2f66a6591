"""Maintenance of a lake: compact small files, remove unused files, purge data past its retention.

Invariants:

- A purge is noted before it is done (`forge.pipeline.horizon`), so replay and as-of detect what is missing.
- Whole-table events stay in bronze when their day is purged: as-of needs them, and they are small.
- History is kept forever unless `history_days` is given. Delta's own time travel ends with `vacuum_hours`; as-of does
  not use it.
- A table with a concurrent writer is skipped until the next maintenance.

Compaction goes by file size. Ordering by key is separate: Delta's Z-order rewrites the whole table each time, so it
runs only on request (`order`), for example weekly. It lets lookups by key read few files.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from forge.errors import LakeError
from forge.pipeline import horizon
from forge.pipeline.asof import WHOLE_TABLE, literal
from forge.pipeline.bronze import definitions
from forge.pipeline.gold.models import OWN
from forge.pipeline.gold.states import states
from forge.pipeline.lake import Lake
from forge.pipeline.silver import ends
from forge.pipeline.silver.layout import layout
from forge.pipeline.silver.rows import quoted
from forge.pipeline.tables import CONFLICTS, exists, load

LEAST_HOURS: Final = 24
"""A younger file may belong to a batch in progress, or to a reader."""

_RETENTION: Final = "delta.deletedFileRetentionDuration"
_UNLESS_TOLD: Final = "interval 168 hours"


class MaintenanceStep(msgspec.Struct, frozen=True):
    """A completed step on a table: `optimized`, `ordered`, `vacuumed`, `purged` or `skipped`."""

    table: str
    what: str
    seconds: float
    removed: int = 0
    """The number of files replaced by `added` files, or of rows purged."""
    added: int = 0

    @property
    def text(self) -> str:
        """
        >>> MaintenanceStep("bronze/changes", "optimized", 1.5, 12, 1).text
        'bronze/changes   12 files into 1   1.5 s'
        >>> MaintenanceStep("gold/who", "vacuumed", 0.5).text
        'gold/who   vacuumed   0.5 s'
        """
        said = {
            "optimized": f"{self.removed:,} files into {self.added:,}" if self.removed else "nothing to put together",
            "ordered": f"{self.removed:,} files into {self.added:,}, by key",
            "purged": f"purged of {self.removed:,} rows",
            "skipped": "left alone: it is being written",
        }
        return f"{self.table}   {said.get(self.what, self.what)}   {self.seconds:.1f} s"


def maintain(
    spark: SparkSession,
    lake: Lake,
    *,
    optimize: bool = True,
    order: bool = False,
    vacuum_hours: float | None = 168,
    bronze_days: int | None = None,
    history_days: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
    now: datetime | None = None,
) -> list[MaintenanceStep]:
    """Maintain all tables of a lake; `progress` is called before each step."""
    if vacuum_hours is not None and vacuum_hours < LEAST_HOURS:
        raise LakeError(
            f"files younger than {LEAST_HOURS} hours may be in use", fix=f"vacuum those older than {LEAST_HOURS} hours"
        )
    now = now or datetime.now(UTC)
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    work = _Work(spark, lake, progress)
    if bronze_days is not None:
        work.purge_bronze(midnight - timedelta(days=bronze_days))
    if history_days is not None:
        work.purge_histories(midnight - timedelta(days=history_days))
    if optimize or order:
        work.optimize(order)
    if vacuum_hours is not None:
        work.vacuum(vacuum_hours)
    return work.done


def paths(spark: SparkSession, lake: Lake) -> dict[str, str]:
    """Return the Delta tables of a lake, by their paths relative to it."""
    tables = sorted({each.name for each in definitions(spark, lake).values()})
    gold = [*OWN, *(state.model for state in states(spark, lake))]
    found = [lake.about, lake.batches, lake.changes, lake.definitions, lake.instants, lake.horizon]
    found += [lake.quarantine, ends.path_of(lake)]
    found += [path(table) for table in tables for path in (lake.current, lake.history)]
    found += [lake.gold(name) for name in gold]
    root = len(lake.path.rstrip("/")) + 1
    return {path[root:]: path for path in found if exists(spark, path)}


class _Work:
    def __init__(self, spark: SparkSession, lake: Lake, progress: Callable[[str], None]) -> None:
        self._spark = spark
        self._lake = lake
        self._progress = progress
        self._paths = paths(spark, lake)
        self.done: list[MaintenanceStep] = []

    def purge_bronze(self, until: datetime) -> None:
        """Drop whole days: remove their files and write the kept rows again."""
        if "bronze/changes" not in self._paths:
            return
        old = load(self._spark, self._lake.changes).where(F.col("day") < F.lit(until.date()))
        kept = F.col("row_id").isNull() & F.col("op").isin(*WHOLE_TABLE)
        with self._step("bronze/changes", "purging", "purged") as result:
            gone = old.where(~kept).count()
            result["removed"] = gone
            if gone:
                horizon.note(self._spark, self._lake, horizon.CHANGES, until)
                writer = old.where(kept).write.format("delta").mode("overwrite")
                writer.option("replaceWhere", f"day < '{until.date()}'").save(self._lake.changes)

    def purge_histories(self, until: datetime) -> None:
        """Delete the versions that ended before a time; earlier instants cannot be queried afterwards."""
        condition = f"NOT _is_current AND _valid_to < {literal(until)}"
        for place, path in self._paths.items():
            if not place.startswith("silver/history/"):
                continue
            table = self._names()[path]
            with self._step(place, "purging", "purged") as result:
                gone = load(self._spark, path).where(condition).count()
                result["removed"] = gone
                if gone:
                    horizon.note(self._spark, self._lake, table, until)
                    DeltaTable.forPath(self._spark, path).delete(condition)

    def optimize(self, order: bool) -> None:
        keys = self._keys() if order else {}
        for place, path in self._paths.items():
            key = keys.get(path, ())
            with self._step(place, "optimizing", "ordered" if key else "optimized") as result:
                builder = DeltaTable.forPath(self._spark, path).optimize()
                row = (builder.executeZOrderBy(*key) if key else builder.executeCompaction()).first()
                assert row is not None
                result["removed"], result["added"] = row["metrics"]["numFilesRemoved"], row["metrics"]["numFilesAdded"]

    def vacuum(self, hours: float) -> None:
        """Vacuum all tables; the retention is set as their property, which Delta uses instead of VACUUM's argument.

        Rows that deletion vectors hide in files still in use are removed from these files first; otherwise they, and
        redacted values with them, would stay permanently.
        """
        wanted = f"interval {math.ceil(hours)} hours"
        for place, path in self._paths.items():
            with self._step(place, "vacuuming", "vacuumed"):
                table = DeltaTable.forPath(self._spark, path)
                detail = table.detail().select("properties").first()
                assert detail is not None
                if detail["properties"].get(_RETENTION, _UNLESS_TOLD) != wanted:
                    self._spark.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('{_RETENTION}' = '{wanted}')")
                if detail["properties"].get("delta.enableDeletionVectors") == "true":
                    self._spark.sql(f"REORG TABLE delta.{quoted(path)} APPLY (PURGE)")
                table.vacuum()

    @contextmanager
    def _step(self, place: str, doing: str, what: str) -> Iterator[dict[str, int]]:
        self._progress(f"{doing} {place}")
        began = time.monotonic()
        result: dict[str, int] = {}
        try:
            yield result
        except CONFLICTS:
            what, result = "skipped", {}
        self.done.append(MaintenanceStep(place, what, time.monotonic() - began, **result))

    def _names(self) -> dict[str, str]:
        """Return the names of tables by the paths of their histories."""
        names = {each.name for each in definitions(self._spark, self._lake).values()}
        return {self._lake.history(name): name for name in names}

    def _keys(self) -> dict[str, tuple[str, ...]]:
        """Return the keys of the tables that have one, by the paths of their silver tables."""
        known = list(definitions(self._spark, self._lake).values())
        keys: dict[str, tuple[str, ...]] = {}
        for name in {each.name for each in known}:
            era = layout(each for each in known if each.name == name).era
            if era.keyed:
                keys[self._lake.current(name)] = keys[self._lake.history(name)] = era.key
        return keys
