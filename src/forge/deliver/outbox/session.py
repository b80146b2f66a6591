"""The session by which a worker holds its messages: many statements in one round trip, and a lease that runs.

In come statements, out come the last one's rows. What always holds:

- A server that does not answer within `answer` seconds is hung up on, and whoever waits for it gets an error.
- Between two round trips the server has said that it waits, and was sent nothing since: only then does its clock run
  that ends a session which waits in a transaction for too long. So all goes in one simple query, which is the quickest
  way too; leaving psycopg's pipeline sends a Flush behind the Sync, and reading that stops the clock.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, LiteralString

import psycopg
from psycopg.pq import TransactionStatus

from forge.deliver.outbox.sql import sql
from forge.postgres.connection import AsyncConnection, answering, connect_async, typed_errors

CHANNEL: Final = "forge_outbox"


class Session:
    """One connection that listens to the outbox."""

    def __init__(self, connection: AsyncConnection, answer: float) -> None:
        self.connection = connection
        self._answer = answer
        self._binding = psycopg.AsyncClientCursor(connection)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str, name: str, *, lease: float, answer: float) -> AsyncIterator["Session"]:
        """A session that loses what it holds when it says nothing in a transaction for `lease` seconds."""
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
        """A statement with its values in it."""
        return self._binding.mogrify(statement, values)

    async def ask(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Run statements in one round trip; the rows of the last."""
        with answering(self.connection, self._answer):
            cursor = await self.connection.execute(";\n".join(statements).encode(), prepare=False)
            while cursor.nextset():
                pass
            return await cursor.fetchall() if cursor.description else ()
