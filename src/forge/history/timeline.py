"""Every change of one row, newest first.

    page = timeline(connection, "orders", 4711)
    for entry in page.entries:
        entry.change.at, entry.change.context.user_id, entry.diff
    older = timeline(connection, "orders", 4711, before=page.next)

Changes come in the order of the row's history, which is the reversed order of the reader, not of the clock. An update
of the key is logged as a delete and an insert; the two are one entry here, and the history continues with the old key.
Events of the table as a whole (a truncate, a change of definition, an unlogged change) are listed in between. A page
starts where the previous one ended, so a history of any length is read in pages of equal cost. A page ends early if it
would be larger than MOST_BYTES, but never before its first entry, so rows of any size are read in pages of equal cost.

Columns that are excluded or masked, or were when they were dropped, are not shown, even if the log has them.

A tenant sees changes of rows that were its own before and after, as if the log had nothing else: pages are filled with
these, and end with the last of them. An update of the key that moves a row to the tenant is an insert, one that moves
it away is a delete. The rule of `forge.changelog.tenancy` decides whether the actor is shown.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec
from psycopg import Cursor as Rows
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.string import ByteaBinaryLoader

from forge.change import NO_CONTEXT, UNAVAILABLE, Change, Op, Row
from forge.changelog.decode import LogDecoder
from forge.changelog.tenancy import SIGNED, Tenant, owned, parameters
from forge.errors import CursorInvalid, HistoryUnavailable
from forge.history import tracked
from forge.history.diff import ColumnDifference, differences, redefinition
from forge.history.tracked import TrackedTable
from forge.postgres.connection import Connection, typed_errors
from forge.wire import encode_row, timestamp

LIMIT: Final = 50
MOST: Final = 1000
MOST_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of the log's rows of one page."""
_FETCHED: Final = 10
"""Rows per fetch. The server unpacks all of them to see which fit."""
_LAST: Final = 2**63 - 1

_COLUMNS: Final = """
    l.id, coalesce(l.rank, l.id), l.transaction_id, l.at, l.version, l.op, l.before, l.after, l.hidden,
    l.user_id, l.function_name, l.trace_id, l.context, l.db_user, l.application_name, l.rank, l.row_id"""
_DECODED: Final = 15
_OF_ROW: Final = """
    FROM forge.forge_event_log l
    WHERE (l.row_id = %(row_id)s::text OR l.row_id IS NULL AND l.op IN ('T', 'S', 'X', 'R'))
      AND l.version = ANY (%(versions)s::int[])"""
_SHOWN: Final = f"(%(tenant_column)s::text IS NULL OR {owned('l')})"
_SIZE: Final = " + ".join(
    f"coalesce(octet_length(l.{name}::text), 0)::bigint"
    for name in ("before", "after", "context", "user_id", "function_name", "trace_id")
)
# A row that does not fit is a row of nulls; the last column is the total size so far. Nothing is sorted outside of the
# innermost query, so that only fetched rows are unpacked.
_PAGE: Final = f"""
    SELECT fits.* FROM (
        SELECT l.*, row_number() OVER so_far AS n, sum({_SIZE}) OVER so_far AS size
        FROM (SELECT l.*, coalesce(l.rank, l.id) AS place {_OF_ROW}
                AND (coalesce(l.rank, l.id), l.id) < (%(place)s::bigint, %(id)s::bigint) AND {_SHOWN}
              ORDER BY place DESC, l.id DESC LIMIT %(limit)s::bigint) l
        WINDOW so_far AS (ORDER BY l.place DESC, l.id DESC ROWS UNBOUNDED PRECEDING)) l
    LEFT JOIN LATERAL (SELECT {_COLUMNS}, l.size::bigint
                       WHERE l.size <= %(room)s::bigint OR l.n = 1 AND %(first)s::boolean) fits ON true
    ORDER BY l.place DESC, l.id DESC"""
