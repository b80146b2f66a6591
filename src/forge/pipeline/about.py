"""Lake metadata: one row per run; the newest row wins.

A run is a stream with its own checkpoint. Reading the tables again begins another run, whose generation comes after
everything in the lake. `application` names the run to Delta, which writes a batch of one application only once. The
type of json and jsonb columns is chosen when a lake begins and never changes.
"""

import uuid
from datetime import datetime
from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from forge.changelog.queries import query
from forge.cursor import LogIdentity
from forge.errors import LakeError, NotInstalled
from forge.pipeline.lake import Lake
from forge.pipeline.local import no_lake
from forge.pipeline.silver.types import Types
from forge.pipeline.tables import exists, load, micros, of_micros
from forge.postgres.connection import Connection

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
        StructField("json", StringType(), False),
        StructField("began", TimestampType(), False),
        StructField("format", LongType(), False),
    ]
)
FORMAT: Final = 1


class LakeRun(msgspec.Struct, frozen=True):
    """A run of a lake."""

    run: int
    application: str
    log: LogIdentity
    generation: int
    start: str
    tables: str | None
    """The tables that this lake mirrors, as the user named them; None for all."""
    types: Types
    began: datetime
    """The start of the run, by the clock of the database."""


def read(spark: SparkSession, lake: Lake) -> LakeRun | None:
    """Return the newest run; None when the lake does not exist."""
    if not exists(spark, lake.about):
        return None
    row = load(spark, lake.about).withColumn("began", micros("began")).orderBy("run", ascending=False).first()
    if row is None:
        return None
    if row["format"] > FORMAT:
        raise LakeError(f"the lake {lake.path} was made by a newer Forge", fix="upgrade forge-changes")
    return LakeRun(
        row["run"],
        row["application"],
        LogIdentity(row["log"], row["system_identifier"], row["timeline"]),
        row["generation"],
        row["start"],
        row["tables"],
        Types(row["json"]),
        of_micros(row["began"]),
    )


def need(spark: SparkSession, lake: Lake) -> LakeRun:
    """Return the newest run of a lake that must exist."""
    about = read(spark, lake)
    if about is None:
        raise no_lake(lake)
    return about


def breaks(spark: SparkSession, lake: Lake) -> list[datetime]:
    """The times when the tables were read again: the lake lacks the changes just before each of them."""
    if not exists(spark, lake.about):
        return []
    return [of_micros(row[0]) for row in load(spark, lake.about).where("run > 1").select(micros("began")).collect()]


def identity(connection: Connection) -> LogIdentity:
    """Return the identity of the database's log."""
    row = connection.execute(query("identity")).fetchone()
    if row is None:
        raise NotInstalled("Forge is not installed in this database", fix="forge init")
    return LogIdentity(row[0], row[1], row[2])


def check(about: LakeRun, lake: Lake, connection: Connection) -> None:
    """Raise unless the lake mirrors this database, possibly from before a failover or restore."""
    if about.log == identity(connection):
        return
    was = "SELECT FROM forge.log_identity i WHERE i.uuid::text = %s"
    if connection.execute(was, (about.log.uuid,)).fetchone() is None:
        raise LakeError(
            f"the lake {lake.path} is that of another database", fix="give another --lake, or the database it mirrors"
        )


def begin(
    spark: SparkSession,
    lake: Lake,
    connection: Connection,
    *,
    generation: int,
    start: str,
    tables: str | None,
    types: Types,
) -> LakeRun:
    """Record a new run."""
    before = read(spark, lake)
    run = 1 if before is None else before.run + 1
    log = identity(connection)
    now = connection.execute("SELECT clock_timestamp()").fetchone()
    assert now is not None
    about = LakeRun(run, f"forge-{uuid.uuid4()}", log, generation, start, tables, types, now[0])
    row = (
        about.run,
        about.application,
        log.uuid,
        log.system_identifier,
        log.timeline,
        generation,
        start,
        tables,
        types.json,
        about.began,
        FORMAT,
    )
    frame = spark.createDataFrame([row], SCHEMA).coalesce(1)
    frame.write.format("delta").mode("append").save(lake.about)
    return about
