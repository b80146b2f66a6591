"""The trigger log of a PostgreSQL database as a source, kind `log`. In: a URL and a filter. Out: batches.

The stream is `forge.changelog.follow`. Its cursors are those of `forge.cursor`, and a cursor printed by `forge tail`
works here too. Nothing has to be acknowledged: the log keeps changes for its retention time, read or not.

A snapshot reads the tracked tables in one transaction; the cursor behind it is that transaction's own snapshot: what it
shows is read, everything else is streamed, so there is no gap and no overlap. Rows come in the order of their key, one
table after the other. A cursor inside a snapshot has its position:

    {cursor}+{time of the snapshot}.{number of the tracked table}.{key of its last row}

A reader that resumes there reads the tables as of that snapshot: the current rows, minus what the log says happened
since. So the rest is the same rows with the same ids, however much was written meanwhile, and no transaction is held
open in between. There are two exceptions. A table that was truncated since is not read further: the truncate follows in
the stream. If a table was redefined since, or changed in a way that was not logged, or the log was trimmed, its past
rows are unknown: CursorExpired. The rows of a snapshot have no place in the log, so their `position` is `0.0`, and they
have no transaction.
"""

import asyncio
import logging
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self

import psycopg

from forge.capture.capabilities import Capabilities
from forge.capture.filters import Filter
from forge.capture.source import SourceBatch, Status, in_snapshot
from forge.change import Change, ChangeSource, Op
from forge.changelog import rewind
from forge.changelog.decode import SOURCE_KIND
from forge.changelog.follow import ALIVE, Ears, Wakeup, follow
from forge.changelog.queries import query
from forge.changelog.reader import PAGE, Reader
from forge.changelog.rewind import CurrentTable
from forge.config import hide
from forge.cursor import Cursor, Position, Snapshot
from forge.errors import CursorExpired, CursorForeign, CursorInvalid
from forge.generator_close import Closing
from forge.postgres.connection import AsyncConnection, connect_async, translate, typed_errors
from forge.postgres.held_session import LOST, AsyncHeldSession, Reconnect
from forge.postgres.names import quoted
from forge.postgres.queries import query_file
from forge.values import Column, Images

_query: Final = query_file("forge.capture", "log.sql")

CAPABILITIES: Final = Capabilities(
    durable=True,
    replayable=True,
    retention="whole days, 30 unless retention_days says otherwise, or up to log_size_limit",
    other_processes=True,
    before="always",
    context=True,
    ordered=False,  # transactions committed between two reads come mixed, each row's changes in order
    transactions=True,
    snapshots=True,
    truncates=True,
    schema_changes=True,
    filters=("tables",),
)
PAGE_BYTES: Final = 4 * 1024 * 1024
"""A batch of a snapshot ends at this many bytes of rows, or at the number of rows of a log page."""

