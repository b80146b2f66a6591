"""Sessions: quiet, with Delta, and what the caller sets is what holds."""

from pyspark.sql import SparkSession

from forge.pipeline.lake import Lake


def test_a_session_reads_and_writes_delta(spark: SparkSession, lake: Lake) -> None:
    spark.range(3).write.format("delta").save(lake.changes)
    assert spark.read.format("delta").load(lake.changes).count() == 3
