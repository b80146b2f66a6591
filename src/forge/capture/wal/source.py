"""The WAL source: take snapshots, stream, report status, and reconnect when needed.

The server forgets only what was acknowledged: `ack` sends the LSN of a cursor that the consumer has saved, and nothing
else does. So a cursor is valid as long as nothing after it was acknowledged; an older one is CursorExpired.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack, aclosing
from typing import Final, Self

import msgspec
import psycopg

from forge.backoff import Backoff
from forge.capture.capabilities import Capabilities, Part
from forge.capture.filters import Filter
from forge.capture.source import SourceBatch, Status
from forge.capture.wal import publication as publications
from forge.capture.wal import slot as slots
from forge.capture.wal.decode import KIND
from forge.capture.wal.options import Plugin, WalOptions
from forge.capture.wal.position import Epoch, More, Rest, WalCursor, lsn_text, more_text
from forge.capture.wal.reads import Reads
from forge.capture.wal.regions import ordered
from forge.capture.wal.resnapshot import Resnapshots
from forge.capture.wal.session import Wants
from forge.capture.wal.slot import SlotLimits, explain, sql
from forge.capture.wal.snapshot import SnapshotPage, SnapshotRows, flushed, take
from forge.capture.wal.upstream import Upstream, end_of_wal
from forge.cursor import Snapshot, wal_position
from forge.errors import CursorInvalid, SlotInUse, SourceError, one_line
from forge.generator_close import Closing
from forge.postgres.connection import translate
from forge.postgres.held_session import LOST

ALIVE: Final = 5.0
"""Seconds between status updates, also while the consumer is slow."""
_log = logging.getLogger("forge.capture.wal")

LIMITS: Final = SlotLimits()


class WalSource:
    """The WAL of one database, read through one slot. Nothing happens before it is entered or read."""

    kind: Final = KIND

    def __init__(
        self,
        url: str,
        filter: Filter | None = None,
        *,
        slot: str | None = None,
        publication: str | None = None,
        limits: SlotLimits = LIMITS,
        heartbeat: float = 10.0,
        interval: float = ALIVE,
        streaming: bool = True,
        two_phase: bool = False,
        failover: bool = True,
        workers: int = 2,
        push: Collection[Part] = (),
        plugin: Plugin | None = None,
    ) -> None:
        options = WalOptions(
            url=url,
            filter=filter or Filter(),
            slot=slot,
            publication=publication,
            plugin=plugin or "",
            limits=limits,
            heartbeat=heartbeat,
            interval=interval,
            streaming=streaming,
            two_phase=two_phase,
            failover=failover,
            workers=workers,
            push=tuple(push),
        ).settled()
        self._options: Final = options
        self._filter: Final = options.filter
        self._upstream: Final = Upstream(options)
        self.name: Final = self._upstream.name
        self._again: Final = Resnapshots()

    @property
    def capabilities(self) -> Capabilities:
        """Return what the WAL offers; the parts of a filter that run in the server depend on the options."""
        return Capabilities(
            durable=True,
            replayable=False,
            retention="everything since the last acknowledged cursor, for as long as the slot is there",
            other_processes=True,
            before="some",
            context=True,
            ordered=True,
            transactions=True,
            snapshots=True,
            truncates=True,
            schema_changes=True,
            filters=()
            if self._options.plugin == "wal2json"
            else ("tables", "operations", *(part for part in self._options.push if part in ("columns", "rows"))),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    # -- what the source offers ------------------------------------------------------------------------

    async def now(self) -> str:
        """Return the cursor behind all that is committed; create the slot if missing, so that it stays valid."""
        async with self._upstream.control() as control:
            server, slot, publication = await self._upstream.ready(control)
            return str(await self._upstream.here(control, server, slot, publication))

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield what is committed after the cursor, or from now on, without end."""
        self._filter.check()
        place = None if after is None else _outside(after)
        connected, backoff, closing = False, Backoff(), Closing()
        while True:
            try:
                async with self._upstream.session(place, self._again, self._read_again) as session:
                    connected, place = True, session.resume
                    try:
                        async with aclosing(session.batches()) as batches:
                            async for batch in batches:
                                backoff.reset()
                                with closing:
                                    yield batch
                    finally:
                        place = session.resume
            except SlotInUse:
                if not connected:
                    raise
                await _pause(backoff, "another process holds the slot")
            except LOST as error:
                if closing.ends(error):
                    return
                found = explain(error, self._upstream.slot or "") if isinstance(error, psycopg.Error) else None
                if found is not None and not isinstance(found, SlotInUse):
                    raise found from error
                if not connected:
                    raise (translate(error) if isinstance(error, psycopg.Error) else None) or error from error
                await _pause(backoff, one_line(error))
            except psycopg.Error as error:
                raise explain(error, self._upstream.slot or "") or translate(error) or error from error

    async def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield the rows of the published tables as of one moment, then a batch that moves out of the snapshot.

        A snapshot resumed after an interruption reads the rest as of that time; the stream that follows leaves out
        exactly what the rows already show.
        """
        self._filter.check()
        place = None if after is None else _inside(after)
        connected, backoff, closing = False, Backoff(), Closing()
        while True:
            try:
                async with aclosing(self._snapshot(place)) as batches:
                    async for batch in batches:
                        connected = True
                        backoff.reset()
                        place = WalCursor.parse(batch.cursor)
                        with closing:
                            yield batch
                return
            except LOST as error:
                if closing.ends(error):
                    return
                if not connected:
                    found = explain(error, self._upstream.slot or "") if isinstance(error, psycopg.Error) else None
                    raise found or (translate(error) if isinstance(error, psycopg.Error) else None) or error from error
                await _pause(backoff, one_line(error))

    async def ack(self, cursor: str) -> None:
        """Acknowledge a cursor that the consumer has saved: the server may forget the WAL before it."""
        await self._upstream.ack(WalCursor.parse(cursor))

    async def resnapshot(self, tables: Collection[str]) -> None:
        """Read tables again during streaming: their rows come in the stream's batches, as `read`.

        If rows change meanwhile, the stream has the newer state, so nothing goes back in time. A cursor does not
        remember this request: call it again to start again.
        """
        async with self._upstream.control() as control:
            _, _, publication = await self._upstream.ready(control)
            published = await self._upstream.catalog.published(control, publication.name)
        for name in tables:
            wanted = Filter(tables=(name,))
            found = [t for t in published.values() if wanted.wants_table(t.relation.schema, t.relation.table)]
            if not found:
                raise SourceError(f"{name} is not published", fix="name a table that the filter has")
            if unordered := [table.relation.table for table in found if not ordered(table.relation)]:
                raise SourceError(
                    f"{unordered[0]} has no key by which it can be read in parts",
                    fix="give it a primary key, or take a new snapshot",
                )
            self._again.add(found)

    @property
    def resnapshots_done(self) -> bool:
        """Tell whether everything requested from `resnapshot` was delivered."""
        return self._again.idle

    async def status(self) -> Status:
        """Return the status of the slot, and its problems."""
        async with self._upstream.control() as control:
            server = await slots.server(control)
            server.check()
            name = self._upstream.slot or publications.default_name(server.name, self._filter)
            slot = await slots.find(control, name)
            row = await (
                await control.execute(sql("publication").encode(), {"name": self._options.publication or name})
            ).fetchone()
            unidentified = await publications.warnings(control, self._options.publication or name)
        parts = self.capabilities.filters
        if row is not None and parts:
            parts = publications.parts_of(row[6] or "")
        details: dict[str, object] = {
            "slot": name,
            "publication": self._options.publication or name,
            "plugin": self._options.plugin,
        }
        warnings = tuple(unidentified)
        position = None
        if slot is None:
            details["exists"] = False
        else:
            warnings = (*slot.warnings(self._options.limits), *unidentified)
            details |= {
                "active": slot.active,
                "wal_status": slot.wal_status,
                "retained_bytes": slot.retained,
                "confirmed": slot.confirmed,
                "two_phase": slot.two_phase,
                "failover": slot.failover,
            }
            if slot.confirmed is not None:
                place = WalCursor(server.system, server.timeline, server.database, name, wal_position(slot.confirmed))
                position = str(place)
        asked = self._filter.parts
        return Status(
            self.kind,
            self.name,
            self.capabilities,
            position,
            None if slot is None else slot.lag,
            None,
            tuple(part for part in asked if part in parts),
            tuple(part for part in asked if part not in parts),
            details,
            warnings,
        )

    def _read_again(self, again: Resnapshots, cursor: str) -> SourceBatch:
        chunk = again.ready
        assert chunk is not None
        place = WalCursor.parse(cursor)
        shown = Reads(self.name, f"{place.system}-{place.timeline}", chunk.until, chunk.at)
        page = SnapshotPage(chunk.relation, 0, again.rows(), None, False)
        columns = [chunk.relation.columns] * len(page.rows)
        return self._filter.without("tables").batch(SourceBatch(shown.changes(page), cursor, columns))

    # -- the snapshot ----------------------------------------------------------------------------------

    async def _snapshot(self, place: WalCursor | None) -> AsyncGenerator[SourceBatch]:
        async with AsyncExitStack() as stack:
            control = await stack.enter_async_context(self._upstream.control())
            server, slot, publication = await self._upstream.ready(control, place)
            low = await end_of_wal(control)
            holder = await stack.enter_async_context(self._upstream.control())
            taken = await take(holder)
            await flushed(control, lsn_text(taken.until))
            tables = {
                oid: table
                for oid, table in (await self._upstream.catalog.published(holder, publication.name)).items()
                if Wants(self._filter)(table.relation.schema, table.relation.table)
            }
            if place is None:
                lsn = slot.confirmed_lsn if Snapshot.parse(taken.seen).running else max(low, slot.confirmed_lsn)
                more = More(
                    self._upstream.digests({oid: table.relation for oid, table in tables.items()}),
                    (Epoch(taken.seen, taken.until),), Rest(), taken.until, taken.at,
                )  # fmt: skip
                place = WalCursor(server.system, server.timeline, server.database, slot.name, lsn, more=more_text(more))
            else:
                more = place.extra()
                rest = more.rest or Rest()
                epoch = Epoch(taken.seen, taken.until, rest)
                again = [each for each in more.epochs if each.rest != rest]
                more = msgspec.structs.replace(more, epochs=(*again, epoch))
            rest = more.rest or Rest()
            rows = SnapshotRows(
                self._options.url,
                slot.name,
                publication.name,
                workers=self._options.workers,
                pushed_rows="rows" in publication.parts,
            )
            shown = Reads(self.name, f"{server.system}-{server.timeline}", more.base, more.taken)
            left = self._filter.without("tables")
            async with aclosing(rows.pages(taken.name, tables, rest)) as pages:
                async for page in pages:
                    cursor = place.moved(place.lsn, more=msgspec.structs.replace(more, rest=rows.rest))
                    if page.rows or page.ended:
                        columns = [page.relation.columns] * len(page.rows)
                        yield left.batch(SourceBatch(shown.changes(page), str(cursor), columns))
            epochs = more.epochs if more.epochs[-1].until > place.lsn else ()
            yield SourceBatch((), str(place.moved(place.lsn, more=More(more.known, epochs))))


async def _pause(backoff: Backoff, why: str) -> None:
    delay = backoff.next()
    _log.warning("lost the WAL, trying again in %.2f s: %s", delay, why)
    await asyncio.sleep(delay)


def _outside(after: str) -> WalCursor:
    place = WalCursor.parse(after)
    if place.in_snapshot:
        raise CursorInvalid("the cursor stands inside a snapshot", fix="go on with snapshot(after), then stream")
    return place


def _inside(after: str) -> WalCursor:
    place = WalCursor.parse(after)
    if not place.in_snapshot:
        raise CursorInvalid("the cursor does not stand inside a snapshot", fix="go on with stream(after)")
    return place
