"""Audit: the changes of all tables and their actors, listed or counted.

    audit(connection, user="ada", since=yesterday).entries
    counts(connection, by=["user", "table"], since=yesterday)

Newest transactions come first, the changes of each together, in pages that each begin where the previous one ended. A
list names what was changed and by whom, never the values. Times are bounded by day first, so a query about today does
not read the rest of the log.

A tenant sees changes of its own rows, and their actors by the rule of `forge.changelog.tenancy`. Where that hides the
actor, no filter by user or trace finds the change, and it is counted without an actor.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from forge.change import Op
from forge.changelog.decode import OPS
from forge.changelog.tenancy import SIGNED, Tenant, owned, parameters, signed
from forge.errors import CursorInvalid, HistoryUnavailable
from forge.history import tracked
from forge.history.instants import aware
from forge.postgres.connection import Connection, typed_errors
from forge.postgres.text import check_storable
from forge.wire import timestamp

LIMIT: Final = 50
MOST: Final = 10_000
_LETTERS: Final = {op: letter for letter, op in OPS.items()}
_MARGIN: Final = timedelta(days=1)
_YEARS: Final = (2000, 9000)
"""Years outside of which no log has rows."""

BY: Final = {
    "table": "v.schema_name || '.' || v.table_name",
    "user": "CASE WHEN {signed} THEN coalesce(l.user_id, l.db_user) END",
    "op": "l.op::text",
    "function": "CASE WHEN {signed} THEN l.function_name END",
    "trace": "CASE WHEN {signed} THEN l.trace_id END",
    "hour": "date_trunc('hour', l.at, 'UTC')",
    "day": "date_trunc('day', l.at, 'UTC')",
}
"""The fields by which changes can be counted, and their SQL."""

_CHOSEN: Final = """
    FROM forge.forge_event_log l JOIN forge.table_version v ON v.id = l.version
    WHERE (%(user)s::text IS NULL OR coalesce(l.user_id, l.db_user) = %(user)s)
      AND (%(trace)s::text IS NULL OR l.trace_id = %(trace)s)
      AND (%(versions)s::int[] IS NULL OR l.version = ANY (%(versions)s))
      AND (%(ops)s::text[] IS NULL OR l.op::text = ANY (%(ops)s))
      AND (%(since)s::timestamptz IS NULL OR l.at >= %(since)s) AND (%(until)s::timestamptz IS NULL OR l.at < %(until)s)
      AND (l.day BETWEEN %(first_day)s::date AND %(last_day)s::date OR l.day = 'infinity')
      AND {owned} AND (%(user)s::text IS NULL AND %(trace)s::text IS NULL OR {signed})"""
_LIST: Final = f"""
    SELECT l.at, v.schema_name || '.' || v.table_name, l.op::text, l.row_id,
           CASE WHEN l.op = 'U' THEN forge.changed_columns(l.before, l.after, l.hidden) ELSE ARRAY[]::text[] END,
           l.user_id, l.function_name, l.trace_id, l.db_user, l.application_name,
           l.transaction_id::text, coalesce(l.rank, l.id), l.id
    {_CHOSEN}
      AND (%(transaction)s::text IS NULL OR l.transaction_id <= %(transaction)s::text::xid8
           AND (l.transaction_id, coalesce(l.rank, l.id), l.id) < (%(transaction)s::text::xid8, %(place)s, %(id)s))
    ORDER BY l.transaction_id DESC, coalesce(l.rank, l.id) DESC, l.id DESC LIMIT %(limit)s"""


class Audited(msgspec.Struct, frozen=True):
    """One change: who, when and why, of which row, and the columns that an update changed."""

    at: datetime
    table: str
    op: Op
    key: str | None
    changed_columns: tuple[str, ...]
    user_id: str | None
    function_name: str | None
    trace_id: str | None
    session_user: str | None
    application_name: str | None
    transaction: str

    @property
    def who(self) -> str:
        return self.user_id or self.session_user or ""

    def wire(self) -> dict[str, Any]:
        """Return the entry as JSON."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {**found, "at": timestamp(self.at), "op": self.op.name}


class Audit(msgspec.Struct, frozen=True):
    """A page of changes; `next` is the start of the following page, None if this is the last."""

    entries: tuple[Audited, ...]
    next: str | None


class AuditCount(msgspec.Struct, frozen=True):
    """The number of changes with the same values in the fields of `by`, and the times of the first and last."""

    by: dict[str, str | datetime | None]
    changes: int
    first: datetime
    last: datetime

    def wire(self) -> dict[str, Any]:
        """Return the count as JSON."""
        by = {name: timestamp(value) if isinstance(value, datetime) else value for name, value in self.by.items()}
        return {**by, "changes": self.changes, "first": timestamp(self.first), "last": timestamp(self.last)}


class AuditFilter(msgspec.Struct, frozen=True):
    """A filter of changes. A `tenant` sees changes of rows that were its own before and after."""

    user: str | None = None
    table: str | None = None
    ops: tuple[Op, ...] = ()
    trace: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    tenant: Tenant | None = None


Choice = AuditFilter
"""The name before there were two of it."""
EVERYTHING: Final = AuditFilter()


