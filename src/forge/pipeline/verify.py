"""Compares a lake with its database at one snapshot: counts and hashes of rows by slices, then rows that differ.

Both sides hash each row by the same text (`forge.pipeline.silver.texts`): Spark makes it of the typed columns of the
lake, PostgreSQL of the rows as they were in the snapshot, so it is exact while traffic goes on. A slice is a part of
the keys, chosen by their hash; slices whose count and sum of hashes agree are equal. Of the others keys and hashes are
fetched, slice by slice, and compared.

Excluded columns are on neither side. Columns of type variant are left out: their text is not that of the database.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import VariantType

from forge.changelog.connection import Connection, connect, typed_errors
from forge.changelog.queries import query
from forge.cursor import Snapshot
from forge.errors import HistoryUnavailable, LakeError, NotInstalled
from forge.pipeline import bronze
from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.silver.names import silver_names
from forge.pipeline.silver.rows import quoted
from forge.pipeline.silver.texts import joined, sql_bytes, sql_joined, sql_text, text
from forge.pipeline.source.shares import as_of
from forge.pipeline.source.statements import source_query
from forge.pipeline.tables import exists, load
from forge.values import Column as Field

SHOWN: Final = 20
"""How many differences of a table are listed; they are counted all the same."""

Sums = dict[int, tuple[int, int]]
"""The count and the sum of the hashes of each slice."""


class Difference(msgspec.Struct, frozen=True):
    """A row that is only in the lake (`extra`), only in the database (`missing`), or in both, otherwise (`changed`)."""

    table: str
    key: str
    kind: Literal["missing", "extra", "changed"]

    def __str__(self) -> str:
        return f"{self.table}: row {self.key} is {_SAID[self.kind]}"


_SAID: Final = {
    "missing": "in the database and not in the lake",
    "extra": "in the lake and not in the database",
    "changed": "another one in the lake",
}


class TableReport(msgspec.Struct, frozen=True):
    """A table: how many rows each side has, how many differ, and the first of these."""

    table: str
    database: int
    lake: int
    differing: int
    differences: list[Difference]
    quarantined: int

    @property
    def equal(self) -> bool:
        return self.differing == 0 and self.database == self.lake


class Report(msgspec.Struct, frozen=True):
    """All tables that were compared, at the snapshot."""

    snapshot: str
    tables: list[TableReport]

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables)

    @property
    def rows(self) -> int:
        """How many rows the database has in these tables."""
        return sum(table.database for table in self.tables)


def verify(
    spark: SparkSession,
    lake: Lake,
    url: str,
    tables: Sequence[str] | None = None,
    *,
    snapshot: str,
    slices: int = 64,
) -> Report:
    """Compare the tables, all that are tracked and in the lake unless named, as of a snapshot of the database.

    HistoryUnavailable is raised when a table was truncated or defined anew since: after the next batch it can be told.
    """
    known = bronze.definitions(spark, lake)
    with typed_errors(), connect(url) as connection:
        row = connection.execute(query("identity")).fetchone()
        if row is None:
            raise NotInstalled("Forge is not installed in this database", fix="forge init")
        wanted = list(tables) if tables is not None else None
        tracked = connection.execute(source_query("tracked"), {"tables": wanted}).fetchall()
        for name in wanted or ():
            if not any(name in (each[2], f"{each[1]}.{each[2]}") for each in tracked):
                raise LakeError(f"the table {name} is not tracked", fix=f"forge enable {name}, or leave it out")
        reports = []
        for number, schema, table, *_ in tracked:
            name = f"{schema}.{table}"
            if not exists(spark, lake.current(name)):
                if wanted is None:
                    continue
                raise LakeError(f"the lake has no table {name}", fix="forge pipeline run --once")
            comparison = _Comparison(spark, lake, bronze.newest(known, name), slices)
            reports.append(comparison.report(connection, number, Snapshot.parse(snapshot), row[3]))
    return Report(snapshot, reports)


class _Comparison:
    """One table on both sides."""

    def __init__(self, spark: SparkSession, lake: Lake, definition: Definition, slices: int) -> None:
        self._spark = spark
        self._lake = lake
        self._name = definition.name
        self._slices = slices
        self._current = load(spark, lake.current(definition.name))
        names = silver_names(column.name for column in definition.columns)
        types = {field.name: field.dataType for field in self._current.schema}
        self._columns = [
            (column, names[column.name], types[names[column.name]])
            for column in definition.columns
            if names[column.name] in types and not isinstance(types[names[column.name]], VariantType)
        ]
        self._key = definition.key

    def report(self, connection: Connection, tracked: int, snapshot: Snapshot, first_id: int) -> TableReport:
        with connection.transaction():
            then = as_of(connection, tracked, snapshot, first_id)
            if then is None or then.images is None:
                raise HistoryUnavailable(
                    f"{self._name} was truncated or defined anew since the lake's last batch",
                    fix="forge pipeline run --once, then ask again",
                )
            rows = self._stored(then.images)
            theirs = _sums(
                connection.execute(
                    f"SELECT s.slice, count(*), sum(s.hash) FROM ({rows}) s GROUP BY s.slice".encode()
                ).fetchall()
            )
            mine = self._mine()
            ours = _sums(tuple(row) for row in self._summed(mine).collect())
            differing, found = 0, list[Difference]()
            for slice in sorted(slice for slice in theirs.keys() | ours.keys() if theirs.get(slice) != ours.get(slice)):
                there = connection.execute(
                    f"SELECT s.key, s.hash FROM ({rows}) s WHERE s.slice = {slice}".encode()
                ).fetchall()
                here = mine.where(F.col("slice") == slice).select("key", "hash").collect()
                differences = list(self._differences(there, [tuple(row) for row in here]))
                differing += len(differences)
                found += differences[: SHOWN - len(found)]
        return TableReport(
            self._name,
            sum(count for count, _ in theirs.values()),
            sum(count for count, _ in ours.values()),
            differing,
            found,
            self._quarantined(),
        )

    def _stored(self, images: str) -> str:
        """SQL for the key, the slice and the hash of each row in the database."""
        texts = [sql_text(_member(column), type) for column, _, type in self._columns]
        key = [sql_text(_member(column), type) for column, _, type in self._columns if column.name in self._key]
        hash = _sql_hash(sql_joined(texts))
        of = _sql_hash(sql_joined(key)) if key else "h.hash"
        word = "h.hash::text"
        if key:
            word = key[0] if len(key) == 1 else f"array_to_json(ARRAY[{', '.join(key)}]::text[])::text"
        return (
            f"SELECT {word} AS key, {of} % {self._slices} AS slice, h.hash FROM ({images}) k"
            f" CROSS JOIN LATERAL (SELECT {hash} AS hash) h"
        ).replace("%%", "%")

    def _mine(self) -> DataFrame:
        """The same of each row in the lake."""
        texts = [text(F.col(quoted(name)), type) for _, name, type in self._columns]
        key = [text(F.col(quoted(name)), type) for column, name, type in self._columns if column.name in self._key]
        hashed = self._current.select(
            _hash(joined(texts)).alias("hash"),
            (_hash(joined(key)) if key else F.lit(None).cast("long")).alias("of"),
            (_word(key) if key else F.lit(None).cast("string")).alias("key"),
        )
        return hashed.select(
            F.coalesce("key", F.col("hash").cast("string")).alias("key"),
            (F.coalesce("of", "hash") % self._slices).cast("int").alias("slice"),
            "hash",
        )

    def _summed(self, mine: DataFrame) -> DataFrame:
        return mine.groupBy("slice").agg(F.count("*"), F.sum(F.col("hash").cast("decimal(38,0)")).cast("string"))

    def _differences(self, there: Iterable[tuple[str, int]], here: Iterable[tuple[str, int]]) -> Iterable[Difference]:
        if not self._key:
            database, lake = Counter(key for key, _ in there), Counter(key for key, _ in here)
            for key, count in (database - lake).items():
                yield from [Difference(self._name, f"with hash {key}", "missing")] * count
            for key, count in (lake - database).items():
                yield from [Difference(self._name, f"with hash {key}", "extra")] * count
            return
        stored, held = dict(there), dict(here)
        for key in sorted(stored.keys() | held.keys()):
            if key not in held:
                yield Difference(self._name, key, "missing")
            elif key not in stored:
                yield Difference(self._name, key, "extra")
            elif stored[key] != held[key]:
                yield Difference(self._name, key, "changed")

    def _quarantined(self) -> int:
        if not exists(self._spark, self._lake.quarantine):
            return 0
        schema, _, table = self._name.partition(".")
        rows = load(self._spark, self._lake.quarantine)
        return rows.where((F.col("schema") == schema) & (F.col("table") == table)).count()


def _member(column: Field) -> str:
    """SQL for the text that a value has in the lake, taken from an image."""
    name = "'" + column.name.replace("'", "''") + "'"
    if column.kind != "jsonb":
        return f"(k.image ->> {name})"
    value = f"(k.image -> {name})"
    return (
        f"CASE WHEN json_typeof{value} = 'null' THEN NULL"
        f" WHEN json_typeof{value} = 'object' AND {value} -> '$json' IS NOT NULL THEN ({value} -> '$json')::text"
        f" ELSE {value}::text END"
    )


def _sql_hash(value: str) -> str:
    return f"('x' || left(md5({sql_bytes(value)}), 15))::bit(60)::bigint"


def _hash(value: Column) -> Column:
    return F.conv(F.substring(F.md5(value.cast("binary")), 1, 15), 16, 10).cast("long")


def _word(key: list[Column]) -> Column:
    """The key as one word."""
    return key[0] if len(key) == 1 else F.to_json(F.array(*key))


def _sums(rows: Iterable[tuple[object, ...]]) -> Sums:
    return {int(str(slice)): (int(str(count)), int(str(total))) for slice, count, total in rows}