_MARK: Final = f"SELECT count(*), max(l.id) {_OF_ROW}"
# A statement that changes keys logs all its deletes, then as many inserts in the same order, a microsecond later.
_HALVES: Final = """
    FROM forge.forge_event_log l
    WHERE l.transaction_id = %(transaction)s::text::xid8 AND l.version = %(version)s::int
      AND l.rank IS NOT DISTINCT FROM %(rank)s::bigint
      AND (l.op = 'D' AND l.at = %(deleted)s::timestamptz
           OR l.op = 'I' AND l.at = %(deleted)s::timestamptz + interval '1 microsecond')"""
_ANY_PARTNER: Final = f"SELECT EXISTS (SELECT {_HALVES} AND l.op::text <> %(op)s)"
_PARTNER: Final = f"""
    WITH half AS MATERIALIZED (SELECT l.id, l.op, row_number() OVER (PARTITION BY l.op ORDER BY l.id) AS n {_HALVES})
    SELECT {_COLUMNS} FROM forge.forge_event_log l
    WHERE l.transaction_id = %(transaction)s::text::xid8 AND l.id = (
        SELECT other.id FROM half own JOIN half other ON other.n = own.n AND other.op <> own.op
        WHERE own.id = %(id)s::bigint
          AND (SELECT count(*) FILTER (WHERE h.op = 'D') = count(*) FILTER (WHERE h.op = 'I') FROM half h))
      AND {_SHOWN}"""


class TimelineEntry(msgspec.Struct, frozen=True):
    """One change. `was` is the row's key before it, `became` the key after it, if the key changed."""

    change: Change
    diff: tuple[ColumnDifference, ...] = ()
    was: Row | None = None
    became: Row | None = None
    redefined: tuple[str, ...] = ()

    @property
    def op(self) -> str:
        """Return the kind of change in one word: KEY for an update of the key."""
        return "KEY" if self.was is not None or self.became is not None else self.change.op.name

    def wire(self) -> dict[str, Any]:
        """Return exact JSON: see forge.wire."""
        change = self.change
        found: dict[str, Any] = {
            "op": self.op,
            "at": timestamp(change.at),
            "key": encode_row(change.key),
            "change_id": change.id,
            "transaction": change.source.transaction,
            "diff": [difference.wire() for difference in self.diff],
            "context": {
                "user_id": change.context.user_id,
                "function_name": change.context.function_name,
                "trace_id": change.context.trace_id,
                "session_user": change.context.session_user,
                "application_name": change.context.application_name,
                "more": encode_row(change.context.more),
            },
        }
        for name, value in (("was", self.was), ("became", self.became)):
            if value is not None:
                found[name] = encode_row(value)
        if self.redefined:
            found["redefined"] = list(self.redefined)
        return found


class Timeline(msgspec.Struct, frozen=True):
    """A page of a row's history; `next` is the start of the following page, None if this is the last."""

    table: str
    key: Row
    entries: tuple[TimelineEntry, ...]
    next: str | None


class TimelinePosition(NamedTuple):
    """The start of a page: below this place of the log, with this key string."""

    place: int
    id: int
    row_id: str

    def token(self) -> str:
        """
        >>> TimelinePosition(8, 9, "é").token()
        'OC45LsOp'
        >>> TimelinePosition.parse('OC45LsOp')
        TimelinePosition(place=8, id=9, row_id='é')
        """
        return urlsafe_b64encode(f"{self.place}.{self.id}.{self.row_id}".encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, token: str) -> "TimelinePosition":
        try:
            text = urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
        except ValueError:
            text = ""
        match = re.fullmatch(r"([0-9]{1,18})\.([0-9]{1,18})\.(.*)", text, re.DOTALL)
        if match is None or "\0" in text:
            raise CursorInvalid(f"{token[:60]!r} is no place in a history", fix="use the one that came with a page")
        return cls(int(match[1]), int(match[2]), match[3])


