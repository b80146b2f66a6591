"""Rows of bronze, written by hand."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from forge.pipeline.changes import BRONZE
from forge.pipeline.lake import Lake

Row = dict[str, Any]


def change(seq: str, op: str, at: datetime, **more: Any) -> Row:
    """A row of bronze; images are given as dicts."""
    row = dict.fromkeys(BRONZE.names) | {
        "seq": seq,
        "id": seq,
        "op": op,
        "schema": "public",
        "table": "orders",
        "version": 1,
        "at": at,
        "day": at.astimezone(UTC).date(),
        "batch": 1,
    }
    unknown = more.keys() - row.keys()
    assert not unknown, unknown
    row |= {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in more.items()}
    return row


def frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    return spark.createDataFrame([tuple(row.values()) for row in rows], BRONZE).coalesce(1)


def append(spark: SparkSession, lake: Lake, rows: Iterable[Row]) -> DataFrame:
    """Put rows into bronze, and return them."""
    made = frame(spark, rows)
    made.write.format("delta").partitionBy("day").mode("append").save(lake.changes)
    return made
