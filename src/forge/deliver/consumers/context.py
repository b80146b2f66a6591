"""Context of a handler: its identity, a transaction that also saves the cursor, and `once`.

`tx` is a psycopg connection whose transaction begins with its first statement. The worker commits it, with the cursor
in it, after the handler returned: writes of the handler there happen exactly once. If the handler raises, the
transaction is rolled back. A handler cannot end the transaction itself.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from forge.deliver.consumers.sql import sql
from forge.errors import HandlerMisused

_FIX = "leave it to Forge: it commits with the cursor when the handler returns, and rolls back when it raises"


class HandlerTransaction(psycopg.AsyncConnection[TupleRow]):
    """A connection whose transactions only its worker begins and ends; nested transactions are savepoints."""

    began = False
    """Whether a transaction has begun since the worker last ended one."""

    def _start_query(self) -> PQGen[None]:
        self.began = True
        yield from super()._start_query()

    async def commit(self) -> None:
        self._refuse("commit")

    async def rollback(self) -> None:
        self._refuse("rollback")

    async def set_autocommit(self, value: bool) -> None:
        self._refuse("set_autocommit")

    def _refuse(self, what: str) -> NoReturn:
        raise HandlerMisused(f"{what} on ctx.tx is not for handlers", fix=_FIX)

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[psycopg.AsyncTransaction]:
        if self.info.transaction_status is TransactionStatus.IDLE:
            await self.execute("SELECT")  # begins the outer transaction, so that the block is a savepoint in it
        async with super().transaction(savepoint_name, force_rollback) as block:
            yield block

    def check(self) -> None:
        """Raise if a handler ended the transaction by its own statement."""
        if self.began and self.info.transaction_status is TransactionStatus.IDLE:
            self._refuse("COMMIT or ROLLBACK")

    async def finish(self) -> None:
        """Commit; called by the worker."""
        await super().commit()
        self.began = False

    async def abandon(self) -> None:
        """Roll back; called by the worker."""
        await super().rollback()
        self.began = False


class ConsumerContext:
    """One worker's context; the same object at each call."""

    def __init__(self, consumer: str, shard: int, shards: int, fence: int) -> None:
        self.consumer = consumer
        self.shard = shard
        self.shards = shards
        self.fence = fence
        """Greater each time that a worker takes over: a receiver that refuses less than it has seen is safe from one
        that does not know yet that it was replaced."""
        self.tries = 0
        """How often this call has failed before."""
        self.used = False
        self.connection: HandlerTransaction | None = None

    @property
    def tx(self) -> HandlerTransaction:
        """The transaction that also saves the cursor."""
        if self.connection is None:
            raise HandlerMisused("ctx.tx is there while the handler runs only", fix="use it before the handler returns")
        self.used = True
        return self.connection

    async def once(self, id: str) -> bool:
        """Return True the first time that this consumer passes an id, and never again once the handler has returned.

        It is part of `tx`: after a crash, a rewind or a replay of dead letters the same id comes again, and the result
        tells whether it was handled. `if await ctx.once(change.id): …`
        """
        cursor: psycopg.AsyncCursor[Any] = await self.tx.execute(sql("once"), {"consumer": self.consumer, "id": id})
        return await cursor.fetchone() is not None
