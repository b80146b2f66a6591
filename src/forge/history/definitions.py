"""Past definitions of a tracked table, and the fate of its rows where the log has no single rows.

In: the versions of a table's definition and the log's rows about the table as a whole (truncate, schema, invalidate),
in order, each seen by a snapshot or not. Out: a `RewindPlan`: what can be reconstructed of the table in that snapshot,
backwards from later knowledge, and forwards from where the log is complete.

Columns are identified by number, so a renamed one keeps its identity.

Invariants:
- If a value or a row may differ from what the log can show, the plan marks it as lost.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import msgspec

from forge.values import Column, Images

_BY_DEFAULT: Final = 2
_OF_COLUMNS: Final = 4
"""Bits of pg_event_trigger_table_rewrite_reason()."""
_TEXTS: Final = ("text", "character varying")
_LENGTH: Final = re.compile(r"\([0-9, -]+\)")
UNSEEN: Final = ("hidden", "masked")
"""Kinds of columns whose values are not logged."""


class VersionColumn(msgspec.Struct, frozen=True):
    """A column of a version; `attnum` is its number in the table.

    `type_oid` is its type, whatever its name, and `parts` has the names that its values are printed with: the labels of
    enums and the attributes of composites, by number. Versions older than this field do not have them.
    """

    name: str
    type: str
    kind: str
    attnum: int
    type_oid: int | None = None
    parts: Mapping[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


class DefinitionVersion(msgspec.Struct, frozen=True, dict=True):
    """A definition of a table. `empty` is set where tracking began: whether the table had no row then."""

    id: int
    relation: int
    schema: str
    table: str
    fields: tuple[VersionColumn, ...]
    key: tuple[str, ...]
    fingerprint: str
    empty: bool | None = None

    @cached_property
    def images(self) -> Images:
        """Return the decoder of this version's row images."""
        return Images([Column(field.name, field.type, field.kind) for field in self.fields], self.key)

    @cached_property
    def by_number(self) -> dict[int, VersionColumn]:
        return {field.attnum: field for field in self.fields}

    @cached_property
    def by_name(self) -> dict[str, VersionColumn]:
        return {field.name: field for field in self.fields}

    @cached_property
    def key_numbers(self) -> tuple[int, ...]:
        return tuple(self.by_name[name].attnum for name in self.key)

    def field_of(self, older: "DefinitionVersion", field: VersionColumn) -> VersionColumn | None:
        """Return this version's column for an older one; None if it is gone. A restored table renumbers columns."""
        return self.by_number.get(field.attnum) if older.relation == self.relation else self.by_name.get(field.name)


class TableEvent(msgspec.Struct, frozen=True):
    """A row of the log about the table as a whole; `seen` by the requested snapshot."""

    place: int
    id: int
    transaction: str
    at: datetime
    version: int
    op: str
    note: Mapping[str, Any] = {}
    seen: bool = True


class EventEffect(NamedTuple):
    """The effect of an event: none on rows, `lost` columns, an emptied table, or a break in what is known."""

    kind: Literal["none", "columns", "empty", "break"]
    why: str = ""
    lost: frozenset[int] = frozenset()


class Lost(NamedTuple):
    """Columns whose values do not survive the change of definition that created a version."""

    version: int
    numbers: frozenset[int]


