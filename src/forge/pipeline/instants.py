"""Instants available to as-of: pairs of a time and the snapshot committed by then, copied from `forge.instant`.

Everything that the snapshot of a pair sees was committed before its time. A pair is copied only after everything that
its snapshot sees is in the lake's silver, so every copied pair can be answered. A lookup finds the last pair at or
before an instant, and only that pair reaches the driver.

Pairs from a period in which the lake did not follow the log are not copied: after a resnapshot, the pairs from before
it. An instant in such a period is refused.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from forge.cursor import Snapshot
from forge.errors import HistoryUnavailable
from forge.pipeline.about import breaks
from forge.pipeline.lake import Lake
from forge.pipeline.tables import exists, load, of_micros

SCHEMA: Final = StructType([StructField("at", TimestampType(), False), StructField("snapshot", StringType(), False)])

_LIKELY: Final = timedelta(days=1)
"""The usual distance to a recorded instant is less; the first lookup lets Delta read only the files of that period."""


class Instant(msgspec.Struct, frozen=True):
    """A recorded instant: what `snapshot` sees was committed before `at`."""

    at: datetime
    snapshot: Snapshot


def copy(spark: SparkSession, lake: Lake, rows: Iterable[tuple[datetime, str]]) -> int:
    """Copy the pairs that are newer than the newest copied pair; return their number."""
    given = sorted(set(rows))
    if not given:
        return 0
    known = newest(spark, lake, since=given[0][0])
    fresh = [pair for pair in given if known is None or pair[0] > known]
    if fresh:
        spark.createDataFrame(fresh, SCHEMA).coalesce(1).write.format("delta").mode("append").save(lake.instants)
    return len(fresh)


def covered(rows: Iterable[tuple[datetime, str]], position: Snapshot) -> list[tuple[datetime, str]]:
    """Return the pairs whose snapshots the lake has reached at this position.

    >>> pairs = [(datetime(2026, 1, 1, 12, 0, second), text) for second, text in enumerate(["5:7:5", "5:9:", "9:9:"])]
    >>> [text for _, text in covered(pairs, Snapshot.parse("5:9:5"))]
    ['5:7:5']
    """
    return [(at, snapshot) for at, snapshot in rows if position.covers(Snapshot.parse(snapshot))]


def following(rows: Iterable[tuple[datetime, str]], began: Snapshot) -> list[tuple[datetime, str]]:
    """Return the pairs whose snapshots see everything that a run began with.

    >>> pairs = [(datetime(2026, 1, 1, 12, 0, second), text) for second, text in enumerate(["5:7:5", "5:9:", "9:9:"])]
    >>> [text for _, text in following(pairs, Snapshot.parse("9:9:"))]
    ['5:9:', '9:9:']
    """
    return [(at, snapshot) for at, snapshot in rows if Snapshot.parse(snapshot).covers(began)]


def newest(spark: SparkSession, lake: Lake, *, since: datetime | None = None) -> datetime | None:
    """Return the time of the newest pair, optionally only of pairs since a time; None when there is none."""
    if not exists(spark, lake.instants):
        return None
    rows = load(spark, lake.instants)
    if since is not None:
        return _time(rows.where(F.col("at") >= F.lit(since)), F.max)
    lately = rows.where(F.col("at") >= F.lit(datetime.now(UTC) - _LIKELY))
    return _time(lately, F.max) or _time(rows, F.max)


def span(spark: SparkSession, lake: Lake) -> tuple[datetime, datetime] | None:
    """Return the times of the oldest and the newest pair."""
    if not exists(spark, lake.instants):
        return None
    rows = load(spark, lake.instants)
    first, last = _time(rows, F.min), _time(rows, F.max)
    return None if first is None or last is None else (first, last)


def at_or_before(spark: SparkSession, lake: Lake, instant: datetime) -> Instant:
    """Return the last recorded instant at or before this one; raise HistoryUnavailable when it is before the first."""
    if instant.tzinfo is None:
        raise HistoryUnavailable("the instant has no time zone", fix="pass an aware datetime")
    if not exists(spark, lake.instants):
        raise HistoryUnavailable(
            f"the lake {lake.path} has no recorded instants",
            fix="forge pipeline run copies them, if a node of Forge runs and records them",
        )
    rows = load(spark, lake.instants).where(F.col("at") <= F.lit(instant))
    for some in (rows.where(F.col("at") > F.lit(instant - _LIKELY)), rows):
        found = some.orderBy(F.col("at").desc()).select(F.unix_micros("at"), "snapshot").first()
        if found is not None:
            _refuse_gap(spark, lake, of_micros(found[0]), instant)
            return Instant(of_micros(found[0]), Snapshot.parse(found[1]))
    first = _time(load(spark, lake.instants), F.min)
    raise HistoryUnavailable(
        f"{instant.isoformat()} is before the first instant that the lake can tell of",
        fix=f"ask for an instant from {first.isoformat()} on" if first else "ask again when something has changed",
    )


def _refuse_gap(spark: SparkSession, lake: Lake, last: datetime, instant: datetime) -> None:
    """Raise when tables were read again between the last pair and the next one: the log in between is lost."""
    after = [at for at in breaks(spark, lake) if at > last]
    if instant == last or not after:
        return
    following = _time(load(spark, lake.instants).where(F.col("at") > F.lit(last)), F.min)
    if following is None or min(after) <= following:
        later = f", or from {following.isoformat()} on" if following else ""
        raise HistoryUnavailable(
            f"{instant.isoformat()} is unknown: the lake did not follow the log then, and was read anew",
            fix=f"ask for an instant up to {last.isoformat()}{later}",
        )


def _time(rows: DataFrame, of: Callable[[Column], Column]) -> datetime | None:
    found = rows.agg(of(F.unix_micros("at"))).first()
    return None if found is None or found[0] is None else of_micros(found[0])
