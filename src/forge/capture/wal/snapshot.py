"""Read the existing rows by COPY in the order of their key, over several connections that share one snapshot.

In: the tables of a publication and what is left to read of them. Out: pages of rows, and what is left after each. A
table with many pages is read in parts. A table without a key that can be ordered (`forge.capture.wal.regions`) is read
in one go, so a snapshot that is interrupted in it starts that table again.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec
from psycopg import sql as q

from forge.capture.wal.catalog import Published
from forge.capture.wal.position import Rest, Unit
from forge.capture.wal.regions import ordered
from forge.capture.wal.relations import Row, WalRelation
from forge.capture.wal.slot import open_control, sql
from forge.cursor import wal_position
from forge.postgres.connection import AsyncConnection

PAGE: Final = 1_000
PAGE_BYTES: Final = 1024 * 1024
LARGE: Final = 4_096
"""Number of 8 kB pages from which on a table is read in parts."""
_ESCAPES: Final = {98: 8, 102: 12, 110: 10, 114: 13, 116: 9, 118: 11}


class SnapshotPage(msgspec.Struct):
    """Rows of one part of a table; `last` is the key of the last of them, None if keys have no order."""

    relation: WalRelation
    unit: int
    rows: list[Row]
    last: tuple[str, ...] | None
    ended: bool


class Taken(msgspec.Struct, frozen=True):
    """A snapshot that is held open: what it sees, its name, when it was taken, and an LSN behind all that it shows."""

    seen: str
    name: str
    at: int
    until: int


async def take(connection: AsyncConnection) -> Taken:
    """Begin a transaction that holds a snapshot, on disk by the time this returns."""
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    await connection.execute("SET LOCAL row_security = off")
    await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    row = await (await connection.execute(sql("head").encode())).fetchone()
    assert row is not None
    return Taken(row[0], row[1], row[2], wal_position(row[3]))


async def flushed(connection: AsyncConnection, lsn: str) -> None:
    """Return when the WAL is on disk up to here; use a connection other than the one that holds the snapshot."""
    asked = {"lsn": lsn}
    for patience in (0.0, 0.002):
        await asyncio.sleep(patience)
        if await (await connection.execute(sql("flushed").encode(), asked)).fetchone() == (True,):
            return
    await connection.execute(sql("flush").encode())


class SnapshotRows:
    """Reads the rest of the tables, in parallel. `rest` is always what has not been delivered."""

    def __init__(self, url: str, slot: str, publication: str, *, workers: int, pushed_rows: bool) -> None:
        self._url = url
        self._slot = slot
        self._publication = publication
        self._workers = workers
        self._pushed_rows = pushed_rows
        self._units: dict[int, Unit] = {}
        self._count = 0
        self._done = 0

    @property
    def rest(self) -> Rest:
        return Rest(self._done, tuple(self._units.values()))

    async def pages(self, snapshot: str, tables: Mapping[int, Published], rest: Rest) -> AsyncGenerator[SnapshotPage]:
        """Yield everything that is left, page by page; parts come interleaved."""
        self._done = rest.done
        waiting = [self._add(unit) for unit in rest.units if unit.table in tables]
        later = [oid for oid in tables if oid > rest.done]
        workers = max(1, min(self._workers, len(waiting) + sum(_pieces(tables[oid]) for oid in later)))
        pages: asyncio.Queue[SnapshotPage | Exception | None] = asyncio.Queue(self._workers * 2)

        async def work(connection: AsyncConnection) -> None:
            try:
                while True:
                    if waiting:
                        number = waiting.pop(0)
                    elif later:
                        oid = later.pop(0)
                        number, self._done = self._add(Unit(oid)), oid
                        first, *others = await self._parts(connection, tables[oid])
                        self._units[number] = Unit(oid, *first)
                        waiting[:0] = [self._add(Unit(oid, *bounds)) for bounds in others]
                    else:
                        break
                    unit = self._units[number]
                    await self._read(connection, number, unit, tables[unit.table], pages)
                await pages.put(None)
            except Exception as error:
                await pages.put(error)

        async with AsyncExitStack() as stack:
            tasks = []
            for _ in range(workers):
                connection = await open_control(self._url, self._slot)
                stack.push_async_callback(connection.close)
                await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                await connection.execute(q.SQL("SET TRANSACTION SNAPSHOT {}").format(q.Literal(snapshot)))
                await connection.execute("SET LOCAL row_security = off")
                tasks.append(asyncio.create_task(work(connection)))
            try:
                ended = 0
                while ended < workers:
                    page = await pages.get()
                    if page is None:
                        ended += 1
                    elif isinstance(page, Exception):
                        raise page
                    else:
                        if page.ended:
                            del self._units[page.unit]
                        elif page.last is not None:
                            self._units[page.unit] = msgspec.structs.replace(self._units[page.unit], last=page.last)
                        yield page
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, unit: Unit) -> int:
        self._count += 1
        self._units[self._count] = unit
        return self._count

    async def _parts(self, connection: AsyncConnection, table: Published) -> list[tuple[str | None, str | None]]:
        """Return the bounds of the parts in which a table is read."""
        relation = table.relation
        if self._workers < 2 or _pieces(table) < 2:
            return [(None, None)]
        first = order_by(relation, relation.key_names[0])
        fractions = [n / (2 * self._workers) for n in range(1, 2 * self._workers)]
        asked = q.SQL(
            "SELECT percentile_disc({}::float8[]) WITHIN GROUP (ORDER BY {})::text[] FROM {} TABLESAMPLE SYSTEM (1)"
        ).format(q.Literal(fractions), first, q.Identifier(relation.schema, relation.table))
        row = await (await connection.execute(asked)).fetchone()
        bounds = list(dict.fromkeys(row[0])) if row is not None and row[0] else []
        return list(zip([None, *bounds], [*bounds, None], strict=True))

    async def _read(
        self,
        connection: AsyncConnection,
        number: int,
        unit: Unit,
        table: Published,
        pages: "asyncio.Queue[SnapshotPage | Exception | None]",
    ) -> None:
        relation = table.relation
        statement = selection(table, unit, await self._condition(connection, relation))
        keyed = ordered(relation)
        where = [relation.sent.index(name) for name in relation.key_names] if keyed else []
        rows: list[Row] = []
        size, fields = 0, list[bytes | None]()

        def page(ended: bool) -> SnapshotPage:
            last = tuple((fields[n] or b"").decode() for n in where) if keyed and fields else unit.last
            return SnapshotPage(relation, number, rows, last, ended)

        cursor = connection.cursor()
        async with cursor.copy(q.SQL("COPY ({}) TO STDOUT").format(statement)) as copy:
            async for line in copy:
                fields = split(bytes(line))
                rows.append(relation.from_texts(fields))
                size += len(line)
                if len(rows) >= PAGE or size > PAGE_BYTES:
                    await pages.put(page(ended=False))
                    rows, size = [], 0
        await pages.put(page(ended=True))

    async def _condition(self, connection: AsyncConnection, relation: WalRelation) -> str | None:
        if not self._pushed_rows:
            return None
        asked = {"publication": self._publication, "schema": relation.schema, "table": relation.table}
        row = await (await connection.execute(sql("row_filter").encode(), asked)).fetchone()
        return None if row is None else row[0]


def _pieces(table: Published) -> int:
    return 4 if table.pages >= LARGE and ordered(table.relation) else 1


def split(line: bytes) -> list[bytes | None]:
    r"""Split a row in COPY's text form into fields.

    >>> split(b"1\t\\N\ta\\tb\\\\x\n")
    [b'1', None, b'a\tb\\x']
    """
    return [
        None if field == b"\\N" else unescaped(field) if b"\\" in field else field
        for field in line.removesuffix(b"\n").split(b"\t")
    ]


def unescaped(field: bytes) -> bytes:
    head, *rest = field.split(b"\\")
    found = bytearray(head)
    parts = iter(rest)
    for part in parts:
        if part:
            found.append(_ESCAPES.get(part[0], part[0]))
            found += part[1:]
        else:  # an escaped backslash: what follows it is plain
            found += b"\\" + next(parts, b"")
    return bytes(found)


def order_by(relation: WalRelation, name: str) -> q.Composable:
    """Return the expression that orders rows by a column as `regions` does."""
    column = q.Identifier(name)
    type_name = next(c.type for c in relation.columns if c.name == name)
    if relation.forms[name] == "int" or type_name == "uuid":
        return column
    if type_name == "text" or type_name.startswith("character varying"):
        return q.SQL('{} COLLATE "C"').format(column)
    return q.SQL("format('%s', {}) COLLATE \"C\"").format(column)


def _constant(relation: WalRelation, name: str, word: str) -> q.Composable:
    type_name = next(c.type for c in relation.columns if c.name == name)
    if relation.forms[name] == "int":
        return q.SQL("{}::bigint").format(q.Literal(word))
    return (
        q.SQL("{}::uuid").format(q.Literal(word)) if type_name == "uuid" else q.SQL("{}::text").format(q.Literal(word))
    )


def selection(table: Published, unit: Unit, condition: str | None = None, limit: int | None = None) -> q.Composable:
    """Return the query for the rows of a part of a table, in order."""
    relation = table.relation
    keys = relation.key_names if ordered(relation) else ()
    tests: list[Any] = []
    if keys and unit.low is not None:
        low = _constant(relation, keys[0], unit.low)
        tests.append(q.SQL("{} >= {}").format(order_by(relation, keys[0]), low))
    if keys and unit.high is not None:
        high = _constant(relation, keys[0], unit.high)
        tests.append(q.SQL("{} < {}").format(order_by(relation, keys[0]), high))
    if keys and unit.last is not None:
        constants = [_constant(relation, name, word) for name, word in zip(keys, unit.last, strict=True)]
        orders = [order_by(relation, name) for name in keys]
        tests.append(q.SQL("({}) > ({})").format(_join(orders), _join(constants)))
    if condition is not None:
        tests.append(q.SQL("({})").format(q.SQL(condition)))
    found = q.SQL("SELECT {} FROM {}{}").format(
        _join([q.Identifier(name) for name in relation.sent]),
        q.SQL("ONLY " if table.only else ""),
        q.Identifier(relation.schema, relation.table),
    )
    if tests:
        found += q.SQL(" WHERE ") + q.SQL(" AND ").join(tests)
    if keys:
        found += q.SQL(" ORDER BY ") + _join([order_by(relation, name) for name in keys])
    return found if limit is None else found + q.SQL(" LIMIT {}").format(q.Literal(limit))


def _join(parts: Sequence[q.Composable]) -> q.Composable:
    return q.SQL(", ").join(parts)
