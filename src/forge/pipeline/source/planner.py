"""Plan the next batch of a stream, on the driver: an offset in, the next one out.

Tasks read the pieces of the new offset without another query for planning.

Invariants:

- A batch has at most the configured number of changes, whatever the backlog; the rest is already planned and kept in
  memory as positions only, so a backlog is scanned once.
- A table is read as a whole when it is first seen, and again after its definition changed or an event that the log
  could not record row by row. Then a generation begins: the rows come after all changes that the snapshot shows and
  before all that it does not (see `forge.pipeline.changes`).
- An offset is returned only when a crash of the server cannot undo the commits that it covers (`flushed`).
"""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from forge.changelog.queries import query
from forge.changelog.reader import START
from forge.cursor import Cursor, LogIdentity, Position, Snapshot, wal_position
from forge.errors import CursorExpired, CursorForeign, NotInstalled, TrackingError
from forge.pipeline.source.offset import NOWHERE, LogPiece, Offset, TableShare
from forge.pipeline.source.options import StreamOptions
from forge.pipeline.source.statements import source_query
from forge.postgres.connection import Connection, connect, typed_errors
from forge.postgres.names import quoted

WHOLE_NUMBERS: Final = ("smallint", "integer", "bigint")
LAST_ID: Final = 2**63 - 1
STRETCH: Final = 1024
RESNAPSHOT: Final = "forge pipeline run --resnapshot reads the tables again and goes on from there"


class Cut(NamedTuple):
    """Changes up to a position; `whole` when whole-table events may be among them."""

    last: Position
    changes: int
    lowest: int
    highest: int
    first_day: str
    last_day: str
    whole: bool


def joined(cuts: Sequence[Cut], most: int) -> list[Cut]:
    """Join neighbouring cuts as long as they have no more than the given number of changes.

    >>> cuts = [Cut(Position(n, 0), 10, n, n, "2026-01-01", "2026-01-01", n == 2) for n in range(1, 4)]
    >>> [(cut.last.rank, cut.changes, cut.lowest, cut.highest, cut.whole) for cut in joined(cuts, 20)]
    [(2, 20, 1, 2, True), (3, 10, 3, 3, False)]
    """
    found: list[Cut] = []
    for cut in cuts:
        if found and found[-1].changes + cut.changes <= most:
            before = found.pop()
            cut = Cut(
                cut.last,
                before.changes + cut.changes,
                min(before.lowest, cut.lowest),
                max(before.highest, cut.highest),
                min(before.first_day, cut.first_day),
                max(before.last_day, cut.last_day),
                before.whole or cut.whole,
            )
        found.append(cut)
    return found


def tracked(connection: Connection, tables: Sequence[str] | None) -> list[tuple[Any, ...]]:
    """Return the tracked tables, or the named ones; raise when a named table is not tracked."""
    rows = connection.execute(source_query("tracked"), {"tables": None if tables is None else list(tables)}).fetchall()
    for wanted in tables or ():
        if not any(wanted in (row[2], f"{row[1]}.{row[2]}") for row in rows):
            raise TrackingError(f"the table {wanted} is not tracked", fix=f"forge enable {wanted}")
    return rows


