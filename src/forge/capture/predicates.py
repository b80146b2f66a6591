"""Conditions of SQL on one row, decided here: true, false, or None when it cannot be decided.

>>> paid = predicate("status = 'paid' AND total > 10")
>>> paid({"status": "paid", "total": 11}), paid({"status": "open", "total": 11}), paid({"status": "paid"})
(True, False, None)

SQL's null is not true, so a comparison with it does not hold; what is missing, or has no stated order, is undecided.
A text equals only itself, letter for letter, whatever the database's collation says; times, UUIDs and the like are
texts in the forms of `forge.values`. Part of a document is named with dots.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import sqlglot
from sqlglot import expressions as e
from sqlglot.errors import SqlglotError

from forge.change import UNAVAILABLE, Row
from forge.errors import ConfigError

Test = Callable[[Row], bool | None]
"""In: a row. Out: whether it holds; None when that cannot be decided here."""

_FIX = "columns, constants, = <> < <= > >=, IN, BETWEEN, IS NULL, AND, OR, NOT"


class _Null:
    """SQL's null while a condition is computed; None is what cannot be decided."""


_NULL = _Null()
_COMPARED: dict[type[e.Expression], Callable[[Any, Any], bool]] = {
    e.EQ: lambda left, right: left == right,
    e.NEQ: lambda left, right: left != right,
    e.LT: lambda left, right: left < right,
    e.LTE: lambda left, right: left <= right,
    e.GT: lambda left, right: left > right,
    e.GTE: lambda left, right: left >= right,
}


def predicate(sql: str) -> Test:
    """A condition as a function of a row; raises ConfigError for what is not one."""
    try:
        parsed = sqlglot.parse(f"({sql}\n)", dialect="postgres")
        if len(parsed) != 1 or not isinstance(parsed[0], e.Paren):
            raise ConfigError(f"{sql!r} is not a condition on a row", fix=_FIX)
        test = _compiled(parsed[0], sql)
    except SqlglotError as error:
        raise ConfigError(f"{sql!r} is not a condition on a row", fix=_FIX) from error
    except RecursionError:
        raise ConfigError(f"{sql[:60]!r}… is nested too deeply", fix="write it with fewer parentheses") from None

    def holds(row: Row) -> bool | None:
        found = test(row)
        return False if found is _NULL else found

    return holds


def paths(sql: str) -> list[list[str]]:
    """The columns that a condition is on, each as the names that lead to it.

    >>> paths("orders.status = 'paid' AND total > 10 AND total < 20")
    [['orders', 'status'], ['total']]
    """
    parsed = sqlglot.parse_one(f"({sql}\n)", dialect="postgres")
    found = [[part.name for part in column.parts] for column in parsed.find_all(e.Column, bfs=False)]
    return [path for place, path in enumerate(found) if path not in found[:place]]


def _compiled(node: e.Expression, sql: str) -> Callable[[Row], Any]:
    """A part of a condition; it gives True, False, `_NULL`, or None when it cannot be decided."""
    if isinstance(node, e.Paren):
        return _compiled(node.this, sql)
    if isinstance(node, (e.And, e.Or)):
        parts = [_compiled(part, sql) for part in node.flatten()]  # type: ignore[arg-type]
        return _chained(parts, short=isinstance(node, e.Or))
    if isinstance(node, e.Not) or node.args.get("negate"):
        inner = _compiled(node.this if isinstance(node, e.Not) else _affirmed(node), sql)
        return lambda row: found if (found := inner(row)) is None or found is _NULL else not found
    if type(node) in _COMPARED:
        return _comparison(_COMPARED[type(node)], _operand(node.this, sql), _operand(node.expression, sql))
    if isinstance(node, e.Between):
        low = e.GTE(this=node.this, expression=node.args["low"])
        high = e.LTE(this=node.this, expression=node.args["high"])
        return _compiled(e.And(this=low, expression=high), sql)
    if isinstance(node, e.In) and node.expressions:
        equal = [e.EQ(this=node.this, expression=value) for value in node.expressions]
        return _chained([_compiled(each, sql) for each in equal], short=True)
    if isinstance(node, e.Is) and isinstance(node.expression, e.Null):
        value = _operand(node.this, sql)
        return lambda row: None if (found := value(row)) is None else found is _NULL
    if isinstance(node, (e.Column, e.Boolean)):
        return _comparison(_COMPARED[e.EQ], _operand(node, sql), lambda row: True)
    raise ConfigError(f"{node.sql()!r} in {sql!r} cannot be decided by Forge", fix=_FIX)


