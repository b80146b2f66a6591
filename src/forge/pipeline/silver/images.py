"""Read values from JSON images with Spark expressions: the text of an image in, one typed value per column out.

Spark's JSON functions pass numbers through a double: 12.30 in a string field becomes 12.3, and a numeric of 30 digits
becomes another number. They are used only for types that they read exactly: strings, integers, booleans, decimals, and
arrays of those. Other numerics, floats and jsonb are cut out of the image's text. Cutting is exact because of the way
row_to_json in PostgreSQL and `forge.pipeline.archive.images` write images:

- `,"price":` precedes the value of a column, without spaces, and occurs nowhere else: quotes inside a string are
  escaped, and jsonb has a space after each comma and each colon.
- So a value ends where `,"` and the name of another column begin. A string that ends in a comma also contains `,"`, but
  no name follows it.

Where values were redacted in an image, `"$redacted"` is its last member and names their columns (see the log's
reference): `taken_out` returns these names, and `readable` returns the image with null values.

A value that cannot be read exactly never becomes null silently: `ColumnReading.bad` is true. Each step of reading is an
expression over the columns of the previous step, so nothing is computed twice.
"""

import json
import re
from collections.abc import Iterable
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
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

from forge import values
from forge.pipeline.silver.types import Types

_CUT: Final = ("numeric", "float", "jsonb", "numeric[]", "float[]")
"""Kinds whose text from_json does not preserve."""

_WHOLE: Final = (ShortType, IntegerType, LongType)
_DIGITS: Final = {FloatType: 6, DoubleType: 15}
_BEFORE_THE_NEXT: Final = r'(?s)^(.*?)(?:,"(?![,\]}:]|[^"\\]*"[,\]}])|\}\s*$)'
"""A value, up to the start of the next column. An array of numbers may contain `,"NaN"`, but no colon follows."""

_STRINGS_OF_JSON: Final = r'"(?:[^"\\]|\\.)*"'
_TAKEN_OUT: Final = f',"{values.REDACTED}":['
_ROUNDED_IN_A_VARIANT: Final = r"[0-9.]{39}|[0-9][0-9.]{15,}[eE]|[eE][+-]?[0-9]{3}"


