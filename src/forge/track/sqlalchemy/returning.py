"""The keys of the rows that an INSERT makes: by RETURNING where it would not tell them, unseen by its caller."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Dialect, Insert, Table

from forge.track.sqlalchemy.images import Key, Shape
from forge.track.sqlalchemy.statement import collides

_ADDED: Final = "_forge_returning"
_ALL: Final = -1
"""Everything that is returned was added."""


def telling(statement: Insert, table: Table, many: Sequence[Any], dialect: Dialect) -> Insert:
    """The same INSERT, with the keys among what it returns."""
    key = tuple(table.primary_key.columns)
    if collides(statement) and statement.select is None:
        return statement  # its rows are found by their unique values
    if statement._return_defaults or not dialect.insert_returning:
        return statement
    if statement._returning:
        missing = [column for column in key if not any(column.shares_lineage(one) for one in _columns(statement))]
        if not missing:
            return statement
        made = statement.returning(*missing)
        made.__dict__[_ADDED] = len(_columns(statement))
        return made
    if statement.select is not None or statement._multi_values:
        made = statement.returning(*key)
        made.__dict__[_ADDED] = _ALL
        return made
    if len(many) > 1 and dialect.insert_executemany_returning and not _given(many[0], key):
        return statement.return_defaults(*key)
    return statement


def _columns(statement: Insert) -> list[Any]:
    return list(statement.exported_columns)


def _given(values: Any, key: tuple[Any, ...]) -> bool:
    return all(column.key in values or column in values for column in key)


def returned_keys(statement: Any, result: Any, shape: Shape) -> tuple[list[Key], int]:
    """The keys of an INSERT that has run, and how many rows it made (-1: unknown). Its caller sees nothing of it."""
    context = result.context
    if context._is_implicit_returning or not result.returns_rows:
        keys = [tuple(row) for row in context.inserted_primary_key_rows if row is not None]
        return keys, len(keys) if context._is_implicit_returning else result.rowcount
    added = statement.__dict__.get(_ADDED)
    rows = result.all()
    if context._rowcount is None or added == _ALL:
        context._rowcount = len(rows)  # the driver's count went with its cursor
    if collides(context.compiled.compile_state.statement) and added is None:
        result._rewind(rows)  # it may return anything, and its rows are found otherwise
        return [], len(rows)
    keys = [tuple([row._mapping[column] for column in shape.key]) for row in rows]
    if added == _ALL:
        result._soft_close()
        result._metadata = result._no_result_metadata
    else:
        result._rewind(rows)
        if added is not None:
            result.columns(*range(added))
    return keys, len(rows)
