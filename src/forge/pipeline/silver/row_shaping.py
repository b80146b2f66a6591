"""Rows of an era in the shape of its history: changes of one table in, rows under the history's names out."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, ShortType

from forge.pipeline.definitions import Definition
from forge.pipeline.silver.layout import Era, Layout, VersionGroup
from forge.pipeline.silver.rows import ROW_OPS, applies, renamed, rows
from forge.pipeline.silver.types import Types


class Placed(NamedTuple):
    """`read` is that of `Rows`, under the history's names; `misfits` has the columns of MISFITS."""

    read: DataFrame
    misfits: DataFrame

    @property
    def fitting(self) -> DataFrame:
        """The rows that are versions of their keys: those that fit, and misfits whose key does."""
        return self.read.where(applies()).drop("_misfit")


def placed(
    changes: DataFrame, definitions: Mapping[int, Definition], era: Era, types: Types | None = None
) -> Placed | None:
    """Return the rows of an era's changes, of its versions in `definitions`; None if there are none."""
    found = []
    for part in era.parts:
        known = {version: definitions[version] for version in sorted(part.versions & definitions.keys())}
        if known:
            of_these = rows(changes.where(F.col("version").isin(*known)), known, part.target, types)
            found.append(Placed(_placed(of_these.read, part), of_these.misfits))
    if not found:
        return None
    read, misfits = zip(*found, strict=True)
    return Placed(_marked(union(read), era), union(misfits))


def keys_of(changes: DataFrame, versions: frozenset[int], era: Era, layout: Layout) -> DataFrame | None:
    """Return the keys of an era's rows with their `_seq`, read from `row_id` alone, where that is the text of an
    integer.

    A change with another `row_id` has a null key.
    """
    type = layout.columns.get(era.key[0])
    if len(era.key) > 1 or not isinstance(type, (ShortType, IntegerType, LongType)):
        return None
    mine = frozenset[int]().union(*(part.versions for part in era.parts)) & versions
    mine_only = F.col("op").isin(*ROW_OPS) & F.col("version").isin(*sorted(mine))
    key = F.col("row_id").try_cast(type).alias(era.key[0])
    return changes.where(mine_only).select(key, F.col("seq").alias("_seq"))


def complete(frame: DataFrame, layout: Layout) -> DataFrame:
    """Return the frame with all columns of the table in the history; missing ones are null."""
    have = set(frame.columns)
    lacking = {name: F.lit(None).cast(type) for name, type in layout.columns.items() if name not in have}
    return frame.withColumns(lacking) if lacking else frame


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return all rows of the frames; missing columns are null."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _placed(frame: DataFrame, part: VersionGroup) -> DataFrame:
    if not part.places:
        return frame
    lists = {name: renamed(F.col(name), part.places) for name in ("_missing", "_redacted", "_unfit")}
    return frame.withColumnsRenamed(dict(part.places)).withColumns(lists)


def _marked(frame: DataFrame, era: Era) -> DataFrame:
    return frame if era.mark is None else frame.withColumn("_key", F.lit(era.mark))
