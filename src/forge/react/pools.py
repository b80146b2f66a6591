"""Connections of a runner to one server, and the read-only transactions that begin and end on them."""

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql
from psycopg_pool import AsyncConnectionPool

from forge.postgres.connection import AsyncConnection, parameters, pin
from forge.postgres.session import USERS
from forge.react.registry import ANYONE, Auth

_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


Pool = AsyncConnectionPool[AsyncConnection]


async def began(connection: AsyncConnection, auth: Auth, question: str, snapshot: str | None) -> tuple[Any, ...]:
    """Begin a read-only transaction for a caller; return the row of the first query, which takes the snapshot."""
    statements: list[sql.Composable] = [sql.SQL(_BEGIN)]
    if snapshot is not None:
        statements.append(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    statements += [sql.SQL(question), *identity_statements(auth)]
    cursor = connection.cursor()
    await cursor.execute(sql.SQL("; ").join(statements))
    while cursor.description is None and cursor.nextset():
        pass
    row = await cursor.fetchone()
    assert row is not None
    return row


async def ended(pool: Pool, connection: AsyncConnection) -> None:
    """End the connection's transaction and return it to the pool; the pool replaces broken connections."""
    with contextlib.suppress(psycopg.Error):
        if not connection.closed:
            await connection.execute("ROLLBACK")
    await pool.putconn(connection)


def identity_statements(auth: Auth) -> list[sql.Composed]:
    """Return statements that set the caller's identity in the transaction, for row-level security policies."""
    if auth == ANYONE:
        return []
    claims = msgspec.json.encode(dict(auth.claims)).decode()
    found = [
        sql.SQL(
            "SELECT set_config('request.jwt.claims', {}, true), set_config('forge.user', {}, true),"
            " set_config('forge.tenant', {}, true)"
        ).format(sql.Literal(claims), sql.Literal(auth.user or ""), sql.Literal(auth.tenant or ""))
    ]
    if auth.role is not None:
        found.append(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(auth.role)))
    return found


class Pools:
    """Connections to one server: one-shot calls and live runs never wait for each other."""

    def __init__(self, url: str, calls: int, live: int) -> None:
        self.calls = _pool(url, calls)
        self.live = _pool(url, live)

    def of(self, *, live: bool) -> Pool:
        return self.live if live else self.calls


def _pool(url: str, connections: int, settings: Mapping[str, str] = USERS, *, least: int = 0) -> Pool:
    return AsyncConnectionPool(
        kwargs={**parameters(url, application_name="forge live"), "autocommit": True},
        configure=partial(pin, settings=settings),
        check=AsyncConnectionPool.check_connection if least else None,  # a connection that stays open may have been cut
        min_size=least,
        max_size=connections,
        open=False,
        timeout=30.0,
        reconnect_timeout=5.0,
    )
