"""Conversion of SQL expressions to conditions on the rows of one source."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any as Whatever
from typing import Final

import msgspec
from sqlglot import exp

from forge.conditions import tree as c
from forge.conditions.canonical import ColumnType

Name = tuple[str | None, str]
"""A table's name, folded by PostgreSQL's rules: the schema if written, and the table."""


class Relation(msgspec.Struct, frozen=True):
    """The meaning of a name: a plain table, or another relation whose columns are known (a view).

    Conditions must not use a column that has no type here (IS NULL of a composite type looks inside the value).
    """

    oid: int
    table: bool
    columns: Mapping[str, ColumnType | None]


def number_of(node: exp.Parameter) -> int:
    text = node.this.name if isinstance(node.this, exp.Literal) else ""
    return int(text) if text.isascii() and text.isdigit() else 0


_UPPER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def fold(identifier: exp.Expression) -> str:
    """Return an identifier as PostgreSQL stores it: lower case unless quoted, and at most 63 bytes."""
    name = identifier.name if identifier.args.get("quoted") else identifier.name.translate(_UPPER)
    return name.encode()[:63].decode(errors="ignore")


def name_of(table: exp.Table) -> Name:
    schema = table.args.get("db")
    return (fold(schema) if schema else None, fold(table.this))


class FromEntry(msgspec.Struct, eq=False):
    """One entry of a FROM clause. `relation` is set for a plain table that conditions may use; `columns` is None when
    unknown. `nullable`: whether a join so far can fill it with nulls."""

    node: exp.Expression
    alias: str
    relation: Relation | None
    columns: frozenset[str] | None
    nullable: bool = False


def has_only(node: exp.Expression, parts: Iterable[str]) -> bool:
    """Whether a node has only these parts."""
    return all(not value or part in parts for part, value in node.args.items())


_COMPARISONS: Final[dict[type[exp.Expression], tuple[c.Operator, c.Operator]]] = {
    exp.EQ: ("=", "="),
    exp.NEQ: ("<>", "<>"),
    exp.LT: ("<", ">"),
    exp.LTE: ("<=", ">="),
    exp.GT: (">", "<"),
    exp.GTE: (">=", "<="),
}
_BINARY: Final = frozenset({"this", "expression"})


# Unquoted names that refer to a function even if a column has the same name.
_BARE: Final = {
    *("current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp"),
    *("current_user", "localtime", "localtimestamp", "session_user", "system_user", "user"),
}


# Types that a cast may name without changing the value.
_CASTS: Final = {
    "BIGINT": "bigint",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "DECIMAL": "numeric",
    "INT": "integer",
    "SMALLINT": "smallint",
    "TEXT": "text",
    "TIMESTAMP": "timestamp without time zone",
    "TIMESTAMPTZ": "timestamp with time zone",
    "UUID": "uuid",
    "VARCHAR": "character varying",
}


_STRINGS: Final = frozenset({"text", "character varying"})
_INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
_CUTTING: Final = _INTEGERS | {"date"}
"""A cast to one of these may round or truncate a parameter."""


class ConditionReader:
    """Convert expressions to conditions on one source's rows, given the sources visible there."""

    def __init__(
        self, source: FromEntry, relation: Relation, visible: list[FromEntry], parameters: Mapping[int, str]
    ) -> None:
        self._source = source
        self._columns = relation.columns
        self._visible = visible
        self._parameters = parameters

    def condition(self, node: exp.Expression) -> c.Condition:
        """Return the condition of an expression; `Undecided` unless it depends on this source alone."""
        match node:
            case exp.Paren():
                return self.condition(node.this)
            case exp.And():
                return c.All(tuple(map(self.condition, flatten(node, exp.And))))
            case exp.Or():
                return c.Any(tuple(map(self.condition, flatten(node, exp.Or))))
            case exp.Not():
                return c.Not(self.condition(node.this))
            case exp.Boolean():
                return c.All(()) if node.this else c.Any(())
            case exp.Column():
                return self._boolean(node, lambda column: c.Compare(column, "=", c.Constant(True)))
            case exp.Is():
                return self._is(node)
            case exp.NullSafeEQ() | exp.NullSafeNEQ():
                return self._distinct(node)
            case exp.In():
                return self._in(node)
            case exp.Between():
                return self._between(node)
        if type(node) in _COMPARISONS and has_only(node, _BINARY):
            return self._compare(node)
        return c.Undecided()

    def _compare(self, node: exp.Expression) -> c.Condition:
        operator, mirrored = _COMPARISONS[type(node)]
        if operator == "=" and isinstance(node.expression, exp.Any):
            return self._any(node)
        for left, right, said in ((node.this, node.expression, operator), (node.expression, node.this, mirrored)):
            column = self._column(left)
            operand = self._operand(right, column)
            if column is not None and operand is not None:
                return c.Compare(column, said, operand)
        return c.Undecided()

    def _any(self, node: exp.Expression) -> c.Condition:
        column = self._column(node.this)
        operand = _bare(node.expression.this)
        cut = False
        if column is None:
            return c.Undecided()
        if isinstance(operand, exp.Cast):
            written = operand.to
            element = (
                written.expressions[0] if written.this == exp.DataType.Type.ARRAY and written.expressions else None
            )
            if element is None or not self._casts(operand, element, column, frozenset(_CASTS.values())):
                return c.Undecided()
            cut = self._type(column) in _CUTTING
            operand = _bare(operand.this)
        if isinstance(operand, exp.Parameter):
            return c.AnyOf(column, c.Parameter(self._parameters[number_of(operand)], cut))
        return c.Undecided()

    def _in(self, node: exp.In) -> c.Condition:
        column = self._column(node.this)
        operands = [self._operand(each, column) for each in node.expressions]
        known = tuple(operand for operand in operands if operand is not None)
        # PostgreSQL gives all list members one type: a parameter's type would change the meaning of a literal.
        alike = len({isinstance(operand, c.Parameter) for operand in known}) == 1
        if column is None or len(known) != len(operands) or not alike or not has_only(node, {"this", "expressions"}):
            return c.Undecided()
        return c.OneOf(column, known)

    def _between(self, node: exp.Between) -> c.Condition:
        column = self._column(node.this)
        low, high = self._operand(node.args["low"], column), self._operand(node.args["high"], column)
        if column is None or low is None or high is None or not has_only(node, {"this", "low", "high"}):
            return c.Undecided()
        return c.All((c.Compare(column, ">=", low), c.Compare(column, "<=", high)))

    def _is(self, node: exp.Is) -> c.Condition:
        found: c.Condition = c.Undecided()
        if not has_only(node, {"this", "expression", "negate"}):
            return found
        asked = node.expression
        if isinstance(asked, exp.Null):
            column = self._column(node.this)
            found = c.Undecided() if column is None else c.IsNull(column)
        elif isinstance(asked, exp.Boolean):
            value = c.Constant(bool(asked.this))
            found = self._boolean(node.this, lambda column: c.Not(c.Distinct(column, value)))
        return c.Not(found) if node.args.get("negate") else found

    def _distinct(self, node: exp.Expression) -> c.Condition:
        for left, right in ((node.this, node.expression), (node.expression, node.this)):
            column = self._column(left)
            operand = self._operand(right, column)
            if column is not None and operand is not None and has_only(node, _BINARY):
                found = c.Distinct(column, operand)
                return found if isinstance(node, exp.NullSafeNEQ) else c.Not(found)
        return c.Undecided()

    def _boolean(self, node: exp.Expression, make: Whatever) -> c.Condition:
        column = self._column(node)
        if column is None or self._type(column) != "boolean":
            return c.Undecided()
        found: c.Condition = make(column)
        return found

    def _type(self, column: str) -> str | None:
        known = self._columns[column]
        return known.type if known is not None else None

    def _column(self, node: exp.Expression) -> str | None:
        """Return the column of this source that an expression certainly is."""
        node = _bare(node)
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            return None
        if not has_only(node, {"this", "table"}):
            return None
        name, qualifier = fold(node.this), node.args.get("table")
        if qualifier:
            owners = [source for source in self._visible if source.alias == fold(qualifier)]
        elif any(source.columns is None for source in self._visible):
            return None
        elif name in _BARE and not node.this.args.get("quoted"):
            owners = []
        else:
            owners = [source for source in self._visible if source.columns and name in source.columns]
        return name if owners == [self._source] and self._columns.get(name) is not None else None

    def _operand(self, node: exp.Expression, column: str | None) -> c.Operand | None:
        """Return the constant or parameter that an expression certainly is, for a comparison with a column."""
        node = _bare(node)
        if column is None:
            return None
        cut = False
        if type(node) is exp.Cast:
            inner = _bare(node.this)
            if isinstance(inner, exp.Parameter):
                kept = frozenset(_CASTS.values())
                cut = self._type(column) in _CUTTING
            elif isinstance(inner, exp.Null) or (isinstance(inner, exp.Literal) and inner.is_string):
                kept = frozenset(_CASTS.values())
            elif isinstance(inner, exp.Literal) and isinstance(_numeral(inner.name), int):
                kept = _INTEGERS | {"numeric"}
            elif isinstance(inner, exp.Boolean):
                kept = frozenset({"boolean"})
            else:
                return None
            if not self._casts(node, node.to, column, kept):
                return None
            node = inner
        match node:
            case exp.Parameter():
                return c.Parameter(self._parameters[number_of(node)], cut)
            case exp.Null():
                return c.Constant(None)
            case exp.Boolean():
                return c.Constant(bool(node.this))
            case exp.Literal():
                return c.Constant(node.this) if node.is_string else _constant(node.name)
            case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
                return _constant(node.this.name, negative=True)
        return None

    def _casts(self, cast: exp.Cast, written: exp.Expression, column: str, kept: frozenset[str]) -> bool:
        """Whether a cast names exactly the type of a column, and the type keeps the value unchanged."""
        if not isinstance(written, exp.DataType) or not has_only(written, {"this", "nested"}):
            return False
        if not has_only(cast, {"this", "to"}):
            return False
        to, of = _CASTS.get(written.this.name), self._type(column)
        return to in kept and (to == of or {to, of} <= _STRINGS)


