"""Read rows through SQLAlchemy in the form of a Change: exact, for any driver and any application types.

A `TableImages` has what is needed to read one table in one dialect. A column is read as the database stores it (the
Python value of a TypeDecorator belongs to the application) and converted to the form that `forge.values` defines. Where
a driver would lose information (an infinite date, a JSON number), the database returns the text.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    Dialect,
    Select,
    Table,
    Text,
    any_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    select,
    text,
    tuple_,
    type_coerce,
)
from sqlalchemy import types as t
from sqlalchemy.dialects.postgresql import JSONB

from forge.change import JSON_NULL, UNAVAILABLE

KEYS: Final = "forge_keys"
CHUNK: Final = 500
"""Keys per IN list: below every database's parameter limit, also for keys of several columns."""

Convert = Callable[[Any], Any]
Key = tuple[Any, ...]
Lock = Literal["update", "delete"]
"""Lock strength for rows that are read: with that of an UPDATE, rows that refer to them may still come and go."""


class Image:
    """A row as read: its key as SQLAlchemy binds it, its values, and the filters it satisfies."""

    __slots__ = ("flags", "key", "row")

    def __init__(self, key: Key, row: dict[str, Any], flags: tuple[Any, ...]) -> None:
        self.key, self.row, self.flags = key, row, flags


class TableImages:
    """The way to read one table in one dialect."""

    def __init__(self, table: Table, dialect: Dialect) -> None:
        self.table: Final = table
        self.key: Final = tuple(table.primary_key.columns)
        self.key_names: Final = tuple(column.name for column in self.key)
        self.key_text: Final = json.dumps(self.key_names)
        self.names: Final = tuple(column.name for column in table.columns)
        self._dialect = dialect
        self._read: list[ColumnElement[Any]] = []
        self._fixes: list[tuple[str, Convert]] = []
        fixed = set()
        for column in table.columns:
            expression, convert = _reading(column, dialect)
            self._read.append(expression.label(f"forge_{len(self._read)}"))
            if convert is not None:
                self._fixes.append((column.name, convert))
            if convert is not None or expression is not column:
                fixed.add(column)
        self._native = [column for column in self.key if column in fixed]
        self._key_places = [self._place(column) for column in self.key]
        self._selects: dict[Any, Select[Any]] = {}

    def _place(self, column: Column[Any]) -> int:
        if column in self._native:
            return self._native.index(column)
        return len(self._native) + self.names.index(column.name)

    def reading(self, filters: tuple[ColumnElement[bool], ...]) -> Select[Any]:
        """Return the select list of an Image, without conditions."""
        flags = [case((clause, 1), else_=0).label(f"forge_filter_{place}") for place, clause in enumerate(filters)]
        return select(*self._native, *self._read, *flags).select_from(self.table)

    def by_columns(
        self, columns: Sequence[Column[Any]], filters: tuple[ColumnElement[bool], ...], *, lock: Lock | None = None
    ) -> Select[Any]:
        """Select the rows whose values in some columns are in the parameter KEYS."""
        cached = (tuple(columns), filters, lock)
        found = self._selects.get(cached)
        if found is None:
            found = self.reading(filters).where(self._condition(columns))
            found = self._selects[cached] = self.locking(found, lock) if lock is not None else found
        return found

    def locking(self, query: Select[Any], lock: Lock) -> Select[Any]:
        """Add row locks on this table, as far as the database distinguishes tables and lock strengths."""
        return query.with_for_update(key_share=lock == "update", of=self.table)

    def _condition(self, columns: Sequence[Column[Any]]) -> ColumnElement[bool]:
        if len(columns) > 1:
            return tuple_(*columns).in_(bindparam(KEYS, expanding=True))
        if self._dialect.name == "postgresql":
            return columns[0] == any_(bindparam(KEYS, type_=ARRAY(columns[0].type)))
        if self._as_json(columns):
            return columns[0].in_(text("SELECT value FROM json_each(:forge_keys)"))
        return columns[0].in_(bindparam(KEYS, expanding=True, type_=columns[0].type))

    def _as_json(self, columns: Sequence[Column[Any]]) -> bool:
        """Whether keys of one column are sent as one text, of any length."""
        return self._dialect.name == "sqlite" and len(columns) == 1 and columns[0].type.python_type is int

    def chunks(self, columns: Sequence[Column[Any]], keys: Sequence[Key]) -> Iterable[Any]:
        """Yield the values of KEYS in chunks, each small enough for one statement."""
        if len(columns) > 1:
            values: list[Any] = list(keys)
        else:
            values = [key[0] for key in keys]
            if values and self._as_json(columns):
                return [json.dumps(values)]
            if values and self._dialect.name == "postgresql":
                return [values]
        return [values[start : start + CHUNK] for start in range(0, len(values), CHUNK)]

    def images(self, found: Iterable[Sequence[Any]]) -> list[Image]:
        """Convert the rows of the selects above to Images."""
        names, fixes, places, skip = self.names, self._fixes, self._key_places, len(self._native)
        end = skip + len(names)
        made = []
        for values in found:
            row = dict(zip(names, values[skip:end] if skip else values, strict=False))
            for name, convert in fixes:
                value = row[name]
                if value is not None:
                    try:
                        row[name] = convert(value)
                    except (ValueError, TypeError, ArithmeticError):
                        row[name] = plain(value)  # a value that its type cannot read: as returned by the driver
            made.append(Image(tuple([values[place] for place in places]), row, tuple(values[end:])))
        return made

    def key_of(self, image: Image) -> list[Any]:
        """Return the key of a row, in the form of a Change."""
        row = image.row
        return [row[name] for name in self.key_names]

    def unread(self, key: Key) -> Image:
        """Return an Image of which only the key is known."""
        row = dict.fromkeys(self.names, UNAVAILABLE)
        row |= {name: plain(value) for name, value in zip(self.key_names, key, strict=True)}
        return Image(key, row, ())


