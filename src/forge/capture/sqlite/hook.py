"""The update hook of one connection as a source, kind `hook`: what that connection commits, in the same process.

    async with Hook("sqlite:///shop.db") as hook:
        hook.connection.execute("INSERT INTO orders …")      # any thread; or Hook(…, connection=yours)
        async for batch in hook.stream(): …

It needs APSW, and nothing in the file: no triggers, no tables. A change costs microseconds and is available when the
statement that committed it returns. Limitations:

- It sees one connection. It never sees writes of other connections, in this process or another.
- It keeps changes in memory, until they are acknowledged, at most `most`. Beyond that they are dropped, and an
  `invalidate` for each table reports it. When the process ends they are gone.
- It has no snapshot and no context, and does not see changes of the schema, nor what is written into a blob in place
  (sqlite3_blob_write).

It uses SQLite's preupdate hook if the build has it, as that of APSW's wheels does: images before and after, tables
WITHOUT ROWID, rows that REPLACE deletes, and DELETE without WHERE. With only the plain update hook, a change has only
the row's number; tables WITHOUT ROWID, replaced rows and DELETE without WHERE are not seen. `capabilities` tells which
hook it is. In a table with virtual generated columns values are UNAVAILABLE: SQLite does not pass them on.

SQLite does not report when it undoes a statement or rolls back to a savepoint. So each statement is checked when it
ends: its writes are removed if it was undone, and a transaction is delivered once SQLite is outside of it after its
commit. If that is unknown (a statement on a view, or with OR REPLACE and the like, that failed midway or changed
nothing itself) the tables it touched get an `invalidate`.
"""

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from forge.capture.capabilities import Capabilities
from forge.capture.filters import Filter
from forge.capture.source import SourceBatch, Status
from forge.capture.sqlite.decode import SCHEMA
from forge.capture.sqlite.file import path_of
from forge.capture.sqlite.recorder import Committed, HookCall, Recorder, load_apsw
from forge.capture.sqlite.tables import SqliteTable, names, table
from forge.change import UNAVAILABLE, Change, ChangeSource, Op
from forge.errors import (
    CapabilityMissing,
    CursorExpired,
    CursorForeign,
    CursorInvalid,
    SourceError,
    TrackingError,
)

if TYPE_CHECKING:
    import apsw

KIND: Final = "hook"
MOST: Final = 100_000
PAGE: Final = 2000
_CURSOR: Final = re.compile(r"hook1_([0-9a-f]{32})_([0-9]{1,19})")
_OTHER: Final = re.compile(r"[a-z]+[0-9]+_\S+")


class HookedTable(NamedTuple):
    """The properties of a table that its changes need; `numbered` if the key is the row number."""

    name: str
    columns: list[str]
    key: tuple[str, ...]
    numbered: bool

    @classmethod
    def of(cls, definition: SqliteTable) -> "HookedTable":
        columns = [column.name for column in definition.columns]
        return cls(definition.name, columns, definition.key, definition.aliased)


