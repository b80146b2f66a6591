"""Convert a row of a Change to a value of the application's own type: `change.into(Order)`.

In: a row, whose values have the forms of `forge.values`, and a type: a SQLAlchemy model, a dataclass, a msgspec Struct,
a pydantic model or dataclass, a TypedDict or dict. Out: one value of that type, whose fields have the names of columns.

Invariants:

- Values are exact: a numeric is a Decimal as in the database, times are read from their text to the microsecond,
  and a value that a field's type cannot hold ('infinity' in a datetime, an interval of months in a timedelta) is a
  RowMismatch.
- Values that the source did not send are never invented: a field whose value is UNAVAILABLE takes its default, and
  without one is a RowMismatch. A plain dict omits it.
- A SQLAlchemy model is as if loaded, transient: it belongs to no session, and nothing of it is pending.
"""

import json
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, TypeVar, is_typeddict
from uuid import UUID

import msgspec

from forge.change import JSON_NULL, UNAVAILABLE
from forge.errors import RowMismatch

T = TypeVar("T")
Unknown = Literal["ignore", "error"]
Row = Mapping[str, Any]

_NOT_TEXT: Final = frozenset({"dict_type", "list_type", "model_type", "model_attributes_type", "dataclass_type"})
"""Pydantic's error types for a text where an object or array is expected: it may be from a json column."""
_FROM_TEXT: Final = (datetime, date, time, timedelta, UUID)


def row_into(wanted: type[T], row: Row, *, table: str, unknown: Unknown = "ignore") -> T:
    """Return the row as a value of that type; `table` is its name in errors."""
    if unknown not in ("ignore", "error"):
        raise RowMismatch(f"unknown is {unknown!r}", fix='pass "ignore" or "error"')
    row = {name: None if value is JSON_NULL else value for name, value in row.items()}
    decode: Callable[[Any, _Row], Any]
    if wanted is dict:
        return {name: value for name, value in row.items() if value is not UNAVAILABLE}  # type: ignore[return-value]
    if (mapper := _mapper(wanted)) is not None:
        decode = lambda _, row: _model(mapper, row)  # noqa: E731
    elif hasattr(wanted, "__pydantic_validator__"):
        decode = _pydantic
    elif is_dataclass(wanted) or is_typeddict(wanted) or issubclass(wanted, msgspec.Struct):
        decode = _structured
    else:
        raise RowMismatch(
            f"a row cannot become a {wanted.__name__}",
            fix="pass a SQLAlchemy model, dataclass, Struct, pydantic model, TypedDict or dict",
        )
    found: T = decode(wanted, _Row(row, table, unknown, wanted.__name__))
    return found


class _Row:
    """A row being converted to a type's fields."""

    def __init__(self, row: Row, table: str, unknown: Unknown, wanted: str) -> None:
        self._row = row
        self._table = table
        self._unknown = unknown
        self._wanted = wanted

    def known(self, names: Collection[str]) -> dict[str, Any]:
        """Return the available values of these columns."""
        more = [name for name in self._row if name not in names]
        if more and self._unknown == "error":
            raise RowMismatch(
                f"{self._wanted} has no field for {_listed(more)} of {self._table}",
                fix='add it, or pass unknown="ignore"',
            )
        return {name: value for name, value in self._row.items() if name in names and value is not UNAVAILABLE}

    def lacking(self, *names: str) -> RowMismatch:
        """Return the error for a field without a default that has no value, under any of its names."""
        name = next((name for name in names if name in self._row), names[0])
        if name in self._row:
            return RowMismatch(
                f"{self._table}.{name} is not in the change: it is excluded, or the source did not send it",
                fix=f"give {name} of {self._wanted} a default, or track the column",
            )
        return RowMismatch(
            f"{self._table} has no column {name}", fix=f"give {name} of {self._wanted} a default, or its column's name"
        )

    def unfit(self, reason: object) -> RowMismatch:
        """Return the error for a value that does not fit its field."""
        line = str(reason).splitlines()[0]
        return RowMismatch(
            f"a row of {self._table} is no {self._wanted}: {line}", fix="give the field a type that holds it"
        )


def _structured(wanted: Any, row: _Row) -> Any:
    """Convert to dataclasses, Structs and TypedDicts, by msgspec."""
    try:
        info: Any = msgspec.inspect.type_info(wanted)
    except TypeError as error:
        raise row.unfit(error) from None
    values = row.known({field.encode_name for field in info.fields})
    for field in info.fields:
        name = field.encode_name
        if name not in values:
            if field.required:
                raise row.lacking(name)
        elif _holds_json(field.type):
            values[name] = _json(values[name])
    if is_dataclass(wanted):
        # msgspec omits fields with init=False, and a dataclass may have such fields
        values = {name: value for name, value in values.items() if name in _initial(wanted)}
    try:
        return msgspec.convert(values, wanted)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise row.unfit(error) from None


