"""Types of columns in the lake: a PostgreSQL column in, a Spark type out, without rounding.

Types without an exact Spark type become a string in the form of `forge.values`: numeric without a precision of at most
38 digits, times of day, intervals, ranges, enums, domains, composites, and all types that this module does not know. An
array becomes an array of its elements' type. A masked column is a string; a hidden one is not in the lake.

>>> Types().of(Column("price", "numeric(12,2)", "numeric")), Types().of(Column("total", "numeric", "numeric"))
(DecimalType(12,2), StringType())
>>> Types().of(Column("at", "timestamp(3) with time zone")), Types().of(Column("tags", "integer[]", "plain[]"))
(TimestampType(), ArrayType(IntegerType(), True))
>>> Types().of(Column("secret", "text", "hidden")) is None
True
"""

import re
from typing import Final, Literal

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from forge.values import Column

# format_type prints user-defined types with their schema, so these names are unambiguous.
_NAMES: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "smallint": ShortType(),
    "integer": IntegerType(),
    "bigint": LongType(),
    "real": FloatType(),
    "double precision": DoubleType(),
    "bytea": BinaryType(),
    "date": DateType(),
}
_NUMERIC: Final = re.compile(r"numeric\((\d+),(-?\d+)\)")
_TIMESTAMP: Final = re.compile(r"timestamp(?:\(\d\))? (with|without) time zone")
_VECTORS: Final = ("int2vector", "oidvector")


class Types(msgspec.Struct, frozen=True):
    """Options of the mapping. `json` is the type of json and jsonb columns: their exact text, or a variant.

    A variant supports path queries (`doc:total::decimal(12,2)`), but no comparison, GROUP BY or DISTINCT; it keeps
    numbers, not their notation (1.10 is 1.1). A row with a number that a variant would round is a misfit.
    """

    json: Literal["string", "variant"] = "string"

    def of(self, column: Column) -> DataType | None:
        """Return the type of a column in the lake; None when it is not there."""
        if column.kind == "hidden":
            return None
        if column.kind == "masked":
            return StringType()
        if column.kind.endswith("[]"):
            return self._array(column)
        if column.kind == "bytea":
            return BinaryType()
        if column.kind == "jsonb" or column.type == "json":
            return VariantType() if self.json == "variant" else StringType()
        return _scalar(column.type)

    def _array(self, column: Column) -> DataType:
        if column.type in _VECTORS:
            return StringType()
        if column.kind == "bytea[]":
            return ArrayType(BinaryType())
        # A domain over an array does not give the type of its elements.
        return ArrayType(_scalar(column.type[:-2]) if column.type.endswith("[]") else StringType())


def _scalar(type: str) -> DataType:
    if known := _NAMES.get(type):
        return known
    if match := _NUMERIC.fullmatch(type):
        precision, scale = int(match[1]), int(match[2])
        return DecimalType(precision, scale) if precision <= 38 and 0 <= scale <= precision else StringType()
    if match := _TIMESTAMP.fullmatch(type):
        return TimestampType() if match[1] == "with" else TimestampNTZType()
    return StringType()
