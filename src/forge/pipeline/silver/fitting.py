"""The rows of an era as its history takes them: changes of one table in, rows under the history's names out."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from forge.pipeline.definitions import Definition
from forge.pipeline.silver.layout import Era, Layout, Part
from forge.pipeline.silver.rows import rows
from forge.pipeline.silver.types import Types


class Placed(NamedTuple):
    """`read` is as that of `Rows`, under the history's names; `misfits` as MISFITS says."""

    read: DataFrame
    misfits: DataFrame

    @property
    def fitting(self) -> DataFrame:
        return self.read.where(F.col("_misfit").isNull()).drop("_misfit")


def placed(
    changes: DataFrame, definitions: Mapping[int, Definition], era: Era, types: Types | None = None
) -> Placed | None:
    """The rows of an era's changes, of those of its versions that are in `definitions`; None if none of them is."""
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


def complete(frame: DataFrame, layout: Layout) -> DataFrame:
    """The frame with all columns of a history's own; those that it has not are null."""
    have = set(frame.columns)
    lacking = {name: F.lit(None).cast(type) for name, type in layout.columns.items() if name not in have}
    return frame.withColumns(lacking) if lacking else frame


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """All rows of the frames; what one of them has not is null."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _placed(frame: DataFrame, part: Part) -> DataFrame:
    if not part.places:
        return frame
    names = F.create_map(*(F.lit(text) for pair in part.places.items() for text in pair))
    missing = F.transform("_missing", lambda name: F.coalesce(F.element_at(names, name), name))
    return frame.withColumnsRenamed(dict(part.places)).withColumn("_missing", missing)


def _marked(frame: DataFrame, era: Era) -> DataFrame:
    return frame if era.mark is None else frame.withColumn("_key", F.lit(era.mark))
