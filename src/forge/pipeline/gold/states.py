"""States of users' models, in gold/models: append-only, at least one row per batch; the newest row of a model wins."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from forge.pipeline.lake import Lake
from forge.pipeline.tables import exists, load, of_micros

STATE: Final = "models"
ALL: Final = "*"
"""The name in the row that records the batch that all models have seen."""

STATES: Final = StructType(
    [
        StructField("model", StringType(), False),
        StructField("file", StringType(), False),
        StructField("fingerprint", StringType(), False),
        StructField("state", StringType(), False),
        StructField("batch", LongType(), False),
        StructField("at", TimestampType(), False),
        StructField("failures", LongType(), False),
        StructField("line", IntegerType()),
        StructField("error", StringType()),
    ]
)


class ModelState(msgspec.Struct, frozen=True):
    """The state of a model: `good`, `failed` or `gone`; `failures` counts the batches since it was last good."""

    model: str
    file: str
    fingerprint: str
    state: str
    batch: int
    at: datetime
    failures: int = 0
    line: int | None = None
    error: str | None = None


def forget(spark: SparkSession, lake: Lake) -> None:
    """Make the next build of all models a full build: their input was changed outside of a batch."""
    if exists(spark, lake.gold(STATE)):
        append(spark, lake, [seen(-1)])


def states(spark: SparkSession, lake: Lake) -> list[ModelState]:
    """Return the states of a lake's models."""
    return [state for name, state in sorted(newest(spark, lake).items()) if name != ALL]


def newest(spark: SparkSession, lake: Lake) -> dict[str, ModelState]:
    path = lake.gold(STATE)
    if not exists(spark, path):
        return {}
    rows = load(spark, path).withColumn("at", F.unix_micros("at"))
    newest = rows.groupBy("model").agg(F.max_by(F.struct(*STATES.names), "at").alias("newest"))
    found = [row.asDict() for row in newest.select("newest.*").collect()]
    return {row["model"]: ModelState(**row | {"at": of_micros(row["at"])}) for row in found if row["state"] != "gone"}


def append(spark: SparkSession, lake: Lake, states: Sequence[ModelState]) -> None:
    rows = [tuple(msgspec.structs.asdict(state).values()) for state in states]
    spark.createDataFrame(rows, STATES).coalesce(1).write.format("delta").mode("append").save(lake.gold(STATE))


def seen(batch: int) -> ModelState:
    return ModelState(ALL, "", "", "seen", batch, now())


def is_news(state: ModelState, before: ModelState | None) -> bool:
    """Whether a row must be written. A good model stays good without a new row."""
    if before is None or state.state in ("seen", "gone"):
        return True
    return (state.state, state.fingerprint, state.failures) != (before.state, before.fingerprint, before.failures)


def now() -> datetime:
    return datetime.now(UTC)
