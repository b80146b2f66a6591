"""Columns of a table's history and current, derived from its definitions as the table changes.

The layout is computed from all known definitions in the order of their versions, so the order in which they became
known does not matter.

Invariants:

- A column that has had one type, or types of which one holds all values of the others, is one column of the history, of
  the widest of these types. A dropped column stays there, and is null from then on.
- Otherwise each type has its own column. The last one has the column's name, an older one is called `<name>_v<version>`
  after the version that introduced it.
- Current has the columns of the newest definition.
- Rows follow one another by the key of their time. When a table gets another key (for example, it was dropped and
  created again), rows before and after are unrelated, whatever their values: they are of different eras. The rows of
  the earlier era end with the snapshot that follows. An era's `mark` is the value of `_key` in its rows: null in the
  first era.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
)

from forge.pipeline.definitions import Definition
from forge.pipeline.silver.names import METADATA, silver_names
from forge.pipeline.silver.types import Types
from forge.values import Column

WITHOUT_A_KEY: Final = ("_key",)

_MARK: Final = "key of version "

_WHOLE: Final[dict[type[DataType], tuple[int, int]]] = {ShortType: (2, 10), IntegerType: (4, 10), LongType: (8, 20)}
"""The size in bytes, and the number of digits that a decimal needs for Delta to widen to it."""


class VersionGroup(msgspec.Struct, frozen=True):
    """Versions whose rows can be read together, into the columns of `target`."""

    versions: frozenset[int]
    target: Definition
    places: Mapping[str, str]
    """The lake's names of the target's columns, mapped to their names in the history."""


class Era(msgspec.Struct, frozen=True):
    """A period in which the table had one key; `key` has its columns under the history's names."""

    key: tuple[str, ...]
    mark: str | None
    parts: tuple[VersionGroup, ...]

    @property
    def keyed(self) -> bool:
        return self.key != WITHOUT_A_KEY


class Layout(msgspec.Struct, frozen=True):
    """The columns of a table in the lake, and the mapping of its rows to them."""

    table: str
    columns: Mapping[str, DataType]
    """The table's own columns in the history."""
    older: Mapping[str, str]
    """The columns that are named after a version, mapped to their previous names."""
    current: tuple[str, ...]
    eras: tuple[Era, ...]

    @property
    def era(self) -> Era:
        """The present era."""
        return self.eras[-1]

    @property
    def marked(self) -> bool:
        """Whether the history has `_key`."""
        return len(self.eras) > 1 or not self.era.keyed


class _Run(msgspec.Struct):
    """Versions in which a column had compatible types; `column` has the widest."""

    first: int
    column: Column
    type: DataType


class _Step(msgspec.Struct):
    """A definition, and the run of each column at that version."""

    definition: Definition
    runs: dict[str, int]

    @property
    def key(self) -> frozenset[tuple[str, int]]:
        return frozenset((name, self.runs[name]) for name in self.definition.key)


def layout(definitions: Iterable[Definition], types: Types | None = None) -> Layout:
    """Return the layout of a table in the lake, given all of its definitions."""
    ordered = in_order(definitions)
    runs, steps = _runs(ordered, types or Types())
    columns = {column.name: column for each in ordered for column in each.columns}
    names = silver_names(dict.fromkeys(column.name for each in ordered for column in each.columns))
    places = _places(runs, names)
    newest = ordered[-1]
    eras: list[Era] = []
    for number, (_, group) in enumerate(groupby(steps, lambda step: step.key)):
        together = list(group)
        first = together[0].definition
        key = tuple(places[name][together[0].runs[name]] for name in first.key) or WITHOUT_A_KEY
        mark = None if number == 0 or not first.key else f"{_MARK}{first.version}"
        eras.append(Era(key, mark, tuple(_parts(together, runs, columns, names, places))))
    return Layout(
        newest.name,
        {places[name][place]: run.type for name in names for place, run in enumerate(runs.get(name, ()))},
        {place: names[name] for name in runs for place in places[name][:-1]},
        tuple(places[column.name][-1] for column in newest.columns if column.kind != "hidden"),
        tuple(eras),
    )


