"""One comparison window: select the transactions and tables, read both feeds over exactly those, and report.

It begins with the snapshot that a temporary replication slot exports, and ends with one that the log's reader takes: it
contains each transaction that the first does not see and the second does. The WAL has those from the slot on, up to its
position after the second snapshot; the log is queried for what lies between the two. So the window is exact during
traffic, and long transactions and prepared ones are on the same side of it in both feeds.

A named slot exports no snapshot. Then the window begins with the first transaction number assigned after it was opened,
and transactions running by then are left out of both. The slot is read and not acknowledged: its consumer misses
nothing.

Values that the WAL left out are not filled in from the log here: that would compare the log with itself.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

import msgspec
import psycopg
from psycopg import sql as q

from forge.capture.crosscheck.compare import DifferenceKind, FeedDifference, compare
from forge.capture.crosscheck.spool import LOG, WAL, WHOLE, CrosscheckSpool, RowChanges
from forge.capture.filters import Filter
from forge.capture.source import SourceBatch
from forge.capture.wal import publication as publications
from forge.capture.wal import slot as slots
from forge.capture.wal.catalog import RelationCatalog
from forge.capture.wal.connection import ReplicationConnection
from forge.capture.wal.decode import WalDecoder
from forge.capture.wal.position import Timelines, WalCursor, lsn_text
from forge.capture.wal.resnapshot import Resnapshots
from forge.capture.wal.session import WalSession, Wants
from forge.capture.wal.slot import WalServer, open_control
from forge.capture.wal.snapshot import flushed
from forge.change import Change, Op
from forge.changelog.reader import Reader
from forge.cursor import Cursor, Position, Snapshot, wal_position
from forge.errors import ForgeError, SlotLost, SourceError, one_line
from forge.postgres.connection import AsyncConnection, translate
from forge.postgres.queries import query_file
from forge.values import Column

_sql: Final = query_file("forge.capture.crosscheck")

MOST: Final = 1_000
"""Maximum number of differences that a report lists; all are counted."""
BEAT: Final = 0.1
"""Seconds after which a silent server is asked for its position."""
_ROWS: Final = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE)
_log = logging.getLogger("forge.capture.crosscheck")


class CrosscheckReport(msgspec.Struct):
    """The result of a window."""

    transactions: int = 0
    changes: int = 0
    """Number of changes in the WAL, in the compared tables."""
    logged: int = 0
    missing_in_log: int = 0
    missing_in_wal: int = 0
    differing: int = 0
    reordered: int = 0
    invalidated: int = 0
    """Changes that the log reports only by an invalidation of their table; these are not differences."""
    differences: list[FeedDifference] = []
    """The first differences."""
    tables: tuple[str, ...] = ()
    left_out: Mapping[str, str] = {}
    """Tables that were not compared, and why."""

    @property
    def differences_found(self) -> int:
        return self.missing_in_log + self.missing_in_wal + self.differing + self.reordered

    @property
    def equal(self) -> bool:
        return not self.differences_found

    def add(self, difference: FeedDifference) -> None:
        name = {DifferenceKind.DIFFERS: "differing", DifferenceKind.ORDER: "reordered"}.get(
            difference.kind, difference.kind.value
        )
        setattr(self, name, getattr(self, name) + 1)
        if len(self.differences) < MOST:
            self.differences.append(difference)


class CrosscheckScope(NamedTuple):
    """The compared tables, by name, each with its place and the columns that both feeds have."""

    places: Mapping[tuple[str, str], int]
    columns: Sequence[Sequence[str]]
    left_out: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{schema}.{table}" for schema, table in self.places)


class Window:
    """Reads the WAL from the time it is opened; `close` ends it and compares. Created by `open_window`."""

    def __init__(
        self,
        scope: CrosscheckScope,
        since: Snapshot,
        control: AsyncConnection,
        reader: Reader,
        connection: ReplicationConnection,
        session: WalSession,
        spool: CrosscheckSpool,
        *,
        frees: bool,
    ) -> None:
        self.scope = scope
        self.since = since
        self.changes = 0
        """Number of changes read from the WAL so far."""
        self.quiet_since = asyncio.get_running_loop().time()
        self._control = control
        self._reader = reader
        self._connection = connection
        self._session = session
        self._spool = spool
        self._frees = frees
        self._reading = asyncio.create_task(self._read_wal())

    async def during(self, seconds: float) -> None:
        """Return when the time is over; raise the error that ends the reading before that."""
        done, _ = await asyncio.wait([self._reading], timeout=seconds)
        for task in done:
            task.result()

    async def close(self) -> CrosscheckReport:
        """End the window, read the log over it, and compare."""
        until = (await self._reader.now()).snapshot
        row = await (await self._control.execute(slots.sql("insert_lsn").encode())).fetchone()
        assert row is not None
        await flushed(self._control, row[0])
        while self._session.resume.lsn < wal_position(row[0]):
            self._connection.ask()
            await self.during(BEAT / 2)
        await self.stop()
        await self._connection.close()
        await self._read_log(until)
        return await self._report(until)

    async def stop(self) -> None:
        self._reading.cancel()
        with suppress(asyncio.CancelledError, psycopg.Error, ForgeError, OSError):  # raised by `during`, or not wanted
            await self._reading

    async def _read_wal(self) -> None:
        async with aclosing(self._session.batches()) as batches:
            async for batch in batches:
                found = list(self._wanted(batch.changes))
                self._spool.add(WAL, found)
                if found:
                    self.changes += len(found)
                    self.quiet_since = asyncio.get_running_loop().time()
                if self._frees:
                    self._connection.flushed = self._session.resume.start

    async def _read_log(self, until: Snapshot) -> None:
        visible = _Visible()
        between = Cursor(self._reader.identity, self.since, until, Position(0, 0))
        async with aclosing(self._reader.read(between, tables=self.scope.names)) as batches:
            async for batch in batches:
                changes = map(visible, batch.changes, batch.columns)
                self._spool.add(LOG, self._wanted(changes, (*_ROWS, Op.INVALIDATE)))

    def _wanted(self, changes: Any, operations: Sequence[Op] = _ROWS) -> Iterator[tuple[int, int, Change]]:
        places, since = self.scope.places, self.since
        for change in changes:
            place = places.get((change.schema, change.table))
            xid = int(change.source.transaction)
            if place is not None and change.op in operations and not since.sees(xid):
                yield xid, place, change

    async def _report(self, until: Snapshot) -> CrosscheckReport:
        report = CrosscheckReport(tables=self.scope.names, left_out=self.scope.left_out)
        last, whole = 0, (0, -1)
        for number, group in enumerate(self._spool.groups()):
            if not number % 1_000:
                await asyncio.sleep(0)  # lets an interrupt through
            if not until.sees(group.transaction):
                continue
            if group.transaction != last:
                last = group.transaction
                report.transactions += 1
            if group.key == WHOLE and any(seen.op is Op.INVALIDATE for seen in group.log):
                whole = group.transaction, group.place
                group = group._replace(log=[seen for seen in group.log if seen.op is not Op.INVALIDATE])
            report.changes += len(group.wal)
            report.logged += len(group.log)
            self._judge(report, group, invalidated=whole == (group.transaction, group.place))
        return report

    def _judge(self, report: CrosscheckReport, group: RowChanges, *, invalidated: bool) -> None:
        for kind, seen, values in compare(group.log, group.wal):
            if invalidated and kind is DifferenceKind.MISSING_IN_LOG:
                report.invalidated += 1
                continue
            table = self.scope.names[group.place]
            report.add(
                FeedDifference(kind, table, group.row_id, seen.op, str(group.transaction), seen.position, values)
            )


class _Visible:
    """Changes of the log without their masked columns, whose values the WAL has unmasked."""

    def __init__(self) -> None:
        self._masked: dict[tuple[Column, ...], frozenset[str]] = {}

    def __call__(self, change: Change, columns: tuple[Column, ...]) -> Change:
        masked = self._masked.get(columns)
        if masked is None:
            masked = self._masked[columns] = frozenset(c.name for c in columns if c.kind == "masked")
        if not masked:
            return change
        images = {
            name: {column: value for column, value in image.items() if column not in masked}
            for name in ("before", "after")
            if (image := getattr(change, name)) is not None
        }
        return msgspec.structs.replace(change, **images)


@asynccontextmanager
async def open_window(
    url: str, wanted: Filter | None = None, *, slot: str | None = None, publication: str | None = None
) -> AsyncIterator[Window]:
    """Open a window over the wanted tables; it is open when this is entered.

    Without a slot name it creates its own slot, which ends with its connection; without a publication name it uses the
    slot's name, or creates its own publication, which is dropped in the end.
    """
    opened = False
    try:
        async with AsyncExitStack() as stack:
            window = await _opened(stack, url, wanted or Filter(), slot, publication)
            opened = True
            yield window
    except psycopg.Error as error:
        line = one_line(error)
        found = slots.explain(error, slot or "") or (
            SourceError(f"the window was broken off: {line}", fix="open another one: what was read is not all")
            if opened and isinstance(error, psycopg.OperationalError)
            else translate(error)
        )
        if found is None:
            raise
        raise found from error


async def _opened(stack: AsyncExitStack, url: str, wanted: Filter, slot: str | None, publication: str | None) -> Window:
    control = await open_control(url, slot or "")
    stack.push_async_callback(control.close)
    server = await slots.server(control)
    server.check()
    reader = await stack.enter_async_context(Reader.open(url))
    publication = publication or slot
    if publication is not None:
        row = await (await control.execute(slots.sql("publication").encode(), {"name": publication})).fetchone()
        if row is None:
            raise SourceError(
                f"there is no publication {publication}", fix="name one that is there: --publication NAME"
            )
        if not all(row[1:5]):
            raise SourceError(
                f"the publication {publication} does not publish every operation",
                fix="ALTER PUBLICATION … SET (publish = 'insert, update, delete, truncate'), or name another one",
            )
    scope = await _scope(control, wanted, publication)
    own = f"forge_crosscheck_{control.info.backend_pid}"
    if publication is None:
        publication = own
        await _publish(stack, control, own, scope, server)
    async with slots.typed(slot or own):
        connection = await ReplicationConnection.open(url)
    stack.push_async_callback(connection.close)
    since, start = await (_temporary(control, connection, own) if slot is None else _named(control, slot, server))
    place = WalCursor(server.system, server.timeline, server.database, slot or own, start)
    timelines = Timelines(server.timeline)
    session = WalSession(
        connection,
        control,
        RelationCatalog(),
        WalDecoder("wal", server.system, timelines, None, since.xmax),
        timelines,
        place,
        wants=Wants(Filter(tables=scope.names)),
        filler=None,
        heartbeat=BEAT,
        again=Resnapshots(),
        shown=_nothing_is_read_anew,
    )
    stack.callback(session.close)
    quoted = publication.replace('"', '""').replace("'", "''")
    async with slots.typed(place.slot):
        await connection.start(
            f"START_REPLICATION SLOT {place.slot} LOGICAL {lsn_text(start)}"
            f" (proto_version '2', publication_names '\"{quoted}\"', streaming 'on')"
        )
    spool = CrosscheckSpool(scope.columns)
    stack.callback(spool.close)
    window = Window(scope, since, control, reader, connection, session, spool, frees=slot is None)
    stack.push_async_callback(window.stop)
    return window


async def _scope(control: AsyncConnection, wanted: Filter, publication: str | None) -> CrosscheckScope:
    rows = await (await control.execute(_sql("tables"), {"publication": publication})).fetchall()
    rows = [row for row in rows if wanted.wants_table(row[0], row[1])]
    compared = [row for row in rows if row[2] is None]
    left_out = {f"{schema}.{table}": why for schema, table, why, _ in rows if why is not None}
    if not compared:
        why = next(iter(f"{name}: {why}" for name, why in left_out.items()), "there is no such table")
        raise SourceError(f"no table can be compared; {why}", fix="forge enable TABLE, or name other tables")
    places = {(schema, table): place for place, (schema, table, _, _) in enumerate(compared)}
    return CrosscheckScope(places, [row[3] for row in compared], left_out)


async def _publish(
    stack: AsyncExitStack, control: AsyncConnection, name: str, scope: CrosscheckScope, server: WalServer
) -> None:
    """Publish the compared tables while the window is open; drop publications left behind by earlier windows."""
    for (stale,) in await (await control.execute(_sql("stale"))).fetchall():
        await publications.drop(control, stale)
    try:
        await publications.ensure(control, name, Filter(tables=scope.names), server, ())
    except SourceError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        raise SourceError(
            f"the role {server.role} may not publish these tables",
            fix="connect as their owner, or name a publication that has them: --publication NAME",
        ) from error

    async def drop() -> None:
        try:
            await publications.drop(control, name)
        except psycopg.Error as error:
            _log.warning("the publication %s is left behind: %s", name, one_line(error))

    stack.push_async_callback(drop)


async def _temporary(control: AsyncConnection, connection: ReplicationConnection, name: str) -> tuple[Snapshot, int]:
    """Create a slot that ends with its connection; return the snapshot of what it does not send, and its start LSN."""
    async with slots.typed(name):
        [made] = await connection.command(f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT")
    async with control.transaction():
        await control.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await control.execute(q.SQL("SET TRANSACTION SNAPSHOT {}").format(q.Literal(str(made[2]))))
        row = await (await control.execute(_sql("snapshot"))).fetchone()
    assert row is not None
    return exported(row[0]), wal_position(str(made[1]))


def exported(text: str) -> Snapshot:
    """Return what a slot's snapshot sees. Its upper end is behind the last commit that the slot passed when it was
    created, and may be below the lower one, if only aborted transactions lie between the two.

    >>> str(exported("798:790:")), str(exported("5:9:6,7"))
    ('798:798:', '5:9:6,7')
    """
    low, high, _ = text.split(":")
    return Snapshot(int(low), int(low)) if int(low) > int(high) else Snapshot.parse(text)


async def _named(control: AsyncConnection, name: str, server: WalServer) -> tuple[Snapshot, int]:
    slot = await slots.find(control, slots.checked_name(name))
    if slot is None:
        raise SlotLost(f"there is no replication slot {name}", fix="forge slot list shows those there are")
    slots.usable(slot, plugin="pgoutput", database=server.name)
    row = await (await control.execute(_sql("snapshot"))).fetchone()
    assert row is not None
    first = Snapshot.parse(row[0]).xmax
    return Snapshot(first, first), slot.confirmed_lsn


def _nothing_is_read_anew(again: Resnapshots, cursor: str) -> SourceBatch:
    raise AssertionError("nothing was asked to be read again")
