"""Tables whose definition changes while they are logged, and how their changes come into silver."""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import TimestampType

from forge.pipeline import bronze
from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.silver.ends import ends
from forge.pipeline.silver.layout import layout
from forge.pipeline.silver.merge import merge
from forge.pipeline.silver.row_shaping import placed
from forge.pipeline.silver.tables import prepare
from forge.pipeline.tables import load
from forge.values import Column
from tests.pipeline import by_hand
from tests.pipeline.by_hand import Row

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def define(version: int, key: str, **columns: str) -> Definition:
    """A definition of public.orders."""
    kinds = {"numeric": "numeric", "real": "float", "double": "float"}
    made = tuple(Column(name, type, kinds.get(re.split(r"\W", type)[0], "plain")) for name, type in columns.items())
    return Definition(version, "public", "orders", made, tuple(key.split()))


def change(seq: str, op: str, version: int, image: Mapping[str, Any] | None = None, **more: Any) -> Row:
    """A change of public.orders, its image as PostgreSQL would write it."""
    side = "before" if op == "delete" else "after"
    text = None if image is None else json.dumps(image, separators=(",", ":"))
    return by_hand.change(seq, op, EPOCH, version=version, **{side: text}, **more)


def take(spark: SparkSession, lake: Lake, definitions: Iterable[Definition], rows: Iterable[Row]) -> None:
    """Bring changes of public.orders into bronze and into silver."""
    bronze.keep(spark, lake, definitions)
    changes = by_hand.append(spark, lake, rows)
    known = bronze.definitions(spark, lake)
    plan = layout(known.values())
    prepare(spark, lake, plan)
    ended = ends(changes)
    for era in plan.eras:
        found = placed(changes, known, era)
        assert found is not None
        merge(spark, lake, plan, era, found.fitting, ended)


def contents(spark: SparkSession, path: str) -> list[Row]:
    """A table's rows by `_seq` and key, without what is null, and times."""
    rows = load(spark, path)
    times = [field.name for field in rows.schema if isinstance(field.dataType, TimestampType)]
    found = [
        {name: value for name, value in row.asDict().items() if value is not None}
        for row in rows.drop(*times).collect()
    ]
    return sorted(found, key=lambda row: (row["_seq"], row["id"]))