def _reading(column: Column[Any], dialect: Dialect) -> tuple[ColumnElement[Any], Convert | None]:
    """Return the expression to select for a column, and the conversion of its non-null values."""
    stored = stored_type(column.type, dialect)
    raw = type_coerce(column, t.NULLTYPE)
    postgres = dialect.name == "postgresql"
    if isinstance(stored, t.Enum):
        return raw, None
    if isinstance(stored, t.String):
        return (column if type(column.type) in _PLAIN_TYPES else raw), None
    if isinstance(stored, t.Integer):
        return (column if type(column.type) in _PLAIN_TYPES else raw), None
    if isinstance(stored, t.Boolean):
        return raw, None if postgres else bool
    if isinstance(stored, t.Float):
        return raw, None if dialect.name in ("postgresql", "sqlite") else float
    if isinstance(stored, t.Numeric):
        return raw, None if postgres else _decimal
    if isinstance(stored, t.LargeBinary):
        return raw, bytes
    if isinstance(stored, t.Uuid):
        return raw, _uuid
    if isinstance(stored, t.JSON):
        if postgres:
            return cast(column, Text), _json if isinstance(stored, JSONB) else None
        return raw, _json
    if isinstance(stored, (t.DateTime, t.Date, t.Time)):
        if postgres:
            zoned = isinstance(stored, t.DateTime) and stored.timezone
            moment: ColumnElement[Any] = func.timezone("UTC", raw) if zoned else raw
            return func.to_json(moment).op("#>>")(literal_column("'{}'")), _utc if zoned else None
        process = stored.result_processor(dialect, None)
        return raw, plain if process is None else lambda value: plain(process(value))
    if postgres and not isinstance(stored, ARRAY):
        return cast(column, Text), None
    return raw, plain


_PLAIN_TYPES: Final = frozenset(
    {t.String, t.Text, t.Unicode, t.UnicodeText, t.VARCHAR, t.TEXT, t.Integer, t.BigInteger}
)
_PLAIN_TYPES |= {t.SmallInteger, t.INTEGER, t.BIGINT, t.SMALLINT}  # type: ignore[misc]


def stored_type(type_: t.TypeEngine[Any], dialect: Dialect) -> t.TypeEngine[Any]:
    """Return the type that the database stores."""
    found = type_.dialect_impl(dialect)
    while isinstance(found, t.TypeDecorator):
        found = found.impl_instance
    return found


def plain(value: Any) -> Any:
    """Convert a Python value to the form of a Change."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, (bool, int, float, str, Decimal, bytes)):
        return value
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return msgspec.to_builtins(value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    return str(value)


def _decimal(value: Any) -> Decimal:
    return value if type(value) is Decimal else Decimal(str(value))


def _uuid(value: Any) -> str:
    if isinstance(value, bytes) and len(value) == 16:
        return str(UUID(bytes=value))
    return str(value if isinstance(value, UUID) else UUID(str(value)))


def _utc(value: str) -> str:
    return value if value.endswith("infinity") else f"{value}+00:00"


def _json(value: Any) -> Any:
    if isinstance(value, (str, bytes)):
        value = json.loads(value, parse_float=Decimal)
        return JSON_NULL if value is None else value
    return plain(value)


_PLAIN: Final = frozenset({str, int, bool, float, Decimal, bytes})
