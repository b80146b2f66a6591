"""Users' models: read and put in order without Spark; built whole or by key, and what is wrong with them is said."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from forge.errors import ModelError
from forge.pipeline import bronze
from forge.pipeline.changes import seq
from forge.pipeline.definitions import Definition
from forge.pipeline.gold import models as files
from forge.pipeline.gold.building import Models
from forge.pipeline.gold.states import forget, states
from forge.pipeline.lake import Lake
from forge.pipeline.tables import load
from forge.values import Column
from tests.pipeline.by_hand import change, frame

SPENT = """-- key: customer_id
-- keys: SELECT DISTINCT customer_id
--       FROM orders_changed
SELECT customer_id, count(*) AS orders, sum(orders.total) AS spent
FROM public.orders GROUP BY customer_id
"""


def folder(path: Path, **texts: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in texts.items():
        (path / f"{name}.sql").write_text(text, "utf-8")
    return path


def test_models_come_after_those_that_they_read(tmp_path: Path) -> None:
    third = "WITH second AS (SELECT 1) SELECT * FROM FIRST JOIN orders USING (id)"
    first = "-- every: 10 batches\nSELECT * FROM zero, (SELECT * FROM orders_history) h"
    path = folder(
        tmp_path, second="SELECT 1 IN (SELECT id FROM third)", third=third, first=first, zero="SELECT 1 AS id"
    )
    found = files.load(path)
    assert [(model.name, model.after, model.every) for model in found] == [
        ("zero", (), 1),
        ("first", ("zero",), 10),
        ("third", ("first",), 1),
        ("second", ("third",), 1),
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("SELECT 1;\nSELECT 2", "m.sql:1: a model is one SELECT"),
        ("DELETE FROM orders", "m.sql:1: a model is one SELECT"),
        ("SELECT 1,\n  2 frm x where (", "m.sql:2: this is not SQL: "),
        ("\n-- key: id\nSELECT 1 AS id", "m.sql:2: an incremental model says both key and keys"),
        ("-- every: now and then\nSELECT 1", "m.sql:1: every cannot be 'now and then'"),
        ("-- key: id\n-- keys: SELECT\n--  frm FROM (\nSELECT 1 AS id", "m.sql:3: this is not SQL: "),
        ("SELECT *\nFROM m", "m.sql:2: models read each other in a circle: m → m"),
    ],
)
def test_what_is_wrong_with_a_model_is_said_in_a_line(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ModelError) as wrong:
        files.load(folder(tmp_path, m=text))
    assert str(wrong.value).startswith(error)
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize("name", ["Spent", "who", "1st", "models", "a-b"])
def test_names_that_no_model_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=f"^{name}.sql:1: .*name"):
        files.load(folder(tmp_path, **{name: "SELECT 1"}))


def test_circles_and_missing_folders(tmp_path: Path) -> None:
    path = folder(tmp_path, a="SELECT * FROM b", b="SELECT *\nFROM c", c="SELECT * FROM a")
    with pytest.raises(ModelError, match=r"circle: .* → .* → "):
        files.load(path)
    with pytest.raises(ModelError, match="no such folder"):
        files.load(tmp_path / "nowhere")


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
TYPES = "id long, customer_id long, total long"
VERSION = f"{TYPES}, _seq string, _end_seq string, _op string"


def silver(spark: SparkSession, lake: Lake, versions: list[tuple[Any, ...]]) -> None:
    """The history that is given, and the current state that follows from it."""
    current = [version[:3] for version in versions if version[4] is None]
    for rows, types, path in ((current, TYPES, lake.current), (versions, VERSION, lake.history)):
        frame = spark.createDataFrame(rows, types).coalesce(1)
        frame.write.format("delta").mode("overwrite").save(path("public.orders"))


def rows_of(spark: SparkSession, lake: Lake, model: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, load(spark, lake.gold(model)).collect()), key=repr)


@pytest.mark.long
def test_models_are_built_whole_or_by_key_and_fail_alone(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    columns = (Column("id", "bigint"), Column("customer_id", "bigint"), Column("total", "bigint"))
    bronze.keep(spark, lake, [Definition(1, "public", "orders", columns, ("id",))])
    path = folder(
        tmp_path,
        spent=SPENT,
        best="SELECT customer_id AS `the best` FROM spent WHERE spent > 14",
        broken="SELECT o.id,\n  1 / (o.total - o.total) AS never\nFROM orders o",
        after="SELECT count(*) AS n FROM broken",
        lost="SELECT *\n\nFROM orderz",
    )
    one = [(1, 7, 10), (2, 7, 5), (3, 8, 20), (4, None, 1)]
    versions: list[tuple[Any, ...]] = [(*row, seq(1, row[0]), None, "insert") for row in one]
    silver(spark, lake, versions)
    models = Models(spark, lake, files.load(path))

    def build(numbers: Iterable[int], op: str, batch: int, models: Models) -> dict[str, str]:
        made = frame(spark, [change(seq(1, each), op, NOON + timedelta(seconds=each)) for each in numbers])
        return {outcome.model: outcome.what for outcome in models.build(made, batch, batch - 1)}

    outcome = build(range(1, 5), "insert", 1, models)
    assert outcome == {"after": "failed", "best": "built", "broken": "failed", "lost": "failed", "spent": "built"}
    assert rows_of(spark, lake, "spent") == [(7, 2, 15), (8, 1, 20), (None, 1, 1)]
    assert rows_of(spark, lake, "best") == [(7,), (8,)]
    told = {state.model: state.error for state in states(spark, lake) if state.state == "failed"}
    assert told["broken"] is not None
    assert told["broken"].startswith("broken.sql:2: Division by zero")
    assert told["after"] == "after.sql:1: it reads broken, which failed"
    assert told["lost"] == "lost.sql:3: there is no table or model orderz"

    # 3 goes from customer 8 to 9, 2 is deleted, 4 gets a customer; what is said of customer 1 nobody computes again
    load(spark, lake.gold("spent")).selectExpr("1L AS customer_id", "orders", "spent").limit(1).write.format(
        "delta"
    ).mode("append").save(lake.gold("spent"))
    ended = {2: seq(1, 6), 3: seq(1, 5), 4: seq(1, 7)}
    versions = [(*row[:4], ended.get(row[0]), row[5]) for row in versions]
    versions += [(3, 9, 20, seq(1, 5), None, "update"), (2, 7, 5, seq(1, 6), seq(1, 6), "delete")]
    versions += [(4, 9, 1, seq(1, 7), None, "update")]
    silver(spark, lake, versions)
    for attempt in range(2):
        outcome = build(range(5, 8), "update", 2, models)
        assert (outcome["spent"], outcome["best"]) == ("merged", "built"), attempt
        found = {row[0]: row[1:] for row in rows_of(spark, lake, "spent")}
        assert found.pop(1), "left alone"
        assert found == {7: (1, 10), 9: (2, 21)}
    assert [state.failures for state in states(spark, lake) if state.model == "broken"] == [3]

    # the next process finds the models fixed; one was edited and two had failed, and nothing of theirs was touched
    folder(path, broken="SELECT id FROM orders", best="SELECT count(*) AS n FROM orders")
    folder(path, spent=SPENT.replace("AS spent", "AS sum"))
    (path / "lost.sql").unlink()
    outcome = build([], "update", 3, models := Models(spark, lake, files.load(path)))
    assert outcome == {"after": "built", "best": "built", "broken": "built", "spent": "built"}
    assert rows_of(spark, lake, "spent") == [(7, 1, 10), (9, 2, 21)]
    assert rows_of(spark, lake, "after") == [(3,)]
    assert build([], "update", 4, models) == dict.fromkeys(outcome, "skipped")
    assert [(state.model, state.state) for state in states(spark, lake)] == [(name, "good") for name in sorted(outcome)]
    (path / "spent.sql").unlink()
    (path / "broken.sql").unlink()
    (path / "after.sql").unlink()
    assert build([], "update", 6, Models(spark, lake, files.load(path))) == {"best": "built"}, "it missed a batch"
    forget(spark, lake)
    assert build([], "update", 7, Models(spark, lake, files.load(path))) == {"best": "built"}, "somebody told it to"
    assert [state.model for state in states(spark, lake)] == ["best"]
