"""Remove values from the log, for the right to be forgotten.

    redact(connection, "customers", 7, ["email", "phone"], reason="request 4711", by="ada")

In all retained changes of the row the values of these columns are overwritten, before and after; also under the keys
that the row had before its key was changed, and after. Readers of the log find UNAVAILABLE there, never a null. A
*tombstone* for each key records who did it, when, why and which columns: it is a row of the log, is delivered as a
`redact` Change in its place in the order, and consumers that keep copies obey it. All of it is one transaction.

The row itself is not changed: update or delete it first, because that change too is logged with the old values.
`Redacted.current` tells whether it still has values there.

Under the given key, every lifetime of the row counts, because the key identifies the person; under its other keys, only
the time in which it was this row. Renamed columns are found under their old names.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import Cursor as Rows
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from forge.errors import RedactError
from forge.history import tracked
from forge.history.definitions import DefinitionVersion
from forge.history.revert.chosen import Logged
from forge.history.revert.collapse import moves
from forge.history.tracked import TrackedTable
from forge.postgres.connection import Connection, typed_errors
from forge.postgres.names import escaped
from forge.postgres.text import check_storable
from forge.values import REDACTED, parts

FUNCTION = "forge.redact"
Position = tuple[int, int]


class Span(msgspec.Struct, frozen=True):
    """A key under which the log has the row, and its first and last positions, both inclusive, None for open."""

    row_id: str
    since: Position | None = None
    until: Position | None = None

    def covers(self, place: Position) -> bool:
        return (self.since is None or self.since <= place) and (self.until is None or place <= self.until)


class Redacted(msgspec.Struct, frozen=True):
    """The values removed, or to be removed in a dry run. In a dry run `transaction` is None and `tombstones` is empty.

    `columns` has all names that the columns had. `current` has those for which the row in the table still has values.
    """

    table: str
    row_id: str
    columns: Sequence[str]
    changes: int
    keys: Sequence[str]
    current: Sequence[str]
    transaction: str | None
    tombstones: Sequence[int]


def redact(
    connection: Connection,
    table: str,
    key: object,
    columns: Sequence[str],
    *,
    reason: str | None = None,
    by: str | None = None,
    dry_run: bool = False,
) -> Redacted:
    """Remove the values of these columns from the log of one row. Only the role that owns the log may do that."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise RedactError(
            "the connection is inside a transaction", fix="commit first, or use a connection in autocommit mode"
        )
    for name, value in (("reason", reason), ("by", by)):
        check_storable(name, value, error=RedactError)
    check_storable("the name of a column", *columns, error=RedactError)
    with typed_errors():
        with connection.transaction():
            connection.execute("SELECT forge.current_identity()")
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            rows = connection.cursor(row_factory=tuple_row)
            _check_owner(rows)
            if not dry_run:
                # no row may be sealed while values are removed from it
                rows.execute("LOCK TABLE forge.log_seal IN SHARE ROW EXCLUSIVE MODE")
            found = _Found(rows, table, key, columns)
            return found.count() if dry_run else found.take_out(reason, by)


def _check_owner(rows: Rows[Any]) -> None:
    owner = rows.execute(
        "SELECT pg_get_userbyid(c.relowner), pg_has_role(c.relowner, 'USAGE') FROM pg_class c"
        " WHERE c.oid = 'forge.forge_event_log'::regclass"
    ).fetchone()
    assert owner is not None
    if not owner[1]:
        raise RedactError(f"the log belongs to {owner[0]}", fix=f"redact as {owner[0]} or a superuser")


class _Event(msgspec.Struct, frozen=True):
    id: int
    day: str
    transaction: str
    version: int
    span: Span
    names: tuple[str, ...]


