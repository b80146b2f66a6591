"""One text per value, in Spark and in PostgreSQL: equal values have equal texts, different values different ones.

These texts identify rows: in a table without a key (`_key`), and when the lake is compared with its database. Spark
builds them from typed columns, PostgreSQL from the members of an image (`forge.values`):

==========================  ===============================================================================
decimal                     all digits of its scale, never an exponent
real, double                as %a prints them: 0x1.8p1; NaN, Infinity and -0x0.0p0 too
timestamp                   microseconds since 1970-01-01 in UTC
timestamp without zone      2026-01-31 12:00:00.5
binary                      \\x and hexadecimal digits
array                       [ and its elements, each with its length before it: [1:a-2:bc has a null in it
anything else               as in an image
==========================  ===============================================================================

`joined` concatenates several texts: each with its length before it, and `-` for a null.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

_PLAIN_SCALE: Final = 6
"""Up to this scale a decimal is printed without an exponent, whether Spark is in ANSI mode or not."""


def text(value: Column, type: DataType) -> Column:
    """Return the text of a value in Spark."""
    if isinstance(type, DecimalType) and type.scale > _PLAIN_SCALE:
        return _plain(value.cast("string"))
    if isinstance(type, (FloatType, DoubleType)):
        return F.when(value.isNotNull(), F.format_string("%a", value.cast("double")))
    if isinstance(type, TimestampType):
        return F.unix_micros(value).cast("string")
    if isinstance(type, BinaryType):
        return F.concat(F.lit("\\x"), F.lower(F.hex(value)))
    if isinstance(type, VariantType):
        return F.to_json(value)
    if isinstance(type, ArrayType):
        items = F.transform(value, lambda item: prefixed(text(item, type.elementType)))
        return F.concat(F.lit("["), F.array_join(items, ""))
    return value.cast("string")


def _plain(number: Column) -> Column:
    """Print 1.5E-9 as 0.0000000015, and 0E-8 as 0.00000000; only numbers below 1e-6 without ANSI mode are affected."""
    sign = F.when(number.startswith("-"), "-0.").otherwise("0.")
    digits = F.translate(F.regexp_extract(number, r"([0-9.]+)E", 1), ".", "")
    zeros = F.lpad(F.lit(""), F.regexp_extract(number, r"E-([0-9]+)$", 1).try_cast("int") - 1, "0")
    return F.when(number.contains("E"), F.concat(sign, zeros, digits)).otherwise(number)


def joined(texts: Iterable[Column]) -> Column:
    """Concatenate several texts in Spark."""
    return F.concat(*map(prefixed, texts))


def named(values: Iterable[tuple[str, DataType, Column]]) -> Column:
    """Return the text of a row in Spark, independent of the order of its columns; nulls are ignored.

    So a row keeps its text when a column is added to its table.
    """
    parts = [
        F.when(value.isNotNull(), F.concat(F.lit(f"{len(name)}:{name}"), prefixed(text(value, type))))
        for name, type, value in sorted(values, key=lambda each: each[0])
    ]
    return F.concat_ws("", *parts)


def prefixed(value: Column) -> Column:
    """Prefix a text with its length in Spark."""
    return F.coalesce(F.concat(F.length(value).cast("string"), F.lit(":"), value), F.lit("-"))


def sql_text(value: str, type: DataType) -> str:
    """Return SQL for the text of a value to compare with one of this type in Spark; `value` is SQL for its text in an
    image. A value that Spark's type cannot hold is its own text."""
    if isinstance(type, DecimalType):
        number = f"{value}::numeric"
        return (
            f"CASE WHEN {value} ~ '^-?[0-9.]+$' AND scale({number}) < {type.scale}"
            f" THEN round({number}, {type.scale})::text ELSE {value} END"
        )
    if isinstance(type, FloatType):
        return _sql_float(f"{value}::float4")
    if isinstance(type, DoubleType):
        return _sql_float(value)
    if isinstance(type, TimestampType):
        return (
            f"CASE WHEN isfinite({value}::timestamptz)"
            f" THEN (extract(epoch FROM {value}::timestamptz) * 1000000)::bigint::text ELSE {value} END"
        )
    if isinstance(type, TimestampNTZType):
        return f"replace({value}, 'T', ' ')"
    if isinstance(type, ArrayType):
        return (
            f"CASE WHEN left({value}, 1) = '[' AND left({value}, 2) <> '[[' THEN '[' || coalesce("
            f"(SELECT string_agg({sql_prefixed('i.t')}, '' ORDER BY i.o)"
            f" FROM (SELECT a.o, {sql_text('a.e', type.elementType)} AS t"
            f" FROM json_array_elements_text({value}::json) WITH ORDINALITY a (e, o)) i), '') ELSE {value} END"
        )
    return value


def sql_joined(texts: Iterable[str]) -> str:
    """Return SQL that concatenates several texts."""
    return " || ".join(map(sql_prefixed, texts))


def sql_prefixed(value: str) -> str:
    """Return SQL for a text with its length before it."""
    return f"coalesce(length({value}) || ':' || {value}, '-')"


def sql_md5(value: str) -> str:
    """Return SQL for the MD5 of a text's bytes in Spark, independent of the database's encoding."""
    return f"md5(convert_to({value}, 'UTF8'))"


def _sql_float(value: str) -> str:
    mantissa = "coalesce(nullif(rtrim(substr(f.h, 4), '0'), ''), '0')"
    return (
        "(SELECT CASE WHEN f.f IN ('NaN', 'Infinity', '-Infinity') THEN f.f::text ELSE"
        " CASE WHEN f.h >= '8' THEN '-' ELSE '' END || CASE WHEN f.f = 0 THEN '0x0.0p0'"
        f" WHEN f.e = 0 THEN '0x0.' || {mantissa} || 'p-1022'"
        f" ELSE '0x1.' || {mantissa} || 'p' || (f.e - 1023)::text END END"
        " FROM (SELECT g.f, g.h, ('x' || substr(g.h, 1, 3))::bit(12)::integer & 2047 AS e"
        f" FROM (SELECT {value}::float8 AS f, encode(float8send({value}::float8), 'hex') AS h) g) f"
        f" WHERE {value} IS NOT NULL)"
    )
