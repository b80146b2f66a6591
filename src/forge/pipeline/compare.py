"""Whether a lake is its database: `forge.pipeline.verify` at the snapshot that the lake stands at.

The lake must not move on meanwhile: whoever compares holds its lease (`forge.pipeline.lease`), or nobody else runs.
"""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from forge.errors import LakeError
from forge.pipeline import about as abouts
from forge.pipeline import ledger
from forge.pipeline.lake import Lake
from forge.pipeline.verify import Report, verify
from forge.postgres.connection import connect, typed_errors


def compare(spark: SparkSession, lake: Lake, url: str, tables: Sequence[str] | None = None) -> Report:
    """Compare the tables of a lake, all of them unless named, with the database as of where the lake stands."""
    about = abouts.need(spark, lake)
    with typed_errors(), connect(url) as connection:
        abouts.check(about, lake, connection)
    entry = ledger.last(spark, lake)
    if entry is None:
        raise LakeError(f"the lake {lake.path} has no batch yet", fix="forge pipeline run --once")
    if not entry.whole:
        raise LakeError(
            "the lake is in the midst of what one snapshot added", fix="forge pipeline run --once, then ask"
        )
    return verify(spark, lake, url, tables, snapshot=str(entry.cursor.snapshot))
