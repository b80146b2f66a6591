"""Builds users' models after a batch: the models and a batch that is in silver in, their tables in gold out.

    models = Models(spark, lake, load("models"))
    outcomes = models.build(batch, number)

What always holds:

- A model's table is replaced in one commit, whole or the rows of some keys; what is left over of a batch that was cut
  short is the last good state, and the batch that is tried again gives the same as if it had been done once.
- A model that fails stops nobody but the models that read it. Its table stays as it was; what the batches since would
  have changed is not known any more, so the next time it is built whole. The same goes for the models that read it, and
  for all models after a batch that they have not seen: one that was taken in without them, an import, a replay.
- gold/models says how each model stands, with file and line if it fails, and which batch they have seen. It only grows,
  by a line a batch: the newest of a model counts.

The rows of the keys are found by computing the model, restricted to these keys: Spark takes the restriction down to
the tables where it can (below a GROUP BY of the key it can).
"""

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
)

from forge.change import Op
from forge.pipeline.bronze import definitions
from forge.pipeline.gold.models import CHANGES, Model, ModelError, Query, Reference, Target, resolve
from forge.pipeline.gold.states import ALL, State, append, is_news, newest, now, seen
from forge.pipeline.lake import Lake
from forge.pipeline.silver.rows import quoted
from forge.pipeline.tables import exists, load

FEW: Final = 200
"""So many keys are named to Spark one by one, which lets Delta leave out files; more are joined."""

_EXACT: Final = (BooleanType, DateType, DecimalType, IntegralType, StringType)
_GONE: Final = "_forge_gone"
_LINE: Final = re.compile(r"\bline (\d+),? pos")
_SQLSTATE: Final = re.compile(r"\.? SQLSTATE: ")
_CONDITION: Final = re.compile(r"^.*?\[[A-Z_0-9.]+\] ")
_log = logging.getLogger("forge.pipeline")


class Outcome(msgspec.Struct, frozen=True):
    """What became of a model in a batch: `built`, `merged`, `skipped` (nothing to do) or `failed`."""

    model: str
    what: str
    seconds: float
    error: str | None = None


class Models:
    """The models of a lake, built batch after batch by one process."""

    def __init__(self, spark: SparkSession, lake: Lake, models: Sequence[Model]) -> None:
        self._spark = spark
        self._lake = lake
        self._models = models
        self._states: dict[str, State] | None = None

    def build(self, batch: DataFrame, number: int) -> list[Outcome]:
        """Bring every model up to date with a batch; numbers of batches follow one another."""
        if not self._models:
            return []
        if self._states is None:
            self._states = newest(self._spark, self._lake)
        before, names = self._states, [model.name for model in self._models]
        last = before.get(ALL)
        missed = last is None or number - last.batch not in (0, 1)
        after = {name: state for name, state in before.items() if name in names}
        with _quietly(), _Work(self._spark, self._lake, names, batch) as work:
            outcomes = [self._build(work, model, number, before, after, missed) for model in self._models]
        gone = {
            name: msgspec.structs.replace(state, state="gone", at=now())
            for name, state in before.items()
            if name not in (*names, ALL)
        }
        after |= gone | {ALL: seen(number)}
        append(self._spark, self._lake, [state for name, state in after.items() if is_news(state, before.get(name))])
        self._states = {name: state for name, state in after.items() if name not in gone}
        return outcomes

    def _build(
        self,
        work: "_Work",
        model: Model,
        number: int,
        before: Mapping[str, State],
        after: dict[str, State],
        missed: bool,
    ) -> Outcome:
        began = time.monotonic()
        state = before.get(model.name)
        stale = missed or state is None or state.state != "good" or state.fingerprint != model.fingerprint
        what, error = "failed", None
        try:
            if broken := [name for name in model.after if after[name].state != "good"]:
                raise ModelError(f"it reads {broken[0]}, which failed", file=model.file, line=1, fix="fix that one")
            what = work.build(model, number, again=stale)
            after[model.name] = State(model.name, model.file, model.fingerprint, "good", number, now())
        except (PySparkException, Py4JJavaError, ModelError) as failure:
            error = failure if isinstance(failure, ModelError) else told(failure, model)
            again = state.failures if state is not None else 0
            after[model.name] = State(
                model.name, model.file, "", "failed", number, now(), again + 1, error.line, str(error)
            )
            _log.warning("%s", error)
        return Outcome(model.name, what, time.monotonic() - began, str(error) if error else None)


def told(failure: PySparkException | Py4JJavaError, model: Model) -> ModelError:
    """What Spark says of a model, in one line, with the line of the file."""
    texts = list(_texts(failure))
    text = next((text for text in reversed(texts) if _CONDITION.match(text)), texts[0]) or type(failure).__name__
    line = next((int(found[1]) for text in texts if (found := _LINE.search(text))), 1)
    reason = _SQLSTATE.split(_CONDITION.sub("", text.splitlines()[0]))[0]
    return ModelError(reason[:300], file=model.file, line=line, fix="fix the model")


