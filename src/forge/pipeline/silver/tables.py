"""Delta tables of a table, history and current: created on demand, altered when the definition changes.

Alterations change only metadata, one small commit each, and an interrupted one is finished the next time. In the
history no column is ever dropped: it stays, under its name or under that of a version (see `layout`).

Rows are mapped to columns by name, so the order of columns does not matter. Statistics cover the columns by which
merges look up rows. History is partitioned by `_is_current`: queries for present rows read no old versions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from forge.pipeline.lake import Lake
from forge.pipeline.silver.bounds import literal
from forge.pipeline.silver.layout import Layout, wider
from forge.pipeline.silver.rows import quoted
from forge.pipeline.tables import exists, load

BY_WHOM: Final[dict[str, DataType]] = dict.fromkeys(
    ("_user_id", "_function_name", "_trace_id", "_session_user"), StringType()
)
REDACTED: Final[dict[str, DataType]] = {"_redacted": ArrayType(StringType())}
"""Columns whose values were redacted and are null; see `forge.pipeline.redaction`."""

UNFIT: Final[dict[str, DataType]] = {"_unfit": ArrayType(StringType())}
"""Columns whose values did not fit their types and are null; the quarantine has the row and the reason."""

HISTORY: Final[dict[str, DataType]] = {
    "_seq": StringType(),
    "_end_seq": StringType(),
    "_op": StringType(),
    "_valid_from": TimestampType(),
    "_valid_to": TimestampType(),
    "_is_current": BooleanType(),
    "_transaction": LongType(),
    "_end_transaction": LongType(),
    **BY_WHOM,
    **REDACTED,
    **UNFIT,
}
CURRENT: Final[dict[str, DataType]] = {
    "_seq": StringType(),
    "_changed_at": TimestampType(),
    "_op": StringType(),
    "_transaction": LongType(),
    **BY_WHOM,
    **REDACTED,
    **UNFIT,
}
KEY: Final[dict[str, DataType]] = {"_key": StringType()}
MISSING: Final[dict[str, DataType]] = {"_missing": ArrayType(StringType())}
"""A history has this column from the first row that lacks a value: then later rows must inherit it again."""

PROPERTIES: Final = {
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.enableTypeWidening": "true",
    "delta.autoOptimize.autoCompact": "false",
}


def history_columns(layout: Layout) -> dict[str, DataType]:
    """Return all columns of a history except `_missing`."""
    return {**layout.columns, **(KEY if layout.marked else {}), **HISTORY}


def current_columns(layout: Layout) -> dict[str, DataType]:
    own = {name: layout.columns[name] for name in layout.current}
    return {**own, **({} if layout.era.keyed else KEY), **CURRENT}


def prepare(spark: SparkSession, lake: Lake, layout: Layout) -> None:
    """Create both tables, or alter them to the columns of the layout."""
    history, current = history_columns(layout), current_columns(layout)
    keys = list(dict.fromkeys(name for era in layout.eras for name in era.key))
    path = lake.history(layout.table)
    times = ["_seq", "_end_seq", "_valid_from", "_valid_to"]
    if not exists(spark, path):
        _create(spark, path, history, [*times, *keys], ["_is_current"])
    elif _evolve(spark, path, history, layout.older, drop=False):
        _keep_statistics(spark, path, [*times, *keys])
    path = lake.current(layout.table)
    if not exists(spark, path):
        _create(spark, path, current, ["_seq", *layout.era.key], [])
    elif _evolve(spark, path, current, {}, drop=True):
        _keep_statistics(spark, path, ["_seq", *layout.era.key])


def add_missing(spark: SparkSession, path: str) -> None:
    """Add the column that records which values a history's rows lacked."""
    if "_missing" not in load(spark, path).columns:
        _alter(spark, path, f"ADD COLUMNS ({_columns(MISSING)})")


def _create(
    spark: SparkSession,
    path: str,
    columns: Mapping[str, DataType],
    statistics: Sequence[str],
    partitions: Sequence[str],
) -> None:
    schema = StructType()
    for name, type in columns.items():
        schema = schema.add(name, type)
    table = DeltaTable.createIfNotExists(spark).location(path).addColumns(schema).partitionedBy(*partitions)
    for name, value in {**PROPERTIES, **_statistics(statistics)}.items():
        table = table.property(name, value)
    table.execute()


def _evolve(
    spark: SparkSession, path: str, wanted: Mapping[str, DataType], older: Mapping[str, str], *, drop: bool
) -> bool:
    """Alter a table to the wanted columns; return whether anything was altered."""
    actual = {field.name: field.dataType for field in load(spark, path).schema}
    statements = list(_statements(actual, wanted, older, drop=drop))
    for statement in statements:
        _alter(spark, path, statement)
    return bool(statements)


def _statements(
    actual: Mapping[str, DataType], wanted: Mapping[str, DataType], older: Mapping[str, str], *, drop: bool
) -> Iterable[str]:
    """
    >>> number, text = LongType(), StringType()
    >>> list(_statements({"n": number, "x": number}, {"n": text, "n_v1": number}, {"n_v1": "n"}, drop=False))
    ['RENAME COLUMN `n` TO `n_v1`', 'ADD COLUMNS (`n` string)']
    >>> list(_statements({"n": number, "x": number}, {"n": text}, {}, drop=True))
    ['DROP COLUMN `n`', 'DROP COLUMN `x`', 'ADD COLUMNS (`n` string)']
    """
    now = dict(actual)
    for place, name in older.items():
        fits = name in now and wider(now[name], wanted[name]) is not None
        if place not in now and name in now and not fits and wider(now[name], wanted[place]) is not None:
            now[place] = now.pop(name)
            yield f"RENAME COLUMN {quoted(name)} TO {quoted(place)}"
    if drop:
        for name, type in actual.items():
            if name not in wanted or wider(type, wanted[name]) is None:
                del now[name]
                yield f"DROP COLUMN {quoted(name)}"
    for name, type in wanted.items():
        if name in now and type != now[name] and wider(now[name], type) == type:
            yield f"ALTER COLUMN {quoted(name)} TYPE {type.simpleString()}"
    if new := {name: type for name, type in wanted.items() if name not in now}:
        yield f"ADD COLUMNS ({_columns(new)})"


def _keep_statistics(spark: SparkSession, path: str, columns: Sequence[str]) -> None:
    for name, value in _statistics(columns).items():
        _alter(spark, path, f"SET TBLPROPERTIES ('{name}' = {literal(value, StringType())})")


def _statistics(columns: Sequence[str]) -> dict[str, str]:
    return {"delta.dataSkippingStatsColumns": ",".join(map(quoted, columns))}


def _columns(columns: Mapping[str, DataType]) -> str:
    return ", ".join(f"{quoted(name)} {type.simpleString()}" for name, type in columns.items())


def _alter(spark: SparkSession, path: str, what: str) -> None:
    spark.sql(f"ALTER TABLE delta.{quoted(path)} {what}")
