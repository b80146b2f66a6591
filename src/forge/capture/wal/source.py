"""The source itself: it sets up slot and publication, snapshots, streams, and connects again when it must.

The server forgets only what was acknowledged: `ack` sends the LSN of a cursor that the consumer has saved, and nothing
else does. So a cursor is good as long as nothing after it was acknowledged; an older one is CursorExpired.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Self

import msgspec
import psycopg

from forge.capture.capabilities import Capabilities, Part
from forge.capture.filters import Filter
from forge.capture.source import Batch, Status
from forge.capture.urls import split_option
from forge.capture.wal import publication as publications
from forge.capture.wal import slot as slots
from forge.capture.wal import wal2json
from forge.capture.wal.catalog import Catalog
from forge.capture.wal.connection import ReplicationConnection
from forge.capture.wal.decode import KIND, Decoder
from forge.capture.wal.position import Epoch, More, Place, Rest, Timelines, lsn_text, more_text
from forge.capture.wal.publication import Publication
from forge.capture.wal.regions import ordered
from forge.capture.wal.relations import Relation, Row
from forge.capture.wal.resnapshot import Resnapshots
from forge.capture.wal.session import Session, Wants
from forge.capture.wal.slot import Limits, Server, Slot, explain, open_control, sql
from forge.capture.wal.snapshot import Page, Rows, flushed, take
from forge.capture.wal.toast import Filler
from forge.capture.wal.wal2json import Translator
from forge.change import Change, Op, Source
from forge.changelog.backoff import Backoff
from forge.changelog.connection import AsyncConnection, translate
from forge.config import hide, shown_size, size
from forge.cursor import Snapshot, wal_position
from forge.errors import (
    ConfigError,
    CursorForeign,
    CursorInvalid,
    ServerError,
    SlotInUse,
    SlotLost,
    SourceError,
)

ALIVE: Final = 5.0
"""Seconds between status updates, also while the consumer is slow."""
PATIENCE: Final = 3.0
"""Seconds for which another reader of the slot may still be leaving."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError, ServerError, OSError, TimeoutError)
_AGAIN: Final = "take a new snapshot, then follow from its cursor"
_log = logging.getLogger("forge.capture.wal")

LIMITS: Final = Limits()
Plugin = Literal["pgoutput", "wal2json"]
PLUGINS: Final = ("pgoutput", "wal2json")


