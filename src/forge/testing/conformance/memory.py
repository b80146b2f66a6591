"""The smallest source that passes: a database in this process's memory that keeps all its changes in a list.

It is how the suite itself is tested, and an example of what a source and an adapter have to do. A cursor is the number
of changes that were committed by then; inside a snapshot, also the number of rows that were read.
"""

import asyncio
import itertools
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar, Self

from forge.capture import Capabilities, Filter, Source, SourceBatch, Status
from forge.change import Change, Context, Op
from forge.change import ChangeSource as Origin
from forge.errors import CursorExpired, CursorForeign, CursorInvalid
from forge.testing.conformance.adapter import Adapter, Opening, Sample, Unsupported, Writer
from forge.testing.conformance.operations import (
    ADDED,
    ITEMS,
    OTHERS,
    TYPES,
    AddColumn,
    Delete,
    Insert,
    Operation,
    Truncate,
    Update,
)

PAGE = 100
_AGAIN = "take a snapshot, and go on from its cursor"
Rows = dict[int, dict[str, Any]]
_Done = tuple[Op, str, dict[str, Any] | None, dict[str, Any] | None]


class Database:
    """Tables, and every change that was committed; those before `first` are forgotten."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex[:8]
        self.tables: dict[str, Rows] = {ITEMS: {}, OTHERS: {}, TYPES: {}}
        self.added: set[str] = set()
        self.history: list[Change] = []
        self.first = 0
        self.news = asyncio.Condition()
        self._transactions = itertools.count(1)

    async def commit(self, operations: Sequence[Operation], user: str | None) -> None:
        transaction = str(next(self._transactions))
        async with self.news:
            for operation in operations:
                for op, table, before, after in self._done(operation):
                    number = len(self.history)
                    row = after or before
                    self.history.append(
                        Change(
                            id=f"{self.name}:{number}",
                            op=op,
                            schema="",
                            table=table,
                            source=Origin("memory", self.name, str(number), transaction),
                            at=datetime.now(UTC),
                            key=None if row is None else {"id": row["id"]},
                            before=before,
                            after=after,
                            context=Context(user_id=user),
                        )
                    )
            self.news.notify_all()

    def _done(self, operation: Operation) -> "list[_Done]":
        table = operation.table
        rows = self.tables[table]
        if isinstance(operation, Insert):
            row = dict(operation.row)
            if table in self.added:
                row.setdefault(ADDED, None)
            rows[row["id"]] = row
            return [(Op.INSERT, table, None, row)]
        if isinstance(operation, Update):
            old = rows[operation.id]
            new = {**old, **operation.row}
            if new["id"] == old["id"]:
                rows[new["id"]] = new
                return [(Op.UPDATE, table, old, new)]
            del rows[operation.id]
            rows[new["id"]] = new
            return [(Op.DELETE, table, old, None), (Op.INSERT, table, None, new)]
        if isinstance(operation, Delete):
            return [(Op.DELETE, table, rows.pop(operation.id), None)]
        if isinstance(operation, Truncate):
            rows.clear()
            return [(Op.TRUNCATE, table, None, None)]
        if isinstance(operation, AddColumn):
            self.added.add(table)
            for id, row in rows.items():
                rows[id] = {**row, ADDED: None}
            return [(Op.SCHEMA, table, None, None)]
        found: list[_Done] = []
        for id in range(operation.first, operation.first + operation.count):
            rows[id] = {"id": id, "name": "fill", "amount": 0, "note": operation.note}
            found.append((Op.INSERT, table, None, rows[id]))
        return found

    def as_of(self, position: int) -> dict[str, Rows]:
        """The tables as they were when so many changes had been committed."""
        tables: dict[str, Rows] = {name: {} for name in self.tables}
        for change in self.history[:position]:
            rows = tables[change.table]
            if change.op is Op.TRUNCATE:
                rows.clear()
            elif change.after is not None:
                rows[change.after["id"]] = dict(change.after)
            elif change.before is not None:
                del rows[change.before["id"]]
        return tables


class MemoryWriter(Writer):
    """Keeps what it is told until it commits."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: list[Operation] | None = None
        self._saved = 0
        self._user: str | None = None

    async def run(self, operation: Operation) -> None:
        if self._open is None:
            await self._database.commit([operation], None)
        else:
            self._open.append(operation)

    async def begin(self) -> None:
        self._open, self._user = [], None

    async def commit(self) -> None:
        await self._database.commit(self._open or [], self._user)
        self._open = None

    async def rollback(self) -> None:
        self._open = None

    async def savepoint(self) -> None:
        self._saved = len(self._open or [])

    async def rollback_to_savepoint(self) -> None:
        assert self._open is not None
        del self._open[self._saved :]

    async def context(self, user_id: str) -> None:
        self._user = user_id


