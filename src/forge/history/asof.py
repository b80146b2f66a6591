"""A row or a whole table as it was at an instant.

    shop = table_as_of(connection, "orders", datetime(2026, 1, 31, 12, tzinfo=UTC))
    shop.at, shop.rows
    row_as_of(connection, "orders", 118, yesterday).row

As of an instant means: as committed in the last snapshot that maintenance recorded at or before it. `AsOf.at` is when
that was. Snapshots are recorded about every second while something changes (`Policy.instants`), so of changes that
were committed within about a second before the instant some may be missing; everything from before `AsOf.at` is there,
and nothing from after the instant.

The answer is computed backwards, in one snapshot of the database: rows that nobody changed since are taken from the
table, for every other row its image before its first change since is the answer. So it costs as much as the table is
large and the changes since are many, and needs only the log from then on. Values are in the forms that
`forge.values` states; excluded and virtual columns are UNAVAILABLE, masked ones are masked.

HistoryUnavailable is raised, and no guess returned, where the log cannot tell: before the first recorded snapshot, when
the log since was trimmed, before the table was tracked, and across a TRUNCATE or a change of the table's definition.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from forge.changelog.connection import Connection, typed_errors
from forge.cursor import Snapshot
from forge.errors import HistoryUnavailable
from forge.values import Column, Images

_PINS: Final = (
    "SET LOCAL search_path = pg_catalog, pg_temp",
    "SET LOCAL row_security = off",
    "SET LOCAL TimeZone = 'UTC'",
    "SET LOCAL DateStyle = 'ISO, YMD'",
    "SET LOCAL IntervalStyle = 'iso_8601'",
    "SET LOCAL extra_float_digits = 1",
    "SET LOCAL bytea_output = 'hex'",
    "SET LOCAL lc_monetary = 'C'",
)
_SINCE: Final = (
    "l.id >= %(first_id)s AND l.version = ANY (%(versions)s)"
    " AND (l.transaction_id >= %(xmax)s::text::xid8 OR l.transaction_id = ANY (%(running)s::text[]::xid8[]))"
)
_WHOLE_TABLE: Final = (
    "SELECT l.op::text, l.at FROM forge.forge_event_log l WHERE l.row_id IS NULL AND l.op IN ('T', 'S', 'X')"
    f" AND {_SINCE} ORDER BY l.id DESC LIMIT 1"
)
_FIRST_CHANGES: Final = (
    "SELECT DISTINCT ON (l.row_id) l.row_id, l.op::text, l.before::text, l.after::text"
    f" FROM forge.forge_event_log l WHERE l.op IN ('I', 'U', 'D') AND {_SINCE}"
    " ORDER BY l.row_id, coalesce(l.rank, l.id), l.id"
)
_FIRST_CHANGE: Final = (
    "SELECT l.op::text, l.before::text, l.after::text FROM forge.forge_event_log l"
    f" WHERE l.row_id = %(row_id)s AND l.op IN ('I', 'U', 'D') AND {_SINCE}"
    " ORDER BY coalesce(l.rank, l.id), l.id LIMIT 1"
)
_ALL_CHANGES: Final = (
    "SELECT l.op::text, l.before::text, l.after::text FROM forge.forge_event_log l"
    f" WHERE l.op IN ('I', 'U', 'D') AND {_SINCE}"
)


class AsOf(msgspec.Struct, frozen=True):
    """What was: `rows` as committed at `at`, the last recorded instant at or before the one `asked` for."""

    table: str
    asked: datetime
    at: datetime
    rows: list[dict[str, Any]]

    @property
    def row(self) -> dict[str, Any] | None:
        """The only row; None when there was none."""
        if len(self.rows) > 1:
            raise ValueError(f"there are {len(self.rows)} rows")
        return self.rows[0] if self.rows else None


def table_as_of(connection: Connection, table: str, at: datetime) -> AsOf:
    """All rows of a table as they were, in no particular order."""
    with _rewound(connection, table, at) as past:
        return past.answer(past.keyed_rows() if past.images.key_names else past.counted_rows())


def row_as_of(connection: Connection, table: str, key: object, at: datetime) -> AsOf:
    """One row as it was, by its key: the value of a key of one column, or a mapping of its columns to values."""
    with _rewound(connection, table, at) as past:
        row = past.row(past.key_values(key))
        return past.answer([] if row is None else [row])


@contextmanager
def _rewound(connection: Connection, table: str, at: datetime) -> Iterator["_Past"]:
    """The table's past, read in one snapshot of the database."""
    if at.tzinfo is None:
        raise HistoryUnavailable("the instant has no time zone", fix="pass an aware datetime")
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise HistoryUnavailable(
            "the connection is inside a transaction", fix="commit first, or use a connection in autocommit mode"
        )
    with typed_errors():
        with connection.transaction():
            first_id = _only(connection, "SELECT (forge.current_identity()).first_id")
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield _Past(connection, table, at, first_id)


