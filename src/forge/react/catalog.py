"""Analyse what a query reads, with PostgreSQL's own parser and catalog.

Input: a connection, one SQL text and its parameters. Output: a `ReadAnalysis`, or `QueryRefused`. The analysis creates
a temporary view of the query in a transaction that is always rolled back; the query is not executed. The relations,
columns and functions come from what PostgreSQL stores about the view: its dependencies, and also its parsed tree,
because the dependencies omit built-in objects and whole rows. Views, SQL functions with a parsed body and row-level
security policies are followed; tables reached through them count as read completely. Conditions come from the text
(`forge.react.scopes`) and are used only where text and tree agree on how often a table is named.

Invariants:
- A change of a row outside the reads never changes the query's result, except through what `volatile` names.
- A query for which this cannot be proven is refused.
"""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, LiteralString

import msgspec
import psycopg

from forge.conditions.canonical import ColumnType
from forge.conditions.tree import TRUE, Condition
from forge.errors import QueryRefused, StatementUnreadable
from forge.postgres.connection import AsyncConnection, typed_errors
from forge.postgres.names import quoted
from forge.react.expressions import Name, Relation
from forge.react.parsed_tree import ParsedTree, parse_tree
from forge.react.readset import ReadAnalysis, TableRead
from forge.react.scopes import Occurrence, Statement

OWN_SCHEMA: Final = "forge"
OWN_TABLES: Final = frozenset(
    {"forge_event_log", "tracked_table", "table_version", "trimmed", "instant", "consumer", "dead_letter"}
    | {"outbox", "outbox_later", "outbox_dead"}
)
"""Forge's own tables that may be watched. Every change touches their readers, because the log changes with it."""

LONG: Final = 10_000
"""Statement length, in characters, from which parsing takes noticeable time (a list of thousands of values)."""


async def analyze(
    connection: AsyncConnection,
    sql: str,
    parameters: Mapping[str, object] | Sequence[object],
    role: str | None = None,
) -> ReadAnalysis:
    """Analyse what one SQL text reads when a role runs it. The connection is to a primary, in autocommit, idle, and
    has the query's search_path."""
    statement = await asyncio.to_thread(_parsed, sql) if len(sql) > LONG else _parsed(sql)
    if not _BEGINS.match(sql) or (statement is not None and not statement.is_query):
        raise QueryRefused("not a query", fix="write one SELECT, VALUES, TABLE, or WITH … SELECT")
    with typed_errors():
        async with connection.transaction(force_rollback=True):
            if role is not None:
                await connection.execute(_SEARCH_PATH, (role,))
            view = await _create_view(connection, sql, parameters)
            names = await _resolve(connection, statement.names if statement is not None else ())
            await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
            catalog = _Catalog(connection)
            await catalog.follow([view], [])
            return await _analysis(catalog, view, statement, names)


def _parsed(sql: str) -> Statement | None:
    try:
        return Statement(sql)
    except StatementUnreadable:
        return None


async def declared(connection: AsyncConnection, names: Sequence[str]) -> ReadAnalysis:
    """Analyse declared reads: all columns and all rows of these tables and of the tables that these views read."""
    with typed_errors():
        async with connection.transaction(force_rollback=True):
            found = await _declared(connection, names)
            await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
            catalog = _Catalog(connection)
            await catalog.follow(found, [])
            return await _tracked(catalog, {oid: [_Read(None, TRUE)] for oid in catalog.tables()})


_SEARCH_PATH: Final = (
    "SELECT set_config('search_path', replace(current_setting('search_path'), '\"$user\"', quote_ident(%s)), true)"
)
_BEGINS: Final = re.compile(
    r"(?:[\s(]|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*(?:SELECT|VALUES|TABLE|WITH)\b", re.IGNORECASE
)
_VIEW: Final = "forge_query_to_analyze"
_MISTAKES: Final = ("0A", "21", "22", "26", "2F", "3F", "42", "54")


