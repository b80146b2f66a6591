"""Run a query against the past: the same function, with the result it would have returned at an instant.

Each table that a statement names is rebuilt from the log as a temporary table of the same name, and the statement runs
on the temporary tables. The cost grows with the size of the tables. A query is refused if its result could include
present data: a view, a function that reads tables, row-level security, an excluded column, or an instant before the
start of the log.

The first table decides which snapshot stands for the instant (`forge.history.instants`); all other tables use the same
snapshot.
"""

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import psycopg
import sqlglot
from psycopg import sql
from sqlglot.tokenizer_core import Token, TokenType

from forge.change import UNAVAILABLE, JsonNull
from forge.errors import HistoryUnavailable, QueryFailed
from forge.history.asof import at_instant
from forge.history.instants import Answered, Gap
from forge.postgres.connection import AsyncConnection, connect, connect_async, translate
from forge.postgres.names import quoted
from forge.postgres.session import ANALYSIS
from forge.react import catalog
from forge.react.database import Db, Parameters, QueryContext
from forge.react.registry import Call
from forge.values import Column

_VIEW = "forge_query_of_the_past"
_COLUMNS = (
    "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a"
    " WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
)


class Then(NamedTuple):
    """The result of a query, and its distance from the instant; None if the query read no table."""

    value: Any
    gap: Gap | None


async def ask(url: str, call: Call, at: datetime | None, timeout: float = 60.0) -> Then:
    """Return the result that the query would have had at that instant; None means now."""
    if call.auth.role is not None:
        raise HistoryUnavailable("a query that reads as a role has no past", fix="ask without a role")
    if call.query.reads:
        raise HistoryUnavailable("a query that declares its reads has no past", fix="ask one whose SQL shows them")
    connection = await connect_async(url, settings=ANALYSIS, application_name="forge as-of")
    try:
        claims = msgspec.json.encode(dict(call.auth.claims)).decode() if call.auth.claims else ""
        await connection.execute(
            "SELECT set_config('request.jwt.claims', %s, false), set_config('forge.user', %s, false),"
            " set_config('forge.tenant', %s, false)",
            (claims, call.auth.user or "", call.auth.tenant or ""),
        )
        db = _PastDb(connection, call.arguments, url, at)
        async with asyncio.timeout(timeout):
            value = await call.query.function(QueryContext(db, call.auth), **call.arguments)
            return Then(value, db.gap)
    except TimeoutError:
        raise QueryFailed(f"{call.query.name} took longer than {timeout:g} s", fix="ask of smaller tables") from None
    except psycopg.Error as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise translate(error) or QueryFailed(f"the database refuses it: {line}", fix="correct it") from error
    finally:
        await connection.close()


async def instants(url: str, since: datetime, until: datetime) -> list[datetime]:
    """Return the recorded instants of a period: the last one before it, and all within it."""
    connection = await connect_async(url, application_name="forge as-of")
    try:
        found = await connection.execute(
            "SELECT at FROM forge.instant WHERE at <= %(until)s"
            " AND at >= coalesce((SELECT max(at) FROM forge.instant WHERE at <= %(since)s), %(since)s) ORDER BY at",
            {"since": since, "until": until},
        )
        return [at for (at,) in await found.fetchall()]
    finally:
        await connection.close()


