"""Recorder of the writes of one SQLite connection, attached to its hooks: it hands on what was committed."""

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import apsw
from forge.capture.sqlite.decode import SCHEMA
from forge.errors import SourceError

_NAME: Final = r"(\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|'[^']*'|\w+)"
_SPACE: Final = r"(?:\s|--[^\n]*\n|/\*.*?\*/|;)*"
_CLAUSE: Final = re.compile(r"\bor\s+(?:rollback|fail|ignore|replace)\b|\breplace\s+into\b", re.IGNORECASE)
_BORDER: Final = re.compile(
    rf"{_SPACE}(?:(savepoint)\s+{_NAME}|(release)(?:\s+savepoint)?\s+{_NAME}"
    rf"|(rollback)(?:\s+transaction)?\s+to(?:\s+savepoint)?\s+{_NAME})",
    re.IGNORECASE | re.DOTALL,
)


class HookCall(NamedTuple):
    """One call of the hook."""

    op: int
    table: str
    old: tuple[Any, ...] | None
    new: tuple[Any, ...] | None
    rowid: int = 0
    new_rowid: int = 0
    """The row numbers, if there are no images."""


class Committed(NamedTuple):
    """A transaction: its writes, and the tables whose writes exceeded the limit."""

    number: int
    at: datetime
    rows: list[HookCall]
    lost: frozenset[str]


class Recorder:
    """Attached to a connection's hooks, in whichever thread writes; passes on what was committed."""

    def __init__(
        self, connection: "apsw.Connection", deliver: Any, wanted: set[str] | None, most: int, preupdate: bool
    ) -> None:
        apsw = load_apsw()
        self._connection = connection
        self._deliver = deliver
        self._wanted = wanted
        self._most = most
        self._preupdate = preupdate
        self._refused = apsw.Error
        self._rows: list[HookCall] = []
        self._lost: set[str] = set()
        self._savepoints: list[tuple[str, int]] = []
        self._settled = 0
        self._total = connection.total_changes()
        self._committing = False
        self._transactions = 0
        if preupdate:
            connection.preupdate_hook(self._on_row, id=self)
        else:
            connection.set_update_hook(self._on_number)
        connection.set_commit_hook(self._on_commit, id=self)
        connection.set_rollback_hook(self._on_rollback, id=self)
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._on_end, id=self)

    def close(self) -> None:
        connection = self._connection
        if self._preupdate:
            connection.preupdate_hook(None, id=self)
        else:
            connection.set_update_hook(None)
        connection.set_commit_hook(None, id=self)
        connection.set_rollback_hook(None, id=self)
        connection.trace_v2(0, None, id=self)

    def _on_row(self, update: "apsw.PreUpdate") -> None:
        if update.database_name != SCHEMA or update.blob_write >= 0:
            return
        table = update.table_name
        if self._wanted is not None and table not in self._wanted:
            return
        try:
            row = HookCall(update.opcode, table, update.old, update.new)
        except self._refused:  # a table with virtual generated columns
            row = HookCall(update.opcode, table, None, None, update.rowid, update.rowid_new)
        self._add(row)

    def _on_number(self, op: int, database: str, table: str, rowid: int) -> None:
        if database == SCHEMA and (self._wanted is None or table in self._wanted):
            self._add(HookCall(op, table, None, None, rowid, rowid))

    def _add(self, row: HookCall) -> None:
        if len(self._rows) < self._most:
            self._rows.append(row)
        else:
            self._lost.add(row.table)

    def _on_commit(self) -> bool:
        self._committing = True
        return False

    def _on_rollback(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._rows = []
        self._lost = set()
        self._savepoints.clear()
        self._settled = 0
        self._committing = False

    def _on_end(self, event: dict[str, Any]) -> None:
        """Handle the end of a statement, successful or not."""
        if len(self._rows) > self._settled:
            self._settle(event["sql"])
        self._total = self._connection.total_changes()
        if self._committing:
            self._committing = False
            if not self._connection.in_transaction:
                self._hand_on()
                return
        if match := _BORDER.match(event["sql"]):
            self._border(*filter(None, match.groups()))

    def _settle(self, sql: str) -> None:
        """Remove a statement's writes if SQLite undid it; with an OR clause the undo may be partial."""
        if self._connection.changes() == 0:
            if self._connection.total_changes() != self._total or _CLAUSE.search(sql):
                self._lost |= {row.table for row in self._rows[self._settled :]}
            del self._rows[self._settled :]
        self._settled = len(self._rows)

    def _hand_on(self) -> None:
        rows, lost = self._rows, frozenset(self._lost)
        self._forget()
        if rows or lost:
            self._transactions += 1
            self._deliver(Committed(self._transactions, datetime.now(UTC), rows, lost))

    def _border(self, word: str, name: str) -> None:
        plain = (name[1:-1] if name[0] in "\"`['" else name).lower()
        if word.lower() == "savepoint":
            self._savepoints.append((plain, len(self._rows)))
            return
        place = next((n for n in reversed(range(len(self._savepoints))) if self._savepoints[n][0] == plain), None)
        if place is None:
            return
        if word.lower() == "release":
            del self._savepoints[place:]
        else:
            del self._rows[self._savepoints[place][1] :]
            self._settled = len(self._rows)
            del self._savepoints[place + 1 :]


def load_apsw() -> Any:
    try:
        import apsw
    except ImportError as error:
        raise SourceError("the update hook needs APSW", fix='pip install "forge-changes[sqlite]"') from error
    return apsw
