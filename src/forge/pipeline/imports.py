"""Import archived events into a lake: into bronze once, then silver and gold, like any batch.

An import is identified by the content of its files (`forge.pipeline.archive.import_id`): importing the same files twice
is one import, even when the first was interrupted. Changes whose id bronze already has are skipped, and so are changes
that the lake's own stream has not reached yet, because the stream will bring them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, Literal

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from forge.cursor import Cursor
from forge.errors import LakeError
from forge.pipeline import about as abouts
from forge.pipeline import bronze, ledger, redaction
from forge.pipeline.about import LakeRun
from forge.pipeline.archive import read
from forge.pipeline.asof import unseen
from forge.pipeline.batch import found_in
from forge.pipeline.gold import refresh
from forge.pipeline.gold.states import forget
from forge.pipeline.lake import Lake
from forge.pipeline.silver import table
from forge.pipeline.tables import exists, load

SHOWN: Final = 5
"""The number of reasons for refused lines that are returned."""

POSITION: Final = r"[:,]? ?\(?(?:at )?(?:byte|position|character|line \d+ column|column) \d+\)?"


class Imported(msgspec.Struct, frozen=True):
    """The result of an import, with the number of refused lines; `reasons` are the most frequent, without positions."""

    changes: int
    tables: dict[str, int]
    quarantined: int
    refused: int
    reasons: dict[str, int]


def bring(
    spark: SparkSession,
    lake: Lake,
    paths: Sequence[str],
    envelope: Literal["forge", "debezium"] | None = None,
    *,
    keys: Mapping[str, Sequence[str]] | None = None,
    source: str | None = None,
    strict: bool = False,
) -> Imported:
    """Import the events of files into an existing lake; see `forge.pipeline.archive.read` for the options."""
    about, entry = abouts.need(spark, lake), ledger.last(spark, lake)
    if entry is None:
        raise LakeError(f"the lake {lake.path} has no batch yet", fix="forge pipeline run --once")
    known = bronze.definitions(spark, lake)
    archive = read(
        spark,
        list(paths),
        envelope=envelope,
        definitions=list(known.values()),
        generations=ledger.generations(spark, lake),
        keys=keys,
        source=source,
        strict=strict,
    )
    refused = _reasons(archive.refused)
    number = int(hashlib.sha256(archive.id.encode()).hexdigest()[:12], 16) % bronze.RUN
    bronze.keep(spark, lake, archive.definitions)
    changes = archive.unseen(load(spark, lake.changes)) if exists(spark, lake.changes) else archive.changes
    changes = changes.where(~_to_come(about, entry.cursor))
    bronze.append(changes, lake, f"forge-import-{archive.id}", 0, number, version=0)
    known = bronze.definitions(spark, lake)
    kept = bronze.batch_of(spark, lake, 0, number)
    found, _, _ = found_in(kept)
    quarantined = 0
    for each in found:
        mine = {version: one for version, one in known.items() if one.name == each.name}
        quarantined += table.take(
            spark,
            lake,
            mine,
            kept.where(F.concat_ws(".", "schema", "table") == each.name),
            application=f"forge-import-{archive.id}-{each.name}",
            batch=0,
            versions=frozenset(each.versions),
            most=each.changes,
            types=about.types,
        )
        redaction.obey(spark, lake, mine, load(spark, lake.changes), about.types)
    if found:
        refresh(spark, lake, kept)
        forget(spark, lake)
    return Imported(
        sum(each.changes for each in found),
        {each.name: each.changes for each in found},
        quarantined,
        sum(refused.values()),
        dict(islice(refused.items(), SHOWN)),
    )


def _reasons(refused: DataFrame) -> dict[str, int]:
    """Return the number of refused lines by reason, most frequent first. A position in the line is not a reason."""
    reason = F.regexp_replace("reason", POSITION, "").alias("reason")
    found = refused.groupBy(reason).count().orderBy(F.desc("count"), "reason").collect()
    return {row["reason"]: row["count"] for row in found}


def _to_come(about: LakeRun, cursor: Cursor) -> Column:
    """Return the condition that the lake's own stream will bring a change: it is of the lake's log and of a mirrored
    table."""
    own = F.col("id").startswith(f"{about.log.uuid}:") & F.expr(unseen("`transaction`", cursor.snapshot))
    if about.tables is not None:
        names = about.tables.split(",")
        own = own & (F.col("table").isin(names) | F.concat_ws(".", "schema", "table").isin(names))
    return F.coalesce(own, F.lit(False))
