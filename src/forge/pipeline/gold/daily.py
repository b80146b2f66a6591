"""Daily aggregates: who changed what, activity, churn. Days of bronze in, three small tables out.

gold/who        day, table, user_id, session_user: inserts, updates, deletes, truncates, changes
gold/activity   day, hour, table: changes, transactions, users
gold/churn      day, table: inserts, updates, deletes, truncates, changes, touched, again, gone, batch

Of the rows `touched` on a day, `again` were changed more than once, and `gone` are deleted at its end; all three are
null for a table without a key. `batch` is the last batch that is counted.

A day that a batch touches is computed again from bronze, whole, and replaced in one commit per table. So these tables
are functions of bronze: a batch that comes twice, late or in another order leaves them correct, and the next run
repairs any interruption. Sums per batch would be cheaper for a busy day, but cannot count distinct rows, transactions
or users. The cost of a busy day is bounded by refreshing less often the longer a refresh takes: see `Gold`.

Aggregates of days purged from bronze stay in these tables: purged days are not touched again.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from forge.pipeline.horizon import CHANGES, horizons
from forge.pipeline.lake import Lake
from forge.pipeline.tables import day_of, exists, load

OPS: Final = ("insert", "update", "delete", "truncate")
"""Operations of users on rows; reads of a snapshot are not among them."""

WHO: Final = "who"
ACTIVITY: Final = "activity"
CHURN: Final = "churn"


def days_of(changes: DataFrame) -> set[date]:
    """Return the days that have changes."""
    return {row["day"] for row in _changed(changes).select("day").distinct().collect()}


def missed(spark: SparkSession, lake: Lake) -> set[date]:
    """Return the days of batches that are in bronze and not counted yet."""
    if not exists(spark, lake.changes):
        return set()
    changes = load(spark, lake.changes)
    if exists(spark, lake.gold(CHURN)):
        last = load(spark, lake.gold(CHURN)).agg(F.max("batch")).first()
        if last is not None and last[0] is not None:
            changes = changes.where(F.col("batch") > last[0])
    return days_of(changes)


def refresh(spark: SparkSession, lake: Lake, days: Iterable[date]) -> list[date]:
    """Compute those of these days that bronze has completely; return them."""
    wanted = sorted(days)
    if not wanted:
        return []
    since = horizons(spark, lake).get(CHANGES)
    whole = [day for day in wanted if since is None or day >= since.date()]
    if not whole:
        return []
    condition = f"day IN ({', '.join(map(repr, map(str, whole)))})"
    changes = _changed(load(spark, lake.changes).where(condition))
    with ThreadPoolExecutor(2) as pool:
        others = ((WHO, who_of(changes)), (ACTIVITY, activity_of(changes)))
        list(pool.map(lambda each: _replace(each[1], lake.gold(each[0]), condition), others))
    # Last, because its `batch` marks the refresh as complete.
    _replace(churn_of(changes), lake.gold(CHURN), condition)
    return whole


def who_of(changes: DataFrame) -> DataFrame:
    return changes.groupBy("day", _table(), "user_id", "session_user").agg(*_counts())


def activity_of(changes: DataFrame) -> DataFrame:
    """Aggregate by hour in UTC, independent of the session's time zone."""
    hour = F.timestamp_seconds(F.expr("unix_seconds(at) div 3600 * 3600")).alias("hour")
    return changes.groupBy("day", hour, _table()).agg(
        F.count("*").alias("changes"),
        F.count_distinct("transaction").alias("transactions"),
        F.count_distinct("user_id").alias("users"),
    )


def churn_of(changes: DataFrame) -> DataFrame:
    rows = changes.groupBy("day", _table(), "row_id").agg(
        *_counts(), F.max_by("op", "seq").alias("last"), F.max("batch").alias("batch")
    )
    keyed = F.col("row_id").isNotNull()
    sums = [f"{op}s" for op in OPS] + ["changes"]
    return rows.groupBy("day", "table").agg(
        *(F.sum(name).alias(name) for name in sums),
        _rows(keyed).alias("touched"),
        _rows(keyed & (F.col("changes") > 1)).alias("again"),
        _rows(keyed & (F.col("last") == "delete")).alias("gone"),
        F.max("batch").alias("batch"),
    )


def churn(spark: SparkSession, lake: Lake, table: str) -> DataFrame:
    """Return the churn of one table, with `rows`, its row count at the end of the day, and `share`, the part touched.

    The share is of all rows that existed at the day's end or were deleted that day. Row counts come from two columns of
    the history.
    """
    history = load(spark, lake.history(table)).where("_op <> 'delete'")
    steps = history.select(day_of("_valid_from"), F.lit(1).alias("step")).unionByName(
        history.where("_valid_to IS NOT NULL").select(day_of("_valid_to"), F.lit(-1).alias("step"))
    )
    so_far = Window.orderBy("day").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    daily = steps.groupBy("day").agg(F.sum("step").alias("step"))
    sizes = daily.select("day", F.sum("step").over(so_far).alias("rows"))
    found = load(spark, lake.gold(CHURN)).where(F.col("table") == table).join(sizes, "day", "left")
    return found.withColumn("share", F.try_divide(F.col("touched"), F.col("rows") + F.col("gone")))


def _changed(changes: DataFrame) -> DataFrame:
    return changes.where(F.col("op").isin(*OPS))


def _table() -> Column:
    return F.concat_ws(".", "schema", "table").alias("table")


def _counts() -> list[Column]:
    return [*(F.count_if(F.col("op") == op).alias(f"{op}s") for op in OPS), F.count("*").alias("changes")]


def _rows(condition: Column) -> Column:
    """Return the number of rows, or null when the table has no key."""
    return F.when(F.count("row_id") > 0, F.count_if(condition))


def _replace(rows: DataFrame, path: str, condition: str) -> None:
    """Replace the days that the condition names by these rows: whole partitions, so nothing is read."""
    writer = rows.write.format("delta").mode("overwrite")
    if exists(rows.sparkSession, path):
        writer.option("replaceWhere", condition).save(path)
    else:
        writer.partitionBy("day").save(path)
