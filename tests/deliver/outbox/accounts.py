"""Writers that put messages in the order of their keys, whatever happens to the server, and what must have arrived."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import psycopg

import forge
from forge.deliver.message import Message
from forge.errors import ServerError
from forge.postgres.connection import Connection, connect, connect_async
from tests.deliver.traffic import check

TOPIC = "paid"
_LOST = (psycopg.OperationalError, psycopg.InterfaceError, ServerError)


def accounts(connection: Connection, keys: int = 5) -> None:
    """A row for each key; its lock is what orders the writers. `told` is what was put, by who committed."""
    connection.execute("CREATE TABLE account (id int PRIMARY KEY, n int NOT NULL)")
    connection.execute("CREATE TABLE told (key text, n int, id text)")
    connection.execute("INSERT INTO account SELECT g, 0 FROM generate_series(1, %s) g", (keys,))


@asynccontextmanager
async def writing(url: str, *, writers: int = 2, keys: int = 5, pause: float = 0.002) -> AsyncIterator[None]:
    """Writers while the block lasts; they connect again when the server was away."""
    ended = asyncio.Event()

    async def write(number: int) -> None:
        step = number
        while not ended.is_set():
            try:
                async with await connect_async(url) as own:
                    while not ended.is_set():
                        step += 1
                        await _put(own, 1 + step % keys)
                        await asyncio.sleep(pause)
            except _LOST:
                await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        for number in range(writers):
            group.create_task(write(number))
        try:
            yield
        finally:
            ended.set()


async def _put(own: psycopg.AsyncConnection[tuple[object, ...]], key: int) -> None:
    async with own.transaction():
        row = await (await own.execute("UPDATE account SET n = n + 1 WHERE id = %s RETURNING n", (key,))).fetchone()
        assert row is not None
        id = await forge.outbox(own, TOPIC, str(row[0]), key=key)
        await own.execute("INSERT INTO told VALUES (%s, %s, %s)", (key, row[0], id))


def told(url: str) -> list[Message]:
    """What was put and committed, each key's in its order."""
    at = datetime(2026, 11, 16, tzinfo=UTC)
    with connect(url) as connection:
        rows = connection.execute("SELECT id, n, key FROM told ORDER BY key, n").fetchall()
    return [Message(id, TOPIC, str(n).encode(), at, key) for id, n, key in rows]


def put_many(connection: Connection, each: int, keys: int = 5) -> None:
    """So many messages for each key, without writers."""
    for _ in range(each):
        with connection.transaction():
            for key in range(1, keys + 1):
                row = connection.execute("UPDATE account SET n = n + 1 WHERE id = %s RETURNING n", (key,)).fetchone()
                assert row is not None
                id = forge.outbox(connection, TOPIC, str(row[0]), key=key)
                connection.execute("INSERT INTO told VALUES (%s, %s, %s)", (key, row[0], id))


def complete(url: str, got: Sequence[tuple[str, str, bytes]]) -> None:
    """Nothing is lost, what came first of each key came in its order, and copies are the same: by key, id, payload."""
    check(told(url), got, late=True)


def parts(got: Sequence[Message]) -> list[tuple[str, str, bytes]]:
    return [(each.key or "", each.id, each.payload) for each in got]
