"""Gold is a function of bronze, whatever the order of the batches; audit says who changed what."""

import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from forge.pipeline import horizon
from forge.pipeline.changes import seq
from forge.pipeline.gold import Gold, audit, refresh
from forge.pipeline.gold.daily import days_of
from forge.pipeline.lake import Lake
from forge.pipeline.tables import load
from tests.pipeline.by_hand import Row, append, change, frame

pytestmark = pytest.mark.long

START = datetime(2026, 1, 31, 22, 30, tzinfo=UTC)
DAY = timedelta(days=1)
OPS = ("insert", "update", "delete", "truncate")


def some_changes(random: random.Random, count: int) -> list[Row]:
    """Changes of three tables, one without a key, over four hours and midnight, and rows of snapshots among them."""
    rows = []
    for number in range(count):
        table = random.choice(["orders", "customers", "lines"])
        op = random.choice([*OPS[:3] * 4, "truncate", "read", "schema"])
        row_id = str(random.randrange(8)) if table != "lines" and op in (*OPS[:3], "read") else None
        more = {"user_id": random.choice([None, "ada", "bob"]), "session_user": random.choice(["shop", "root"])}
        at = START + timedelta(seconds=random.randrange(4 * 3600))
        transaction = None if op == "read" else 700 + random.randrange(20)
        rows.append(change(seq(1, number), op, at, table=table, row_id=row_id, transaction=transaction, **more))
    return rows


def expected(rows: list[Row]) -> dict[str, dict[tuple[Any, ...], tuple[Any, ...]]]:
    """What gold should be, in plain Python."""
    who: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    activity: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    daily: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["op"] in OPS:
            name = f"public.{row['table']}"
            who[row["day"], name, row["user_id"], row["session_user"]][row["op"]] += 1
            activity[row["day"], row["at"].hour, name].append(row)
            daily[row["day"], name].append(row)
    return {
        "who": {key: (*(counts[op] for op in OPS), counts.total()) for key, counts in who.items()},
        "activity": {
            key: (
                len(some),
                len({row["transaction"] for row in some} - {None}),
                len({row["user_id"] for row in some} - {None}),
            )
            for key, some in activity.items()
        },
        "churn": {key: churn_of(some) for key, some in daily.items()},
    }


def churn_of(rows: list[Row]) -> tuple[int | None, ...]:
    ops = Counter(row["op"] for row in rows)
    counts = (*(ops[op] for op in OPS), len(rows))
    times = Counter(row["row_id"] for row in rows if row["row_id"])
    if not times:
        return (*counts, None, None, None)
    last = {row["row_id"]: row["op"] for row in sorted(rows, key=lambda row: str(row["seq"])) if row["row_id"]}
    again = sum(1 for count in times.values() if count > 1)
    return (*counts, len(times), again, sum(1 for op in last.values() if op == "delete"))


def found(spark: SparkSession, lake: Lake) -> dict[str, dict[tuple[Any, ...], tuple[Any, ...]]]:
    who = load(spark, lake.gold("who")).selectExpr(
        "day", "table", "user_id", "session_user", "inserts", "updates", "deletes", "truncates", "changes"
    )
    activity = load(spark, lake.gold("activity")).selectExpr(
        "day", "hour(hour)", "table", "changes", "transactions", "users"
    )
    daily = load(spark, lake.gold("churn")).selectExpr(
        "day", "table", "inserts", "updates", "deletes", "truncates", "changes", "touched", "again", "gone"
    )
    frames = {"who": (who, 4), "activity": (activity, 3), "churn": (daily, 2)}
    return {
        name: {tuple(row)[:keys]: tuple(row)[keys:] for row in rows.collect()} for name, (rows, keys) in frames.items()
    }