def _initial(wanted: Any) -> set[str]:
    return {field.name for field in fields(wanted) if field.init}


def _holds_json(kind: Any) -> bool:
    """Tell whether a field holds an object or array, and no text: a json column's text is then parsed."""
    of = msgspec.inspect
    kinds = kind.types if isinstance(kind, of.UnionType) else (kind,)
    structured = (of.DictType, of.ListType, of.StructType, of.DataclassType, of.TypedDictType)
    return any(isinstance(one, structured) for one in kinds) and not any(isinstance(one, of.StrType) for one in kinds)


def _json(text: Any) -> Any:
    """Parse a json column's text; return anything else unchanged."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text, parse_float=Decimal)
    except ValueError:
        return text


def _pydantic(wanted: Any, row: _Row) -> Any:
    from pydantic import TypeAdapter, ValidationError

    declared: dict[str, Any] = wanted.__pydantic_fields__
    names = {name: _aliases(name, field) for name, field in declared.items()}
    all_names = {alias for aliases in names.values() for alias in aliases}
    values = row.known(all_names)
    found: dict[str, Any] = {}
    for name, aliases in names.items():
        column = next((alias for alias in aliases if alias in values), None)
        if column is not None:
            found[name] = values[column]
        elif declared[name].is_required():
            raise row.lacking(*aliases)
    adapter = TypeAdapter(wanted)
    try:
        try:
            return adapter.validate_python(found, by_name=True, by_alias=False)
        except ValidationError as error:
            texts = [
                fault["loc"][0] for fault in error.errors() if fault["type"] in _NOT_TEXT and len(fault["loc"]) == 1
            ]
            if not texts:
                raise
            found |= {str(name): _json(found[str(name)]) for name in texts}
            return adapter.validate_python(found, by_name=True, by_alias=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise row.unfit(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _aliases(name: str, field: Any) -> list[str]:
    aliases = [alias for alias in (field.validation_alias, field.alias) if isinstance(alias, str)]
    return list(dict.fromkeys([*aliases, name]))


def _mapper(wanted: Any) -> Any:
    """Return SQLAlchemy's mapper of the class; None if it is not a model."""
    if "sqlalchemy.orm" not in sys.modules:
        return None
    from sqlalchemy import inspect

    return inspect(wanted, raiseerr=False) if hasattr(wanted, "__mapper__") else None


def _model(mapper: Any, row: _Row) -> Any:
    from sqlalchemy.orm.attributes import set_committed_value

    columns = {attribute.columns[0].name: attribute for attribute in mapper.column_attrs}
    values = row.known(columns)
    found = {}
    for name, attribute in columns.items():
        column = attribute.columns[0]
        if name in values:
            try:
                found[attribute.key] = _column_value(column.type, values[name])
            except (ValueError, TypeError, KeyError, ArithmeticError) as error:
                raise row.unfit(f"{name}: {error}") from None
        elif (default := getattr(column, "default", None)) is not None and default.is_scalar:
            found[attribute.key] = default.arg
        elif hasattr(column, "table"):  # a value computed by the mapping alone has no column that could be missing
            raise row.lacking(name)
    model = mapper.class_manager.new_instance()
    for key, value in found.items():
        set_committed_value(model, key, value)
    return model


def _column_value(kind: Any, value: Any) -> Any:
    """Return a value as SQLAlchemy's type would load it."""
    from sqlalchemy import types

    if isinstance(kind, types.TypeDecorator) and not isinstance(kind, types.Interval):
        value = _column_value(kind.impl_instance, value)
        if type(kind).process_result_value is types.TypeDecorator.process_result_value:
            return value
        return kind.process_result_value(value, _dialect())
    if value is None:
        return None
    if isinstance(kind, types.ARRAY):
        return [_column_value(kind.item_type, inner) for inner in value] if isinstance(value, list) else value
    if isinstance(kind, types.Enum):
        return dict(zip(kind.enums, kind.enum_class, strict=True))[value] if kind.enum_class else value
    if isinstance(kind, types.JSON):
        return _json(value) if kind.__visit_name__ != "JSONB" else value
    wanted = kind.python_type if _has_python_type(kind) else None
    if wanted in _FROM_TEXT and isinstance(value, str):
        return msgspec.convert(value, wanted)
    if wanted is float and isinstance(value, Decimal | int):
        return float(value)
    if wanted is Decimal and isinstance(value, int | float):
        return Decimal(repr(value))
    if wanted is bool and isinstance(value, int):
        return bool(value)
    return value


def _has_python_type(kind: Any) -> bool:
    try:
        return kind.python_type is not None
    except NotImplementedError:
        return False


def _dialect() -> Any:
    from sqlalchemy.engine.default import DefaultDialect

    return DefaultDialect()


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
