"""The trigger log of Forge's own database as the feed of a consumer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from forge.changelog.follow import Wakeup, follow
from forge.changelog.reader import Batch
from forge.cursor import Cursor
from forge.deliver.consumers.definition import Consumer
from forge.deliver.consumers.feed import ConsumerFeed
from forge.deliver.consumers.keys import key_hash, whole
from forge.deliver.consumers.lag import ConsumerLag, lag_of, lag_values
from forge.deliver.consumers.lease import ShardLease
from forge.deliver.consumers.page import ChangePage
from forge.deliver.consumers.sql import sql

COUNTED: Final = 10_000
"""The maximum number of changes that are counted for the regular lag report."""


class LogFeed(ConsumerFeed):
    """The changes that one shard of a consumer must handle."""

    at: Cursor

    def __init__(self, consumer: Consumer, url: str, cursor: str, *, shard: int, wakeup: Wakeup) -> None:
        self.at = Cursor.parse(cursor)
        self._consumer = consumer
        self._url = url
        self._shard = shard
        self._wakeup: Wakeup = wakeup

    async def batches(self) -> AsyncGenerator[Batch]:
        wanted = self._consumer.wanted.tables
        exact = wanted and not any(set(word) & {"*", "?"} for word in wanted)
        tables = wanted if exact else None
        reading = follow(self._url, after=self.at, tables=tables, wakeup=self._wakeup, on_read=self._read)
        async with aclosing(reading) as batches:
            async for batch in batches:
                yield batch

    def _read(self, cursor: Cursor, started: str) -> None:
        """Note that everything before this cursor is handled; the next batch begins here."""
        self.at = cursor

    def page(self, batch: Batch) -> ChangePage:
        wanted, shards = self._consumer.wanted, self._consumer.shards
        changes = [kept for change in batch.changes if (kept := wanted.keep(change)) is not None]
        if shards > 1:
            changes = [change for change in changes if whole(change) or key_hash(change) % shards == self._shard]
        return ChangePage(self.at, batch.cursor, changes)

    async def lag(self, lease: ShardLease, saved: str) -> ConsumerLag:
        values = lag_values(Cursor.parse(saved), self._consumer.wanted.tables, COUNTED)
        return lag_of((await lease.ask(sql("lag"), values))[0])
