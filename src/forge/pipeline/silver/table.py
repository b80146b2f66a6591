"""A table's changes into its silver: typed, the misfits to quarantine, the rest into history and current.

It may be done again with the same changes, or with any of them in any order, and the result is the same.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.silver import quarantine, tables
from forge.pipeline.silver.ends import ends
from forge.pipeline.silver.layout import Era, Part, layout
from forge.pipeline.silver.merge import merge
from forge.pipeline.silver.rows import Rows, rows
from forge.pipeline.silver.types import Types


def take(
    spark: SparkSession,
    lake: Lake,
    definitions: Mapping[int, Definition],
    changes: DataFrame,
    *,
    application: str,
    batch: int,
    versions: frozenset[int],
    whole: bool = True,
    types: Types | None = None,
) -> int:
    """Take in changes of one table, which have these versions; how many rows did not fit.

    `definitions` are all that the table ever had; `whole` is false when nothing happened to the table as a whole.
    """
    plan = layout(definitions.values(), types)
    tables.prepare(spark, lake, plan)
    ended = ends(changes) if whole else []
    quarantined = 0
    for era in plan.eras:
        parts = [part for part in era.parts if part.versions & versions]
        if not parts and not (ended and era == plan.era):
            continue
        counts = [Observation() for _ in parts]
        read = [_rows(changes, definitions, part, types) for part in parts]
        fitting = [_placed(found, part, count) for found, part, count in zip(read, parts, counts, strict=True)] or [
            _placed(_rows(changes, definitions, era.parts[-1], types), era.parts[-1], Observation())
        ]
        frame = fitting[0]
        for other in fitting[1:]:
            frame = frame.unionByName(other, allowMissingColumns=True)
        merge(spark, lake, plan, era, _marked(frame, era), ended)
        for found, count in zip(read, counts, strict=True):
            if misfits := count.get["misfits"]:
                quarantine.append(spark, lake, found.misfits, application, batch)
                quarantined += misfits
    return quarantined


def _rows(changes: DataFrame, definitions: Mapping[int, Definition], part: Part, types: Types | None) -> Rows:
    mine = changes.where(F.col("version").isin(*part.versions))
    return rows(mine, {version: definitions[version] for version in part.versions}, part.target, types)


def _placed(found: Rows, part: Part, count: Observation) -> DataFrame:
    """The rows that fit, under the history's names; the others are counted as they pass."""
    misfit = F.col("_misfit").isNotNull()
    counted = found.read.observe(count, F.count_if(misfit).alias("misfits"))
    fitting = counted.where(~misfit).drop("_misfit")
    return fitting.withColumnsRenamed({name: place for name, place in part.places.items() if name != place})


def _marked(frame: DataFrame, era: Era) -> DataFrame:
    if era.mark is None or not era.keyed:
        return frame
    return frame.withColumn("_key", F.lit(era.mark))
