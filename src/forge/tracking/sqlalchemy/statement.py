"""Analysis of a compiled INSERT, UPDATE or DELETE of SQLAlchemy: the rows it touches.

It runs once per compiled statement, which SQLAlchemy caches, and is then used with the parameters of each execution.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import BindParameter, Column, ColumnElement, Delete, Insert, Table, UniqueConstraint, Update, bindparam
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BinaryExpression, BooleanClauseList, ClauseElement, Grouping
from sqlalchemy.sql.sqltypes import TupleType

from forge.tracking.sqlalchemy.images import Key, Lock, TableImages

Parameters = Sequence[Mapping[str, Any]]


class StatementAnalysis:
    """One compiled statement on one table."""

    def __init__(self, compiled: Any, statement: Insert | Update | Delete, shape: TableImages) -> None:
        self.statement: Final = statement
        self.shape: Final = shape
        self._names: dict[BindParameter[Any], str] = compiled.bind_names
        self.conditions: Final[tuple[ColumnElement[Any], ...]] = tuple(getattr(statement, "_where_criteria", ()))
        self._key_binds, self.exact = self._by_key()
        self.new_key: Final = self._new_key(set(compiled.column_keys or ()))
        self._selects: dict[Any, tuple[Any, dict[str, str]]] = {}

    def keys(self, parameters: Parameters) -> list[Key] | None:
        """Return the keys that the WHERE lists; None if it selects rows in another way."""
        if self._key_binds is None:
            return None
        names = self._key_binds
        found = [tuple([given[name] for name in names]) for given in parameters]
        return None if any(None in key for key in found) else found

    def select(self, filters: tuple[ColumnElement[bool], ...], *, lock: Lock | None) -> tuple[Any, dict[str, str]]:
        """Return a SELECT of the rows that the WHERE finds, and a map from the statement's parameter names to its own.

        For an update that computes a key, each row ends with the columns of the new key.
        """
        found = self._selects.get((filters, lock))
        if found is None:
            names: dict[str, str] = {}

            def renamed(element: Any, **_: Any) -> Any:
                if not isinstance(element, BindParameter):
                    return None
                name = self._names[element]  # a parameter that is not the statement's own would have a stale value
                mine = names.setdefault(name, f"forge_{len(names)}")
                return bindparam(
                    mine, type_=element.type, expanding=element.expanding, literal_execute=element.literal_execute
                )

            query = self.shape.reading(filters)
            query = query.add_columns(*(visitors.replacement_traverse(new, {}, renamed) for new in self.computed))
            query = query.where(*(visitors.replacement_traverse(each, {}, renamed) for each in self.conditions))
            if lock is not None:
                query = self.shape.locking(query, lock)
            found = self._selects[filters, lock] = (query, names)
        return found

    def moved(self, key: Key, given: Mapping[str, Any], computed: Sequence[Any] = ()) -> Key:
        """Return the new key: from parameters, or from the computed columns that `select` adds."""
        values = iter(computed)
        return tuple(
            [
                kept if new is None else given[new] if isinstance(new, str) else next(values)
                for kept, new in zip(key, self.new_key, strict=True)
            ]
        )

    @property
    def moves(self) -> bool:
        """Whether an UPDATE sets a column of the key."""
        return any(new is not None for new in self.new_key)

    @property
    def computed(self) -> list[ColumnElement[Any]]:
        """The key columns that an UPDATE computes."""
        return [new for new in self.new_key if new is not None and not isinstance(new, str)]

    @property
    def may_collide(self) -> bool:
        """Whether an INSERT has a clause for existing rows."""
        return isinstance(self.statement, Insert) and collides(self.statement)

    @property
    def skips(self) -> bool:
        """Whether an INSERT leaves existing rows unchanged."""
        clause = getattr(self.statement, "_post_values_clause", None)
        return getattr(clause, "__visit_name__", "") == "on_conflict_do_nothing"

    def _by_key(self) -> tuple[list[str] | None, bool]:
        """Return the parameters that a WHERE compares with the whole key, and whether it has no other condition."""
        bound: dict[str, str] = {}
        exact = True
        for part in _conjuncts(self.conditions):
            column, value = _equality(part)
            name = self._names.get(value) if value is not None else None
            if column is None or name is None or value is None or value.expanding or column.table is None:
                exact = False
            elif column.name in self.shape.table.c and _same_table(column.table, self.shape.table):
                if column.name in bound:
                    exact = False
                bound.setdefault(column.name, name)
                exact = exact and self.shape.table.c[column.name].primary_key
            else:
                exact = False
        names = [bound.get(column.name) for column in self.shape.key]
        if not names or any(name is None for name in names):
            return None, False
        return [name for name in names if name is not None], exact

    def _new_key(self, given: set[str]) -> list[str | ColumnElement[Any] | None]:
        """Return the new value of each key column: a parameter's name, an expression, or None if unchanged."""
        if not isinstance(self.statement, Update):
            return [None] * len(self.shape.key)
        values = {**(self.statement._values or {}), **dict(getattr(self.statement, "_ordered_values", None) or ())}
        said = {getattr(name, "key", name): value for name, value in values.items()}
        found: list[str | ColumnElement[Any] | None] = []
        for column in self.shape.key:
            value = said.get(column.key)
            if isinstance(value, ColumnElement) and not isinstance(value, BindParameter):
                found.append(value)
            else:
                found.append(column.key if column.key in said or column.key in given else None)
        return found


