"""Rows out of changes, with forge.values as the oracle: whatever an image says is there exactly, or is a misfit."""

import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forge.pipeline.changes import CHANGES
from forge.pipeline.definitions import Definition
from forge.pipeline.silver.rows import quoted, rows
from forge.pipeline.silver.types import Types
from forge.values import Column
from tests.pipeline.random_images import ALL, Sample, alike, expected

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def change(
    number: int, op: str, version: int = 1, before: str | None = None, after: str | None = None
) -> tuple[Any, ...]:
    about = (AT, 700 + number, "u1", "f()", "t1", None, "app", "tests")
    return (f"{number:020x}", f"log:{number}", op, "public", "t", version, None, before, after, None, *about)


def frame(spark: SparkSession, changes: Iterable[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(list(changes), CHANGES)


def inserts(spark: SparkSession, images: Iterable[str], version: int = 1) -> DataFrame:
    return frame(spark, (change(number, "insert", version, after=image) for number, image in enumerate(images)))


def collected(found: DataFrame) -> list[dict[str, Any]]:
    """The rows in order, times as texts: Python has no times in UTC from Spark."""
    as_texts = [
        F.col(quoted(field.name))
        .cast(
            field.dataType.simpleString()
            .replace("timestamp_ntz", "string")
            .replace("timestamp", "string")
            .replace("date", "string")
        )
        .alias(field.name)
        for field in found.schema
    ]
    return [row.asDict() for row in found.select(*as_texts).orderBy("_seq").collect()]


@pytest.mark.parametrize("many", [1000, pytest.param(3000, marks=pytest.mark.long)])
def test_any_value_is_read_exactly_or_found_to_be_a_misfit(spark: SparkSession, many: int) -> None:
    sample = Sample(20260131)
    images = [sample.image(ALL) for _ in range(many)]
    read = rows(inserts(spark, images), {1: ALL}, ALL)
    read.read.persist()
    got = {int(row["_seq"], 16): row for row in collected(read.fitting)}
    misfits = {int(row["seq"], 16): row for row in read.misfits.collect()}
    read.read.unpersist()
    assert got.keys() | misfits.keys() == set(range(len(images)))
    assert not got.keys() & misfits.keys()
    assert many / 15 < len(misfits) < many / 2
    for number, image in enumerate(images):
        row, bad = expected(ALL, image)
        if bad:
            assert number in misfits, (bad, image)
            assert misfits[number]["column"] in bad, (misfits[number]["reason"], image)
            assert misfits[number]["payload"] == image
        else:
            assert number in got, (misfits[number]["column"], misfits[number]["reason"], image)
            for name, value in row.items():
                assert alike(got[number][name]) == alike(value), (name, image)
            assert got[number]["_missing"] is None


def test_changes_are_read_by_their_own_definitions(spark: SparkSession) -> None:
    first = Definition(
        1,
        "public",
        "t",
        (
            Column("id", "integer"),
            Column("total", "integer"),
            Column("note", "text"),
            Column("gone", "jsonb", "jsonb"),
            Column("code", "text"),
            Column("share", "numeric(9,4)", "numeric"),
            Column("day", "date"),
            Column("ratio", "real", "float"),
        ),
        ("id",),
    )
    second = Definition(
        2,
        "public",
        "t",
        (
            Column("id", "bigint"),
            Column("total", "numeric(12,2)", "numeric"),
            Column("note", "text"),
            Column("code", "integer"),
            Column("share", "double precision", "float"),
            Column("new", "numeric", "numeric"),
            Column("day", "timestamp without time zone"),
            Column("ratio", "double precision", "float"),
        ),
        ("id",),
    )
    old = '{{"id":{},"total":5,"note":"n","gone":{{"a": 1}},"code":{},"share":{},"day":"2026-01-31","ratio":0.1}}'
    new = '{"id":4,"total":12.30,"note":null,"code":7,"share":0.25,"new":1.50,"day":null,"ratio":null}'
    changes = [
        change(1, "insert", 1, after=old.format(1, '"12"', "0.5000")),
        change(2, "insert", 1, after=old.format(2, '"twelve"', "0.5000")),
        change(3, "insert", 1, after=old.format(3, '" 12"', "0.5000")),
        change(4, "insert", 2, after=new),
        change(5, "delete", 2, before=new),
        change(6, "truncate", 2),
        change(7, "schema", 2),
        change(8, "insert", 3, after='{"id":8}'),
        change(9, "insert", 2, after='{"id":9,"note":"x","share":"-0","new":2}'),
        change(10, "insert", 1, after=None),
        change(11, "insert", 1, after="[1]"),
        change(12, "read", 1, after='{"id":12,"total":"five","note":{"a":'),
    ]  # fmt: skip
    found = rows(frame(spark, changes), {1: first, 2: second}, second)
    got = {int(row["_seq"], 16): row for row in collected(found.fitting)}
    assert sorted(got) == [1, 4, 5, 9]
    assert {name: got[1][name] for name in ("id", "total", "note", "code", "share", "new", "day")} == {
        "id": 1,
        "total": Decimal("5.00"),
        "note": "n",
        "code": 12,
        "share": 0.5,
        "new": None,
        "day": "2026-01-31 00:00:00",
    }
    assert got[1]["ratio"] == struct.unpack("f", struct.pack("f", 0.1))[0]
    assert [got[4][name] for name in ("total", "new", "_op", "_missing")] == [Decimal("12.30"), "1.50", "insert", None]
    assert (got[5]["total"], got[5]["code"], got[5]["_op"]) == (Decimal("12.30"), 7, "delete")
    assert got[9]["_missing"] == ["total", "code", "day", "ratio"]
    assert (got[9]["total"], str(got[9]["share"]), got[9]["new"]) == (None, "-0.0", "2")
    about = ("_at", "_transaction", "_user_id", "_function_name", "_trace_id", "_session_user")
    assert [got[5][name] for name in about] == ["2026-01-31 12:00:00", 705, "u1", "f()", "t1", "app"]
    assert found.fitting.columns == [
        *(column.name for column in second.columns),
        *("_seq", "_op"),
        *about,
        "_missing",
        "_redacted",
    ]
    misfits = {int(row["seq"], 16): (row["column"], row["reason"]) for row in found.misfits.collect()}
    assert misfits == {
        2: ("code", "type changed: twelve does not fit int"),
        3: ("code", "type changed:  12 does not fit int"),
        8: (None, "unknown definition: the lake does not have it"),
        10: (None, "not an image: there is none"),
        11: (None, "not an image: [1]"),
        12: ("total", "type changed: five does not fit decimal(12,2)"),
    }


def test_a_table_without_a_key_has_rows_that_stand_for_themselves(spark: SparkSession) -> None:
    columns = (Column("what", "text"), Column("price", "numeric(20,10)", "numeric"), Column("doc", "jsonb", "jsonb"))
    first = Definition(1, "public", "t", columns)
    second = Definition(2, "public", "t", (*columns, Column("more", "double precision[]", "float[]")))
    one = '{"what":"a","price":0.0000000001,"doc":{"a": 1.10}}'
    two = '{"what":"b","price":0.0000000001,"doc":{"a": 2}}'
    changes = [
        change(1, "insert", 1, after=one),
        change(2, "insert", 1, after=one),
        change(3, "update", 1, before='{"what":"a","doc":{"a": 1.10}}', after=two),
        change(4, "update", 2, before="{}", after=one[:-1] + ',"more":null}'),
        change(5, "delete", 2, before=one[:-1] + ',"more":null}'),
        change(6, "insert", 2, after=one[:-1] + ',"more":[0.5,null]}'),
        change(7, "insert", 2, after='{"what":"0.0000000001","price":null,"doc":{"a": 1.10},"more":null}'),
        change(8, "update", 2, before='{"doc":null,"more":[1]}', after=one[:-1] + ',"more":null}'),
    ]
    got = collected(rows(frame(spark, changes), {1: first, 2: second}, second).fitting)
    ops = [(row["_seq"].lstrip("0"), row["_op"], row["what"]) for row in got]
    assert ops == [
        ("1", "insert", "a"),
        ("2", "insert", "a"),
        ("3a", "delete", "a"),
        ("3b", "insert", "b"),
        ("4a", "delete", "a"),
        ("4b", "insert", "a"),
        ("5", "delete", "a"),
        ("6", "insert", "a"),
        ("7", "insert", "0.0000000001"),
        ("8a", "delete", "a"),
        ("8b", "insert", "a"),
    ]
    keys = [row["_key"] for row in got]
    assert len({keys[place] for place in (0, 1, 2, 4, 5, 6, 10)}) == 1, "equal rows of any version"
    assert len({keys[place] for place in (0, 3, 7, 8, 9)}) == 5
    assert [got[place]["doc"] for place in (2, 3, 9)] == ['{"a": 1.10}', '{"a": 2}', None]
    assert got[9]["more"] == [1.0]


def test_images_of_other_sources_are_exact_or_misfits(spark: SparkSession) -> None:
    other = Definition(
        -3,
        "public",
        "t",
        (
            Column("id", "bigint"),
            Column("price", "numeric(12,2)", "numeric"),
            Column("free", "numeric", "numeric"),
            Column("doc", "jsonb", "jsonb"),
            Column("tags", "text[]", "plain[]"),
        ),
        ("id",),
    )
    images = [
        '{"id":0,"price":1.5,"free":"1.50","doc":{"a": 1.10},"tags":["[a]","b"],"unknown":1}',
        '{"id":1,"price":1.005,"free":null,"doc":null,"tags":null}',
        '{"id":2,"price":1e2,"free":null,"doc":null,"tags":null}',
        '{"id":3,"free":7}',
        '{"id": 4, "price": 1.50, "free": 1.50, "doc": {"a": 1.10}, "tags": [ ["a"] ]}',
        '{"id":5,"price":1.50,"free":1.50,"doc":null,"tags":[["a"]]}',
        '{"id":6,"price":12345678901.00,"free":1.50,"doc":null,"tags":null}',
        f'{{"id":7,"price":1.50,"free":1.50,"doc":{"[" * 1200}{"]" * 1200},"tags":null}}',
    ]
    found = rows(inserts(spark, images, -3), {-3: other}, other)
    got = {row["id"]: row for row in collected(found.fitting)}
    assert sorted(got) == [0, 3]
    assert [got[0][name] for name in ("price", "free", "doc", "tags", "_missing")] == [
        Decimal("1.50"),
        "1.50",
        '{"a": 1.10}',
        ["[a]", "b"],
        None,
    ]
    assert (got[3]["free"], got[3]["_missing"]) == ("7", ["price", "doc", "tags"])
    assert {int(row["seq"], 16): row["column"] for row in found.misfits.collect()} == {
        1: "price",
        2: "price",
        4: "price",
        5: "tags",
        6: "price",
        7: "doc",
    }


def test_a_variant_rounds_nothing(spark: SparkSession) -> None:
    columns = (Column("id", "bigint"), Column("doc", "jsonb", "jsonb"), Column("raw", "json"))
    definition = Definition(1, "public", "t", columns, ("id",))
    long = "1" * 39
    images = [
        '{"id":0,"doc":{"a": [1.10, "x"], "b": null},"raw":"[ 1 ]"}',
        '{"id":1,"doc":{"$json" : null},"raw":null}',
        f'{{"id":2,"doc":{long},"raw":null}}',
        f'{{"id":3,"doc":"{long}","raw":null}}',
        '{"id":4,"doc":1e400,"raw":null}',
        '{"id":5,"doc":"text","raw":"1.50"}',
        '{"id":6,"doc":null,"raw":"{"}',
    ]
    found = rows(inserts(spark, images), {1: definition}, definition, Types(json="variant"))
    texts = found.fitting.select("id", F.to_json("doc").alias("doc"), F.to_json("raw").alias("raw")).orderBy("id")
    assert [tuple(row) for row in texts.collect()] == [
        (0, '{"a":[1.1,"x"],"b":null}', "[1]"),
        (1, "null", None),
        (3, f'"{long}"', None),
        (5, '"text"', "1.5"),
    ]
    assert {row["column"]: row["reason"] for row in found.misfits.where("seq like '%6'").collect()} == {
        "raw": "not exact as a variant: { does not fit variant"
    }
    assert found.misfits.count() == 3