@pytest.mark.contract("X10")
def test_gold_is_what_bronze_says_whatever_comes_when(spark: SparkSession, lake: Lake) -> None:
    choices = random.Random(7)
    rows = some_changes(choices, 240)
    choices.shuffle(rows)
    parts = (rows[:100], rows[100:180], rows[180:])
    batches = [[row | {"batch": number} for row in part] for number, part in enumerate(parts)]

    append(spark, lake, batches[1])
    refresh(spark, lake, append(spark, lake, batches[2]))
    clock = iter(map(float, (0, 0, 0, 2, 39, 39)))
    gold = Gold(spark, lake, clock=lambda: next(clock))
    assert gold.take(days_of(append(spark, lake, batches[0]))), (
        "late, and it took from 0 to 2: the next time is not before 40"
    )
    assert found(spark, lake) == expected(rows)

    more = [change(seq(2, n), "delete", START + n * 3 * DAY, row_id="3", batch=3) for n in range(2)]
    assert not gold.take(days_of(append(spark, lake, more)))
    gold.catch_up()
    assert found(spark, lake) == expected(rows), "it is not due"
    again = Gold(spark, lake)
    assert again.take(days_of(frame(spark, batches[1]))), "another process, to which a batch comes that it had"
    assert found(spark, lake) == expected(rows + more)

    horizon.note(spark, lake, horizon.CHANGES, START.replace(hour=0, minute=0) + DAY)
    spark.sql(f"DELETE FROM delta.`{lake.changes}` WHERE day = '{START.date()}'")
    late = append(spark, lake, [change(seq(3, 1), "insert", START, row_id="1")])
    refresh(spark, lake, late)
    assert found(spark, lake) == expected(rows + more), "what was purged from bronze stays as it was counted"


def test_audit_says_who_changed_what_from_what_to_what(spark: SparkSession, lake: Lake) -> None:
    ada = {"user_id": "ada", "function_name": "checkout", "trace_id": "3f2a", "session_user": "shop"}
    rows = [
        change("0001", "snapshot", START),
        change("0001!", "read", START, row_id="1", after={"id": 1, "status": "new"}),
        change(seq(1, 1), "insert", START, row_id="2", after={"id": 2, "status": None, "price": 1.5}, **ada),
        change(
            seq(1, 2), "update", START + DAY, row_id="2",
            before='{"status":null,"price":1.50,"note":"\\"x\\" ü"}',
            after='{"id":2,"status":"paid","price":1.5,"note":null}',
            hidden=["password"], **ada,
        ),
        change(seq(1, 3), "delete", START + 2 * DAY, row_id="2", before={"id": 2, "status": "paid"}, user_id="bob"),
        change(seq(1, 4), "delete", START + 2 * DAY, row_id='["1", "ü"]', table="lines", before={"a": 1, "b": "ü"}),
        change(seq(1, 5), "truncate", START + 2 * DAY, table="lines", user_id="ada"),
    ]  # fmt: skip
    append(spark, lake, rows)

    def told(**conditions: Any) -> list[tuple[Any, ...]]:
        answer = audit(spark, lake, **conditions).orderBy("seq").collect()
        return [(row["op"], row["table"], [tuple(each) for each in row["changed"]]) for row in answer]

    inserted = ("insert", "public.orders", [("id", None, "2"), ("price", None, "1.5")])
    changes = [("status", None, "paid"), ("price", "1.50", "1.5"), ("note", '"x" ü', None), ("password", None, None)]
    updated = ("update", "public.orders", changes)
    deleted = ("delete", "public.orders", [("id", "2", None), ("status", "paid", None)])
    assert told(key=2) == [inserted, updated, deleted]
    assert told(user="ada", table="public.orders", until=START + DAY) == [inserted]
    assert told(since=START + DAY, trace="3f2a") == [updated]
    assert told(table="lines", key={"a": 1, "b": "ü"}) == [
        ("delete", "public.lines", [("a", "1", None), ("b", "ü", None)])
    ]
    assert told(table="lines", user="ada") == [("truncate", "public.lines", [])]
    row = audit(spark, lake, since=START + DAY, until=START + 2 * DAY).collect()[0]
    assert (row["row_id"], row["user_id"], row["function_name"], row["trace_id"], row["session_user"]) == (
        "2", "ada", "checkout", "3f2a", "shop",
    )  # fmt: skip
