"""Whether a lake is its database: `forge.pipeline.verify` at the snapshot that the lake stands at."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from forge.errors import LakeError
from forge.pipeline import ledger
from forge.pipeline.lake import Lake
from forge.pipeline.verify import Report, verify


def compare(spark: SparkSession, lake: Lake, url: str, tables: Sequence[str] | None = None) -> Report:
    """Compare the tables of a lake, all of them unless named, with the database as of where the lake stands."""
    entry = ledger.last(spark, lake)
    if entry is None:
        raise LakeError(f"there is no lake at {lake.path}", fix="forge pipeline run --once")
    if not entry.whole:
        raise LakeError(
            "the lake is in the midst of what one snapshot added", fix="forge pipeline run --once, then ask"
        )
    return verify(spark, lake, url, tables, snapshot=str(entry.cursor.snapshot))