def _only(connection: Connection, statement: str, *values: Any) -> Any:
    row = connection.cursor(row_factory=tuple_row).execute(statement.encode(), values).fetchone()
    return row[0] if row else None


class _Past:
    """A tracked table since a recorded snapshot; raises HistoryUnavailable when the log cannot tell."""

    def __init__(self, connection: Connection, table: str, asked: datetime, first_id: int) -> None:
        self._cursor = connection.cursor(row_factory=tuple_row)
        self._asked = asked
        self._table = table
        self._relation = _only(connection, "SELECT forge.find_table(%s)::oid", table)
        for pin in _PINS:
            self._cursor.execute(pin)
        tracked = self._one(
            "SELECT t.id, v.columns, v.key_columns, t.enabled_at, format('%%I.%%I', v.schema_name, v.table_name),"
            " split_part(v.fingerprint, '.', 1) = split_part(forge.fingerprint(r.table_oid), '.', 1),"
            " (SELECT array_agg(o.id) FROM forge.table_version o WHERE o.tracked_table = t.id)"
            " FROM forge.tracked_relation r JOIN forge.tracked_table t ON t.id = r.id"
            " JOIN forge.table_version v ON v.tracked_table = t.id WHERE r.table_oid = %s ORDER BY v.id DESC LIMIT 1",
            (self._relation,),
        )
        if tracked is None:
            raise HistoryUnavailable(f"{table} is not tracked", fix=f"forge enable {table}")
        self._tracked, columns, key, enabled_at, self._name, same, versions = tracked
        if not same:
            raise HistoryUnavailable(
                f"the definition of {table} has just changed", fix="ask for an instant after the change"
            )
        self.images = Images([Column(column["name"], column["type"], column["kind"]) for column in columns], key)
        pair = self._one(
            "SELECT at, snapshot::text FROM forge.instant WHERE at <= %s ORDER BY at DESC LIMIT 1", (asked,)
        )
        if pair is None:
            raise self._unavailable("it is before the first recorded instant", "ask for a later instant")
        self.at: datetime = pair[0]
        snapshot = Snapshot.parse(pair[1])
        self._since = {
            "first_id": first_id,
            "versions": versions,
            "xmax": str(snapshot.xmax),
            "running": [str(xid) for xid in snapshot.running],
        }
        self._check(enabled_at)

    def _check(self, enabled_at: datetime) -> None:
        gone = "SELECT forge.trimmed_since(%(xmax)s::text::xid8, %(running)s::text[]::xid8[], %(first_id)s)"
        if self._one(gone, self._since) == (True,):
            raise self._unavailable("the log since then has been trimmed", "ask for a later instant, keep more days")
        if enabled_at > self.at:
            raise self._unavailable(f"it is tracked since {enabled_at.isoformat()}", "ask for a later instant")
        if whole := self._one(_WHOLE_TABLE, self._since):
            what = {"T": "was truncated", "S": "got another definition"}.get(
                whole[0], "changed in a way that was not logged"
            )
            raise self._unavailable(f"it {what} at {whole[1].isoformat()}", "ask for an instant after that")

    def answer(self, rows: list[dict[str, Any]]) -> AsOf:
        return AsOf(self._name, self._asked, self.at, rows)

    def keyed_rows(self) -> list[dict[str, Any]]:
        """What nobody changed since, and what was there before the first change of each other row."""
        changed = {
            row_id: self._before(op, before, after)
            for row_id, op, before, after in self._cursor.execute(_FIRST_CHANGES, self._since)
        }
        rows = [row for row in changed.values() if row is not None]
        self._cursor.execute(self._current())
        rows.extend(self.images.row(image) for row_id, image in self._cursor if row_id not in changed)
        return rows

    def counted_rows(self) -> list[dict[str, Any]]:
        """For a table without a key: the rows now, less those that came, and those that went."""
        rows: dict[str, dict[str, Any]] = {}
        count: dict[str, int] = {}

        def add(row: dict[str, Any] | None, number: int) -> None:
            if row is not None:
                name = repr(sorted(row.items()))
                rows[name] = row
                count[name] = count.get(name, 0) + number

        for op, before, after in self._cursor.execute(_ALL_CHANGES, self._since):
            add(self._before(op, before, after), 1)
            add(self.images.row(after) if after is not None else None, -1)
        for _, image in self._cursor.execute(self._current()):
            add(self.images.row(image), 1)
        if any(number < 0 for number in count.values()):
            raise self._unavailable("the table and its log disagree", "see forge doctor")
        return [dict(rows[name]) for name, number in count.items() for _ in range(number)]

    def row(self, key: list[sql.Composed]) -> dict[str, Any] | None:
        alias = self._alias()
        names = map(sql.Identifier, self.images.key_names)
        fields = sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(value, name) for value, name in zip(key, names, strict=True)
        )
        expression = sql.SQL(self._expressions(alias)[0])
        row_id = self._one(sql.SQL("SELECT {} FROM (SELECT {}) {}").format(expression, fields, sql.Identifier(alias)))
        change = self._one(_FIRST_CHANGE, {**self._since, "row_id": row_id and row_id[0]})
        if change is not None:
            return self._before(*change)
        own = (sql.Identifier(alias, name) for name in self.images.key_names)
        same = sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(name, value) for name, value in zip(own, key, strict=True)
        )
        found = self._cursor.execute(self._current() + sql.SQL(" WHERE ") + same)
        return next((self.images.row(image) for other, image in found if (other,) == row_id), None)

    def key_values(self, key: object) -> list[sql.Composed]:
        """The key's values as SQL expressions of its types."""
        names = self.images.key_names
        if not names:
            raise HistoryUnavailable(f"{self._table} has no primary key", fix="ask for the whole table")
        given = key if isinstance(key, Mapping) else {names[0]: key}
        if set(given) != set(names):
            raise HistoryUnavailable(
                f"the key of {self._table} is {', '.join(names)}", fix="pass a mapping of all key columns to values"
            )
        types = {column.name: column.type for column in self.images.columns}
        return [sql.SQL("CAST({} AS {})").format(sql.Literal(given[name]), sql.SQL(types[name])) for name in names]

    def _before(self, op: str, before: str | None, after: str | None) -> dict[str, Any] | None:
        """The row as it was before a change; None when it was not there."""
        if op == "I" or before is None:
            return None
        if op == "D" or after is None:
            return self.images.row(before)
        return {**self.images.row(after), **self.images.partial(before)}

    def _current(self) -> sql.Composed:
        """The statement for all rows of now: the word for the key, and the image as the log has it."""
        alias = self._alias()
        row_id, source = self._expressions(alias)
        return sql.SQL("SELECT {}, row_to_json({})::text FROM {} {}{}").format(
            sql.SQL(row_id),
            sql.Identifier(f"{alias}_image"),
            sql.SQL(_only(self._cursor.connection, "SELECT %s::oid::regclass::text", self._relation)),
            sql.Identifier(alias),
            sql.SQL(source),
        )

    def _expressions(self, alias: str) -> tuple[Any, ...]:
        found = self._one(
            "SELECT forge.row_id_expression(%(relation)s, %(alias)s),"
            " forge.image_source(%(relation)s, t, %(alias)s, %(alias)s, false)"
            " FROM forge.tracked_table t WHERE t.id = %(tracked)s",
            {"relation": self._relation, "alias": alias, "tracked": self._tracked},
        )
        assert found is not None
        return found

    def _alias(self) -> str:
        """A name that no column has: row_to_json(name) would mean the column."""
        taken = {column.name for column in self.images.columns}
        alias = "forge_now"
        while alias in taken or f"{alias}_image" in taken:
            alias += "_"
        return alias

    def _one(self, statement: str | sql.Composed, values: Any = None) -> tuple[Any, ...] | None:
        try:
            return self._cursor.execute(
                statement.encode() if isinstance(statement, str) else statement, values
            ).fetchone()
        except psycopg.DataError as error:
            line = error.diag.message_primary or "bad value"
            raise HistoryUnavailable(
                f"the key of {self._table} cannot be that: {line}", fix="pass a value of its type"
            ) from None

    def _unavailable(self, why: str, fix: str) -> HistoryUnavailable:
        return HistoryUnavailable(f"{self._table} as of {self._asked.isoformat()} is unknown: {why}", fix=fix)