def audit(
    connection: Connection,
    choice: AuditFilter = EVERYTHING,
    *,
    limit: int = LIMIT,
    before: str | None = None,
) -> Audit:
    """Return a page of the selected changes."""
    _check(limit)
    transaction, place, id = _place(before)
    values = {"transaction": transaction, "place": place, "id": id, "limit": limit + 1}
    rows = _asked(connection, choice, _LIST, values)
    more = ".".join(map(str, rows[limit - 1][10:])) if len(rows) > limit else None
    told = _signed(connection, choice.tenant, {row[10] for row in rows[:limit]})
    return Audit(tuple(_audited(row, signed=row[10] in told) for row in rows[:limit]), more)


def counts(
    connection: Connection,
    choice: AuditFilter = EVERYTHING,
    *,
    by: Sequence[str],
    limit: int = LIMIT,
) -> list[AuditCount]:
    """Count the selected changes: newest first by hour or day, else the largest count first."""
    _check(limit)
    if unknown := [name for name in by if name not in BY]:
        raise HistoryUnavailable(f"changes cannot be counted by {unknown[0]!r}", fix=f"use {', '.join(BY)}")
    if not by or len(set(by)) != len(by):
        raise HistoryUnavailable("by names each thing once", fix=f"use {', '.join(BY)}")
    times = [f"{place} DESC" for place, name in enumerate(by, 1) if name in ("hour", "day")]
    order = ", ".join([*times, "changes DESC", *map(str, range(1, len(by) + 1))])
    statement = (
        f"SELECT {', '.join(BY[name] for name in by)}, count(*) AS changes, min(l.at), max(l.at) {_CHOSEN}"
        f" GROUP BY {', '.join(map(str, range(1, len(by) + 1)))} ORDER BY {order} LIMIT %(limit)s"
    )
    found = []
    for row in _asked(connection, choice, statement, {"limit": limit}):
        *values, number, first, last = row
        named = {name: _named(name, value) for name, value in zip(by, values, strict=True)}
        found.append(AuditCount(named, number, first.astimezone(UTC), last.astimezone(UTC)))
    return found


def _asked(connection: Connection, choice: AuditFilter, statement: str, more: dict[str, Any]) -> list[tuple[Any, ...]]:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise HistoryUnavailable(
            "the connection is inside a transaction", fix="commit first, or use a connection in autocommit mode"
        )
    for what, word in (("the user", choice.user), ("the trace", choice.trace)):
        check_storable(what, word)
    check_storable("the tenant", *(choice.tenant or ()))
    since, until = (None if at is None else aware(at) for at in (choice.since, choice.until))
    with typed_errors(), connection.transaction():
        rows = connection.cursor(row_factory=tuple_row)
        relation = None if choice.table is None else tracked.find(rows, choice.table)
        for pin in tracked.PINS:
            rows.execute(pin)
        versions = None
        if choice.table is not None:
            versions = list(tracked.load(rows, choice.table, relation).versions)
        rows.execute("SET TRANSACTION READ ONLY")
        values = {
            "user": choice.user,
            "trace": choice.trace,
            "versions": versions,
            "ops": [_LETTERS[op] for op in choice.ops if op in _LETTERS] or None,
            "since": since,
            "until": until,
            "first_day": "-infinity" if since is None or since.year < _YEARS[0] else str((since - _MARGIN).date()),
            "last_day": "infinity" if until is None or until.year > _YEARS[1] else str((until + _MARGIN).date()),
            **parameters(choice.tenant),
            **more,
        }
        return rows.execute(_ruled(statement, choice).encode(), values).fetchall()


def _ruled(statement: str, choice: AuditFilter) -> str:
    """Restrict the statement to what a tenant may see; each selected transaction is examined once."""
    if choice.tenant is None:
        return statement.format(owned="true", signed="true")
    if statement is _LIST and choice.user is None and choice.trace is None:
        return statement.format(owned=owned("l"), signed="true")
    chosen = _CHOSEN.format(owned=owned("l"), signed="true")
    told = f"SELECT t.id FROM (SELECT DISTINCT l.transaction_id AS id {chosen}) t WHERE {signed('t.id')}"
    named = statement.format(owned=owned("l"), signed="l.transaction_id IN (SELECT s.id FROM signed s)")
    return f"WITH signed AS MATERIALIZED ({told}) {named}"


def _signed(connection: Connection, tenant: Tenant | None, transactions: set[str]) -> set[str]:
    """Return the transactions whose actor may be shown."""
    if tenant is None or not transactions:
        return transactions
    with typed_errors(), connection.transaction():
        rows = connection.cursor(row_factory=tuple_row)
        found = rows.execute(SIGNED, {"transactions": list(transactions), **parameters(tenant)})
        return {row[0] for row in found}


def _audited(row: tuple[Any, ...], *, signed: bool) -> Audited:
    at, table, op, key, changed = row[:5]
    user, function, trace, session, application = row[5:10] if signed else (None,) * 5
    where = at.astimezone(UTC), table, OPS[op], key, tuple(changed)
    return Audited(*where, user, function, trace, session, application, row[10])


def _named(name: str, value: Any) -> str | datetime | None:
    if name == "op":
        return OPS[value].name
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _check(limit: int) -> None:
    if not 1 <= limit <= MOST:
        raise HistoryUnavailable(f"a page cannot have {limit} lines", fix=f"ask for 1 to {MOST}")


def _place(token: str | None) -> tuple[str | None, int | None, int | None]:
    if token is None:
        return None, None, None
    match = re.fullmatch(r"([0-9]{1,19})\.([0-9]{1,18})\.([0-9]{1,18})", token)
    if match is None:
        raise CursorInvalid(f"{token[:60]!r} is no place in an audit", fix="use the one that came with a page")
    return match[1], int(match[2]), int(match[3])
