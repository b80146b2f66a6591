"""The queue of one file, over one connection, blocking. In: the cursor. Out: the changes behind it.

Rows come in the order of their ids. SQLite has one writer at a time, and a row gets the next id when it is written, so
that is the commit order, and the rows of one transaction are together. A row is removed when it is acknowledged, except
the newest: the next row gets the number after it.
"""

import marshal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import merge
from itertools import islice
from operator import itemgetter
from threading import Event
from time import monotonic
from typing import Final, NamedTuple, TypeVar

from forge.capture.filters import Filter
from forge.capture.source import SourceBatch
from forge.capture.sqlite.cursor import SqliteCursor
from forge.capture.sqlite.decode import SCHEMA, FileOrigin, QueueDecoder, Row, Stamp, instant, milliseconds, tolerant
from forge.capture.sqlite.file import SqliteFile, may_pass
from forge.capture.sqlite.install import QueueState, refresh, require, schema_version, tracked, versions
from forge.change import NO_CONTEXT, Change
from forge.errors import CursorExpired, CursorForeign, SourceError
from forge.values import Column

Found = TypeVar("Found")

PAGE: Final = 2000
"""Maximum rows per batch."""
PAGE_BYTES: Final = 4 * 1024 * 1024
"""A batch ends after the row that reaches this many bytes."""
AT_ONCE: Final = 64
"""Maximum rows fetched before their bytes are counted; fewer if rows were large."""
REMOVED_AT_ONCE: Final = 5000
"""Rows that one transaction removes, so that writers wait only for short times."""
SHORTEST: Final = 0.001
LONGEST: Final = 0.020
"""Seconds between two checks of the file: short during activity, growing while idle."""
LOOK_AROUND: Final = 1.0
"""Seconds after which a wait checks whether the file is still the one that was opened."""


class QueueHead(NamedTuple):
    """The newest row."""

    id: int
    time: int


def check_columns(connection: sqlite3.Connection, filter: Filter) -> None:
    """Raise ConfigError for a column of the filter that no tracked table has or had."""
    if filter.names_columns:
        filter.check_columns(
            (SCHEMA, table.name, [column.name for column in table.columns]) for _, table in versions(connection, 0)
        )


