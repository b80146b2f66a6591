"""Read the log from a cursor.

Changes between two snapshots are found by transaction: those visible in the new snapshot and not in the old one. One
statement takes the new snapshot and reads what it shows, so there is no stall, no gap and no duplicate, however long a
writer takes to commit. Within a batch, changes are ordered by (place, id): see `forge.cursor.Position`.

A batch of more than `PAGE` changes or `PAGE_KILOBYTES` is read through a WITH HOLD cursor of the server: neither side
keeps it in memory, and no snapshot is held open meanwhile. The server first reports the size of the largest row, so
rows of any size stream in bounded memory.

After a crash PostgreSQL reuses transaction numbers that were never flushed to disk. A cursor is therefore safe to keep
only when the WAL is flushed up to its position at the time of the snapshot: `flushed()` waits for it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql
from psycopg.types.string import ByteaBinaryLoader

from forge.change import Change
from forge.changelog.days import ALL, Calendar, Days
from forge.changelog.decode import LogDecoder
from forge.changelog.queries import query
from forge.cursor import Cursor, LogIdentity, Position, Snapshot, wal_position
from forge.errors import CursorExpired, CursorForeign, NotInstalled
from forge.postgres.connection import AsyncConnection, connect_async, typed_errors
from forge.tasks import observed
from forge.values import Column

PAGE: Final = 1_000
PAGE_KILOBYTES: Final = 8 * 1024
START: Final = Snapshot(1, 1)
"""The snapshot before anything was written."""


class Batch(msgspec.Struct, frozen=True):
    """Changes in order, and the cursor after them. The WAL must be flushed up to `lsn` before the cursor is safe.

    `columns` has for each change the columns that its table had at that time; `forge.debezium` needs them.
    """

    changes: list[Change]
    cursor: Cursor
    lsn: str
    flushed: bool
    columns: list[tuple[Column, ...]] = []


class Reader:
    """One connection that reads the log of one database. Two tasks must not share it."""

    def __init__(self, connection: AsyncConnection, identity: LogIdentity, first_id: int) -> None:
        self.connection = connection
        self.identity = identity
        self._first_id = first_id
        self._decoder = LogDecoder(identity.uuid)
        self._calendar = Calendar()
        self._rows = connection.cursor(binary=True)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["Reader"]:
        """Connect to the log; raise when the server is a standby or Forge is not installed there."""
        connection = await connect_async(url)
        try:
            yield await cls.over(connection)
        finally:
            await connection.close()

    @classmethod
    async def over(cls, connection: AsyncConnection) -> "Reader":
        """Return a reader that has this connection to itself."""
        with typed_errors():
            await connection.execute(query("reader_settings"))
            cursor = await connection.execute(query("identity"))
            row = await cursor.fetchone()
        if row is None:
            raise NotInstalled("Forge is not installed in this database", fix="forge init")
        connection.adapters.register_loader("json", ByteaBinaryLoader)
        connection.prepare_threshold = 0
        return cls(connection, LogIdentity(row[0], row[1], row[2]), row[3])

    def start(self) -> Cursor:
        """Return the cursor before the oldest retained change."""
        return Cursor(self.identity, START)

    async def now(self) -> Cursor:
        """Return the cursor after everything that is committed, safe to keep."""
        row = await (await self.connection.execute(query("head"))).fetchone()
        assert row is not None
        await self.flushed(row[1])
        return Cursor(self.identity, Snapshot.parse(row[0]))

    async def read(self, after: Cursor, *, tables: Collection[str] | None = None) -> AsyncGenerator[Batch]:
        """Yield what was committed after the cursor, up to one new snapshot, in one or more batches.

        There is always a last batch, possibly empty, whose cursor is that snapshot.
        """
        if after.log != self.identity:
            raise CursorForeign(
                "the cursor belongs to another log, or to this one before a failover or restore",
                fix="take a cursor now, read the tables again, then follow from that cursor",
            )
        scope = {"first": self._first_id, "tables": list(tables) if tables is not None else None}
        if after.until is not None and after.last is not None:
            rest = self._rest(after, after.until, after.last, scope, lsn=None, flushed=False)
            async with aclosing(rest):
                async for batch in rest:
                    yield batch
            return
        days = self._calendar.days(after.snapshot)
        head, *found = await self._poll(after, scope, days)
        if days != ALL and not self._calendar.expects(head[-2]):
            head, *found = await self._poll(after, scope, ALL)
        snapshot, lsn, flush, trimmed, today = head[-6:-1]
        until = Snapshot.parse(snapshot)
        self._calendar.note(until, today)
        self._check(after, until, trimmed and after.snapshot != START)
        done = wal_position(flush) >= wal_position(lsn)
        rows = [row[:-6] for row in found[:PAGE] if row[-1]]
        if len(rows) == len(found):
            yield await self._batch(rows, Cursor(self.identity, until), lsn, done)
            return
        last = Position(rows[-1][1], rows[-1][0])
        yield await self._batch(rows, Cursor(self.identity, after.snapshot, until, last), lsn, done)
        rest = self._rest(after, until, last, scope, lsn=lsn, flushed=done)
        async with aclosing(rest):
            async for batch in rest:
                yield batch

    async def _poll(self, after: Cursor, scope: dict[str, Any], days: Days) -> list[tuple[Any, ...]]:
        bounds = {**after.snapshot.bounds, **scope, **days._asdict(), "limit": PAGE + 1, "kilobytes": PAGE_KILOBYTES}
        await self._rows.execute(query("poll"), bounds, prepare=True)
        return await self._rows.fetchall()

    async def _rest(
        self,
        after: Cursor,
        until: Snapshot,
        last: Position,
        scope: dict[str, Any],
        *,
        lsn: str | None,
        flushed: bool,
    ) -> AsyncGenerator[Batch]:
        bounds = {**after.snapshot.bounds, **scope, "until": str(until), "place": last.rank, "id": last.id}
        widest = await (await self.connection.execute(query("widest"), bounds)).fetchone()
        assert widest is not None
        page = max(1, min(PAGE, PAGE_KILOBYTES // (widest[0] + 1)))
        await psycopg.AsyncClientCursor(self.connection).execute(query("rest"), bounds)
        ahead: asyncio.Task[list[tuple[Any, ...]]] | None = None
        try:
            # queried after the server holds the rows: whatever they lack was recorded as trimmed by then
            head = await (await self.connection.execute(query("head"))).fetchone()
            gone = await (await self.connection.execute(query("trimmed_behind"), bounds)).fetchone()
            assert head is not None
            assert gone is not None
            # when reading from the start, rows trimmed before the batch began are not missed
            self._check(after, Snapshot.parse(head[0]), gone[1] if after.snapshot == START else gone[0])
            if lsn is None:
                lsn, flushed = head[1], wal_position(head[2]) >= wal_position(head[1])
            rows = await self._fetch(page)
            while len(rows) == page:
                # the server reads the next page while this one is decoded and handled
                ahead = observed(asyncio.create_task(self._fetch(page)))
                await asyncio.sleep(0)
                last = Position(rows[-1][1], rows[-1][0])
                yield await self._batch(rows, Cursor(self.identity, after.snapshot, until, last), lsn, flushed)
                rows = await ahead
            yield await self._batch(rows, Cursor(self.identity, until), lsn, flushed)
        finally:
            if ahead is not None:
                await asyncio.wait([ahead])
            if not self.connection.closed:
                await self.connection.execute("CLOSE forge_batch")

    async def _fetch(self, count: int) -> list[tuple[Any, ...]]:
        await self._rows.execute(sql.SQL("FETCH {} FROM forge_batch").format(count), prepare=False)
        return await self._rows.fetchall()

    def _check(self, after: Cursor, now: Snapshot, trimmed: bool) -> None:
        if now.xmax < (after.until or after.snapshot).xmax:
            raise CursorForeign(
                "the cursor is ahead of the server: it was made before a crash or restore",
                fix="take a cursor now, read the tables again, then follow from that cursor",
            )
        if trimmed:
            raise CursorExpired(
                "what follows this cursor has been trimmed from the log",
                fix="take a cursor now, read the tables again, then follow from that cursor; retention_days keeps more",
            )

    async def _batch(self, rows: list[tuple[Any, ...]], cursor: Cursor, lsn: str, flushed: bool) -> Batch:
        if unknown := self._decoder.unknown(rows):
            versions = await self.connection.execute(query("versions"), {"ids": list(unknown)})
            for version in await versions.fetchall():
                self._decoder.learn(*version)
        return Batch(self._decoder.changes(rows), cursor, lsn, flushed, self._decoder.columns(rows))

    async def flushed(self, lsn: str) -> None:
        """Return when the WAL is flushed up to `lsn`; flush it if nothing else does."""
        for patience in (0.0, 0.001):
            await asyncio.sleep(patience)
            if await (await self.connection.execute(query("flushed"), {"lsn": lsn})).fetchone() == (True,):
                return
        await self.connection.execute(query("flush"))
