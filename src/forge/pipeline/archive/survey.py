"""Survey an archive, the first pass: collect what the conversion needs to know from all lines.

Each task collects the traits of columns as bits and returns a few rows; they are combined by a bitwise or, so neither
the order of lines nor Spark's partitioning matters.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from forge.errors import DecodeError
from forge.pipeline.archive import infer
from forge.pipeline.archive.convert import ArchivePlan, Converter, SurveyedLine, UndefinedTable, inferred
from forge.pipeline.definitions import decode, encode

_ENTRY: Final = pa.struct(
    [
        ("schema", pa.string()),
        ("table", pa.string()),
        ("key", pa.string()),
        ("columns", pa.string()),
        ("column", pa.string()),
        ("needed", pa.bool_()),
        ("position", pa.int32()),
        ("traits", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
    ]
)
_RETURNED: Final = (
    "array<struct<schema: string, table: string, key: string, columns: string, column: string, needed: boolean,"
    " position: int, traits: bigint, first: bigint, last: bigint>>"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Entry = tuple[str, str, str | None, str | None, str | None, bool]
Facts = tuple[int, int, int, int]
"""The least position and the traits of a column, and the first and last microsecond of its changes."""


class Survey(msgspec.Struct, frozen=True):
    """The plan with the survey's results, and the first and last day of the changes."""

    plan: ArchivePlan
    days: tuple[date, date] | None


def survey(lines: DataFrame, plan: ArchivePlan) -> Survey:
    """Survey all lines; `lines` has them as `value`, with the `key` of their message."""

    def look(batches: Iterator[tuple[pa.Array, pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        converter = Converter(plan)
        for values, keys, _ in batches:
            found: dict[Entry, Facts] = {}
            for value, key in zip(values.to_pylist(), keys.to_pylist(), strict=True):
                try:
                    seen = None if value is None else converter.survey(value, key)
                except DecodeError:
                    continue  # the second pass reports it
                if seen is not None:
                    _gather(found, seen)
            yield _array(found, len(values))

    entries = arrow_udf(look, _RETURNED).asNondeterministic()  # type: ignore[call-overload]
    rows = (
        lines.select(entries("value", "key", "number").alias("entries"))
        .selectExpr("inline(entries)")
        .groupBy("schema", "table", "key", "columns", "column", "needed")
        .agg(F.min("position"), F.bit_or("traits"), F.min("first"), F.max("last"))
        .collect()
    )
    needed: dict[UndefinedTable, list[tuple[int, str, int]]] = {}
    latest: dict[UndefinedTable, int] = {}
    whole: set[tuple[str, str]] = set()
    base64: set[tuple[str, str, str]] = set()
    times: list[int] = []
    for schema, table, key, columns, column, is_needed, position, traits, first, last in rows:
        times += [first, last]
        if column is not None and traits & infer.BASE64:
            base64.add((schema, table, column))
        if is_needed and key is None:
            whole.add((schema, table))
        elif is_needed:
            kind = UndefinedTable(
                schema, table, tuple(msgspec.json.decode(key)), None if columns is None else decode(columns)
            )
            seen = needed.setdefault(kind, [])
            latest[kind] = max(last, latest.get(kind, last))
            if column is not None:
                seen.append((position, column, traits))
    for schema, table in whole - {(kind.schema, kind.table) for kind in needed}:
        needed[UndefinedTable(schema, table, (), None)] = []
    order = sorted(needed, key=lambda kind: (kind.schema, kind.table, latest.get(kind, 0), repr(kind)))
    found = {kind: [(name, traits) for _, name, traits in sorted(needed[kind])] for kind in order}
    return Survey(
        msgspec.structs.replace(plan, inferred=inferred(found, plan.definitions), base64=frozenset(base64)),
        (_day(min(times)), _day(max(times))) if times else None,
    )


def _day(at: int) -> date:
    return (_EPOCH + timedelta(microseconds=at)).date()


def _gather(found: dict[Entry, Facts], seen: SurveyedLine) -> None:
    change, needs = seen.change, seen.needs
    key = None if needs is None else msgspec.json.encode(needs.key).decode()
    columns = None if needs is None or needs.columns is None else encode(needs.columns)
    at = (change.at - _EPOCH) // timedelta(microseconds=1)
    needed = needs is not None or seen.whole
    table = (change.schema, change.table, key, columns)
    _add(found, (*table, None, needed), 0, 0, at)
    for position, (name, traits) in enumerate(seen.traits.items()):
        _add(found, (*table, name, needed), position, traits, at)


def _add(found: dict[Entry, Facts], entry: Entry, position: int, traits: int, at: int) -> None:
    old = found.get(entry)
    if old is None:
        found[entry] = (position, traits, at, at)
    else:
        found[entry] = (min(old[0], position), old[1] | traits, min(old[2], at), max(old[3], at))


def _array(found: dict[Entry, Facts], length: int) -> pa.Array:
    """Return an array as Spark requires it, one value per line: everything in the first, nothing in the others."""
    names = _ENTRY.names
    entries = [dict(zip(names, (*entry, *facts), strict=True)) for entry, facts in found.items()]
    return pa.array([entries] + [None] * (length - 1), pa.list_(_ENTRY)) if length else pa.array([], pa.list_(_ENTRY))
