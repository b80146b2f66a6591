"""Known definitions of each table, and the choice of the definition that an archived row was written under.

An archive does not name the version of the table; it is found from the row's columns, key and values.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

from forge.change import UNAVAILABLE
from forge.pipeline.archive.images import Printer
from forge.pipeline.definitions import Definition
from forge.values import Column

Row = Mapping[str, Any]


class ArchiveShape:
    """A definition with values derived from it once."""

    def __init__(self, definition: Definition) -> None:
        self.definition: Final = definition
        self.names: Final = frozenset(column.name for column in definition.columns)
        self.image: Final = Printer(definition.columns)

    @property
    def inferred(self) -> bool:
        """Whether an import inferred this definition; no log has it."""
        return self.definition.version < 0

    @cached_property
    def _tests(self) -> dict[str, Callable[[Any], bool]]:
        return {column.name: _test(column, loose=self.inferred) for column in self.definition.columns}

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The columns inferred as JSON: they hold its text."""
        return tuple(column.name for column in self.definition.columns if self.inferred and column.type == "json")

    def misfit(self, *rows: Row | None) -> str | None:
        """Return the name of a column whose value does not fit its type; None when all values fit.

        >>> shape = ArchiveShape(Definition(1, "public", "t", (Column("a", "integer"), Column("b", "date"))))
        >>> shape.misfit({"a": 1, "b": "2026-01-31"}), shape.misfit({"a": "1"}), shape.misfit(None, {"b": "x", "a": 1})
        (None, 'a', 'b')
        """
        tests = self._tests
        for row in rows:
            for name, value in (row or {}).items():
                if value is not None and value is not UNAVAILABLE and not (name in tests and tests[name](value)):
                    return name
        return None


class Shapes:
    """Definitions by table: those of a log first, newest first, then the inferred ones."""

    def __init__(self, definitions: Iterable[Definition]) -> None:
        ordered = sorted(definitions, key=lambda definition: definition.version, reverse=True)
        self._tables: dict[tuple[str, str], list[ArchiveShape]] = {}
        for definition in ordered:
            self._tables.setdefault((definition.schema, definition.table), []).append(ArchiveShape(definition))
        self._found: dict[tuple[Any, ...], list[ArchiveShape]] = {}

    def newest(self, schema: str, table: str) -> ArchiveShape | None:
        """Return the definition for a whole-table change."""
        shapes = self._tables.get((schema, table))
        return shapes[0] if shapes else None

    def candidates(
        self, schema: str, table: str, names: frozenset[str], key: tuple[str, ...] | None = None
    ) -> list[ArchiveShape]:
        """Return the definitions that have all these columns, exact matches first; only with this key, if known."""
        asked = (schema, table, names, key)
        found = self._found.get(asked)
        if found is None:
            shapes = self._tables.get((schema, table), [])
            fitting = [
                shape
                for shape in shapes
                if names <= shape.names and (key is None or sorted(key) == sorted(shape.definition.key))
            ]
            found = sorted(fitting, key=lambda shape: len(shape.names) > len(names))
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            self._found[asked] = found
        return found

    def choose(
        self, schema: str, table: str, names: frozenset[str], key: tuple[str, ...] | None, *rows: Row | None
    ) -> ArchiveShape | None:
        """Return the first candidate that all values fit."""
        candidates = self.candidates(schema, table, names, key)
        return next((shape for shape in candidates if shape.misfit(*rows) is None), None)


_MOST_FOUND: Final = 10_000
_DATE = r"(?:[0-9]{4,7}-[0-9]{2}-[0-9]{2}"
_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
_FORMS: Final = {
    "date": re.compile(rf"{_DATE}(?: BC)?)|-?infinity"),
    "timestamp without time zone": re.compile(rf"{_DATE}T{_TIME}(?: BC)?)|-?infinity"),
    "timestamp with time zone": re.compile(rf"{_DATE}T{_TIME}\+00:00(?: BC)?)|-?infinity"),
    "time without time zone": re.compile(_TIME),
    "uuid": re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
}
_TEXTS: Final = ("text", "character varying", "character", "json", "xml")
_RANGES: Final = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}


def _test(column: Column, *, loose: bool) -> Callable[[Any], bool]:
    """Return a test whether a value, neither null nor unavailable, fits this column; inferred columns are tested
    loosely."""
    if loose and column.type in _LOOSE and column.kind in ("plain", "numeric"):
        return _LOOSE[column.type]
    if column.kind == "numeric":
        return _test_numeric(column.type)
    if column.kind in _KINDS:
        return _KINDS[column.kind]
    if column.kind.endswith("[]"):
        return lambda value: isinstance(value, (list, str))
    name = re.sub(r"\([^)]*\)", "", column.type)
    if name in _RANGES:
        most = _RANGES[name]
        return lambda value: type(value) is int and -most <= value < most
    if name == "boolean":
        return lambda value: isinstance(value, bool)
    if name in _FORMS:
        form = _FORMS[name]
        return lambda value: isinstance(value, str) and form.fullmatch(value) is not None
    if name in _TEXTS:
        return lambda value: isinstance(value, str)
    return lambda value: True  # a domain can be over any type


def _test_numeric(type_name: str) -> Callable[[Any], bool]:
    """Return a test whether a number has no more digits than its type, so that nothing is rounded.

    >>> test = _test_numeric("numeric(4,2)")
    >>> [test(Decimal(text)) for text in ("12.30", "99.99", "100", "0.001", "NaN")], test(7), test("7")
    ([True, True, False, False, True], True, False)
    """
    match = re.search(r"\(([0-9]+)(?:,(-?[0-9]+))?\)", type_name)

    def test(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (Decimal, int)):
            return False
        number = Decimal(value)
        exponent = number.as_tuple().exponent
        if match is None or not isinstance(exponent, int):
            return True
        scale = int(match[2] or 0)
        return -exponent <= max(scale, 0) and (not number or number.adjusted() < int(match[1]) - scale)

    return test


_LOOSE: Final[dict[str, Callable[[Any], bool]]] = {
    "json": lambda value: True,
    "text": lambda value: not isinstance(value, (list, dict)),
    "numeric": lambda value: isinstance(value, (Decimal, int, float)) and not isinstance(value, bool),
}
_KINDS: Final[dict[str, Callable[[Any], bool]]] = {
    "jsonb": lambda value: not isinstance(value, (bytes, float)),
    "hidden": lambda value: False,
    "masked": lambda value: isinstance(value, str),
    "float": lambda value: isinstance(value, (float, int)) and not isinstance(value, bool),
    "bytea": lambda value: isinstance(value, bytes),
}