class _Found:
    """The row in the log, and the values to remove from it."""

    def __init__(self, rows: Rows[Any], table: str, key: object, columns: Sequence[str]) -> None:
        relation = tracked.find(rows, table)
        for pin in tracked.PINS:
            rows.execute(pin)
        self._rows = rows
        self._table: TrackedTable = tracked.load(rows, table, relation)
        self._names = {id: tuple(_names(self._table, version, columns)) for id, version in self._table.versions.items()}
        _check_columns(self._table, columns, self._names)
        newest = self._table.newest
        self._key = tracked.given_key(self._table, newest, key)
        self._word = tracked.row_id(rows, self._table, newest, self._key)
        self._columns = sorted({name for names in self._names.values() for name in names})
        self._asked = columns
        self._spans = list(_spans(rows, list(self._table.versions), self._word))
        self._events = list(self._read())

    def count(self) -> Redacted:
        return self._redacted(len(self._events), None, [])

    def take_out(self, reason: str | None, by: str | None) -> Redacted:
        self._rows.execute("SELECT public.forge_context(coalesce(%s, session_user::text), %s)", (by, FUNCTION))
        tombstones = {span: self._tombstone(span, reason) for span in self._spans}
        done = 0
        for event in self._events:
            try:
                found = self._rows.execute(
                    "SELECT forge.redact_event(%s, %s::text::date, %s::text::xid8, %s, %s)",
                    (event.id, event.day, event.transaction, list(event.names), tombstones[event.span]),
                ).fetchone()
            except psycopg.errors.ObjectNotInPrerequisiteState as error:
                part = f"forge.forge_event_log_{event.day.replace('-', '')}"
                raise RedactError(
                    f"{part} is published for updates and has no replica identity",
                    fix=f"ALTER TABLE {part} REPLICA IDENTITY FULL, when few write",
                ) from error
            done += found == (True,)
        row = self._rows.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        return self._redacted(done, row[0], list(tombstones.values()))

    def _redacted(self, changes: int, transaction: str | None, tombstones: Sequence[int]) -> Redacted:
        keys = [span.row_id for span in self._spans]
        return Redacted(
            self._table.name, self._word, self._columns, changes, keys, self._current(), transaction, tombstones
        )

    def _read(self) -> Iterator[_Event]:
        """Yield the row's changes that have values to remove."""
        for span in self._spans:
            rows = self._rows.execute(
                "SELECT l.id, l.day::text, l.transaction_id::text, l.version, coalesce(l.rank, l.id)"
                " FROM forge.forge_event_log l WHERE l.row_id = %s AND l.version = ANY (%s) AND l.op IN ('I', 'U', 'D')"
                " ORDER BY 5, 1",
                (span.row_id, list(self._table.versions)),
            ).fetchall()
            for id, day, transaction, version, place in rows:
                names = self._names[version]
                if names and span.covers((place, id)):
                    yield _Event(id, day, transaction, version, span, names)

    def _tombstone(self, span: Span, reason: str | None) -> int:
        events = [event for event in self._events if event.span == span]
        note = {
            "columns": self._columns,
            "reason": reason,
            "changes": len(events),
            "since": span.since and "{}.{}".format(*span.since),
            "until": span.until and "{}.{}".format(*span.until),
        }
        row = self._rows.execute(
            "SELECT forge.log_redaction(%s, %s, %s::json, %s, %s::json)",
            (
                self._table.newest.id,
                span.row_id,
                self._key_image(span, events),
                self._columns,
                json.dumps(note),
            ),
        ).fetchone()
        assert row is not None
        return int(row[0])

    def _key_image(self, span: Span, events: Sequence[_Event]) -> str:
        """Return the key as an image of the newest version: from a change, or as it was given."""
        newest = self._table.newest
        if not events:
            typed, values = tracked.key_values(self._table, self._key)
            fields = ", ".join(
                f"{value} AS {tracked.named(name)}" for name, value in zip(newest.key, typed, strict=True)
            )
            row = self._rows.execute(
                f"SELECT row_to_json(k)::text FROM (SELECT {fields}) k".encode(), values
            ).fetchone()
            assert row is not None
            return str(row[0])
        last = events[-1]
        row = self._rows.execute(
            "SELECT coalesce(l.after, l.before)::text FROM forge.forge_event_log l"
            " WHERE l.day = %s::text::date AND l.transaction_id = %s::text::xid8 AND l.id = %s",
            (last.day, last.transaction, last.id),
        ).fetchone()
        assert row is not None
        image = parts(row[0])
        numbers = {field.attnum: field.name for field in self._table.versions[last.version].fields}
        then = {name: numbers.get(_attnum(newest, name), name) for name in newest.key}
        return msgspec.json.encode({name: image[then[name]] for name in newest.key}).decode()

    def _current(self) -> list[str]:
        """Return the columns for which the row in the table has a value."""
        now = {field.name for field in self._table.newest.fields}
        names = [name for name in self._asked if name in now]
        if self._table.relation is None or not names:
            return []
        typed, values = tracked.key_values(self._table, self._key)
        same = " AND ".join(
            f"forge_now.{tracked.named(name)} = {value}"
            for name, value in zip(self._table.newest.key, typed, strict=True)
        )
        there = ", ".join(f"num_nulls(forge_now.{tracked.named(name)}) = 0" for name in names)
        schema_table = self._rows.execute(
            "SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
            (self._table.relation,),
        ).fetchone()
        assert schema_table is not None
        found = self._rows.execute(
            f"SELECT {there} FROM {escaped(schema_table[0])} forge_now WHERE {same}".encode(), values
        ).fetchone()
        return [name for name, has in zip(names, found or (), strict=False) if has]


