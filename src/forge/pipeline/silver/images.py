"""Values out of JSON images, as Spark expressions: the text of an image in, one typed value for each column out.

Spark's JSON functions pass numbers through a double: 12.30 in a string field is 12.3, and a numeric of 30 digits is
another number. They are used for what they read exactly: strings, whole numbers, booleans, decimals, and arrays of
those. Other numerics, floats and jsonb are cut out of the image's text. That is exact because of how images are
written, by row_to_json in PostgreSQL and by `forge.pipeline.archive.images`:

- `,"price":` stands before the value of a column, with no space in it, and nowhere else: inside a string quotes are
  escaped, and inside jsonb there is a space after each comma and each colon.
- So a value ends where `,"` and the name of another column begin. A string that ends in a comma has `,"` in it too,
  but then no name follows.

Where values were taken out of an image, `"$redacted"` is its last member and names their columns (see the log's
reference): `taken_out` has these names, and in what `readable` returns the values are null.

A value that cannot be had exactly is never taken for null: `Reading.bad` is true. The steps of reading are expressions
over the columns of the step before, so that nothing is computed twice.
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
"""Kinds whose text from_json does not keep."""

_WHOLE: Final = (ShortType, IntegerType, LongType)
_DIGITS: Final = {FloatType: 6, DoubleType: 15}
_BEFORE_THE_NEXT: Final = r'(?s)^(.*?)(?:,"(?![,\]}:]|[^"\\]*"[,\]}])|\}\s*$)'
"""A value, up to where the next column begins. An array of numbers may have `,"NaN"` in it, but no colon follows."""

_STRINGS_OF_JSON: Final = r'"(?:[^"\\]|\\.)*"'
_TAKEN_OUT: Final = f',"{values.REDACTED}":['
_ROUNDED_IN_A_VARIANT: Final = r"[0-9.]{39}|[0-9][0-9.]{15,}[eE]|[eE][+-]?[0-9]{3}"


class Reading(NamedTuple):
    """How a column of one version is read as a column of the target. Each step's result is the next one's input:

    `source` (what from_json read as `parsed_type`, or what `cut` found) → `raw` → `text` → `value`; then `bad` tells
    whether there is something that does not fit.
    """

    column: values.Column
    target: DataType
    logged: bool
    """Whether PostgreSQL has written the images: then a numeric(12,2) has two decimals."""

    @property
    def is_cut(self) -> bool:
        """Whether values are cut out of the image's text, rather than parsed."""
        return self.column.kind in _CUT and not (self._own == self.target and self._is_exact(self._own))

    @property
    def parsed_type(self) -> DataType:
        """The type by which from_json reads it."""
        own, target = self._own, self.target
        if own == target and self._is_exact(own):
            return own
        if isinstance(own, _WHOLE) and isinstance(target, _WHOLE) and _width(own) <= _width(target):
            return target
        return ArrayType(StringType()) if isinstance(own, ArrayType) and isinstance(target, ArrayType) else StringType()

    @property
    def is_direct(self) -> bool:
        """Whether what from_json reads is the value; where that failed its corrupt record tells."""
        return not self.is_cut and self.parsed_type == self.target

    @property
    def may_be_bad(self) -> bool:
        """Whether there can be something bad where from_json has found nothing wrong."""
        return not self.is_direct or self.target == ArrayType(StringType())

    def absent(self, source: Column, image: Column) -> Column:
        """Whether the image may lack the column; that it is logged as null is seen at once."""
        if self.is_cut:
            return source.isNull()
        marker = f"{_marker(self.column.name)}null"
        there = image.contains(marker) | image.startswith("{" + marker[1:])
        # Not `source.isNull() & …`: Spark would look for the marker in every image.
        return F.when(source.isNull(), ~there if self.logged else F.lit(True)).otherwise(False)

    def cut(self, image: Column) -> Column:
        """What follows the column's name in an image; null if the name is not there."""
        marker = _marker(self.column.name)
        rest = F.substring_index(image, marker, -1)
        first = F.substring_index(image, "{" + marker[1:], -1)
        return F.when(rest != image, rest).when(first != image, first)

    def raw(self, source: Column) -> Column:
        """The value as JSON, where it is cut."""
        if not self.is_cut:
            return source
        if self.column.kind in ("numeric", "float"):
            return F.rtrim(F.substring_index(source, ",", 1), F.lit("}"))
        return F.regexp_extract(source, _BEFORE_THE_NEXT, 1)

    def text(self, raw: Column) -> Column:
        """The value's text; the texts of its elements for an array that from_json reads as such."""
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
        """The value, or null if it does not fit."""
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
            # Not `source.isNull() & …`: Spark would look for the keys of every image.
            keys = F.json_object_keys(image)
            wrong.append(F.when(source.isNull(), F.array_contains(keys, self.column.name)).otherwise(False))
        if isinstance(own, ArrayType) and isinstance(target, ArrayType):
            of, to = own.elementType, target.elementType
            if self.is_cut:
                wrong.append(~text.startswith("[") | text.startswith("[[") | ~text.endswith("]"))
            elif self.parsed_type == ArrayType(StringType()):
                # An array of several dimensions would be one of the texts of its rows.
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
        """The text of a misfit."""
        return F.to_json(text) if isinstance(self.parsed_type, ArrayType) and not self.is_cut else text.cast("string")

    @property
    def _own(self) -> DataType:
        own = Types().of(self.column)
        assert own is not None, "a hidden column has no values"
        return own

    def _is_exact(self, type: DataType) -> bool:
        """Whether from_json reads values of the type as they are. It would round a decimal that has too many digits."""
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
    """The text of a value of the type `own` as a `target`; null, or another value, where `_misfit` is true."""
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
    """Whether a value, which `_converted` has made of a text, is not just what the text says."""
    fits = _fits(kind, own, target, text, value)
    return text.isNotNull() & (value.isNull() if fits is None else value.isNull() | ~fits)


def _fits(kind: str, own: DataType, target: DataType, text: Column, value: Column) -> Column | None:
    """What must hold beside that there is a value; None for nothing."""
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
        # Spark reads a date with anything after a space, years of more digits than its own range has, and words.
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
    """The names of the columns whose values were taken out of an image; null when none were."""
    names = F.concat(F.lit("["), F.rtrim(F.substring_index(image, _TAKEN_OUT, -1), F.lit("}")))
    return F.when(image.contains(_TAKEN_OUT), F.from_json(names, "array<string>"))


def readable(image: Column) -> Column:
    """An image with nulls for the values that were taken out. Nothing else is written like them: jsonb has a space."""
    rest = F.replace(F.substring_index(image, _TAKEN_OUT, 1), F.lit(f':{{"{values.REDACTED}":true}}'), F.lit(":null"))
    return F.when(image.contains(_TAKEN_OUT), F.concat(rest, F.lit("}"))).otherwise(image)


def any_of(conditions: Iterable[Column]) -> Column:
    """Whether one of them is true; a tree that is not deep, for tables with many columns."""
    level = [*conditions] or [F.lit(False)]
    while len(level) > 1:
        level = [reduce(lambda one, other: one | other, level[at : at + 2]) for at in range(0, len(level), 2)]
    return level[0]