async def _create_view(
    connection: AsyncConnection, sql: str, parameters: Mapping[str, object] | Sequence[object]
) -> int:
    """Create a temporary view of the query, nested in another view so that its columns may have any names."""
    try:
        text = psycopg.AsyncClientCursor(connection).mogrify(sql.rstrip("; \t\r\n").encode(), parameters)
        create = f"CREATE TEMP VIEW {_VIEW} AS SELECT count(*) FROM (\n{text}\n) AS query"
        await connection.execute(create.encode(), binary=True)  # binary: one statement only
    except TypeError as error:
        raise QueryRefused(f"not a query: {error}", fix="give the parameters that it names") from error
    except psycopg.Error as error:
        state = error.sqlstate or ("22" if isinstance(error, psycopg.DataError | psycopg.ProgrammingError) else "")
        if state[:2] not in _MISTAKES or state == "42501":
            raise
        message = " ".join((error.diag.message_primary or str(error)).split())
        hint = " ".join((error.diag.message_hint or "").split())
        raise QueryRefused(f"not a query: {message}", fix=hint or "correct the SQL, or its parameters") from error
    cursor = await connection.execute("SELECT %s::regclass::oid::bigint", (f"pg_temp.{_VIEW}",))
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def _resolve(connection: AsyncConnection, names: Iterable[Name]) -> dict[Name, int]:
    """Return the relation that each name refers to."""
    asked = list(names)
    written = [quoted(*(part for part in name if part is not None)) for name in asked]
    cursor = await connection.execute(
        "SELECT to_regclass(n)::oid::bigint FROM unnest(%s::text[]) WITH ORDINALITY u (n, i) ORDER BY i", (written,)
    )
    found = [oid for (oid,) in await cursor.fetchall()]
    return {name: int(oid) for name, oid in zip(asked, found, strict=True) if oid is not None}


async def _declared(connection: AsyncConnection, names: Sequence[str]) -> list[int]:
    found = []
    for name in names:
        try:
            cursor = await connection.execute("SELECT to_regclass(%s)::oid::bigint", (name,))
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in _MISTAKES:
                raise
            raise QueryRefused(f"{name!r} is no table's name", fix="write it as in SQL: schema.table") from error
        row = await cursor.fetchone()
        if row is None or row[0] is None:
            raise QueryRefused(f"there is no table {name}", fix="name tables that exist, as in SQL: schema.table")
        found.append(int(row[0]))
    return found


class _Class(msgspec.Struct):
    schema: str
    name: str
    kind: str
    persistence: str
    written: str


class _Function(msgspec.Struct):
    schema: str
    name: str
    volatility: str
    kind: str
    parsed: bool
    written: str
    parts: list[int]


# The stored form of views, policies and functions: the owner object, its tree, and its dependencies.
_TREES: Final[LiteralString] = """
WITH tree (kind, owner, class, oid, text) AS (
    SELECT 'view', w.ev_class, 'pg_rewrite'::regclass, w.oid, w.ev_action::text
    FROM pg_rewrite w WHERE w.ev_class = ANY (%(relations)s::oid[]) AND w.ev_type = '1'
    UNION ALL
    SELECT 'policy', p.polrelid, 'pg_policy'::regclass, p.oid, coalesce(p.polqual::text, '')
    FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
    WHERE p.polrelid = ANY (%(relations)s::oid[]) AND c.relrowsecurity AND p.polcmd IN ('r', '*')
    UNION ALL
    SELECT 'function', f.oid, 'pg_proc'::regclass, f.oid, f.prosqlbody::text
    FROM pg_proc f WHERE f.oid = ANY (%(functions)s::oid[]) AND f.prosqlbody IS NOT NULL
)
SELECT tree.kind, tree.owner::bigint, tree.text, (
    SELECT json_agg(json_build_array(
        CASE d.refclassid WHEN 'pg_class'::regclass THEN 'relation' WHEN 'pg_proc'::regclass THEN 'function'
                          ELSE 'operator' END, d.refobjid::bigint, d.refobjsubid))::text
    FROM pg_depend d
    WHERE d.classid = tree.class AND d.objid = tree.oid
      AND d.refclassid IN ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_operator'::regclass))
FROM tree ORDER BY tree.kind, tree.oid
"""

_CLASSES: Final[LiteralString] = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text, c.oid::regclass::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::oid[])
"""

_FUNCTIONS: Final[LiteralString] = """
SELECT f.oid::bigint, n.nspname::text, f.proname::text, f.provolatile::text, f.prokind::text,
       f.prosqlbody IS NOT NULL, f.oid::regprocedure::text,
       coalesce((SELECT ARRAY[a.aggtransfn, a.aggfinalfn, a.aggmtransfn, a.aggminvtransfn,
                              a.aggmfinalfn]::oid[]::bigint[]
                 FROM pg_aggregate a WHERE a.aggfnoid = f.oid), '{}')
FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace
WHERE f.oid = ANY (%(functions)s::oid[])
   OR f.oid IN (SELECT o.oprcode FROM pg_operator o WHERE o.oid = ANY (%(operators)s::oid[]))
"""

_COLUMNS: Final[LiteralString] = """
SELECT a.attrelid::bigint, a.attnum, a.attname::text, format_type(b.oid, NULL), b.typtype = 'e',
       coalesce(c.collisdeterministic, true), b.typtype = 'c', a.attgenerated = 'v'
FROM pg_attribute a
JOIN pg_type b ON b.oid = forge.base_type(a.atttypid)
LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

# Each relation with its partitions and child tables, their tracked ancestors, and the table that needs tracking.
_PARTS: Final[LiteralString] = """
WITH RECURSIVE part (relation, oid) AS (
    SELECT o, o FROM unnest(%s::oid[]) o
    UNION
    SELECT part.relation, i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid WHERE NOT i.inhdetachpending
), above (oid, ancestor) AS (
    SELECT part.oid, part.oid FROM part
    UNION
    SELECT above.oid, i.inhparent FROM above JOIN pg_inherits i ON i.inhrelid = above.ancestor
    WHERE NOT i.inhdetachpending
)
SELECT part.relation::bigint, c.relkind::text, part.oid::regclass::text,
       coalesce(array_agg(r.table_oid::bigint) FILTER (WHERE r.table_oid IS NOT NULL), '{}'),
       min(above.ancestor::regclass::text) FILTER (
           WHERE NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = above.ancestor))
FROM part
JOIN pg_class c ON c.oid = part.oid
JOIN above ON above.oid = part.oid
LEFT JOIN forge.tracked_relation r ON r.table_oid = above.ancestor
GROUP BY part.relation, part.oid, c.relkind
ORDER BY part.relation, part.oid
"""

_ROOTS: Final[LiteralString] = """
SELECT r.table_oid::bigint, n.nspname::text, c.relname::text, t.excluded || t.masked
FROM forge.tracked_relation r
JOIN forge.tracked_table t ON t.id = r.id
JOIN pg_class c ON c.oid = r.table_oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE r.table_oid = ANY (%s::oid[])
"""

_DECLARE: Final = "declare what the query reads: reads=[…]"
_SYSTEM: Final = ("pg_catalog", "information_schema", "pg_toast", OWN_SCHEMA)
_KINDS: Final = {
    "m": "a materialized view, which changes only when it is refreshed",
    "f": "a foreign table, which changes elsewhere",
    "S": "a sequence, which is never logged",
}

# Built-in functions that run SQL given as text, read data outside transaction isolation, or lock.
_BLIND: Final = re.compile(
    r"(query|table|cursor|schema|database)_to_xml\w*|currval|lastval|nextval|setval|pg_sequence_\w+|ts_stat"
    r"|pg_(relation|table|total_relation|indexes|database|tablespace)_size|pg_stat_\w+|lo_\w+|loread|lowrite"
    r"|pg_(try_)?advisory_\w+"
)
# Functions that PostgreSQL declares stable but that return another value in the next transaction.
_MOVING: Final = re.compile(
    r"now|statement_timestamp|transaction_timestamp|txid_current\w*|pg_current_(xact_id\w*|snapshot)"
)


