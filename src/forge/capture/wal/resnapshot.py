"""Read tables again during streaming, one chunk of rows at a time, in memory that does not grow with the table.

A chunk is read under its own snapshot and is delivered, as `read`, once the stream has passed all that the snapshot
shows. Rows that the stream has changed meanwhile, by a transaction that the snapshot does not see, are left out: the
consumer already has the newer state. So a consumer that applies changes in order never goes back in time.

A commit is in the WAL a little before it is visible. If a transaction that was already streamed is missing in a chunk's
snapshot, the chunk is read again.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from psycopg import sql as q

from forge.capture.wal.catalog import Published
from forge.capture.wal.position import Unit, lsn_text
from forge.capture.wal.regions import order_texts
from forge.capture.wal.relations import Row, WalRelation
from forge.capture.wal.snapshot import flushed, selection, split, take
from forge.change import Change, Op
from forge.cursor import Snapshot
from forge.postgres.connection import AsyncConnection

CHUNK: Final = 1_000
RECENT: Final = 4_096
"""Number of recent transactions that are remembered."""


class Chunk:
    """Rows as one snapshot shows them; `until` is an LSN behind all that it shows."""

    def __init__(self, relation: WalRelation, rows: Sequence[Row], seen: Snapshot, until: int, at: int) -> None:
        self.relation: Final = relation
        self.rows: Final = rows
        self.seen: Final = seen
        self.until: Final = until
        self.at: Final = at


class Resnapshots:
    """The queue of tables to read again, across all connections of a source. One chunk at a time is in progress."""

    def __init__(self) -> None:
        self.recent: deque[int] = deque(maxlen=RECENT)
        self.ready: Chunk | None = None
        self._waiting: deque[tuple[Published, Unit]] = deque()
        self._name: tuple[str, str] | None = None
        self._touched: dict[tuple[str, ...], int] = {}
        self._emptied = 0
        self._handed = asyncio.Event()

    def add(self, tables: Iterable[Published]) -> None:
        self._waiting.extend((table, Unit(table.relation.oid)) for table in tables)
        self._handed.set()

    @property
    def idle(self) -> bool:
        return not self._waiting and self.ready is None

    def note(self, changes: Iterable[Change]) -> None:
        """Note what the stream delivers: later states of rows that may be in a chunk."""
        if self._name is None or not self._waiting:
            return
        relation = self._waiting[0][0].relation
        for change in changes:
            if (change.schema, change.table) == self._name and change.source.transaction is not None:
                xid = int(change.source.transaction)
                if change.op is Op.TRUNCATE:
                    self._emptied = xid
                elif change.key is not None:
                    self._touched[order_texts(relation, change.key)] = xid

    def rows(self) -> list[Row]:
        """Return the rows of the chunk for which nothing newer has come; then the next chunk may be read."""
        chunk = self.ready
        assert chunk is not None
        relation, sees = chunk.relation, chunk.seen.sees
        found = list(chunk.rows)
        if self._emptied and not sees(self._emptied):
            found = []
        elif self._touched:
            stale = {key for key, xid in self._touched.items() if not sees(xid)}
            found = [row for row in found if order_texts(relation, relation.key(row) or {}) not in stale]
        self.ready = None
        table, _ = self._waiting.popleft()
        if len(chunk.rows) == CHUNK:
            last = order_texts(relation, relation.key(chunk.rows[-1]) or {})
            self._waiting.appendleft((table, Unit(relation.oid, last=last)))
        self._touched, self._emptied, self._name = {}, 0, None
        self._handed.set()
        return found

    async def run(self, connection: AsyncConnection) -> None:
        """Read chunk after chunk, each when the previous one was delivered; without end."""
        while True:
            if self._waiting and self.ready is None:
                table, unit = self._waiting[0]
                self._name = (table.relation.schema, table.relation.table)
                self._touched, self._emptied = {}, 0  # what is streamed from here on is noted
                before = set(self.recent)
                chunk = await self._read(connection, table, unit)
                if not all(map(chunk.seen.sees, before)):
                    await asyncio.sleep(0.005)
                    continue
                await flushed(connection, lsn_text(chunk.until))
                self.ready = chunk
            self._handed.clear()
            if not self._waiting or self.ready is not None:
                await self._handed.wait()

    async def _read(self, connection: AsyncConnection, table: Published, unit: Unit) -> Chunk:
        relation = table.relation
        taken = await take(connection)
        rows = []
        try:
            statement = q.SQL("COPY ({}) TO STDOUT").format(selection(table, unit, limit=CHUNK))
            async with connection.cursor().copy(statement) as copy:
                async for line in copy:
                    rows.append(relation.from_texts(split(bytes(line))))
        finally:
            await connection.execute("ROLLBACK")
        return Chunk(relation, rows, Snapshot.parse(taken.seen), taken.until, taken.at)