def _bare(node: Whatever) -> exp.Expression:
    while isinstance(node, exp.Paren):
        node = node.this
    found: exp.Expression = node
    return found


def _numeral(text: str) -> int | Decimal | None:
    if text.isascii() and text.isdigit():
        return int(text)
    return Decimal(text) if re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) else None


def _constant(text: str, *, negative: bool = False) -> c.Constant | None:
    value = _numeral(text)
    if value is None or not negative:
        return None if value is None else c.Constant(value)
    return c.Constant(value.copy_negate() if isinstance(value, Decimal) else -value)


def flatten(node: exp.Expression, kind: type[exp.Connector]) -> list[exp.Expression]:
    """Return the parts of a chain of ANDs or of ORs, in order; chains may have any length."""
    parts: list[exp.Expression] = []
    pending = [node]
    while pending:
        part = _bare(pending.pop())
        if isinstance(part, kind):
            pending += [part.expression, part.this]
        else:
            parts.append(part)
    return parts


def all_of(conditions: Iterable[c.Condition]) -> c.Condition:
    found = tuple(conditions)
    return found[0] if len(found) == 1 else c.All(found)


def useless(condition: c.Condition) -> bool:
    """Whether a condition can never be decided against a row."""
    match condition:
        case c.Undecided():
            return True
        case c.Not(condition=c.All(conditions=parts) | c.Any(conditions=parts)):
            return bool(parts) and all(map(useless, parts))
        case c.Not():
            return useless(condition.condition)
        case c.All():
            return all(map(useless, condition.conditions))
        case c.Any():
            return any(map(useless, condition.conditions))
    return False


def rejects_nulls(condition: c.Condition) -> bool:
    """Whether a condition is certainly not true for a row of nulls."""
    match condition:
        case c.Compare() | c.OneOf() | c.AnyOf():
            return True
        case c.Distinct():
            return condition.operand == c.Constant(None)
        case c.All():
            return any(map(rejects_nulls, condition.conditions))
        case c.Any():
            return all(map(rejects_nulls, condition.conditions))
        case c.Not(condition=inner):  # NOT (null = ANY ('{}')) is true
            match inner:
                case c.Compare() | c.OneOf() | c.IsNull():
                    return True
                case c.Distinct(operand=c.Constant(value=value)):
                    return value is not None
    return False