_SORTABLE: Final = (
    "boolean", "smallint", "integer", "bigint", "numeric", "text", "character varying", "uuid", "bytea", "date",
    "timestamp without time zone", "timestamp with time zone",
)  # fmt: skip
"""Types of keys whose text can be cast back, so that their index provides the order."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PLACE: Final = re.compile(r"([0-9]{1,17})(?:\.([0-9]{1,10})\.([A-Za-z0-9_=-]*))?")
_NAMES: Final = re.compile(r"[*?]")
_AGAIN: Final = "read the tables again: take a new snapshot, then follow from its cursor"
_log = logging.getLogger("forge.capture.log")


class LogSource:
    """The log of one database."""

    kind: Final = "log"
    capabilities: Final = CAPABILITIES

    def __init__(self, url: str, filter: Filter | None = None, *, wakeup: Wakeup = "auto") -> None:
        self._url = url
        self._filter = filter or Filter()
        self._wakeup: Wakeup = wakeup
        self.name: Final = hide(url)
        pushed = bool(self._filter.tables) and not any(map(_NAMES.search, self._filter.tables))
        self._tables = self._filter.tables if pushed else None
        self._left = self._filter.without("tables") if pushed else self._filter
        self.in_feed: Final = ("tables",) if pushed else ()
        self.in_forge: Final = self._left.parts

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield what is committed after the cursor, or from now on, without end."""
        cursor = None if after is None else _outside(after)
        await self._check()
        batches = follow(self._url, after=cursor, tables=self._tables, wakeup=self._wakeup)
        async with aclosing(batches) as following:
            async for batch in following:
                yield self._left.batch(SourceBatch(batch.changes, str(batch.cursor), batch.columns))

    async def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield the rows of the tracked tables, then a batch that only moves the cursor out of the snapshot."""
        place = None if after is None else _Place.parse(after)
        await self._check()
        reconnect, closing = Reconnect(_log, "the snapshot"), Closing()
        while True:
            try:
                async with _Tables.open(self._url, self._filter) as tables:
                    reconnect.opened()
                    place = place or await tables.begin()
                    async with aclosing(tables.batches(place)) as batches:
                        async for batch in batches:
                            with closing:
                                yield self._left.batch(batch)
                            place = _Place.parse(batch.cursor)
                            reconnect.works()
                yield SourceBatch((), str(place.cursor))
                return
            except LOST as error:
                if closing.ends(error):
                    return
                if not reconnect.connected:
                    raise (translate(error) if isinstance(error, psycopg.Error) else None) or error from error
                await asyncio.sleep(reconnect.failed(error))
            except psycopg.DataError as error:
                raise CursorInvalid("the cursor names a key that its table cannot have", fix=_AGAIN) from error
            except psycopg.ProgrammingError as error:
                raise translate(error) or error from error

    async def now(self) -> str:
        """Return the cursor behind all that is committed, safe to keep."""
        async with Reader.open(self._url) as reader:
            return str(await reader.now())

    async def start(self) -> str:
        """Return the cursor before the oldest retained change."""
        async with Reader.open(self._url) as reader:
            return str(reader.start())

    async def ack(self, cursor: str) -> None:
        """Do nothing: the log is not trimmed by acknowledgement."""

    async def until_now(self, after: str) -> AsyncGenerator[SourceBatch]:
        """Yield what is committed after the cursor and before this call; first the batch that contains the cursor."""
        cursor, unfinished = _outside(after), True
        await self._check()
        async with Reader.open(self._url) as reader:
            while unfinished:
                unfinished = cursor.until is not None
                async with aclosing(reader.read(cursor, tables=self._tables)) as batches:
                    async for batch in batches:
                        if not batch.flushed:
                            await reader.flushed(batch.lsn)
                        cursor = batch.cursor
                        yield self._left.batch(SourceBatch(batch.changes, str(cursor), batch.columns))

    def behind(self, change: Change, after: str | None, cursor: str) -> str:
        """Return the cursor right behind a change of a batch, even for a row of a snapshot."""
        if change.op is Op.READ:
            place = _Place.parse(cursor)
            own = change.id.removeprefix(f"{place.cursor.log.uuid}:{place.cursor.snapshot}:")
            table, _, row_id = own.partition(":")
            return str(place._replace(table=int(table), last=row_id))
        assert after is not None
        return str(inside(_outside(after), _outside(cursor), change))

    async def _check(self) -> None:
        """Raise ConfigError for an invalid condition, or a column that no tracked table has or had."""
        self._filter.check()
        if self._filter.names_columns:
            async with Reader.open(self._url) as reader:
                with typed_errors():
                    known = await (await reader.connection.execute(columns_query())).fetchall()
                self._filter.check_columns(known)

    async def status(self) -> Status:
        """Return the status of the log; readers keep their own cursors, so there is no lag to report."""
        async with Reader.open(self._url) as reader:
            with typed_errors():
                row = await (await reader.connection.execute(_query("facts"))).fetchone()
            assert row is not None
            size, oldest, tables = row
            return Status(
                kind=self.kind,
                name=self.name,
                capabilities=self.capabilities,
                position=str(await reader.now()),
                in_feed=self.in_feed,
                in_forge=self.in_forge,
                details={"log_bytes": size, "oldest_change": oldest and oldest.astimezone(UTC), "tables": tables},
                warnings=() if tables else ("no table is tracked: forge enable TABLE",),
            )


def inside(before: Cursor, behind: Cursor, change: Change) -> Cursor:
    """Return the cursor right behind a change of the log that lies between two cursors."""
    place, _, number = change.source.position.partition(".")
    return Cursor(behind.log, before.snapshot, behind.until or behind.snapshot, Position(int(place), int(number)))


def columns_query() -> Any:
    """Return the query for the columns that tracked tables have, or had: schema, table, names."""
    return _query("columns")


def _outside(cursor: str) -> Cursor:
    if in_snapshot(cursor):
        raise CursorInvalid("the cursor stands inside a snapshot", fix="let snapshot() go on from it first")
    return Cursor.parse(cursor)


class _Place(NamedTuple):
    """A position in a snapshot: in the table of this number, behind the row of this key; without one, at its start."""

    cursor: Cursor
    at: datetime
    table: int = 0
    last: str | None = None

    @classmethod
    def parse(cls, text: str) -> "_Place":
        """
        >>> from forge.cursor import LogIdentity
        >>> log = LogIdentity("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "7310000000000000001", 1)
        >>> place = _Place(Cursor(log, Snapshot(5, 9)), datetime(2026, 1, 1, tzinfo=UTC), 3, "zażółć")
        >>> _Place.parse(str(place)) == place
        True
        """
        cursor, inside, place = text.partition("+")
        parsed = Cursor.parse(cursor)
        match = _PLACE.fullmatch(place)
        if not inside or match is None or parsed.last is not None:
            raise CursorInvalid("the cursor does not stand inside a snapshot", fix="let stream() go on from it")
        try:
            at = _EPOCH + timedelta(microseconds=int(match[1]))
            last = None if match[3] is None else urlsafe_b64decode(match[3]).decode()
        except (ValueError, OverflowError) as error:
            raise CursorInvalid(f"{text[:60]!r} is not a cursor", fix="use a cursor that forge printed") from error
        found = cls(parsed, at, int(match[2] or 0), last)
        if str(found) != text:
            raise CursorInvalid(f"{text[:60]!r} is not a cursor", fix="use a cursor that forge printed")
        return found

    def __str__(self) -> str:
        start = f"{self.cursor}+{(self.at - _EPOCH) // timedelta(microseconds=1)}"
        if self.last is None:
            return start
        return f"{start}.{self.table}.{urlsafe_b64encode(self.last.encode()).decode()}"


class _Ordered:
    """A tracked table whose rows are read in the order of their key."""

    def __init__(self, table: CurrentTable) -> None:
        self.number = table.id
        self.schema = table.schema
        self.table = table.name
        self.images = Images([Column(each["name"], each["type"], each["kind"]) for each in table.columns], table.key)
        self.now = table
        self._sortable = all(name in _SORTABLE for name in table.key_types)

    def statement(self, connection: AsyncConnection, since: Mapping[str, Any], last: str | None, *, fresh: bool) -> str:
        """Return the SQL of the rows as of a snapshot, `(row_id, image)`, behind the row of a key."""
        binder = psycopg.AsyncClientCursor(connection)
        if not self.now.key:
            rows = f"SELECT r.n::text, r.image::text FROM ({self.now.counted()}) r"
            return binder.mogrify(
                f"{rows} WHERE r.n > %(last)s::text::bigint ORDER BY r.n", {**since, "last": last or "0"}
            )
        stored = self._key(self.now.row_id, f"{self.now.alias}.")
        if fresh:
            return binder.mogrify(self.now.unchanged_rows(f"ORDER BY {', '.join(stored)}"), since)
        logged = self._key("l.row_id", None)
        order = [f"o{place}" for place in range(len(stored))]
        behind = "true"
        if last is not None:
            literal = binder.mogrify("%s::text", (last,))
            behind = f"({{}}) > ({', '.join(self._key(literal, None))})"
        rows = self.now.keyed(
            stored_bounds=behind.replace("{}", ", ".join(stored), 1),
            logged_bounds=behind.replace("{}", ", ".join(logged), 1),
            stored_keys="".join(f", {word} AS {name}" for word, name in zip(stored, order, strict=True)),
            logged_keys="".join(f", {word} AS {name}" for word, name in zip(logged, order, strict=True)),
            order=f"ORDER BY {', '.join(order)}",
        )
        return binder.mogrify(f"SELECT r.row_id, r.image::text FROM ({rows}) r ORDER BY {', '.join(order)}", since)

    def _key(self, row_id: str, row: str | None) -> list[str]:
        """Return the expressions that a key is sorted by: from a row of the table, or from its key string."""
        types = zip(self.now.key_types, self.now.collations, strict=True)
        if not self._sortable:
            return [f'({row_id}) COLLATE "C"']
        if row is not None:
            parts = [row + quoted(name) for name in self.now.key]
        elif len(self.now.key) == 1:
            parts = [row_id]
        else:
            parts = [f"({row_id}::json ->> {place})" for place in range(len(self.now.key))]
        return [f"({part}::{type}){collation}" for part, (type, collation) in zip(parts, types, strict=True)]


class _Tables:
    """The tracked tables, read over one connection in one transaction; another connection checks that it is alive."""

    def __init__(self, connection: AsyncConnection, reader: Reader, first_id: int, filter: Filter) -> None:
        self._connection = connection
        self._reader = reader
        self._first_id = first_id
        self._filter = filter
        self._own: Snapshot | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, filter: Filter) -> AsyncIterator["_Tables"]:
        """Open a connection for rows, one for other queries, and a listener that closes both on silence."""
        async with AsyncExitStack() as stack:

            async def connected() -> AsyncConnection:
                connection = await connect_async(url)
                stack.push_async_callback(connection.close)
                return connection

            listening = await stack.enter_async_context(await AsyncHeldSession.open(url, "forge", answer=ALIVE))
            ears = await stack.enter_async_context(Ears(listening))
            reader = await Reader.over(ears.vouch(await connected()))
            row = await (await reader.connection.execute(query("identity"))).fetchone()
            assert row is not None
            connection = ears.vouch(await connected())
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield cls(connection, reader, row[3], filter)

    async def begin(self) -> _Place:
        """Return the place before the first row, in the snapshot that this transaction takes."""
        row = await (await self._connection.execute(_query("taken"))).fetchone()
        assert row is not None
        self._own = Snapshot.parse(row[0])
        await self._reader.flushed(row[1])
        return _Place(Cursor(self._reader.identity, self._own), row[2].astimezone(UTC))

    async def batches(self, place: _Place) -> AsyncGenerator[SourceBatch]:
        """Yield every row behind the place, in batches."""
        if place.cursor.log != self._reader.identity:
            raise CursorForeign("the cursor belongs to another log, or to this one before a failover", fix=_AGAIN)
        fresh = self._own == place.cursor.snapshot
        if not fresh:
            await self._check(place)
        first = {"first_table": place.table, "table": None}
        rows = await (await self._connection.execute(rewind.rewind_query("tables"), first)).fetchall()
        for pin in rewind.PINS:
            await self._connection.execute(pin)
        for row in rows:
            table = _Ordered(CurrentTable(*row))
            if not self._filter.wants_table(table.schema, table.table):
                continue
            since = table.now.since(place.cursor.snapshot, self._first_id)
            if not fresh and await self._emptied(table, since):
                continue
            last = place.last if table.number == place.table else None
            text = table.statement(self._connection, since, last, fresh=fresh)
            async for found in _pages(self._connection, text):
                place = place._replace(table=table.number, last=found[-1][0])
                changes = [_read(place, table, self._reader.identity.uuid, row_id, image) for row_id, image in found]
                yield SourceBatch(changes, str(place), [table.images.columns] * len(changes))

    async def _check(self, place: _Place) -> None:
        since = {**place.cursor.snapshot.bounds, "first": self._first_id}
        row = await (await self._connection.execute(query("trimmed"), since)).fetchone()
        head = await (await self._connection.execute(query("head"))).fetchone()
        assert row is not None
        assert head is not None
        if Snapshot.parse(head[0]).xmax < place.cursor.snapshot.xmax:
            raise CursorForeign("the cursor is ahead of the server: it was made before a crash or restore", fix=_AGAIN)
        if row[0]:
            raise CursorExpired("what was written since the snapshot began has been trimmed from the log", fix=_AGAIN)

    async def _emptied(self, table: _Ordered, since: Mapping[str, Any]) -> bool:
        cursor = await self._connection.execute(rewind.rewind_query("whole"), since)
        found = {op for (op,) in await cursor.fetchall()}
        if found & {"S", "X"}:
            what = "defined again" if "S" in found else "changed in a way that was not logged"
            raise CursorExpired(f"{table.schema}.{table.table} was {what} since the snapshot began", fix=_AGAIN)
        return "T" in found


async def _pages(connection: AsyncConnection, text: str) -> AsyncIterator[list[tuple[str, str]]]:
    """Yield the rows in pages of bounded size; the server sends no more than the consumer takes."""
    page: list[tuple[str, str]] = []
    size = 0
    async with connection.cursor() as cursor, aclosing(cursor.stream(text.encode())) as rows:  # type: ignore[type-var]
        async for row in rows:
            page.append(row)
            size += len(row[1])
            if len(page) == PAGE or size >= PAGE_BYTES:
                yield page
                page, size = [], 0
    if page:
        yield page


def _read(place: _Place, table: _Ordered, log: str, row_id: str, image: str) -> Change:
    row = table.images.row(image)
    return Change(
        id=f"{log}:{place.cursor.snapshot}:{table.number}:{row_id}",
        op=Op.READ,
        schema=table.schema,
        table=table.table,
        source=ChangeSource(SOURCE_KIND, log, "0.0"),
        at=place.at,
        key=table.images.key(row),
        after=row,
    )
