"""Random SELECTs over a schema. Nothing here speaks to a server.

Every query leaves PostgreSQL no choice but that of order: what is made DISTINCT, grouped, limited or taken the least
of is in a form in which equal values are the same (see `Kind.exact`), LIMIT comes with an ORDER BY of all that is
selected, and aggregates that depend on order have one. Nothing in it changes without a write.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from tests.checkers.oracle.plan import Query, Shape
from tests.checkers.oracle.schema import Column, Relation, Schema
from tests.checkers.oracle.values import KINDS, Kind, Value, draw, literal, quoted

Draws = dict[str, Callable[[], Value]]
_Choice = TypeVar("_Choice")
_DEEPEST: Final = 2


class Source(msgspec.Struct, frozen=True):
    """Something in a FROM clause. `key` are columns that tell its rows apart."""

    alias: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()


class Output(msgspec.Struct, frozen=True):
    """An expression and its kind; `exact` when equal values of it are the same."""

    sql: str
    kind: str
    exact: bool = False

    def told_apart(self) -> "Output":
        if self.exact:
            return self
        form = KINDS[self.kind].exact
        return Output(form.format(self.sql), "text" if "::text" in form else self.kind, exact=True)


class Selected(msgspec.Struct, frozen=True):
    """A SELECT, what it returns, and which of that tells its rows apart."""

    sql: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    ordered: bool = False
    single: bool = False


class Maker:
    """Makes queries. `constants` makes them without parameters; `joins` is the share of plain outer joins."""

    def __init__(self, schema: Schema, chance: random.Random, *, constants: bool = False, joins: float = 0.0) -> None:
        self._schema = schema
        self._chance = chance
        self._constants = constants
        self._joins = joins
        self._draws: Draws = {}
        self._aliases = 0

    def query(self) -> tuple[Query, Draws]:
        """A query, and how to draw a value for each of its parameters."""
        self._draws, self._aliases = {}, 0
        made = self.statement()
        statements = [made.sql]
        shape: Shape = "rows"
        if made.single and self._chance.random() < 0.5:
            shape = "one" if self._chance.random() < 0.5 else "value"
        elif self._chance.random() < 0.08:
            statements.append(self.statement().sql)
        key = made.key
        if shape != "rows" or len(statements) > 1:
            key = ()
        elif not key and self._chance.random() < 0.3:
            key = tuple(column.name for column in made.columns)
        ordered = made.ordered and len(statements) == 1
        return Query(tuple(statements), key, shape, ordered), dict(self._draws)

    def statement(self) -> Selected:
        """A whole statement: a SELECT, or several put together."""
        if self._chance.random() < self._joins:
            return self._joined()
        chance = self._chance.random()
        if chance < 0.35:
            return self._filtered()
        if chance < 0.42:
            return self._joined()
        if chance < 0.6:
            return self.select(_DEEPEST, ())  # without subqueries
        if chance < 0.67:
            return self._with()
        if chance < 0.71:
            return self._recursive()
        if chance < 0.78:
            return self._combined()
        return self.select(0, ())

    def _filtered(self) -> Selected:
        """What applications mostly ask: the rows of a table for which some columns have some values."""
        clause, source = self._relation(self._schema.some_relation(self._chance, self._schema.relations), (), ())
        asked = []
        for _ in range(self._pick((1, 1, 1, 2, 3))):
            column = self._schema.some_column(self._chance, source.columns)
            name, kind = self._named(source, column, (source,)), KINDS[column.kind]
            asked.append(self._compared(name, kind) if self._chance.random() < 0.7 else self._listed(name, kind))
        tail = f" FROM {clause} WHERE {' AND '.join(asked)}"
        if self._chance.random() < 0.3:
            listed, returned = _written([self._aggregate((source,), _DEEPEST, ())])
            return Selected(f"SELECT {listed}{tail}", returned, ordered=True, single=True)
        outputs = [self._any_column((source,)) for _ in range(self._pick((1, 1, 2, 3)))]
        numbers = [column for column in source.columns if column.kind == "int"]
        if numbers and self._chance.random() < 0.04:  # fails for some rows
            outputs.append(Output(f"10 / {source.alias}.{self._pick(numbers).name}", "int"))
        return self._plain(tail, (source,), outputs)

    def _joined(self) -> Selected:
        """Two tables in an outer join, each asked something alone: in ON, in WHERE, or that it is not there."""
        relations = self._schema.relations
        left, first = self._relation(self._schema.some_relation(self._chance, relations), (), ())
        right, second = self._relation(self._schema.some_relation(self._chance, relations), (), (first,))
        side = self._pick(("LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "JOIN"))
        on = self._on([first], second)
        if side != "FULL JOIN" and self._chance.random() < 0.5:
            on += f" AND {self._alone(self._pick((first, second)))}"
        where = ""
        if self._chance.random() < 0.5:
            asked = [self._alone(self._pick((first, second))) for _ in range(self._pick((1, 1, 2)))]
            where = f" WHERE {self._pick((' AND ', ' AND ', ' OR ')).join(asked)}"
        tail = f" FROM {left} {side} {right} ON {on}{where}"
        if self._chance.random() < 0.3:
            return Selected(f"SELECT count(*) AS c0{tail}", (Column("c0", "big"),), ordered=True, single=True)
        return self._plain(tail, (first, second), [self._any_column((first, second))])

    def _alone(self, source: Source) -> str:
        """Something asked of one table alone."""
        column = self._schema.some_column(self._chance, source.columns)
        name, kind = f"{source.alias}.{column.name}", KINDS[column.kind]
        form = self._chance.random()
        if form < 0.3:
            return f"{name} IS {self._pick(('', '', 'NOT '))}NULL"
        if form < 0.4:
            return f"{name} IS {self._pick(('', 'NOT '))}DISTINCT FROM {self._operand(kind)}"
        compared = self._compared(name, kind) if form < 0.8 else self._listed(name, kind)
        return f"NOT ({compared})" if form > 0.95 else compared

    # Statements of several SELECTs

    def _with(self) -> Selected:
        inner = self.select(1, ())
        base = self._chance.choice(self._schema.tables)
        shadows = self._chance.random() < 0.25 and "." not in base.name
        name = base.name if shadows else "w"
        source = Source(name, inner.columns, inner.key)
        outer = self.select(1, (), offered=source)
        hint = self._pick(("", "", "", "MATERIALIZED ", "NOT MATERIALIZED "))
        return msgspec.structs.replace(outer, sql=f"WITH {name} AS {hint}({inner.sql}) {outer.sql}")

    def _recursive(self) -> Selected:
        table = self._pick([r for r in self._schema.relations if any(c.kind == "int" for c in r.columns)])
        names = [column.name for column in table.columns if column.kind == "int"]
        start, to, by = self._pick(names), self._pick(names), self._pick(names)
        source = Source("b", table.columns)
        first = f"SELECT b.{start} FROM {table.name} b WHERE {self.condition((source,), 1)}"
        if self._chance.random() < 0.5:
            step = "SELECT r.n + 1 FROM r WHERE r.n < 4"
        else:
            step = f"SELECT b.{to} FROM r JOIN {table.name} b ON b.{by} = r.n"
            if self._chance.random() < 0.5:
                step += f" WHERE {self.condition((source,), 2)}"
        outer = self.select(1, (), offered=Source("r", (Column("n", "int"),)))
        return msgspec.structs.replace(outer, sql=f"WITH RECURSIVE r (n) AS ({first} UNION {step}) {outer.sql}")

    def _combined(self) -> Selected:
        first = self.select(1, (), plain=True)
        kinds = tuple(column.kind for column in first.columns)
        second = self.select(1, (), kinds=kinds)
        how = self._pick(("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL", "INTERSECT ALL"))
        listed = ", ".join(f"c{n}" for n in range(len(kinds)))
        exact, columns = _written([Output(f"c{n}", kind).told_apart() for n, kind in enumerate(kinds)])
        left = f"SELECT {exact} FROM ({first.sql}) AS x ({listed})"
        right = f"SELECT {exact} FROM ({second.sql}) AS x ({listed})"
        sql = f"{left} {how} {right}"
        if self._chance.random() < 0.3:
            return Selected(f"{sql} ORDER BY {listed} LIMIT {self._chance.randint(1, 5)}", columns, ordered=True)
        return Selected(sql, columns)

    # One SELECT

    def select(
        self,
        depth: int,
        outer: tuple[Source, ...],
        *,
        kinds: tuple[str, ...] | None = None,
        offered: Source | None = None,
        plain: bool = False,
    ) -> Selected:
        """A SELECT that may speak of `outer`; of these kinds if they are given; from `offered` if that is given."""
        clause, sources = self._from(depth, outer, offered)
        where = f" WHERE {self.condition(sources, depth, outer)}" if self._chance.random() < 0.85 else ""
        tail = f" FROM {clause}{where}"
        if kinds is not None:
            listed, columns = _written([self._of_kind(kind, sources) for kind in kinds])
            return Selected(f"SELECT {listed}{tail}", columns)
        form = 0.0 if plain else self._chance.random()
        if form < 0.5:
            return self._plain(tail, sources, self._outputs(sources, depth, outer))
        if form < 0.62:
            return self._grouped(tail, sources, depth, outer)
        if form < 0.76:
            listed, columns = _written(
                [self._aggregate(sources, depth, outer) for _ in range(self._chance.randint(1, 3))]
            )
            return Selected(f"SELECT {listed}{tail}", columns, ordered=True, single=True)
        if form < 0.84:
            return self._windowed(tail, sources)
        if form < 0.92:
            return self._limited(tail, sources, self._outputs(sources, depth, outer))
        return self._distinct(tail, sources, self._outputs(sources, depth, outer))

    def _plain(self, tail: str, sources: Sequence[Source], outputs: list[Output]) -> Selected:
        key: tuple[str, ...] = ()
        if all(source.key for source in sources) and len(sources) <= 2 and self._chance.random() < 0.5:
            named = [(source, name) for source in sources for name in source.key]
            key = tuple(f"c{len(outputs) + n}" for n in range(len(named)))
            outputs = outputs + [Output(f"{s.alias}.{name}", _column(s, name).kind) for s, name in named]
        sql, columns = _written(outputs)
        order = ""
        if key and self._chance.random() < 0.5:
            order = " ORDER BY " + ", ".join(key)
        return Selected(f"SELECT {sql}{tail}{order}", columns, key, bool(order))

    def _limited(self, tail: str, sources: Sequence[Source], outputs: list[Output]) -> Selected:
        sql, columns = _written([output.told_apart() for output in outputs])
        directions = [f"{n + 1}{self._pick(('', ' DESC', ' NULLS FIRST'))}" for n in range(len(outputs))]
        self._chance.shuffle(directions)
        limit = str(self._chance.randint(0, 6))
        if not self._constants and self._chance.random() < 0.3:
            limit = self._parameter(lambda: Value("int", (str(self._chance.randint(0, 6)),)))
        offset = f" OFFSET {self._chance.randint(0, 3)}" if self._chance.random() < 0.3 else ""
        order = f" ORDER BY {', '.join(directions)} LIMIT {limit}{offset}"
        return Selected(f"SELECT {sql}{tail}{order}", columns, ordered=True)

    def _distinct(self, tail: str, sources: Sequence[Source], outputs: list[Output]) -> Selected:
        exact = [output.told_apart() for output in outputs]
        sql, columns = _written(exact)
        source = sources[0]
        if len(sources) == 1 and source.key and self._chance.random() < 0.4:
            on = exact[0].sql
            order = ", ".join([on, *(f"{source.alias}.{name}" for name in source.key)])
            return Selected(f"SELECT DISTINCT ON ({on}) {sql}{tail} ORDER BY {order}", columns, ("c0",), True)
        return Selected(f"SELECT DISTINCT {sql}{tail}", columns, tuple(column.name for column in columns))

    def _grouped(self, tail: str, sources: Sequence[Source], depth: int, outer: tuple[Source, ...]) -> Selected:
        by = [self._any_column(sources).told_apart() for _ in range(self._chance.randint(1, 2))]
        aggregates = [self._aggregate(sources, depth, outer) for _ in range(self._chance.randint(0, 2))]
        sql, columns = _written(by + aggregates)
        listed = ", ".join(str(n + 1) for n in range(len(by)))
        form = self._chance.random()
        group = f"ROLLUP ({', '.join(each.sql for each in by)})" if form < 0.1 else listed
        having = ""
        if self._chance.random() < 0.35:
            having = f" HAVING {self._having(sources, depth, outer)}"
        key = tuple(column.name for column in columns[: len(by)]) if form >= 0.1 else ()
        return Selected(f"SELECT {sql}{tail} GROUP BY {group}{having}", columns, key)

    def _having(self, sources: Sequence[Source], depth: int, outer: tuple[Source, ...]) -> str:
        aggregate = self._aggregate(sources, depth, outer)
        if not KINDS[aggregate.kind].number:
            return f"{aggregate.sql} IS NOT NULL"
        return f"{aggregate.sql} {self._operator()} {self._chance.randint(0, 3)}"

    def _windowed(self, tail: str, sources: Sequence[Source]) -> Selected:
        outputs = [self._any_column(sources) for _ in range(self._chance.randint(1, 2))]
        by, order = self._any_column(sources).told_apart(), self._any_column(sources).told_apart()
        numbers = [
            Output(f"{source.alias}.{column.name}", "big")
            for source in sources
            for column in source.columns
            if KINDS[column.kind].number and column.kind not in ("numeric", "float")
        ]
        summed = self._pick(numbers).sql if numbers else "1"
        partition = f"PARTITION BY {by.sql}" if self._chance.random() < 0.6 else ""
        forms = [
            f"rank() OVER ({partition} ORDER BY {order.sql})",
            f"dense_rank() OVER (ORDER BY {order.sql} DESC)",
            f"count(*) OVER ({partition})",
            f"sum({summed}) OVER ({partition} ORDER BY {order.sql})",
        ]
        source = sources[0]
        if len(sources) == 1 and source.key:
            total = ", ".join(f"{source.alias}.{name}" for name in source.key)
            forms += [f"row_number() OVER (ORDER BY {total})", f"lag({summed}) OVER ({partition} ORDER BY {total})"]
        return self._plain(tail, sources, [*outputs, Output(self._pick(forms), "big")])

    # What is selected

    def _outputs(self, sources: Sequence[Source], depth: int, outer: tuple[Source, ...]) -> list[Output]:
        return [self._output(sources, depth, outer) for _ in range(self._chance.randint(1, 4))]

    def _output(self, sources: Sequence[Source], depth: int, outer: tuple[Source, ...]) -> Output:
        form = self._chance.random()
        column = self._any_column(sources)
        if form < 0.7:
            return column
        source = self._pick(sources)
        if form < 0.75:
            return Output(self._pick((f"to_jsonb({source.alias})", f"row_to_json({source.alias})::jsonb")), "json")
        if form < 0.77:
            return Output(f"{source.alias}::text", "text")
        if form < 0.8:
            return Output(f"({source.alias} IS NOT NULL)", "bool")
        if form < 0.84 and depth < _DEEPEST:
            return Output(f"({self._scalar(sources, depth, outer)})", "big")
        if form < 0.88 and self._schema.functions:
            return Output(self._pick(self._schema.functions), "big")
        if form < 0.93:
            return Output(f"({self.condition(sources, _DEEPEST, outer)})", "bool")
        if form < 0.97:
            condition = self.condition(sources, _DEEPEST, outer)
            return Output(f"CASE WHEN {condition} THEN 'yes' ELSE 'no' END", "text")
        return Output(f"coalesce({column.sql}::text, 'none')", "text")

    def _scalar(self, sources: Sequence[Source], depth: int, outer: tuple[Source, ...]) -> str:
        """A subquery of one number."""
        seen = self._seen(sources, outer)
        clause, inner = self._from(depth + 1, seen)
        condition = self.condition(inner, depth + 1, seen)
        aggregate = self._pick(("count(*)", f"count({self._any_column(inner).sql})"))
        return f"SELECT {aggregate} FROM {clause} WHERE {condition}"

    def _aggregate(self, sources: Sequence[Source], depth: int, outer: tuple[Source, ...]) -> Output:
        column = self._any_column(sources)
        exact = column.told_apart()
        kind = KINDS[column.kind]
        source = self._pick(sources)
        forms = [
            Output("count(*)", "big"),
            Output(f"count({column.sql})", "big"),
            Output(f"count(DISTINCT {exact.sql})", "big"),
            Output(self._pick((f"count({source.alias})", f"count({source.alias}.*)")), "big"),
            Output(f"string_agg({exact.sql}::text, ',' ORDER BY {exact.sql}::text COLLATE \"C\")", "text"),
            Output(f"jsonb_agg({exact.sql} ORDER BY {exact.sql})", "json"),
        ]
        if kind.number:
            forms += [Output(f"sum({column.sql})", "numeric"), Output(f"avg({column.sql})", "numeric")]
        if kind.name == "bool":
            forms += [Output(f"bool_or({column.sql})", "bool"), Output(f"bool_and({column.sql})", "bool")]
        if kind.name in ("int", "small", "big", "numeric", "float", "text", "moment", "date", "enum"):
            forms += [Output(f"min({exact.sql})", column.kind), Output(f"max({exact.sql})", column.kind)]
        chosen = self._pick(forms)
        if self._chance.random() < 0.2:
            condition = self.condition(sources, _DEEPEST, outer)
            chosen = Output(f"{chosen.sql} FILTER (WHERE {condition})", chosen.kind)
        return chosen

    def _any_column(self, sources: Sequence[Source]) -> Output:
        source = self._pick(sources)
        column = self._pick(source.columns)
        return Output(self._named(source, column, sources), column.kind)

    def _of_kind(self, kind: str, sources: Sequence[Source]) -> Output:
        fitting = [(s, column) for s in sources for column in s.columns if column.kind == kind]
        if not fitting:
            return Output(f"{quoted(self._pick(KINDS[kind].texts)).replace('%', '%%')}::{KINDS[kind].sql}", kind)
        source, column = self._pick(fitting)
        return Output(f"{source.alias}.{column.name}", kind)

    def _named(self, source: Source, column: Column, sources: Sequence[Source]) -> str:
        """A column as somebody may write it."""
        others = sum(each.name == column.name for other in sources for each in other.columns)
        if others == 1 and self._chance.random() < 0.3:
            return column.name
        name = column.name.upper() if column.name.isalnum() and self._chance.random() < 0.05 else column.name
        return f"{source.alias}.{name}"

    # FROM

    def _from(
        self, depth: int, outer: tuple[Source, ...], offered: Source | None = None
    ) -> tuple[str, tuple[Source, ...]]:
        count = self._pick((1, 1, 1, 2, 2, 3) if depth == 0 else (1, 1, 1, 2))
        sql, first = (offered.alias, offered) if offered is not None else self._source(depth, outer, ())
        sources = [first]
        for _ in range(count - 1):
            sql, sources = self._join(sql, sources, depth, outer)
        return sql, tuple(sources)

    def _join(
        self, left: str, sources: list[Source], depth: int, outer: tuple[Source, ...]
    ) -> tuple[str, list[Source]]:
        form = self._chance.random()
        if form < 0.1 and depth < _DEEPEST:
            seen = self._seen(sources, outer)
            inner = self.select(_DEEPEST, seen)
            source = Source(self._alias(), inner.columns, ())
            how = self._pick(
                ("CROSS JOIN LATERAL ({0}) {1}", "LEFT JOIN LATERAL ({0}) {1} ON true", ", LATERAL ({0}) {1}")
            )
            return f"{left} {how.format(inner.sql, source.alias)}", [*sources, source]
        right, source = self._source(depth, outer, tuple(sources))
        joined = [*sources, source]
        if form < 0.2 and len(sources) == 1:  # of more tables the rows would be thousands
            return f"{left}{self._pick((' CROSS JOIN', ','))} {right}", joined
        side = self._pick(
            ("JOIN", "JOIN", "INNER JOIN", "LEFT JOIN", "LEFT JOIN", "LEFT OUTER JOIN", "RIGHT JOIN", "FULL JOIN")
        )
        common = self._common(sources, source)
        if common and form < 0.32:
            _, name = self._pick(common)
            if sum(each.name == name for other in sources for each in other.columns) == 1:
                return f"{left} {side} {right} USING ({name})", joined
        condition = self._on(sources, source)
        if side != "FULL JOIN" and self._chance.random() < 0.35:
            condition += f" {self._pick(('AND', 'AND', 'AND', 'OR'))} {self.condition(joined, _DEEPEST)}"
        if len(sources) == 1 and self._chance.random() < 0.15 and depth == 0:
            more, third = self._source(depth, outer, tuple(joined))
            nested = f"({right} {self._pick(('JOIN', 'LEFT JOIN'))} {more} ON {self._on([source], third)})"
            return f"{left} {side} {nested} ON {condition}", [*joined, third]
        return f"{left} {side} {right} ON {condition}", joined

    def _on(self, sources: Sequence[Source], right: Source) -> str:
        pairs = [
            (f"{left.alias}.{ours.name}", f"{right.alias}.{theirs.name}")
            for left in sources
            for ours in left.columns
            for theirs in right.columns
            if ours.kind == theirs.kind and ours.kind not in ("bool",)
        ]
        if not pairs:
            left = self._pick(sources)
            ours, theirs = self._pick(left.columns).name, self._pick(right.columns).name
            return f"{left.alias}.{ours}::text = {right.alias}.{theirs}::text"
        ours, theirs = self._pick(pairs)
        return f"{ours} = {theirs}" if self._chance.random() < 0.7 else f"{theirs} = {ours}"

    @staticmethod
    def _common(sources: Sequence[Source], right: Source) -> list[tuple[str, str]]:
        names = {column.name for column in right.columns if column.kind != "bool"}
        return [(s.alias, column.name) for s in sources for column in s.columns if column.name in names]

    def _source(self, depth: int, outer: tuple[Source, ...], beside: tuple[Source, ...]) -> tuple[str, Source]:
        form = self._chance.random()
        if form < 0.1 and depth < _DEEPEST:
            inner = self.select(depth + 1, ())
            alias = self._alias()
            return f"({inner.sql}) {self._pick(('', 'AS '))}{alias}", Source(alias, inner.columns, inner.key)
        if form < 0.13:
            alias = self._alias()
            return f"generate_series(0, 3) AS {alias} (i1)", Source(alias, (Column("i1", "int"),), ("i1",))
        if form < 0.15:
            alias = self._alias()
            columns = (Column("i1", "int"), Column("t1", "text"))
            return f"(VALUES (1, 'a'), (2, 'b'), (NULL, 'ab')) AS {alias} (i1, t1)", Source(alias, columns)
        relation = self._schema.some_relation(self._chance, self._schema.relations)
        return self._relation(relation, outer, beside)

    def _relation(
        self, relation: Relation, outer: tuple[Source, ...], beside: tuple[Source, ...]
    ) -> tuple[str, Source]:
        form = self._chance.random()
        name = relation.name
        if "." not in name and self._chance.random() < 0.1:
            name = f"public.{name}"
        only = "ONLY " if relation.shape == "table" and not relation.partitioned and form > 0.95 else ""
        bare = relation.name.rpartition(".")[2]
        if form < 0.25 and all(source.alias != bare for source in (*beside, *outer)):
            return f"{only}{name}", Source(bare, relation.columns, relation.key)
        alias = self._alias()
        if form < 0.3 and outer:  # an inner alias hides an outer one
            alias = self._pick(outer).alias
        if any(source.alias == alias for source in beside):
            alias = self._alias()
        if 0.3 <= form < 0.34:
            # the columns have each other's names
            moved = list(relation.columns)
            self._chance.shuffle(moved)
            given = tuple(
                msgspec.structs.replace(
                    column, name=other.name if other.kind == column.kind else f"{column.name[:-1]}9"
                )
                for column, other in zip(relation.columns, moved, strict=True)
                if '"' not in column.name
            )
            names = [column.name for column in given]
            if len(set(names)) == len(names) == len(relation.columns) and '"' not in "".join(names):
                return f"{only}{name} AS {alias} ({', '.join(names)})", Source(alias, given)
        return f"{only}{name} {self._pick(('', 'AS '))}{alias}", Source(alias, relation.columns, relation.key)

    @staticmethod
    def _seen(sources: Sequence[Source], outer: tuple[Source, ...]) -> tuple[Source, ...]:
        """What a subquery sees."""
        hidden = {source.alias for source in sources}
        return (*sources, *(source for source in outer if source.alias not in hidden))

    # Conditions

    def condition(self, sources: Sequence[Source], depth: int, outer: tuple[Source, ...] = ()) -> str:
        """A tree of conditions; deeper than `_DEEPEST` without subqueries."""
        size = self._pick((1, 1, 1, 2, 2, 3))
        parts = [self._leaf(sources, depth, outer) for _ in range(size)]
        if outer and self._chance.random() < 0.7:
            parts.insert(0, self._correlated(sources, outer))
        made = parts[0]
        for part in parts[1:]:
            if self._chance.random() < 0.15:
                part = f"NOT ({part})"
            how = self._pick(("AND", "AND", "OR"))
            made = f"({made}) {how} {part}" if self._chance.random() < 0.5 else f"{made} {how} ({part})"
        made = f"NOT ({made})" if self._chance.random() < 0.1 else made
        return f"({made})" if len(parts) > 1 else made

    def _correlated(self, sources: Sequence[Source], outer: tuple[Source, ...]) -> str:
        return self._on(outer, self._pick(sources))

    def _leaf(self, sources: Sequence[Source], depth: int, outer: tuple[Source, ...]) -> str:
        form = self._chance.random()
        source = self._pick(sources)
        column = self._schema.some_column(self._chance, source.columns)
        name = self._named(source, column, sources)
        kind = KINDS[column.kind]
        if form < 0.16 and depth < _DEEPEST:
            return self._subquery(name, column.kind, sources, depth, outer)
        if form < 0.4:
            return self._compared(name, kind)
        if form < 0.5:
            return self._listed(name, kind)
        if form < 0.55 and kind.ordered:
            low, high = self._operand(kind), self._operand(kind)
            return f"{name} {self._pick(('', 'NOT '))}BETWEEN {low} AND {high}"
        if form < 0.62:
            return f"{name} IS {self._pick(('', 'NOT '))}NULL"
        if form < 0.69:
            return f"{name} IS {self._pick(('', 'NOT '))}DISTINCT FROM {self._operand(kind)}"
        if form < 0.75:
            return self._boolean(sources)
        if form < 0.8:
            return self._two_columns(sources)
        if form < 0.83:
            return self._optional(name, kind)
        if form < 0.85:
            return self._pick(
                ("true", "false", "NULL::boolean", f"{source.alias} IS NULL", f"{source.alias} IS NOT NULL")
            )
        return self._function(name, kind)

    def _compared(self, name: str, kind: Kind) -> str:
        operator = "=" if self._chance.random() < 0.5 else self._operator()
        operand = self._operand(kind)
        return f"{name} {operator} {operand}" if self._chance.random() < 0.8 else f"{operand} {operator} {name}"

    def _listed(self, name: str, kind: Kind) -> str:
        form = self._chance.random()
        if form < 0.5 or kind.name == "list":
            members = ", ".join(self._operand(kind) for _ in range(self._chance.randint(1, 3)))
            return f"{name} {self._pick(('', '', 'NOT '))}IN ({members})"
        quantified = self._pick(("= ANY", "= ANY", "= ANY", "<> ALL", "= SOME"))
        if self._constants or form < 0.6:
            texts = self._chance.sample(kind.texts, min(2, len(kind.texts)))
            array = f"ARRAY[{', '.join(quoted(text) for text in texts)}]::{kind.sql}[]"
            return f"{name} {quantified} ({array})".replace("%", "%%")
        parameter = self._parameter(partial(draw, kind, self._chance, many=True))
        cast = f"::{kind.sql}[]" if self._chance.random() < 0.6 or kind.name not in ("int", "big", "text") else ""
        return f"{name} {quantified} ({parameter}{cast})"

    def _boolean(self, sources: Sequence[Source]) -> str:
        named = [f"{s.alias}.{column.name}" for s in sources for column in s.columns if column.kind == "bool"]
        if not named:
            return "true"
        name = self._pick(named)
        return self._pick(
            (
                name,
                f"NOT {name}",
                f"{name} IS TRUE",
                f"{name} IS NOT TRUE",
                f"{name} IS UNKNOWN",
                f"{name} IS NOT FALSE",
            )
        )

    def _two_columns(self, sources: Sequence[Source]) -> str:
        left, right = self._pick(sources), self._pick(sources)
        pairs = [
            (f"{left.alias}.{ours.name}", f"{right.alias}.{theirs.name}")
            for ours in left.columns
            for theirs in right.columns
            if ours.kind == theirs.kind
        ]
        if len(pairs) < 2:
            return "true"
        (a, b), (c, d) = self._chance.sample(pairs, 2)
        form = self._chance.random()
        if form < 0.5:
            return f"{a} {self._operator()} {b}"
        if form < 0.7:
            return f"{a} IS DISTINCT FROM {b}"
        return f"({a}, {c}) {self._pick(('=', '<>', '<'))} ({b}, {d})"

    def _optional(self, name: str, kind: Kind) -> str:
        """A filter that an application leaves out by NULL."""
        if self._constants:
            return f"{name} IS NOT NULL"
        parameter = self._parameter(partial(draw, kind, self._chance))
        return f"({parameter}::{kind.sql} IS NULL OR {name} = {parameter}::{kind.sql})"

    def _function(self, name: str, kind: Kind) -> str:
        forms: tuple[str, ...]
        if kind.name in ("text", "varchar"):
            pattern = quoted(self._pick(("a%", "%b", "_", "", "a")))
            forms = (
                f"{name} {self._pick(('LIKE', 'NOT LIKE', 'ILIKE'))} {pattern}",
                f"lower({name}) = 'a'",
                f"length({name}) > 1",
                f"{name} ~ '^a'",
                f"coalesce({name}, 'a') = 'a'",
                f"{name} || 'b' = 'ab'",
                f"{name} COLLATE \"C\" < 'b'",
            )
        elif kind.number:
            forms = (
                f"abs({name}) = 1",
                f"{name} + 1 > 2",
                f"coalesce({name}, 0) = 0",
                f"{name}::text = '1'",
                f"{name}::numeric = 1.0",
                f"- {name} < 0",
                f"{name} = 1 + 1",
                f"nullif({name}, 1) IS NULL",
                f"CASE WHEN {name} > 1 THEN true END",
                f"greatest({name}, 1) = 1",
            )
        elif kind.name in ("moment", "local", "date"):
            forms = (
                f"{name}::date = '2024-06-30'",
                f"date_trunc('month', {name}) = '2024-06-01'",
                f"extract(year FROM {name}) = 2024",
                f"{name} < '2024-06-30'::date",
                f"{name} + interval '1 day' > '2024-07-01'",
                f"{name} >= DATE '2024-06-30'",
            )
        elif kind.name == "json":
            forms = (
                f"{name} ->> 'a' = '1'",
                f"{name} @> '{{\"a\": 1}}'",
                f"{name} ? 'a'",
                f"jsonb_typeof({name}) = 'null'",
            )
        else:
            forms = (f"{name}::text = {quoted(self._pick(kind.texts))}", f"coalesce({name}, {name}) IS NOT NULL")
        return self._pick(forms).replace("%", "%%")

    def _subquery(self, name: str, kind: str, sources: Sequence[Source], depth: int, outer: tuple[Source, ...]) -> str:
        seen = self._seen(sources, outer)
        form = self._chance.random()
        if form < 0.4:
            clause, inner = self._from(depth + 1, seen)
            condition = self.condition(inner, depth + 1, seen)
            return f"{self._pick(('', 'NOT '))}EXISTS (SELECT FROM {clause} WHERE {condition})"
        if form < 0.75:
            correlated = seen if self._chance.random() < 0.4 else ()
            made = self.select(depth + 1, correlated, kinds=(kind,))
            return f"{name} {self._pick(('IN', 'NOT IN', '= ANY', '<> ALL'))} ({made.sql})"
        return f"({self._scalar(sources, depth, outer)}) {self._operator()} {self._chance.randint(0, 3)}"

    def _operand(self, kind: Kind) -> str:
        form = self._chance.random()
        if self._constants or form < 0.5:
            return literal(kind, self._chance).replace("%", "%%") if form > 0.02 else "NULL"
        parameter = self._parameter(partial(draw, kind, self._chance))
        return f"{parameter}::{kind.sql}" if form > 0.8 or kind.name in ("list", "span") else parameter

    def _parameter(self, drawn: Callable[[], Value]) -> str:
        name = f"p{len(self._draws)}"
        self._draws[name] = drawn
        return f"%({name})s"

    def _operator(self) -> str:
        return self._pick(("=", "<>", "<", "<=", ">", ">="))

    def _alias(self) -> str:
        self._aliases += 1
        return f"r{self._aliases}"

    def _pick(self, among: Sequence[_Choice]) -> _Choice:
        return self._chance.choice(among)


def _written(outputs: Sequence[Output]) -> tuple[str, tuple[Column, ...]]:
    """What is selected, as text and as columns."""
    columns = tuple(Column(f"c{number}", output.kind) for number, output in enumerate(outputs))
    return ", ".join(f"{o.sql} AS {column.name}" for o, column in zip(outputs, columns, strict=True)), columns


def _column(source: Source, name: str) -> Column:
    return next(column for column in source.columns if column.name == name)


def views(schema: Schema, chance: random.Random) -> Schema:
    """The schema with views, some of them of views."""
    for number in range(chance.choice((0, 1, 1, 2, 3))):
        made = Maker(schema, chance, constants=True).statement()
        names: list[str] = []
        for column in made.columns:
            letter = KINDS[column.kind].letter
            names.append(f"{letter}{next(n for n in range(1, 99) if f'{letter}{n}' not in names)}")
        columns = tuple(Column(name, column.kind) for name, column in zip(names, made.columns, strict=True))
        option = chance.choice(("", "", " WITH (security_invoker = true)", " WITH (security_barrier = true)"))
        name = f"v_{'abc'[number]}"
        ddl = f"CREATE VIEW {name} ({', '.join(names)}){option} AS {made.sql}".replace("%%", "%")
        schema = msgspec.structs.replace(
            schema, relations=(*schema.relations, Relation(name, columns, (ddl,), shape="view"))
        )
    return schema
