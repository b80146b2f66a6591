"""Collapse many changes of a row into the one write that undoes them. Pure: it uses no database.

A row's *life* is what the chosen changes did to it, across changes of its key: an update that changes a key is logged
as a delete and an insert, which are joined again by their statement (the same transaction, table and place in the
order, the insert a microsecond later).

Invariants of an `Undo`:
- `values` has, for every column that the chosen changes touched, its value before the first of them that touched it.
- `expected` is the row after the last of them.
- A column that another writer changed between two chosen changes of it is in `foreign`: undoing those would lose it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, Literal

import msgspec

from forge.history.revert.chosen import Image, Logged

_STEP: Final = timedelta(microseconds=1)
Kind = Literal["insert", "update", "delete"]
WHOLE: Final = "*"
"""Stands for the row itself among foreign columns: another writer inserted or deleted it in between."""


class Undo(msgspec.Struct, frozen=True):
    """The undo of one row. `now` and `target` are its key as one string, today and afterwards."""

    kind: Kind
    tracked: int
    now: str | None
    target: str | None
    values: Image
    expected: Image
    first: Logged
    last: Logged
    reborn: bool
    hidden: tuple[str, ...]
    foreign: tuple[str, ...]
    changes: int


class _Life:
    def __init__(self, change: Logged, *, there: bool) -> None:
        self.first = self.last = change
        self.was_there = there
        self.started_at = change.row_id
        self.key = change.row_id
        self.state: Image | None = None
        self.begun = False
        self.reborn = False
        self.origins: Image = {}
        self.hidden: set[str] = set()
        self.foreign: set[str] = set()
        self.changes = 0

    def step(self, before: Image | None, after: Image | None, change: Logged) -> None:
        """Add one change: from `before`, None if the row did not exist, to `after`."""
        if self.begun:
            self._follow(before)
        if before is not None:
            touched = [name for name in before if after is None or before[name] != after.get(name)]
            for name in touched:
                self.origins.setdefault(name, before[name])
        elif self.begun:
            self.reborn = True
        self.hidden.update(change.hidden)
        self.state, self.last, self.begun = after, change, True
        self.key = change.row_id

    def _follow(self, before: Image | None) -> None:
        """Detect changes by others since the previous step."""
        if (before is None) != (self.state is None):
            self.foreign.add(WHOLE)
        elif before is not None and self.state is not None:
            # every column of a row that these changes inserted counts
            theirs = before if not self.was_there else self.origins.keys()
            self.foreign.update(
                name for name in theirs if name in before and before[name] != self.state.get(name, before[name])
            )

    def undo(self) -> Undo | None:
        """Return the undo; None if the row is as it was, which others may have changed meanwhile."""
        kind: Kind
        if self.state is None:
            if not self.was_there:
                return None
            kind, values = "insert", self.origins
        elif not self.was_there:
            kind, values = "delete", {}
        else:
            kind = "update"
            values = {name: value for name, value in self.origins.items() if self.state.get(name, value) != value}
            if not values and not self.hidden:
                return None
        return Undo(
            kind,
            self.first.tracked,
            None if kind == "insert" else self.key,
            None if kind == "delete" else self.started_at,
            values,
            self.state or {},
            self.first,
            self.last,
            self.reborn,
            tuple(sorted(self.hidden)),
            tuple(sorted(self.foreign)),
            self.changes,
        )


def collapse(changes: Sequence[Logged]) -> list[Undo]:
    """Return the undos of changes in the log's order, one write per row, unordered. All must be of single rows."""
    moved = moves(changes)
    lives: list[_Life] = []
    at: dict[tuple[int, str | None], _Life] = {}
    gone: dict[tuple[int, str | None], _Life] = {}
    moving: dict[int, tuple[_Life, Logged]] = {}
    for change in changes:
        place = (change.tracked, change.row_id)
        if change.op == "I" and change.id in moved:
            life, old = moving.pop(moved[change.id])
            if place in at:
                gone[place] = at[place]
            at[place] = life
            life.step(old.before, change.after, change)
            continue
        found = at.get(place)
        if found is None:
            if place in gone:
                found = gone.pop(place)
            else:
                lives.append(found := _Life(change, there=change.op != "I"))
            at[place] = found
        found.changes += 1
        if change.op == "D" and change.id in moved:
            moving[change.id] = (found, change)
            del at[place]
        else:
            found.step(change.before, change.after, change)
    return [undo for life in lives if (undo := life.undo()) is not None]


def moves(changes: Iterable[Logged]) -> dict[int, int]:
    """Map the halves of key changes: the insert's id to its delete's, and the delete's to its insert's."""
    deletes: dict[object, list[Logged]] = defaultdict(list)
    inserts: dict[object, list[Logged]] = defaultdict(list)
    for change in changes:
        if change.op == "D":
            deletes[_statement(change, _STEP)].append(change)
        elif change.op == "I":
            inserts[_statement(change)].append(change)
    pairs: dict[int, int] = {}
    for statement, old in deletes.items():
        new = inserts.get(statement, [])
        if len(old) == len(new) and all(one.id < other.id for one, other in zip(old, new, strict=True)):
            for one, other in zip(old, new, strict=True):
                pairs[one.id], pairs[other.id] = other.id, one.id
    return pairs


def _statement(change: Logged, later: timedelta = timedelta(0)) -> object:
    ranked = change.place if change.place != change.id else None
    return change.tracked, change.transaction, ranked, change.at + later
