"""Build users' models after a batch: take the models and a batch in silver, write their tables in gold.

    models = Models(spark, lake, load("models"))
    outcomes = models.build(batch, number, number - 1)

Invariants:

- A model's table is replaced in one commit, whole or the rows of some keys; an interrupted batch leaves the last good
  state, and its retry gives the same result as one run.
- A model that fails stops only the models that read it. Its table stays unchanged; the keys that later batches would
  have changed are lost, so the next build is a full build. The same holds for the models that read it, and for all
  models after a batch that they have not seen: one processed without them, an import, a replay.
- gold/models records the state of each model, with file and line if it fails, and the batch that the models have seen.
  It is append-only, one row per batch: the newest row of a model wins.

The rows of the keys are found by computing the model restricted to these keys: Spark pushes the restriction down to the
tables where it can (below a GROUP BY of the key it can).
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
from forge.errors import ModelError
from forge.pipeline.bronze import definitions
from forge.pipeline.gold.models import CHANGES, Model, ModelQuery, NameTarget, TableReference, resolve
from forge.pipeline.gold.states import ALL, ModelState, append, is_news, newest, now, seen
from forge.pipeline.lake import Lake
from forge.pipeline.silver.rows import quoted
from forge.pipeline.tables import exists, load

FEW: Final = 200
"""Up to this number, keys are passed to Spark as literals, so that Delta can skip files; more are joined."""

_EXACT: Final = (BooleanType, DateType, DecimalType, IntegralType, StringType)
_GONE: Final = "_forge_gone"
_LINE: Final = re.compile(r"\bline (\d+),? pos")
_SQLSTATE: Final = re.compile(r"\.? SQLSTATE: ")
_CONDITION: Final = re.compile(r"^.*?\[[A-Z_0-9.]+\] ")
_log = logging.getLogger("forge.pipeline")


class ModelOutcome(msgspec.Struct, frozen=True):
    """The result of a model in a batch: `built`, `merged`, `skipped` (nothing to do) or `failed`."""

    model: str
    what: str
    seconds: float
    error: str | None = None


class Models:
    """The models of a lake, built batch by batch by one process."""

    def __init__(self, spark: SparkSession, lake: Lake, models: Sequence[Model]) -> None:
        self._spark = spark
        self._lake = lake
        self._models = models
        self._states: dict[str, ModelState] | None = None

    def build(self, batch: DataFrame, number: int, before: int) -> list[ModelOutcome]:
        """Update every model with a batch; `before` is the number of the batch before it."""
        if not self._models:
            return []
        if self._states is None:
            self._states = newest(self._spark, self._lake)
        states, names = self._states, [model.name for model in self._models]
        last = states.get(ALL)
        missed = last is None or not before <= last.batch <= number
        after = {name: state for name, state in states.items() if name in names}
        with _quietly(), _Work(self._spark, self._lake, names, batch, before) as work:
            outcomes = [self._build(work, model, number, states, after, missed) for model in self._models]
        gone = {
            name: msgspec.structs.replace(state, state="gone", at=now())
            for name, state in states.items()
            if name not in (*names, ALL)
        }
        after |= gone | {ALL: seen(number)}
        append(self._spark, self._lake, [state for name, state in after.items() if is_news(state, states.get(name))])
        self._states = {name: state for name, state in after.items() if name not in gone}
        return outcomes

    def _build(
        self,
        work: "_Work",
        model: Model,
        number: int,
        before: Mapping[str, ModelState],
        after: dict[str, ModelState],
        missed: bool,
    ) -> ModelOutcome:
        began = time.monotonic()
        state = before.get(model.name)
        stale = missed or state is None or state.state != "good" or state.fingerprint != model.fingerprint
        what, error = "failed", None
        try:
            if broken := [name for name in model.after if after[name].state != "good"]:
                raise ModelError(f"it reads {broken[0]}, which failed", file=model.file, line=1, fix="fix that one")
            what = work.build(model, number, again=stale)
            after[model.name] = ModelState(model.name, model.file, model.fingerprint, "good", number, now())
        except (PySparkException, Py4JJavaError, ModelError) as failure:
            error = failure if isinstance(failure, ModelError) else told(failure, model)
            again = state.failures if state is not None else 0
            after[model.name] = ModelState(
                model.name, model.file, "", "failed", number, now(), again + 1, error.line, str(error)
            )
            _log.warning("%s", error)
        return ModelOutcome(model.name, what, time.monotonic() - began, str(error) if error else None)


def told(failure: PySparkException | Py4JJavaError, model: Model) -> ModelError:
    """Return Spark's error about a model as one line, with the line of the file."""
    texts = list(_texts(failure))
    text = next((text for text in reversed(texts) if _CONDITION.match(text)), texts[0]) or type(failure).__name__
    line = next((int(found[1]) for text in texts if (found := _LINE.search(text))), 1)
    reason = _SQLSTATE.split(_CONDITION.sub("", text.splitlines()[0]))[0]
    return ModelError(reason[:300], file=model.file, line=line, fix="fix the model")


