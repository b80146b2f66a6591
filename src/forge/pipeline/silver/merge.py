"""Merges rows into a table's history and current: what arrived in, one commit into each of the two out.

What always holds:

- It may be run again with the same rows, or stop anywhere and be run again: the result is the same.
- One writer at a time merges into a table; several tables may be merged at the same time.
- Work grows with what arrives. Stored versions are looked up by literal bounds of the keys that arrive, which Delta
  compares to the statistics of its files, and by the keys themselves. Only ends of the whole table touch all of it.

Both are made of the same rows, computed once, and written at the same time: what one of them has alone after a crash
stays as it is when the rows are merged again. Current gets the last version of each key that arrived. A key
whose last version is one that was stored before needs nothing: when that arrived, current got it. There are two sorts
of table where that is not so, because a late row can change what comes after it; there stored versions are written to
current again. Without a key it may take a delete from a row, which lives again; and where rows miss values, which they
get from the version before, it may be that version.
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
from forge.pipeline.silver.rows import quoted
from forge.pipeline.silver.tables import MISSING, add_missing, current_columns, history_columns
from forge.pipeline.silver.versions import SLIM, chain, concerned
from forge.pipeline.tables import load

FEW: Final = 1_000_000
"""Up to so many keys are sent to where the stored versions are, rather than all of both sorted."""

MISFIT: Final = "_misfit"
ENDING: Final = ("_end_seq", "_valid_to", "_end_transaction", "_is_current")


class Merged(msgspec.Struct, frozen=True):
    """What a merge has done: rows that arrived, versions that are new or end otherwise, seconds by step.

    `left_out` is 0 when all rows fitted; otherwise some may not have, or arrived twice.
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
    """Merge rows of one era, with the history's names, and ends of the whole table; the tables are prepared.

    Those of the rows that have a `_misfit` are left out. The ends are those of all eras. `keys` has the keys of all the
    rows, and their `_seq`, where these are known without reading the rows, which are then read once; it may have more.
    `most` is how many rows there may be.
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
        self._given = keys
        """The keys that arrive: as given, or of the rows, which are persisted then."""
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
                # Rows that are all new are appended to current, which must not be done twice: history knows, once it
                # has them.
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
            left_out = arrived["count"] - found["given"]
            return Merged(arrived["count"], found["new"] + found["ended"], left_out, self._seconds)
        finally:
            self._read.unpersist()

    def _look(self) -> tuple[Row, list[Bounds]]:
        """What is known of all that arrives."""
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
        """All versions that what arrived has to do with, computed once, and how many there are of which sort.

        Not persisted but checkpointed: a MERGE makes Spark compute again whatever is persisted and read its table.
        """
        history = load(self._spark, self._history)
        self._carries = self._era.keyed and "_missing" in history.columns
        self._wide = self._carries or not self._era.keyed or not self._ends
        carried = list(self._layout.columns) if self._carries else []
        columns = history.columns if self._wide else [*self._era.key, *SLIM]
        if self._layout.marked:
            history = history.where(of_era(self._era))
        touched = None
        if not self._ends:
            history = history.where(" AND ".join(each.sql() for each in keys) or "true")
            assert self._given is not None, "it is there since the first look"
            touched = self._given.select(*map(quoted, self._era.key))
            touched = F.broadcast(touched) if count <= FEW else touched
        existing = concerned(history, touched, since, self._era.key, columns)
        fitting = self._read.where(F.col(MISFIT).isNull()).drop(MISFIT)
        made = chain(existing, fitting, later, self._era.key, carried=carried)
        made = made.localCheckpoint()
        ended = F.col("_:stored") & F.col("_:changed")
        counts = made.agg(
            F.count_if("_:stored").alias("stored"),
            F.count_if("_:given").alias("given"),
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
        newer = "s._seq >= t._seq" if self._carries else "s._seq > t._seq"
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
    """Gives back the memory of a frame that was checkpointed; Spark itself would wait until Java collects garbage."""
    checkpoint._jdf.queryExecution().analyzed().rdd().unpersist(False)


def _append(rows: DataFrame, path: str) -> None:
    rows.write.format("delta").mode("append").save(path)


def _values(names: Iterable[str]) -> dict[str, str | Column]:
    return {quoted(name): f"s.{quoted(name)}" for name in names}
