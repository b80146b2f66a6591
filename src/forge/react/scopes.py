"""Conditions that the text of a query puts on each table it names.

Input: SQL with psycopg's placeholders, and the meaning of its table names. Output: for every place that names a plain
table, a condition that a row must meet to matter there. No database is needed.

Each SELECT is analysed separately: a row that fails the conditions of its WHERE and joins on that table alone never
leaves that SELECT, regardless of the surrounding query.

Invariants:
- Removing a row that fails the condition of every occurrence of its table changes no result. An expression that is not
  understood with certainty therefore adds no condition, or is `Undecided`.

Outer joins:
- ON filters only the side whose unmatched rows are dropped: the right of LEFT, the left of RIGHT, none of FULL.
- Later conditions filter a table that a join can fill with nulls only where nulls do not pass (`IS NULL` on it is an
  anti-join: a *missing* row produces a result).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any as Whatever
from typing import Final

import msgspec
import sqlglot
from sqlglot import exp

from forge.conditions import tree as c
from forge.conditions.canonical import ColumnType
from forge.errors import StatementUnreadable

Name = tuple[str | None, str]
"""A table's name, folded by PostgreSQL's rules: the schema if written, and the table."""


class Relation(msgspec.Struct, frozen=True):
    """The meaning of a name: a plain table, or another relation whose columns are known (a view).

    Conditions must not use a column that has no type here (IS NULL of a composite type looks inside the value).
    """

    oid: int
    table: bool
    columns: Mapping[str, ColumnType | None]


class Occurrence(msgspec.Struct, frozen=True):
    """One place that names a plain table, and the condition a row must meet to matter there."""

    oid: int
    condition: c.Condition


class Statement:
    """One parsed query."""

    def __init__(self, sql: str) -> None:
        text, self._parameters = _numbered(sql)
        try:
            trees = [tree for tree in sqlglot.parse(text, dialect="postgres") if tree is not None]
            nodes = list(trees[0].walk()) if len(trees) == 1 else []
        except Exception as error:  # a parser bug must not fail the query
            raise StatementUnreadable(str(error)) from error
        if not nodes:
            raise StatementUnreadable("not one statement")
        found = Counter(_number(node) for node in nodes if isinstance(node, exp.Parameter))
        if found != Counter(self._parameters.keys()):
            raise StatementUnreadable("not every placeholder stands for a value")
        self._nodes = nodes

    @property
    def is_query(self) -> bool:
        """Whether the statement writes nothing."""
        query = isinstance(self._nodes[0], exp.Query | exp.Values)
        return query and not any(isinstance(node, exp.DML) for node in self._nodes)

    @property
    def names(self) -> frozenset[Name]:
        """Every name that may refer to a table."""
        return frozenset(_name(table) for table in self._tables())

    @property
    def strings(self) -> frozenset[str]:
        """Every string literal."""
        return frozenset(node.this for node in self._nodes if isinstance(node, exp.Literal) and node.is_string)

    @property
    def whole_rows(self) -> bool:
        """Whether a table's name may refer to a whole row somewhere."""
        names = {fold(node.this) for node in self._nodes if isinstance(node, exp.TableAlias) and node.this}
        names |= {name for _, name in self.names}
        for node in self._nodes:
            if not isinstance(node, exp.Column):
                continue
            if isinstance(node.this, exp.Star):
                if not isinstance(node.parent, exp.Select):
                    return True
            elif not node.args.get("table") and isinstance(node.this, exp.Identifier) and fold(node.this) in names:
                return True
        return False

    def occurrences(self, relations: Mapping[Name, Relation]) -> tuple[Occurrence, ...]:
        """Return every place that names one of the plain tables, in text order."""
        try:
            asked: dict[int, list[c.Condition]] = {}
            for node in self._nodes:
                if isinstance(node, exp.Select):
                    for table, found in _Scope(node, relations, self._parameters).conditions():
                        asked.setdefault(id(table), []).append(found)
            return tuple(
                Occurrence(relation.oid, _all(asked.get(id(table), ())))
                for table in self._tables()
                if (relation := relations.get(_name(table))) and relation.table and _cte(table) is None
            )
        except RecursionError as error:
            raise StatementUnreadable("nested too deeply") from error

    def _tables(self) -> Iterator[exp.Table]:
        for node in self._nodes:
            if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
                yield node


_PLACEHOLDER: Final = re.compile(r"%(?:(%)|\(([^)]+)\)[sbt]|[sbt])")


def _numbered(sql: str) -> tuple[str, dict[int, str]]:
    """Give each placeholder its own number; return the text and the parameter of each number."""
    names: dict[int, str] = {}
    positional = 0

    def number(match: re.Match[str]) -> str:
        nonlocal positional
        if match[1]:
            return "%"
        name = match[2]
        if name is None:
            name, positional = str(positional), positional + 1
        names[len(names) + 1] = name
        return f" ${len(names)} "

    return _PLACEHOLDER.sub(number, sql), names


