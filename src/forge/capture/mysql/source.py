"""The source of a MySQL or MariaDB server: a snapshot of its tables, then its binary log."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, Self, TypeVar

import msgspec

from forge.backoff import Backoff
from forge.capture.capabilities import Capabilities
from forge.capture.filters import Filter
from forge.capture.mysql import catalog, settings
from forge.capture.mysql.address import Connection, MysqlAddress
from forge.capture.mysql.cascades import Name
from forge.capture.mysql.cursor import KIND, BinlogPosition, MysqlCursor, TableProgress
from forge.capture.mysql.feed import BinlogFeed
from forge.capture.mysql.snapshot import MysqlSnapshot
from forge.capture.mysql.tail import PAUSES, BinlogTail, TailSettings, place_order, resumed
from forge.capture.mysql.view import MysqlCatalog
from forge.capture.source import SourceBatch, Status
from forge.change import Change
from forge.errors import CursorInvalid, SourceUnreachable
from forge.generator_close import Closing
from forge.values import Column

CAPABILITIES: Final = Capabilities(
    durable=True,
    replayable=True,
    retention="as long as the server keeps its binary logs (binlog_expire_logs_seconds)",
    other_processes=True,
    before="always",
    context=True,
    ordered=True,
    transactions=True,
    snapshots=True,
    truncates=True,
    schema_changes=True,
)

_T = TypeVar("_T")
_CHANGED = (1412, 1146, 1054, 1051, 1049)
"""Errors of the server for a table that was altered or dropped during a snapshot."""


class MysqlSource:
    """Changes of one database of a server, or of all, from its binary log.

    `server_id` is the id under which it reads; by default a random one. `heartbeat` is the interval in seconds in which
    an idle server must send a heartbeat: after three times that a connection counts as dead. A batch has at most about
    `page` changes. `context=False` does not request statements' comments, which saves traffic.

    With `failover=yes` in the URL a cursor of another MariaDB server is resumed by its global transaction id: use it
    only if the servers replicate each other.
    """

    kind: Final = KIND

    def __init__(
        self,
        url: str,
        filter: Filter | None = None,
        *,
        server_id: int | None = None,
        heartbeat: float = 5.0,
        page: int = 1000,
        timeout: float = 10.0,
        context: bool = True,
    ) -> None:
        self._address = MysqlAddress.parse(url)
        self._filter = filter or Filter()
        self._page = page
        self._reading = TailSettings(
            self._address,
            self._filter,
            server_id=server_id,
            heartbeat=heartbeat,
            page=page,
            timeout=timeout,
            context=context,
        )
        self._acked: MysqlCursor | None = None
        self._malformed = 0
        self.connections = 0
        """Number of times a stream connected."""

    @property
    def name(self) -> str:
        return self._address.name

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    # -- the stream ------------------------------------------------------------------------------------

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield what is committed after the cursor, or from now on, without end."""
        cursor = MysqlCursor.parse(after if after is not None else await self.now())
        if cursor.progress is not None:
            raise CursorInvalid(
                "the cursor stands inside a snapshot", fix="go on with snapshot(after), or read with changes()"
            )
        async with aclosing(self._tailed(cursor)) as batches:
            async for batch in batches:
                yield batch

    async def _tailed(self, cursor: MysqlCursor, until: tuple[str, int] | None = None) -> AsyncGenerator[SourceBatch]:
        tail = BinlogTail(self._reading, cursor, until=until, connected=self._count)
        try:
            while (batch := await tail.get()) is not None:
                self._malformed = max(self._malformed, tail.malformed)
                yield batch
        finally:
            await tail.stop()

    def _count(self) -> None:
        self.connections += 1

    # -- the snapshot ----------------------------------------------------------------------------------

    async def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield the existing rows; the stream continues from the last batch's cursor.

        If its connection is lost or a table is altered meanwhile, it continues in a new transaction.
        """
        cursor = MysqlCursor.parse(after) if after is not None else None
        if cursor is not None and cursor.progress is None:
            raise CursorInvalid("the cursor stands behind a snapshot", fix="go on with stream(after)")
        backoff, closing = Backoff(*PAUSES), Closing()
        begun = after is not None
        while True:
            try:
                async with aclosing(self._snapshot(cursor)) as batches:
                    async for batch in batches:
                        cursor = MysqlCursor.parse(batch.cursor)
                        begun = True
                        backoff.reset()
                        with closing:
                            yield batch
                return
            except (SourceUnreachable, OSError, _Again) as error:
                if closing.ends(error):
                    return
                if not begun or backoff.spent:
                    raise error.error if isinstance(error, _Again) else error from None
            await asyncio.sleep(backoff.next())

    async def _snapshot(self, after: MysqlCursor | None) -> AsyncGenerator[SourceBatch]:
        held: list[socket.socket] = []
        try:
            snapshot, told = await self._call(lambda: self._begin(after, held))
        except BaseException:
            _end(held)
            raise
        try:
            place = BinlogPosition(
                snapshot.file, snapshot.offset, await self._call(lambda: self._created(snapshot.file, told))
            )
            end = MysqlCursor(told.identity, place, 0, snapshot.gtid)
            progress = None
            if after is not None and after.progress is not None:
                progress = after.progress
                async with aclosing(self._caught_up(snapshot, after, progress)) as batches:
                    async for batch in batches:
                        yield batch
            for name in await self._call(lambda: snapshot.tables(self._address.database)):
                if progress is not None and name < (progress.schema, progress.table):
                    continue
                if not self._filter.wants_table(*name):
                    continue
                async with aclosing(self._table(snapshot, name, progress)) as pages:
                    async for changes, columns, done in pages:
                        yield self._batch(changes, columns, msgspec.structs.replace(end, progress=done))
                progress = None
            yield SourceBatch((), str(end))
        finally:
            _end(held)
            await self._call(snapshot.close)

    def _begin(self, after: MysqlCursor | None, held: list[socket.socket]) -> tuple[MysqlSnapshot, catalog.MysqlServer]:
        connection = self._reading.connect(held, patient=True)
        try:
            told = catalog.server(connection)
            settings.check(told)
            if after is not None:
                resumed(connection, told, after, failover=self._address.failover)
            else:
                self._check_columns(connection)
            return MysqlSnapshot(connection, told, self._address.name), told
        except BaseException:
            connection._force_close()
            raise

    async def _table(
        self, snapshot: MysqlSnapshot, name: Name, progress: TableProgress | None
    ) -> AsyncGenerator[tuple[list[Change], Sequence[tuple[Column, ...]], TableProgress]]:
        mine = progress if progress is not None and name == (progress.schema, progress.table) else None
        texts = await self._call(lambda: snapshot.texts(name))
        if texts is None:
            return
        marks = mine.key if mine is not None else None
        if not texts.paged:
            if marks is not None:
                yield [snapshot.invalidate(name)], [()], TableProgress(*name, None)
            async with aclosing(self._scanned(snapshot, name, texts)) as pages:
                async for changes in pages:
                    yield changes, [texts.columns] * len(changes), TableProgress(*name, ())
            return
        while True:
            after = marks
            rows = await self._call(lambda after=after: snapshot.page(name, texts, after, self._page))  # type: ignore[misc]
            if rows:
                marks = texts.marks(rows[-1])
                changes = snapshot.reads(name, texts, rows)
                yield changes, [texts.columns] * len(changes), TableProgress(*name, marks)
            if len(rows) < self._page:
                return

    async def _scanned(self, snapshot: MysqlSnapshot, name: Name, texts: Any) -> AsyncGenerator[list[Change]]:
        cursor = await self._call(lambda: snapshot.scan(name, texts))
        number = 0
        while rows := await self._call(lambda: cursor.fetchmany(self._page)):
            yield snapshot.reads(name, texts, rows, number)
            number += len(rows)
        await self._call(cursor.close)

    async def _caught_up(
        self, snapshot: MysqlSnapshot, after: MysqlCursor, progress: TableProgress
    ) -> AsyncGenerator[SourceBatch]:
        """Yield what happened to the delivered rows, up to the new snapshot."""
        start = msgspec.structs.replace(after, progress=None)
        here = (progress.schema, progress.table)
        async with aclosing(self._tailed(start, (snapshot.file, snapshot.offset))) as batches:
            async for batch in batches:
                mine = [change for change in batch.changes if (change.schema, change.table) == here]
                kept: dict[str, bool] = {}
                if mine:
                    texts = await self._call(lambda: snapshot.texts(here))
                    found = (
                        await self._call(
                            lambda mine=mine, texts=texts: snapshot.read_already(texts, progress, mine)  # type: ignore[misc]
                        )
                        if texts is not None
                        else [True] * len(mine)
                    )
                    kept = {change.id: keep for change, keep in zip(mine, found, strict=True)}
                chosen = [
                    (change, columns)
                    for change, columns in zip(batch.changes, batch.columns, strict=True)
                    if (change.schema, change.table) < here or kept.get(change.id, False)
                ]
                cursor = msgspec.structs.replace(MysqlCursor.parse(batch.cursor), progress=progress)
                yield SourceBatch([pair[0] for pair in chosen], str(cursor), [pair[1] for pair in chosen])

    def _batch(self, changes: list[Change], columns: Sequence[tuple[Column, ...]], cursor: MysqlCursor) -> SourceBatch:
        if self._filter.parts:
            pairs = [
                (kept, shape)
                for change, shape in zip(changes, columns, strict=True)
                if (kept := self._filter.keep(change)) is not None
            ]
            return SourceBatch([pair[0] for pair in pairs], str(cursor), [pair[1] for pair in pairs])
        return SourceBatch(changes, str(cursor), columns)

    # -- where it stands -------------------------------------------------------------------------------

    async def now(self) -> str:
        """Return the cursor behind all that is committed."""
        return str(await self._call(lambda: self._now(beginning=True)))

    def _now(self, *, beginning: bool = False) -> MysqlCursor:
        with contextlib.closing(_Closing(self._reading.connect(patient=True))) as held:
            told = catalog.server(held.connection)
            settings.check(told)
            if beginning:
                self._check_columns(held.connection)
            file, offset = catalog.end(held.connection, told)
            gtid = catalog.gtid(held.connection, told, file, offset)
        return MysqlCursor(told.identity, BinlogPosition(file, offset, self._created(file, told)), 0, gtid)

    def _check_columns(self, connection: Connection) -> None:
        """Raise ConfigError at the start for a column that no followed table has: the reader would wait without end."""
        if self._filter.names_columns:
            self._filter.check_columns(catalog.columns(connection, self._address.database))

    def _created(self, file: str, told: catalog.MysqlServer) -> int:
        """Return when the server began a file of its log."""
        with contextlib.closing(_Closing(self._reading.connect())) as held:
            feed = BinlogFeed.open(
                held.connection,
                self._address,
                told,
                random.randrange(1 << 30, 1 << 32),
                self._reading.heartbeat,
                file=file,
                offset=4,
            )
            return feed.created()

    async def ack(self, cursor: str) -> None:
        """Note the cursor: nothing is kept per consumer, so nothing is forgotten; `status` counts the lag from here."""
        self._acked = MysqlCursor.parse(cursor)

    async def status(self) -> Status:
        """Return the status, with the warnings that `forge doctor` prints."""
        return await self._call(self._status)

    def _status(self) -> Status:
        now = self._now()
        with contextlib.closing(_Closing(self._reading.connect(patient=True))) as held:
            connection = held.connection
            told = catalog.server(connection)
            view = MysqlCatalog(connection, told, self._address.database, self._filter)
            followed = list(view.followed())
            engines = catalog.tables(connection, self._address.database)
            keyed = catalog.keyed(connection)
            keyless = [name for name in followed if name not in keyed]
            cascades = [each for found in view.cascades().values() for each in found if view.wants(*each.child)]
            logs = catalog.logs(connection)
            lag = None
            if self._acked is not None:
                start = place_order(self._acked.place.file, 0)
                lag = sum(log.size for log in logs if place_order(log.file, 0) >= start) - self._acked.place.offset
            warned = settings.warnings(told, {name: engines[name] for name in followed}, keyless, cascades)
        if self._acked is not None and self._acked.place.file not in {log.file for log in logs}:
            warned.append(
                f"the server has purged {self._acked.place.file}, where the consumer stands: it must begin again"
            )
        if self._malformed:
            warned.append(f"{self._malformed} comments meant for Forge could not be read")
        return Status(
            KIND,
            self.name,
            CAPABILITIES,
            str(now),
            max(lag, 0) if lag is not None else None,
            in_forge=self._filter.parts,
            details={
                "server": told.setting("version"),
                "identity": told.identity,
                "retention": settings.retention(told),
                "logs": len(logs),
                "oldest_log": logs[0].file if logs else None,
                "cascades": tuple(each.constraint for each in cascades),
            },
            warnings=tuple(warned),
        )

    async def _call(self, action: Callable[[], _T]) -> _T:
        """Run the action in a thread; convert errors of the client library into Forge's."""
        try:
            return await asyncio.to_thread(action)
        except Exception as error:
            if not type(error).__module__.startswith("pymysql"):
                raise
            found = self._address.refused(error)
            if error.args and error.args[0] in _CHANGED:
                raise _Again(found) from None
            raise found from None


class _Again(Exception):
    """A table changed during the snapshot: it must be taken again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Closing:
    """A connection that is closed without a message to the server."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def close(self) -> None:
        self.connection._force_close()


def _end(held: list[socket.socket]) -> None:
    for each in held:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
