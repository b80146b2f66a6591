"""Asking a query: as an application marks it, and directly of PostgreSQL. Both give what the application returns."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from psycopg import sql
from psycopg.rows import dict_row

from forge.postgres.connection import AsyncConnection
from forge.react.registry import Auth, Call, Registry
from tests.checkers.oracle.plan import Ask, Plan, Query
from tests.checkers.oracle.schema import READER
from tests.checkers.oracle.values import python

Rows = list[dict[str, Any]]
Fetch = Callable[[str], Awaitable[Rows]]
Delay = Callable[[], Awaitable[None]]


async def answer(query: Query, fetch: Fetch) -> Any:
    """What the query returns, given how a statement is run."""
    first, *more = query.statements
    rows = await fetch(first)
    if query.shape == "rows":
        for statement in more if len(rows) % 2 else ():
            rows = rows + await fetch(statement)
        return rows
    row = rows[0] if rows else None
    return row if query.shape == "one" or row is None else next(iter(row.values()))


def registry(plan: Plan, delay: Delay) -> Registry:
    """The queries of a plan as an application has them; each run may be delayed."""
    found = Registry()
    for number, query in enumerate(plan.queries):
        names = sorted({name for ask in plan.asks if ask.query == number for name in ask.values})
        found.query(_function(query, names, delay), name=f"q{number}", key=query.key)
    return found


def _function(query: Query, names: list[str], delay: Delay) -> Callable[..., Awaitable[Any]]:
    async def function(ctx: Any, **arguments: Any) -> Any:
        async def fetch(statement: str) -> Rows:
            await delay()
            rows: Rows = await ctx.db.fetch(statement, {name: arguments[name] for name in names})
            await delay()
            return rows

        return await answer(query, fetch)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [inspect.Parameter(name, kind, annotation=Any) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = dict.fromkeys(names, Any)
    return function


def call(found: Registry, ask: Ask) -> Call:
    return found.call(f"q{ask.query}", values(ask), auth(ask))


def auth(ask: Ask) -> Auth:
    return Auth(user=ask.user, role=READER if ask.reader else None, claims={"sub": ask.user} if ask.user else {})


def values(ask: Ask) -> dict[str, Any]:
    return {name: python(value) for name, value in ask.values.items()}


async def directly(connection: AsyncConnection, plan: Plan, ask: Ask) -> Any:
    """What PostgreSQL answers now."""
    who = auth(ask)
    given: Mapping[str, Any] = values(ask)
    cursor = connection.cursor(row_factory=dict_row)

    async def fetch(statement: str) -> Rows:
        await cursor.execute(statement.encode(), given)
        return await cursor.fetchall()

    claims = msgspec.json.encode(dict(who.claims)).decode()
    role = sql.SQL("; SET LOCAL ROLE {}").format(sql.Identifier(who.role)) if who.role else sql.SQL("")
    begin = sql.SQL(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
        " SELECT set_config('request.jwt.claims', {}, true), set_config('forge.user', {}, true){}"
    ).format(sql.Literal(claims), sql.Literal(who.user or ""), role)
    try:
        await cursor.execute(begin)
        return await answer(plan.queries[ask.query], fetch)
    finally:
        if not connection.closed:
            await connection.execute("ROLLBACK")