def timeline(
    connection: Connection,
    table: str,
    key: object,
    *,
    limit: int = LIMIT,
    before: str | None = None,
    follow: bool = True,
    tenant: Tenant | None = None,
) -> Timeline:
    """Return a page of a row's history, as a tenant may see it; without `follow`, of its key only."""
    if not 1 <= limit <= MOST:
        raise HistoryUnavailable(f"a page cannot have {limit} entries", fix=f"ask for 1 to {MOST}")
    with _asked(connection, table, key) as asked:
        found, word = asked.table, asked.row_id
        walk = _Walk(connection, found, tenant)
        start = TimelinePosition(_LAST, _LAST, word) if before is None else TimelinePosition.parse(before)
        entries, following = walk.page(start, limit, follow=follow)
        entries = walk.signed(entries)
        typed = (entry.change.key for entry in entries if entry.change.key and entry.change.row_id == word)
        return Timeline(found.name, next(typed, asked.key), tuple(entries), following and following.token())


def mark(connection: Connection, table: str, key: object) -> Hashable:
    """Return a value that differs whenever a change was added to or removed from a key's history; reads no image."""
    with _asked(connection, table, key) as asked:
        versions = list(asked.table.versions)
        found = asked.rows.execute(_MARK, {"row_id": asked.row_id, "versions": versions}).fetchone()
        return asked.table.id, asked.row_id, tuple(versions), found


class _Asked(NamedTuple):
    """The requested row, and what is needed to read it."""

    rows: Rows[tuple[Any, ...]]
    table: TrackedTable
    key: Row
    row_id: str