class ColumnReading(NamedTuple):
    """The expressions that read a column of one version as a column of the target. Each step feeds the next:

    `source` (read by from_json as `parsed_type`, or found by `cut`) → `raw` → `text` → `value`; then `bad` is whether a
    value does not fit.
    """

    column: values.Column
    target: DataType
    logged: bool
    """Whether PostgreSQL wrote the images: then a numeric(12,2) has two decimals."""

    @property
    def is_cut(self) -> bool:
        """Whether values are cut out of the image's text and not parsed."""
        return self.column.kind in _CUT and not (self._own == self.target and self._is_exact(self._own))

    @property
    def parsed_type(self) -> DataType:
        """The type that from_json uses."""
        own, target = self._own, self.target
        if own == target and self._is_exact(own):
            return own
        if isinstance(own, _WHOLE) and isinstance(target, _WHOLE) and _width(own) <= _width(target):
            return target
        return ArrayType(StringType()) if isinstance(own, ArrayType) and isinstance(target, ArrayType) else StringType()

    @property
    def is_direct(self) -> bool:
        """Whether from_json returns the final value; its corrupt record marks failures."""
        return not self.is_cut and self.parsed_type == self.target

    @property
    def may_be_bad(self) -> bool:
        """Whether a value can be bad although from_json reported no error."""
        return not self.is_direct or self.target == ArrayType(StringType())

    def absent(self, source: Column, image: Column) -> Column:
        """Whether the image may lack the column; a column logged as null is recognized."""
        if self.is_cut:
            return source.isNull()
        marker = f"{_marker(self.column.name)}null"
        there = image.contains(marker) | image.startswith("{" + marker[1:])
        # Not `source.isNull() & …`: Spark would search every image for the marker.
        return F.when(source.isNull(), ~there if self.logged else F.lit(True)).otherwise(False)

    def cut(self, image: Column) -> Column:
        """Return the text after the column's name in an image; null if the name is absent."""
        marker = _marker(self.column.name)
        rest = F.substring_index(image, marker, -1)
        first = F.substring_index(image, "{" + marker[1:], -1)
        return F.when(rest != image, rest).when(first != image, first)

    def raw(self, source: Column) -> Column:
        """Return the value as JSON, where it is cut."""
        if not self.is_cut:
            return source
        if self.column.kind in ("numeric", "float"):
            return F.rtrim(F.substring_index(source, ",", 1), F.lit("}"))
        return F.regexp_extract(source, _BEFORE_THE_NEXT, 1)

    def text(self, raw: Column) -> Column:
        """Return the value's text; for an array that from_json reads as such, the texts of its elements."""
        if not self.is_cut:
            return raw
        if self.column.kind in ("numeric", "float"):
            return F.when(raw != "null", _unquoted(raw))
        if self.column.kind == "jsonb":
            # jsonb that is null, or has a member `$json`, is logged as {"$json" : …}.
            inner = F.substring(raw, F.instr(raw, ":") + 1, F.length(raw) - F.instr(raw, ":") - 1)
            return F.when(raw.startswith('{"$json"'), F.trim(inner)).when(raw != "null", raw)
        return F.when(raw != "null", raw)

    def value(self, text: Column) -> Column:
        """Return the value, or null if it does not fit."""
        if self.is_direct:
            return text
        own, target, kind = self._own, self.target, self.column.kind
        if isinstance(own, ArrayType) and isinstance(target, ArrayType):
            of, to, kind = own.elementType, target.elementType, kind.removesuffix("[]")
            return F.transform(self._items(text), lambda item: _converted(kind, of, to, item))
        return _converted(kind, own, target, text)

    def bad(self, source: Column, text: Column, value: Column, image: Column) -> Column:
        """Whether the image has a value that does not fit; never null."""
        own, target, kind = self._own, self.target, self.column.kind
        wrong: list[Column] = []
        if self.is_cut:
            # Not `source.isNull() & …`: Spark would parse the keys of every image.
            keys = F.json_object_keys(image)
            wrong.append(F.when(source.isNull(), F.array_contains(keys, self.column.name)).otherwise(False))
        if isinstance(own, ArrayType) and isinstance(target, ArrayType):
            of, to = own.elementType, target.elementType
            if self.is_cut:
                wrong.append(~text.startswith("[") | text.startswith("[[") | ~text.endswith("]"))
            elif self.parsed_type == ArrayType(StringType()):
                # from_json would read an array of several dimensions as one of the texts of its rows.
                several = "[{,]" + re.escape(_marker(self.column.name)[1:-1]) + r"\s*:\s*\[\s*\["
                wrong.append(F.exists(text, lambda item: item.startswith("[")) & image.rlike(several))
            if not self.is_direct:

                def misfit(item: Column) -> Column:
                    return _misfit(kind.removesuffix("[]"), of, to, item, _converted(kind, of, to, item))

                wrong.append(F.exists(self._items(text), misfit))
        elif not self.is_direct:
            wrong.append(_misfit(kind, own, target, text, value))
            if kind == "jsonb":
                wrong.append(text.isNotNull() & F.try_parse_json(text).isNull())
        return F.coalesce(any_of(wrong), F.lit(False))

    def shown(self, text: Column) -> Column:
        """Return the text of a misfit."""
        return F.to_json(text) if isinstance(self.parsed_type, ArrayType) and not self.is_cut else text.cast("string")

    @property
    def _own(self) -> DataType:
        own = Types().of(self.column)
        assert own is not None, "a hidden column has no values"
        return own

    def _is_exact(self, type: DataType) -> bool:
        """Whether from_json reads values of the type exactly. It would round a decimal that has too many digits."""
        if isinstance(type, ArrayType):
            return self._is_exact(type.elementType)
        return (isinstance(type, (BooleanType, StringType, *_WHOLE)) and self.column.kind not in _CUT) or (
            isinstance(type, DecimalType) and self.logged
        )

    def _items(self, text: Column) -> Column:
        if not self.is_cut:
            return text
        inner = F.substring(text, F.lit(2), F.length(text) - 2)
        items = F.when(inner == "", F.array().cast("array<string>")).otherwise(F.split(inner, ","))
        return F.transform(items, lambda item: F.when(item != "null", _unquoted(item)))


