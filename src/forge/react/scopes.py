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
from collections.abc import Iterator, Mapping
from typing import Any as Whatever
from typing import Final

import msgspec
import sqlglot
from sqlglot import exp

from forge.conditions import tree as c
from forge.errors import StatementUnreadable
from forge.react.expressions import (
    ConditionReader,
    FromEntry,
    Name,
    Relation,
    all_of,
    flatten,
    fold,
    has_only,
    name_of,
    number_of,
    rejects_nulls,
    useless,
)


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
        found = Counter(number_of(node) for node in nodes if isinstance(node, exp.Parameter))
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
        return frozenset(name_of(table) for table in self._tables())

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
                Occurrence(relation.oid, all_of(asked.get(id(table), ())))
                for table in self._tables()
                if (relation := relations.get(name_of(table))) and relation.table and _cte(table) is None
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
        if source is None or not has_only(self._select, _SELECT) or not all(map(_understood, joins)):
            return
        first = self._source(source.this)
        chain, sources = [first], [first]
        asked: list[tuple[FromEntry, c.Condition]] = []
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

    def _joined(self, join: exp.Join, chain: list[FromEntry]) -> list[tuple[FromEntry, c.Condition]]:
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
        self, node: exp.Expression, filtered: list[FromEntry], visible: list[FromEntry]
    ) -> Iterator[tuple[FromEntry, c.Condition]]:
        for source in filtered:
            if source.relation is not None:
                reading = ConditionReader(source, source.relation, visible, self._parameters)
                for conjunct in flatten(node, exp.And):
                    found = reading.condition(conjunct)
                    if not useless(found) and (rejects_nulls(found) or not source.nullable):
                        yield source, found

    def _source(self, node: exp.Expression) -> FromEntry:
        alias = node.args.get("alias")
        renamed = [fold(column) for column in alias.columns if isinstance(column, exp.Identifier)] if alias else []
        name = fold(alias.this) if alias and alias.this else ""
        relation: Relation | None = None
        columns: frozenset[str] | None = None
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            name = name or fold(node.this)
            if has_only(node, _TABLE):
                cte = _cte(node)
                if cte is not None:
                    columns = _output(cte, renamed)
                elif (known := self._relations.get(name_of(node))) and not renamed:
                    relation = known if known.table else None
                    columns = frozenset(known.columns)
        elif (
            isinstance(node, exp.Lateral) and has_only(node, {"this", "alias"}) and isinstance(node.this, exp.Subquery)
        ):
            columns = _output(node.this, renamed)
        elif isinstance(node, exp.Subquery):
            columns = _output(node, renamed)
        return FromEntry(node, name or node.alias_or_name, relation, columns)


def _understood(join: exp.Join) -> bool:
    return (
        has_only(join, _JOIN)
        and (join.args.get("side") or "").upper() in ("", "LEFT", "RIGHT", "FULL")
        and (join.args.get("kind") or "").upper() in ("", "INNER", "OUTER", "CROSS")
        and (join.args.get("method") or "").upper() in ("", "NATURAL")
    )


def _is_comma(join: exp.Join) -> bool:
    return not any(join.args.get(part) for part in ("side", "kind", "method", "on", "using"))


def _output(node: exp.Expression, renamed: list[str]) -> frozenset[str] | None:
    """Return the output column names of a subquery or common table expression; None when they are uncertain."""
    names: list[str] = []
    while not isinstance(node, exp.Select):
        if isinstance(node, exp.CTE) and has_only(node, {"this", "alias", "materialized"}):
            renamed = renamed or [fold(column) for column in node.args["alias"].columns]
        elif not (isinstance(node, exp.Subquery) and has_only(node, {"this", "alias"})) and not isinstance(
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