def _affirmed(node: e.Expression) -> e.Expression:
    """The condition without the NOT that is part of it, as in IS NOT NULL."""
    found = node.copy()
    found.set("negate", None)
    return found


def _chained(tests: Sequence[Callable[[Row], Any]], *, short: bool) -> Callable[[Row], Any]:
    """All joined by AND or OR, halves of halves, so that a thousand of them are not a thousand calls deep."""
    if len(tests) == 1:
        return tests[0]
    half = len(tests) // 2
    return _joined(_chained(tests[:half], short=short), _chained(tests[half:], short=short), short=short)


def _joined(left: Callable[[Row], Any], right: Callable[[Row], Any], *, short: bool) -> Callable[[Row], Any]:
    """AND (`short` is False) or OR (`short` is True) in SQL's logic: what is short decides, then doubt, then null."""

    def joined(row: Row) -> Any:
        one = left(row)
        if one is short:
            return short
        two = right(row)
        if two is short:
            return short
        if one is None or two is None:
            return None
        return _NULL if one is _NULL or two is _NULL else not short

    return joined


def _comparison(
    compare: Callable[[Any, Any], bool], left: Callable[[Row], Any], right: Callable[[Row], Any]
) -> Callable[[Row], Any]:
    def compared(row: Row) -> Any:
        one, two = left(row), right(row)
        if one is None or two is None:
            return None
        if one is _NULL or two is _NULL:
            return _NULL
        if isinstance(one, str) and isinstance(two, str) and compare not in _EQUALITY:
            return None  # the database's collation orders texts
        if isinstance(one, float) and isinstance(two, Decimal):
            two = float(two)  # as databases do: 0.1 in a column of floats is the float of that name
        elif isinstance(one, Decimal) and isinstance(two, float):
            one = float(one)
        try:
            return compare(one, two) if _alike(one, two) and one == one and two == two else None
        except (TypeError, ArithmeticError):
            return None

    return compared


_EQUALITY = (_COMPARED[e.EQ], _COMPARED[e.NEQ])


def _alike(one: object, two: object) -> bool:
    numbers = (int, float, Decimal)
    if isinstance(one, bool) or isinstance(two, bool):
        return isinstance(one, bool) and isinstance(two, bool)
    return (isinstance(one, numbers) and isinstance(two, numbers)) or type(one) is type(two)


def _operand(node: e.Expression, sql: str) -> Callable[[Row], Any]:
    if isinstance(node, e.Paren):
        return _operand(node.this, sql)
    if isinstance(node, e.Column):
        path = [part.name for part in node.parts]

        def value(row: Row) -> Any:
            found = _inside(row, path)
            if found is UNAVAILABLE:
                return None
            return _NULL if found is None else found

        return value
    if isinstance(node, e.Null):
        return lambda row: _NULL
    constant: Any
    if isinstance(node, e.Boolean):
        constant = bool(node.this)
    elif isinstance(node, e.Literal):
        constant = node.this if node.is_string else _number(node.this)
    elif isinstance(node, e.Neg) and isinstance(node.this, e.Literal) and not node.this.is_string:
        constant = -_number(node.this.this)
    else:
        raise ConfigError(f"{node.sql()!r} in {sql!r} cannot be decided by Forge", fix=_FIX)
    return lambda row: constant


def _inside(row: Row, path: list[str]) -> Any:
    """The value at a path of names; names before a column that is no document are those of its table.

    >>> _inside({"a": {"b": 1}}, ["a", "b"]), _inside({"b": 2}, ["t", "b"]), _inside({"a": {}}, ["a", "b"])
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


def _number(text: str) -> int | Decimal:
    return int(text) if text.isdigit() else Decimal(text)
