"""Chain versions: arriving rows and stored versions in, versions with their ends out.

This module reads and writes no tables: frames come in and frames go out. The history of a table is a fold over its
changes and ends in the order of `_seq`. The rows alive before `_seq` s depend on nothing at or after s, so arriving
changes affect no version that ended before the smallest arriving `_seq`, `since`. The fold continues from there and
needs, and may change, only

- the versions alive at `since`: those that begin before it and have no end, or one at or after it. In a table with a
  key that is at most one version per row, in a table without one the queue of equal rows from which a delete takes the
  oldest;
- the versions at or after `since`, whose end, if any, is also at or after it (a delete ends itself).

Both are the versions with `_end_seq IS NULL OR _end_seq >= since`, and `concerned` selects exactly these: of the
arriving keys, or of all keys if an end of the whole table arrives. The comparison is `>=`, because a version that ended
at `since` was ended by a change that arrives again.

The result is a function of the set of changes: it is the same for any order and any number of arrivals.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, cast

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import VariantType

from forge.pipeline.silver.ends import End
from forge.pipeline.silver.rows import quoted

DELETE: Final = "delete"
SLIM: Final = ("_seq", "_end_seq", "_op", "_valid_from", "_transaction")
"""The columns of stored versions that `chain` needs beside their key, unless values are carried forward."""

MARKS: Final = ("_:stored", "_:given", "_:changed", "_:last", "_:was")

_FANOUT = 32


def versions(existing: DataFrame | None, fitting: DataFrame, ends: Sequence[End], key: Sequence[str]) -> DataFrame:
    """Return the versions that are new, or that have another end than the stored one."""
    return chain(existing, fitting, ends, key).where(F.col("_:changed")).drop(*MARKS)


def concerned(
    history: DataFrame, keys: DataFrame | None, since: str, key: Sequence[str], columns: Sequence[str]
) -> DataFrame:
    """Return the part of a history that `chain` needs when rows of these keys arrive; `keys=None` when an end arrives.

    `since` is the smallest arriving `_seq`, of rows and ends.
    """
    alive = history.where(F.col("_end_seq").isNull() | (F.col("_end_seq") >= since)).select(*columns)
    return alive if keys is None else alive.join(keys, list(key), "left_semi")


def chain(
    existing: DataFrame | None,
    fitting: DataFrame,
    ends: Sequence[End],
    key: Sequence[str],
    *,
    carried: Sequence[str] = (),
) -> DataFrame:
    """Return every version in `existing` or `fitting` with its end, and marks for the merge.

    `_:stored`: it is in `existing`; `_:given`: it is in `fitting`; `_:changed`: it is not stored, or differs from the
    stored one, or has values that did not fit before; `_:last`: it is the last of its key; `_:was`: the stored
    `_end_seq`.

    `existing` has at least the key and `SLIM`. With names in `carried` it has all columns, and `_missing`; then a value
    that a row lacks is that of the version which it ended, if any. `ends` are all ends of the table from the smallest
    arriving `_seq` on. Without a key `key` is `("_key",)`, and equal rows form a queue: a delete ends the oldest of
    them.
    """
    # With this hint Spark shuffles rows once, by key; otherwise it would first shuffle by key and `_seq`.
    rows = _both(existing, fitting).repartition(*map(quoted, key))
    rows = _single(rows, key, prefer_stored=bool(carried))
    rows = rows.withColumn("_:upcoming", upcoming(F.col("_seq"), ends))
    rows = _queued(rows) if tuple(key) == ("_key",) else _followed(rows, key)
    deletes = F.col("_op") == DELETE
    end = F.when(deletes, _itself()).otherwise(F.col("_:ender"))
    rows = rows.withColumns(
        {
            "_end_seq": end["seq"],
            "_valid_to": end["at"],
            "_end_transaction": end["transaction"],
            "_is_current": end["seq"].isNull(),
            "_:changed": ~F.col("_:stored") | ~end["seq"].eqNullSafe(F.col("_:was")) | F.col("_:refit"),
        }
    )
    if carried:
        rows = _carried(rows, key, carried)
    return rows.drop("_:upcoming", "_:ender", "_:refit")


def upcoming(seq: Column, ends: Sequence[End]) -> Column:
    """Return the first end that is larger than `seq`, a struct of `seq`, `at` and `transaction`, or null."""
    known = {end.seq: end for end in ends}
    if not known:
        return F.lit(None).cast("struct<seq: string, at: timestamp, transaction: bigint>")
    return _first_after(seq, [known[each] for each in sorted(known)])


def _first_after(seq: Column, ends: Sequence[End]) -> Column:
    """Build a search tree as an expression: a row is compared to a few times `_FANOUT` of thousands of ends."""
    if len(ends) <= _FANOUT:
        later = F.filter(_literal(ends), lambda end: end["seq"] > seq)
        return F.get(F.transform(later, _timed), F.lit(0))
    size = max(_FANOUT, -(-len(ends) // _FANOUT))
    found: Any = F
    for start in range(0, len(ends), size):
        part = ends[start : start + size]
        found = found.when(seq < part[-1].seq, _first_after(seq, part))
    return cast(Column, found)


def _literal(ends: Sequence[End]) -> Column:
    """Return the ends as one constant, which costs one call to the JVM and not one per part."""
    parts = [{"seq": end.seq, "micros": end.micros, "transaction": end.transaction} for end in ends]
    return F.from_json(F.lit(json.dumps(parts)), "array<struct<seq: string, micros: bigint, transaction: bigint>>")


def _timed(end: Column) -> Column:
    return F.struct(
        end["seq"].alias("seq"), F.timestamp_micros(end["micros"]).alias("at"), end["transaction"].alias("transaction")
    )


def _itself() -> Column:
    return F.struct(
        F.col("_seq").alias("seq"), F.col("_valid_from").alias("at"), F.col("_transaction").alias("transaction")
    )


def _both(existing: DataFrame | None, fitting: DataFrame) -> DataFrame:
    nothing = F.lit(None).cast("string")
    given = fitting.withColumnRenamed("_at", "_valid_from").withColumns({"_:stored": F.lit(False), "_:was": nothing})
    if "_unfit" not in given.columns:
        given = given.withColumn("_unfit", F.lit(None).cast("array<string>"))
    if existing is None:
        return given
    kept = [name for name in existing.columns if name in given.columns]
    stored = existing.select(*map(quoted, kept), F.lit(True).alias("_:stored"), F.col("_end_seq").alias("_:was"))
    return given.unionByName(stored, allowMissingColumns=True)


def _single(rows: DataFrame, key: Sequence[str], *, prefer_stored: bool) -> DataFrame:
    """Return one row per version, without duplicates."""
    preferred = F.col("_:stored").desc() if prefer_stored else F.col("_:stored")
    # One order for all, so that Spark sorts once, also for the following steps.
    same = Window.partitionBy(*map(quoted, key), "_seq").orderBy(preferred)
    all_of_them = same.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    return (
        rows.withColumns(
            {
                "_:number": F.row_number().over(same),
                "_:given": F.max(~F.col("_:stored")).over(all_of_them),
                "_:was": F.max("_:was").over(all_of_them),
                "_:any": F.max("_:stored").over(all_of_them),
                "_:unfit": F.max(F.col("_:stored") & F.col("_unfit").isNotNull()).over(all_of_them),
            }
        )
        .where(F.col("_:number") == 1)
        .withColumns(
            {
                "_:refit": F.col("_:unfit") & F.col("_:given") & F.col("_unfit").isNull(),
                "_:stored": F.col("_:any"),
            }
        )
        .drop("_:number", "_:any", "_:unfit")
    )


def _followed(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """With a key: a version ends at the next one of its key, or at an earlier end of the whole table."""
    following = F.lead(_itself()).over(Window.partitionBy(*map(quoted, key)).orderBy("_seq"))
    rows = rows.withColumn("_:next", following)
    sooner = F.least("_:next", "_:upcoming")
    return rows.withColumns({"_:last": F.col("_:next").isNull(), "_:ender": sooner}).drop("_:next")


def _queued(rows: DataFrame) -> DataFrame:
    """Without a key: a delete ends the oldest living equal row; if there is none, it ends nothing."""
    added = F.when(F.col("_op") == DELETE, 0).otherwise(1)
    queue = Window.partitionBy("_key", "_:stretch").orderBy("_seq")
    so_far = queue.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = queue.rowsBetween(Window.unboundedPreceding, -1)
    rows = rows.withColumn("_:stretch", F.col("_:upcoming.seq"))
    rows = rows.withColumns({"_:added": F.sum(added).over(so_far), "_:balance": F.sum(2 * added - 1).over(so_far)})
    in_vain = F.least(F.lit(0), F.min("_:balance").over(so_far))
    lowest = F.least(F.lit(0), F.coalesce(F.min("_:balance").over(before), F.lit(0)))
    finds = F.col("_:balance") >= lowest
    taken = F.col("_:added") - F.col("_:balance") + in_vain
    rows = rows.withColumn("_:place", F.when(F.col("_op") != DELETE, F.col("_:added")).otherwise(F.when(finds, taken)))
    pair = Window.partitionBy("_key", "_:stretch", "_:place")
    taker = F.max(F.when(F.col("_op") == DELETE, _itself())).over(pair)
    return rows.withColumns({"_:ender": F.coalesce(taker, F.col("_:upcoming")), "_:last": F.lit(True)}).drop(
        "_:stretch", "_:added", "_:balance", "_:place"
    )


def _carried(rows: DataFrame, key: Sequence[str], carried: Sequence[str]) -> DataFrame:
    """Fill missing values from the version that the row ended; a row that ended none keeps them missing.

    The first of the stored versions got its values when it was stored, from versions that are not read here.
    """
    order = Window.partitionBy(*map(quoted, key)).orderBy("_seq")
    previous = F.lag(F.struct("_op", "_end_seq")).over(order)
    rows = rows.withColumn("_:previous", previous)
    ended_one = (F.col("_:previous._op") != DELETE) & (F.col("_:previous._end_seq") == F.col("_seq"))
    rows = rows.withColumn("_:follows", F.coalesce(ended_one, F.lit(False)))
    rows = rows.withColumn("_:life", F.sum((~F.col("_:follows")).cast("int")).over(order))
    life = Window.partitionBy(*map(quoted, key), "_:life").orderBy("_seq")
    values: dict[str, Column] = {}
    for name in carried:
        value = F.col(quoted(name))
        misses = F.coalesce(F.array_contains("_missing", F.lit(name)), F.lit(False))
        own = F.when(~misses | ~F.col("_:follows"), F.struct(F.when(~misses | _eldest(), value).alias("value")))
        values[name] = F.last(own, ignorenulls=True).over(life.rowsBetween(Window.unboundedPreceding, 0))["value"]
    rows = rows.withColumn("_:now", F.struct(*(values[name].alias(f"_{place}") for place, name in enumerate(carried))))
    now = {name: F.col(f"_:now._{place}") for place, name in enumerate(carried)}
    other = F.lit(False)
    for name in carried:
        other = other | ~_comparable(rows, name, F.col(quoted(name))).eqNullSafe(_comparable(rows, name, now[name]))
    rows = rows.withColumn("_:changed", F.col("_:changed") | other)
    return rows.withColumns(now).drop("_:now", "_:previous", "_:follows", "_:life")


def _comparable(rows: DataFrame, name: str, value: Column) -> Column:
    return F.to_json(value) if isinstance(rows.schema[name].dataType, VariantType) else value


def _eldest() -> Column:
    return F.col("_:stored") & F.col("_:previous").isNull()
