"""Silver made again from bronze is the silver that batches have made."""

import pytest
from pyspark.sql import SparkSession

from forge.errors import LakeError
from forge.pipeline.lake import Lake
from forge.pipeline.silver.replay import replay
from tests.pipeline.evolving import change, contents, define, take

pytestmark = pytest.mark.long


def test_a_replay_gives_what_batches_have_made(spark: SparkSession, lake: Lake) -> None:
    first = define(1, "id", id="integer", n="integer", kind="text")
    second = define(2, "id", id="integer", n="integer", kind="integer")
    take(
        spark,
        lake,
        [first],
        [
            change("0000a", "insert", 1, {"id": 1, "n": 1, "kind": "a"}),
            change("0000b", "update", 1, {"id": 1, "kind": "b"}),
            change("0000c", "insert", 1, {"id": 2, "n": 1, "kind": "a"}),
        ],
    )
    take(
        spark,
        lake,
        [second],
        [
            change("0001", "snapshot", 2),
            change("0001!", "read", 2, {"id": 1, "n": 1, "kind": 5}),
            change("0001d", "delete", 2, {"id": 1, "n": 1, "kind": 5}),
            change("0001e", "insert", 2, {"id": 3, "n": 2**40, "kind": 5}),
            change("0001f", "insert", 2, {"id": 4, "n": 4, "kind": 5}),
        ],
    )
    paths = [lake.history("public.orders"), lake.current("public.orders")]
    before = [contents(spark, path) for path in paths]
    spark.sql(f"DELETE FROM delta.`{paths[0]}` WHERE id = 1")
    spark.sql(f"UPDATE delta.`{paths[1]}` SET n = 77")

    steps: dict[str, int] = {}
    done = replay(spark, lake, "public.orders", progress=steps.__setitem__)
    assert [contents(spark, path) for path in paths] == before
    assert (done.history, done.current, done.misfits) == (len(before[0]), len(before[1]), 1) == (6, 1, 1)
    assert steps == {"read": 7, "quarantine": 1, "history": 6, "current": 1}
    assert [row["id"] for row in spark.read.format("delta").load(lake.quarantine).collect()] == ["0001e"]


def test_a_table_that_the_lake_does_not_know_cannot_be_replayed(spark: SparkSession, lake: Lake) -> None:
    with pytest.raises(LakeError, match=r"no changes of public\.nothing"):
        replay(spark, lake, "public.nothing")
