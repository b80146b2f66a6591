"""Both sides of a comparison: a table in the lake, and the same table in the database as of a snapshot.

Both return the count and the sum of hashes per slice, and the rows of slices: key, hash, and a short hash per column.
They hash the same texts (`forge.pipeline.silver.texts`), so equal rows have equal hashes.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, LongType, ShortType, TimestampType, VariantType

from forge import values
from forge.changelog.queries import query
from forge.cursor import Snapshot
from forge.errors import HistoryUnavailable, LakeError
from forge.pipeline.silver.rows import quoted
from forge.pipeline.silver.texts import joined, prefixed, sql_joined, sql_md5, sql_prefixed, sql_text, text
from forge.pipeline.source.offset import TableShare
from forge.pipeline.source.shares import as_of
from forge.pipeline.tables import of_micros
from forge.pipeline.verify.slices import Slices
from forge.postgres.connection import Connection
from forge.postgres.names import quoted as sql_quoted

Sums = dict[int, tuple[int, int]]
"""The count and the sum of hashes per slice."""

_SHORT: Final = 8
"""The number of digits of a column's short hash."""

_MICROS: Final = re.compile(r"-?[0-9]{1,17}")


class ComparedRow(NamedTuple):
    """A row of either side: `id` is the hash of its key, or of the row in a table without one, `key` the key for
    display, `seq` the lake's change of the row, `redacted` the columns redacted before the lake read them."""

    id: str
    key: str
    hash: int
    columns: str
    seq: str = ""
    redacted: frozenset[str] = frozenset()

    def differs(self, other: "ComparedRow", names: Sequence[str]) -> tuple[str, ...]:
        """Return the columns in which two rows differ."""
        places = range(0, len(names) * _SHORT, _SHORT)
        return tuple(
            name
            for name, at in zip(names, places, strict=True)
            if self.columns[at : at + _SHORT] != other.columns[at : at + _SHORT]
        )


class Compared(NamedTuple):
    """A column of both sides: its definition in the database, and its name and type in the lake."""

    column: values.Column
    name: str
    type: DataType


class ComparedTable(NamedTuple):
    """The compared columns, and the key among them."""

    name: str
    columns: tuple[Compared, ...]
    key: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [each.column.name for each in self.columns]

    @property
    def key_places(self) -> list[int]:
        return [self.names.index(name) for name in self.key]

    def shown(self, word: str) -> str:
        """Return a key for people: times as times, not as microseconds."""
        types = [self.columns[place].type for place in self.key_places]
        if not any(isinstance(type, TimestampType) for type in types):
            return word
        texts: list[str] = [word] if len(types) == 1 else msgspec.json.decode(word)
        shown = [
            str(of_micros(int(text))) if isinstance(type, TimestampType) and _MICROS.fullmatch(text) else text
            for text, type in zip(texts, types, strict=True)
        ]
        return shown[0] if len(shown) == 1 else json.dumps(shown)

    @property
    def whole_key(self) -> Compared | None:
        """The key, if it is one integer."""
        if len(self.key) != 1:
            return None
        only = self.columns[self.key_places[0]]
        return only if isinstance(only.type, (ShortType, IntegerType, LongType)) else None