class WalSource:
    """The WAL of one database, read through one slot. Nothing is done before it is entered or read."""

    kind: Final = KIND

    def __init__(
        self,
        url: str,
        filter: Filter | None = None,
        *,
        slot: str | None = None,
        publication: str | None = None,
        limits: Limits = LIMITS,
        heartbeat: float = 10.0,
        interval: float = ALIVE,
        streaming: bool = True,
        two_phase: bool = False,
        failover: bool = True,
        workers: int = 2,
        push: Collection[Part] = (),
        plugin: Plugin | None = None,
    ) -> None:
        url, named = split_option(url, "slot")
        url, published = split_option(url, "publication")
        url, chosen = split_option(url, "plugin")
        self._plugin = plugin or chosen or "pgoutput"
        if self._plugin not in PLUGINS:
            raise ConfigError(f"no plug-in {self._plugin!r}", fix=f"plugin={' or plugin='.join(PLUGINS)}")
        url, limit = split_option(url, "limit")
        url, act = split_option(url, "on_limit")
        limits = _limits(limits, limit, act)
        self._url = url
        self._filter = filter or Filter()
        slot = slot or named
        self._slot_name = None if slot is None else slots.checked_name(slot)
        self._publication_name = publication or published
        self._limits = limits
        self._heartbeat = heartbeat
        self._interval = interval
        self._again = Resnapshots()
        self._streaming = streaming
        self._two_phase = two_phase
        self._failover = failover
        self._workers = workers
        self._push = tuple(push)
        self.name: Final = hide(url)
        self._catalog = Catalog()
        self._acked = 0
        self._replication: ReplicationConnection | None = None
        self._last_pid: int | None = None
        self._alerted = False

    @property
    def capabilities(self) -> Capabilities:
        """What the WAL offers; the parts of a filter that run in the server depend on the options."""
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
            if self._plugin == "wal2json"
            else ("tables", "operations", *(part for part in self._push if part in ("columns", "rows"))),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    # -- what the source offers ------------------------------------------------------------------------

    async def now(self) -> str:
        """The cursor behind all that is committed; the slot is made where there is none, so that it stays good."""
        async with self._control() as control:
            server, slot, publication = await self._ready(control)
            return str(await self._here(control, server, slot, publication))

    async def stream(self, after: str | None = None) -> AsyncGenerator[Batch]:
        """What is committed after the cursor, or from now on, for ever."""
        self._filter.check()
        place = None if after is None else _outside(after)
        connected, backoff = False, Backoff()
        while True:
            try:
                async with self._session(place) as session:
                    connected, place = True, session.resume
                    try:
                        async with aclosing(session.batches()) as batches:
                            async for batch in batches:
                                backoff.reset()
                                yield batch
                    finally:
                        place = session.resume
            except SlotInUse:
                if not connected:
                    raise
                await _pause(backoff, "another process holds the slot")
            except _LOST as error:
                found = explain(error, self._slot_name or "") if isinstance(error, psycopg.Error) else None
                if found is not None and not isinstance(found, SlotInUse):
                    raise found from error
                if not connected:
                    raise (translate(error) if isinstance(error, psycopg.Error) else None) or error from error
                await _pause(backoff, str(error).partition("\n")[0])
            except psycopg.Error as error:
                raise explain(error, self._slot_name or "") or translate(error) or error from error

    async def snapshot(self, after: str | None = None) -> AsyncGenerator[Batch]:
        """The rows of the published tables as they are at one moment, then a batch that moves out of the snapshot.

        One that goes on after an interruption reads what is left as it is by then; the stream that follows leaves out
        exactly what the rows show already.
        """
        self._filter.check()
        place = None if after is None else _inside(after)
        connected, backoff = False, Backoff()
        while True:
            try:
                async with aclosing(self._snapshot(place)) as batches:
                    async for batch in batches:
                        connected = True
                        backoff.reset()
                        place = Place.parse(batch.cursor)
                        yield batch
                return
            except _LOST as error:
                if not connected:
                    found = explain(error, self._slot_name or "") if isinstance(error, psycopg.Error) else None
                    raise found or (translate(error) if isinstance(error, psycopg.Error) else None) or error from error
                await _pause(backoff, str(error).partition("\n")[0])

    async def ack(self, cursor: str) -> None:
        """The consumer has saved this cursor: the server may forget the WAL before it."""
        place = Place.parse(cursor)
        if place.start <= self._acked:
            return
        self._acked = place.start
        if self._replication is not None:
            self._replication.flushed = self._acked
            with suppress(psycopg.Error):  # a lost connection is the stream's to notice
                self._replication.send_status()
            return
        async with self._control() as control:
            slot = await slots.find(control, place.slot)
            if slot is not None and slot.lost is None and not slot.active and slot.confirmed_lsn < self._acked:
                await slots.advance(control, place.slot, self._acked)

    async def resnapshot(self, tables: Collection[str]) -> None:
        """Have tables read anew while the stream goes on: their rows come in its batches, as `read`.

        Of what changes meanwhile the stream has the newer state, so nothing goes back in time. It is begun again by
        calling this again: a cursor does not remember it.
        """
        async with self._control() as control:
            _, _, publication = await self._ready(control)
            published = await self._catalog.published(control, publication.name)
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
        """Whether all that was asked of `resnapshot` was handed over."""
        return self._again.idle

    async def status(self) -> Status:
        """How the slot stands, and what is wrong with it."""
        async with self._control() as control:
            server = await slots.server(control)
            server.check()
            name = self._slot_name or publications.default_name(server.name, self._filter)
            slot = await slots.find(control, name)
            row = await (
                await control.execute(sql("publication").encode(), {"name": self._publication_name or name})
            ).fetchone()
        parts = self.capabilities.filters
        if row is not None and parts:
            parts = publications.parts_of(row[6] or "")
        details: dict[str, object] = {
            "slot": name,
            "publication": self._publication_name or name,
            "plugin": self._plugin,
        }
        warnings: tuple[str, ...] = ()
        position = None
        if slot is None:
            details["exists"] = False
        else:
            warnings = slot.warnings(self._limits)
            details |= {
                "active": slot.active,
                "wal_status": slot.wal_status,
                "retained_bytes": slot.retained,
                "confirmed": slot.confirmed,
                "two_phase": slot.two_phase,
                "failover": slot.failover,
            }
            if slot.confirmed is not None:
                place = Place(server.system, server.timeline, server.database, name, wal_position(slot.confirmed))
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

    # -- the server's side -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _control(self) -> AsyncIterator[AsyncConnection]:
        connection = await open_control(self._url, self._slot_name or "")
        try:
            yield connection
        finally:
            await connection.close()

    async def _ready(self, control: AsyncConnection, place: Place | None = None) -> tuple[Server, Slot, Publication]:
        """Slot and publication, made where there are none; with a place, the slot must have what follows it."""
        server = await slots.server(control)
        server.check()
        if self._slot_name is None:
            self._slot_name = publications.default_name(server.name, self._filter)
        name = self._slot_name
        if place is not None:
            self._belongs(place, server, name)
        slot = await slots.find(control, name)
        if slot is None and place is not None:
            raise SlotLost(f"there is no replication slot {name} any more", fix=_AGAIN)
        # a slot decodes with the catalog of its time, so its publication must be older
        publication = await publications.ensure(
            control, self._publication_name or name, self._filter, server, self._push
        )
        if slot is None:
            await slots.create(control, name, plugin=self._plugin, two_phase=self._two_phase, failover=self._failover)
            slot = await slots.find(control, name)
            assert slot is not None
        slots.usable(slot, plugin=self._plugin, database=server.name)
        if place is not None and place.start < slot.confirmed_lsn:
            raise slots.expired(name, place.start, slot.confirmed_lsn)
        return server, slot, publication

    def _belongs(self, place: Place, server: Server, slot: str) -> None:
        if (place.system, place.database) != (server.system, server.database):
            raise CursorForeign("the cursor belongs to another server or database", fix=_AGAIN)
        if place.slot != slot:
            raise CursorForeign(
                f"the cursor belongs to the slot {place.slot}, not to {slot}",
                fix=f"use slot={place.slot} and the filter it was made with",
            )
        if place.timeline > server.timeline:
            raise CursorForeign("the cursor belongs to another timeline of this server", fix=_AGAIN)

    async def _here(self, control: AsyncConnection, server: Server, slot: Slot, publication: Publication) -> Place:
        """Behind all that is committed.

        A commit is in the WAL a little before anyone sees it. So the place is where the slot stands, with a snapshot
        that says which of the transactions after it are not to be streamed; or the end of the WAL when no transaction
        was running, because then nothing before it is unseen.
        """
        low = await _end(control)
        async with control.transaction():
            await control.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = await (await control.execute(sql("head").encode())).fetchone()
            assert row is not None
            tables = await self._catalog.published(control, publication.name)
        seen, until = Snapshot.parse(row[0]), wal_position(row[3])
        await flushed(control, row[3])
        known = self._digests({oid: table.relation for oid, table in tables.items()})
        lsn = slot.confirmed_lsn if seen.running else max(low, slot.confirmed_lsn)
        epochs = (Epoch(row[0], until),) if until > lsn else ()
        more = more_text(More(known, epochs))
        return Place(server.system, server.timeline, server.database, slot.name, lsn, None, None, more)

    def _digests(self, relations: dict[int, Relation]) -> dict[int, bytes]:
        wanted = Wants(self._filter)
        found = {oid: each.digest for oid, each in relations.items() if wanted(each.schema, each.table)}
        return found if len(found) <= 128 else {}

    @asynccontextmanager
    async def _session(self, place: Place | None) -> AsyncIterator[Session]:
        """A stream from a place on, ready to be read."""
        async with AsyncExitStack() as stack:
            control = await stack.enter_async_context(self._control())
            server, slot, publication = await self._ready(control, place)
            if place is None:
                place = await self._here(control, server, slot, publication)
            connection = await self._replicate(control, slot)
            stack.push_async_callback(connection.close)
            timelines = await _timelines(connection, server)
            end = await _end(control)
            if not timelines.holds(place.timeline, place.lsn) or place.lsn > end:
                raise CursorForeign(
                    "the cursor is ahead of this server's history: it was made before a failover or restore", fix=_AGAIN
                )
            row = await (await control.execute(sql("next_xid").encode())).fetchone()
            assert row is not None
            left = self._filter.without("tables")
            if "rows" in publication.parts:
                left = left.without("rows")
            keep = left.keep if left.parts else None
            decoder = Decoder(self.name, server.system, timelines, keep, int(row[0]))
            session = Session(
                connection,
                control,
                self._catalog,
                decoder,
                timelines,
                place,
                wants=Wants(self._filter),
                filler=Filler() if server.logged else None,
                heartbeat=self._heartbeat,
                again=self._again,
                shown=self._read_again,
                translator=Translator() if self._plugin == "wal2json" else None,
            )
            stack.callback(session.close)
            connection.flushed = self._acked
            async with slots.typed(slot.name):
                await connection.start(self._command(server, slot.name, publication.name, place))
            self._replication, self._last_pid = connection, connection.pid
            stack.callback(self._hung_up)
            reader = await stack.enter_async_context(self._control())
            for work in (self._feedback(connection, control, slot.name), self._again.run(reader)):
                stack.push_async_callback(_cancel, asyncio.create_task(self._beside(connection, work)))
            yield session

    def _hung_up(self) -> None:
        self._replication = None

    async def _replicate(self, control: AsyncConnection, slot: Slot) -> ReplicationConnection:
        """A replication connection, when the slot is free: our own last one is ended, others have a moment to leave."""
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
            return await ReplicationConnection.open(self._url)

    def _command(self, server: Server, slot: str, publication: str, place: Place) -> str:
        version = 4 if server.version >= 160000 else 3 if server.version >= 150000 else 2
        quoted = publication.replace('"', '""').replace("'", "''")
        begin = f"START_REPLICATION SLOT {slot} LOGICAL {lsn_text(place.start)}"
        if self._plugin == "wal2json":
            asked = ", ".join(f"\"{option}\" '{value}'" for option, value in wal2json.OPTIONS.items())
            return f"{begin} ({asked})"
        options = [f"proto_version '{version}'", f"publication_names '\"{quoted}\"'", "messages 'true'"]
        if self._streaming:
            options.append("streaming 'on'")
        if self._two_phase and server.version >= 150000:
            options.append("two_phase 'on'")
        return f"{begin} ({', '.join(options)})"

    async def _feedback(self, connection: ReplicationConnection, control: AsyncConnection, name: str) -> None:
        """While the stream is open, also when its consumer is slow: tell the server that we live, watch the slot."""
        while True:
            await asyncio.sleep(self._interval)
            connection.send_status()
            slot = await slots.find(control, name)
            if slot is None:
                continue
            warnings = slot.warnings(self._limits)
            if warnings and not self._alerted:
                _log.warning("%s", "; ".join(warnings))
            self._alerted = bool(warnings)
            most, kept = self._limits.most, slot.retained
            if self._limits.act == "drop" and most is not None and kept is not None and kept > most:
                await self._give_up(connection, control, slot.name, kept, most)

    async def _give_up(
        self, connection: ReplicationConnection, control: AsyncConnection, name: str, kept: int, most: int
    ) -> None:
        """Rather than fill the server's disk, drop the slot. Whoever reads learns that, when it comes back."""
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
        """Work beside the stream; when it fails, so does the connection."""
        try:
            await work
        except (psycopg.Error, OSError, TimeoutError) as error:
            connection.end(psycopg.OperationalError(str(error)))

    def _read_again(self, again: Resnapshots, cursor: str) -> Batch:
        chunk = again.ready
        assert chunk is not None
        place = Place.parse(cursor)
        shown = _Shown(self.name, f"{place.system}-{place.timeline}", chunk.until, chunk.at)
        page = Page(chunk.relation, 0, again.rows(), None, False)
        columns = [chunk.relation.columns] * len(page.rows)
        return self._filter.without("tables").batch(Batch(shown.changes(page), cursor, columns))

    # -- the snapshot ----------------------------------------------------------------------------------

    async def _snapshot(self, place: Place | None) -> AsyncGenerator[Batch]:
        async with AsyncExitStack() as stack:
            control = await stack.enter_async_context(self._control())
            server, slot, publication = await self._ready(control, place)
            low = await _end(control)
            holder = await stack.enter_async_context(self._control())
            taken = await take(holder)
            await flushed(control, lsn_text(taken.until))
            tables = {
                oid: table
                for oid, table in (await self._catalog.published(holder, publication.name)).items()
                if Wants(self._filter)(table.relation.schema, table.relation.table)
            }
            if place is None:
                lsn = slot.confirmed_lsn if Snapshot.parse(taken.seen).running else max(low, slot.confirmed_lsn)
                more = More(
                    self._digests({oid: table.relation for oid, table in tables.items()}),
                    (Epoch(taken.seen, taken.until),), Rest(), taken.until, taken.at,
                )  # fmt: skip
                place = Place(server.system, server.timeline, server.database, slot.name, lsn, more=more_text(more))
            else:
                more = place.extra()
                rest = more.rest or Rest()
                epoch = Epoch(taken.seen, taken.until, rest)
                again = [each for each in more.epochs if each.rest != rest]
                more = msgspec.structs.replace(more, epochs=(*again, epoch))
            rest = more.rest or Rest()
            rows = Rows(
                self._url, slot.name, publication.name, workers=self._workers, pushed_rows="rows" in publication.parts
            )
            shown = _Shown(self.name, f"{server.system}-{server.timeline}", more.base, more.taken)
            left = self._filter.without("tables")
            async with aclosing(rows.pages(taken.name, tables, rest)) as pages:
                async for page in pages:
                    cursor = place.moved(place.lsn, more=msgspec.structs.replace(more, rest=rows.rest))
                    if page.rows or page.ended:
                        columns = [page.relation.columns] * len(page.rows)
                        yield left.batch(Batch(shown.changes(page), str(cursor), columns))
            epochs = more.epochs if more.epochs[-1].until > place.lsn else ()
            yield Batch((), str(place.moved(place.lsn, more=More(more.known, epochs))))