def _number(node: exp.Parameter) -> int:
    text = node.this.name if isinstance(node.this, exp.Literal) else ""
    return int(text) if text.isascii() and text.isdigit() else 0


_UPPER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def fold(identifier: exp.Expression) -> str:
    """Return an identifier as PostgreSQL stores it: lower case unless quoted, and at most 63 bytes."""
    name = identifier.name if identifier.args.get("quoted") else identifier.name.translate(_UPPER)
    return name.encode()[:63].decode(errors="ignore")


def _name(table: exp.Table) -> Name:
    schema = table.args.get("db")
    return (fold(schema) if schema else None, fold(table.this))


def _cte(table: exp.Table) -> exp.CTE | None:
    """Return the common table expression that a table name refers to, if any."""
    if table.args.get("db"):
        return None
    name = fold(table.this)
    below: Whatever = table
    inside: exp.CTE | None = None
    above: Whatever = table.parent
    while above is not None:
        if isinstance(below, exp.CTE):
            inside = below
        clause = above.args.get("with_")
        if isinstance(clause, exp.With) and not isinstance(above, exp.With):
            for cte in clause.expressions:
                if cte is inside and below is clause and not clause.args.get("recursive"):
                    break  # in WITH without RECURSIVE, a member sees only earlier members
                if fold(cte.args["alias"].this) == name:
                    return cte if isinstance(cte, exp.CTE) else None
        below, above = above, above.parent
    return None


class _Source(msgspec.Struct, eq=False):
    """One entry of a FROM clause. `relation` is set for a plain table that conditions may use; `columns` is None when
    unknown. `nullable`: whether a join so far can fill it with nulls."""

    node: exp.Expression
    alias: str
    relation: Relation | None
    columns: frozenset[str] | None
    nullable: bool = False


_SELECT: Final = {
    *("with_", "kind", "expressions", "hint", "distinct", "from_", "joins", "where"),
    *("group", "having", "windows", "order", "limit", "offset", "locks"),
}
_JOIN: Final = {"this", "side", "kind", "method", "on", "using"}
_TABLE: Final = {"this", "db", "catalog", "alias", "only"}


class _Scope:
    """One SELECT: its sources and their conditions."""

    def __init__(self, select: exp.Select, relations: Mapping[Name, Relation], parameters: Mapping[int, str]) -> None:
        self._select = select
        self._relations = relations
        self._parameters = parameters

    def conditions(self) -> Iterator[tuple[exp.Expression, c.Condition]]:
        """Yield tables of this FROM clause, each with a condition on it."""
        source = self._select.args.get("from_")
        joins = self._select.args.get("joins") or []
        if source is None or not _only(self._select, _SELECT) or not all(map(_understood, joins)):
            return
        first = self._source(source.this)
        chain, sources = [first], [first]
        asked: list[tuple[_Source, c.Condition]] = []
        for join in joins:
            right = self._source(join.this)
            if _is_comma(join):  # binds less tightly than JOIN: the next joins apply only to this one
                chain = [right]
            else:
                chain.append(right)
                asked += self._joined(join, chain)
            sources.append(right)
        where = self._select.args.get("where")
        if where is not None:
            asked += self._asked(where.this, sources, sources)
        aliases = Counter(source.alias for source in sources)
        if any(count > 1 for alias, count in aliases.items() if alias):
            return
        for source, found in asked:
            yield source.node, found

    def _joined(self, join: exp.Join, chain: list[_Source]) -> list[tuple[_Source, c.Condition]]:
        """Return the conditions that a join's ON puts on its sides; mark the side that it can fill with nulls."""
        *left, right = chain
        side = (join.args.get("side") or "").upper()
        filtered = {"LEFT": [right], "RIGHT": left, "FULL": []}.get(side, chain)
        on = join.args.get("on")
        asked = list(self._asked(on, filtered, chain)) if on is not None else []
        for source in {"LEFT": [right], "RIGHT": left, "FULL": chain}.get(side, []):
            source.nullable = True
        return asked

    def _asked(
        self, node: exp.Expression, filtered: list[_Source], visible: list[_Source]
    ) -> Iterator[tuple[_Source, c.Condition]]:
        for source in filtered:
            if source.relation is not None:
                reading = _Reading(source, source.relation, visible, self._parameters)
                for conjunct in _flatten(node, exp.And):
                    found = reading.condition(conjunct)
                    if not _useless(found) and (rejects_nulls(found) or not source.nullable):
                        yield source, found

    def _source(self, node: exp.Expression) -> _Source:
        alias = node.args.get("alias")
        renamed = [fold(column) for column in alias.columns if isinstance(column, exp.Identifier)] if alias else []
        name = fold(alias.this) if alias and alias.this else ""
        relation: Relation | None = None
        columns: frozenset[str] | None = None
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            name = name or fold(node.this)
            if _only(node, _TABLE):
                cte = _cte(node)
                if cte is not None:
                    columns = _output(cte, renamed)
                elif (known := self._relations.get(_name(node))) and not renamed:
                    relation = known if known.table else None
                    columns = frozenset(known.columns)
        elif isinstance(node, exp.Lateral) and _only(node, {"this", "alias"}) and isinstance(node.this, exp.Subquery):
            columns = _output(node.this, renamed)
        elif isinstance(node, exp.Subquery):
            columns = _output(node, renamed)
        return _Source(node, name or node.alias_or_name, relation, columns)