class InLake:
    """A table in the lake, at one version of its Delta table."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        newest = spark.sql(f"DESCRIBE HISTORY delta.{quoted(path)} LIMIT 1").first()
        assert newest is not None
        self._frame = spark.read.format("delta").option("versionAsOf", newest["version"]).load(path)

    @property
    def types(self) -> dict[str, DataType]:
        return {field.name: field.dataType for field in self._frame.schema}

    def bounds(self, key: Compared) -> tuple[int, int] | None:
        """Return the smallest and the largest key; None without rows."""
        found = self._frame.agg(F.min(quoted(key.name)), F.max(quoted(key.name))).first()
        return None if found is None or found[0] is None else (found[0], found[1])

    def sums(self, table: ComparedTable, slices: Slices) -> Sums:
        hashed = self._hashed(table, slices).groupBy("slice")
        return _sums(hashed.agg(F.count("*"), F.sum(F.col("hash").cast("decimal(38,0)")).cast("string")).collect())

    def rows(self, table: ComparedTable, slices: Slices, which: Sequence[int]) -> list[ComparedRow]:
        frame = self._hashed(table, slices, *slices.range(which)).where(F.col("slice").isin(list(which)))
        found = frame.select("id", "key", "hash", "columns", "_seq", "_redacted").collect()
        names = {each.name: each.column.name for each in table.columns}
        return [
            ComparedRow(id, key, hash, columns, seq, frozenset(names.get(name, name) for name in redacted or ()))
            for id, key, hash, columns, seq, redacted in found
        ]

    def _hashed(
        self, table: ComparedTable, slices: Slices, low: int | None = None, high: int | None = None
    ) -> DataFrame:
        frame = self._frame
        if (whole := table.whole_key) is not None:
            key = F.col(quoted(whole.name))
            frame = frame if low is None else frame.where(key >= low)
            frame = frame if high is None else frame.where(key < high)
        # One step per use of the previous step's results.
        texts = [text(F.col(quoted(each.name)), each.type) for each in table.columns]
        about = ["_seq", "_redacted"]
        if "_redacted" not in frame.columns:
            frame = frame.withColumn("_redacted", F.lit(None).cast("array<string>"))
        frame = frame.select(*(each.alias(f"t{place}") for place, each in enumerate(texts)), *about)
        texts = [F.col(f"t{place}") for place in range(len(texts))]
        keys = [texts[place] for place in table.key_places]
        columns = F.concat(*(F.substring(_md5(prefixed(each)), 1, _SHORT) for each in texts))
        frame = frame.select("*", _md5(joined(texts)).alias("md5"), columns.alias("columns"))
        frame = frame.select(
            (_md5(joined(keys)) if keys else F.col("md5")).alias("id"),
            (_word(keys) if keys else F.col("md5")).alias("key"),
            _number(F.col("md5")).alias("hash"),
            "columns",
            *about,
        )
        return frame.withColumn("slice", slices.slice(_number(F.col("id")), F.col("key")))


class InDatabase:
    """A tracked table as of a snapshot, in its own transaction."""

    def __init__(self, connection: Connection, tracked: int, snapshot: Snapshot, first_id: int) -> None:
        self._connection = connection
        self._tracked = tracked
        self._snapshot = snapshot
        self._first_id = first_id
        then = as_of(connection, tracked, snapshot, first_id)
        if then is None:
            raise HistoryUnavailable("the table is not tracked any more", fix="leave it out")
        self.version = then.now.version
        self._name = f"{then.now.schema}.{then.now.name}"
        self._images = self._told(then.images)
        connection.execute("SET LOCAL TimeZone = 'UTC'")
        gone = {**snapshot.bounds, "first": first_id}
        if connection.execute(query("trimmed"), gone).fetchone() == (True,):
            raise HistoryUnavailable(
                f"the log of {self._name} since the lake's last batch has been trimmed",
                fix="forge pipeline run --once, then ask again",
            )

    def _told(self, images: str | None) -> str:
        if images is None:
            raise HistoryUnavailable(
                f"{self._name} was truncated or defined again since the lake's last batch",
                fix="forge pipeline run --once, then ask again",
            )
        return images

    def sums(self, table: ComparedTable, slices: Slices) -> Sums:
        rows = _sql_hashed(self._images, table, slices)
        return _sums(self._run(f"SELECT s.slice, count(*), sum(s.hash) FROM ({rows}) s GROUP BY s.slice"))

    def rows(self, table: ComparedTable, slices: Slices, which: Sequence[int]) -> list[ComparedRow]:
        rows = _sql_hashed(self._within(table, *slices.range(which)), table, slices)
        numbers = ", ".join(map(str, which))
        statement = f"SELECT s.id, s.key, s.hash, s.columns FROM ({rows}) s WHERE s.slice IN ({numbers})"
        return [ComparedRow(*row) for row in self._run(statement)]

    def _within(self, table: ComparedTable, low: int | None, high: int | None) -> str:
        """Return SQL for the rows whose keys are in a range."""
        whole = table.whole_key
        if whole is None or (low is None and high is None):
            return self._images
        key = whole.column.name
        share = TableShare(self._tracked, str(self._snapshot), "", 0, 1, 2, 0, key, low, high)
        then = as_of(self._connection, self._tracked, self._snapshot, self._first_id, share)
        return self._told(then.images if then is not None else None)

    def read(self, table: ComparedTable, slices: Slices, images: Sequence[str]) -> list[ComparedRow]:
        """Convert images to rows."""
        given = "SELECT i.n AS row_id, i.image::json AS image FROM unnest({given}::text[]) WITH ORDINALITY i (image, n)"
        rows = _sql_hashed(given, table, slices)
        statement = f"SELECT s.id, s.key, s.hash, s.columns FROM ({rows}) s ORDER BY s.row_id"
        statement = statement.replace("%", "%%").replace("{given}", "%s")
        return [ComparedRow(*row) for row in self._connection.execute(statement.encode(), ([*images],)).fetchall()]

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement.encode()).fetchall()


def _sql_hashed(images: str, table: ComparedTable, slices: Slices) -> str:
    """Return SQL for the key, the slice, the hash and the columns' short hashes of each of these images."""
    record = ", ".join(
        f"{sql_quoted(each.column.name)} {'json' if each.column.kind == 'jsonb' else 'text'}" for each in table.columns
    )
    texts = [sql_text(_member(each.column), each.type) for each in table.columns]
    named = ", ".join(f"{text} AS t{place}" for place, text in enumerate(texts))
    places = [f"t.t{place}" for place in range(len(texts))]
    keys = [places[place] for place in table.key_places]
    word = "h.md5"
    if keys:
        word = keys[0] if len(keys) == 1 else f"array_to_json(ARRAY[{', '.join(keys)}])::text"
    columns = " || ".join(f"left({sql_md5(sql_prefixed(place))}, {_SHORT})" for place in places)
    slice = slices.sql_slice(_sql_number("h.id"), keys[0] if keys else "")
    return (
        f"SELECT k.row_id, h.id, {word} AS key, {slice} AS slice, {_sql_number('h.md5')} AS hash, {columns} AS columns"
        f" FROM ({images}) k CROSS JOIN LATERAL json_to_record(k.image) r ({record})"
        # OFFSET keeps the planner from computing a text at each of its uses.
        f" CROSS JOIN LATERAL (SELECT {named} OFFSET 0) t"
        f" CROSS JOIN LATERAL (SELECT {sql_md5(sql_joined(places))} AS md5,"
        f" {sql_md5(sql_joined(keys or places))} AS id OFFSET 0) h"
    )


