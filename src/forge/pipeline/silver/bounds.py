"""Literal conditions that hold for all rows with an arriving key; they prune files and filter scans.

Delta skips files by comparing literals to its statistics, and Spark filters rows by literals before it joins. Both need
the values in the text of the condition. A condition may select more rows than necessary, never fewer.

>>> Bounds("id", (("3", "5"), ("9", "9")), ("3", "5", "9")).sql("t")
'(t.`id` BETWEEN 3 AND 5 OR t.`id` BETWEEN 9 AND 9) AND t.`id` IN (3,5,9)'
>>> Bounds("id").sql()
'true'
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DecimalType, IntegerType, LongType, ShortType, StringType

from forge.pipeline.silver.rows import quoted

MOST_RANGES: Final = 32
MOST_VALUES: Final = 5_000
"""Longer lists cost more planning time than they save."""

_BUCKETS: Final = 1024
_SUFFIX: Final[dict[type[DataType], str]] = {ShortType: "S", IntegerType: "", LongType: "L"}

Range = tuple[Any, Any]


class Bounds(msgspec.Struct, frozen=True):
    """The bounds of one column: its value is in one of the ranges, and among the values; all are SQL literals."""

    column: str
    ranges: Sequence[tuple[str, str]] = ()
    values: Sequence[str] = ()

    def sql(self, alias: str | None = None) -> str:
        """Return the condition on a table's column."""
        name = (f"{alias}." if alias else "") + quoted(self.column)
        between = " OR ".join(f"{name} BETWEEN {low} AND {high}" for low, high in self.ranges)
        parts = [f"({between})"] if len(self.ranges) > 1 else [between]
        parts += [f"{name} IN ({','.join(self.values)})"] if self.values else []
        return " AND ".join(filter(None, parts)) or "true"


def look(rows: DataFrame, columns: Sequence[str], *more: Column, most: int | None = None) -> tuple[Row, list[Bounds]]:
    """Compute aggregates of rows, and bounds of their values in these columns, in one pass.

    `most` is the maximum number of rows: if it is too large, no values are collected.
    """
    types = {name: rows.schema[name].dataType for name in columns}
    types = {name: type for name, type in types.items() if _has_literals(type)}
    # Few rows are all among the first of their partition; of many rows at most this number is collected.
    among_the_first = F.monotonically_increasing_id().bitwiseAND(2**33 - 1) < MOST_VALUES
    too_many = most is not None and most > MOST_VALUES

    def collected(value: Column) -> Column:
        return F.lit(None) if too_many else F.collect_set(F.when(F.col("_:first"), value))

    measures = [measure(F.col(quoted(name))) for name in types for measure in (F.min, F.max, collected)]
    row = rows.withColumn("_:first", among_the_first).agg(F.count("*"), *measures, *more).first()
    assert row is not None, "an aggregate has one row"
    found: list[Bounds] = []
    for place, (name, type) in enumerate(types.items()):
        low, high, values = row[1 + 3 * place : 4 + 3 * place]
        if low is None:
            continue
        if row[0] <= MOST_VALUES and not too_many:
            values = sorted(values, key=_sorted_as)
            found.append(_bounds(name, type, _joined([(value, value) for value in values]), values))
        elif type.__class__ in _SUFFIX and high - low >= _BUCKETS:
            found.append(_bounds(name, type, _joined(_buckets(rows, name, low, high))))
        else:
            found.append(_bounds(name, type, [(low, high)]))
    return row, found


def _buckets(rows: DataFrame, name: str, low: int, high: int) -> list[Range]:
    """Return the extremes of integers per bucket, so that a few outliers do not extend the range over all between."""
    value = F.col(quoted(name))
    bucket = F.floor((value.cast("double") - float(low)) / ((high - low) / _BUCKETS))
    return sorted((row[1], row[2]) for row in rows.groupBy(bucket).agg(F.min(value), F.max(value)).collect())


def _bounds(name: str, type: DataType, ranges: Sequence[Range], values: Sequence[Any] = ()) -> Bounds:
    def literals(values: Iterable[Any]) -> tuple[str, ...]:
        return tuple(literal(value, type) for value in values)

    return Bounds(name, tuple((literal(low, type), literal(high, type)) for low, high in ranges), literals(values))


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Join ranges until at most `MOST_RANGES` remain, keeping the widest gaps; one range for values that are not
    numbers.

    >>> _joined([(1, 1), (2, 4), (9, 9)]), _joined([("a", "b"), ("x", "y")])
    ([(1, 1), (2, 4), (9, 9)], [('a', 'y')])
    >>> len(_joined([(n * n, n * n) for n in range(100)])), _joined([(n * n, n * n) for n in range(100)])[-1]
    (32, (9801, 9801))
    """
    if not isinstance(ranges[0][0], (int, Decimal)):
        return [(ranges[0][0], ranges[-1][1])]
    gaps = [(right[0] - left[1], place) for place, (left, right) in enumerate(pairwise(ranges))]
    cuts = sorted(place for _, place in sorted(gaps, reverse=True)[: MOST_RANGES - 1])
    starts, stops = [0, *(cut + 1 for cut in cuts)], [*cuts, len(ranges) - 1]
    return [(ranges[start][0], ranges[stop][1]) for start, stop in zip(starts, stops, strict=True)]


def literal(value: Any, type: DataType) -> str:
    r"""Return a value as a SQL literal, without ${…}, which a session may substitute.

    >>> literal(5, LongType()), literal("it's \\", StringType()), literal(Decimal("1.50"), DecimalType(9, 2))
    ('5L', "'it\\'s \\\\'", "CAST('1.50' AS decimal(9,2))")
    >>> literal("${user}", StringType())
    "'\\u0024{user}'"
    """
    if isinstance(type, StringType):
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"
    if isinstance(type, DecimalType):
        return f"CAST('{value}' AS {type.simpleString()})"
    if isinstance(type, DateType):
        return f"DATE'{value}'"
    return f"{value}{_SUFFIX[type.__class__]}"


def _has_literals(type: DataType) -> bool:
    return type.__class__ in _SUFFIX or isinstance(type, (StringType, DecimalType, DateType))


def _sorted_as(value: Any) -> Any:
    """Return the sort key of a value: Spark sorts text by bytes."""
    return value.encode() if isinstance(value, str) else value