class MemorySource:
    """The changes of a database in memory."""

    kind = "memory"
    capabilities = Capabilities(
        durable=True,
        replayable=True,
        retention="as long as the process lives",
        other_processes=True,
        before="always",
        context=True,
        ordered=True,
        transactions=True,
        snapshots=True,
        truncates=True,
        schema_changes=True,
    )

    def __init__(self, database: Database, filter: Filter | None = None) -> None:
        self.database = database
        self.filter = filter or Filter()
        self.name = f"memory:{database.name}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    async def now(self) -> str:
        return self.cursor(len(self.database.history))

    async def ack(self, cursor: str) -> None:
        self.position(cursor)

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        position = len(self.database.history) if after is None else self.position(after)
        while True:
            async with self.database.news:
                while len(self.database.history) <= position:
                    await self.database.news.wait()
            found = self.database.history[position : position + PAGE]
            position += len(found)
            yield self.filter.batch(SourceBatch(found, self.cursor(position)))

    async def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        position, _, done = (after or await self.now()).partition("+")
        tables = self.database.as_of(self.position(position))
        rows = [(table, id) for table in sorted(tables) for id in sorted(tables[table])]
        for place in range(int(done or 0), len(rows), PAGE):
            page = rows[place : place + PAGE]
            reads = [
                Change(
                    id=f"{position}:{table}:{id}",
                    op=Op.READ,
                    schema="",
                    table=table,
                    source=Origin("memory", self.database.name, "0"),
                    at=datetime.now(UTC),
                    key={"id": id},
                    after=tables[table][id],
                )
                for table, id in page
            ]
            yield self.filter.batch(SourceBatch(reads, f"{position}+{place + len(page)}"))
        yield SourceBatch((), position)

    async def status(self) -> Status:
        return Status(self.kind, self.name, self.capabilities, position=await self.now(), in_forge=self.filter.parts)

    def cursor(self, position: int) -> str:
        return f"memory1_{self.database.name}_{position}"

    def position(self, cursor: str) -> int:
        match = re.fullmatch(r"memory1_([0-9a-f]{8})_([0-9]{1,15})", cursor, re.ASCII)
        if match is None:
            raise CursorInvalid(f"{cursor[:40]!r} is not a cursor of this source", fix="use one that it gave")
        if match[1] != self.database.name:
            raise CursorForeign("the cursor is of another database", fix=_AGAIN)
        if int(match[2]) < self.database.first:
            raise CursorExpired("what follows the cursor is forgotten", fix=_AGAIN)
        return int(match[2])


class MemoryAdapter(Adapter):
    """A database in memory, and its source."""

    name: ClassVar[str] = "memory"
    patience: ClassVar[float] = 1.0
    memory: ClassVar[int] = 4 * 1024 * 1024
    samples: ClassVar[Sequence[Sample]] = (
        Sample("text", "zażółć", "zażółć"),
        Sample("decimal", Decimal("12.30"), Decimal("12.30")),
        Sample("bytes", b"\x00\xff", b"\x00\xff"),
        Sample("boolean", True, True),
    )

    def __init__(self, kind: type[MemorySource] = MemorySource) -> None:
        self.database = Database()
        self._kind = kind

    def source(self, filter: Filter | None = None, *, proxied: bool = False) -> Source:
        if proxied:
            raise Unsupported("nothing lies between a process and its memory")
        return self._kind(self.database, filter)

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[Writer]:
        yield MemoryWriter(self.database)

    async def purge(self) -> None:
        self.database.first = len(self.database.history)

    async def foreign_cursor(self) -> str:
        return await MemorySource(Database()).now()


@asynccontextmanager
async def opened(kind: type[MemorySource] = MemorySource) -> AsyncIterator[Adapter]:
    """A fresh database, read by a source of this kind."""
    yield MemoryAdapter(kind)


@contextmanager
def serving() -> Iterator[Opening]:
    """What makes databases; there is no server."""
    yield opened