class RewindPlan(msgspec.Struct, frozen=True):
    """What can be reconstructed of a table in a snapshot.

    Before the `barrier` in the log, if there is one, a row's first change since the snapshot shows its state. Rows not
    changed before it are known from the log up to the snapshot, from the `floor` on; `whole`: those are all.
    """

    target: DefinitionVersion
    barrier: TableEvent | None
    why: str
    floor: TableEvent | None
    whole: bool
    lost_since: tuple[Lost, ...]
    lost_before: tuple[Lost, ...]

    def backwards(self, image: DefinitionVersion) -> dict[int, VersionColumn]:
        """Map the target's columns that an image from after the snapshot still has to their fields there."""
        return self._carried(image, (lost for lost in self.lost_since if lost.version <= image.id))

    def forwards(self, image: DefinitionVersion) -> dict[int, VersionColumn]:
        """Map the target's columns that an image from before the snapshot already has to their fields there."""
        return self._carried(image, (lost for lost in self.lost_before if lost.version > image.id))

    def _carried(self, image: DefinitionVersion, between: Iterable[Lost]) -> dict[int, VersionColumn]:
        gone = frozenset[int]().union(*(lost.numbers for lost in between))
        return {
            number: field
            for number, field in image.by_number.items()
            if number in self.target.by_number and number not in gone
        }


def veils(versions: Mapping[int, DefinitionVersion], unseen: Collection[str]) -> dict[int, frozenset[str]]:
    """Return for each version the columns whose values are never shown, even if the log has them.

    These are columns that are excluded or masked in the newest version, or were when they were dropped, under any name,
    and columns with the name of such a column: `unseen`.

    >>> def version(id, *fields): return DefinitionVersion(id, 1, "public", "t", fields, (), "")
    >>> plain, hidden = VersionColumn("ssn", "text", "plain", 2), VersionColumn("sn2", "text", "hidden", 2)
    >>> veils({1: version(1, plain), 2: version(2, hidden), 3: version(3)}, ())
    {3: frozenset(), 2: frozenset({'sn2'}), 1: frozenset({'ssn'})}
    """
    found: dict[int, frozenset[str]] = {}
    newer: DefinitionVersion | None = None
    for version in sorted(versions.values(), key=lambda each: each.id, reverse=True):
        veiled = set()
        for field in version.fields:
            later = None if newer is None else newer.field_of(version, field)
            ends_unseen = field.kind in UNSEEN if newer is None or later is None else later.name in found[newer.id]
            if ends_unseen or field.name in unseen:
                veiled.add(field.name)
        found[version.id] = frozenset(veiled)
        newer = version
    return found


def effects(
    events: Sequence[TableEvent], versions: Mapping[int, DefinitionVersion], *, sees_ddl: bool
) -> list[EventEffect]:
    """Return the effect of each event, in order."""
    return [_effect(event, events[place + 1 :], versions, sees_ddl) for place, event in enumerate(events)]


def plan(
    events: Sequence[TableEvent],
    found: Sequence[EventEffect],
    versions: Mapping[int, DefinitionVersion],
    trimmed_id: int,
) -> RewindPlan | None:
    """Return the plan; None if the table was not tracked yet. Up to `trimmed_id` the log may lack rows."""
    pairs = list(zip(events, found, strict=True))
    since = [pair for pair in pairs if not pair[0].seen]
    before = [pair for pair in pairs if pair[0].seen]
    made = [event.version for event, _ in since if event.op == "S" and not event.note]
    numbers = [number for number in sorted(versions) if not made or number < made[0]]
    if not numbers:
        return None
    barrier, why = next(((event, effect.why) for event, effect in since if effect.kind in _ENDS), (None, ""))
    ends = [place for place, (_, effect) in enumerate(before) if effect.kind in _ENDS]
    floor, kind = (before[ends[-1]][0], before[ends[-1]][1].kind) if ends else (None, "")
    rest = before[ends[-1] + 1 :] if ends else before
    return RewindPlan(
        versions[numbers[-1]],
        barrier,
        why,
        floor,
        floor is not None and kind == "empty" and floor.id > trimmed_id,
        _losses(since),
        _losses(rest),
    )


_ENDS: Final = ("empty", "break")


def _losses(pairs: Iterable[tuple[TableEvent, EventEffect]]) -> tuple[Lost, ...]:
    return tuple(Lost(event.version, effect.lost) for event, effect in pairs if effect.kind == "columns")


