"""Check that a lake equals its database: run `forge.pipeline.verify` at the snapshot of the lake.

The lake must not advance during the comparison: the caller holds its lease (`forge.pipeline.lease`), or no run is
active.
"""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from forge.errors import LakeError
from forge.pipeline import about as abouts
from forge.pipeline import ledger
from forge.pipeline.lake import Lake
from forge.pipeline.verify import VerifyReport, verify
from forge.postgres.connection import connect, typed_errors


def compare(spark: SparkSession, lake: Lake, url: str, tables: Sequence[str] | None = None) -> VerifyReport:
    """Compare tables of a lake, by default all, with the database as of the lake's snapshot."""
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
