"""Read archive files into the frame CHANGES, the refused lines and the inferred definitions."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from forge.change import Op
from forge.errors import DecodeError
from forge.pipeline.archive.convert import ArchivePlan, Converter
from forge.pipeline.archive.files import CUT, Paths, contents, id_of, listed
from forge.pipeline.archive.lines import Envelope
from forge.pipeline.archive.order import Generation
from forge.pipeline.archive.survey import survey
from forge.pipeline.changes import CHANGES
from forge.pipeline.definitions import Definition
from forge.pipeline.tables import day_of

_TYPES: Final = {"string": pa.string(), "integer": pa.int32(), "long": pa.int64(), "timestamp": pa.int64()}
_NAMES: Final = {pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint"}
LONGEST: Final = 64 * 1024 * 1024
"""The default maximum length of a line, in bytes."""


class Archive(msgspec.Struct, frozen=True):
    """An archive; its frames are computed lazily.

    `definitions` are those that the archive's changes name and the caller did not give. `refused` has the columns
    `file`, `line` (its text, cut after a thousand bytes) and `reason`. `id` names the files, see `import_id`; `days`
    are the first and last day (UTC) of the changes, None when there are none.
    """

    changes: DataFrame
    definitions: list[Definition]
    refused: DataFrame
    id: str
    days: tuple[date, date] | None

    def unseen(self, bronze: DataFrame) -> DataFrame:
        """Return the changes whose ids bronze does not have, each once; only bronze's partitions of these days are
        read."""
        changes = self.changes.dropDuplicates(["id"])
        if self.days is None:
            return changes
        there = bronze.where(F.col("day").between(*self.days)).select("id")
        return changes.join(there, "id", "left_anti").select(*CHANGES.names)


def read(
    spark: SparkSession,
    path: Paths,
    *,
    envelope: Envelope | None = None,
    definitions: Sequence[Definition] = (),
    generations: Sequence[Generation] = (),
    keys: Mapping[str, Sequence[str]] | None = None,
    source: str | None = None,
    strict: bool = False,
    longest: int = LONGEST,
) -> Archive:
    """Read archived changes; see `forge.pipeline.archive` for the supported files.

    `definitions` are those of the lake, `generations` the snapshots that its stream took, in order. `keys` gives the
    keys of tables (`{"public.orders": ["id"]}`) for events without one. With `source`, lines of any other source are
    refused. With `strict` the first refused line raises DecodeError.
    """
    files = listed(spark, path)
    held = contents(spark, files, longest)
    plan = ArchivePlan(
        envelope=envelope,
        definitions=tuple(definitions),
        generations=tuple(generations),
        keys={table: tuple(names) for table, names in (keys or {}).items()},
        source=source,
    )
    frames: list[DataFrame] = []
    days: list[date] = []
    inferred: list[Definition] = []
    if held.lines is not None:
        found = survey(held.lines, plan)
        days += found.days or ()
        known = set(plan.definitions)
        inferred = sorted(
            {definition for definition in found.plan.inferred.values() if definition not in known},
            key=lambda definition: (definition.name, definition.version),
        )
        frames.append(_converted(held.lines, found.plan))
    if held.copied is not None:
        frame = _copied(held.copied, plan)
        days += _days(frame)
        frames.append(frame)
    frame = reduce(DataFrame.unionByName, frames)
    if strict:
        _raise_first(frame, held.lines)
    return Archive(
        frame.where(F.col("reason").isNull()).select(*CHANGES.names),
        inferred,
        frame.where(F.col("reason").isNotNull()).select("file", "line", "reason"),
        id_of(files),
        (min(days), max(days)) if days else None,
    )


_READ: Final = pa.struct(
    [
        *((field.name, _TYPES[field.dataType.typeName()]) for field in CHANGES.fields),
        ("line", pa.string()),
        ("reason", pa.string()),
    ]
)
"""A change, or a refused line with its reason; times are in microseconds."""

_NO_CHANGE: Final = (None,) * len(CHANGES.fields)
_AT: Final = CHANGES.names.index("at")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _converted(lines: DataFrame, plan: ArchivePlan) -> DataFrame:
    def convert(batches: Iterator[tuple[pa.Array, pa.Array, pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        converter = Converter(plan)
        for *columns, _ in batches:
            rows: list[tuple[Any, ...] | None] = []
            for value, key, too_long in zip(*(column.to_pylist() for column in columns), strict=True):
                try:
                    if too_long:
                        raise DecodeError("the line is too long", fix="give the option longest")
                    row = None if value is None else converter.convert(value, key)
                except DecodeError as error:
                    rows.append((*_NO_CHANGE, value[:CUT].decode(errors="replace"), str(error)))
                else:
                    rows.append(None if row is None else (*_counted(row), None, None))
            yield _array(rows)

    schema = ", ".join(f"`{field.name}`: {_NAMES[field.type]}" for field in _READ)
    read = arrow_udf(convert, f"struct<{schema}>").asNondeterministic()  # type: ignore[call-overload]
    rows = lines.select("file", "block", "number", read("value", "key", "too_long", "number").alias("read"))
    found = rows.where(F.col("read").isNotNull()).select("file", "block", "number", "read.*")
    return _framed(found.withColumn("at", F.timestamp_micros("at")))


def _counted(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:_AT], (row[_AT] - _EPOCH) // timedelta(microseconds=1), *row[_AT + 1 :])


def _array(rows: list[tuple[Any, ...] | None]) -> pa.Array:
    nothing = (None,) * _READ.num_fields
    columns = list(zip(*(row or nothing for row in rows), strict=True)) or [()] * _READ.num_fields
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _READ, strict=True)]
    return pa.StructArray.from_arrays(
        arrays, fields=list(_READ), mask=pa.array([row is None for row in rows], pa.bool_())
    )


def _framed(frame: DataFrame) -> DataFrame:
    """Return the columns of CHANGES, with nulls only where allowed, then those of a refused line."""
    empty = {"string": F.lit(""), "integer": F.lit(0), "timestamp": F.timestamp_micros(F.lit(0))}
    columns = [
        F.col(field.name)
        if field.nullable
        else F.coalesce(F.col(field.name), empty[field.dataType.typeName()]).alias(field.name)
        for field in CHANGES.fields
    ]
    return frame.select(*columns, "file", "block", "number", "line", "reason")


_OPS: Final = (*(op.value for op in Op), "snapshot")
_SEQ: Final = "^[0-9a-f]{4}(!([0-9]{12})?|[0-9a-f]{16}([0-9a-f]{16})?)?$"


def _copied(frame: DataFrame, plan: ArchivePlan) -> DataFrame:
    """Return rows of a lake's bronze unchanged; rows that cannot come from bronze are refused."""
    reasons: list[tuple[Column, str]] = [
        (F.col(field.name).isNull(), f"it has no {field.name}") for field in CHANGES.fields if not field.nullable
    ]
    reasons.append((~F.col("op").isin(*_OPS), "an unknown operation"))
    reasons.append((~F.col("seq").rlike(_SEQ), "its seq says no order"))
    if plan.definitions:
        versions = [definition.version for definition in plan.definitions]
        reasons.append((~F.col("version").isin(versions), "it names a definition that was not given"))
    reason = F.coalesce(*(F.when(wrong, F.lit(text)) for wrong, text in reasons))
    text = F.to_json(F.struct(*(F.col(name) for name in ("seq", "id", "op", "schema", "table", "version", "at"))))
    return _framed(
        frame.select(
            *CHANGES.names,
            F.col("_metadata.file_path").alias("file"),
            F.lit(None).cast("long").alias("block"),
            F.lit(None).cast("long").alias("number"),
            F.when(reason.isNotNull(), F.substring(text, 1, CUT)).alias("line"),
            reason.alias("reason"),
        )
    )


def _days(frame: DataFrame) -> list[date]:
    row = frame.where(F.col("reason").isNull()).agg(F.min(day_of("at")), F.max(day_of("at"))).first()
    return [] if row is None or row[0] is None else [row[0], row[1]]


def _raise_first(frame: DataFrame, lines: DataFrame | None) -> None:
    """Raise for the first refused line, if there is one, with its number in its file."""
    first = frame.where(F.col("reason").isNotNull()).orderBy("file", "block", "number").first()
    if first is None:
        return
    where = first["file"]
    if lines is not None and first["number"] is not None and not where.endswith(".parquet"):
        block, number = F.lit(first["block"]), F.lit(first["number"])
        before = (F.col("block") < block) | ((F.col("block") == block) & (F.col("number") < number))
        where += f", line {lines.where((F.col('file') == first['file']) & before).count() + 1}"
    raise DecodeError(
        f"{where}: {first['reason']}", fix="fix the line, or read without strict and look at what is refused"
    )
