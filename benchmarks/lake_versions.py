"""The change version of every document of a lake, derived by Spark: documents a second, with five references each.

The lake's tables are made by Spark; what is timed is reading them, the derivation, and taking every row of the result.
Transitive: a tenth of the references are in an identity, in chains of up to three; each further one costs a round.
"""

from time import perf_counter

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_least, figure
from benchmarks.lakes import sparked
from forge.pipeline.lake import Lake
from forge.pipeline.versions import derived, of_lake

LEAST = 200_000
EDGES = 5


def run(bench: Bench) -> list[Figure]:
    """Rounds over one lake."""
    rounds, documents = (3, 100_000) if bench.quick else (5, 1_000_000)
    direct, transitive = [], []
    with sparked() as (spark, folder):
        lake = Lake(str(folder / "lake"))
        bench.say(f"a lake of {documents:,} documents and {documents * EDGES:,} references")
        _make(spark, lake, documents)
        for turn in range(rounds + 1):  # the first warms up
            bench.say(f"deriving versions, round {turn} of {rounds}")
            direct.append(documents / _seconds(spark, lake, transitive=False))
            transitive.append(documents / _seconds(spark, lake, transitive=True))
    return [
        at_least(figure("lake_versions", f"{documents:,} documents", direct[1:], "rate"), LEAST),
        figure("lake_versions", "the same, identities that contain others", transitive[1:], "rate"),
    ]


def _make(spark: SparkSession, lake: Lake, documents: int) -> None:
    ids = spark.range(1, documents + 1)
    stamps = [
        (F.xxhash64("id", F.lit(seed)) % documents + documents).alias(name)
        for seed, name in enumerate(("content_version", "identity_version"))
    ]
    # of eight documents the first contains the third, that the fifth, that and the seventh contain others
    contained = F.element_at(F.create_map(*(F.lit(n) for n in (0, 2, 2, 4, 4, 1, 6, 1))), (F.col("id") % 8).cast("int"))
    any_of = F.abs(F.xxhash64("id", "n"))
    inside = (F.col("n") == 0) & (F.col("id") % 2 == 0)
    frames = {
        "document": ids.select("id", (F.col("id") % 50 + 1).cast("int").alias("resource"), *stamps),
        "reference": ids.crossJoin(F.broadcast(spark.range(EDGES).withColumnRenamed("id", "n"))).select(
            F.col("id").alias("parent"),
            F.when(inside, any_of % (documents // 8) * 8 + contained).otherwise(any_of % documents + 1).alias("child"),
            inside.alias("in_identity"),
        ),
        "resource": spark.range(1, 51).selectExpr(
            "int(id) AS id", "'ed-fi' AS project", "concat('r', id) AS name", "'5' AS version"
        ),
    }
    for name, frame in frames.items():
        frame.write.format("delta").save(lake.current(f"forge_versions.{name}"))


def _seconds(spark: SparkSession, lake: Lake, *, transitive: bool) -> float:
    began = perf_counter()
    derived(of_lake(spark, lake), transitive=transitive).write.format("noop").mode("overwrite").save()
    return perf_counter() - began
