"""Where all shards of a consumer meet: a change of a whole table.

Every shard sees it. Each saves that it has handled all before it and waits; when all have come, the first shard handles
it, once for all, and then they go on. So it comes after all that was before it and before all that is after it, for
every row. A shard that is paused or cannot go on holds the others up here.

Shards read at different moments. Where two transactions changed two whole tables at the same time, two shards may see
these in a different order, and then each waits for the other. When all wait, one of the changes is handled by who waits
for it; a shard that comes to it later finds it handled. Only then a row of that table may come after it that was
changed before it.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from forge.deliver.consumers.lease import Lease
from forge.deliver.consumers.sql import sql

LOOK: Final = 0.05
"""Seconds between two looks at whether all have come."""
_log = logging.getLogger("forge.consumers")


class Barrier:
    """The barriers of one shard."""

    def __init__(self, lease: Lease, consumer: str, shard: int, shards: int) -> None:
        self._lease = lease
        self._consumer = consumer
        self._shard = shard
        self._shards = shards

    async def meet(self, change_id: str, wait: Callable[[float], Awaitable[None]]) -> bool:
        """Wait for the others; True for the shard that has to handle the change now, False when it is handled."""
        values = {"consumer": self._consumer, "change_id": change_id, "shard": self._shard}
        await self._lease.ask(sql("arrive"), values)
        while True:
            ((come, done, first, waiting, next_id),) = await self._lease.ask(sql("arrived"), values)
            if done:
                return False
            if come >= self._shards and self._shard == 0:
                return True
            if come < self._shards <= waiting and next_id == change_id and first == self._shard:
                _log.warning("%s: shards wait at different changes; shard %d goes first", self._consumer, first)
                return True
            await wait(LOOK)

    async def passed(self, change_id: str) -> None:
        """The change is handled, for all shards."""
        await self._lease.ask(sql("passed"), {"consumer": self._consumer, "change_id": change_id})
