"""A thread that reads a binary log and passes batches to an event loop, a few at a time.

The client library blocks, so this thread reads: connect, check that the cursor is still valid, decode, deliver. At most
`AHEAD` batches wait for the consumer; then reading stops, and the server waits too. A lost or silent connection is
opened again, with growing pauses, from the last delivered batch; only errors that a new connection cannot fix reach the
consumer, as an exception. `stop` ends the thread at once, wherever it waits.
"""

import asyncio
import contextlib
import logging
import random
import re
import socket
import threading
import time
from collections.abc import Callable

from forge.backoff import Backoff
from forge.capture.filters import Filter
from forge.capture.mysql import catalog, settings
from forge.capture.mysql.address import Connection, MysqlAddress
from forge.capture.mysql.changes import BinlogChanges
from forge.capture.mysql.cursor import BinlogPosition, MysqlCursor
from forge.capture.mysql.feed import BinlogFeed
from forge.capture.mysql.view import MysqlCatalog
from forge.capture.source import SourceBatch
from forge.errors import CursorExpired, CursorForeign, ForgeError, SourceError, SourceUnreachable

AHEAD = 4
"""Number of batches that are read ahead of the consumer."""
PAUSES = (0.05, 5.0)
"""The first and the longest pause before reconnecting, in seconds."""
MOVES = 1.0
"""Seconds after which a batch without changes advances the cursor."""
_log = logging.getLogger("forge.capture.mysql")


class TailSettings:
    """The settings that all connections of a tail share."""

    def __init__(
        self,
        address: MysqlAddress,
        filter: Filter,
        *,
        server_id: int | None,
        heartbeat: float,
        page: int,
        timeout: float,
        context: bool,
    ) -> None:
        self.address = address
        self.filter = filter
        self.heartbeat = heartbeat
        self.page = page
        self.timeout = timeout
        self.context = context
        self._server_id = server_id or address.server_id

    def server_id(self) -> int:
        """Return the id under which we read: the given one, or one that no other replica is likely to have."""
        return self._server_id or random.randrange(1 << 30, 1 << 32)

    def connect(self, held: list[socket.socket] | None = None, *, patient: bool = False) -> Connection:
        """Open a connection; a patient one gives queries time."""
        return self.address.connect(self.timeout, held, patience=max(60.0, self.timeout) if patient else None)


