"""The server's side of a source: its slot and publication, created if missing, and the streams they provide.

In: positions. Out: sessions that are ready to be read.

Invariants:
- A stream is opened only at a position that the slot still has, on the server and timeline that it belongs to.
- Only `ack` lets the server forget.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

import psycopg

from forge.capture.source import SourceBatch
from forge.capture.wal import publication as publications
from forge.capture.wal import slot as slots
from forge.capture.wal import wal2json
from forge.capture.wal.catalog import RelationCatalog
from forge.capture.wal.connection import ReplicationConnection
from forge.capture.wal.decode import WalDecoder
from forge.capture.wal.options import WalOptions
from forge.capture.wal.position import Epoch, More, Timelines, WalCursor, lsn_text, more_text
from forge.capture.wal.publication import Publication
from forge.capture.wal.relations import WalRelation
from forge.capture.wal.resnapshot import Resnapshots
from forge.capture.wal.session import WalSession, Wants
from forge.capture.wal.slot import Slot, WalServer, open_control, sql
from forge.capture.wal.snapshot import flushed
from forge.capture.wal.toast import Filler
from forge.capture.wal.wal2json import Translator
from forge.config import hide, shown_size
from forge.cursor import Snapshot, wal_position
from forge.errors import CursorForeign, SlotLost
from forge.postgres.connection import AsyncConnection

PATIENCE: Final = 3.0
"""Seconds for which another reader of the slot may still be leaving."""
_AGAIN: Final = "take a new snapshot, then follow from its cursor"
_log = logging.getLogger("forge.capture.wal")


class Upstream:
    """One slot of one database. Nothing happens before the first call."""

    def __init__(self, options: WalOptions) -> None:
        self.name: Final = hide(options.url)
        self.catalog: Final = RelationCatalog()
        self.slot: str | None = options.slot
        """The slot's name; None until the first connection if Forge names it."""
        self._options: Final = options
        self._acked = 0
        self._replication: ReplicationConnection | None = None
        self._last_pid: int | None = None
        self._alerted = False

    @asynccontextmanager
    async def control(self) -> AsyncIterator[AsyncConnection]:
        """Open a connection for queries, closed after the block."""
        connection = await open_control(self._options.url, self.slot or "")
        try:
            yield connection
        finally:
            await connection.close()

    async def ready(
        self, control: AsyncConnection, place: WalCursor | None = None
    ) -> tuple[WalServer, Slot, Publication]:
        """Return slot and publication, created if missing; with a place, the slot must have what follows it."""
        server = await slots.server(control)
        server.check()
        if self.slot is None:
            self.slot = publications.default_name(server.name, self._options.filter)
        name = self.slot
        if place is not None:
            self._belongs(place, server, name)
        elif self._options.filter.names_columns:
            self._options.filter.check_columns(await self.catalog.columns(control))
        slot = await slots.find(control, name)
        if slot is None and place is not None:
            raise SlotLost(f"there is no replication slot {name} any more", fix=_AGAIN)
        # a slot decodes with the catalog of its time, so its publication must be older
        publication = await publications.ensure(
            control, self._options.publication or name, self._options.filter, server, self._options.push
        )
        if slot is None:
            await slots.create(
                control,
                name,
                plugin=self._options.plugin,
                two_phase=self._options.two_phase,
                failover=self._options.failover,
            )
            slot = await slots.find(control, name)
            assert slot is not None
        slots.usable(slot, plugin=self._options.plugin, database=server.name)
        if place is not None and place.start < slot.confirmed_lsn:
            raise slots.expired(name, place.start, slot.confirmed_lsn)
        return server, slot, publication

    def _belongs(self, place: WalCursor, server: WalServer, slot: str) -> None:
        if (place.system, place.database) != (server.system, server.database):
            raise CursorForeign("the cursor belongs to another server or database", fix=_AGAIN)
        if place.slot != slot:
            raise CursorForeign(
                f"the cursor belongs to the slot {place.slot}, not to {slot}",
                fix=f"use slot={place.slot} and the filter it was made with",
            )
        if place.timeline > server.timeline:
            raise CursorForeign("the cursor belongs to another timeline of this server", fix=_AGAIN)

    async def here(
        self, control: AsyncConnection, server: WalServer, slot: Slot, publication: Publication
    ) -> WalCursor:
        """Return the position behind all that is committed.

        A commit is in the WAL a little before it is visible. So the position is the slot's, with a snapshot that tells
        which later transactions are not to be streamed; or the end of the WAL if no transaction was running, because
        then nothing before it is unseen.
        """
        low = await end_of_wal(control)
        async with control.transaction():
            await control.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = await (await control.execute(sql("head").encode())).fetchone()
            assert row is not None
            tables = await self.catalog.published(control, publication.name)
        seen, until = Snapshot.parse(row[0]), wal_position(row[3])
        await flushed(control, row[3])
        known = self.digests({oid: table.relation for oid, table in tables.items()})
        lsn = slot.confirmed_lsn if seen.running else max(low, slot.confirmed_lsn)
        epochs = (Epoch(row[0], until),) if until > lsn else ()
        more = more_text(More(known, epochs))
        return WalCursor(server.system, server.timeline, server.database, slot.name, lsn, None, None, more)

    def digests(self, relations: dict[int, WalRelation]) -> dict[int, bytes]:
        """Return the table definitions for a cursor, so that each change is reported once; empty if they are many."""
        wanted = Wants(self._options.filter)
        found = {oid: each.digest for oid, each in relations.items() if wanted(each.schema, each.table)}
        return found if len(found) <= 128 else {}

    @asynccontextmanager
    async def session(
        self, place: WalCursor | None, again: Resnapshots, shown: Callable[[Resnapshots, str], SourceBatch]
    ) -> AsyncIterator[WalSession]:
        """Open a stream from a position on, ready to be read; `shown` makes a batch of rows that were read again."""
        async with AsyncExitStack() as stack:
            control = await stack.enter_async_context(self.control())
            server, slot, publication = await self.ready(control, place)
            if place is None:
                place = await self.here(control, server, slot, publication)
            connection = await self._replicate(control, slot)
            stack.push_async_callback(connection.close)
            timelines = await _timelines(connection, server)
            end = await end_of_wal(control)
            if not timelines.holds(place.timeline, place.lsn) or place.lsn > end:
                raise CursorForeign(
                    "the cursor is ahead of this server's history: it was made before a failover or restore", fix=_AGAIN
                )
            row = await (await control.execute(sql("next_xid").encode())).fetchone()
            assert row is not None
            left = self._options.filter.without("tables")
            if "rows" in publication.parts:
                left = left.without("rows")
            keep = left.keep if left.parts else None
            decoder = WalDecoder(self.name, server.system, timelines, keep, int(row[0]))
            session = WalSession(
                connection,
                control,
                self.catalog,
                decoder,
                timelines,
                place,
                wants=Wants(self._options.filter),
                filler=Filler() if server.logged else None,
                heartbeat=self._options.heartbeat,
                again=again,
                shown=shown,
                translator=Translator() if self._options.plugin == "wal2json" else None,
            )
            stack.callback(session.close)
            connection.flushed = self._acked
            async with slots.typed(slot.name):
                await connection.start(self._command(server, slot.name, publication.name, place))
            self._replication, self._last_pid = connection, connection.pid
            stack.callback(self._hung_up)
            reader = await stack.enter_async_context(self.control())
            for work in (self._feedback(connection, control, slot.name), again.run(reader)):
                stack.push_async_callback(_cancel, asyncio.create_task(self._beside(connection, work)))
            yield session

    async def ack(self, place: WalCursor) -> None:
        """Acknowledge a position that the consumer has saved: the server may forget the WAL before it."""
        if place.start <= self._acked:
            return
        self._acked = place.start
        if self._replication is not None:
            self._replication.flushed = self._acked
            with suppress(psycopg.Error):  # the stream notices a lost connection
                self._replication.send_status()
            return
        async with self.control() as control:
            slot = await slots.find(control, place.slot)
            if slot is not None and slot.lost is None and not slot.active and slot.confirmed_lsn < self._acked:
                await slots.advance(control, place.slot, self._acked)

    def _hung_up(self) -> None:
        self._replication = None

    async def _replicate(self, control: AsyncConnection, slot: Slot) -> ReplicationConnection:
        """Open a replication connection when the slot is free: close our last one, give others a moment to leave."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while slot.active:
            if slot.active_pid == self._last_pid:
                await control.execute("SELECT pg_terminate_backend(%s)", (slot.active_pid,))
            elif loop.time() > end:
                raise slots.in_use(slot.name, f"process {slot.active_pid} of the server")
            await asyncio.sleep(0.05)
            again = await slots.find(control, slot.name)
            if again is None:
                raise SlotLost(f"there is no replication slot {slot.name} any more", fix=_AGAIN)
            slot = again
        async with slots.typed(slot.name):
            return await ReplicationConnection.open(self._options.url)

    def _command(self, server: WalServer, slot: str, publication: str, place: WalCursor) -> str:
        version = 4 if server.version >= 160000 else 3 if server.version >= 150000 else 2
        quoted = publication.replace('"', '""').replace("'", "''")
        begin = f"START_REPLICATION SLOT {slot} LOGICAL {lsn_text(place.start)}"
        if self._options.plugin == "wal2json":
            asked = ", ".join(f"\"{option}\" '{value}'" for option, value in wal2json.OPTIONS.items())
            return f"{begin} ({asked})"
        options = [f"proto_version '{version}'", f"publication_names '\"{quoted}\"'", "messages 'true'"]
        if self._options.streaming:
            options.append("streaming 'on'")
        if self._options.two_phase and server.version >= 150000:
            options.append("two_phase 'on'")
        return f"{begin} ({', '.join(options)})"

    async def _feedback(self, connection: ReplicationConnection, control: AsyncConnection, name: str) -> None:
        """Tell the server that we are alive, and watch the slot, as long as the stream is open."""
        while True:
            await asyncio.sleep(self._options.interval)
            connection.send_status()
            if await slots.decoding(control, connection.pid):
                connection.alive()
            slot = await slots.find(control, name)
            if slot is None:
                continue
            warnings = slot.warnings(self._options.limits)
            if warnings and not self._alerted:
                _log.warning("%s", "; ".join(warnings))
            self._alerted = bool(warnings)
            most, kept = self._options.limits.most, slot.retained
            if self._options.limits.act == "drop" and most is not None and kept is not None and kept > most:
                await self._give_up(connection, control, slot.name, kept, most)

    async def _give_up(
        self, connection: ReplicationConnection, control: AsyncConnection, name: str, kept: int, most: int
    ) -> None:
        """Drop the slot before it fills the server's disk. Its reader learns of that when it returns."""
        lost = SlotLost(
            f"the slot {name} was dropped: it kept {shown_size(kept)} of WAL, and its limit is {shown_size(most)}",
            fix=_AGAIN,
        )
        _log.error("%s", lost)
        connection.end(lost)
        await connection.close()
        async with asyncio.timeout(PATIENCE):
            while (found := await slots.find(control, name)) is not None and found.active:
                await control.execute("SELECT pg_terminate_backend(%s)", (found.active_pid,))
                await asyncio.sleep(0.05)
        await slots.drop(control, name)

    async def _beside(self, connection: ReplicationConnection, work: Coroutine[Any, Any, None]) -> None:
        """Run work beside the stream; if it fails, the connection fails too."""
        try:
            await work
        except (psycopg.Error, OSError, TimeoutError) as error:
            connection.end(psycopg.OperationalError(str(error)))


async def end_of_wal(connection: AsyncConnection) -> int:
    """Return the LSN at which the next record will be written."""
    row = await (await connection.execute(sql("insert_lsn").encode())).fetchone()
    assert row is not None
    return wal_position(row[0])


async def _timelines(connection: ReplicationConnection, server: WalServer) -> Timelines:
    if server.timeline == 1:
        return Timelines(1)
    rows = await connection.command(f"TIMELINE_HISTORY {server.timeline}")
    content: Any = rows[0][1]
    return Timelines(server.timeline, content.decode() if isinstance(content, bytes) else content)


async def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
