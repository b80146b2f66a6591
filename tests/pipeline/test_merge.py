"""Merging into Delta: history and current are those of the oracle, whatever arrives when and how often."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.silver.layout import Layout, layout
from forge.pipeline.silver.merge import Merged, merge
from forge.pipeline.silver.tables import prepare
from forge.pipeline.tables import load
from forge.values import Column
from tests.pipeline import oracle
from tests.pipeline.oracle import Event, Row, moment, play

pytestmark = pytest.mark.long

COLUMNS = (Column("h", "integer"), Column("id", "integer"), Column("a", "text"), Column("b", "integer"))
FITTING = (
    "h int, id int, a string, b int, _seq string, _op string, _at timestamp, _transaction long, _user_id string,"
    " _function_name string, _trace_id string, _session_user string, _missing array<string>"
)


def definition(*, keyed: bool = True, table: str = "things") -> Definition:
    return Definition(1, "public", table, COLUMNS, ("h", "id") if keyed else ())


def fitting(spark: SparkSession, events: Sequence[Event], *, keyed: bool = True) -> DataFrame:
    rows = [
        (
            *event.key,
            *(None if name in event.missing else event.values[name] for name in ("a", "b")),
            event.seq,
            event.op,
            moment(event.at),
            event.transaction,
            "user",
            "function",
            "trace",
            "session",
            sorted(event.missing) or None,
        )
        for event in events
    ]
    frame = spark.createDataFrame(rows, FITTING)
    return frame if keyed else frame.withColumn("_key", F.concat_ws(":", "h", "id"))


def history(spark: SparkSession, lake: Lake, table: str = "public.things") -> dict[tuple[Any, ...], Row]:
    micros = {name: F.unix_micros(name) for name in ("_valid_from", "_valid_to")}
    rows = load(spark, lake.history(table)).withColumns(micros).collect()
    names = ("a", "b", "_op", "_valid_from", "_end_seq", "_valid_to", "_end_transaction")
    found = {(row["h"], row["id"], row["_seq"]): {name: row[name] for name in names} for row in rows}
    assert len(found) == len(rows), "a version is there twice"
    assert all(row["_is_current"] == (row["_end_seq"] is None) for row in rows)
    assert all((row["_user_id"], row["_session_user"]) == ("user", "session") for row in rows)
    return found


def current(spark: SparkSession, lake: Lake, table: str = "public.things") -> dict[tuple[Any, ...], Row]:
    rows = load(spark, lake.current(table)).withColumn("_changed_at", F.unix_micros("_changed_at")).collect()
    names = ("a", "b", "_op", "_changed_at")
    found = {(row["h"], row["id"], row["_seq"]): {name: row[name] for name in names} for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    return found


def alive(versions: dict[tuple[Any, ...], Row]) -> dict[tuple[Any, ...], Row]:
    return {
        place: {"a": row["a"], "b": row["b"], "_op": row["_op"], "_changed_at": row["_valid_from"]}
        for place, row in oracle.current(versions).items()
    }


def version(spark: SparkSession, path: str) -> int:
    return int(DeltaTable.forPath(spark, path).history(1).collect()[0]["version"])


@pytest.mark.parametrize(("keyed", "missing"), [(True, False), (True, True), (False, False)])
def test_history_and_current_are_those_of_the_oracle(
    spark: SparkSession, lake: Lake, keyed: bool, missing: bool
) -> None:
    dice = Random(f"{keyed} {missing}")
    played = play(dice, 30, keyed=keyed, most_truncates=1, missing=missing)
    plan = layout([definition(keyed=keyed)])
    prepare(spark, lake, plan)
    batches = played.batches(dice, 3)
    before = unwritten = -1
    for events, ends in batches:
        before, unwritten = version(spark, lake.current(plan.table)), version(spark, lake.history(plan.table))
        merge(spark, lake, plan, plan.era, fitting(spark, events, keyed=keyed), ends)
    wanted = oracle.history(*played, keyed=keyed)
    assert history(spark, lake) == wanted
    assert current(spark, lake) == alive(wanted)

    # A run that is killed after history was written, and before current was.
    spark.sql(f"RESTORE delta.`{lake.current(plan.table)}` TO VERSION AS OF {before}")
    written = version(spark, lake.history(plan.table))
    events, ends = batches[-1]
    merge(spark, lake, plan, plan.era, fitting(spark, events, keyed=keyed), ends)
    assert current(spark, lake) == alive(wanted)
    assert version(spark, lake.history(plan.table)) == written, "history was written again, though nothing changed"

    # Both are written at the same time: killed after current was written, and before history was.
    spark.sql(f"RESTORE delta.`{lake.history(plan.table)}` TO VERSION AS OF {unwritten}")
    assert history(spark, lake) != wanted
    merge(spark, lake, plan, plan.era, fitting(spark, events, keyed=keyed), ends)
    assert history(spark, lake) == wanted
    assert current(spark, lake) == alive(wanted)


def test_tables_are_merged_at_the_same_time(spark: SparkSession, lake: Lake) -> None:
    played = play(Random(7), 2, keyed=True, most_truncates=1)
    plans = [layout([definition(table=table)]) for table in ("one", "two", "three")]

    def take(plan: Layout) -> Merged:
        prepare(spark, lake, plan)
        return merge(spark, lake, plan, plan.era, fitting(spark, played.events), played.ends)

    with ThreadPoolExecutor(len(plans)) as pool:
        merged = list(pool.map(take, plans))
    wanted = oracle.history(*played)
    assert [each.versions for each in merged] == [len(wanted)] * len(plans)
    for plan in plans:
        assert history(spark, lake, plan.table) == wanted
        assert current(spark, lake, plan.table) == alive(wanted)
