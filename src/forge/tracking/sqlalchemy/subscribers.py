"""Subscribers of a table's changes, and the events that each gets.

A subscriber sees the rows that satisfy its filter. A row that an update moves into the filter is `added`, a row that it
moves out is `removed`; if that is unknown (the row before was not read, rows are unknown), the event is `invalidate`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import ColumnElement

from forge.change import Context, Op
from forge.errors import TrackingError
from forge.tracking.events import LOGGER, Event, Kind
from forge.tracking.sqlalchemy.images import plain

Where: TypeAlias = Callable[[Mapping[str, Any]], object] | Mapping[str, Any] | ColumnElement[bool] | None
Callback: TypeAlias = Callable[[Event], object]


class CommittedChange(msgspec.Struct):
    """One change of a transaction, before delivery; `filters` are the conditions that the flags answer."""

    op: Op
    schema: str | None
    table: str | None
    name: str | None
    context: Context
    key: Mapping[str, Any] | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    filters: tuple[Any, ...] = ()
    before_flags: tuple[Any, ...] = ()
    after_flags: tuple[Any, ...] = ()

    def event(self, transaction: str, kind: Kind | None = None) -> Event:
        """Return the event for a subscriber without a filter."""
        kind = kind or _KINDS.get(self.op, "invalidate")
        if kind == "invalidate" and self.key is None:
            return Event(kind, self.table, self.name, self.schema, context=self.context, transaction=transaction)
        return Event(
            kind, self.table, self.name, self.schema, self.key, self.before, self.after, self.context, transaction
        )


_KINDS: Final[dict[Op, Kind]] = {Op.INSERT: "added", Op.UPDATE: "changed", Op.DELETE: "removed"}


class ChangeSubscriber:
    """A callback with its filter."""

    def __init__(self, table: str | None, callback: Callback, where: Where) -> None:
        self.table: Final = table
        self.callback: Final = callback
        self.clause: ColumnElement[bool] | None = None
        self._matches: Callable[[Mapping[str, Any]], object] | None = None
        if isinstance(where, ColumnElement):
            self.clause = where
        elif where is not None:
            self._matches = _predicate(where)

    def hears(self, schema: str | None, table: str | None) -> bool:
        """Whether the subscriber wants a table; None is every table."""
        if self.table is None or table is None or self.table.casefold() == table.casefold():
            return True
        return schema is not None and self.table.casefold() == f"{schema}.{table}".casefold()

    def told(self, done: CommittedChange, transaction: str) -> Event | None:
        """Return the event of a change for the subscriber; None if it does not see the change."""
        if not self.hears(done.schema, done.table):
            return None
        if self.clause is None and self._matches is None:
            return done.event(transaction)
        kind = self._kind(done)
        return None if kind is None else done.event(transaction, kind)

    def _kind(self, done: CommittedChange) -> Kind | None:
        if done.op not in _KINDS:
            return "invalidate"
        was = self._sees(done, done.before, done.before_flags) if done.op is not Op.INSERT else False
        now = self._sees(done, done.after, done.after_flags) if done.op is not Op.DELETE else False
        if was is None and now is None:
            return "invalidate"
        if done.op is Op.DELETE:
            return "removed" if was is not False else None
        if done.op is Op.INSERT:
            return "invalidate" if now is None else "added" if now else None
        if was is None or now is None:
            return "changed" if now else "invalidate"
        if was:
            return "changed" if now else "removed"
        return "added" if now else None

    def _sees(self, done: CommittedChange, row: Mapping[str, Any] | None, flags: tuple[Any, ...]) -> bool | None:
        """Whether a row satisfies the filter; None if that is unknown."""
        if row is None:
            return None
        if self.clause is not None:
            if self not in done.filters or len(flags) != len(done.filters):
                return None
            return bool(flags[done.filters.index(self)])
        assert self._matches is not None
        try:
            return bool(self._matches(row))
        except Exception:
            LOGGER.exception("the filter of a subscriber failed: %r", self._matches)
            return None


def _predicate(
    where: Callable[[Mapping[str, Any]], object] | Mapping[str, Any],
) -> Callable[[Mapping[str, Any]], object]:
    if isinstance(where, Mapping):
        wanted = {name: plain(value) for name, value in where.items()}
        return lambda row: all(name in row and row[name] == value for name, value in wanted.items())
    if not callable(where):
        raise TrackingError(
            f"a filter cannot be {where!r}",
            fix='pass a dict of columns and values, a SQLAlchemy condition, or a function of a row: {"status": "paid"}',
        )
    return where