def given_parameters(context: Any) -> Parameters:
    """Return the parameters of an execution by name, with lists for IN as given, before SQLAlchemy expands them."""
    spread: Mapping[str, list[str]] = context._expanded_parameters
    if not spread:
        found: Parameters = context.compiled_parameters
        return found
    given = dict(context.compiled_parameters[0])
    for name, parts in spread.items():
        values = [given[part] for part in parts]
        kind = context.compiled.binds[name].type
        width = len(kind.types) if isinstance(kind, TupleType) else 0
        given[name] = [tuple(values[at : at + width]) for at in range(0, len(values), width)] if width else values
    return [given]


def collides(statement: Insert) -> bool:
    """Whether an INSERT has a clause for existing rows: ON CONFLICT, ON DUPLICATE KEY, OR REPLACE, IGNORE."""
    return statement._post_values_clause is not None or bool(statement._prefixes)


def unique_sets(table: Table) -> list[tuple[Column[Any], ...]]:
    """Return the sets of columns that are unique: the key, unique constraints and unique indexes."""
    found: list[tuple[Column[Any], ...]] = [tuple(table.primary_key.columns)] if table.primary_key.columns else []
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            found.append(tuple(constraint.columns))
    for index in table.indexes:
        if index.unique and len(index.columns) == len(index.expressions):
            found.append(tuple(index.columns))
    return list(dict.fromkeys(found))


def given_rows(statement: Insert, parameters: Parameters) -> list[Mapping[str, Any]]:
    """Return the values of an INSERT, row by row, by the keys of its columns."""
    if not statement._multi_values:
        return list(parameters)
    given = parameters[0]
    rows: list[Mapping[str, Any]] = []
    for values in statement._multi_values:
        for place in range(len(values)):
            end = f"_m{place}"
            rows.append({name[: -len(end)]: value for name, value in given.items() if name.endswith(end)})
    return rows


def _conjuncts(conditions: Sequence[Any]) -> Iterator[ClauseElement]:
    for condition in conditions:
        if isinstance(condition, Grouping):
            yield from _conjuncts([condition.element])
        elif isinstance(condition, BooleanClauseList) and condition.operator is operators.and_:
            yield from _conjuncts(condition.clauses)
        else:
            yield condition


def _equality(condition: ClauseElement) -> tuple[Column[Any] | None, BindParameter[Any] | None]:
    if isinstance(condition, BinaryExpression) and condition.operator is operators.eq:
        left, right = condition.left, condition.right
        if isinstance(right, Column) and isinstance(left, BindParameter):
            left, right = right, left
        if isinstance(left, Column) and isinstance(right, BindParameter):
            return left, right
    return None, None


def _same_table(left: Any, right: Table) -> bool:
    return isinstance(left, Table) and left.key == right.key