def _effect(
    event: TableEvent, later: Sequence[TableEvent], versions: Mapping[int, DefinitionVersion], sees_ddl: bool
) -> EventEffect:
    if event.op == "T":
        return EventEffect("empty", "was truncated")
    if event.op == "X":
        return EventEffect("break", "changed in a way that was not logged")
    if event.note.get("rewritten"):
        return _rewritten(event, later, versions)
    if event.note:
        return EventEffect("break", "was not tracked any more")
    version = versions[event.version]
    older = _older(versions, event.version)
    if version.empty is not None or older is None:
        return EventEffect("empty" if version.empty else "break", "began to be tracked")
    parts = [text.split(".")[1:3] for text in (older.fingerprint, version.fingerprint)]
    if older.relation != version.relation or older.key_numbers != version.key_numbers or parts[0] != parts[1]:
        return EventEffect("break", "got another definition")
    if not sees_ddl:
        return EventEffect("break", "got another definition that was only noticed later")
    lost = _lost(older, version)
    return EventEffect("columns", "got another definition", lost) if lost else EventEffect("none")


def _rewritten(
    event: TableEvent, later: Sequence[TableEvent], versions: Mapping[int, DefinitionVersion]
) -> EventEffect:
    """Return the effect of a rewrite: one for an added column, storage or persistence keeps every value."""
    reason = event.note.get("reason")
    broken = EventEffect("break", "was rewritten by a change of definition")
    if not isinstance(reason, int) or reason & _OF_COLUMNS:
        return broken
    if not reason & _BY_DEFAULT:
        return EventEffect("none")
    same = (other for other in later if other.transaction == event.transaction and other.op == "S" and not other.note)
    made = next((versions[other.version] for other in same), None)
    added = made is not None and bool(made.by_number.keys() - versions[event.version].by_number.keys())
    return EventEffect("none") if added else broken


def _lost(older: DefinitionVersion, newer: DefinitionVersion) -> frozenset[int]:
    """Return the columns that are gone, or whose values may be printed differently in the newer version."""
    shapes = [[(field.name, field.type, field.kind, field.attnum) for field in each.fields] for each in (older, newer)]
    if shapes[0] == shapes[1] and (older.schema, older.table) == (newer.schema, newer.table):
        # Parts of a type. If they were not recorded: built-in types have no schema in their name.
        return frozenset(
            field.attnum
            for field in older.fields
            if "." in field.type and not _same_parts(field, newer.by_number[field.attnum])
        )
    return frozenset(
        field.attnum
        for field in older.fields
        if (now := newer.by_number.get(field.attnum)) is None or not _same_values(field, now)
    )


def _same_values(one: VersionColumn, other: VersionColumn) -> bool:
    if one.kind != other.kind:
        return False
    if msgspec.UNSET not in (one.parts, other.parts) and not _same_parts(one, other):
        return False
    names = [_LENGTH.sub("", field.type) for field in (one, other)]
    renamed = one.type_oid is not None and one.type_oid == other.type_oid
    return renamed or one.type == other.type or names[0] == names[1] or set(names) <= set(_TEXTS)


def _same_parts(older: VersionColumn, newer: VersionColumn) -> bool:
    """Tell whether the newer column prints all values of the older one unchanged: labels may be added.

    >>> def field(**parts): return VersionColumn("mood", "public.mood", "literal", 2, 1, parts)
    >>> others = field(a="sad", b="glad"), field(a="blue"), VersionColumn("mood", "public.mood", "literal", 2)
    >>> [_same_parts(field(a="sad"), other) for other in others]
    [True, False, False]
    """
    if isinstance(older.parts, msgspec.UnsetType) or isinstance(newer.parts, msgspec.UnsetType):
        return False
    now = newer.parts or {}
    return all(now.get(name) == value for name, value in (older.parts or {}).items())


def _older(versions: Mapping[int, DefinitionVersion], number: int) -> DefinitionVersion | None:
    below = [other for other in versions if other < number]
    return versions[max(below)] if below else None
