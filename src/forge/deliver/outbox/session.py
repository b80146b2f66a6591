"""Session in which a worker holds its messages: many statements per round trip, and a lease.

The input is statements; the output is the rows of the last one.

Invariants:

- When the server does not answer within `answer` seconds, the connection is closed and the waiting caller gets an
  error.
- Between two round trips the server has reported that it is idle in transaction, and nothing was sent since: only then
  does its timeout for such sessions run. So all statements go in one simple query, which is also the fastest; psycopg's
  pipeline sends a Flush after the Sync when it ends, and reading that stops the timeout.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, LiteralString

import psycopg
from psycopg.pq import TransactionStatus

from forge.deliver.outbox.sql import sql
from forge.postgres.connection import AsyncConnection, answering, connect_async, typed_errors

CHANNEL: Final = "forge_outbox"


class OutboxSession:
    """One connection that listens to the outbox."""

    def __init__(self, connection: AsyncConnection, answer: float) -> None:
        self.connection = connection
        self._answer = answer
        self._binding = psycopg.AsyncClientCursor(connection)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str, name: str, *, lease: float, answer: float) -> AsyncIterator["OutboxSession"]:
        """Open a session that loses its locks when it is silent in a transaction for `lease` seconds."""
        connection = await connect_async(url, application_name=name[:63])
        try:
            session = cls(connection, answer)
            with typed_errors():
                await session.ask(
                    session.bound(sql("settings"), {"lease": f"{lease * 1000:.0f}ms"}), f"LISTEN {CHANNEL}"
                )
            yield session
        finally:
            await connection.close()

    @property
    def in_transaction(self) -> bool:
        return self.connection.info.transaction_status is not TransactionStatus.IDLE

    def bound(self, statement: LiteralString, values: Mapping[str, Any]) -> str:
        """Return a statement with its values as literals."""
        return self._binding.mogrify(statement, values)

    async def ask(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Run statements in one round trip; return the rows of the last."""
        with answering(self.connection, self._answer):
            cursor = await self.connection.execute(";\n".join(statements).encode(), prepare=False)
            while cursor.nextset():
                pass
            return await cursor.fetchall() if cursor.description else ()