def of_era(era: Era) -> str:
    """Return the condition for the rows of an era in a history with `_key`; for an era without a key, of all such eras.

    >>> of_era(Era(("id",), "key of version 7", ()))
    "_key = 'key of version 7'"
    """
    if not era.keyed:
        return f"_key NOT LIKE '{_MARK}%'"
    return "_key IS NULL" if era.mark is None else f"_key = '{era.mark}'"


def in_order(definitions: Iterable[Definition]) -> list[Definition]:
    """Sort definitions oldest first; the lake's own numbers count down."""
    return sorted(definitions, key=lambda each: abs(each.version))


def wider(one: DataType, other: DataType) -> DataType | None:
    """Return the one of two types that holds all values of the other, if Delta can widen a column to it.

    >>> wider(IntegerType(), LongType()), wider(DecimalType(12, 2), DecimalType(10, 2)), wider(DateType(), LongType())
    (LongType(), DecimalType(12,2), None)
    """
    if _holds(one, other):
        return one
    return other if _holds(other, one) else None


def _holds(wide: DataType, narrow: DataType) -> bool:
    if wide == narrow:
        return True
    if isinstance(wide, DecimalType):
        if isinstance(narrow, DecimalType):
            return wide.scale >= narrow.scale and wide.precision - wide.scale >= narrow.precision - narrow.scale
        return type(narrow) in _WHOLE and wide.precision - wide.scale >= _WHOLE[type(narrow)][1]
    if isinstance(wide, DoubleType):
        return isinstance(narrow, (FloatType, ShortType, IntegerType))
    if type(wide) in _WHOLE:
        return type(narrow) in _WHOLE and _WHOLE[type(wide)] >= _WHOLE[type(narrow)]
    return isinstance(wide, TimestampNTZType) and isinstance(narrow, DateType)


def _runs(ordered: Sequence[Definition], types: Types) -> tuple[dict[str, list[_Run]], list[_Step]]:
    runs: dict[str, list[_Run]] = {}
    steps: list[_Step] = []
    for each in ordered:
        for column in each.columns:
            type = types.of(column)
            if type is None:
                continue
            mine = runs.setdefault(column.name, [])
            both = wider(mine[-1].type, type) if mine else None
            if both is None:
                mine.append(_Run(each.version, column, type))
            elif both == type:
                mine[-1] = _Run(mine[-1].first, column, type)
        steps.append(_Step(each, {name: len(mine) - 1 for name, mine in runs.items()}))
    return runs, steps


def _places(runs: Mapping[str, Sequence[_Run]], names: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the name in the history for each run of each column."""
    taken = {_folded(name) for name in (*METADATA, *names.values())}
    places: dict[str, list[str]] = {}
    for name, mine in runs.items():
        older = [f"{names[name]}_v{run.first}" for run in mine[:-1]]
        for number, place in enumerate(older):
            while _folded(place) in taken:
                place += "_"
            taken.add(_folded(place))
            older[number] = place
        places[name] = [*older, names[name]]
    return places


def _parts(
    steps: Sequence[_Step],
    runs: Mapping[str, Sequence[_Run]],
    columns: Mapping[str, Column],
    names: Mapping[str, str],
    places: Mapping[str, Sequence[str]],
) -> Iterable[VersionGroup]:
    """Return the parts; a target has all columns of all versions, so its names in the lake are those of the layout."""
    for _, group in groupby(steps, lambda step: {name: run for name, run in step.runs.items() if run > 0}):
        together = list(group)
        last = together[-1]
        run = {name: last.runs.get(name, 0) for name in runs}
        target = tuple(runs[name][run[name]].column if name in runs else columns[name] for name in names)
        moved = {names[name]: places[name][run[name]] for name in runs}
        yield VersionGroup(
            frozenset(step.definition.version for step in together),
            msgspec.structs.replace(last.definition, columns=target),
            {name: place for name, place in moved.items() if name != place},
        )


def _folded(name: str) -> str:
    return name.upper().lower()