class Queue:
    """Reads and removes rows. Two threads must not use it at once."""

    def __init__(self, file: SqliteFile, filter: Filter) -> None:
        self.file: Final = file
        self._filter = filter
        self._file_identity = file.identity()
        self._connection = file.connect()
        self._data_version = -1
        self._pause = SHORTEST
        self._decoders: dict[int, QueueDecoder] = {}
        self._newest_version = 0
        self._wanted: list[int] = []
        with self._closing_on_error(), file.errors():
            if self.journal_mode() == "wal":
                self._connection.execute("PRAGMA synchronous = NORMAL")
            self.origin: Final = FileOrigin(require(self._connection, file).identity, file.name)

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def journal_mode(self) -> str:
        (mode,) = self._connection.execute("PRAGMA journal_mode").fetchone()
        return str(mode)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read transaction: all that is read in it is from one moment."""
        connection = self._connection
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def head(self) -> SqliteCursor:
        """Return the cursor behind all that is committed."""
        with self.file.errors(), self.reading() as connection:
            found = newest(connection)
            return SqliteCursor(self.origin.identity, found.id, found.time)

    def start(self) -> SqliteCursor:
        """Return the cursor before all that is kept."""
        with self.file.errors(), self.reading() as connection:
            state = require(connection, self.file)
            return SqliteCursor(
                self.origin.identity, state.removed, milliseconds(state.removed_at) if state.removed else 0
            )

    def check(self, cursor: SqliteCursor) -> None:
        """Raise CursorForeign or CursorExpired for a cursor that cannot be resumed here."""
        with self.file.errors(), self.reading() as connection:
            check(connection, require(connection, self.file), cursor, self.file)

    def check_columns(self) -> None:
        """Raise ConfigError for a column that no tracked table has or had."""
        with self.file.errors():
            check_columns(self._connection, self._filter)

    def refresh(self) -> None:
        """Update the triggers to the schema if that changed."""
        with self.file.errors():
            seen = require(self._connection, self.file)
            if seen.schema_version != schema_version(self._connection):
                refresh(self._connection)

    def read(self, after: SqliteCursor, *, rows: int = PAGE) -> SourceBatch | None:
        """Return the next changes, at most `rows` rows of them; None if there are none.

        A batch without changes only advances the cursor, past rows that the filter does not want.
        """
        with self.file.errors():
            return any_text(self._connection, lambda: self._read(after, rows))

    def _read(self, after: SqliteCursor, limit: int) -> SourceBatch | None:
        with self.reading() as connection:
            return self._read_in(connection, after, limit)

    def _read_in(self, connection: sqlite3.Connection, after: SqliteCursor, limit: int) -> SourceBatch | None:
        state = require(connection, self.file)
        if state.identity != self.origin.identity or after.id < state.removed:
            check(connection, state, after, self.file)
        until, present = _page(connection, after.id, limit)
        if until is None:
            return None
        if not present.keys() <= self._decoders.keys():
            self._load(connection)
        cursors = [
            connection.execute(
                f"SELECT id, op, at, context{_slots(self._decoders[version], has_updates)}, version FROM forge_queue"
                " WHERE id > ? AND id <= ? AND version = ? ORDER BY id",
                (after.id, until, version),
            )
            for version, has_updates in present.items()
            if version in self._wanted
        ]
        return self._batch(connection, cursors, until)

    def _batch(self, connection: sqlite3.Connection, cursors: list[sqlite3.Cursor], until: int) -> SourceBatch:
        """Return the changes of rows up to an id, or up to the limit of bytes."""
        merged: Iterator[Row] = merge(*cursors, key=itemgetter(0))
        found: list[Change] = []
        columns: list[tuple[Column, ...]] = []
        keep = None if not self._filter.without("tables").parts else self._filter.keep
        seen_at, seen_context = None, None
        stamp = Stamp("", instant(0), NO_CONTEXT, None)
        fetch = cursors[0].fetchmany if len(cursors) == 1 else lambda count: [*islice(merged, count)]
        for rows, full in by_bytes(fetch):
            for row in rows:
                if row[2] != seen_at or row[3] != seen_context:
                    seen_at, seen_context = row[2], row[3]
                    stamp = Stamp.of(seen_at, seen_context)
                decoder = self._decoders[row[-1]]
                for change in decoder.changes(row, stamp):
                    kept = change if keep is None else keep(change)
                    if kept is not None:
                        found.append(kept)
                        columns.append(decoder.columns)
            if full:
                until = rows[-1][0]
        for cursor in cursors:
            cursor.close()
        (stored,) = connection.execute("SELECT at FROM forge_queue WHERE id = ?", (until,)).fetchone()
        return SourceBatch(found, str(SqliteCursor(self.origin.identity, until, milliseconds(stored))), columns)

    def _load(self, connection: sqlite3.Connection) -> None:
        for version, table in versions(connection, self._newest_version):
            self._decoders[version] = QueueDecoder(self.origin, table)
            self._newest_version = version
            if self._filter.wants_table(SCHEMA, table.name):
                self._wanted.append(version)

    def moved(self) -> bool:
        """Tell whether another connection has committed since the last check."""
        (found,) = self._connection.execute("PRAGMA data_version").fetchone()
        if found == self._data_version:
            return False
        self._data_version = found
        return True

    def wait(self, stop: Event, seconds: float) -> bool:
        """Wait until another connection commits, at most this long; True if one did."""
        end = monotonic() + seconds
        while not stop.is_set() and monotonic() < end:
            with self.file.errors():
                try:
                    if self.moved():
                        self._pause = SHORTEST
                        return True
                except sqlite3.OperationalError as error:
                    if not may_pass(error):
                        raise
            stop.wait(self._pause)
            self._pause = min(LONGEST, self._pause * 1.05)
        return False

    def is_same_file(self) -> bool:
        """Tell whether the name still refers to the open file."""
        return self.file.identity() == self._file_identity

    def remove(self, cursor: SqliteCursor) -> None:
        """Remove the rows up to a cursor."""
        connection = self._connection
        with self.file.errors():
            state = require(connection, self.file)
            if cursor.id < state.removed and cursor.file == state.identity:
                return
            while True:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    state = require(connection, self.file)
                    check(connection, state, cursor, self.file)
                    if cursor.id <= state.removed and not _left(connection, cursor.id):
                        return
                    self._remove_some(connection, cursor.id)
                    connection.execute("COMMIT")
                except CursorExpired:
                    return
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")

    def _remove_some(self, connection: sqlite3.Connection, until: int) -> None:
        (last,) = connection.execute(
            "SELECT max(id) FROM (SELECT id FROM forge_queue WHERE id <= ? ORDER BY id LIMIT ?)",
            (until, REMOVED_AT_ONCE),
        ).fetchone()
        connection.execute(
            "UPDATE forge_state SET removed = ?1, removed_at = (SELECT at FROM forge_queue WHERE id = ?1)", (last,)
        )
        connection.execute("DELETE FROM forge_queue WHERE id <= ? AND id < (SELECT max(id) FROM forge_queue)", (last,))
        connection.execute("DELETE FROM forge_replaced")

    def facts(self) -> dict[str, object]:
        """Return facts about the file and its queue."""
        with self.file.errors(), self.reading() as connection:
            state = require(connection, self.file)
            head = newest(connection)
            return {
                "tables": [found.table.name for found in tracked(connection)],
                "journal_mode": self.journal_mode(),
                "waiting": head.id - state.removed,
                "file_bytes": self.file.path.stat().st_size,
                "sqlite": sqlite3.sqlite_version,
                "triggers_current": state.schema_version == schema_version(connection),
            }


def by_bytes(fetch: Callable[[int], list[Row]]) -> Iterator[tuple[list[Row], bool]]:
    """Yield rows, a few at a time, until they reach the bytes of a page: then the last ones come with True."""
    size, count, wanted = 0, 0, 1
    while size < PAGE_BYTES and (rows := fetch(wanted)):
        size += len(marshal.dumps(rows))  # the fastest way to measure them
        count += len(rows)
        wanted = min(AT_ONCE, max(1, PAGE_BYTES // 8 * count // size))
        yield rows, size >= PAGE_BYTES


def any_text(connection: sqlite3.Connection, read: Callable[[], Found]) -> Found:
    """Return what a reading function returns; if it meets a text that is not UTF-8, call it again with bytes."""
    try:
        return read()
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" not in str(error):
            raise
    connection.text_factory = tolerant
    try:
        return read()
    finally:
        connection.text_factory = str


def newest(connection: sqlite3.Connection) -> QueueHead:
    """Return the newest row; there always is one, because tracking writes one and the newest is never removed."""
    row = connection.execute("SELECT id, at FROM forge_queue ORDER BY id DESC LIMIT 1").fetchone()
    if row is None:
        raise SourceError(
            "forge_queue was emptied by hand", fix="forge disable, then forge enable, the tables; then read them again"
        )
    return QueueHead(row[0], milliseconds(row[1]))


def check(connection: sqlite3.Connection, state: QueueState, cursor: SqliteCursor, file: SqliteFile) -> None:
    """Check that the rows behind a cursor are all there, and of this file."""
    if cursor.file != state.identity:
        raise CursorForeign(
            f"the cursor is of another file than {file.name}", fix="use one of this file, or start again"
        )
    if cursor.id < state.removed:
        raise CursorExpired(
            f"what follows the cursor was acknowledged and is no longer in {file.name}",
            fix="read the tables again: take a new snapshot, then follow from its cursor",
        )
    stored: float | None = state.removed_at
    if cursor.id > state.removed:
        row = connection.execute("SELECT at FROM forge_queue WHERE id = ?", (cursor.id,)).fetchone()
        stored = None if row is None else row[0]
    time = 0 if cursor.id == 0 else None if stored is None else milliseconds(stored)
    if time != cursor.time:
        raise CursorForeign(
            f"{file.name} never had the change that the cursor stands behind: an older copy was put back",
            fix="read the tables again: take a new snapshot, then follow from its cursor",
        )


def _page(connection: sqlite3.Connection, after: int, limit: int) -> tuple[int | None, dict[int, bool]]:
    """Return the last id of the next page, and the definitions it has rows of: with updates among them, or without."""
    found = connection.execute(
        "SELECT version, max(id), max(op = 'U') FROM (SELECT id, version, op FROM forge_queue WHERE id > ?"
        " ORDER BY id LIMIT ?) GROUP BY version",
        (after, limit),
    ).fetchall()
    if not found:
        return None, {}
    return max(last for _, last, _ in found), {version: bool(updates) for version, _, updates in found}


def _left(connection: sqlite3.Connection, until: int) -> bool:
    """Tell whether rows up to an id are still to be removed."""
    return (
        connection.execute(
            "SELECT 1 FROM forge_queue WHERE id <= ? AND id < (SELECT max(id) FROM forge_queue) LIMIT 1", (until,)
        ).fetchone()
        is not None
    )


def _slots(decoder: QueueDecoder, has_updates: bool) -> str:
    width = decoder.table.width * (2 if has_updates else 1)
    return "".join(f", v{slot}" for slot in range(width))
