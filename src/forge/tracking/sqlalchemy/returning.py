"""Get the keys of inserted rows: with RETURNING if the INSERT would not return them, hidden from its caller."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Dialect, Insert, Table
from sqlalchemy.engine.cursor import _NO_CURSOR_DML

from forge.tracking.sqlalchemy.images import Key, TableImages
from forge.tracking.sqlalchemy.statement import collides

_ADDED: Final = "_forge_returning"
_ALL: Final = -1
"""All returned columns were added here."""


def telling(statement: Insert, table: Table, many: Sequence[Any], dialect: Dialect) -> Insert:
    """Return the INSERT with the keys among its returned columns."""
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
        told = statement.return_defaults(*key)
        told.__dict__[_ADDED] = _ALL
        return told
    return statement


def _columns(statement: Insert) -> list[Any]:
    return list(statement.exported_columns)


def _given(values: Any, key: tuple[Any, ...]) -> bool:
    return all(column.key in values or column in values for column in key)


def returned_keys(statement: Any, result: Any, shape: TableImages) -> tuple[list[Key], int]:
    """Return the keys of an INSERT that has run, and its row count (-1: unknown). Hidden from the caller."""
    context = result.context
    added = statement.__dict__.get(_ADDED)
    if context._is_implicit_returning or not result.returns_rows:
        keys = [tuple(row) for row in context.inserted_primary_key_rows if row is not None]
        count = len(keys) if context._is_implicit_returning else result.rowcount
        if added == _ALL:
            _without_rows(statement, result, keys)
        return keys, count
    rows = result.all()
    if context._rowcount is None if added != _ALL else context._rowcount is not None:
        context._rowcount = len(rows)  # the driver's count was lost with its cursor
    if collides(context.compiled.compile_state.statement) and added is None:
        result._rewind(rows)  # it may return anything; its rows are found differently
        return [], len(rows)
    keys = [tuple([row._mapping[column] for column in shape.key]) for row in rows]
    if added == _ALL:
        _without_rows(statement, result, keys)
    else:
        result._rewind(rows)
        if added is not None:
            result.columns(*range(added))
    return keys, len(rows)


def _without_rows(statement: Insert, result: Any, keys: Sequence[Key]) -> None:
    """Restore the result of an INSERT that returns nothing, as it was written."""
    context = result.context
    result._soft_close()
    result.cursor_strategy = _NO_CURSOR_DML
    result._metadata = result._no_result_metadata
    context._is_explicit_returning = context._is_implicit_returning = False
    context.returned_default_rows = None
    context.inserted_primary_key_rows = context._setup_ins_pk_from_empty()
    if context.dialect.name == "sqlite" and context.executemany:
        context.get_lastrowid = _none
    elif context.dialect.name in ("mysql", "mariadb"):
        made = _last_made(statement, keys)
        context.get_lastrowid = lambda: made


def _none() -> None:
    """The last row id that sqlite3 reports after many executions."""


def _last_made(statement: Insert, keys: Sequence[Key]) -> int:
    """Return MariaDB's last insert id of a statement: the first generated id, or the last given one."""
    table = statement.table
    column = table._autoincrement_column if isinstance(table, Table) else None
    if column is None or not isinstance(table, Table) or not keys:
        return 0
    given: list[Any] = [name for values in statement._multi_values for row in values for name in row]
    if statement.select is not None:
        given += statement._select_names or ()
    named = any(getattr(name, "key", name) == column.key for name in given)
    return int(keys[-1 if named else 0][list(table.primary_key.columns).index(column)])