class Planner:
    """Plan the batches of one stream over one connection."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._tables = list(options.tables) if options.tables is not None else None
        self._planned: list[LogPiece] = []
        self._whole: set[Position] = set()
        self._window: Snapshot | None = None
        self._seen: tuple[Snapshot, Snapshot] | None = None
        self._target: Snapshot | None = None
        self.connection: Connection = connect(options.url)
        with typed_errors():
            self.connection.execute(source_query("settings"))
            row = self.connection.execute(query("identity")).fetchone()
        if row is None:
            raise NotInstalled("Forge is not installed in this database", fix="forge init")
        self.identity = LogIdentity(row[0], row[1], row[2])
        self.first_id: int = row[3]

    def close(self) -> None:
        self.connection.close()

    def initial(self) -> Offset:
        """Return the offset at which a new stream begins."""
        start, generation = self._options.start, self._options.generation
        if start in ("history", "log"):
            offset = Offset(Cursor(self.identity, START), generation)
        elif start in ("snapshot", "now"):
            offset = Offset(Cursor(self.identity, self._now()), generation)
        else:
            offset = Offset(Cursor.parse(start), generation)
        if start in ("history", "snapshot"):
            return offset
        return Offset(offset.cursor, generation, tuple(row[0] for row in self._tracked()))

    def settle(self, until: Cursor | None = None) -> None:
        """Limit planning to commits up to this cursor, or up to this call."""
        if until is not None and until.log != self.identity:
            raise CursorForeign("the option until is a cursor of another log", fix="use a cursor of this database")
        self._target = until.snapshot if until is not None else self._now()

    def next(self, offset: Offset, most: int | None) -> Offset:
        """Return the offset after the next batch of at most `most` changes; the same offset when there is nothing to
        read."""
        self._check(offset.cursor)
        if not offset.waiting and offset.cursor.last is None:
            offset = self._with_new_tables(offset)
        if offset.waiting:
            return self._rows(offset, most)
        return self._changes(offset, most)

    def _check(self, cursor: Cursor) -> None:
        if cursor.log != self.identity:
            raise CursorForeign(
                "the stream stands in another log, or in this one before a failover or restore", fix=RESNAPSHOT
            )
        if cursor.snapshot == START and cursor.last is None:
            return  # all retained changes follow; whether a planned piece is complete is checked when it is read
        values = {
            **cursor.snapshot.bounds,
            **_position(cursor.last or NOWHERE),
            "first": self.first_id,
            "until": str(cursor.until or cursor.snapshot),
        }
        row = self.connection.execute(query("trimmed_behind"), values).fetchone()
        assert row is not None
        since, meanwhile = row
        if meanwhile if cursor.snapshot == START else since:
            raise CursorExpired("what follows the stream's offset has been trimmed from the log", fix=RESNAPSHOT)

    def _with_new_tables(self, offset: Offset) -> Offset:
        """Return the offset with shares waiting for tables that are new or stale."""
        tracked = {row[0]: row for row in self._tracked()}
        fresh = [number for number in tracked if number not in offset.tables or number in offset.stale]
        known = tuple(tracked)
        if not fresh:
            return Offset(offset.cursor, offset.generation, known) if offset.stale else offset
        generation = offset.generation + 1
        at = self._time_of(offset.cursor.snapshot)
        shares = tuple(
            share
            for number in fresh
            for share in self._shares(tracked[number], str(offset.cursor.snapshot), at, generation)
        )
        return Offset(offset.cursor, generation, known, (), shares)

    def _time_of(self, snapshot: Snapshot) -> str:
        """Return the time of a snapshot for its rows: the oldest change comes after the first snapshot.

        It is by the clock of the database, because as-of compares it to instants recorded there.
        """
        row = self.connection.execute(source_query("times"), {"first": self.first_id}).fetchone()
        assert row is not None
        oldest, now = row
        at: datetime = oldest if oldest is not None and snapshot == START else now
        return at.isoformat()

    def _shares(self, table: Sequence[Any], snapshot: str, at: str, generation: int) -> list[TableShare]:
        number, _, _, _, _, key_type, rows, name = table
        count = max(1, -(-rows // self._options.rows_per_share))
        bounds = None
        if count > 1 and key_type in WHOLE_NUMBERS:
            bounds = self._key_range(name, table[4][0])
        if bounds is None:
            count = count if table[4] else 1
            return [TableShare(number, snapshot, at, generation, share, count, rows // count) for share in range(count)]
        low, high = bounds
        cuts = [low + (high + 1 - low) * share // count for share in range(count + 1)]
        return [
            TableShare(
                number,
                snapshot,
                at,
                generation,
                share,
                count,
                rows // count,
                table[4][0],
                None if share == 0 else cuts[share],
                None if share == count - 1 else cuts[share + 1],
            )
            for share in range(count)
        ]

    def _key_range(self, name: str, column: str) -> tuple[int, int] | None:
        statement = f"SELECT min({quoted(column)}), max({quoted(column)}) FROM {name}"
        row = self.connection.execute(statement.encode()).fetchone()
        return None if row is None or row[0] is None else (row[0], row[1])

    def _rows(self, offset: Offset, most: int | None) -> Offset:
        """Return a batch of waiting shares: at least one, and as many as fit."""
        taken, rows = 0, 0
        for share in offset.waiting:
            if taken and most is not None and rows + share.rows > most:
                break
            taken, rows = taken + 1, rows + share.rows
        pieces, left = offset.waiting[:taken], offset.waiting[taken:]
        return Offset(offset.cursor, offset.generation, offset.tables, (), left, pieces)

    def _changes(self, offset: Offset, most: int | None) -> Offset:
        """Return a batch of the log: up to the end of the cursor's window, or of a new one."""
        cursor = offset.cursor
        after = cursor.last or NOWHERE
        if not (self._planned and self._planned[0].after == after and self._window == cursor.snapshot):
            self._plan(offset, after, most)
        if not self._planned:
            return offset
        taken: list[LogPiece] = []
        events = 0
        while self._planned and not (taken and most is not None and events + self._planned[0].count > most):
            taken.append(self._planned.pop(0))
            events += taken[-1].count
        stale = {number for piece in taken if piece.last in self._whole for number in self._stale(piece)}
        until = Snapshot.parse(taken[-1].until)
        if self._planned:
            cursor = Cursor(self.identity, cursor.snapshot, until, taken[-1].last)
        else:
            cursor = Cursor(self.identity, until)
        return Offset(
            cursor, offset.generation, offset.tables, tuple(sorted({*offset.stale, *stale})), (), tuple(taken)
        )

    def _plan(self, offset: Offset, after: Position, most: int | None) -> None:
        """Cut the log after the cursor into pieces. Ranges already scanned and found empty are skipped."""
        cursor = offset.cursor
        since = cursor.snapshot
        if cursor.until is not None:
            until = cursor.until
        else:
            until = self._target or self._now()
            if self._seen is not None and self._seen[0] == since and until.covers(self._seen[1]):
                since = self._seen[1]
        parts = self._options.partitions
        step = -(-min(most or self._options.most, self._options.most) // parts)
        bounds = {**since.bounds, **self._scope(), **_position(after), "until": str(until)}
        with typed_errors():
            surveyed = self.connection.execute(source_query("survey"), bounds).fetchall()
            if any(row[1] > step for row in surveyed):
                planned = self.connection.execute(source_query("plan"), {**bounds, "step": step, "parts": parts})
                cuts = [Cut(Position(*row[2]), row[1], *row[3:]) for row in planned]
            else:
                found = [Cut(Position((row[0] + 1) * STRETCH - 1, LAST_ID), *row[1:]) for row in surveyed]
                total = sum(cut.changes for cut in found)
                cuts = joined(found, min(step, -(-total // parts) + STRETCH))
        self._planned, self._whole, self._window = [], set(), cursor.snapshot
        for cut in cuts:
            piece = LogPiece(
                str(since),
                str(until),
                after,
                cut.last,
                cut.lowest,
                cut.highest,
                cut.first_day,
                cut.last_day,
                cut.changes,
                offset.generation,
            )
            self._planned.append(piece)
            if cut.whole:
                self._whole.add(cut.last)
            after = cut.last
        if not cuts and cursor.until is None:
            self._seen = (cursor.snapshot, until)

    def _stale(self, piece: LogPiece) -> list[int]:
        """Return the tables that must be read again after a piece."""
        values = {
            **Snapshot.parse(piece.since).bounds,
            **self._scope(),
            **_position(piece.after),
            "until": piece.until,
            "last_place": piece.last.rank,
            "last_id": piece.last.id,
            "lowest": str(piece.lowest),
            "highest": str(piece.highest),
        }
        return [row[0] for row in self.connection.execute(source_query("stale"), values)]

    def _tracked(self) -> list[tuple[Any, ...]]:
        return tracked(self.connection, self._tables)

    def _scope(self) -> dict[str, Any]:
        return {"first": self.first_id, "tables": self._tables}

    def _now(self) -> Snapshot:
        """Return the present snapshot, once it is durable: a crash does not undo the commits that it shows."""
        with typed_errors():
            row = self.connection.execute(source_query("head")).fetchone()
            assert row is not None
            for patience in (0.0, 0.001, None):
                if wal_position(row[2]) >= wal_position(row[1]):
                    break
                if patience is None:
                    self.connection.execute(query("flush"))
                    break
                time.sleep(patience)
                flushed = self.connection.execute(query("flushed"), {"lsn": row[1]}).fetchone()
                if flushed == (True,):
                    break
        return Snapshot.parse(row[0])


def _position(position: Position) -> dict[str, int]:
    return {"place": position.rank, "id": position.id}
