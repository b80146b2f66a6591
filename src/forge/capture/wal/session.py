"""One streaming session: from a position on, over one replication connection, until that is lost.

In: a position and what the server sends. Out: batches. A batch ends at the end of a transaction; a transaction larger
than a batch is also split inside, between two records. Transactions that the server streams before they are committed,
and prepared ones, wait in files (`forge.capture.wal.spool`).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from forge.capture.filters import Filter
from forge.capture.source import SourceBatch
from forge.capture.wal import protocol, wal2json
from forge.capture.wal.catalog import RelationCatalog
from forge.capture.wal.connection import ReplicationConnection
from forge.capture.wal.decode import WalDecoder
from forge.capture.wal.position import More, Timelines, WalCursor, more_text, remembered
from forge.capture.wal.relations import WalRelation
from forge.capture.wal.resnapshot import Resnapshots
from forge.capture.wal.spool import TransactionSpool
from forge.capture.wal.toast import Filler
from forge.capture.wal.wal2json import Translator
from forge.errors import SourceError
from forge.postgres.connection import AsyncConnection

MOST: Final = 2_000
"""Maximum changes per batch, and bytes of their messages."""
MOST_BYTES: Final = 4 * 1024 * 1024

CHUNKS: Final = 0.01
"""Seconds between checks for chunks that were read again."""

_ROWS: Final = frozenset(b"IUD")
_KEEP_ALIVE: Final = ord("k")
_STREAM_STOP: Final = ord("E")


class WalSession:
    """The state of one connection."""

    def __init__(
        self,
        connection: ReplicationConnection,
        control: AsyncConnection,
        catalog: RelationCatalog,
        decoder: WalDecoder,
        timelines: Timelines,
        place: WalCursor,
        *,
        wants: "Wants",
        filler: Filler | None,
        heartbeat: float,
        again: Resnapshots,
        shown: Callable[[Resnapshots, str], SourceBatch],
        translator: Translator | None = None,
    ) -> None:
        self._connection = connection
        self._control = control
        self._catalog = catalog
        self._decoder = decoder
        self._timelines = timelines
        self._wants = wants
        self._filler = filler
        self._heartbeat = heartbeat
        self._again = again
        self._shown = shown
        self._translator = translator
        decoder.recent = again.recent
        more = place.extra()
        decoder.known = dict(more.known)
        self._more = place.more
        self._encoded = (len(more.epochs), decoder.learned)
        decoder.epochs = more.epochs
        self._first = place
        self.place = place
        self.resume = place
        """Where the next session resumes: behind what was delivered, and what had no changes."""
        self._bytes = 0
        self._streamed: dict[int, TransactionSpool] = {}
        self._block: TransactionSpool | None = None
        self._preparing: TransactionSpool | None = None
        self._prepared: dict[str, tuple[int, TransactionSpool]] = {}

    def close(self) -> None:
        """Drop unfinished transactions; the server sends them again."""
        for spool in (*self._streamed.values(), *(spool for _, spool in self._prepared.values())):
            spool.close()
        if self._preparing is not None:
            self._preparing.close()

    async def batches(self) -> AsyncGenerator[SourceBatch]:
        """Yield batches without end; empty batches advance the cursor while nothing happens here."""
        loop = asyncio.get_running_loop()
        decoder, receive = self._decoder, self._connection.receive
        told, beat = self.place, loop.time() + self._heartbeat
        while True:
            wait = beat - loop.time() if self._again.idle else CHUNKS
            messages = await receive(max(0.0, wait))
            if self._translator is not None:
                messages = await self._translated(messages, self._translator)
            if messages:
                async for batch in self._apply(messages):
                    told, beat = self.place, loop.time() + self._heartbeat
                    yield batch
                if decoder.changes and decoder.transaction is None:
                    batch = await self._batch()
                    told, beat = self.place, loop.time() + self._heartbeat
                    yield batch
                    await asyncio.sleep(0)
            if self._again.ready is not None and decoder.transaction is None and not decoder.changes:
                if self.place.lsn >= self._again.ready.until:
                    self.place = self.resume = self._moved(self.place.lsn)
                    yield self._shown(self._again, str(self.place))
                else:
                    self._connection.ask()
            if loop.time() >= beat:
                beat = loop.time() + self._heartbeat
                if decoder.transaction is None and not decoder.changes and self.place != told:
                    told = self.place = self._moved(self.place.lsn)
                    yield SourceBatch((), str(self.place))
                self._connection.ask()

    async def _translated(self, messages: Sequence[bytes], translator: Translator) -> list[bytes]:
        """Translate another plug-in's messages to pgoutput's."""
        found: list[bytes] = []
        for data in messages:
            if data[0] == _KEEP_ALIVE:
                found.append(data)
                continue
            event = wal2json.event(data)
            if not translator.knows(event):
                shape = await self._catalog.shape(self._control, event.schema, event.table)
                found.append(translator.define(data, event, shape))
            found.append(translator.message(data, event))
        return found

    async def _apply(self, messages: Sequence[bytes]) -> AsyncGenerator[SourceBatch]:
        """Handle messages; yield a batch whenever one is full."""
        decoder = self._decoder
        count, at = len(messages), 0
        self._bytes += sum(map(len, messages))
        while at < count:
            if self._block is not None or self._preparing is not None:
                at = await self._spooled(messages, at)
                if at == count:
                    return
            at = decoder.rows(messages, at, MOST if self._bytes < MOST_BYTES else 1)
            if at == count:
                return
            data = messages[at]
            if data[0] == _KEEP_ALIVE:
                self._keep_alive(data)
                at += 1
                continue
            if data[25] in _ROWS:
                yield await self._batch(inside=True)
                continue
            at += 1
            spool = await self._control_message(data)
            if spool is not None:
                try:
                    for block in spool.read():
                        async for batch in self._apply(block):
                            yield batch
                finally:
                    spool.close()
                self._committed()

    async def _spooled(self, messages: Sequence[bytes], at: int) -> int:
        """Spool messages of a block, or of a prepared transaction; return the index of the one that ends it."""
        block, preparing = self._block, self._preparing
        while at < len(messages):
            data = messages[at]
            if data[0] == _KEEP_ALIVE:
                self._keep_alive(data)
            elif block is not None:
                if data[25] == _STREAM_STOP:
                    return at
                block.add(data)
            elif preparing is not None:
                if data[25:26] == b"P":
                    return at
                preparing.keep(data)
                if data[25:26] == b"R":  # it is not sent again for what follows outside
                    self._decoder.learn(data[26:30], await self._relation(protocol.relation(data)))
            at += 1
        return at

    async def _control_message(self, data: bytes) -> TransactionSpool | None:
        """Handle a message that is not a row; return the spool of a committed transaction that must be decoded."""
        decoder, kind = self._decoder, data[25:26]
        match kind:
            case b"B":
                self._begin(*protocol.begin(data))
            case b"C":
                self._end = protocol.commit(data).end
                self._committed()
            case b"R":
                decoder.learn(data[26:30], await self._relation(protocol.relation(data)))
            case b"M":
                decoder.message(data)
            case b"T":
                decoder.truncate(data)
            case b"S":
                xid, first = protocol.stream_start(data)
                if first or xid not in self._streamed:
                    self._streamed[xid] = TransactionSpool()
                self._block = self._streamed[xid]
            case b"E":
                self._block = None
            case b"A":
                self._abort(protocol.stream_abort(data))
            case b"c":
                xid, commit = protocol.stream_commit(data)
                self._begin(commit.commit, commit.at, xid)
                self._end = commit.end
                return self._streamed.pop(xid)
            case b"b" | b"P" | b"p" | b"K" | b"r":
                return self._two_phase(kind, data)
            case b"O" | b"Y":
                pass
            case _:
                raise SourceError(f"the server sent an unknown message {kind!r}", fix="upgrade Forge, or use feed=log")
        return None

    def _two_phase(self, kind: bytes, data: bytes) -> TransactionSpool | None:
        if kind == b"b":
            self._preparing = TransactionSpool()
        elif kind == b"P":
            assert self._preparing is not None
            found = protocol.prepared(data)
            self._prepared[found.name] = found.lsn, self._preparing
            self._preparing = None
            self._moved_to(found.end)
        elif kind == b"p":
            found = protocol.prepared(data)
            self._prepared[found.name] = found.lsn, self._streamed.pop(found.xid)
            self._moved_to(found.end)
        elif kind == b"r":
            found = protocol.rollback_prepared(data)
            _, spool = self._prepared.pop(found.name, (0, None))
            if spool is not None:
                spool.close()
            self._moved_to(found.end)
        else:
            found = protocol.prepared(data)
            _, spool = self._prepared.pop(found.name, (0, None))
            if spool is None:
                if found.lsn < self._first.lsn:
                    return None  # it was handled before
                raise SourceError(
                    f"the transaction {found.name!r} was prepared before this reader's place",
                    fix="take a new snapshot, then follow from its cursor",
                )
            self._begin(found.lsn, found.at, found.xid)
            self._end = found.end
            return spool
        return None

    def _begin(self, commit: int, at: int, xid: int) -> None:
        first = self._first
        after = first.inside if first.inside is not None and commit == first.lsn else 0
        self._decoder.begin(xid, commit, at, after=after or 0, before=first.lsn)

    def _committed(self) -> None:
        self._decoder.commit()
        self._moved_to(self._end)

    def _abort(self, abort: protocol.Abort) -> None:
        if abort.xid != abort.part:
            self._streamed[abort.xid].abort(abort.part)
        elif (spool := self._streamed.pop(abort.xid, None)) is not None:
            spool.close()

    def _keep_alive(self, data: bytes) -> None:
        found = protocol.keep_alive(data)
        if self._decoder.transaction is None:
            self._moved_to(found.end)
        if found.wants_reply:
            self._connection.send_status()

    async def _relation(self, message: protocol.RelationMessage) -> WalRelation | None:
        if not self._wants(message.schema, message.table):
            return None
        return await self._catalog.relation(self._control, message)

    def _moved_to(self, lsn: int) -> None:
        """Note that everything before the LSN was handled, or is decoded and not yet taken."""
        if lsn > self.place.lsn or (lsn == self.place.lsn and self.place.inside is not None):
            self.place = WalCursor(
                self._first.system, self._timelines.current, self._first.database, self._first.slot, lsn, None,
                self._oldest_prepared(lsn), self.place.more,
            )  # fmt: skip
            self._connection.received = lsn
            if not self._decoder.changes:
                self.resume = self.place

    def _oldest_prepared(self, lsn: int) -> int | None:
        oldest = min((found for found, _ in self._prepared.values()), default=lsn)
        return oldest if oldest < lsn else None

    def _moved(self, lsn: int, inside: int | None = None) -> WalCursor:
        """Return the position for a cursor."""
        decoder = self._decoder
        if decoder.epochs and decoder.transaction is None and lsn >= decoder.epochs[-1].until:
            decoder.epochs = ()
        state = (len(decoder.epochs), decoder.learned)
        if state != self._encoded:
            self._encoded = state
            self._more = more_text(More(remembered(decoder.known), decoder.epochs))
        return WalCursor(
            self._first.system, self._timelines.of(lsn), self._first.database, self._first.slot, lsn, inside,
            self._oldest_prepared(lsn), self._more,
        )  # fmt: skip

    async def _batch(self, *, inside: bool = False) -> SourceBatch:
        """Return what was decoded, with the cursor behind it."""
        decoder = self._decoder
        transaction = decoder.transaction
        if self._filler is not None and decoder.unfilled:
            await self._filler.fill(self._control, decoder.changes, decoder.columns, decoder.unfilled)
        changes, columns = decoder.take()
        if not self._again.idle:
            self._again.note(changes)
        self._bytes = 0
        if inside:
            assert transaction is not None
            self.place = self._moved(transaction.commit, decoder.last)
        else:
            self.place = self._moved(self.place.lsn)
        self.resume = self.place
        return SourceBatch(changes, str(self.place), columns)


class Wants:
    """Selects the wanted tables; never Forge's own."""

    def __init__(self, wanted: Filter) -> None:
        self._wanted = wanted

    def __call__(self, schema: str, table: str) -> bool:
        return schema != "forge" and self._wanted.wants_table(schema, table)
