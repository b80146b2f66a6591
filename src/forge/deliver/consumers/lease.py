"""Session in which a node holds its consumers: leases, saves, and proof that it still holds them.

The server ends a session that is silent for `TTL` seconds, and its leases end with it, so a node that hangs or is
disconnected loses them. The node notices this first (`forge.postgres.held_session`): `holds` is false by then, and no
worker begins a call that it could not save.

Saves do not wait for the disk: if a crash of the server loses one, the change is delivered again.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, LiteralString, Self

from forge.deliver.consumers.sql import sql
from forge.errors import ConsumerLost
from forge.postgres.connection import AsyncConnection
from forge.postgres.held_session import AsyncHeldSession

TTL: Final = 5.0
ANSWER: Final = 4.0
"""Seconds after which a server that has not answered counts as lost."""


class ShardLease(AsyncHeldSession):
    """One session. Many tasks may run statements; they run one after the other."""

    def __init__(self, connection: AsyncConnection, *, answer: float = ANSWER, silence: float | None = TTL) -> None:
        super().__init__(connection, answer=answer, silence=silence)
        self._durably = asyncio.Lock()

    @classmethod
    async def of(cls, url: str, name: str) -> Self:
        """Open the session of a node."""
        settings = {"synchronous_commit": "off", "lock_timeout": "2s"}
        return await cls.open(url, name, answer=ANSWER, silence=TTL, settings=settings)

    def check(self) -> None:
        """Raise unless this node holds the leases."""
        if not self.holds:
            raise ConsumerLost("the session that holds the consumers is lost", fix="nothing: it is opened again")

    async def durably(self, query: LiteralString, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement like `ask`; its writes are on disk when it returns."""
        async with self._durably:  # the end of one would end it for the other too
            await self.ask("SET synchronous_commit = on")
            try:
                return await self.ask(query, values)
            finally:
                if not self.closed:
                    await self.ask("SET synchronous_commit = off")

    async def lock(self, id: int) -> bool:
        """Try to become the only worker of a shard: of a row of forge.consumer_cursor."""
        return await self.take(f"shard {id}")

    async def unlock(self, id: int) -> None:
        """Release the shard for another worker."""
        await self.give_up(f"shard {id}")

    async def join(self, id: int) -> None:
        """Announce that this node can work on the consumer with this first shard."""
        await self.take(f"member {id} {self.pid}")

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
