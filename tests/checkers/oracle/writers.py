"""Carrying out the transactions of one writer. Whatever fails is rolled back and counted, and the next goes on."""

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import psycopg

from forge.errors import ForgeError
from forge.postgres.connection import AsyncConnection, connect_async
from tests.checkers.oracle.plan import Transaction

APPLICATION: Final = "oracle writer"


class WriterTask:
    """One writer and its connection."""

    def __init__(self, url: str, settings: Mapping[str, str]) -> None:
        self._url = url
        self._settings = settings
        self._connection: AsyncConnection | None = None
        self.committed = 0
        self.errors: Counter[str] = Counter()

    async def write(self, transactions: Sequence[Transaction]) -> None:
        for transaction in transactions:
            try:
                connection = await self._connected()
                await self._carry_out(connection, transaction)
            except (psycopg.Error, ForgeError) as error:
                self.errors[re.sub(r"\d+", "#", str(error).strip().splitlines()[0])[:80]] += 1
                await self._roll_back()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _connected(self) -> AsyncConnection:
        if self._connection is None or self._connection.closed:
            self._connection = None
            self._connection = await connect_async(self._url, application_name=APPLICATION)
            await self._connection.execute("SET lock_timeout = '3s'; SET deadlock_timeout = '1500ms'")
            for name, value in self._settings.items():
                await self._connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        return self._connection

    async def _roll_back(self) -> None:
        try:
            if self._connection is not None and not self._connection.closed:
                await self._connection.execute("ROLLBACK")
                return
        except psycopg.Error:
            self._connection = None
        await asyncio.sleep(0.02)

    async def _carry_out(self, connection: AsyncConnection, transaction: Transaction) -> None:
        texts = [f"BEGIN ISOLATION LEVEL {transaction.isolation}"]
        for statement in transaction.statements:
            text = f"DO $do$ BEGIN {statement.sql}; END $do$" if transaction.sent == "blocks" else statement.sql
            texts += ["SAVEPOINT s", text, "ROLLBACK TO s"] if statement.undone else [text]
        texts.append("COMMIT" if transaction.commit else "ROLLBACK")
        for text in [";\n".join(texts)] if transaction.sent == "together" else texts:
            await connection.execute(text.encode())
        self.committed += transaction.commit
