"""Whose lake this is: one row a run, the newest counts.

A run is a stream with a checkpoint of its own. Reading the tables anew begins another one, whose generation comes after
all that the lake has. `application` names the run to Delta: a batch that was written under it is never written again.
"""

import uuid
from datetime import UTC, datetime
from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from forge.cursor import LogIdentity
from forge.errors import LakeError
from forge.pipeline.lake import Lake
from forge.pipeline.tables import exists, load, micros, of_micros

SCHEMA: Final = StructType(
    [
        StructField("run", IntegerType(), False),
        StructField("application", StringType(), False),
        StructField("log", StringType(), False),
        StructField("system_identifier", StringType(), False),
        StructField("timeline", IntegerType(), False),
        StructField("generation", IntegerType(), False),
        StructField("start", StringType(), False),
        StructField("tables", StringType()),
        StructField("began", TimestampType(), False),
        StructField("format", LongType(), False),
    ]
)
FORMAT: Final = 1


class About(msgspec.Struct, frozen=True):
    """A run of a lake."""

    run: int
    application: str
    log: LogIdentity
    generation: int
    start: str
    tables: str | None
    """The tables that this lake mirrors, as they were named; None for all."""
    began: datetime


def read(spark: SparkSession, lake: Lake) -> About | None:
    """The newest run; None when there is no lake yet."""
    if not exists(spark, lake.about):
        return None
    row = load(spark, lake.about).withColumn("began", micros("began")).orderBy("run", ascending=False).first()
    if row is None:
        return None
    if row["format"] > FORMAT:
        raise LakeError(f"the lake {lake.path} was made by a newer Forge", fix="upgrade forge-changes")
    log = LogIdentity(row["log"], row["system_identifier"], row["timeline"])
    began = of_micros(row["began"])
    assert began is not None, "it is never null"
    return About(row["run"], row["application"], log, row["generation"], row["start"], row["tables"], began)


def begin(
    spark: SparkSession, lake: Lake, log: LogIdentity, *, generation: int, start: str, tables: str | None
) -> About:
    """Record a new run."""
    before = read(spark, lake)
    run = 1 if before is None else before.run + 1
    about = About(run, f"forge-{uuid.uuid4()}", log, generation, start, tables, datetime.now(UTC))
    row = (
        about.run,
        about.application,
        log.uuid,
        log.system_identifier,
        log.timeline,
        generation,
        start,
        tables,
        about.began,
        FORMAT,
    )
    frame = spark.createDataFrame([row], SCHEMA).coalesce(1)
    frame.write.format("delta").mode("append").save(lake.about)
    return about