@contextmanager
def _asked(connection: Connection, table: str, key: object) -> Iterator[_Asked]:
    """Read the log as of one instant or later within this block; nothing can be written."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise HistoryUnavailable(
            "the connection is inside a transaction", fix="commit first, or use a connection in autocommit mode"
        )
    with typed_errors(), connection.transaction():
        rows = connection.cursor(row_factory=tuple_row)
        relation = tracked.find(rows, table)
        for pin in tracked.PINS:
            rows.execute(pin)
        rows.execute("SET TRANSACTION READ ONLY")
        found = tracked.load(rows, table, relation)
        given = tracked.given_key(found, found.newest, key)
        yield _Asked(rows, found, given, tracked.row_id(rows, found, found.newest, given))


class _Walk:
    """Walks from each change to the older one."""

    def __init__(self, connection: Connection, table: TrackedTable, tenant: Tenant | None) -> None:
        self._table = table
        self._tenant = tenant
        self._connection = connection
        self._rows = connection.cursor(binary=True, row_factory=tuple_row)
        self._rows.adapters.register_loader("json", ByteaBinaryLoader)
        log = self._rows.execute("SELECT uuid::text FROM forge.log_identity ORDER BY id DESC LIMIT 1").fetchone()
        self._decoder = LogDecoder(log[0] if log else "")
        for version in table.versions.values():
            shape = [{"name": field.name, "type": field.type, "kind": field.kind} for field in version.fields]
            self._decoder.learn(version.id, version.schema, version.table, list(shape), list(version.key))

    def page(
        self, start: TimelinePosition, limit: int, *, follow: bool
    ) -> tuple[list[TimelineEntry], TimelinePosition | None]:
        """Return entries, and where to continue if there are more."""
        found: list[TimelineEntry] = []
        below = start
        for more in self._entries(start, limit + 1, follow=follow):
            if more is None or len(found) == limit:
                return found, below
            entry, below = more
            found.append(entry)
        return found, None

    def signed(self, entries: list[TimelineEntry]) -> list[TimelineEntry]:
        """Remove the actor from entries where the tenant may not know it."""
        if self._tenant is None:
            return entries
        transactions = list({entry.change.source.transaction for entry in entries})
        found = self._rows.execute(SIGNED, {"transactions": transactions, **parameters(self._tenant)})
        known = {row[0] for row in found}
        return [entry if entry.change.source.transaction in known else _unsigned(entry) for entry in entries]

    def _entries(
        self, start: TimelinePosition, most: int, *, follow: bool
    ) -> Iterator[tuple[TimelineEntry, TimelinePosition] | None]:
        """Yield each entry with the place below it; None for the first that would make all of them too large."""
        place: TimelinePosition | None = start
        room, first = MOST_BYTES, True
        while place is not None:
            word, after = place.row_id, place
            place, number, size = None, 0, 0
            for row in self._logged(after, most, room, first=first):
                if row[0] is None:
                    yield None
                    return
                number, size = number + 1, row[-1]
                below = TimelinePosition(row[1], row[0], word)
                op = self._change(row).op
                partner = self._partner(row) if follow and op in (Op.INSERT, Op.DELETE) else None
                if partner is not None and op is Op.INSERT:
                    place = TimelinePosition(partner[1], partner[0], partner[-1])
                    size += sum(len(image) for image in partner[6:8] if image is not None)
                    yield self._moved(partner, row), place
                    break
                yield self._entry(row, partner), below
            else:
                place = below if number == most else None
            room, first = room - size, False

    def _logged(self, below: TimelinePosition, most: int, room: int, *, first: bool) -> Iterator[tuple[Any, ...]]:
        """Yield the log's rows of a key below a place, newest first, held by the server and fetched as needed."""
        versions = [number for number, veiled in self._table.veiled.items() if not self._veils(veiled)]
        values = {**below._asdict(), "versions": versions, "limit": most, "room": room, **parameters(self._tenant)}
        with self._connection.cursor("forge_history", binary=True, row_factory=tuple_row) as rows:
            rows.adapters.register_loader("json", ByteaBinaryLoader)
            rows.itersize = _FETCHED
            rows.execute(_PAGE, {**values, "first": first})
            yield from rows

    def _veils(self, veiled: Collection[str]) -> bool:
        """Tell whether the tenant of rows is hidden, where that matters."""
        return self._tenant is not None and self._tenant.column in veiled

    def _partner(self, row: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the other half of an update of the key; None if it was no such update, or the half is ambiguous."""
        deleted = self._change(row).op is Op.DELETE
        values = {
            "id": row[0],
            "transaction": str(int.from_bytes(row[2], "big")),
            "version": row[4],
            "rank": row[15],
            "op": "D" if deleted else "I",
            "deleted": row[3] if deleted else row[3] - timedelta(microseconds=1),
            **parameters(self._tenant),
        }
        if self._rows.execute(_ANY_PARTNER, values).fetchone() != (True,):
            return None
        return self._rows.execute(_PARTNER, values).fetchone()

    def _moved(self, old: tuple[Any, ...], new: tuple[Any, ...]) -> TimelineEntry:
        before, after = self._change(old), self._change(new)
        return TimelineEntry(after, differences(before.before, after.after), was=before.key)

    def _entry(self, row: tuple[Any, ...], partner: tuple[Any, ...] | None) -> TimelineEntry:
        change = self._change(row)
        if change.op is Op.SCHEMA:
            return TimelineEntry(change, redefined=self._redefined(change, row[4]))
        became = None if partner is None else self._change(partner).key
        return TimelineEntry(change, differences(change.before, change.after, change.hidden), became=became)

    def _redefined(self, change: Change, number: int) -> tuple[str, ...]:
        if change.context.more:
            return tuple(name for name, value in change.context.more.items() if value is True)
        older = [other for other in self._table.versions if other < number]
        return redefinition(self._table.versions[max(older)] if older else None, self._table.versions[number])

    def _change(self, row: tuple[Any, ...]) -> Change:
        change = self._decoder.changes([row[:_DECODED]])[0]
        veiled = self._table.veiled[row[4]]
        if not veiled:
            return change
        before, after = (_without(image, veiled) for image in (change.before, change.after))
        return msgspec.structs.replace(change, before=before, after=after)


def _unsigned(entry: TimelineEntry) -> TimelineEntry:
    return msgspec.structs.replace(entry, change=msgspec.structs.replace(entry.change, context=NO_CONTEXT))


def _without(image: Row | None, veiled: Collection[str]) -> Row | None:
    if image is None:
        return None
    return {name: UNAVAILABLE if name in veiled else value for name, value in image.items()}
