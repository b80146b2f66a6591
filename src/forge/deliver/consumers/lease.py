"""Session in which a node holds its consumers: leases, saves, and proof that it still holds them.

The server ends a session that is silent for `TTL` seconds, and its leases end with it, so a node that hangs or is
disconnected loses them. The node counts from the last *request* that was answered, so it notices the end before the
server does: `holds` is false by then, and no worker begins a call that it could not save.

Saves do not wait for the disk: if a crash of the server loses one, the change is delivered again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString

from forge.deliver.consumers.sql import sql
from forge.errors import ConsumerLost
from forge.postgres.connection import AsyncConnection, answering, connect_async, typed_errors

TTL: Final = 5.0
MARGIN: Final = 1.0
ANSWER: Final = 4.0
"""Seconds after which a server that has not answered counts as lost."""


class ShardLease:
    """One session. Many tasks may run statements; they run one after the other."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._busy = asyncio.Lock()
        self._durably = asyncio.Lock()
        self._proof = time.monotonic()
        self.pid = connection.info.backend_pid

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, name: str) -> AsyncIterator["ShardLease"]:
        connection = await connect_async(url, application_name=name)
        try:
            lease = cls(connection)
            with typed_errors():
                for setting, value in (
                    ("idle_session_timeout", f"{TTL:.0f}s"),
                    ("synchronous_commit", "off"),
                    ("lock_timeout", "2s"),
                ):
                    await lease.ask("SELECT set_config(%(name)s, %(value)s, false)", {"name": setting, "value": value})
            yield lease
        finally:
            await connection.close()

    @property
    def holds(self) -> bool:
        """Whether this node certainly holds the leases."""
        return time.monotonic() - self._proof < TTL - MARGIN and not self._connection.closed

    def check(self) -> None:
        """Raise unless this node holds the leases."""
        if not self.holds:
            raise ConsumerLost("the session that holds the consumers is lost", fix="nothing: it is opened again")

    async def ask(self, query: LiteralString, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return rows; raise when the server does not answer in time, and then the session is lost."""
        async with self._busy:
            asked = time.monotonic()
            with answering(self._connection, ANSWER):
                cursor = await self._connection.execute(query, values)
                rows = await cursor.fetchall() if cursor.description else []
            self._proof = asked
            return rows

    async def durably(self, query: LiteralString, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement like `ask`; its writes are on disk when it returns."""
        async with self._durably:  # the end of one would end it for the other too
            await self.ask("SET synchronous_commit = on")
            try:
                return await self.ask(query, values)
            finally:
                if not self._connection.closed:
                    await self.ask("SET synchronous_commit = off")

    async def lock(self, id: int) -> bool:
        """Try to become the only worker of a shard: of a row of forge.consumer_cursor."""
        rows = await self.ask("SELECT forge.take_lease('shard ' || %(id)s)", {"id": id})
        return bool(rows[0][0])

    async def unlock(self, id: int) -> None:
        """Release the shard for another worker."""
        await self.ask("SELECT forge.drop_lease('shard ' || %(id)s)", {"id": id})

    async def join(self, id: int) -> None:
        """Announce that this node can work on the consumer with this first shard."""
        await self.ask("SELECT forge.take_lease('member ' || %(id)s || ' ' || pg_backend_pid())", {"id": id})

    async def holders(self) -> tuple[dict[int, set[int]], dict[int, int]]:
        """Return the sessions of the nodes that can work on each consumer, and the worker of each shard."""
        members: dict[int, set[int]] = {}
        workers: dict[int, int] = {}
        for pid, kind, id in await self.ask(sql("holders")):
            if kind == "shard":
                workers[id] = pid
            else:
                members.setdefault(id, set()).add(pid)
        return members, workers
