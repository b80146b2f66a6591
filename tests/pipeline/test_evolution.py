"""Tables change their definition while they are followed: nothing is lost, and late changes still find their place."""

from datetime import date
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType, ShortType, StringType

from forge.pipeline.lake import Lake
from forge.pipeline.silver.layout import layout, wider
from forge.pipeline.tables import load
from tests.pipeline.evolving import change, contents, define, take

pytestmark = pytest.mark.long

NARROW = define(
    1,
    "id",
    id="integer",
    amount="integer",
    price="numeric(8,2)",
    ratio="real",
    note="character varying(5)",
    gone="text",
    kind="text",
)
WIDE = define(
    2,
    "id",
    id="bigint",
    amount="bigint",
    price="numeric(12,2)",
    ratio="double precision",
    note="text",
    kind="integer",
    added="date",
)
BEFORE = {"amount": 1, "price": 1.5, "ratio": 0.5, "note": "short", "gone": "yes", "kind": "old"}
AFTER = {
    "amount": 2**40,
    "price": 12345678.25,
    "ratio": 0.25,
    "note": "longer than five",
    "kind": 7,
    "added": "2026-01-31",
}


def test_columns_come_go_widen_and_change_their_type(spark: SparkSession, lake: Lake) -> None:
    take(
        spark,
        lake,
        [NARROW],
        [change("0001a", "insert", 1, {"id": 1, **BEFORE}), change("0001b", "insert", 1, {"id": 2, **BEFORE})],
    )
    take(
        spark,
        lake,
        [WIDE],
        [change("0001e", "update", 2, {"id": 1, **AFTER}), change("0001f", "insert", 2, {"id": 2**40, **AFTER})],
    )
    take(spark, lake, [], [change("0001c", "update", 1, {"id": 1, **BEFORE, "kind": "late"})])

    old = {"amount": 1, "price": Decimal("1.50"), "ratio": 0.5, "note": "short", "gone": "yes", "kind_v1": "old"}
    new = {**AFTER, "price": Decimal("12345678.25"), "added": date(2026, 1, 31)}
    found = [
        {name: value for name, value in row.items() if not name.startswith("_") or name == "_end_seq"}
        for row in contents(spark, lake.history("public.orders"))
    ]
    assert found == [
        {"id": 1, **old, "_end_seq": "0001c"},
        {"id": 2, **old},
        {"id": 1, **old, "kind_v1": "late", "_end_seq": "0001e"},
        {"id": 1, **new},
        {"id": 2**40, **new},
    ]
    living = {row["id"]: row for row in contents(spark, lake.current("public.orders"))}
    assert living.keys() == {1, 2, 2**40}
    assert living[1]["kind"] == 7
    assert living[2]["amount"] == 1
    assert not {"gone", "kind_v1"} & set(load(spark, lake.current("public.orders")).columns)


def test_a_table_made_again_with_another_key_ends_with_the_snapshot_that_follows(
    spark: SparkSession, lake: Lake
) -> None:
    by_id, by_code = define(1, "id", id="integer", code="text"), define(2, "code", id="integer", code="text")
    take(
        spark,
        lake,
        [by_id],
        [change("0000a", "insert", 1, {"id": id, "code": "x"}) for id in (1,)]
        + [change("0000b", "insert", 1, {"id": 2, "code": "x"})],
    )
    take(
        spark,
        lake,
        [by_code],
        [change("0000e", "insert", 2, {"id": 9, "code": "x"}), change("0000f", "update", 2, {"id": 8, "code": "x"})],
    )
    snapshot = change("0001", "snapshot", 2)
    take(
        spark,
        lake,
        [],
        [
            snapshot,
            change("0001!", "read", 2, {"id": 8, "code": "x"}),
            change("0001!", "read", 2, {"id": 1, "code": "y"}),
        ],
    )
    take(spark, lake, [], [change("0000c", "delete", 1, {"id": 2, "code": "x"})])

    found = [(row["_seq"], row["id"], row.get("_end_seq")) for row in contents(spark, lake.history("public.orders"))]
    assert found == [
        ("0000a", 1, "0001"),
        ("0000b", 2, "0000c"),
        ("0000c", 2, "0000c"),
        ("0000e", 9, "0000f"),
        ("0000f", 8, "0001"),
        ("0001!", 1, None),
        ("0001!", 8, None),
    ]
    assert [(row["code"], row["id"]) for row in contents(spark, lake.current("public.orders"))] == [("y", 1), ("x", 8)]


def test_the_layout_does_not_depend_on_the_order_in_which_definitions_are_known() -> None:
    one, two = layout([NARROW, WIDE]), layout([WIDE, NARROW])
    assert one == two
    assert one.columns["kind_v1"] == StringType()
    assert one.columns["price"] == DecimalType(12, 2)
    assert one.era.key == ("id",)
    assert one.older == {"kind_v1": "kind"}


def test_a_name_that_is_taken_is_not_given_to_an_older_column() -> None:
    plan = layout([define(1, "", x="text", x_v1="text"), define(2, "", x="integer", X_V1_="text")])
    assert list(plan.columns) == ["x_v1__", "x", "x_v1", "X_V1_"]


def test_only_types_that_hold_all_values_are_wider() -> None:
    assert wider(ShortType(), LongType()) == LongType()
    assert wider(FloatType(), DoubleType()) == DoubleType()
    assert wider(IntegerType(), DecimalType(12, 2)) == DecimalType(12, 2)
    assert wider(DecimalType(12, 2), DecimalType(12, 4)) is None
    assert wider(LongType(), DoubleType()) is None
    assert wider(LongType(), DecimalType(20, 2)) is None
    assert wider(StringType(), IntegerType()) is None
    assert wider(DateType(), IntegerType()) is None
