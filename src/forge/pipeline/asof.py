"""Read a row, a table or the whole lake as of an instant; return frames with the tables' own columns.

    orders = table_as_of(spark, lake, "orders", datetime(2026, 1, 31, 12, tzinfo=UTC))
    row_as_of(spark, lake, "orders", 118, yesterday)
    shop = lake_as_of(spark, lake, at_or_before(spark, lake, yesterday))

As of an instant means: as committed in the last recorded instant at or before it (`forge.pipeline.instants`). All
tables of one answer use the same recorded instant, so they are consistent with each other, as in the database.

The answer is an exact filter over the history (`alive`). Let S be the recorded snapshot and A its time.

- The versions of a row, in the order of `_seq`, come from the transactions x1, x2, …; each version ends where the next
  begins. A transaction that changes a row waits until the previous transaction that changed it has ended. So when S
  sees a transaction, it also sees the ones before it: S sees x1 … xk and no more. The row in S is the result of xk: the
  version whose begin S sees and whose end S does not see, unless xk deleted the row. Versions that begin and end in one
  transaction are never alive, and versions of transactions that S does not see are ignored.
- A truncate locks out all other transactions, so the same holds for the versions that it ends.
- Rows of a table snapshot (`_op` read) have no transaction, and neither has the end of the versions before them. They
  count from the time of the snapshot: S sees all of them if A is not before that time.
- A change is written before its transaction commits, and everything that S sees was committed before A. So everything
  that S sees has `_valid_from <= A`, and an end that it sees has `_valid_to <= A`. These conditions let Delta skip
  files, and they exclude versions of another period with the same transaction numbers: a restored server reuses
  numbers.
- Silver holds everything that S sees, because the instant is copied only after that.

HistoryUnavailable is raised, and no guess is returned, where the lake does not know the answer: before the first full
read of the table, between an event that the log could not record row by row and the next full read, and where history
was purged.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from forge.cursor import Snapshot
from forge.errors import HistoryUnavailable
from forge.pipeline.bronze import definitions
from forge.pipeline.horizon import horizons
from forge.pipeline.instants import Instant, at_or_before
from forge.pipeline.lake import Lake
from forge.pipeline.silver import bounds
from forge.pipeline.silver.layout import layout
from forge.pipeline.silver.names import METADATA
from forge.pipeline.tables import exists, load, of_micros

WHOLE_TABLE: Final = ("snapshot", "truncate", "schema", "invalidate")
"""Events of a whole table: after the first two its rows are known, after the others they are not."""


def table_as_of(spark: SparkSession, lake: Lake, table: str, instant: datetime | Instant) -> DataFrame:
    """Return all rows of a table as of an instant; columns that the table did not have then are null."""
    past = _Past(spark, lake, instant)
    name = qualified(table)
    past.check([name])
    return past.table(name)


def row_as_of(spark: SparkSession, lake: Lake, table: str, key: object, instant: datetime | Instant) -> DataFrame:
    """Return one row as of an instant, or none; the key is the value of a one-column key or a mapping of columns to
    values."""
    past = _Past(spark, lake, instant)
    name = qualified(table)
    past.check([name])
    rows = past.table(name)
    return rows.where(past.has_key(name, rows, key))


class LakeAsOf(dict[str, DataFrame]):
    """Tables by name, as of one recorded instant; `left_out` are the other tables, each with the reason."""

    def __init__(self, frames: Mapping[str, DataFrame], left_out: Mapping[str, HistoryUnavailable]) -> None:
        super().__init__(frames)
        self.left_out: Final = dict(left_out)


def lake_as_of(
    spark: SparkSession, lake: Lake, instant: datetime | Instant, tables: Sequence[str] | None = None
) -> LakeAsOf:
    """Return tables by name, all as of one recorded instant; by default all tables that the lake knew then.

    A named table that the lake did not know raises HistoryUnavailable; of all tables, such are in `left_out`.
    """
    past = _Past(spark, lake, instant)
    unknown: dict[str, HistoryUnavailable] = {}
    if tables is not None:
        names = [qualified(table) for table in tables]
        past.check(names)
    else:
        names = sorted({each.name for each in past.definitions})
        unknown = past.unknown(names)
        if unknown and len(unknown) == len(names):
            raise unknown[names[0]]
        names = [name for name in names if name not in unknown]
    return LakeAsOf({name: past.table(name) for name in names}, unknown)


def qualified(table: str) -> str:
    """A table's name with its schema.

    >>> qualified("orders"), qualified("sales.orders")
    ('public.orders', 'sales.orders')
    """
    return table if "." in table else f"public.{table}"


def key_of(text: str) -> object:
    """Parse a key from the command line: a JSON object of its columns, or the value of its only column.

    >>> key_of("4711"), key_of('{"order_id": 4711, "line": "2"}'), key_of("{?}")
    ('4711', {'order_id': 4711, 'line': '2'}, '{?}')
    """
    if text.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(text, type=dict[str, str | int | float | bool])
        except msgspec.DecodeError:
            return text
    return text


def alive(instant: Instant) -> str:
    """Return the SQL condition that selects the versions alive at an instant.

    >>> print(alive(Instant(datetime(2026, 1, 31, 12, tzinfo=UTC), Snapshot.parse("5:9:6,7"))))
    _op <> 'delete'
    AND _valid_from <= TIMESTAMP '2026-01-31T12:00:00.000000Z'
    AND (_transaction IS NULL OR (_transaction < 9 AND _transaction NOT IN (6, 7)))
    AND (_end_seq IS NULL
      OR _valid_to > TIMESTAMP '2026-01-31T12:00:00.000000Z'
      OR (_end_transaction >= 9 OR _end_transaction IN (6, 7)))
    """
    at, snapshot = literal(instant.at), instant.snapshot
    return (
        f"_op <> 'delete'\nAND _valid_from <= {at}\nAND (_transaction IS NULL OR {_seen('_transaction', snapshot)})\n"
        f"AND (_end_seq IS NULL\n  OR _valid_to > {at}\n  OR {unseen('_end_transaction', snapshot)})"
    )


def literal(at: datetime) -> str:
    """Return an instant as a Spark SQL literal, independent of the session's time zone."""
    return f"TIMESTAMP '{at.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')}'"


