"""Changes of one transaction of a binary log: of rows and of whole tables, each with its own id.

In: rows and statements decoded by the log's reader (`forge.capture.mysql.changes`), event by event. Out: `changes` with
the `columns` of each. An event has a number in its transaction, counted whether or not it is wanted; events reported
before (`skip`) are left out.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from forge.capture.mysql import tables
from forge.capture.mysql.cascades import Cascade, Name, reached
from forge.capture.mysql.codecs import Charset, utc
from forge.capture.mysql.cursor import KIND
from forge.capture.mysql.rows import MysqlTableVersion, Row
from forge.change import NO_CONTEXT, Change, ChangeSource, Context, Op
from forge.values import Column

_FOREVER: Final = ("2038-01-19T03:14:07.999999+00:00", "2106-02-07T06:28:15.999999+00:00", (1 << 64) - 1)


class TableCatalog(Protocol):
    """Current data of the server that the log lacks; `forget` when a table's definition changed."""

    mariadb: bool

    def wants(self, schema: str, table: str) -> bool: ...
    def known(self, schema: str, table: str) -> tables.KnownTable | None: ...
    def followed(self) -> Iterable[Name]: ...
    def cascades(self) -> Mapping[Name, list[Cascade]]: ...
    def collations(self) -> Mapping[int, str]: ...
    def charset(self, name: str) -> Charset: ...
    def forget(self) -> None: ...


class Account:
    """The changes since they were last taken, and the current transaction."""

    def __init__(self, catalog: TableCatalog, name: str, skip: int) -> None:
        self.changes: list[Change] = []
        self.columns: list[tuple[Column, ...]] = []
        self.events = 0
        """The number of the current event in its transaction."""
        self.skip = skip
        """Number of events of the transaction that were reported before."""
        self.at = 0
        """When the current event was written, in seconds."""
        self.context = NO_CONTEXT
        self.touched: Final[set[Name]] = set()
        self._catalog = catalog
        self._name = name
        self._transaction = ""
        self._start = ""
        self._cascaded: set[Name] = set()
        self._wholes = 0

    def begin(self, transaction: str, file: str, start: int) -> None:
        """Begin a transaction here; without a name it is identified by its place."""
        self._transaction = transaction or f"{file}:{start}"
        self._start = f"{file}:{start:012d}."
        self.events = self._wholes = 0
        self.context = NO_CONTEXT
        self.touched.clear()
        self._cascaded.clear()

    def end(self) -> None:
        """End the current transaction."""
        self.events = self.skip = self._wholes = 0

    def empty(self) -> None:
        """Drop the changes: they were delivered."""
        self.changes = []
        self.columns = []

    @property
    def told(self) -> bool:
        """Tell whether the current event is still to be reported."""
        return self.events > self.skip

    def number(self) -> bool:
        """Count an event that changes something; tell whether it is still to be reported."""
        self.events += 1
        self._wholes = 0
        return self.events > self.skip

    def rows(self, version: MysqlTableVersion, op: Op, rows: list[Row]) -> None:
        """Add the rows of an event as changes."""
        schema, table, key, context = version.schema, version.table, version.key, self.context
        transaction, name, at = self._transaction, self._name, utc(self.at)
        head = f"{transaction}.{self.events}."
        spot = self._spot()
        before = len(self.changes)
        add = self.changes.append
        if version.ends is not None:
            op, rows = self._current(version.ends, op, rows, head, spot, version, at)
        if op is Op.UPDATE:
            for number in range(0, len(rows), 2):
                old, new = rows[number], rows[number + 1]
                old_key = {each: old[each] for each in key} if key else None
                new_key = {each: new[each] for each in key} if key else None
                row = number >> 1
                where = ChangeSource(KIND, name, f"{spot}{row:06d}", transaction)
                if old_key == new_key:
                    add(Change(f"{head}{row}", op, schema, table, where, at, new_key, old, new, context))
                else:
                    gone = ChangeSource(KIND, name, f"{spot}{row:06d}d", transaction)
                    came = ChangeSource(KIND, name, f"{spot}{row:06d}i", transaction)
                    add(Change(f"{head}{row}d", Op.DELETE, schema, table, gone, at, old_key, old, None, context))
                    add(Change(f"{head}{row}i", Op.INSERT, schema, table, came, at, new_key, None, new, context))
        else:
            inserts = op is Op.INSERT
            only = key[0] if len(key) == 1 else None
            for row, image in enumerate(rows):
                if only is not None:
                    found: Row | None = {only: image[only]}
                else:
                    found = {each: image[each] for each in key} if key else None
                where = ChangeSource(KIND, name, f"{spot}{row:06d}", transaction)
                if inserts:
                    add(Change(f"{head}{row}", op, schema, table, where, at, found, None, image, context))
                else:
                    add(Change(f"{head}{row}", op, schema, table, where, at, found, image, None, context))
        self.columns += [version.columns] * (len(self.changes) - before)

    def _current(
        self, ends: str, op: Op, rows: list[Row], head: str, spot: str, version: MysqlTableVersion, at: datetime
    ) -> tuple[Op, list[Row]]:
        """Keep only current rows of a system-versioned table: the server's own history is not a change."""
        if op is not Op.UPDATE:
            kept = [row for row in rows if row[ends] in _FOREVER]
            _without(version.implied, kept)
            return op, kept
        pairs = [(rows[at], rows[at + 1]) for at in range(0, len(rows), 2)]
        kept = []
        for number, (old, new) in enumerate(pairs):
            if old[ends] not in _FOREVER:
                continue
            if new[ends] in _FOREVER:
                kept += old, new
                continue
            key = {each: old[each] for each in version.key} if version.key else None
            where = ChangeSource(KIND, self._name, f"{spot}{number:06d}x", self._transaction)
            identity, names = f"{head}{number}x", (version.schema, version.table)
            _without(version.implied, [old])
            self.changes.append(Change(identity, Op.DELETE, *names, where, at, key, old, None, self.context))
        _without(version.implied, kept)
        return op, kept

    def whole(self, op: Op, name: Name, more: Mapping[str, Any] | None = None) -> None:
        """Add a change of a table as a whole, if it is wanted."""
        if not self._catalog.wants(*name):
            return
        self._wholes += 1
        mark = f"t{'.'.join(name)}"
        where = ChangeSource(
            KIND, self._name, f"{self._spot()}t{self._wholes:05d}.{'.'.join(name)}", self._transaction or None
        )
        context = Context(more=dict(more)) if more else NO_CONTEXT
        identity = f"{self._transaction}.{self.events}.{mark}"
        self.changes.append(Change(identity, op, *name, where, utc(self.at), context=context))
        self.columns.append(())

    def _spot(self) -> str:
        """Return the prefix of the positions of an event's changes: texts that sort as the log does."""
        return f"{self._start}{self.events:08d}."

    def invalidate(self, names: Iterable[Name], reason: str) -> None:
        """Report that earlier changes of these tables may be wrong."""
        for name in sorted(set(names)):
            self.whole(Op.INVALIDATE, name, {"reason": reason})

    def cascade(self, parent: Name, op: Op, changed: set[str] | None) -> None:
        """Report, once per transaction, each table whose rows were deleted or changed with those of the parent."""
        for key, how in reached(self._catalog.cascades(), parent, op, changed):
            if key.child not in self._cascaded:
                self._cascaded.add(key.child)
                if self.told:
                    self.whole(Op.INVALIDATE, key.child, key.reason(how))


def _without(names: Iterable[str], rows: Iterable[Row]) -> None:
    for row in rows:
        for name in names:
            row.pop(name, None)
