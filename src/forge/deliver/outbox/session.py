"""The session by which a worker holds its messages: many statements in one round trip, and a lease that runs.

In come statements, out comes the last one's cursor, with its result. What always holds:

- A server that does not answer within `answer` seconds is hung up on, and whoever waits for it gets an error.
- Between two round trips the server has said that it waits, and was sent nothing since: only then does its clock run
  that ends a session which waits in a transaction for too long. So a round trip ends with a Sync and nothing after it;
  leaving psycopg's pipeline sends a Flush too, which stops that clock, so it is left outside of a transaction only.
"""

import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from forge.changelog.connection import AsyncConnection, answering, connect_async, typed_errors
from forge.deliver.outbox.sql import sql

CHANNEL = "forge_outbox"
Cursor = psycopg.AsyncCursor[TupleRow]


class Ask(NamedTuple):
    """A statement; `often` when it is worth being prepared, and its result being binary."""

    statement: LiteralString
    values: dict[str, Any] | None = None
    often: bool = False


BEGIN = Ask("BEGIN")
COMMIT = Ask("COMMIT")


class Session:
    """One connection that listens to the outbox."""

    def __init__(self, connection: AsyncConnection, answer: float) -> None:
        self.connection = connection
        self._answer = answer
        self._entered: contextlib.AbstractAsyncContextManager[psycopg.AsyncPipeline] | None = None
        self._pipeline: psycopg.AsyncPipeline | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str, name: str, *, lease: float, answer: float) -> AsyncIterator["Session"]:
        """A session that loses what it holds when it says nothing in a transaction for `lease` seconds."""
        connection = await connect_async(url, application_name=name[:63])
        session = cls(connection, answer)
        try:
            with typed_errors(), answering(connection, answer):
                await connection.execute(sql("settings"), {"lease": f"{lease * 1000:.0f}ms"})
                await connection.execute(f"LISTEN {CHANNEL}")
            yield session
        finally:
            error = sys.exc_info()[1]
            try:
                with contextlib.suppress(psycopg.Error):  # whoever asked something was told
                    await session._left(error)
            finally:
                await connection.close()

    @property
    def in_transaction(self) -> bool:
        return self.connection.info.transaction_status is not TransactionStatus.IDLE

    async def ask(self, *asked: Ask) -> Cursor:
        """Run statements in one round trip."""
        with answering(self.connection, self._answer):
            pipeline = self._pipeline or await self._enter()
            cursor = await self._sent(asked)
            await pipeline.sync()
            return cursor

    async def rest(self, *asked: Ask) -> Cursor:
        """Run statements in one round trip, after which no transaction is open; notifications are heard then."""
        with answering(self.connection, self._answer):
            if self._pipeline is None:
                await self._enter()
            cursor = await self._sent(asked)
            await self._left(None)
            return cursor

    async def _sent(self, asked: tuple[Ask, ...]) -> Cursor:
        for each in asked[:-1]:
            await self.connection.execute(each.statement, each.values)
        last = asked[-1]
        return await self.connection.execute(last.statement, last.values, prepare=last.often or None, binary=last.often)

    async def _enter(self) -> psycopg.AsyncPipeline:
        self._entered = self.connection.pipeline()
        self._pipeline = await self._entered.__aenter__()
        return self._pipeline

    async def _left(self, error: BaseException | None) -> None:
        """Leave the pipeline, in order or because of an error."""
        entered, self._entered, self._pipeline = self._entered, None, None
        if entered is not None:
            with answering(self.connection, self._answer):
                await entered.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