def _texts(failure: Any) -> Iterator[str]:
    """What a failure says, then what caused it, and so on."""
    if isinstance(failure, PySparkException):
        yield str(failure).strip()
        failure = getattr(failure, "_origin", None)
    else:
        failure = failure.java_exception
    while failure is not None:
        yield str(failure.getMessage() or failure.getClass().getName()).strip()
        failure = failure.getCause()


class _Work:
    """What building models after one batch needs; used as a context, which takes away the views that it made."""

    def __init__(self, spark: SparkSession, lake: Lake, models: Sequence[str], batch: DataFrame) -> None:
        self._spark = spark
        self._lake = lake
        self._models = models
        self._batch = batch
        self._tables = sorted({each.name for each in definitions(spark, lake).values()})
        found = _touched(batch)
        self._touched = {row["table"]: (row["first"], row["last"]) for row in found}
        redacted = {row["table"] for row in found if row["redacted"]}
        self._redacted = redacted | {CHANGES} if redacted else redacted
        self._views: dict[Target, str] = {}
        self._written: set[str] = set()
        self._anew: set[str] = set()

    def __enter__(self) -> "_Work":
        return self

    def __exit__(self, *_: object) -> None:
        for view in self._views.values():
            self._spark.catalog.dropTempView(view)

    def build(self, model: Model, number: int, *, again: bool) -> str:
        """Bring one model up to date; raises what is wrong with it.

        What reads a model that was built again out of turn is built again, too: which of its keys that changed is not
        known. So is what reads a table some values of which were taken out: its keys may have been among them.
        """
        again = again or not self._anew.isdisjoint(model.after)
        if f"public.{model.name}" in self._tables:
            raise ModelError("the lake has a table of that name", file=model.file, line=1, fix="rename the file")
        reads = self._targets(model, model.query)
        keys = self._targets(model, model.keys) if model.keys is not None else {}
        again = again or any(each.name in self._redacted for each in (*reads.values(), *keys.values()))
        if not again and not self._due(model, number, {*reads.values()}, {*keys.values()}):
            return "skipped"
        frame = self._frame(model.query, reads)
        if missing := [name for name in model.key if name not in frame.columns]:
            raise ModelError(
                f"the model has no column {missing[0]}", file=model.file, line=model.key_line, fix="select the key"
            )
        path = self._lake.gold(model.name)
        if again:
            self._anew.add(model.name)
        if model.keys is None or again or not exists(self._spark, path) or _differ(frame, load(self._spark, path)):
            _overwrite(frame, path)
            self._written.add(model.name)
            return "built"
        changed = self._frame(model.keys, keys)
        if len(changed.columns) != len(model.key):
            raise ModelError(
                f"keys has {len(changed.columns)} columns, and key {len(model.key)}",
                file=model.file,
                line=model.key_line,
                fix="select the key's columns, in their order",
            )
        if not self._merge(frame, changed.toDF(*model.key).distinct(), path):
            return "skipped"
        self._written.add(model.name)
        return "merged"

    def _due(self, model: Model, number: int, reads: set[Target], keys: set[Target]) -> bool:
        if model.every > 1:
            return number % model.every == 0
        changing = [each for each in keys if each.kind not in ("current", "history")] if keys else reads
        if not changing:
            return True
        return any(
            each.kind in ("changes", "gold") or each.name in (self._written if each.kind == "model" else self._touched)
            for each in changing
        )

    def _targets(self, model: Model, query: Query) -> dict[Reference, Target]:
        targets: dict[Reference, Target] = {}
        for each in query.reads:
            target = resolve(each, self._tables, self._models)
            if target is not None:
                targets[each] = target
            elif each.schema is None:
                names = ", ".join(table.removeprefix("public.") for table in self._tables[:8]) or "nothing yet"
                raise ModelError(
                    f"there is no table or model {each.name}",
                    file=model.file,
                    line=each.line,
                    fix=f"the lake has {names}",
                )
        return targets

    def _frame(self, query: Query, targets: Mapping[Reference, Target]) -> DataFrame:
        return self._spark.sql(query.with_names({each: self._view(target) for each, target in targets.items()}))

    def _view(self, target: Target) -> str:
        if target not in self._views:
            name = f"forge_{target.kind}_{len(self._views)}"
            self._rows(target).createOrReplaceTempView(name)
            self._views[target] = name
        return self._views[target]

    def _rows(self, target: Target) -> DataFrame:
        lake = self._lake
        match target.kind:
            case "current":
                return load(self._spark, lake.current(target.name))
            case "history":
                return load(self._spark, lake.history(target.name))
            case "changed":
                return self._changed(target.name)
            case "changes":
                return load(self._spark, lake.changes)
            case _:
                return load(self._spark, lake.gold(target.name))

    def _changed(self, table: str) -> DataFrame:
        """The versions of a table that begin or end with a change of the batch: its rows after, and before.

        The seqs of a table without a key have a letter more in the history. Those of a snapshot's rows are all alike,
        so of a snapshot that comes in several batches all rows so far are taken.
        """
        history = load(self._spark, self._lake.history(table))
        if table not in self._touched:
            return history.where(F.lit(False))
        first, last = self._touched[table]
        begins, ends = _plain(F.col("_seq")), _plain(F.col("_end_seq"))
        near = begins.between(first, last) | ends.between(first, last)
        # The plain column, too: that is what files have bounds of.
        near = near & (F.col("_seq").between(first, last + "~") | F.col("_end_seq").between(first, last + "~"))
        seqs = self._batch.where(F.concat_ws(".", "schema", "table") == table).select("seq").distinct()
        found = (
            history.where(near)
            .withColumns({"_forge_begins": begins, "_forge_ends": ends})
            .join(
                seqs.select(F.col("seq").alias("_forge_begins"), F.lit(True).alias("_forge_new")),
                "_forge_begins",
                "left",
            )
            .join(
                seqs.select(F.col("seq").alias("_forge_ends"), F.lit(True).alias("_forge_old")), "_forge_ends", "left"
            )
        )
        found = found.where("_forge_new OR _forge_old")
        return found.select(*map(quoted, history.columns))

    def _merge(self, frame: DataFrame, keys: DataFrame, path: str) -> bool:
        """Put what the model has of these keys in place of what the table has of them, in one commit; if there are any.

        Each key is one row that deletes all of its rows, and each new row one that matches nothing.
        """
        target = load(self._spark, path)
        keys = keys.select(*(F.col(quoted(name)).cast(target.schema[name].dataType) for name in keys.columns)).persist()
        try:
            few = keys.limit(FEW + 1).collect()
            if not few:
                return False
            exact = all(isinstance(field.dataType, _EXACT) for field in keys.schema.fields)
            if exact and len(few) <= FEW:
                rows = frame.where(_is_one_of(few, keys.columns))
            else:
                same = [frame[quoted(name)].eqNullSafe(keys[quoted(name)]) for name in keys.columns]
                rows = frame.join(keys, same, "left_semi")
            gone = keys.withColumn(_GONE, F.lit(True))
            source = rows.withColumn(_GONE, F.lit(False)).unionByName(gone, allowMissingColumns=True)
            # A model may give other rows each time it is asked, and a MERGE asks more than once.
            source = source.localCheckpoint()
            same_key = " AND ".join(f"old.{quoted(name)} <=> new.{quoted(name)}" for name in keys.columns)
            values: dict[str, str | Column] = {quoted(name): f"new.{quoted(name)}" for name in frame.columns}
            (
                DeltaTable.forPath(self._spark, path)
                .alias("old")
                .merge(source.alias("new"), f"new.{_GONE} AND {same_key}")
                .whenMatchedDelete()
                .whenNotMatchedInsert(f"NOT new.{_GONE}", values)
                .execute()
            )
        finally:
            keys.unpersist()
        return True


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep PySpark from printing what goes wrong with models: it is told, in one line."""
    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _touched(batch: DataFrame) -> list[Row]:
    """The tables of a batch, each with its smallest and its largest seq, and whether values were taken out of it."""
    redacted = F.count_if(F.col("op") == Op.REDACT) > 0
    measures = [F.min("seq").alias("first"), F.max("seq").alias("last"), redacted.alias("redacted")]
    return batch.groupBy(F.concat_ws(".", "schema", "table").alias("table")).agg(*measures).collect()


def _plain(seq: Column) -> Column:
    return F.when(F.length(seq).isin(21, 37), F.substring(seq, F.lit(1), F.length(seq) - 1)).otherwise(seq)


def _overwrite(frame: DataFrame, path: str) -> None:
    writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    if not exists(frame.sparkSession, path):
        # Columns may be called anything, count(1) for one. With deletion vectors Delta's MERGE takes a row that is not
        # there for one whose key is null.
        writer = writer.option("delta.columnMapping.mode", "name").option("delta.enableDeletionVectors", "false")
    writer.save(path)


def _differ(one: DataFrame, other: DataFrame) -> bool:
    return [(field.name, field.dataType) for field in one.schema] != [
        (field.name, field.dataType) for field in other.schema
    ]


def _is_one_of(rows: Sequence[Row], names: Sequence[str]) -> Column:
    """The condition that the columns have the values of one of the rows, null being a value."""
    if len(names) == 1:
        column = F.col(quoted(names[0]))
        values = [row[0] for row in rows if row[0] is not None]
        among = column.isin(values) if values else F.lit(False)
        return among | column.isNull() if len(values) < len(rows) else among
    condition = F.lit(False)
    for row in rows:
        same = F.lit(True)
        for name, value in zip(names, row, strict=True):
            same = same & F.col(quoted(name)).eqNullSafe(F.lit(value))
        condition = condition | same
    return condition