def _texts(failure: Any) -> Iterator[str]:
    """Yield the text of a failure, then of its cause, and so on."""
    if isinstance(failure, PySparkException):
        yield str(failure).strip()
        failure = getattr(failure, "_origin", None)
    else:
        failure = failure.java_exception
    while failure is not None:
        yield str(failure.getMessage() or failure.getClass().getName()).strip()
        failure = failure.getCause()


class _Work:
    """The state for building models after one batch; as a context manager it drops the views that it creates."""

    def __init__(self, spark: SparkSession, lake: Lake, models: Sequence[str], batch: DataFrame, before: int) -> None:
        self._spark = spark
        self._lake = lake
        self._models = models
        self._batch = batch
        self._before = before
        self._tables = sorted({each.name for each in definitions(spark, lake).values()})
        found = _touched(batch)
        self._touched = {row["table"]: (row["first"], row["last"]) for row in found}
        redacted = {row["table"] for row in found if row["redacted"]}
        self._redacted = redacted | {CHANGES} if redacted else redacted
        self._views: dict[NameTarget, str] = {}
        self._written: set[str] = set()
        self._anew: set[str] = set()

    def __enter__(self) -> "_Work":
        return self

    def __exit__(self, *_: object) -> None:
        for view in self._views.values():
            self._spark.catalog.dropTempView(view)

    def build(self, model: Model, number: int, *, again: bool) -> str:
        """Update one model; raise its error.

        A model that reads a model which got an unscheduled full build gets a full build too, because the changed keys
        are unknown. So does a model that reads a table with redacted values, because its keys may be among them.
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

    def _due(self, model: Model, number: int, reads: set[NameTarget], keys: set[NameTarget]) -> bool:
        if model.every > 1:
            return number // model.every != self._before // model.every
        changing = [each for each in keys if each.kind not in ("current", "history")] if keys else reads
        if not changing:
            return True
        return any(
            each.kind in ("changes", "gold") or each.name in (self._written if each.kind == "model" else self._touched)
            for each in changing
        )

    def _targets(self, model: Model, query: ModelQuery) -> dict[TableReference, NameTarget]:
        targets: dict[TableReference, NameTarget] = {}
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

    def _frame(self, query: ModelQuery, targets: Mapping[TableReference, NameTarget]) -> DataFrame:
        return self._spark.sql(query.with_names({each: self._view(target) for each, target in targets.items()}))

    def _view(self, target: NameTarget) -> str:
        if target not in self._views:
            name = f"forge_{target.kind}_{len(self._views)}"
            self._rows(target).createOrReplaceTempView(name)
            self._views[target] = name
        return self._views[target]

    def _rows(self, target: NameTarget) -> DataFrame:
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
        """Return the versions of a table that begin or end with a change of the batch: its rows after and before.

        In a table without a key, the history's seqs have one letter more. The rows of a snapshot share one seq, so for
        a snapshot that spans several batches all rows so far are returned.
        """
        history = load(self._spark, self._lake.history(table))
        if table not in self._touched:
            return history.where(F.lit(False))
        first, last = self._touched[table]
        begins, ends = _plain(F.col("_seq")), _plain(F.col("_end_seq"))
        near = begins.between(first, last) | ends.between(first, last)
        # Filter on the plain column too: files have statistics of it.
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
        """Replace the table's rows of these keys by the model's rows, in one commit; do nothing without keys.

        Each key is one source row that deletes all of its rows, and each new row is one that matches nothing.
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
            # A model may return other rows at each evaluation, and a MERGE evaluates its source more than once.
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
    """Keep PySpark from printing errors of models: they are reported in one line."""
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
    """Return the tables of a batch, each with its smallest and largest seq, and whether values were redacted."""
    redacted = F.count_if(F.col("op") == Op.REDACT) > 0
    measures = [F.min("seq").alias("first"), F.max("seq").alias("last"), redacted.alias("redacted")]
    return batch.groupBy(F.concat_ws(".", "schema", "table").alias("table")).agg(*measures).collect()


def _plain(seq: Column) -> Column:
    return F.when(F.length(seq).isin(21, 37), F.substring(seq, F.lit(1), F.length(seq) - 1)).otherwise(seq)


def _overwrite(frame: DataFrame, path: str) -> None:
    writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    if not exists(frame.sparkSession, path):
        # Columns may have any name, for example count(1). With deletion vectors, Delta's MERGE mistakes an absent row
        # for one whose key is null.
        writer = writer.option("delta.columnMapping.mode", "name").option("delta.enableDeletionVectors", "false")
    writer.save(path)


def _differ(one: DataFrame, other: DataFrame) -> bool:
    return [(field.name, field.dataType) for field in one.schema] != [
        (field.name, field.dataType) for field in other.schema
    ]


def _is_one_of(rows: Sequence[Row], names: Sequence[str]) -> Column:
    """Return the condition that the columns equal one of the rows; null equals null."""
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
