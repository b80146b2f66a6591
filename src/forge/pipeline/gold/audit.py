"""Audit: who changed what, change by change, read from bronze.

The input is conditions; the output is a frame with one row per change: time, table and row, operation, each column's
old and new value, and who did it. Only the requested days are read.

Values are texts: of a string its characters, of any other value its JSON; null is null. They are compared as written,
so 1.0 and 1.00 differ. A changed column that is hidden or redacted has neither old nor new value.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from forge.change import text
from forge.pipeline.lake import Lake
from forge.pipeline.tables import load
from forge.values import REDACTED, parts

CHANGED: Final = "array<struct<column: string, old: string, new: string>>"

_names: Final = msgspec.json.Decoder(list[str]).decode


def audit(
    spark: SparkSession,
    lake: Lake,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    table: str | None = None,
    user: str | None = None,
    trace: str | None = None,
    key: object = None,
) -> DataFrame:
    """Return the changes since an instant, and before another, that meet all given conditions, unordered.

    `table` is named with or without its schema; `key` is the value of a key, or for a longer key a mapping, or a list
    of the values in the order of the key.
    """
    of_snapshot = F.col("op").isin("read", "snapshot") | F.col("seq").contains("!")
    rows = load(spark, lake.changes).where(~of_snapshot)
    if since is not None:
        rows = rows.where((F.col("day") >= _day(since)) & (F.col("at") >= F.lit(since)))
    if until is not None:
        rows = rows.where((F.col("day") <= _day(until)) & (F.col("at") < F.lit(until)))
    name = F.concat_ws(".", "schema", "table")
    if table is not None:
        rows = rows.where((name == table) | (F.col("table") == table))
    if user is not None:
        rows = rows.where(F.col("user_id") == user)
    if trace is not None:
        rows = rows.where(F.col("trace_id") == trace)
    if key is not None:
        rows = rows.where(F.col("row_id") == word(key))
    changed = arrow_udf(_changed, CHANGED)("before", "after", "hidden")  # type: ignore[call-overload]
    return rows.select(
        "at",
        name.alias("table"),
        "row_id",
        "op",
        changed.alias("changed"),
        "user_id",
        "function_name",
        "trace_id",
        "session_user",
        "application_name",
        "transaction",
        "seq",
    )


def word(key: object) -> str:
    """Return a key in the form of `row_id`.

    >>> word(7), word({"a": 1, "b": "x"}), word([1, "x"])
    ('7', '["1", "x"]', '["1", "x"]')
    """
    values = list(key.values()) if isinstance(key, Mapping) else key
    if not isinstance(values, (list, tuple)):
        return text(values)
    if len(values) == 1:
        return text(values[0])
    return json.dumps([text(value) for value in values], ensure_ascii=False)


def differences(before: str | None, after: str | None, hidden: str | None) -> list[dict[str, str | None]]:
    """Return each column that a change gave another value, with the old and new values.

    >>> [tuple(each.values()) for each in differences('{"a":1,"b":"x"}', '{"id":7,"a":1,"b":null}', '["c"]')]
    [('b', 'x', None), ('c', None, None)]
    >>> [tuple(each.values()) for each in differences(None, '{"id":7,"b":null,"c":"1","d":1.0}', None)]
    [('id', None, '7'), ('c', None, '1'), ('d', None, '1.0')]
    >>> image = '{"id":7,"b":{"$redacted":true},"$redacted":["b"]}'
    >>> [tuple(each.values()) for each in differences(None, image, None)]
    [('id', None, '7'), ('b', None, None)]
    >>> differences(image, image, None)
    []
    """
    old, new = _members(before), _members(after)
    taken = {name for members in (old, new) for name in _names(members.pop(REDACTED, b"[]"))}
    # The `before` of an update has at least the columns that it changed; the others are unchanged.
    names = old if before is not None else new
    found = [
        {"column": name, "old": _text(old.get(name)), "new": _text(new.get(name))}
        for name in names
        if name not in taken and _bytes(old.get(name)) != _bytes(new.get(name))
    ]
    seen = {each["column"] for each in found}
    secret = _names(hidden) if hidden is not None else []
    if before is None or after is None:
        secret += [name for name in names if name in taken]
    return found + [{"column": name, "old": None, "new": None} for name in secret if name not in seen]


def _members(image: str | None) -> dict[str, msgspec.Raw]:
    return parts(image) if image is not None else {}


def _bytes(value: msgspec.Raw | None) -> bytes:
    return b"null" if value is None else bytes(value)


def _text(value: msgspec.Raw | None) -> str | None:
    raw = _bytes(value)
    if raw == b"null":
        return None
    return msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode()


def _changed(before: pa.Array, after: pa.Array, hidden: pa.Array) -> pa.Array:
    rows = zip(before.to_pylist(), after.to_pylist(), hidden.to_pylist(), strict=True)
    text = pa.string()
    kind = pa.list_(pa.struct([("column", text), ("old", text), ("new", text)]))
    return pa.array([differences(*row) for row in rows], kind)


def _day(at: datetime) -> Any:
    return F.lit(at.astimezone(UTC).date())