class Hook:
    """The commits of one connection. Its other hooks of the same kinds stay in place."""

    kind: Final = KIND

    def __init__(
        self,
        url: str,
        filter: Filter | None = None,
        *,
        connection: "apsw.Connection | None" = None,
        preupdate: bool | None = None,
        most: int = MOST,
    ) -> None:
        self._path = path_of(url) if connection is None else None
        self._filter = filter or Filter()
        self._filter.check()
        self._given = connection
        self._connection = connection
        self._preupdate = preupdate
        self._most = most
        self.name: Final = str(self._path) if connection is None else connection.filename or ":memory:"
        self._identity = uuid.uuid4().hex
        self._recorder: Recorder | None = None
        self._filename = ""
        self._tables: dict[str, HookedTable | None] = {}
        self._arrived: list[Committed] = []
        self._kept: list[Change] = []
        self._dropped = 0
        self._floor = 0
        self._wake = asyncio.Event()

    @property
    def connection(self) -> "apsw.Connection":
        """Return the watched connection."""
        if self._connection is None:
            raise SourceError("the hook is not open", fix="use it by `async with`")
        return self._connection

    @property
    def capabilities(self) -> Capabilities:
        """Return what it can do with this build of SQLite."""
        return Capabilities(
            durable=False,
            replayable=False,
            retention=f"in memory until acknowledged, at most {self._most:,} changes",
            other_processes=False,
            before="always" if self._has_preupdate() else "never",
            context=False,
            ordered=True,
            transactions=True,
            snapshots=False,
            truncates=False,
            schema_changes=False,
            filters=("tables",),
        )

    def _has_preupdate(self) -> bool:
        return hasattr(load_apsw().Connection, "preupdate_hook") if self._preupdate is None else self._preupdate

    async def __aenter__(self) -> Self:
        apsw = load_apsw()
        if self._connection is None:
            try:
                self._connection = apsw.Connection(str(self._path))
            except apsw.Error as error:
                raise SourceError(
                    f"{self._path} cannot be opened: {error}", fix="check the path and its rights"
                ) from error
        self._read_tables()
        self._filter.check_columns((SCHEMA, name, shape.columns) for name, shape in self._tables.items() if shape)
        loop = asyncio.get_running_loop()

        def deliver(committed: Committed) -> None:
            self._arrived.append(committed)
            loop.call_soon_threadsafe(self._wake.set)

        wanted = (
            {name for name in self._tables if self._filter.wants_table(SCHEMA, name)} if self._filter.tables else None
        )
        self._recorder = Recorder(self._connection, deliver, wanted, self._most, self._has_preupdate())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
        if self._given is None and self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_tables(self) -> None:
        """Read the columns of every table. After the start, a connection that may be in use is left alone."""
        connection: Any = self.connection
        if self._recorder is None:
            self._filename = connection.filename
        if self._recorder is None or not self._filename:
            self._tables = {name: _described(connection, name) for name in names(connection)}
            return
        beside = load_apsw().Connection(self._filename)
        try:
            self._tables = {name: _described(beside, name) for name in names(beside)}
        finally:
            beside.close()

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield what is committed after the cursor, or from now on, without end."""
        self._take()
        place = self._dropped + len(self._kept) if after is None else self._place(after)
        while True:
            self._wake.clear()
            self._take()
            if place < self._floor:
                raise self._expired()
            place = max(place, self._dropped)
            start = place - self._dropped
            found = self._kept[start : start + PAGE]
            if not found:
                await self._wake.wait()
                continue
            place += len(found)
            yield SourceBatch(found, self._cursor(place))

    def _take(self) -> None:
        """Convert what arrived into changes, and drop the excess."""
        arrived, self._arrived = self._arrived, []
        for committed in arrived:
            self._kept += self._changes(committed)
        if len(self._kept) > self._most:
            touched = dict.fromkeys(change.table for change in self._kept)
            self._dropped += len(self._kept)
            committed = Committed(0, datetime.now(UTC), [], frozenset(touched))
            self._kept = self._changes(committed)

    def _changes(self, committed: Committed) -> list[Change]:
        number = self._dropped + len(self._kept)
        keep = self._filter.keep if self._filter.parts else None
        found: list[Change] = []
        for op, name, key, before, after in self._meanings(committed):
            number += 1
            change = Change(
                f"{self._identity}:{number}",
                op,
                SCHEMA,
                name,
                ChangeSource(KIND, self.name, str(number), str(committed.number) if committed.number else None),
                committed.at,
                key,
                before,
                after,
            )
            kept = change if keep is None else keep(change)
            if kept is not None:
                found.append(kept)
            else:
                number -= 1
        return found

    def _meanings(self, committed: Committed) -> list["Meaning"]:
        """Return the meanings of a transaction; for a table that must be read again, nothing else."""
        lost = set(committed.lost)
        found: list[Meaning] = []
        for row in committed.rows:
            shape = self._shape(row)
            meant = None if shape is None else meaning(row, shape)
            if meant is None:
                lost.add(row.table)
            else:
                found += meant
        told = [meant for meant in found if meant.table not in lost] if lost else found
        return [*told, *(Meaning(Op.INVALIDATE, name, None, None, None) for name in sorted(lost))]

    def _shape(self, row: HookCall) -> HookedTable | None:
        found = self._tables.get(row.table)
        image = row.new if row.old is None else row.old
        if found is None or (image is not None and len(image) != len(found.columns)):
            self._read_tables()
            found = self._tables.get(row.table)
            if found is not None and image is not None and len(image) != len(found.columns):
                return None
        return found

    def _cursor(self, place: int) -> str:
        return f"hook1_{self._identity}_{place}"

    def _place(self, cursor: str) -> int:
        match = _CURSOR.fullmatch(cursor)
        if match is None and (not _OTHER.fullmatch(cursor) or cursor.startswith("hook1_")):
            raise CursorInvalid(f"{cursor[:60]!r} is not a cursor", fix="use a cursor that this hook gave out")
        if match is None or match[1] != self._identity:
            raise CursorForeign("the cursor is of another hook, or source", fix="a hook keeps nothing: read again")
        place = int(match[2])
        if place > self._dropped + len(self._kept):
            raise CursorInvalid(f"{cursor[:60]!r} lies ahead", fix="use a cursor that this hook gave out")
        if place < self._floor:
            raise self._expired()
        return max(place, self._dropped)

    def _expired(self) -> CursorExpired:
        return CursorExpired("what follows the cursor is no longer in memory", fix="read the tables again")

    async def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Raise: there is no snapshot."""
        for batch in _no_snapshot():
            yield batch

    async def now(self) -> str:
        """Return the cursor behind all that is committed."""
        self._take()
        return self._cursor(self._dropped + len(self._kept))

    async def ack(self, cursor: str) -> None:
        """Forget what is before the cursor."""
        self._take()
        match = _CURSOR.fullmatch(cursor)
        if match is not None and match[1] == self._identity and int(match[2]) < self._dropped:
            self._floor = max(self._floor, int(match[2]))
            return
        place = self._place(cursor)
        del self._kept[: place - self._dropped]
        self._dropped = self._floor = place

    async def status(self) -> Status:
        """Return how much is kept."""
        self._take()
        in_feed = tuple(part for part in self._filter.parts if part == "tables")
        return Status(
            kind=self.kind,
            name=self.name,
            capabilities=self.capabilities,
            lag_changes=len(self._kept),
            in_feed=in_feed,
            in_forge=tuple(part for part in self._filter.parts if part not in in_feed),
            details={"preupdate": self._has_preupdate(), "tables": sorted(self._tables)},
        )


