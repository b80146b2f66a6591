"""Barrier of all shards of a consumer at a whole-table change.

Every shard sees the change. Each shard saves that it has handled everything before it and waits; when all have arrived,
the first shard handles the change once for all, and then they continue. So for every row the change comes after
everything before it and before everything after it. A paused or failing shard blocks the others here.

Shards read at different moments. When two transactions changed two whole tables concurrently, two shards may see these
changes in a different order, and then each waits for the other. When all shards wait, one of the changes is handled by
the first shard that waits for it; a shard that arrives later finds it handled. Only in this case may a row of that
table that was changed before the whole-table change be handled after it.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from forge.deliver.consumers.lease import ShardLease
from forge.deliver.consumers.sql import sql

LOOK: Final = 0.05
"""Seconds between two checks whether all shards have arrived."""
_log = logging.getLogger("forge.consumers")


class Barrier:
    """The barriers of one shard."""

    def __init__(self, lease: ShardLease, consumer: str, shard: int, shards: int) -> None:
        self._lease = lease
        self._consumer = consumer
        self._shard = shard
        self._shards = shards

    async def meet(self, change_id: str, wait: Callable[[float], Awaitable[None]]) -> bool:
        """Wait for the other shards; return True if this shard must handle the change, False if it is handled."""
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
        """Record that the change is handled, for all shards."""
        await self._lease.ask(sql("passed"), {"consumer": self._consumer, "change_id": change_id})