def _attnum(version: DefinitionVersion, name: str) -> int:
    return next(field.attnum for field in version.fields if field.name == name)


def _names(table: TrackedTable, version: DefinitionVersion, columns: Iterable[str]) -> Iterator[str]:
    """Yield a version's names of these columns: by number if it is the same relation, else by name."""
    now = {field.name: field.attnum for field in table.newest.fields}
    for name in columns:
        for field in version.fields:
            same = version.relation == table.newest.relation and now.get(name) == field.attnum
            if same or (field.name == name and not (version.relation == table.newest.relation and name in now)):
                yield field.name


def _check_columns(table: TrackedTable, columns: Sequence[str], names: Mapping[int, Sequence[str]]) -> None:
    if not columns:
        raise RedactError("no column is named", fix="name at least one, e.g. --columns email,phone")
    known = {field.name for version in table.versions.values() for field in version.fields}
    if unknown := [name for name in columns if name not in known]:
        raise RedactError(f"{table.asked} has no column {', '.join(unknown)}", fix=f"it has {', '.join(sorted(known))}")
    keys = {name for version in table.versions.values() for name in version.key}
    if named := [name for found in names.values() for name in found if name in keys]:
        raise RedactError(
            f"{named[0]} is part of the key of {table.asked}, by which consumers know what to forget",
            fix="keep people's data out of keys; change the key, then redact the columns",
        )
    if REDACTED in known:
        raise RedactError(f"{table.asked} has a column {REDACTED}", fix=f"ALTER TABLE {table.name} RENAME …")


def _spans(rows: Rows[Any], versions: list[int], word: str) -> Iterator[Span]:
    """Yield the keys that the row has had: the given one for all times, others for the time they were its own."""
    given = Span(word)
    yield given
    seen = {given}
    waiting = [given]
    while waiting:
        span = waiting.pop()
        for found in _neighbours(rows, versions, span):
            if found not in seen and found.row_id != word:
                seen.add(found)
                waiting.append(found)
                yield found


def _neighbours(rows: Rows[Any], versions: list[int], span: Span) -> Iterator[Span]:
    """Yield the keys before and after each change of the row's key."""
    changes = _keyed(rows, versions, "l.row_id = %(row_id)s", {"row_id": span.row_id})
    own = [change for change in changes if span.covers((change.place, change.id))]
    transactions = sorted({str(change.transaction) for change in own})
    others = _keyed(
        rows, versions, "l.transaction_id = ANY (%(transactions)s::text[]::xid8[])", {"transactions": transactions}
    )
    pairs, by_id = moves(others), {change.id: change for change in others}
    for change in own:
        other = by_id.get(pairs.get(change.id, -1))
        if other is None or other.row_id is None:
            continue
        lives = _keyed(rows, versions, "l.row_id = %(row_id)s", {"row_id": other.row_id})
        place = (other.place, other.id)
        if other.op == "D":
            before = [(one.place, one.id) for one in lives if one.op == "I" and (one.place, one.id) < place]
            yield Span(other.row_id, max(before, default=None), place)
        else:
            after = [(one.place, one.id) for one in lives if one.op == "D" and (one.place, one.id) > place]
            yield Span(other.row_id, place, min(after, default=None))


def _keyed(rows: Rows[Any], versions: list[int], which: str, values: Mapping[str, Any]) -> list[Logged]:
    """Return inserts and deletes, without their images, in order."""
    found = rows.execute(
        "SELECT v.tracked_table, l.version, l.id, coalesce(l.rank, l.id), l.transaction_id::text::bigint, l.at,"
        " l.op::text, l.row_id FROM forge.forge_event_log l JOIN forge.table_version v ON v.id = l.version"
        f" WHERE {which} AND l.version = ANY (%(versions)s) AND l.op IN ('I', 'D')"
        " ORDER BY coalesce(l.rank, l.id), l.id".encode(),
        {**values, "versions": versions},
    ).fetchall()
    return [
        Logged(number, version, id, place, transaction, at, op, row_id, None, None, ())
        for number, version, id, place, transaction, at, op, row_id in found
    ]
