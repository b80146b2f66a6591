"""Merge arriving rows into a table's history and current, with one commit to each.

Invariants:

- A merge is idempotent and may be interrupted and repeated at any point: the result is the same.
- One writer at a time merges into a table; several tables may be merged in parallel.
- Work grows with the number of arriving rows. Stored versions are looked up by literal bounds of the arriving keys,
  which Delta compares to the statistics of its files, and by the keys themselves. Only ends of the whole table touch
  all of it.

Both tables are written at the same time from the same rows, computed once; rows that only one of them has after a crash
stay unchanged when the rows are merged again. Current gets the last version of each arriving key. A key whose last
version was stored before needs no write: current got that version when it arrived. Two kinds of table are an exception,
because a late row can change the versions after it; there, stored versions are written to current again. In a table
without a key a late row may consume a delete, so that another row lives again; and where rows lack values, which they
inherit from the previous version, the late row may be that version.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import msgspec
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from forge.pipeline.lake import Lake
from forge.pipeline.silver import ends as whole
from forge.pipeline.silver.bounds import Bounds, literal, look
from forge.pipeline.silver.ends import End
from forge.pipeline.silver.layout import Era, Layout, of_era
from forge.pipeline.silver.row_shaping import complete
from forge.pipeline.silver.rows import applies, quoted
from forge.pipeline.silver.tables import MISSING, add_missing, current_columns, history_columns
from forge.pipeline.silver.versions import SLIM, chain, concerned
from forge.pipeline.tables import load

FEW: Final = 1_000_000
"""Up to this number, keys are broadcast to the stored versions; more are joined by sorting both sides."""

MISFIT: Final = "_misfit"
ENDING: Final = ("_end_seq", "_valid_to", "_end_transaction", "_is_current")


class Merged(msgspec.Struct, frozen=True):
    """The result of a merge: rows that arrived, versions that are new or have another end, seconds per step.

    `left_out` is 0 when all values fitted; otherwise some may not have fitted, or arrived twice.
    """

    rows: int = 0
    versions: int = 0
    left_out: int = 0
    seconds: Mapping[str, float] = {}


def merge(
    spark: SparkSession,
    lake: Lake,
    layout: Layout,
    era: Era,
    read: DataFrame,
    ends: Sequence[End] = (),
    *,
    keys: DataFrame | None = None,
    most: int | None = None,
) -> Merged:
    """Merge rows of one era, under the history's names, and ends of the whole table; the tables must be prepared.

    Rows with a `_misfit` are skipped, unless their key is known (`_unfit`). The ends apply to all eras. `keys` has the
    keys and `_seq` of all rows, where these are known without reading the rows, which are then read only once; it may
    have more. `most` is the maximum number of rows.
    """
    merged = _Merge(spark, lake, layout, era, read, ends, keys, most).run()
    for other in layout.eras:
        if ends and other != era:
            _Merge(spark, lake, layout, other, _nothing(spark, layout), ends, None, 0).run()
    return merged


class _Merge:
    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        layout: Layout,
        era: Era,
        read: DataFrame,
        ends: Sequence[End],
        keys: DataFrame | None,
        most: int | None,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._layout = layout
        self._era = era
        self._read = complete(read, layout)
        if MISFIT not in read.columns:
            self._read = self._read.withColumn(MISFIT, F.lit(None))
        if "_unfit" not in read.columns:
            self._read = self._read.withColumn("_unfit", F.lit(None).cast("array<string>"))
        self._given = keys
        """The arriving keys: as given, or those of the rows, which are then persisted."""
        self._most = most
        self._ends = ends
        self._history = lake.history(layout.table)
        self._current = lake.current(layout.table)
        self._carries = self._wide = False
        self._seconds: dict[str, float] = {}

    def run(self) -> Merged:
        try:
            with self._timed("read"):
                arrived, keys = self._look()
            if not arrived["count"] and not self._ends:
                return Merged(seconds=self._seconds)
            since = min(filter(None, [arrived["first"], *(end.seq for end in self._ends)]))
            with self._timed("ends"):
                later = [end for end in self._known_ends() if end.seq >= since]
            if arrived["missing"] and self._era.keyed:
                add_missing(self._spark, self._history)
            keys = [] if self._ends else keys
            with self._timed("versions"):
                made, found = self._versions(since, later, keys, arrived["count"])
            try:
                # Rows that are all new are appended to current, which must not happen twice: the history shows whether
                # it was done, once it has them.
                with ThreadPoolExecutor(2 if found["stored"] else 1) as pool:
                    steps = [pool.submit(self._into_history, made, found, since, keys)]
                    if not found["stored"]:
                        steps[0].result()
                    if self._era == self._layout.era:
                        steps.append(pool.submit(self._into_current, made, found, keys))
                for step in steps:
                    step.result()
            finally:
                _free(made)
            left_out = arrived["count"] - found["given"] + found["unfit"]
            return Merged(arrived["count"], found["new"] + found["ended"], left_out, self._seconds)
        finally:
            self._read.unpersist()

    def _look(self) -> tuple[Row, list[Bounds]]:
        """Collect aggregates of everything that arrives."""
        measures = [F.count("*").alias("count"), F.min("_seq").alias("first")]
        if self._given is not None:
            no_key = F.count_if(F.col(quoted(self._era.key[0])).isNull()).alias("no_key")
            found = look(self._given, self._era.key, *measures, no_key, F.lit(0).alias("missing"), most=self._most)
            if not found[0]["no_key"]:
                return found
        self._read = self._read.persist()
        self._given = self._read
        return look(self._read, self._era.key, *measures, F.count("_missing").alias("missing"), most=self._most)

    def _known_ends(self) -> list[End]:
        known = {end.seq: end for end in whole.known(self._spark, self._lake, self._layout.table)}
        new = [end for end in self._ends if end.seq not in known]
        whole.keep(self._spark, self._lake, self._layout.table, new)
        return [*known.values(), *new]

    def _versions(
        self, since: str, later: Sequence[End], keys: Sequence[Bounds], count: int
    ) -> tuple[DataFrame, dict[str, int]]:
        """Return all versions that the arriving rows affect, computed once, and their number by kind.

        They are checkpointed and not persisted: a MERGE makes Spark recompute persisted frames that read its table.
        """
        history = load(self._spark, self._history)
        self._carries = self._era.keyed and "_missing" in history.columns
        self._wide = self._carries or not self._era.keyed or not self._ends
        carried = list(self._layout.columns) if self._carries else []
        columns = history.columns if self._wide else [*self._era.key, *SLIM, "_unfit"]
        if self._layout.marked:
            history = history.where(of_era(self._era))
        touched = None
        if not self._ends:
            history = history.where(" AND ".join(each.sql() for each in keys) or "true")
            assert self._given is not None, "it is there since the first look"
            touched = self._given.select(*map(quoted, self._era.key))
            touched = F.broadcast(touched) if count <= FEW else touched
        existing = concerned(history, touched, since, self._era.key, columns)
        fitting = self._read.where(applies()).drop(MISFIT)
        made = chain(existing, fitting, later, self._era.key, carried=carried)
        made = made.localCheckpoint()
        ended = F.col("_:stored") & F.col("_:changed")
        counts = made.agg(
            F.count_if("_:stored").alias("stored"),
            F.count_if("_:given").alias("given"),
            F.count_if(F.col("_:given") & F.col("_unfit").isNotNull()).alias("unfit"),
            F.count_if(~F.col("_:stored")).alias("new"),
            F.count_if(ended).alias("ended"),
            F.count_if(ended & F.col("_:was").isNotNull()).alias("ended_before"),
            F.count_if(~F.col("_:stored") & F.col("_missing").isNotNull()).alias("missing"),
        )
        found = counts.collect()[0].asDict()
        if found["missing"] and self._era.keyed and not self._carries:
            _free(made)
            add_missing(self._spark, self._history)
            return self._versions(since, later, keys, count)
        return made, found

    def _into_history(self, made: DataFrame, found: Mapping[str, int], since: str, keys: Sequence[Bounds]) -> None:
        with self._timed("history"):
            self._merge_history(made, found, since, keys)

    def _into_current(self, made: DataFrame, found: Mapping[str, int], keys: Sequence[Bounds]) -> None:
        with self._timed("current"):
            self._merge_current(made, found, keys)

    def _merge_history(self, made: DataFrame, found: Mapping[str, int], since: str, keys: Sequence[Bounds]) -> None:
        columns = {**history_columns(self._layout), **(MISSING if self._carries else {})}
        have = set(made.columns)
        changed = made.where(F.col("_:changed")).withColumns(
            {name: F.lit(None).cast(type) for name, type in columns.items() if name not in have}
        )
        if not found["ended"]:
            if found["new"]:
                _append(changed.select(*map(quoted, columns)), self._history)
            return
        same = [f"t.{quoted(name)} = s.{quoted(name)}" for name in [*self._era.key, "_seq"]]
        same += ["s.`_:stored`", *(each.sql("t") for each in keys)]
        if found["ended_before"]:
            same += [f"(t._is_current OR t._end_seq >= {literal(since, StringType())})"]
        else:
            same += ["t._is_current"]
        (
            DeltaTable.forPath(self._spark, self._history)
            .alias("t")
            .merge(changed.alias("s"), " AND ".join(same))
            # When all values come from the source, Delta reads and sorts no more of the table than the condition needs.
            .whenMatchedUpdate(set=_values(columns if self._wide else ENDING))
            .whenNotMatchedInsert(values=_values(columns))
            .execute()
        )

    def _merge_current(self, made: DataFrame, found: Mapping[str, int], keys: Sequence[Bounds]) -> None:
        if self._era.keyed:
            last = F.col("_:last") if self._carries else F.col("_:last") & F.col("_:given")
            rows, same = made.where(last), list(self._era.key)
        else:
            rows, same = made.where("_op <> 'delete'"), [*self._era.key, "_seq"]
        rows = rows.withColumnRenamed("_valid_from", "_changed_at")
        names = [name for name in current_columns(self._layout) if name in rows.columns]
        values = _values(names)
        if not found["stored"] and len(self._layout.eras) == 1:
            _append(rows.where("_is_current").select(*values), self._current)
            return
        source = rows.select(*values, "_is_current", "_end_seq")
        matching = [f"t.{quoted(name)} = s.{quoted(name)}" for name in same] + [each.sql("t") for each in keys]
        newer = "s._seq >= t._seq" if self._carries else "(s._seq > t._seq OR s._seq = t._seq AND t._unfit IS NOT NULL)"
        merging = (
            DeltaTable.forPath(self._spark, self._current)
            .alias("t")
            .merge(source.alias("s"), " AND ".join(matching))
            .whenMatchedDelete("NOT s._is_current AND t._seq <= s._end_seq")
            .whenMatchedUpdate(f"s._is_current AND {newer}", set=values)
            .whenNotMatchedInsert("s._is_current", values=values)
        )
        if self._ends:
            newest = literal(max(end.seq for end in self._ends), StringType())
            merging = merging.whenNotMatchedBySourceDelete(f"t._seq < {newest}")
        merging.execute()

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seconds[step] = round(time.perf_counter() - began, 3)


def _nothing(spark: SparkSession, layout: Layout) -> DataFrame:
    columns = {**history_columns(layout), "_at": TimestampType(), **MISSING}
    return spark.createDataFrame([], StructType([StructField(*each) for each in columns.items()])).drop(
        *ENDING, "_valid_from"
    )


def _free(checkpoint: DataFrame) -> None:
    """Free the memory of a checkpointed frame; Spark itself would wait for Java's garbage collection."""
    checkpoint._jdf.queryExecution().analyzed().rdd().unpersist(False)


def _append(rows: DataFrame, path: str) -> None:
    rows.write.format("delta").mode("append").save(path)


def _values(names: Iterable[str]) -> dict[str, str | Column]:
    return {quoted(name): f"s.{quoted(name)}" for name in names}
