"""Decode rows of the queue into changes.

Values are what SQLite stored: int, float, str, bytes or None, row by row, whatever the declared type of the column. A
text that is not UTF-8 is bytes, as stored. SQLite itself has no NaN (it is NULL), no booleans (0 and 1), no decimal
numbers and no times (texts or numbers, as the application wrote them).
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from forge.capture.sqlite.cursor import KIND
from forge.capture.sqlite.tables import MASK, SECRET, SqliteTable
from forge.change import NO_CONTEXT, UNAVAILABLE, Change, ChangeSource, Context, Op
from forge.values import Column

SCHEMA: Final = "main"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = 2440587.5

Row = tuple[Any, ...]
"""id, op, at, context, then the values of the images."""
HEAD: Final = 4


def milliseconds(at: float) -> int:
    """Convert SQLite's julianday('now') to milliseconds since 1970.

    >>> milliseconds(2461041.5)
    1767225600000
    """
    return round((at - _EPOCH_DAY) * 86_400_000)


def instant(time: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=time)


class FileOrigin(NamedTuple):
    """The values that the changes of one file share."""

    identity: str
    name: str


class Stamp(NamedTuple):
    """The values that the rows of one statement share: the end of a change's id, time, context and transaction."""

    suffix: str
    at: datetime
    context: Context
    transaction: str | None

    @classmethod
    def of(cls, at: float, context: str | None) -> "Stamp":
        time = milliseconds(at)
        return cls(f".{time:x}", instant(time), *context_of(context))


def image_function(table: SqliteTable, start: int) -> Callable[[Row], dict[str, Any]]:
    """Return a function from a row of the queue to the image that starts at an index in it.

    It is compiled, because building a dict literal takes half the time of any loop over the columns.
    """
    shown = {"hidden": "UNAVAILABLE", "masked": "MASK"}
    items = (
        f"{column.name!r}: {shown.get(column.kind, f'row[{start + slot}]')}"
        for slot, column in enumerate(table.columns)
    )
    made: Callable[[Row], dict[str, Any]] = eval(
        f"lambda row: {{{', '.join(items)}}}", {"UNAVAILABLE": UNAVAILABLE, "MASK": MASK}
    )
    return made


class QueueDecoder:
    """Decodes the rows that have the number of one definition of one table."""

    def __init__(self, origin: FileOrigin, table: SqliteTable) -> None:
        self.table: Final = table
        self.columns: Final[tuple[Column, ...]] = table.columns
        self._origin = origin
        self._start = f"{origin.identity}:"
        self._width = table.width
        self._secret = [(slot, column.name) for slot, column in enumerate(table.columns) if column.kind in SECRET]
        names = [column.name for column in table.columns]
        self._key_slots = [names.index(name) for name in table.key]
        self._only_key = table.key[0] if len(table.key) == 1 else None
        self._first = image_function(table, HEAD)
        self._second = image_function(table, HEAD + table.width)

    def key(self, image: Mapping[str, Any]) -> dict[str, Any] | None:
        name = self._only_key
        if name is not None:
            return {name: image[name]}
        return {name: image[name] for name in self.table.key} or None

    def changes(self, row: Row, stamp: Stamp) -> Sequence[Change]:
        """Return the changes of a row: one, or a delete and an insert if the key changed."""
        number, op = row[0], row[1]
        suffix, at, context, transaction = stamp
        name = f"{self._start}{number}{suffix}"
        source = ChangeSource(KIND, self._origin.name, str(number), transaction)
        table = self.table.name
        if op == "I":
            after = self._first(row)
            return (Change(name, _INSERT, SCHEMA, table, source, at, self.key(after), None, after, context),)
        if op == "D":
            before = self._first(row)
            return (Change(name, _DELETE, SCHEMA, table, source, at, self.key(before), before, None, context),)
        if op == "S":
            return (Change(name, Op.SCHEMA, SCHEMA, table, source, at, context=context),)
        after, before = self._first(row), self._second(row)
        if not self._moved(row):
            hidden = tuple(name for slot, name in self._secret if row[HEAD + self._width + slot])
            return (Change(name, _UPDATE, SCHEMA, table, source, at, self.key(after), before, after, context, hidden),)
        second = ChangeSource(KIND, self._origin.name, f"{number}.1", transaction)
        return (
            Change(name, _DELETE, SCHEMA, table, source, at, self.key(before), before, None, context),
            Change(f"{name}.1", _INSERT, SCHEMA, table, second, at, self.key(after), None, after, context),
        )

    def _moved(self, row: Row) -> bool:
        for slot in self._key_slots:
            new, old = row[HEAD + slot], row[HEAD + self._width + slot]
            if new != old or type(new) is not type(old):
                return True
        return False


_INSERT: Final = Op.INSERT
_UPDATE: Final = Op.UPDATE
_DELETE: Final = Op.DELETE


class _Said(msgspec.Struct, frozen=True):
    """The text that `forge.capture.sqlite.transaction` puts into forge_context."""

    transaction: str | None = None
    user_id: str | None = None
    function_name: str | None = None
    trace_id: str | None = None
    more: dict[str, Any] = {}


_said: Final = msgspec.json.Decoder(_Said).decode


def context_of(text: str | None) -> tuple[Context, str | None]:
    """Return the context and the transaction that a text in the queue names.

    >>> context_of('{"transaction": "a1", "user_id": "7"}')
    (Context(user_id='7', function_name=None, trace_id=None, more={}, session_user=None, application_name=None), 'a1')
    """
    if text is None:
        return NO_CONTEXT, None
    try:
        said = _said(text)
    except (msgspec.DecodeError, UnicodeError, TypeError):
        return Context(more={"unreadable": text}), None
    return Context(said.user_id, said.function_name, said.trace_id, said.more), said.transaction


def tolerant(raw: bytes) -> str | bytes:
    """Decode a text of SQLite: str, or its bytes if they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
