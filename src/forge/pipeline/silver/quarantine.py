"""Quarantine: rows that did not fit their types, each stored once, until an operator inspects them.

`lake.quarantine` has the columns of `forge.pipeline.silver.rows.MISFITS`. Stored misfits are not appended again, so a
batch may be repeated, and tables may append in parallel.
"""

import threading
from typing import Final, NamedTuple

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forge.pipeline.lake import Lake
from forge.pipeline.silver.rows import MISFITS
from forge.pipeline.tables import exists, load

_one_creates: Final = threading.Lock()


class QuarantineCount(NamedTuple):
    """The number of a table's rows that did not fit, by kind: the part of a reason before its colon."""

    table: str
    kind: str
    rows: int


def append(spark: SparkSession, lake: Lake, misfits: DataFrame, app: str, batch: int) -> None:
    """Store the misfits of one table. `app` and `batch` appear in Delta's history of the quarantine."""
    with _one_creates:
        if not exists(spark, lake.quarantine):
            DeltaTable.create(spark).location(lake.quarantine).addColumns(MISFITS).execute()
    kept = load(spark, lake.quarantine).select("seq", "id")
    new = misfits.join(kept, ["seq", "id"], "left_anti").select(*MISFITS.fieldNames()).coalesce(1)
    new.write.format("delta").mode("append").option("userMetadata", f"{app} {batch}").save(lake.quarantine)


def counts(spark: SparkSession, lake: Lake) -> list[QuarantineCount]:
    """Return the numbers of rows that did not fit, largest first."""
    if not exists(spark, lake.quarantine):
        return []
    name = F.concat_ws(".", "schema", "table").alias("name")
    kind = F.substring_index("reason", ":", 1).alias("kind")
    found = load(spark, lake.quarantine).groupBy(name, kind).count().orderBy(F.desc("count"), "name", "kind")
    return [QuarantineCount(*row) for row in found.collect()]
