"""Apply an undo to the database: lock, compare and write, in one transaction.

Invariants:
- Every row that is written was first locked and then compared, so no other transaction comes in between.
- Every statement must write exactly the rows that it was built for.
- Modifications by triggers of users while a row is written are kept; but if they change a row again after it was
  written, so that it is not what it should be, the whole undo is abandoned.
- No row that the plan does not name is deleted or set to null by a referential action.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from forge.errors import RevertRefused
from forge.history.revert.chosen import Image, parsed
from forge.history.revert.collapse import WHOLE, Undo
from forge.history.revert.tables import ROW, ForeignKey, RevertTable, order
from forge.postgres import session
from forge.postgres.connection import Connection

REDACTED: Final = b'{"$redacted":true}'
Settings = Sequence[tuple[str, str]]
_PHASES: Final = ("insert", "update", "delete")
_ORDERS: Final = (
    (_PHASES, False),
    (("delete", "insert", "update"), False),
    (("delete", "update", "insert"), True),
    (_PHASES, True),
)
"""Attempts in order: the order of writes, and whether all are one statement.

The first is what a person would do. One statement is for circular dependencies, because foreign keys are checked at its
end; and a unique value may have to be removed before it is written again.
"""
_MISFITS: Final = (psycopg.errors.IntegrityError, psycopg.errors.GeneratedAlways)
"""Errors that the database raises in one order of writes and may not raise in another."""


Statement = tuple[sql.Composed, int]
"""A statement, and the number of rows it must write."""
Adjusted = tuple[Undo, tuple[str, ...]]


class Conflict(msgspec.Struct, frozen=True):
    """The reason why one row, or one table if `key` is None, cannot be restored."""

    table: str
    key: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.table} {self.key}: {self.reason}" if self.key is not None else f"{self.table}: {self.reason}"


def pinned(connection: Connection) -> Settings:
    """Print and read values as the log does until the transaction ends; return the old settings, for triggers."""
    cursor = connection.cursor(row_factory=tuple_row)
    names = [name for name in session.TEXTS if name not in session.INPUT]
    before = cursor.execute("SELECT name, current_setting(name) FROM unnest(%s::text[]) name", (names,)).fetchall()
    put(cursor, session.TEXTS.items())
    return before


def put(cursor: psycopg.Cursor[Any], settings: Iterable[tuple[str, str]]) -> None:
    """Apply these settings to the transaction."""
    names, values = zip(*settings, strict=True)
    cursor.execute(
        "SELECT set_config(s.name, s.value, true) FROM unnest(%s::text[], %s::text[]) s (name, value)",
        (list(names), list(values)),
    )


class RevertWriter:
    """A connection inside a transaction, and the tables to write."""

    def __init__(
        self, connection: Connection, tables: Mapping[int, RevertTable], keys: Sequence[ForeignKey], settings: Settings
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._cursor = connection.cursor(row_factory=tuple_row)
        self._tables = tables
        self._keys = keys
        self._now: dict[tuple[int, str | None], Image] = {}

    def check(self, undos: Sequence[Undo], *, lock: bool) -> list[Conflict]:
        """Return every reason why these cannot be undone; with `lock`, only constraints can add reasons later."""
        found: list[Conflict] = []
        groups = _by_table(undos)
        for tracked, group in groups.items():
            if self._tables[tracked].key:
                self._now.update(self._rows(tracked, group, lock=lock))
        leaving = {(undo.tracked, undo.now) for undo in undos if undo.kind == "delete" or undo.now != undo.target}
        for tracked, group in groups.items():
            table = self._tables[tracked]
            for undo in group:
                key = undo.now if undo.kind != "insert" else undo.target
                found += (Conflict(table.title, key, reason) for reason in self._reasons(table, undo, leaving))
            found += self._later(table, group)
        if not found:
            found = list(self._references(groups))
        return found

    def _reasons(self, table: RevertTable, undo: Undo, leaving: set[tuple[int, str | None]]) -> Iterator[str]:
        if not table.key:
            yield "the table has no primary key"
            return
        version = table.versions[undo.last.version]
        if undo.foreign:
            what = "it was inserted or deleted" if WHOLE in undo.foreign else f"{_list(undo.foreign)} changed"
            yield f"{what} by others in between"
        if undo.hidden:
            yield f"{_list(undo.hidden)} changed, and the log has no values of it"
        if unknown := [name for name in undo.values if name not in table.columns]:
            yield f"{_list(unknown)} is no longer a column"
        if odd := [name for name in version.retyped if name in undo.values]:
            yield f"{_list(odd)} has another type now"
        if (undo.kind == "insert" or undo.reborn) and version.unseen:
            yield f"the log has no values of {_list(version.unseen)}"
        if redacted := [name for name, value in undo.values.items() if value == REDACTED]:
            yield f"{_list(redacted)} was redacted"
        if undo.kind == "insert" and table.inherited:
            yield "it was in a table that inherits, nobody knows in which"
        now = self._now.get((undo.tracked, undo.now)) if undo.now is not None else None
        if undo.kind != "insert":
            if now is None:
                yield "it is no longer there"
            else:
                written = undo.expected if undo.kind == "delete" else undo.values
                others = [
                    name for name in written
                    if (column := table.columns.get(name)) and not column.generated
                    and name in now and name in undo.expected and now[name] != undo.expected[name]
                    and undo.expected[name] != REDACTED
                ]  # fmt: skip
                if others:
                    yield f"{_list(others)} changed since"
        taken = (undo.tracked, undo.target)
        if undo.target is not None and undo.target != undo.now and taken in self._now and taken not in leaving:
            yield "a row with that key is there" if undo.kind == "insert" else f"a row {undo.target} is there"

    def _later(self, table: RevertTable, undos: Sequence[Undo]) -> list[Conflict]:
        """Return rows to delete whose hidden columns another writer changed since: no image shows it."""
        watched = {undo.now: undo for undo in undos if undo.kind == "delete"}
        if not watched or not any(column.hidden for column in table.columns.values()):
            return []
        rows = self._cursor.execute(
            "SELECT l.row_id, coalesce(l.rank, l.id), l.id, l.hidden FROM forge.forge_event_log l"
            " WHERE l.row_id = ANY (%s) AND l.version = ANY (%s) AND l.op = 'U' AND l.hidden IS NOT NULL",
            (list(watched), list(table.versions)),
        )
        return [
            Conflict(table.title, key, f"{_list(hidden)} changed since")
            for key, place, id, hidden in rows
            if (place, id) > (watched[key].last.place, watched[key].last.id)
        ]

    def _references(self, groups: Mapping[int, Sequence[Undo]]) -> Iterator[Conflict]:
        """Yield rows that refer to rows to delete, and would be deleted or set to null with them, or block them."""
        by_relation = {table.relation: table for table in self._tables.values()}
        for key in self._keys:
            table = by_relation[key.parent]
            going = [
                undo for undo in groups.get(table.tracked, ())
                if undo.kind == "delete"
                or (key.on_update in "nd" and undo.kind == "update" and undo.values.keys() & set(key.referenced))
            ]  # fmt: skip
            if not going:
                continue
            child = by_relation.get(key.child)
            ours = [
                self._key_image(child, undo.expected)
                for undo in (groups.get(child.tracked, ()) if child else ())
                if undo.kind == "delete" or (undo.kind == "update" and undo.values.keys() & set(key.columns))
            ]
            refers = sql.SQL(" AND ").join(
                sql.SQL("forge_child.{} = {}").format(sql.Identifier(one), sql.Identifier(ROW, other))
                for one, other in zip(key.columns, key.referenced, strict=True)
            )
            others: sql.Composable = sql.SQL("true")
            if child is not None and child.key:
                others = sql.SQL("NOT EXISTS (SELECT FROM unnest({}::json[]) o (image) WHERE {})").format(
                    sql.Literal(ours), child.same_key("o.image", "forge_child")
                )
            statement = sql.SQL(
                "SELECT g.n, count(*) FROM unnest({}::json[]) WITH ORDINALITY g (image, n) JOIN {} {} ON {}"
                " JOIN {} forge_child ON {} WHERE {} GROUP BY g.n ORDER BY g.n"
            ).format(
                sql.Literal([self._key_image(table, undo.expected) for undo in going]),
                table.identifier,
                sql.Identifier(ROW),
                table.same_key("g.image"),
                sql.SQL(key.child_name),
                refers,
                others,
            )
            for number, count in self._cursor.execute(statement).fetchall():
                yield Conflict(
                    table.title,
                    going[number - 1].now,
                    f"{count} {'row' if count == 1 else 'rows'} of {key.child_name} refer to it",
                )

    def write(self, undos: Sequence[Undo]) -> list[Adjusted]:
        """Write all of it; return the columns that triggers modified.

        Raise RevertRefused if the database accepts it in no order.
        """
        first: psycopg.Error | RevertRefused | None = None
        for phases, at_once in _ORDERS:
            try:
                with self._connection.transaction():
                    return self._attempt(undos, phases, at_once=at_once)
            except (*_MISFITS, _Miscounted) as error:
                first = first or error
        assert first is not None
        reason = first.diag.message_primary if isinstance(first, psycopg.Error) else str(first)
        raise RevertRefused(
            f"the database refuses it: {reason}",
            fix="look at the plan with --dry-run; choose the changes together with those that came with them",
            conflicts=[str(reason)],
        ) from first

    def _attempt(self, undos: Sequence[Undo], phases: Sequence[str], *, at_once: bool) -> list[Adjusted]:
        self._cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        groups = _by_table(undos)
        by_relation = {self._tables[tracked].relation: tracked for tracked in groups}
        circles = order(list(by_relation), self._keys)
        written: dict[tuple[int, str | None], Image] = {}
        steps: list[Statement] = []
        for phase in phases:
            for circle in reversed(circles) if phase == "delete" else circles:
                for relation in circle:
                    chosen = [undo for undo in groups[by_relation[relation]] if undo.kind == phase]
                    steps += self._statements(phase, self._tables[by_relation[relation]], chosen)
                if not at_once:
                    self._run(steps, together=phase != "update")
                    steps = []
                    for relation in circle if phase != "delete" else ():
                        chosen = [undo for undo in groups[by_relation[relation]] if undo.kind == phase]
                        written.update(self._rows(by_relation[relation], chosen, lock=False))
        if at_once:
            self._run(steps, together=True)
            for tracked, group in groups.items():
                written.update(self._rows(tracked, group, lock=False))
        with self._as_the_session():
            self._cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        return self._settled(groups, written)

    def _statements(self, phase: str, table: RevertTable, undos: Sequence[Undo]) -> Iterator[Statement]:
        if phase == "delete" and undos:
            keys = [self._key_image(table, undo.expected) for undo in undos]
            statement = sql.SQL("DELETE FROM {} {} USING unnest({}::json[]) s (key) WHERE {}").format(
                table.identifier, sql.Identifier(ROW), sql.Literal(keys), table.same_key("s.key")
            )
            yield statement, len(undos)
        for wave in _waves(undos) if phase == "update" else [undos] if phase == "insert" else ():
            for names, chosen in _by_columns(table, wave):
                images = sql.Literal([_encoded(undo.values) for undo in chosen])
                values = [table.value(name, "s.image") for name in names]
                columns = [sql.Identifier(name) for name in names]
                if phase == "insert":
                    statement = sql.SQL(
                        "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM unnest({}::json[]) s (image)"
                    ).format(table.identifier, sql.SQL(", ").join(columns), sql.SQL(", ").join(values), images)
                else:
                    pairs = [sql.SQL("{} = {}").format(*pair) for pair in zip(columns, values, strict=True)]
                    statement = sql.SQL(
                        "UPDATE {} {} SET {} FROM unnest({}::json[], {}::json[]) s (key, image) WHERE {}"
                    ).format(
                        table.identifier,
                        sql.Identifier(ROW),
                        sql.SQL(", ").join(pairs),
                        sql.Literal([self._key_image(table, undo.expected) for undo in chosen]),
                        images,
                        table.same_key("s.key"),
                    )
                yield statement, len(chosen)

    def _run(self, steps: Sequence[Statement], *, together: bool) -> None:
        """Execute them, one after the other or as one statement; each must write its number of rows."""
        if not together or len(steps) < 2:
            for statement, wanted in steps:
                with self._as_the_session():
                    count = self._cursor.execute(statement).rowcount
                _check_count(count, wanted)
            return
        parts = [sql.SQL(f"w{n} AS ({{}} RETURNING 1)").format(step) for n, (step, _) in enumerate(steps)]
        counts = sql.SQL(", ").join(sql.SQL(f"(SELECT count(*) FROM w{n})") for n in range(len(steps)))
        with self._as_the_session():
            statement = sql.SQL("WITH {} SELECT {}").format(sql.SQL(", ").join(parts), counts)
            row = self._cursor.execute(statement).fetchone()
        assert row is not None
        for count, (_, wanted) in zip(row, steps, strict=True):
            _check_count(count, wanted)

    def _settled(
        self, groups: Mapping[int, Sequence[Undo]], written: Mapping[tuple[int, str | None], Image]
    ) -> list[Adjusted]:
        """Check every row again, after all triggers: it must be as it was written, or as it should be."""
        adjusted: list[Adjusted] = []
        for tracked, group in groups.items():
            table = self._tables[tracked]
            now = self._rows(tracked, group, lock=False)
            kept = {undo.target for undo in group if undo.target is not None}
            for undo in group:
                if undo.kind == "delete":
                    if undo.now not in kept and (tracked, undo.now) in now:
                        raise _retouched(table, undo.now)
                    continue
                place = (tracked, undo.target)
                final = now.get(place)
                differing = tuple(
                    name for name in undo.values
                    if not table.columns[name].generated and (final is None or final.get(name) != undo.values[name])
                )  # fmt: skip
                if differing and (
                    final is None or any(final.get(n) != written.get(place, {}).get(n) for n in differing)
                ):
                    raise _retouched(table, undo.target, differing)
                if differing:
                    adjusted.append((undo, differing))
        return adjusted

    def _rows(self, tracked: int, undos: Iterable[Undo], *, lock: bool) -> dict[tuple[int, str | None], Image]:
        """Return the current rows of these undos, by their key as one string."""
        table = self._tables[tracked]
        keys = {}
        for undo in undos:
            if undo.now is not None:
                keys[undo.now] = self._key_image(table, undo.expected)
            if undo.target is not None:
                keys[undo.target] = self._key_image(table, {**undo.expected, **undo.values})
        statement = sql.SQL(
            "SELECT {row_id}, row_to_json({image})::text FROM unnest({keys}::json[]) s (key)"
            " JOIN {table} {row} ON {same}{source}{lock}"
        ).format(
            keys=sql.Literal(list(keys.values())),
            row_id=sql.SQL(table.row_id),
            image=sql.Identifier(f"{ROW}_image"),
            table=table.identifier,
            row=sql.Identifier(ROW),
            same=table.same_key("s.key"),
            source=sql.SQL(table.image),
            lock=sql.SQL(" ORDER BY 1 FOR UPDATE OF {}").format(sql.Identifier(ROW)) if lock else sql.SQL(""),
        )
        rows = self._cursor.execute(statement).fetchall()
        return {(tracked, row_id): parsed(image) for row_id, image in rows if row_id in keys}

    @contextmanager
    def _as_the_session(self) -> Iterator[None]:
        """Restore the session's settings for triggers of users; settings for reading the log's texts stay."""
        put(self._cursor, self._settings)
        yield
        put(self._cursor, [(name, session.TEXTS[name]) for name, _ in self._settings])

    def _key_image(self, table: RevertTable | None, image: Image) -> str:
        assert table is not None
        return _encoded({name: image[name] for name in table.key})


class _Miscounted(RevertRefused):
    """A statement wrote other rows than it was built for."""


def _check_count(count: int, wanted: int) -> None:
    if count != wanted:
        raise _Miscounted(
            f"{count} rows were written where {wanted} should have been", fix="see the triggers of the tables"
        )


def _retouched(table: RevertTable, key: str | None, columns: Sequence[str] = ()) -> RevertRefused:
    what = f"{_list(columns)} of it" if columns else "it"
    conflict = Conflict(table.title, key, f"a trigger or a foreign key changed {what} once more")
    return RevertRefused(
        str(conflict),
        fix="undo it by hand, or leave out the table that triggers keep, with --table",
        conflicts=[str(conflict)],
    )


def _by_table(undos: Iterable[Undo]) -> dict[int, list[Undo]]:
    groups: dict[int, list[Undo]] = defaultdict(list)
    for undo in undos:
        groups[undo.tracked].append(undo)
    return dict(groups)


def _by_columns(table: RevertTable, undos: Iterable[Undo]) -> Iterator[tuple[tuple[str, ...], list[Undo]]]:
    """Group undos that write the same columns; generated columns are never written."""
    groups: dict[tuple[str, ...], list[Undo]] = defaultdict(list)
    for undo in undos:
        names = tuple(name for name in undo.values if not table.columns[name].generated)
        groups[names].append(undo)
    yield from ((names, group) for names, group in groups.items() if names)


def _waves(undos: Sequence[Undo]) -> Iterator[list[Undo]]:
    """Order updates so that no row takes a key that another still has; circular ones come last, together."""
    waiting = [undo for undo in undos if undo.now != undo.target]
    if still := [undo for undo in undos if undo.now == undo.target]:
        yield still
    while waiting:
        held = {undo.now for undo in waiting}
        free = [undo for undo in waiting if undo.target not in held]
        yield free or waiting
        waiting = [undo for undo in waiting if undo.target in held] if free else []


def _encoded(image: Image) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value.decode()}" for name, value in image.items()) + "}"


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