class Meaning(NamedTuple):
    """The meaning of a call of the hook."""

    op: Op
    table: str
    key: dict[str, Any] | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def meaning(row: HookCall, shape: HookedTable) -> list[Meaning] | None:
    """Return the changes of a call, two for an update of the key; None if the table must be read again.

    >>> orders = HookedTable("orders", ["id", "n"], ("id",), numbered=True)
    >>> [(m.op.value, m.key, m.before, m.after) for m in meaning(HookCall(18, "orders", None, (7, "x")), orders)]
    [('insert', {'id': 7}, None, {'id': 7, 'n': 'x'})]
    """
    op = _OPS[row.op]
    name, columns, key_names, numbered = shape
    if row.old is None and row.new is None:
        if not numbered:
            return None
        images = [
            {**dict.fromkeys(columns, UNAVAILABLE), key_names[0]: number} for number in (row.rowid, row.new_rowid)
        ]
        before, after = images
    else:
        before = dict(zip(columns, row.old)) if row.old is not None else {}  # noqa: B905 (the lengths were compared)
        after = dict(zip(columns, row.new)) if row.new is not None else {}  # noqa: B905

    if op is Op.INSERT:
        return [Meaning(op, name, _key(after, key_names), None, after)]
    if op is Op.DELETE:
        return [Meaning(op, name, _key(before, key_names), before, None)]
    old, new = _key(before, key_names), _key(after, key_names)
    if [*map(repr, (old or {}).values())] == [*map(repr, (new or {}).values())]:
        return [Meaning(op, name, new, before, after)]
    return [Meaning(Op.DELETE, name, old, before, None), Meaning(Op.INSERT, name, new, None, after)]


def _key(image: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    if len(names) == 1:
        return {names[0]: image[names[0]]}
    return {name: image[name] for name in names} or None


_OPS: Final = {18: Op.INSERT, 23: Op.UPDATE, 9: Op.DELETE}
"""SQLITE_INSERT, SQLITE_UPDATE and SQLITE_DELETE."""


def _no_snapshot() -> list[SourceBatch]:
    raise CapabilityMissing("a hook has no snapshots", fix="read the tables by yourself, or use the queue")


def _described(connection: Any, name: str) -> HookedTable | None:
    try:
        return HookedTable.of(table(connection, name))
    except TrackingError:
        return None
