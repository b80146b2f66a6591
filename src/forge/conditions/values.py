"""Compare values without declared types: numbers with numbers; texts with texts, for equality only."""

from decimal import Decimal
from typing import Any

from forge.change import UNAVAILABLE
from forge.conditions.logic import FALSE, MAYBE, NULL, OPERATORS, TRUE
from forge.conditions.tree import Operator


def compare(one: Any, operator: Operator, two: Any) -> int:
    """Return the outcome of a comparison of two values; MAYBE if they have no defined order."""
    if one is UNAVAILABLE or two is UNAVAILABLE:
        return MAYBE
    if one is None or two is None:
        return NULL
    if isinstance(one, str) and isinstance(two, str) and operator not in ("=", "<>"):
        return MAYBE  # the database's collation orders texts
    if isinstance(one, float) and isinstance(two, Decimal):
        two = float(two)  # as databases do: 0.1 in a float column is the nearest float
    elif isinstance(one, Decimal) and isinstance(two, float):
        one = float(one)
    try:
        if not _alike(one, two) or one != one or two != two:
            return MAYBE
        return TRUE if OPERATORS[operator](one, two) else FALSE
    except (TypeError, ArithmeticError):
        return MAYBE


def _alike(one: object, two: object) -> bool:
    numbers = (int, float, Decimal)
    if isinstance(one, bool) or isinstance(two, bool):
        return isinstance(one, bool) and isinstance(two, bool)
    return (isinstance(one, numbers) and isinstance(two, numbers)) or type(one) is type(two)