class BinlogTail:
    """Batches after a cursor, from a dedicated thread; to be used by one task of one event loop.

    `until` ends it at a place (a file and an offset) where a transaction ends.
    """

    def __init__(
        self,
        reading: TailSettings,
        after: MysqlCursor,
        *,
        until: tuple[str, int] | None = None,
        connected: Callable[[], None] = lambda: None,
    ) -> None:
        self._reading = reading
        self._after = after
        self._until = until and place_order(*until)
        self._connected = connected
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[SourceBatch | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(AHEAD)
        self._stopped = threading.Event()
        self._control: list[socket.socket] = []
        self._log: list[socket.socket] = []
        self._once = False
        self.malformed = 0
        self._thread = threading.Thread(target=self._run, name="forge-mysql", daemon=True)
        self._thread.start()

    async def get(self) -> SourceBatch | None:
        """Return the next batch, or None at `until`; raise errors after which reading cannot continue."""
        found = await self._queue.get()
        if isinstance(found, Exception):
            raise found
        self._room.release()
        return found

    async def stop(self) -> None:
        """End the thread and its connections."""
        self._stopped.set()
        self._room.release()
        while self._thread.is_alive():
            for held in (*self._control, *self._log):
                with contextlib.suppress(OSError):
                    held.shutdown(socket.SHUT_RDWR)
            await asyncio.to_thread(self._thread.join, 0.05)

    # -- in the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(*PAUSES)
        while not self._stopped.is_set():
            started = self._after
            try:
                self._read()
                self._hand(None)
                return
            except (SourceUnreachable, OSError) as error:
                why = error
                if not self._once and isinstance(error, SourceUnreachable):
                    self._fail(error)
                    return
            except ForgeError as error:
                self._fail(error)
                return
            except Exception as error:
                found = self._reading.address.refused(error) if _of_library(error) else error
                if not isinstance(found, SourceUnreachable):
                    self._fail(found)
                    return
                why = found
            if self._after is not started:
                backoff.reset()
            if self._stopped.is_set():
                return
            delay = backoff.next()
            _log.warning("lost the binary log, trying again in %.2f s: %s", delay, why)
            self._stopped.wait(delay)

    def _fail(self, error: Exception) -> None:
        self._give(error)

    def _hand(self, batch: SourceBatch | None) -> None:
        """Pass a batch to the consumer when there is room for it."""
        self._room.acquire()
        self._give(batch)

    def _give(self, found: SourceBatch | Exception | None) -> None:
        if not self._stopped.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, found)

    def _read(self) -> None:
        control = self._reading.connect(self._control)
        try:
            told = catalog.server(control)
            settings.check(told)
            after, gtid = resumed(control, told, self._after, failover=self._reading.address.failover)
            view = MysqlCatalog(control, told, self._reading.address.database, self._reading.filter)
            connection = self._reading.connect(self._log)
            try:
                feed = BinlogFeed.open(
                    connection,
                    self._reading.address,
                    told,
                    self._reading.server_id(),
                    self._reading.heartbeat,
                    file=after.place.file,
                    offset=after.place.offset,
                    gtid=gtid,
                    annotated=self._reading.context,
                )
                changes = BinlogChanges(
                    view,
                    self._reading.address.name,
                    after,
                    checksums=told.setting("binlog_checksum") not in ("", "NONE"),
                    context=self._reading.context,
                    settled=gtid is None,
                )
                self._once = True
                self._connected()
                self._follow(feed, changes)
            finally:
                with contextlib.suppress(OSError):
                    connection._force_close()
        finally:
            with contextlib.suppress(OSError):
                control._force_close()

    def _follow(self, feed: BinlogFeed, changes: BinlogChanges) -> None:
        page = self._reading.page
        take = changes.take
        moved = time.monotonic()
        while not self._stopped.is_set():
            for event in feed.read():
                take(event)
                if len(changes.changes) >= page:
                    self._emit(changes)
                    moved = time.monotonic()
                if self._until is not None and changes.found and place_order(*changes.reached) >= self._until:
                    if changes.changes or changes.cursor() != self._after:
                        self._emit(changes)
                    return
                if self._stopped.is_set():
                    return
            if feed.quiet():
                late = time.monotonic() - moved > MOVES
                if changes.changes or (late and changes.settled and changes.cursor() != self._after):
                    self._emit(changes)
                    moved = time.monotonic()

    def _emit(self, changes: BinlogChanges) -> None:
        self.malformed = changes.malformed
        if not changes.settled:
            return
        cursor = changes.cursor()
        kept, columns = changes.changes, changes.columns
        filter = self._reading.filter
        if filter.operations or filter.columns or filter.where is not None:
            pairs = [
                (found, shape) for change, shape in zip(kept, columns, strict=True) if (found := filter.keep(change))
            ]
            kept, columns = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        changes.empty()
        self._hand(SourceBatch(kept, str(cursor), columns))
        self._after = cursor


def resumed(
    control: Connection, told: catalog.MysqlServer, after: MysqlCursor, *, failover: bool
) -> tuple[MysqlCursor, str | None]:
    """Return where to resume on this server: a place in its log, or MariaDB's global transaction id for a failover."""
    if after.server != told.identity:
        if not failover:
            raise CursorForeign(
                f"the cursor belongs to the server {after.server}, and {told.identity} answers",
                fix="take a new snapshot, or add failover=yes to the URL of MariaDB servers that replicate each other",
            )
        if not told.mariadb or not after.gtid:
            raise SourceError("only a cursor with MariaDB's GTID can move to another server", fix="take a new snapshot")
        moved = MysqlCursor(told.identity, BinlogPosition("", 4, 0), after.events, after.gtid)
        return moved, after.gtid
    files = catalog.logs(control)
    sizes = {log.file: log.size for log in files}
    file, offset, _ = after.place
    if file not in sizes:
        if files and place_order(file, 0) < place_order(files[0].file, 0):
            raise CursorExpired(
                f"the server has purged {file}: its logs begin with {files[0].file}",
                fix="take a new snapshot; keep logs longer with binlog_expire_logs_seconds",
            )
        raise CursorForeign(f"the server has no {file}", fix="take a new snapshot: its log was reset or restored")
    if offset > sizes[file]:
        raise CursorForeign(
            f"{file} ends before the cursor, at {sizes[file]}",
            fix="take a new snapshot: the server lost the end of its log (sync_binlog=1 prevents it), or was restored",
        )
    return after, None


def place_order(file: str, offset: int) -> tuple[int, int]:
    """Return a sort key for places of one log.

    >>> place_order("mysql-bin.999999", 900) < place_order("mysql-bin.1000000", 4)
    True
    """
    number = re.search(r"\.(\d+)$", file)
    return int(number[1]) if number else -1, offset


def _of_library(error: Exception) -> bool:
    return type(error).__module__.startswith("pymysql")
