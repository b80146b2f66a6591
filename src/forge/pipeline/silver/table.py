"""Bring a table's changes into its silver: typed, misfits to quarantine, the others to history and current.

The step is idempotent: repeating the same changes, or any of them in any order, gives the same result.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from forge.errors import LakeError
from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.silver import quarantine, tables
from forge.pipeline.silver.ends import ends
from forge.pipeline.silver.layout import layout
from forge.pipeline.silver.merge import merge
from forge.pipeline.silver.row_shaping import complete, keys_of, placed
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
    most: int | None = None,
) -> int:
    """Bring in changes of one table with these versions; return the number of rows that did not fit.

    `definitions` are all that the table ever had; `whole` is false when the changes contain no whole-table event;
    `most` is the number of changes of rows, if it is known.
    """
    if lacking := versions - definitions.keys():
        raise LakeError(
            f"the lake does not know how a table was defined in version {min(lacking)}",
            fix="restore that row of forge.table_version, or forge pipeline run --resnapshot",
        )
    plan = layout(definitions.values(), types)
    tables.prepare(spark, lake, plan)
    ended = ends(changes) if whole else []
    present = {version: definitions[version] for version in versions}
    quarantined = 0
    for era in plan.eras:
        found = placed(changes, present, era, types)
        if found is None:
            continue
        read = complete(found.read, plan)
        merged = merge(spark, lake, plan, era, read, ended, keys=keys_of(changes, versions, era, plan), most=most)
        if merged.left_out and (misfits := found.misfits.count()):
            quarantine.append(spark, lake, found.misfits, application, batch)
            quarantined += misfits
    return quarantined