def _seen(xid: str, snapshot: Snapshot) -> str:
    running = ", ".join(map(str, snapshot.running))
    return f"({xid} < {snapshot.xmax}" + (f" AND {xid} NOT IN ({running}))" if running else ")")


def unseen(xid: str, snapshot: Snapshot) -> str:
    """Return the SQL condition that a snapshot does not see a transaction.

    >>> unseen("x", Snapshot.parse("5:9:6,7"))
    '(x >= 9 OR x IN (6, 7))'
    """
    running = ", ".join(map(str, snapshot.running))
    return f"({xid} >= {snapshot.xmax}" + (f" OR {xid} IN ({running}))" if running else ")")


class _Past:
    """A lake as of one recorded instant."""

    def __init__(self, spark: SparkSession, lake: Lake, instant: datetime | Instant) -> None:
        self._spark = spark
        self._lake = lake
        self.instant = instant if isinstance(instant, Instant) else at_or_before(spark, lake, instant)
        self.definitions = list(definitions(spark, lake).values())

    def table(self, table: str) -> DataFrame:
        return load(self._spark, self._lake.history(table)).where(alive(self.instant)).drop(*METADATA)

    def has_key(self, table: str, rows: DataFrame, key: object) -> Column:
        era = layout(each for each in self.definitions if each.name == table).era
        if not era.keyed:
            raise HistoryUnavailable(f"{table} has no primary key", fix="ask for the whole table")
        given = key if isinstance(key, Mapping) else {era.key[0]: key}
        if set(given) != set(era.key):
            raise HistoryUnavailable(
                f"the key of {table} is {', '.join(era.key)}", fix="pass a mapping of all key columns to values"
            )
        condition = F.lit(True)
        for name in era.key:
            kind = rows.schema[name].dataType
            value = F.lit(given[name]).try_cast(kind)
            tried = self._spark.range(1).select(value.isNotNull().alias("fits")).first()
            if tried is None or not tried["fits"]:
                raise HistoryUnavailable(
                    f"the key of {table} cannot be {given[name]!r}", fix=f"pass a {kind.simpleString()} for {name}"
                )
            condition = condition & (F.col("`" + name.replace("`", "``") + "`") == value)
        return condition

    def check(self, tables: Sequence[str]) -> None:
        for error in self.unknown(tables).values():
            raise error

    def unknown(self, tables: Sequence[str]) -> dict[str, HistoryUnavailable]:
        """Return the tables whose rows the lake does not know, each with the reason.

        A table is known when the last whole-table event that S sees left its rows known. The start of tracking says
        nothing about the rows, but before it no changes of them were logged.
        """
        present = [table for table in tables if exists(self._spark, self._lake.history(table))]
        purged = horizons(self._spark, self._lake)
        events = self._events(present) if present else {}
        unknown: dict[str, HistoryUnavailable] = {}
        for table in tables:
            if table not in present:
                unknown[table] = self._unavailable(table, "the lake has no such table", "see forge pipeline status")
            elif table in purged and self.instant.at < purged[table]:
                since = purged[table].isoformat()
                unknown[table] = self._unavailable(
                    table, f"its history is kept since {since}", f"ask for an instant from {since} on"
                )
            elif why := _gap(events.get(table)):
                unknown[table] = self._unavailable(table, *why)
        return unknown

    def _events(self, tables: Sequence[str]) -> dict[str, Row]:
        """Return per table the last event that left its rows known and the last that did not, among the events that S
        sees.

        Rows of bronze without a row_id are few, or stored in files with others like them, so Delta skips all other
        files.
        """
        first: dict[str, int] = {}
        for each in self.definitions:
            first[each.name] = min(first.get(each.name, each.version), each.version)
        seen = f"(at <= {literal(self.instant.at)}"
        seen += f" AND (`transaction` IS NULL OR {_seen('`transaction`', self.instant.snapshot)}))"
        names = {table: bounds.literal(table, StringType()) for table in tables if table in first}
        ours = [f"(name = {name} AND version = {first[table]})" for table, name in names.items()]
        began = f"(op = 'schema' AND context IS NULL AND ({' OR '.join(ours) or 'false'}))"
        good, bad = "op IN ('snapshot', 'truncate')", f"(op IN ('schema', 'invalidate') AND NOT {began})"
        rows = (
            load(self._spark, self._lake.changes)
            .where(F.col("row_id").isNull() & F.col("op").isin(*WHOLE_TABLE))
            .withColumn("name", F.concat_ws(".", "schema", "table"))
            .where(F.col("name").isin(*tables))
            .groupBy("name")
            .agg(
                F.expr(f"max(seq) FILTER (WHERE {good} AND {seen})").alias("good"),
                F.expr(f"max(seq) FILTER (WHERE {bad} AND {seen})").alias("bad"),
                F.expr(f"min(seq) FILTER (WHERE {bad} AND NOT {seen})").alias("unseen"),
                F.expr(f"coalesce(bool_or({began} AND NOT {seen}), false)").alias("untracked"),
                F.expr(f"unix_micros(min(at) FILTER (WHERE {good} AND NOT {seen}))").alias("next"),
            )
        )
        return {row["name"]: row for row in rows.collect()}

    def _unavailable(self, table: str, why: str, fix: str) -> HistoryUnavailable:
        return HistoryUnavailable(f"{table} as of {self.instant.at.isoformat()} is unknown: {why}", fix=fix)


def _gap(events: Row | None) -> tuple[str, str] | None:
    """Return why the rows of a table are not known at that time, and the fix; None when they are known."""
    if events is None:
        return "the lake has never read it as a whole", "forge pipeline run --resnapshot"
    later = "ask for a later instant"
    if events["next"] is not None:
        later = f"ask for an instant from {of_micros(events['next']).isoformat()} on"
    if events["good"] is None or events["untracked"]:
        return "the lake did not know it yet", later
    if (events["bad"] or "") > events["good"]:
        return "it had changed in a way that was not logged, and was not read again yet", later
    if events["unseen"] is not None and events["unseen"] < events["good"]:
        return "it was being read again", later
    return None