def _converted(kind: str, own: DataType, target: DataType, text: Column) -> Column:
    """Convert the text of a value of the type `own` to `target`; the result is invalid where `_misfit` is true."""
    if isinstance(target, StringType):
        return text
    if isinstance(target, VariantType):
        return F.try_parse_json(text)
    if isinstance(target, BinaryType):
        return F.unhex(F.substring(text, 3, 2**31 - 1))
    if isinstance(target, DoubleType) and isinstance(own, FloatType):
        return text.try_cast(FloatType()).cast(DoubleType())
    return text.try_cast(target)


def _misfit(kind: str, own: DataType, target: DataType, text: Column, value: Column) -> Column:
    """Whether a value that `_converted` returned differs from its text."""
    fits = _fits(kind, own, target, text, value)
    return text.isNotNull() & (value.isNull() if fits is None else value.isNull() | ~fits)


def _fits(kind: str, own: DataType, target: DataType, text: Column, value: Column) -> Column | None:
    """Return the condition that a non-null value must also meet; None for none."""
    words = isinstance(own, StringType)
    number = isinstance(own, (DecimalType, *_WHOLE)) or kind == "numeric"
    match target:
        case StringType():
            return None
        case VariantType() if words:
            return ~F.regexp_replace(text, _STRINGS_OF_JSON, '""').rlike(_ROUNDED_IN_A_VARIANT)
        case BinaryType() if own == target:
            return text.startswith("\\x")
        case DecimalType() if number or words:
            return text.rlike(rf"^-?[0-9]+(?:\.[0-9]{{0,{target.scale}}}0*)?$")
        # Spark accepts a date with anything after a space, years beyond its own range, and words.
        case DateType() if own == target or words:
            return F.length(text) == 10
        case TimestampNTZType() if isinstance(own, DateType):
            return F.length(text) == 10
        case TimestampNTZType() | TimestampType() if own == target:
            longest = "2026-01-31T12:00:00.123456" + ("+00:00" if isinstance(target, TimestampType) else "")
            return (F.length(text) <= len(longest)) & (F.substring(text, 5, 1) == "-")
        case FloatType() | DoubleType() if own == target or isinstance(own, FloatType):
            return None
        case FloatType() | DoubleType() if number:
            digits = F.length(F.ltrim(F.regexp_replace(text, r"[-.]", ""), F.lit("0")))
            return digits <= _DIGITS[type(target)]
        case BooleanType() | ShortType() | IntegerType() | LongType() if number or words:
            return value.cast("string") == text
    return F.lit(False)


def _width(type: DataType) -> int:
    return [each.__name__ for each in _WHOLE].index(type.__class__.__name__)


def _marker(name: str) -> str:
    return f",{json.dumps(name, ensure_ascii=False)}:"


def _unquoted(text: Column) -> Column:
    return F.trim(text, F.lit('" '))


def taken_out(image: Column) -> Column:
    """Return the names of the redacted columns of an image; null when there are none."""
    names = F.concat(F.lit("["), F.rtrim(F.substring_index(image, _TAKEN_OUT, -1), F.lit("}")))
    return F.when(image.contains(_TAKEN_OUT), F.from_json(names, "array<string>"))


def readable(image: Column) -> Column:
    """Return an image with nulls for redacted values. The marker is unambiguous, because jsonb has a space there."""
    rest = F.replace(F.substring_index(image, _TAKEN_OUT, 1), F.lit(f':{{"{values.REDACTED}":true}}'), F.lit(":null"))
    return F.when(image.contains(_TAKEN_OUT), F.concat(rest, F.lit("}"))).otherwise(image)


def any_of(conditions: Iterable[Column]) -> Column:
    """Whether any condition is true, as a shallow expression tree, for tables with many columns."""
    level = [*conditions] or [F.lit(False)]
    while len(level) > 1:
        level = [reduce(lambda one, other: one | other, level[at : at + 2]) for at in range(0, len(level), 2)]
    return level[0]
