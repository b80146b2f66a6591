"""Evaluate conditions on rows without declared types: true, false, or None if undecided.

>>> paid = predicate("status = 'paid' AND total > 10")
>>> paid({"status": "paid", "total": 11}), paid({"status": "open", "total": 11}), paid({"status": "paid"})
(True, False, None)

SQL's null is not true, so a comparison with it does not hold; a missing value, or one without a defined order, is
undecided. A text equals only itself, letter for letter, whatever the database's collation says; times, UUIDs and the
like are texts in the forms of `forge.values`. Part of a document is named with dots.
"""

from collections.abc import Callable, Mapping
from typing import Any

from forge.change import UNAVAILABLE, Row
from forge.conditions.logic import (
    FALSE,
    MAYBE,
    NULL,
    TRUE,
    Outcome,
    always,
    conjunction,
    disjunction,
    negation,
)
from forge.conditions.parse import parse
from forge.conditions.tree import (
    All,
    Compare,
    CompareColumns,
    Condition,
    Constant,
    Decided,
    IsNull,
    Not,
    Operator,
    Path,
)
from forge.conditions.tree import Any as Some
from forge.conditions.values import compare

Test = Callable[[Row], bool | None]
"""In: a row. Out: whether the condition holds; None if that cannot be decided here."""


def predicate(sql: str) -> Test:
    """Return a condition as a function of a row; raise ConfigError for an invalid condition."""
    outcome = _compiled(parse(sql))

    def holds(row: Row) -> bool | None:
        mask = outcome(row)
        return True if mask == TRUE else None if mask & TRUE else False

    return holds


def _compiled(condition: Condition) -> Outcome:
    match condition:
        case Not():
            return negation(_compiled(condition.condition))
        case All():
            return conjunction([_compiled(part) for part in condition.conditions])
        case Some():
            return disjunction([_compiled(part) for part in condition.conditions])
        case IsNull():
            value = _value(condition.column)
            return lambda row: MAYBE if (found := value(row)) is UNAVAILABLE else TRUE if found is None else FALSE
        case Compare(column, operator, Constant(constant)):
            return _comparison(_value(column), operator, lambda row: constant)
        case CompareColumns():
            return _comparison(_value(condition.left), condition.operator, _value(condition.right))
        case Decided():
            return always(NULL if condition.value is None else TRUE if condition.value else FALSE)
        case _:
            return always(MAYBE)


def _comparison(left: Callable[[Row], Any], operator: Operator, right: Callable[[Row], Any]) -> Outcome:
    return lambda row: compare(left(row), operator, right(row))


def _value(column: str) -> Callable[[Row], Any]:
    path = column.names if isinstance(column, Path) else (column,)
    return lambda row: _inside(row, path)


def _inside(row: Row, path: tuple[str, ...]) -> Any:
    """Return the value at a path of names; names before a column that is not a document name its table.

    >>> _inside({"a": {"b": 1}}, ("a", "b")), _inside({"b": 2}, ("t", "b")), _inside({"a": {}}, ("a", "b"))
    (1, 2, None)
    """
    if path[0] not in row and len(path) > 1:
        return _inside(row, path[1:])
    found = row.get(path[0], UNAVAILABLE)
    for name in path[1:]:
        if not isinstance(found, Mapping):
            return UNAVAILABLE
        found = found.get(name)
    return found
