"""Reasons for misfits, in one line: the kind of problem, a colon, and the value."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

UNKNOWN_DEFINITION: Final = "unknown definition"
NOT_AN_IMAGE: Final = "not an image"
TYPE_CHANGED: Final = "type changed"

_MOST = 80
"""The number of characters of a value that are shown."""


def misfit(kind: Column, text: Column, type: Column) -> Column:
    """Return the reason for a value that does not fit a type."""
    return F.concat(kind, F.lit(": "), shown(text), F.lit(" does not fit "), type)


def kind(type: DataType) -> str:
    """Return the kind of problem when a value does not fit a type.

    >>> kind(DecimalType(12, 2)), kind(ArrayType(DateType()))
    ('numeric field overflow', 'array of another shape')
    """
    if isinstance(type, DecimalType):
        return "numeric field overflow"
    if isinstance(type, (DateType, TimestampType, TimestampNTZType)):
        return "time out of range"
    if isinstance(type, ArrayType):
        return "array of another shape"
    if isinstance(type, BinaryType):
        return "not hexadecimal"
    if isinstance(type, BooleanType):
        return "not a boolean"
    if isinstance(type, VariantType):
        return "not exact as a variant"
    if isinstance(type, StringType):
        return NOT_AN_IMAGE
    return "number out of range"


def shown(text: Column) -> Column:
    """Return a text on one line, cut if it is long."""
    line = F.regexp_replace(F.substring(text, 1, _MOST + 1), r"\s+", " ")
    return F.when(F.length(line) > _MOST, F.concat(F.substring(line, 1, _MOST), F.lit("…"))).otherwise(line)
