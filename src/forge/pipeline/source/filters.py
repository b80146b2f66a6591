"""Translate Spark's filters to SQL on the log: equality and ranges of plain columns.

Other filters are dropped, so the condition never rejects a row that Spark would keep; Spark applies its own filters
too.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from psycopg import sql
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

COLUMNS: Final = {
    "schema": "v.schema_name",
    "table": "v.table_name",
    "version": "l.version",
    "row_id": "l.row_id",
    "at": "l.at",
    "user_id": "l.user_id",
    "function_name": "l.function_name",
    "trace_id": "l.trace_id",
    "session_user": "l.db_user",
    "application_name": "l.application_name",
}
OPS: Final = {
    "insert": "I",
    "update": "U",
    "delete": "D",
    "truncate": "T",
    "schema": "S",
    "invalidate": "X",
    "redact": "R",
}
SIGNS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
RANGED: Final = ("version", "at")


def condition(filters: Iterable[Filter]) -> str | None:
    """Return an SQL condition on a change `l` and its table's version `v`, or None when there is none."""
    parts = [part for part in map(_part, filters) if part is not None]
    return " AND ".join(parts) or None


def _part(wanted: Filter) -> str | None:
    attribute: tuple[str, ...] = getattr(wanted, "attribute", ())
    if len(attribute) != 1:
        return None
    name = attribute[0]
    if name == "op" and isinstance(wanted, EqualTo):
        return _equal_op([wanted.value])
    if name == "op" and isinstance(wanted, In):
        return _equal_op(wanted.value)
    if name not in COLUMNS:
        return None
    column = COLUMNS[name]
    if isinstance(wanted, IsNotNull):
        return f"{column} IS NOT NULL"
    if isinstance(wanted, In):
        values = [value for value in wanted.value if value is not None]
        return f"{column} = ANY ({_literal(values)})" if values and all(map(_sayable, values)) else None
    sign = SIGNS.get(type(wanted))
    value: Any = getattr(wanted, "value", None)
    if sign is None or not _sayable(value) or (sign != "=" and name not in RANGED):
        return None
    return f"{column} {sign} {_literal(value)}"


def _equal_op(values: Iterable[Any]) -> str:
    letters = [OPS[value] for value in values if value in OPS]
    return f"l.op::text = ANY ({_literal(letters)}::text[])"


def _sayable(value: Any) -> bool:
    """Whether a value has an SQL literal: text that PostgreSQL can store, integers and instants with a time zone."""
    if isinstance(value, str):
        return "\0" not in value
    return isinstance(value, int) or (isinstance(value, datetime) and value.tzinfo is not None)


def _literal(value: Any) -> str:
    return sql.Literal(value).as_string(None)