class _Catalog:
    """Everything that the given relations and functions use, including through views, policies and functions. Refuses
    what cannot be followed."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.classes: dict[int, _Class] = {}
        self.functions: dict[int, _Function] = {}
        self.views: dict[int, ParsedTree] = {}
        self.policies: dict[int, list[ParsedTree]] = {}
        self.bodies: list[ParsedTree] = []
        self.volatile: set[str] = set()

    def tables(self) -> list[int]:
        """The tables among the relations reached so far."""
        return [oid for oid, found in self.classes.items() if found.kind in ("r", "p")]

    async def rows(self, query: LiteralString, parameters: Any) -> list[tuple[Any, ...]]:
        return await (await self._connection.execute(query, parameters)).fetchall()

    async def follow(self, relations: Iterable[int], functions: Iterable[int]) -> None:
        """Add these relations and functions, and everything they use."""
        pending, called, operators = set(relations), set(functions), set[int]()
        while pending or called or operators:
            for oid, *row in await self.rows(_CLASSES, (list(pending),)):
                self.classes[oid] = _Class(*row)
                _refuse_class(self.classes[oid])
            parts: set[int] = set()
            for oid, *row in await self.rows(_FUNCTIONS, {"functions": list(called), "operators": list(operators)}):
                self.functions[oid] = function = _Function(*row)
                called.add(oid)
                parts.update(function.parts)
                self._judge(function)
            trees = await self._trees(pending, called)
            pending = {oid for tree in trees for oid in (*tree.relations, *tree.columns)} - self.classes.keys()
            called = {oid for tree in trees for oid in tree.functions} | parts
            called -= self.functions.keys()
            operators = {oid for tree in trees for oid in tree.operators}

    async def _trees(self, relations: set[int], functions: set[int]) -> list[ParsedTree]:
        trees = []
        for kind, owner, text, depends in await self.rows(
            _TREES, {"relations": list(relations), "functions": list(functions)}
        ):
            tree = parse_tree(text, json.loads(depends or "[]"))
            trees.append(tree)
            self.volatile |= tree.clocks
            if kind == "view":
                self.views[owner] = tree
            elif kind == "policy":
                self.policies.setdefault(owner, []).append(tree)
            else:
                self.bodies.append(tree)
            if tree.locks:
                raise QueryRefused("the query locks rows", fix="leave out FOR UPDATE and FOR SHARE")
            if tree.writes:
                name = self.functions[owner].written if kind == "function" else "the query"
                raise QueryRefused(f"{name} writes", fix="call it in a mutation")
        return trees

    def _judge(self, function: _Function) -> None:
        if function.schema == "pg_catalog":
            if _BLIND.fullmatch(function.name):
                raise QueryRefused(f"{function.name}() reads what cannot be followed", fix=_DECLARE)
            if function.volatility == "v" or _MOVING.fullmatch(function.name):
                self.volatile.add(f"{function.name}()")
        elif not function.parsed and function.volatility != "i":
            raise QueryRefused(
                f"the function {function.written} may read anything",
                fix=f"{_DECLARE}; or make it IMMUTABLE, or give it a body with BEGIN ATOMIC",
            )


def _refuse_class(found: _Class) -> None:
    if found.persistence == "t" and found.name != _VIEW:
        raise QueryRefused(f"{found.written} is temporary, and its changes are never logged", fix=_DECLARE)
    if found.schema in _SYSTEM and not _is_own(found):
        raise QueryRefused(f"{found.written} is the system's own, and its changes are not logged", fix=_DECLARE)
    if found.kind not in ("r", "p", "v"):
        what = _KINDS.get(found.kind, "no table")
        raise QueryRefused(f"{found.written} is {what}", fix=_DECLARE)


def _is_own(found: _Class) -> bool:
    return found.schema == OWN_SCHEMA and found.name in OWN_TABLES


class _Read(msgspec.Struct):
    """One read of a relation, before the tracked table is known."""

    columns: frozenset[str] | None
    condition: Condition


class _Column(msgspec.Struct):
    name: str
    type: ColumnType
    composite: bool
    virtual: bool


async def _columns(catalog: _Catalog, relations: Iterable[int]) -> dict[int, dict[int, _Column]]:
    """Return the columns of relations, by column number."""
    found: dict[int, dict[int, _Column]] = {}
    for oid, number, name, kind, enum, deterministic, composite, virtual in await catalog.rows(
        _COLUMNS, (list(relations),)
    ):
        column = ColumnType(kind, enum=enum, deterministic=deterministic, hidden=virtual)
        found.setdefault(oid, {})[number] = _Column(name, column, composite, virtual)
    return found


async def _analysis(
    catalog: _Catalog, view: int, statement: Statement | None, names: Mapping[Name, int]
) -> ReadAnalysis:
    own = catalog.views[view]
    counts = {oid: own.relations.get(oid, 0) for oid in (*own.relations, *own.columns) if oid != view}
    columns = await _columns(catalog, counts)
    occurrences: tuple[Occurrence, ...] = ()
    if statement is not None and not own.operators:
        relations = {
            name: Relation(
                oid,
                catalog.classes[oid].kind != "v",
                {column.name: None if column.composite else column.type for column in columns.get(oid, {}).values()},
            )
            for name, oid in names.items()
            if oid in counts
        }
        try:
            occurrences = statement.occurrences(relations)
        except StatementUnreadable:
            statement = None
    if statement is not None and own.times:
        catalog.volatile |= {f"'{word}'" for word in statement.strings if word.strip().lower() in _MOMENTS}
    whole = own.whole_rows or statement is None or statement.whole_rows

    reads: dict[int, list[_Read]] = {}
    for oid, count in counts.items():
        if catalog.classes[oid].kind == "v":
            continue
        asked = [found.condition for found in occurrences if found.oid == oid]
        agreed = 0 < count == len(asked)
        if not agreed:
            asked = [TRUE]
        read = (
            None if whole or not (agreed or own.operators) else _read_columns(catalog, own, oid, columns.get(oid, {}))
        )
        reads[oid] = [_Read(read, condition) for condition in asked]
    for oid in _indirect(catalog, view):
        reads.setdefault(oid, []).append(_Read(None, TRUE))
    return await _tracked(catalog, reads)


_MOMENTS: Final = ("now", "today", "tomorrow", "yesterday")


def _read_columns(
    catalog: _Catalog, own: ParsedTree, oid: int, columns: Mapping[int, _Column]
) -> frozenset[str] | None:
    """Return the columns of a table that the query or the table's own policies use; None means all columns."""
    policies = catalog.policies.get(oid, [])
    used = own.columns.get(oid, set()).union(*(policy.columns.get(oid, ()) for policy in policies)) - {0}
    if any(policy.whole_rows for policy in policies):
        return None
    if any(number not in columns or columns[number].virtual for number in used):
        return None  # a system column, or one that is computed from others when it is read
    return frozenset(columns[number].name for number in used)


