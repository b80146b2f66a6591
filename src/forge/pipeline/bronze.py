"""Bronze: every change exactly once, append-only, partitioned by day; and the definitions of the tables.

A batch is written under the run's application and the batch's number. Delta stores both with the commit, so a batch
that is retried after a crash is written only if the first attempt did not commit.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from forge.changelog.queries import query
from forge.errors import LakeError
from forge.pipeline.changes import BRONZE
from forge.pipeline.definitions import Definition, decode, encode
from forge.pipeline.lake import Lake
from forge.pipeline.tables import append_once, day_of, exists, load
from forge.postgres.connection import Connection
from forge.values import Column

DEFINITIONS: Final = StructType(
    [
        StructField("version", IntegerType(), False),
        StructField("schema", StringType(), False),
        StructField("table", StringType(), False),
        StructField("columns", StringType(), False),
        StructField("key", ArrayType(StringType(), False), False),
    ]
)
RUN: Final = 10**10
"""A batch's number in bronze is `run * RUN +` its number in the run's checkpoint."""


def number(run: int, batch: int) -> int:
    """Return the number of a batch in the lake."""
    return run * RUN + batch


def append(
    changes: DataFrame,
    lake: Lake,
    application: str,
    run: int,
    batch: int,
    *,
    version: int | None = None,
    metadata: str | None = None,
) -> None:
    """Append the changes of a batch, unless the application has already written this version; default: the batch's
    number. `metadata` becomes part of the commit."""
    rows = changes.withColumns({"day": day_of("at"), "batch": F.lit(number(run, batch)).cast("long")}).select(
        *BRONZE.names
    )
    append_once(rows, lake.changes, application, batch if version is None else version, "day", metadata=metadata)


def batch_of(spark: SparkSession, lake: Lake, run: int, batch: int) -> DataFrame:
    """Return the changes of a batch."""
    return load(spark, lake.changes).where(F.col("batch") == number(run, batch))


def between(spark: SparkSession, lake: Lake, first: int, last: int) -> DataFrame:
    """Return the changes of the batches with these numbers in the lake, and of those between."""
    return load(spark, lake.changes).where(F.col("batch").between(first, last))


def definitions(spark: SparkSession, lake: Lake) -> dict[int, Definition]:
    """Return all definitions in the lake, by number."""
    if not exists(spark, lake.definitions):
        return {}
    rows = load(spark, lake.definitions).collect()
    return {
        row["version"]: Definition(
            row["version"], row["schema"], row["table"], decode(row["columns"]), tuple(row["key"])
        )
        for row in rows
    }


def learn(
    spark: SparkSession,
    lake: Lake,
    connection: Connection,
    known: Mapping[int, Definition],
    wanted: Iterable[int],
) -> dict[int, Definition]:
    """Return the known definitions together with the wanted ones, and store those that are new."""
    unknown = sorted(set(wanted) - known.keys())
    if not unknown:
        return dict(known)
    rows = connection.execute(query("versions"), {"ids": unknown}).fetchall()
    found = [
        Definition(
            version,
            schema,
            table,
            tuple(Column(column["name"], column["type"], column["kind"]) for column in columns),
            tuple(key),
        )
        for version, schema, table, columns, key in rows
    ]
    if lacking := set(unknown) - {each.version for each in found}:
        raise LakeError(
            f"forge.table_version does not say how a table was defined in version {min(lacking)}",
            fix="restore that row of it, or forge pipeline run --resnapshot",
        )
    _check_names([*known.values(), *found])
    keep(spark, lake, found)
    return {**known, **{definition.version: definition for definition in found}}


def keep(spark: SparkSession, lake: Lake, found: Iterable[Definition]) -> None:
    """Store definitions; a stored definition never changes."""
    known = definitions(spark, lake)
    rows = [
        (each.version, each.schema, each.table, encode(each.columns), list(each.key))
        for each in found
        if each.version not in known
    ]
    if rows:
        frame = spark.createDataFrame(rows, DEFINITIONS).coalesce(1)
        frame.write.format("delta").mode("append").save(lake.definitions)


def _check_names(known: Iterable[Definition]) -> None:
    """Raise when two tables would share one path in the lake, which names that contain a dot can cause."""
    places: dict[str, Definition] = {}
    for each in known:
        other = places.setdefault(each.name, each)
        if (other.schema, other.table) != (each.schema, each.table):
            raise LakeError(
                f"two tables are called {each.name}: {each.table!r} of {each.schema!r}, {other.table!r} of"
                f" {other.schema!r}",
                fix="rename one of them, or name the tables of the lake with --tables",
            )
