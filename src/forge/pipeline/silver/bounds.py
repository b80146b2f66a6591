"""Literal conditions that hold for every row whose key is among those that arrive: what prunes files and filters scans.

Delta leaves out files by comparing literals to its statistics, and Spark filters rows by literals before it joins. Both
need the values in the text of the condition. A condition may let more rows through than it must, never fewer.

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
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DecimalType, IntegerType, LongType, ShortType, StringType

from forge.pipeline.silver.rows import quoted

MOST_RANGES: Final = 32
MOST_VALUES: Final = 5_000
"""Longer lists cost more to plan than they save."""

_BUCKETS: Final = 1024
_SUFFIX: Final[dict[type[DataType], str]] = {ShortType: "S", IntegerType: "", LongType: "L"}

Range = tuple[Any, Any]


class Bounds(msgspec.Struct, frozen=True):
    """What holds for one column: its value is in one of the ranges, and among the values; all as literals of SQL."""

    column: str
    ranges: Sequence[tuple[str, str]] = ()
    values: Sequence[str] = ()

    def sql(self, alias: str | None = None) -> str:
        """The condition on a table's column."""
        name = (f"{alias}." if alias else "") + quoted(self.column)
        between = " OR ".join(f"{name} BETWEEN {low} AND {high}" for low, high in self.ranges)
        parts = [f"({between})"] if len(self.ranges) > 1 else [between]
        parts += [f"{name} IN ({','.join(self.values)})"] if self.values else []
        return " AND ".join(filter(None, parts)) or "true"


def bounds(rows: DataFrame, columns: Sequence[str], count: int) -> list[Bounds]:
    """Bounds of the values that some rows, so many of them, have in these columns; of those that can be literals."""
    types = {name: rows.schema[name].dataType for name in columns}
    types = {name: type for name, type in types.items() if _has_literals(type)}
    if not count or not types:
        return []
    if count <= MOST_VALUES:
        return list(_exactly(rows, types))
    return list(_roughly(rows, types))


def _exactly(rows: DataFrame, types: dict[str, DataType]) -> Iterable[Bounds]:
    found = rows.select(*(F.col(quoted(name)) for name in types)).distinct().collect()
    for place, (name, type) in enumerate(types.items()):
        values = sorted({row[place] for row in found if row[place] is not None}, key=_sorted_as)
        if values:
            yield _bounds(name, type, _joined([(value, value) for value in values]), values)


def _roughly(rows: DataFrame, types: dict[str, DataType]) -> Iterable[Bounds]:
    """Whole numbers are put into buckets first, so that a few far away from the others do not span all between."""
    limits = [extreme(quoted(name)) for name in types for extreme in (F.min, F.max)]
    row = rows.agg(*limits).first()
    assert row is not None, "an aggregate has one row"
    for place, (name, type) in enumerate(types.items()):
        low, high = row[2 * place], row[2 * place + 1]
        if low is None:
            continue
        if type.__class__ not in _SUFFIX or high - low < _BUCKETS:
            yield _bounds(name, type, [(low, high)])
            continue
        value = F.col(quoted(name))
        bucket = F.floor((value.cast("double") - float(low)) / ((high - low) / _BUCKETS))
        buckets = rows.groupBy(bucket).agg(F.min(value), F.max(value)).collect()
        yield _bounds(name, type, _joined(sorted((each[1], each[2]) for each in buckets if each[1] is not None)))


def _bounds(name: str, type: DataType, ranges: Sequence[Range], values: Sequence[Any] = ()) -> Bounds:
    def literals(values: Iterable[Any]) -> tuple[str, ...]:
        return tuple(literal(value, type) for value in values)

    return Bounds(name, tuple((literal(low, type), literal(high, type)) for low, high in ranges), literals(values))


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """At most `MOST_RANGES` of them, with the widest gaps between them kept; one for what is not a number.

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
    r"""A value as SQL says it.

    >>> literal(5, LongType()), literal("it's \\", StringType()), literal(Decimal("1.50"), DecimalType(9, 2))
    ('5L', "'it\\'s \\\\'", "CAST('1.50' AS decimal(9,2))")
    """
    if isinstance(type, StringType):
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(type, DecimalType):
        return f"CAST('{value}' AS {type.simpleString()})"
    if isinstance(type, DateType):
        return f"DATE'{value}'"
    return f"{value}{_SUFFIX[type.__class__]}"


def _has_literals(type: DataType) -> bool:
    return type.__class__ in _SUFFIX or isinstance(type, (StringType, DecimalType, DateType))


def _sorted_as(value: Any) -> Any:
    """Spark sorts texts by their bytes."""
    return value.encode() if isinstance(value, str) else value