def _indirect(catalog: _Catalog, view: int) -> list[int]:
    """Return the tables reached through a view, a policy or a function."""
    found: set[int] = set()
    for owner, tree in catalog.views.items():
        if owner != view:
            found.update(tree.relations, tree.columns)
    for tree in catalog.bodies:
        found.update(tree.relations, tree.columns)
    for owner, trees in catalog.policies.items():
        for tree in trees:
            found.update(tree.relations, tree.columns.keys() - {owner})
    return [oid for oid in catalog.tables() if oid in found]


async def _tracked(catalog: _Catalog, reads: Mapping[int, list[_Read]]) -> ReadAnalysis:
    """Convert reads of relations to reads of tracked tables."""
    own = [oid for oid in reads if _is_own(catalog.classes[oid])]
    watched = tuple(TableRead(OWN_SCHEMA, catalog.classes[oid].name, None) for oid in own)
    reads = {oid: found for oid, found in reads.items() if oid not in own}
    roots: dict[int, set[int]] = {oid: set() for oid in reads}
    for oid, kind, part, found, top in await catalog.rows(_PARTS, (list(reads),)):
        if kind not in ("r", "p"):
            raise QueryRefused(f"{part} is {_KINDS.get(kind, 'no table')}", fix=_DECLARE)
        if not found:
            raise QueryRefused(f"the table {part} is not tracked", fix=f"forge enable {top or part}")
        roots[oid].update(found)
    tracked = {
        oid: (schema, name, frozenset(hidden))
        for oid, schema, name, hidden in await catalog.rows(_ROOTS, (list(set().union(*roots.values())),))
    }
    columns = await _columns(catalog, {*reads, *tracked})
    types = {
        tracked[oid][:2]: {
            column.name: msgspec.structs.replace(
                column.type, hidden=column.type.hidden or column.name in tracked[oid][2]
            )
            for column in columns.get(oid, {}).values()
        }
        for oid in tracked
    }
    found_reads: dict[TableRead, None] = {}
    for oid, each in reads.items():
        named = {column.name for column in columns.get(oid, {}).values()}
        for root in sorted(roots[oid]):
            schema, table, _ = tracked[root]
            for read in each:
                unlogged = (named if read.columns is None else read.columns) - types[schema, table].keys()
                if unlogged and oid != root:
                    raise QueryRefused(
                        f"{catalog.classes[oid].written} has columns that the log of {schema}.{table} does not have:"
                        f" {', '.join(sorted(unlogged))}",
                        fix=f"read only those that it has from {schema}.{table}",
                    )
                # a column that is not read can move a row into or out of a partition
                columns_read = read.columns if oid == root else None
                found_reads[TableRead(schema, table, columns_read, read.condition)] = None
    return ReadAnalysis((*found_reads, *watched), types, tuple(sorted(catalog.volatile)))