def _member(column: values.Column) -> str:
    """Return SQL for the lake's text of a value of an image."""
    name = f"r.{sql_quoted(column.name)}"
    if column.kind != "jsonb":
        return name
    return f"CASE WHEN left({name}::text, 8) = '{{\"$json\"' THEN ({name} -> '$json')::text ELSE {name}::text END"


def comparable(columns: Iterable[values.Column], names: dict[str, str], types: dict[str, DataType]) -> list[Compared]:
    """Return the columns that can be compared: neither hidden nor variants."""
    shown = [column for column in columns if column.kind != "hidden"]
    for column in shown:
        if names[column.name] not in types:
            raise LakeError(f"the lake has no column {column.name}", fix="forge pipeline run --once")
    found = (Compared(column, names[column.name], types[names[column.name]]) for column in shown)
    return [each for each in found if not isinstance(each.type, VariantType)]


def _sql_number(md5: str) -> str:
    return f"('x' || left({md5}, 15))::bit(60)::bigint"


def _number(md5: Column) -> Column:
    return F.conv(F.substring(md5, 1, 15), 16, 10).cast("long")


def _md5(value: Column) -> Column:
    return F.md5(value.cast("binary"))


def _word(keys: Sequence[Column]) -> Column:
    """Return the key as one word."""
    return keys[0] if len(keys) == 1 else F.to_json(F.array(*keys))


def _sums(rows: Iterable[Sequence[Any]]) -> Sums:
    return {int(slice): (int(count), int(total)) for slice, count, total in rows}