def _understood(join: exp.Join) -> bool:
    return (
        _only(join, _JOIN)
        and (join.args.get("side") or "").upper() in ("", "LEFT", "RIGHT", "FULL")
        and (join.args.get("kind") or "").upper() in ("", "INNER", "OUTER", "CROSS")
        and (join.args.get("method") or "").upper() in ("", "NATURAL")
    )


def _is_comma(join: exp.Join) -> bool:
    return not any(join.args.get(part) for part in ("side", "kind", "method", "on", "using"))


def _only(node: exp.Expression, parts: Iterable[str]) -> bool:
    """Whether a node has only these parts."""
    return all(not value or part in parts for part, value in node.args.items())


def _output(node: exp.Expression, renamed: list[str]) -> frozenset[str] | None:
    """Return the output column names of a subquery or common table expression; None when they are uncertain."""
    names: list[str] = []
    while not isinstance(node, exp.Select):
        if isinstance(node, exp.CTE) and _only(node, {"this", "alias", "materialized"}):
            renamed = renamed or [fold(column) for column in node.args["alias"].columns]
        elif not (isinstance(node, exp.Subquery) and _only(node, {"this", "alias"})) and not isinstance(
            node, exp.SetOperation
        ):
            return None
        node = node.this
    if node.args.get("kind"):
        return None
    for selected in node.expressions:
        if isinstance(selected, exp.Alias):
            names.append(fold(selected.args["alias"]))
        elif isinstance(selected, exp.Column) and isinstance(selected.this, exp.Identifier):
            names.append(fold(selected.this))
        else:
            return None
    return frozenset(renamed + names[len(renamed) :])


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


class _Reading:
    """Convert expressions to conditions on one source's rows, given the sources visible there."""

    def __init__(
        self, source: _Source, relation: Relation, visible: list[_Source], parameters: Mapping[int, str]
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
                return c.All(tuple(map(self.condition, _flatten(node, exp.And))))
            case exp.Or():
                return c.Any(tuple(map(self.condition, _flatten(node, exp.Or))))
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
        if type(node) in _COMPARISONS and _only(node, _BINARY):
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
            return c.AnyOf(column, c.Parameter(self._parameters[_number(operand)], cut))
        return c.Undecided()

    def _in(self, node: exp.In) -> c.Condition:
        column = self._column(node.this)
        operands = [self._operand(each, column) for each in node.expressions]
        known = tuple(operand for operand in operands if operand is not None)
        # PostgreSQL gives all list members one type: a parameter's type would change the meaning of a literal.
        alike = len({isinstance(operand, c.Parameter) for operand in known}) == 1
        if column is None or len(known) != len(operands) or not alike or not _only(node, {"this", "expressions"}):
            return c.Undecided()
        return c.OneOf(column, known)

    def _between(self, node: exp.Between) -> c.Condition:
        column = self._column(node.this)
        low, high = self._operand(node.args["low"], column), self._operand(node.args["high"], column)
        if column is None or low is None or high is None or not _only(node, {"this", "low", "high"}):
            return c.Undecided()
        return c.All((c.Compare(column, ">=", low), c.Compare(column, "<=", high)))

    def _is(self, node: exp.Is) -> c.Condition:
        found: c.Condition = c.Undecided()
        if not _only(node, {"this", "expression", "negate"}):
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
            if column is not None and operand is not None and _only(node, _BINARY):
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
        if not _only(node, {"this", "table"}):
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
                return c.Parameter(self._parameters[_number(node)], cut)
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
        if not isinstance(written, exp.DataType) or not _only(written, {"this", "nested"}):
            return False
        if not _only(cast, {"this", "to"}):
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


def _flatten(node: exp.Expression, kind: type[exp.Connector]) -> list[exp.Expression]:
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


def _all(conditions: Iterable[c.Condition]) -> c.Condition:
    found = tuple(conditions)
    return found[0] if len(found) == 1 else c.All(found)


def _useless(condition: c.Condition) -> bool:
    """Whether a condition can never be decided against a row."""
    match condition:
        case c.Undecided():
            return True
        case c.Not(condition=c.All(conditions=parts) | c.Any(conditions=parts)):
            return bool(parts) and all(map(_useless, parts))
        case c.Not():
            return _useless(condition.condition)
        case c.All():
            return all(map(_useless, condition.conditions))
        case c.Any():
            return any(map(_useless, condition.conditions))
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
