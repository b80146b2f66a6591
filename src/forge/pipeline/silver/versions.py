"""How versions follow one another: rows that arrive and versions that are stored, in; versions with their ends, out.

No tables are read or written here: frames come in and frames go out. The history of a table is a fold over its changes
and ends in the order of `_seq`. What is alive before `_seq` s depends on nothing at or after s, so what arrives changes
no version that had ended before the smallest `_seq` that arrives, `since`. What it may change, and all that the fold
needs to go on from there, are

- the versions that live at `since`: those before it with no end, or one at or after it. In a table with a key that is
  at most one version of a row, in a table without one the queue of equal rows that a delete takes the eldest of;
- the versions at or after `since`, whose end, if they have one, is at or after it too (a delete ends itself).

Both are the versions with `_end_seq IS NULL OR _end_seq >= since`, and `concerned` keeps just these: of the keys that
arrive, or of all keys if an end of the whole table arrives. `>=`, because a version that ended at `since` was ended by
a change that now arrives once more.

The result is a function of the set of changes: it is the same for any order in which they arrive, and however often.
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
"""What `chain` needs of stored versions beside their key, unless values are carried forward."""

MARKS: Final = ("_:stored", "_:given", "_:changed", "_:last", "_:was")

_FANOUT = 32


def versions(existing: DataFrame | None, fitting: DataFrame, ends: Sequence[End], key: Sequence[str]) -> DataFrame:
    """The versions that are new, or that end otherwise than they are stored."""
    return chain(existing, fitting, ends, key).where(F.col("_:changed")).drop(*MARKS)


def concerned(
    history: DataFrame, keys: DataFrame | None, since: str, key: Sequence[str], columns: Sequence[str]
) -> DataFrame:
    """What `chain` needs of a history when rows of these keys arrive; of all keys when an end arrives: `keys=None`.

    `since` is the smallest `_seq` that arrives, of rows and ends.
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
    """Every version in `existing` or `fitting` with its end, and marks that say what is to be done with it.

    `_:stored`: it is in `existing`; `_:given`: it is in `fitting`; `_:changed`: it is not stored, or not as it is here;
    `_:last`: nothing of its key follows it; `_:was`: the `_end_seq` that is stored.

    `existing` has at least the key and `SLIM`. With names in `carried` it has all columns, and `_missing`; then a value
    that a row misses is that of the version which it ended, if it ended one. `ends` are all ends of the table from the
    smallest `_seq` on that arrives. Without a key `key` is `("_key",)`, and equal rows queue up: a delete ends the
    eldest of them.
    """
    # Told to, Spark moves rows once, by key; by itself it would first do so by key and `_seq`.
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
            "_:changed": ~F.col("_:stored") | ~end["seq"].eqNullSafe(F.col("_:was")),
        }
    )
    if carried:
        rows = _carried(rows, key, carried)
    return rows.drop("_:upcoming", "_:ender")


def upcoming(seq: Column, ends: Sequence[End]) -> Column:
    """The first of the ends that is larger than `seq`, a struct of `seq`, `at` and `transaction`, or null."""
    known = {end.seq: end for end in ends}
    if not known:
        return F.lit(None).cast("struct<seq: string, at: timestamp, transaction: bigint>")
    return _first_after(seq, [known[each] for each in sorted(known)])


def _first_after(seq: Column, ends: Sequence[End]) -> Column:
    """A search tree as an expression: a row is compared to a few times `_FANOUT` of thousands of ends."""
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
    """The ends as one constant, which costs one call of the JVM and not one for each of its parts."""
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
    if existing is None:
        return given
    kept = [name for name in existing.columns if name in given.columns]
    stored = existing.select(*map(quoted, kept), F.lit(True).alias("_:stored"), F.col("_end_seq").alias("_:was"))
    return given.unionByName(stored, allowMissingColumns=True)


def _single(rows: DataFrame, key: Sequence[str], *, prefer_stored: bool) -> DataFrame:
    """One row for each version, however often it is there."""
    preferred = F.col("_:stored").desc() if prefer_stored else F.col("_:stored")
    # One order for all, so that Spark sorts once, and for what follows too.
    same = Window.partitionBy(*map(quoted, key), "_seq").orderBy(preferred)
    all_of_them = same.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    return (
        rows.withColumns(
            {
                "_:number": F.row_number().over(same),
                "_:given": F.max(~F.col("_:stored")).over(all_of_them),
                "_:was": F.max("_:was").over(all_of_them),
                "_:any": F.max("_:stored").over(all_of_them),
            }
        )
        .where(F.col("_:number") == 1)
        .withColumn("_:stored", F.col("_:any"))
        .drop("_:number", "_:any")
    )


def _followed(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """With a key: a version is ended by the next one of its key, or by an end of the whole table before that."""
    following = F.lead(_itself()).over(Window.partitionBy(*map(quoted, key)).orderBy("_seq"))
    rows = rows.withColumn("_:next", following)
    sooner = F.least("_:next", "_:upcoming")
    return rows.withColumns({"_:last": F.col("_:next").isNull(), "_:ender": sooner}).drop("_:next")


def _queued(rows: DataFrame) -> DataFrame:
    """Without a key: a delete ends the eldest equal row that lives; one that finds none ends nothing."""
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
    """Gives missing values those of the version that the row ended; a row that ended none misses them for good.

    The first of the stored versions has been given its own when it was stored, by versions that are not looked at now.
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
