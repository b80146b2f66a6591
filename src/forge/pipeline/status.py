"""Progress and size of a lake, from metadata only: take a lake, return one struct.

Row counts come from Delta's statistics; files and bytes are those of the newest version. Older versions use space too,
until they are vacuumed. The lag behind the database is in `forge.pipeline.lag`.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final

import msgspec
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from forge.pipeline import horizon, instants, ledger
from forge.pipeline.bronze import definitions
from forge.pipeline.gold.states import ModelState, states
from forge.pipeline.lake import Lake
from forge.pipeline.silver.quarantine import counts
from forge.pipeline.tables import exists, load

AT_A_TIME: Final = 4


class Size(msgspec.Struct, frozen=True):
    """The size of a Delta table."""

    rows: int = 0
    bytes: int = 0
    files: int = 0


class SilverTableStatus(msgspec.Struct, frozen=True):
    """A table of silver; bytes and files are those of current and history together."""

    name: str
    current_rows: int
    history_rows: int
    bytes: int
    files: int
    quarantined: int = 0


class LakeStatus(msgspec.Struct, frozen=True):
    """The status of a lake. `kept_since` is the start of bronze, if days of it were purged."""

    changes: Size
    batches: int
    last_batch: str | None
    last_at: datetime | None
    tables: list[SilverTableStatus]
    first_instant: datetime | None
    last_instant: datetime | None
    kept_since: datetime | None
    models: list[ModelState]

    def problems(self) -> Iterator[str]:
        """Problems that need attention, one line each."""
        for table in self.tables:
            if table.quarantined:
                rows, are = ("row", "is") if table.quarantined == 1 else ("rows", "are")
                yield f"{table.quarantined:,} {rows} of {table.name} did not fit and {are} in quarantine"
        for model in self.models:
            if model.state != "good":
                times = "time" if model.failures == 1 else "times"
                yield f"a model has failed {model.failures:,} {times}: {model.error}"


def status(spark: SparkSession, lake: Lake) -> LakeStatus:
    """Return the status of a lake."""
    names = sorted({each.name for each in definitions(spark, lake).values()})
    misfits: dict[str, int] = {}
    for each in counts(spark, lake):
        misfits[each.table] = misfits.get(each.table, 0) + each.rows
    paths = [lake.changes, *map(lake.current, names), *map(lake.history, names)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        sizes = dict(zip(paths, pool.map(lambda path: size(spark, path), paths), strict=True))
    tables = []
    for name in names:
        current, history = sizes[lake.current(name)], sizes[lake.history(name)]
        both = (current.bytes + history.bytes, current.files + history.files)
        tables.append(SilverTableStatus(name, current.rows, history.rows, *both, misfits.get(name, 0)))
    last = ledger.last(spark, lake)
    span = instants.span(spark, lake)
    return LakeStatus(
        sizes[lake.changes],
        load(spark, lake.batches).count() if exists(spark, lake.batches) else 0,
        None if last is None else last.name,
        None if last is None else last.at,
        tables,
        None if span is None else span[0],
        None if span is None else span[1],
        horizon.horizons(spark, lake).get(horizon.CHANGES),
        states(spark, lake),
    )


def size(spark: SparkSession, path: str) -> Size:
    """Return the size of the Delta table at a path; zero when there is none."""
    if not exists(spark, path):
        return Size()
    detail = DeltaTable.forPath(spark, path).detail().select("sizeInBytes", "numFiles").first()
    assert detail is not None
    # Delta answers a plain count from statistics.
    rows = load(spark, path).agg(F.count("*")).first()
    assert rows is not None
    return Size(rows[0], detail["sizeInBytes"], detail["numFiles"])
