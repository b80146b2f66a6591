"""One table in a recorded snapshot, row by row, computed by the server and streamed.

Rows are images in the form of the definition that the table had then: JSON objects without the values that the log
cannot show.

For a table with a key: backwards, the first change of a row since the snapshot shows its state then; an unchanged row
is the current one. Behind a barrier (a truncate, a rewrite, a time without tracking) current rows say nothing, and a
row not changed up to the barrier has the state after its last change up to the snapshot. Values of columns that were
dropped or retyped since come from there, too.

Without a key, rows are counted: the current rows, minus added rows, plus removed rows; or, behind a barrier, added
minus removed rows since the table was empty.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import Any, Final

import msgspec
from psycopg.rows import tuple_row

from forge.change import UNAVAILABLE
from forge.changelog.rewind import CurrentTable, rewind_query
from forge.cursor import Snapshot
from forge.errors import HistoryUnavailable
from forge.history import tracked
from forge.history.definitions import (
    UNSEEN,
    DefinitionVersion,
    EventEffect,
    RewindPlan,
    TableEvent,
    VersionColumn,
    effects,
    plan,
)
from forge.history.instants import COUNTED, Answered, Gap, oldest_fix
from forge.history.tracked import TrackedTable, named
from forge.postgres.connection import Connection
from forge.postgres.names import escaped
from forge.postgres.queries import filled, fragment, query_file
from forge.values import REDACTED, Column, parts

_query: Final = query_file("forge.history", "past.sql")

PAGE: Final = 500

_MARK: Final = f'"{REDACTED}"'.encode()


class Past:
    """A tracked table in a recorded snapshot. Usable only in the transaction that created it."""

    def __init__(self, connection: Connection, table: TrackedTable, answered: Answered, first_id: int) -> None:
        self.name = table.name
        self.at = answered.at
        self.answered = answered
        self._connection = connection
        self._rows = connection.cursor(row_factory=tuple_row)
        self._table = table
        self._asked = answered.asked
        self._first_id = first_id
        self._trimmed_id = self._value("SELECT coalesce(max(last_id), 0) FROM forge.trimmed")
        if not table.settled:
            raise self._unknown("its definition has just changed", None)
        self._events = tracked.events(self._rows, table, first_id, str(answered.snapshot))
        self._effects = effects(self._events, table.versions, sees_ddl=table.sees_ddl)
        self._mind_restart(answered.at)
        found = plan(self._events, self._effects, table.versions, self._trimmed_id)
        if found is None:
            raise self._unknown(f"it is tracked since {table.enabled_at.isoformat()}", self._oldest())
        self._plan: RewindPlan = found
        self.version: DefinitionVersion = found.target
        self._values = {
            **answered.snapshot.bounds,
            "first": first_id,
            "versions": list(table.versions),
            "snapshot": str(answered.snapshot),
            "trimmed_id": self._trimmed_id,
            "barrier_place": found.barrier and found.barrier.place,
            "barrier_id": found.barrier and found.barrier.id,
            "floor_place": found.floor.place if found.floor else 0,
            "floor_id": found.floor.id if found.floor else 0,
            "row_id": None,
        }
        self._images = _Images(found, table)
        self._check()

    @cached_property
    def gap(self) -> Gap:
        """Return the distance from the requested instant, and the number of changes of the table in between."""
        answered = self.answered
        between = unsure = 0
        if answered.asked != answered.at:
            between = self._changes(answered.snapshot, answered.next)
        if answered.sure is not None:
            unsure = self._changes(answered.sure, answered.snapshot)
        most = max(between, unsure)
        return Gap(answered.asked, answered.at, min(between, COUNTED), min(unsure, COUNTED), most > COUNTED)

    def _changes(self, older: Snapshot, newer: Snapshot | None) -> int:
        """Count changes written by the requested instant that one snapshot sees and an older one does not; bounded."""
        bounds = {**older.bounds, "asked": self._asked, "newer": newer and str(newer), "most": COUNTED + 1}
        (count,) = self._one(_query("changes"), {**self._values, **bounds})
        return int(count)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns that the table had."""
        return self.version.images.columns

    def rows(self, where: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield all rows, in no particular order; only those that satisfy a condition, if given."""
        images = self._all_images()
        if where is not None:
            images = self._chosen(images, where)
        return map(self._images.decoded, images)

    def row(self, key: object) -> dict[str, Any] | None:
        """Return one row by its key; None if there was none."""
        given = tracked.given_key(self._table, self.version, key)
        word = tracked.row_id(self._rows, self._table, self.version, given)
        self._need(None)
        statement, values = self._keyed(word, given)
        found = list(map(self._images.composed, self._rows.execute(statement.encode(), values)))
        return self._images.decoded(found[0]) if found else None

    # Queries to the server

    def _all_images(self) -> Iterator[bytes]:
        if self.version.key:
            self._need(None)
            yield from map(self._images.composed, self._streamed(*self._keyed(None, None)))
            return
        self._need("a column of it was dropped or got another type" if self._plan.lost_since else None)
        for count, image in self._streamed(*self._counted()):
            if count < 0:
                raise self._unknown("the table and its log disagree; see forge doctor", None)
            for _ in range(count):
                yield image.encode()

    def _keyed(self, word: str | None, key: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
        one = "true" if word is None else _query("of_row")
        behind = self._plan.barrier is not None
        last = _query("last" if behind or self._plan.lost_since else "no_last")
        rest, values = (_query("rest_behind"), {}) if behind else self._unchanged(key)
        bounds = f"{_query('before_barrier')} AND {one}"
        parts = {
            "first": filled(rewind_query("first"), {"bounds": bounds}),
            "last": filled(last, {"until": _query("until"), "one": one}),
            "rest": rest,
        }
        return filled(_query("keyed"), parts), {**self._values, **values, "row_id": word}

    def _unchanged(self, key: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
        """Query the rows not changed since; a single row by its key's own index and its exact key string."""
        if key is None:
            return self._of_now("rest_now", same="true"), {}
        typed, values = tracked.key_values(self._table, key)
        names = (named(self._now.alias, name) for name in self._table.newest.key)
        same = [f"{name} = {value}" for name, value in zip(names, typed, strict=True)]
        return self._of_now("rest_now", same=" AND ".join((*same, f"{escaped(self._now.row_id)} = %(row_id)s"))), values

    def _counted(self) -> tuple[str, dict[str, Any]]:
        """Query the number of rows per image."""
        words = {"now": "", "bounds": _query("until"), "removed": "-1", "added": "1"}
        if self._plan.barrier is None and not self._plan.lost_since:
            bounds = f"l.id >= %(first)s AND l.version = ANY (%(versions)s) AND {fragment('after_snapshot')}"
            words = {"now": f"{self._of_now('rows_now')} UNION ALL", "bounds": bounds, "removed": "1", "added": "-1"}
        image, values = self._projected()
        words |= {"image": image, "before": rewind_query("before")}
        return filled(_query("counted"), words), {**self._values, **values}

    def _projected(self) -> tuple[str, dict[str, Any]]:
        """Query an image in its past definition: without columns added since, under the names of then."""
        then = self.version.by_number
        shape = [(field.attnum, field.name) for field in self.version.fields]
        names = [
            (version.id, field.name, then[field.attnum].name, field.attnum)
            for version in self._table.versions.values()
            if [(field.attnum, field.name) for field in version.fields] != shape
            for field in version.fields
            if field.attnum in then
        ]
        if not names:
            return "r.image", {}
        others, old, new, numbers = map(list, zip(*names, strict=True))
        return _query("projected"), {"others": others, "old_names": old, "new_names": new, "numbers": numbers}

    @cached_property
    def _now(self) -> CurrentTable:
        return CurrentTable(*self._one(rewind_query("tables"), {"table": self._table.id, "first_table": 0}))

    def _of_now(self, name: str, **words: str) -> str:
        """Return a query on the current table; the words may have parameters."""
        return filled(_query(name), {**self._now.words, **words, "version": str(self._table.newest.id)})

    def _streamed(self, statement: str, values: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement, held by the server and fetched page by page."""
        with self._connection.cursor(f"forge_past_{self._table.id}", row_factory=tuple_row) as rows:
            rows.itersize = PAGE
            rows.execute(statement.encode(), values)
            yield from rows

    def _chosen(self, images: Iterator[bytes], where: str) -> Iterator[bytes]:
        """Yield the images whose rows satisfy a condition, evaluated by the server."""
        from forge.history.conditions import Condition  # imports sqlglot, which is slow

        condition = Condition(where, self.version, self._table.asked, self._images.veiled)
        while page := list(islice(images, PAGE)):
            for image in page:
                self._images.check_known(image, condition.names)
            yield from condition.satisfied(self._rows, page)

    # Limits of what the log can answer

    def _mind_restart(self, at: datetime) -> None:
        """Handle a log older than the record of where tracking began: rows before the last start are unknown."""
        began = any(self._table.versions[event.version].empty is not None for event in self._events if not event.seen)
        if self._table.enabled_at <= at or began or self._table.relation is None:
            return
        for place, event in enumerate(self._events):
            if not event.seen and event.op == "S" and self._effects[place].kind in ("none", "columns"):
                self._effects[place] = EventEffect("break", "began to be tracked again")
                return

    def _check(self) -> None:
        """Raise if rows that the answer needs were trimmed from the log."""
        if self._plan.barrier is None:
            if self._table.relation is None:
                raise self._unknown("it is not tracked any more since before then", self._oldest())
            if self._trimmed():
                raise self._unknown("the log since then has been trimmed", self._oldest())

    def _need(self, lost: str | None) -> None:
        """Raise unless rows not changed since can be reconstructed."""
        barrier = self._plan.barrier
        if (barrier is not None or lost is not None) and not self._plan.whole:
            why = lost if barrier is None else f"it {self._plan.why} at {barrier.at.isoformat()}"
            raise self._unknown(f"{why}, and the log does not have all of its rows from before", self._oldest())
        if barrier is not None and self._plan.lost_before and not self.version.key:
            raise self._unknown("columns were changed between the time when it was empty and then", self._oldest())

    def _trimmed(self) -> bool:
        return self._one(_query("trimmed"), self._values) == (True,)

    def _oldest(self) -> datetime | None:
        """Return the oldest recorded instant that can be answered."""
        ends: list[tuple[TableEvent, EventEffect]] = [
            pair for pair in zip(self._events, self._effects, strict=True) if pair[1].kind in ("empty", "break")
        ]
        for event, effect in ends:
            if effect.kind == "empty" and event.id > self._trimmed_id and (at := self._first_seeing(event)):
                return at
        if self._table.relation is None:
            return None
        return self._first_seeing(ends[-1][0] if ends else None, whole=False)

    def _first_seeing(self, event: TableEvent | None, *, whole: bool = True) -> datetime | None:
        values = {
            "at": event.at if event else "-infinity",
            "xid": event.transaction if event else None,
            "whole": whole,
            "first": self._first_id,
        }
        found = self._rows.execute(_query("first_seeing"), values).fetchone()
        return None if found is None else found[0]

    def _unknown(self, why: str, oldest: datetime | None) -> HistoryUnavailable:
        fix = oldest_fix(oldest)
        if oldest is not None and oldest <= self._asked:
            fix = f"ask for a later instant, or an earlier one; the oldest that can be answered is {oldest.isoformat()}"
        if not self._table.settled:
            fix = "ask again when it is known, in a minute at the most"
        return HistoryUnavailable(
            f"{self._table.asked} as of {self._asked.isoformat()} is unknown: {why}", fix=fix, oldest=oldest
        )

    def _one(self, statement: str, values: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        found = self._rows.execute(statement.encode(), values).fetchone()
        assert found is not None
        return found

    def _value(self, statement: str) -> Any:
        return self._one(statement)[0]


class _Images:
    """Composes rows from what is known of them before and after the snapshot."""

    def __init__(self, plan: RewindPlan, table: TrackedTable) -> None:
        self._plan = plan
        self._versions = table.versions
        self._target = plan.target
        logged = (field.name for field in self._target.fields if field.kind not in UNSEEN)
        self.veiled = table.veiled[self._target.id].intersection(logged)
        self._backwards: dict[int, dict[str, str] | None] = {}
        self._forwards: dict[int, dict[str, str] | None] = {}

    def composed(self, found: tuple[Any, ...]) -> bytes:
        """Return a row's past image: from its first change since or the current table, and its last change before."""
        op, version, before, after, old_version, old = found
        if version is None:
            return self._taken(old, self._names(self._forwards, self._plan.forwards, old_version))
        names = self._names(self._backwards, self._plan.backwards, version)
        if op == "U":
            before = _joined({**_known(after), **_known(before)})
        if names is None or old is None:
            return self._taken(before, names)
        more = self._names(self._forwards, self._plan.forwards, old_version)
        return _joined({**_known(self._taken(old, more)), **_known(self._taken(before, names))})

    def decoded(self, image: bytes) -> dict[str, Any]:
        row = self._target.images.row(image)
        if self.veiled:
            row.update(dict.fromkeys(self.veiled, UNAVAILABLE))
        ordered = [field.name for field in self._target.fields]
        return row if list(row) == ordered else {name: row[name] for name in ordered}

    def check_known(self, image: bytes, names: frozenset[str]) -> None:
        """Raise if a condition uses a value that is not known."""
        if names and (lacking := names - parts(image).keys()):
            raise HistoryUnavailable(
                f"the log does not have {', '.join(sorted(lacking))} of every row",
                fix="leave it out of the condition",
            )

    def _taken(self, image: str | bytes, names: dict[str, str] | None) -> bytes:
        if names is None:
            raw = image if isinstance(image, bytes) else image.encode()
            return _joined(_known(raw)) if _MARK in raw else raw
        return _joined({names[name]: value for name, value in _known(image).items() if name in names})

    def _names(self, known: dict[int, dict[str, str] | None], carried: Any, number: int) -> dict[str, str] | None:
        """Map a version's column names to those in the target; None if they are the same."""
        if number not in known:
            fields: dict[int, VersionColumn] = carried(self._versions[number])
            names = {field.name: self._target.by_number[attnum].name for attnum, field in fields.items()}
            whole = len(names) == len(self._target.fields) == len(self._versions[number].fields)
            known[number] = None if whole and all(old == new for old, new in names.items()) else names
        return known[number]


def _known(image: str | bytes) -> dict[str, msgspec.Raw]:
    """Return the values of an image that were not redacted."""
    found = parts(image)
    if bytes(found.get(REDACTED, b"")).startswith(b"["):
        gone = (*msgspec.json.decode(found[REDACTED], type=list[str]), REDACTED)
        return {name: value for name, value in found.items() if name not in gone}
    return found


def _joined(values: Mapping[str, msgspec.Raw]) -> bytes:
    return msgspec.json.encode(values)
