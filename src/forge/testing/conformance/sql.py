"""The suite's operations as SQL, for databases that speak it: adapters say how names and values are written."""

from collections.abc import Callable, Sequence
from typing import Any

from forge.testing.conformance.adapter import Sample
from forge.testing.conformance.operations import (
    ADDED,
    ITEMS,
    OTHERS,
    TYPES,
    AddColumn,
    Delete,
    Fill,
    Insert,
    Operation,
    Truncate,
    Update,
)

Statement = tuple[str, tuple[Any, ...]]


def tables(samples: Sequence[Sample], text: str = "text", integer: str = "integer") -> list[str]:
    """The statements that make the suite's tables."""
    columns = f"id {integer} PRIMARY KEY, name {text}, amount {integer}, note {text}"
    types = "".join(f", c{place} {sample.type}" for place, sample in enumerate(samples))
    return [
        f"CREATE TABLE {ITEMS} ({columns})",
        f"CREATE TABLE {OTHERS} ({columns})",
        f"CREATE TABLE {TYPES} (id {integer} PRIMARY KEY{types})",
    ]


def statement(
    operation: Operation,
    *,
    mark: str = "%s",
    truncate: str = "TRUNCATE TABLE {}",
    text: str = "text",
    series: Callable[[Fill], Statement] | None = None,
) -> Statement:
    """One operation as a statement and its values; `mark` stands for a value, `series` fills a table in one statement.

    >>> statement(Update("items", 1, {"name": "a"}), mark="?")
    ('UPDATE items SET name = ? WHERE id = ?', ('a', 1))
    """
    table = operation.table
    if isinstance(operation, Insert):
        names = ", ".join(operation.row)
        marks = ", ".join([mark] * len(operation.row))
        return f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(operation.row.values())
    if isinstance(operation, Update):
        sets = ", ".join(f"{name} = {mark}" for name in operation.row)
        return f"UPDATE {table} SET {sets} WHERE id = {mark}", (*operation.row.values(), operation.id)
    if isinstance(operation, Delete):
        return f"DELETE FROM {table} WHERE id = {mark}", (operation.id,)
    if isinstance(operation, Truncate):
        return truncate.format(table), ()
    if isinstance(operation, AddColumn):
        return f"ALTER TABLE {table} ADD COLUMN {ADDED} {text}", ()
    if series is not None:
        return series(operation)
    return (
        f"INSERT INTO {table} (id, name, amount, note) WITH RECURSIVE n (id) AS"
        f" (SELECT {mark} UNION ALL SELECT id + 1 FROM n WHERE id < {mark}) SELECT id, 'fill', 0, {mark} FROM n",
        (operation.first, operation.first + operation.count - 1, operation.note),
    )
