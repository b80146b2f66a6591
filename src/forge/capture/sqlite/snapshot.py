"""The rows of the tracked tables as of one moment, page by page, over one connection, blocking.

A snapshot begins behind the newest row of the queue and shows the tables as of that row, so the stream continues from
it without a gap or an overlap. In WAL mode the pages are read in one transaction. Otherwise a reader would block every
writer's commit, so each page has its own transaction; and a snapshot may have been interrupted. Then what was written
since the start is undone: for a row that the queue reports as changed, the image before its first change is shown, and
rows that did not exist then are left out. So the rest is the same rows with the same ids, however much was written in
between.

Three things end that with CursorExpired: a table was redefined, the queue was removed beyond the start, or the schema
changed (VACUUM changes it, too) while rows have unstable numbers, which are those of tables without an INTEGER PRIMARY
KEY. A table that was not tracked at the start is left out: its `schema` change follows in the stream.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from time import time_ns
from typing import Any, Final

from forge import wire
from forge.capture.filters import Filter
from forge.capture.source import SourceBatch
from forge.capture.sqlite.cursor import KIND, SnapshotPosition, SqliteCursor
from forge.capture.sqlite.decode import SCHEMA, FileOrigin, QueueDecoder, image_function, instant
from forge.capture.sqlite.file import SqliteFile
from forge.capture.sqlite.install import TrackedDefinition, refresh, require, schema_version, tracked
from forge.capture.sqlite.queue import PAGE, any_text, by_bytes, check, check_columns, newest
from forge.capture.sqlite.tables import SqliteTable, quoted
from forge.capture.sqlite.triggers import alias, image
from forge.change import Change, ChangeSource, Op
from forge.errors import CursorExpired

AGAIN: Final = "begin a new snapshot"


class SqliteSnapshot:
    """A snapshot being read. Two threads must not use it at once."""

    def __init__(self, file: SqliteFile, filter: Filter, after: SqliteCursor | None) -> None:
        self.file: Final = file
        self._filter = filter
        self._cursor = after
        self._undone: tuple[int, int] | None = None
        self._connection = file.connect()

    def close(self) -> None:
        self._connection.close()

    def next(self, *, rows: int = PAGE) -> SourceBatch:
        """Return the next page; the last one has no rows and a cursor outside of the snapshot."""
        with self.file.errors():
            return any_text(self._connection, lambda: self._next(rows))

    def _next(self, limit: int) -> SourceBatch:
        connection = self._connection
        if not connection.in_transaction:
            self._begin()
        try:
            batch = self._page(limit)
        except BaseException:
            connection.execute("ROLLBACK")
            self._undone = None
            raise
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            connection.execute("COMMIT")
        return batch

    def _begin(self) -> None:
        connection = self._connection
        while True:
            connection.execute("BEGIN")
            state = require(connection, self.file)
            if state.schema_version == schema_version(connection):
                break
            connection.execute("ROLLBACK")
            refresh(connection)
        try:
            check_columns(connection, self._filter)
            if self._cursor is not None:
                check(connection, state, self._cursor, self.file)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        if self._cursor is None:
            head = newest(connection)
            place = SnapshotPosition(time_ns() // 1_000_000, state.schema_version)
            self._cursor = SqliteCursor(state.identity, head.id, head.time, place)

    def _page(self, limit: int) -> SourceBatch:
        connection = self._connection
        cursor = self._cursor
        assert cursor is not None
        assert cursor.place is not None
        place = cursor.place
        head = newest(connection).id
        for version, table in self._tables(cursor, head):
            last = place.row if table.name == place.table else ()
            if head > cursor.id or self._undone is not None:
                self._undo(version, table, cursor.id, head)
            found = self._rows(version, table, last, limit)
            if found:
                size = len(table.place)
                moved = place._replace(table=table.name, row=found[-1][:size])
                self._cursor = cursor._replace(place=moved)
                changes = self._changes(table, found, cursor, instant(place.at))
                return SourceBatch(changes, str(self._cursor), [table.columns] * len(changes))
        self._cursor = cursor._replace(place=None)
        return SourceBatch((), str(self._cursor))

    def _tables(self, cursor: SqliteCursor, head: int) -> list[TrackedDefinition]:
        """Return the tables still to be read; the first is the one that the snapshot is in."""
        assert cursor.place is not None
        found = []
        again = (
            {
                version
                for (version,) in self._connection.execute(
                    "SELECT version FROM forge_queue WHERE id > ? AND id <= ? AND op = 'S'", (cursor.id, head)
                )
            }
            if head > cursor.id
            else set()
        )
        for version, table in sorted(tracked(self._connection), key=lambda tracked: tracked.table.name):
            if table.name < cursor.place.table or not self._filter.wants_table(SCHEMA, table.name):
                continue
            if version in again:
                known = self._connection.execute(
                    "SELECT 1 FROM forge_version WHERE id < ? AND name = ?", (version, table.name)
                ).fetchone()
                if known is None:
                    continue
                raise CursorExpired(f"{table.name} was defined again since the snapshot began", fix=AGAIN)
            if table.numbered and schema_version(self._connection) != cursor.place.schema_version:
                raise CursorExpired(
                    f"the rows of {table.name} may have new numbers since the snapshot began: the schema changed",
                    fix=AGAIN,
                )
            found.append(TrackedDefinition(version, table))
        return found

    def _undo(self, version: int, table: SqliteTable, since: int, head: int) -> None:
        """Record for each row changed since the start its first change, and whether it existed before."""
        if self._undone is None or self._undone[0] != version:
            self._connection.execute("DROP TABLE IF EXISTS temp.forge_then")
            parts = [f"p{n} COLLATE {quoted(collation)}" for n, (_, collation, _) in enumerate(table.place)]
            keys = ", ".join(f"p{n}" for n in range(len(parts)))
            self._connection.execute(
                f"CREATE TEMP TABLE forge_then ({', '.join(parts)}, id, was, PRIMARY KEY ({keys})) WITHOUT ROWID"
            )
            self._undone = (version, since)
        old = ", ".join(f"CASE op WHEN 'U' THEN v{table.width + slot} ELSE v{slot} END" for _, _, slot in table.place)
        new = ", ".join(f"v{slot}" for _, _, slot in table.place)
        rows = "FROM forge_queue WHERE id > ?1 AND id <= ?2 AND version = ?3 AND op"
        count = len(table.place)
        self._connection.execute(
            f"INSERT OR IGNORE INTO temp.forge_then SELECT {old}, id, 1 {rows} IN ('U', 'D')"
            f" UNION ALL SELECT {new}, id, 0 {rows} IN ('I', 'U')"
            f" ORDER BY {count + 1}, {count + 2} DESC",
            (self._undone[1], head, version),
        )
        self._undone = (version, head)

    def _rows(self, version: int, table: SqliteTable, last: Sequence[Any], limit: int) -> list[tuple[Any, ...]]:
        """Return rows behind the last one, in order: their sort values, then their values; with a limit on bytes."""
        statement = _statement(table, behind=bool(last), undone=self._undone is not None)
        cursor = self._connection.execute(statement, (*last, *(last if self._undone else ()), limit))
        found = [row for rows, _ in by_bytes(cursor.fetchmany) for row in rows]
        cursor.close()
        return found

    def _changes(
        self, table: SqliteTable, rows: Sequence[tuple[Any, ...]], begun: SqliteCursor, at: datetime
    ) -> list[Change]:
        origin = FileOrigin(begun.file, self.file.name)
        decoder = QueueDecoder(origin, table)
        source = ChangeSource(KIND, origin.name, str(begun.id))
        assert begun.place is not None
        start = f"{origin.identity}:{begun.id}.{begun.place.at:x}:{table.name}:"
        size = len(table.place)
        image_of = image_function(table, size)
        changes = []
        for row in rows:
            after = image_of(row)
            name = start + json.dumps([*map(wire.encode_value, row[:size])], separators=(",", ":"))
            changes.append(Change(name, Op.READ, SCHEMA, table.name, source, at, decoder.key(after), None, after))
        kept = (self._filter.keep(change) for change in changes)
        return [change for change in kept if change is not None]


def _statement(table: SqliteTable, *, behind: bool, undone: bool) -> str:
    row = alias(table)
    names = [f"{row}.{quoted(name)}" for name, _, _ in table.place]
    collations = [quoted(collation) for _, collation, _ in table.place]
    marks = ", ".join("?" * len(names))
    order = ", ".join(f"{n} COLLATE {collation}" for n, collation in enumerate(collations, 1))

    def conditions(parts: Sequence[str], *more: str) -> str:
        left = ", ".join(f"{part} COLLATE {collation}" for part, collation in zip(parts, collations, strict=True))
        where = [*more, *([f"({left}) > ({marks})" if len(names) > 1 else f"{left} > ?"] if behind else [])]
        return f" WHERE {' AND '.join(where)}" if where else ""

    stored = f"SELECT {', '.join([*names, *image(table, row)])} FROM {quoted(table.name)} AS {row}"
    if not undone:
        return f"{stored}{conditions(names)} ORDER BY {order} LIMIT ?"
    then = [f"forge_then.p{n}" for n in range(len(names))]
    same = " AND ".join(f"{part} = {name}" for part, name in zip(then, names, strict=True))
    unchanged = f"NOT EXISTS (SELECT 1 FROM temp.forge_then WHERE {same})"
    values = [
        f"CASE forge_queue.op WHEN 'U' THEN forge_queue.v{table.width + slot} ELSE forge_queue.v{slot} END"
        for slot in range(table.width)
    ]
    return (
        f"{stored}{conditions(names, unchanged)} UNION ALL SELECT {', '.join([*then, *values])}"
        f" FROM temp.forge_then JOIN forge_queue ON forge_queue.id = forge_then.id{conditions(then, 'forge_then.was')}"
        f" ORDER BY {order} LIMIT ?"
    )