class _Shown:
    """Rows of a snapshot as changes; the same row has the same id however often the snapshot is resumed."""

    def __init__(self, name: str, server: str, base: int, taken: int) -> None:
        self._source = Source(KIND, name, f"{base:016x}")
        self._prefix = f"{server}:{base:016x}.r"
        self._at = _EPOCH + timedelta(microseconds=taken)
        self._counts: dict[int, int] = {}

    def changes(self, page: Page) -> list[Change]:
        relation = page.relation
        return [self._change(relation, row) for row in page.rows]

    def _change(self, relation: Relation, row: Row) -> Change:
        key = relation.key(row)
        change = Change("", Op.READ, relation.schema, relation.table, self._source, self._at, key, None, row)
        if key is None:
            self._counts[relation.oid] = self._counts.get(relation.oid, 0) + 1
        word = self._counts[relation.oid] if key is None else change.row_id
        return msgspec.structs.replace(change, id=f"{self._prefix}{relation.oid}.{word}")


def _limits(limits: Limits, limit: str | None, act: str | None) -> Limits:
    """Limits as a URL says them: `limit=10GB&on_limit=drop`."""
    if limit is not None:
        most = size(limit)
        if most is None:
            raise ConfigError(f"{limit!r} is no size", fix="write limit=10GB")
        limits = msgspec.structs.replace(limits, most=most)
    if act is not None:
        if act not in ("alert", "drop"):
            raise ConfigError(f"on_limit cannot be {act!r}", fix="on_limit=alert or on_limit=drop")
        limits = msgspec.structs.replace(limits, act=act)
    return limits


async def _end(connection: AsyncConnection) -> int:
    row = await (await connection.execute(sql("insert_lsn").encode())).fetchone()
    assert row is not None
    return wal_position(row[0])


async def _timelines(connection: ReplicationConnection, server: Server) -> Timelines:
    if server.timeline == 1:
        return Timelines(1)
    rows = await connection.command(f"TIMELINE_HISTORY {server.timeline}")
    content: Any = rows[0][1]
    return Timelines(server.timeline, content.decode() if isinstance(content, bytes) else content)


async def _pause(backoff: Backoff, why: str) -> None:
    delay = backoff.next()
    _log.warning("lost the WAL, trying again in %.2f s: %s", delay, why)
    await asyncio.sleep(delay)


async def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _outside(after: str) -> Place:
    place = Place.parse(after)
    if place.in_snapshot:
        raise CursorInvalid("the cursor stands inside a snapshot", fix="go on with snapshot(after), then stream")
    return place


def _inside(after: str) -> Place:
    place = Place.parse(after)
    if not place.in_snapshot:
        raise CursorInvalid("the cursor does not stand inside a snapshot", fix="go on with stream(after)")
    return place
