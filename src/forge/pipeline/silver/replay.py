"""Rebuild a table's silver from bronze alone: history, current, its ends and its part of the quarantine.

The result equals that of merging batch by batch. Each table is replaced by one commit: readers see the old one until
the new one is complete. While a table with another key waits for the snapshot that follows, current may differ: here it
has only rows of the new key.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from forge.errors import LakeError
from forge.pipeline import bronze, redaction
from forge.pipeline.lake import Lake
from forge.pipeline.silver import ends as whole
from forge.pipeline.silver import quarantine
from forge.pipeline.silver.bounds import literal
from forge.pipeline.silver.ends import End
from forge.pipeline.silver.layout import Era, Layout, in_order, layout, of_era
from forge.pipeline.silver.row_shaping import Placed, complete, placed, union
from forge.pipeline.silver.rows import quoted
from forge.pipeline.silver.tables import (
    MISSING,
    add_missing,
    current_columns,
    history_columns,
    prepare,
)
from forge.pipeline.silver.types import Types
from forge.pipeline.silver.versions import chain
from forge.pipeline.tables import exists, load

Progress = Callable[[str, int], None]
"""Called after each step with its name and number of rows: read, misfits, history, current."""


class ReplayedTables(NamedTuple):
    """The number of rows of each table after the replay."""

    history: int
    current: int
    misfits: int


def replay(
    spark: SparkSession,
    lake: Lake,
    table: str,
    *,
    types: Types | None = None,
    progress: Progress = lambda step, rows: None,
) -> ReplayedTables:
    """Replace the silver of a table, named with its schema, by the result of replaying bronze."""
    definitions = {version: each for version, each in bronze.definitions(spark, lake).items() if each.name == table}
    if not definitions:
        raise LakeError(f"the lake {lake.path} has no changes of {table}", fix="name a table with its schema")
    plan = layout(definitions.values(), types)
    whose = {"schema": in_order(definitions.values())[-1].schema, "table": in_order(definitions.values())[-1].table}
    changes = load(spark, lake.changes).where(_all_of(whose))
    read = [found for era in plan.eras if (found := placed(changes, definitions, era, types)) is not None]
    counts = union([rows.read.select("_misfit", "_missing") for rows in read]).agg(
        F.count("*"), F.count("_misfit"), F.count("_missing")
    )
    count, misfits, missing = counts.collect()[0]
    progress("read", count)
    ends = whole.ends(changes)
    known = {end.seq for end in whole.known(spark, lake, table)}
    whole.keep(spark, lake, table, [end for end in ends if end.seq not in known])
    _quarantine(spark, lake, union([rows.misfits for rows in read]), misfits, _all_of(whose))
    progress("quarantine", misfits)
    prepare(spark, lake, plan)
    if missing:
        add_missing(spark, lake.history(table))
    carried = list(plan.columns) if missing else []
    made = [_versions(rows, era, plan, ends, carried) for rows, era in zip(read, plan.eras, strict=True)]
    versions = _overwrite(spark, union(made), lake.history(table))
    progress("history", versions)
    redaction.take_out_of_history(spark, lake, plan, definitions.values(), redaction.found(changes))
    living = _overwrite(spark, _current(spark, lake, plan), lake.current(table))
    progress("current", living)
    return ReplayedTables(versions, living, misfits)


def _versions(rows: Placed, era: Era, plan: Layout, ends: Sequence[End], carried: Sequence[str]) -> DataFrame:
    made = chain(None, complete(rows.fitting, plan), ends, era.key, carried=carried if era.keyed else ())
    names = [*history_columns(plan), *(MISSING if carried else ())]
    return made.select(*(quoted(name) for name in names if name in made.columns))


def _current(spark: SparkSession, lake: Lake, plan: Layout) -> DataFrame:
    """Return the living rows. Values redacted in the history are still in the database, so current keeps its own."""
    history = load(spark, lake.history(plan.table))
    rows = history.where("_is_current").withColumnRenamed("_valid_from", "_changed_at")
    if plan.marked:
        rows = rows.where(of_era(plan.era))
    names = [*map(quoted, current_columns(plan))]
    rows, same = rows.select(*names), [*plan.era.key, "_seq"]
    whole, redacted = rows.where("_redacted IS NULL"), rows.where("_redacted IS NOT NULL")
    kept = load(spark, lake.current(plan.table)).select(*names)
    kept = kept.join(redacted.select(*map(quoted, same)), same, "left_semi")
    return whole.unionByName(kept).unionByName(redacted.join(kept.select(*map(quoted, same)), same, "left_anti"))


def _quarantine(spark: SparkSession, lake: Lake, misfits: DataFrame, count: int, whose: str) -> None:
    if exists(spark, lake.quarantine):
        misfits.write.format("delta").mode("overwrite").option("replaceWhere", whose).save(lake.quarantine)
    elif count:
        quarantine.append(spark, lake, misfits, "replay", 0)


def _overwrite(spark: SparkSession, rows: DataFrame, path: str) -> int:
    """Replace all rows of a table in one commit; return its number of rows."""
    rows.write.format("delta").mode("overwrite").option("partitionOverwriteMode", "static").save(path)
    return load(spark, path).count()


def _all_of(values: Mapping[str, str]) -> str:
    return " AND ".join(f"{quoted(name)} = {literal(value, StringType())}" for name, value in values.items())