class _PastDb(Db):
    """A read-only database in a past state."""

    def __init__(
        self, connection: AsyncConnection, arguments: Mapping[str, Any], url: str, at: datetime | None
    ) -> None:
        super().__init__(connection, arguments)
        self._connection = connection
        self._url = url
        self._at: datetime | Answered | None = at
        self._made: set[tuple[str, str]] = set()
        self.gap: Gap | None = None

    async def _execute(self, text: str, values: Parameters) -> None:
        analysis = await self._analyze(text, values)
        for table in sorted({(read.schema, read.table) for read in analysis.reads} - self._made):
            await self._make(*table)
        rewritten = _rewritten(text, self._made)
        await self._check(rewritten, values)
        await self._rows.execute(rewritten.encode(), values)

    async def _analyze(self, text: str, values: Parameters) -> Any:
        """Analyse what it reads today; names must refer to the real tables, not to earlier temporary tables."""
        fresh = await connect_async(self._url, settings=ANALYSIS, application_name="forge analysis")
        try:
            analysis = await catalog.analyze(fresh, text, values)
        finally:
            await fresh.close()
        if analysis.volatile:
            raise HistoryUnavailable(
                f"{', '.join(analysis.volatile)} has no past", fix="pass the time as an argument of the query"
            )
        return analysis

    async def _make(self, schema: str, table: str) -> None:
        """Create a temporary table with the rows that the table had at the instant."""
        found = sql.Identifier(schema, table)
        secured = await self._connection.execute(
            "SELECT c.relrowsecurity FROM pg_class c WHERE c.oid = %s::regclass", (found.as_string(),)
        )
        if await secured.fetchone() == (True,):
            raise HistoryUnavailable(
                f"{table} has row-level security, and the past has not", fix="read it with forge.table_as_of"
            )
        columns, past, self._at, gap = await asyncio.to_thread(_rows, self._url, found.as_string(), self._at)
        self.gap = gap if self.gap is None else self.gap.and_of(gap)
        if any(table == other for _, other in self._made):
            raise HistoryUnavailable(f"two schemas have a table {table}", fix="ask of one of them at a time")
        now = await self._connection.execute(_COLUMNS, (found.as_string(),))
        if await now.fetchall() == [(column.name, column.type) for column in columns]:
            shape: sql.Composable = sql.SQL("LIKE {}").format(found)
        else:  # as defined at that instant, except collations
            shape = sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type)) for column in columns
            )
        await self._connection.execute(sql.SQL("CREATE TEMP TABLE {} ({})").format(sql.Identifier(table), shape))
        await self._connection.execute(
            sql.SQL(
                "INSERT INTO {0} SELECT (json_populate_record(NULL::{0}, r)).* FROM json_array_elements(%s) r"
            ).format(sql.Identifier("pg_temp", table)),
            (past,),
        )
        self._made.add((schema, table))

    async def _check(self, text: str, values: Parameters) -> None:
        """Refuse a statement that reads anything except the temporary tables."""
        query = psycopg.AsyncClientCursor(self._connection).mogrify(text.rstrip("; \t\r\n").encode(), values)
        async with self._connection.transaction(force_rollback=True):
            create = f"CREATE TEMP VIEW {_VIEW} AS SELECT count(*) FROM (\n{query}\n) AS query"
            await self._connection.execute(create.encode())
            others = await self._connection.execute(
                "SELECT DISTINCT d.refobjid::regclass::text FROM pg_rewrite r JOIN pg_depend d ON d.objid = r.oid"
                " AND d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass"
                " JOIN pg_class c ON c.oid = d.refobjid"
                " WHERE r.ev_class = %s::regclass AND d.refobjid <> r.ev_class AND c.relpersistence <> 't'",
                (f"pg_temp.{_VIEW}",),
            )
            if found := [name for (name,) in await others.fetchall()]:
                raise HistoryUnavailable(
                    f"{', '.join(found)} cannot be rebuilt from the log", fix="name the tracked tables themselves"
                )


def _rows(url: str, table: str, at: datetime | Answered | None) -> tuple[tuple[Column, ...], str, Answered, Gap]:
    """Return the table's past columns, its rows as JSON in PostgreSQL's input formats, and the snapshot used."""
    with connect(url, application_name="forge as-of") as connection, at_instant(connection, [table], at) as then:
        past = then[table]
        rows, gap = list(past.rows()), past.gap
    for row in rows:
        for name, value in row.items():
            if value is UNAVAILABLE:
                raise HistoryUnavailable(f"the log does not have {name} of {table}", fix="do not exclude the column")
            row[name] = _readable(value)
    return past.columns, msgspec.json.encode(rows).decode(), past.answered, gap


def _readable(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, JsonNull):
        raise HistoryUnavailable("a jsonb null cannot be rebuilt", fix="read the table with forge.table_as_of")
    if isinstance(value, list):
        return [_readable(inner) for inner in value]
    return value


def _rewritten(text: str, made: Collection[tuple[str, str]]) -> str:
    """Replace `schema.table` with the temporary table; an unqualified name already refers to it.

    >>> _rewritten('SELECT public.orders.id FROM public.orders, "S".t, customer', {("public", "orders"), ("S", "t")})
    'SELECT pg_temp."orders".id FROM pg_temp."orders", pg_temp."t", customer'
    """
    try:
        tokens = sqlglot.tokenize(text, dialect="postgres")
    except sqlglot.errors.SqlglotError:
        raise HistoryUnavailable("the statement is not understood", fix="write it more plainly") from None
    found, place = [], 0
    for first, dot, second in zip(tokens, tokens[1:], tokens[2:], strict=False):
        table = _folded(first), _folded(second)
        if dot.token_type is TokenType.DOT and first.start >= place and table in made:
            found.append(text[place : first.start] + "pg_temp." + quoted(table[1]))
            place = second.end + 1
    return "".join(found) + text[place:]


def _folded(token: Token) -> str:
    return token.text if token.token_type is TokenType.IDENTIFIER else token.text.lower()
