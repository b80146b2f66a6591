"""Parse an SQL condition on one row into a tree.

>>> parse("status = 'paid' AND total > 10")
All(conditions=(Compare(column='status', operator='=', operand=Constant(value='paid')), \
Compare(column='total', operator='>', operand=Constant(value=10))))
"""

from decimal import Decimal
from typing import Final

import sqlglot
from sqlglot import expressions as e
from sqlglot.errors import SqlglotError

from forge.conditions.logic import MAYBE, NULL, TRUE
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
    Undecided,
    columns,
)
from forge.conditions.tree import Any as Some
from forge.conditions.values import compare
from forge.errors import ConfigError

_FIX: Final = "columns, constants, = <> < <= > >=, IN, BETWEEN, IS NULL, AND, OR, NOT"
_COMPARED: Final[dict[type[e.Expression], Operator]] = {
    e.EQ: "=", e.NEQ: "<>", e.LT: "<", e.LTE: "<=", e.GT: ">", e.GTE: ">=",
}  # fmt: skip
_MIRRORED: Final[dict[Operator, Operator]] = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def parse(sql: str) -> Condition:
    """Return the condition's tree; raise ConfigError for anything else. A column is named by its full path."""
    try:
        parsed = sqlglot.parse(f"({sql}\n)", dialect="postgres")
        if len(parsed) != 1 or not isinstance(parsed[0], e.Paren):
            raise ConfigError(f"{sql!r} is not a condition on a row", fix=_FIX)
        return _Parser(sql).condition(parsed[0])
    except SqlglotError as error:
        raise ConfigError(f"{sql!r} is not a condition on a row", fix=_FIX) from error
    except RecursionError:
        raise ConfigError(f"{sql[:60]!r}… is nested too deeply", fix="write it with fewer parentheses") from None


def paths(condition: Condition) -> list[Path]:
    """Return the columns of a parsed condition, in order.

    >>> paths(parse("orders.status = 'paid' AND total > 10 AND total < 20"))
    ['orders.status', 'total']
    """
    return list(dict.fromkeys(column for column in columns(condition) if isinstance(column, Path)))


class _Parser:
    """Converts nodes of sqlglot into nodes of a condition."""

    def __init__(self, sql: str) -> None:
        self._sql = sql

    def condition(self, node: e.Expression) -> Condition:
        if isinstance(node, e.Paren):
            return self.condition(node.this)
        if isinstance(node, e.And):
            return All(tuple(map(self.condition, node.flatten())))  # type: ignore[arg-type]
        if isinstance(node, e.Or):
            return Some(tuple(map(self.condition, node.flatten())))  # type: ignore[arg-type]
        if isinstance(node, e.Not):
            return Not(self.condition(node.this))
        if node.args.get("negate"):  # as in IS NOT NULL
            plain = node.copy()
            plain.set("negate", None)
            return Not(self.condition(plain))
        if type(node) in _COMPARED:
            return self._compared(node.this, _COMPARED[type(node)], node.expression)
        if isinstance(node, e.Between):
            low = self._compared(node.this, ">=", node.args["low"])
            return All((low, self._compared(node.this, "<=", node.args["high"])))
        if isinstance(node, e.In) and node.expressions:
            return Some(tuple(self._compared(node.this, "=", value) for value in node.expressions))
        if isinstance(node, e.Is) and isinstance(node.expression, e.Null):
            operand = self._operand(node.this)
            return Decided(operand.value is None) if isinstance(operand, Constant) else IsNull(operand)
        if isinstance(node, (e.Column, e.Boolean)):
            return self._compared(node, "=", e.true())
        raise self._cannot(node)

    def _compared(self, left: e.Expression, operator: Operator, right: e.Expression) -> Condition:
        one, two = self._operand(left), self._operand(right)
        if isinstance(one, Constant) and isinstance(two, Constant):
            mask = compare(one.value, operator, two.value)
            return Undecided() if mask == MAYBE else Decided(None if mask == NULL else mask == TRUE)
        if isinstance(two, Constant):
            assert not isinstance(one, Constant)
            return Compare(one, operator, two)
        if isinstance(one, Constant):
            return Compare(two, _MIRRORED[operator], one)
        return CompareColumns(one, operator, two)

    def _operand(self, node: e.Expression) -> Path | Constant:
        if isinstance(node, e.Paren):
            return self._operand(node.this)
        if isinstance(node, e.Column):
            return Path.of(part.name for part in node.parts)
        if isinstance(node, e.Null):
            return Constant(None)
        if isinstance(node, e.Boolean):
            return Constant(bool(node.this))
        if isinstance(node, e.Literal):
            return Constant(node.this if node.is_string else _number(node.this))
        if isinstance(node, e.Neg) and isinstance(node.this, e.Literal) and not node.this.is_string:
            return Constant(-_number(node.this.this))
        raise self._cannot(node)

    def _cannot(self, node: e.Expression) -> ConfigError:
        return ConfigError(f"{node.sql()!r} in {self._sql!r} cannot be decided by Forge", fix=_FIX)


def _number(text: str) -> int | Decimal:
    return int(text) if text.isdigit() else Decimal(text)
