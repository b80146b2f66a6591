"""Whatever ends, the stream goes on where it was: nothing lost, nothing twice, the same ids."""

import asyncio
import random
import sys
from collections.abc import Iterator
from contextlib import aclosing
from datetime import datetime

import pytest

import forge
from forge.capture.wal import WalSource
from forge.capture.wal.position import WalCursor
from forge.embedded import PostgresServer, StopMode
from forge.postgres.connection import Connection, connect
from forge.testing import FaultProxy, fresh_database, temporary_postgres
from tests.capture.wal.reading import END, changes, mark, to_end, until

pytestmark = [pytest.mark.contract("W4"), pytest.mark.contract("W12")]


def history(connection: Connection, seed: int, steps: int = 60) -> None:
    """Random transactions of one to a few writes."""
    dice = random.Random(seed)
    connection.execute("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY, v int, note text)")
    for _ in range(steps):
        with connection.transaction():
            for _ in range(dice.choice((1, 1, 1, 3, 40))):
                number, value = dice.randrange(50), dice.randrange(1000)
                connection.execute(
                    dice.choice(
                        (
                            f"INSERT INTO t VALUES ({number}, {value}, 'x') ON CONFLICT (id) DO UPDATE SET v = {value}",
                            f"UPDATE t SET v = {value} WHERE id < {number} AND v % 3 = 0",
                            f"UPDATE t SET id = id + 1000 WHERE id = {number}"
                            f" AND NOT EXISTS (SELECT FROM t WHERE id = {number} + 1000)",
                            f"DELETE FROM t WHERE id = {number}",
                        )
                    ).encode()
                )


async def test_every_cursor_of_every_batch_goes_on_exactly_there(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.capture.wal.session.MOST", 7)
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int, note text)")
    source = WalSource(database)
    cursor = await source.now()
    history(connection, seed=5)
    mark(connection)
    batches = await to_end(source, cursor)
    ids = [change.id for change in changes(batches)]
    assert len(set(ids)) == len(ids) > 100
    assert any(WalCursor.parse(batch.cursor).inside is not None for batch in batches)
    chosen = random.Random(5).sample(batches[:-1], 8)
    done = 0
    for batch in batches[:-1]:
        done += len(batch.changes)
        if batch in chosen:
            again = changes(await to_end(WalSource(database), batch.cursor))
            assert [change.id for change in again] == ids[done:]


async def test_what_is_not_acknowledged_comes_again_and_what_is_does_not(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = WalSource(database)
    cursor = await source.now()
    connection.execute("INSERT INTO t VALUES (1)")
    mark(connection)
    first = await to_end(source, cursor)
    slot = WalCursor.parse(cursor).slot
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    before = connection.execute(query, (slot,)).fetchone()
    mark(connection)
    second = await to_end(source, first[-1].cursor, ack=True)
    lsn = WalCursor.parse(second[-1].cursor).lsn
    row = await until(lambda: connection.execute(query, (slot,)).fetchone(), lambda found: found != before)
    assert row is not None
    assert forge.cursor.wal_position(row[0]) == lsn
    with pytest.raises(forge.CursorExpired, match="acknowledged"):
        await to_end(WalSource(database), cursor)
    # without a stream, too
    mark(connection)
    third = await to_end(WalSource(database), second[-1].cursor)
    await WalSource(database).ack(third[-1].cursor)
    row = connection.execute(query, (slot,)).fetchone()
    assert row is not None
    assert forge.cursor.wal_position(row[0]) == WalCursor.parse(third[-1].cursor).lsn


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", server.port) as proxy:
        yield proxy


async def test_cut_connections(database: str, connection: Connection, proxy: FaultProxy) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = WalSource(proxy.url(database))
    cursor = await source.now()
    seen: list[int] = []
    async with asyncio.timeout(20), aclosing(source.stream(cursor)) as batches:
        connection.execute("INSERT INTO t VALUES (0)")
        async for batch in batches:
            for change in batch.changes:
                seen.append(int(change.row_id))
                if len(seen) < 5:
                    await asyncio.to_thread(proxy.cut)
                    connection.execute("INSERT INTO t VALUES (%s)", (len(seen),))
            if len(seen) == 5:
                break
    assert seen == [0, 1, 2, 3, 4]


async def test_a_half_open_connection_is_given_up(
    database: str, connection: Connection, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.capture.wal.connection.SILENCE", 0.3)
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = WalSource(proxy.url(database))
    cursor = await source.now()
    async with asyncio.timeout(20), aclosing(source.stream(cursor)) as batches:
        connection.execute("INSERT INTO t VALUES (1)")
        first = await anext(batches)
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.to_thread(proxy.stall)
        connection.execute("INSERT INTO t VALUES (2)")
        opened = proxy.connections
        # it dials again, while the old line is silent
        await until(lambda: proxy.connections, lambda count: count > opened)
        await asyncio.to_thread(proxy.cut)
        await asyncio.to_thread(proxy.resume)
        second = await waiting
    assert [change.row_id for batch in (first, second) for change in batch.changes] == ["1", "2"]


async def test_a_slow_consumer_keeps_its_connection(database: str, connection: Connection) -> None:
    """The server hears from it while it handles a batch, however long that takes."""
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    source = WalSource(database, interval=0.1)
    cursor = await source.now()
    connection.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) g")
    mark(connection)
    query = (
        "SELECT active_pid, reply_time FROM pg_replication_slots JOIN pg_stat_replication ON pid = active_pid"
        " WHERE slot_name = %s"
    )
    slot = WalCursor.parse(cursor).slot

    def session() -> tuple[int, datetime | None]:
        """Its process on the server, and when that last heard from the consumer."""
        row = connection.execute(query, (slot,)).fetchone()
        assert row is not None
        return row[0], row[1]

    count = 0
    pids: set[int] = set()
    async with asyncio.timeout(60), aclosing(source.stream(cursor)) as batches:
        async for batch in batches:
            count += len(batch.changes)
            if not pids:
                for _ in range(3):
                    heard = session()[1]
                    await until(session, lambda found, heard=heard: found[1] != heard)  # type: ignore[misc]
            pids.add(session()[0])
            if any(change.table == END for change in batch.changes):
                break
    assert count == 20_001
    assert len(pids) == 1, "the server ended the connection of a slow consumer"


async def test_an_idle_database_lets_the_slot_move_on(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = WalSource(database, heartbeat=0.1)
    cursor = await source.now()
    start = WalCursor.parse(cursor).lsn
    other = f"{database.rpartition('/')[0]}/postgres"
    async with asyncio.timeout(10), aclosing(source.stream(cursor)) as batches:
        with connect(other) as busy:
            busy.execute("SELECT pg_logical_emit_message(true, 'elsewhere', repeat('x', 100000))")
        async for batch in batches:
            assert not batch.changes
            await source.ack(batch.cursor)
            if WalCursor.parse(batch.cursor).lsn > start + 100_000:
                break
    status = await source.status()
    assert status.lag_bytes is not None
    assert status.lag_bytes < 100_000


async def test_restart_and_crash_of_the_server() -> None:
    with temporary_postgres() as server, fresh_database(server) as url:
        with connect(url) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        source = WalSource(url)
        cursor = await source.now()
        seen: list[str] = []
        async with asyncio.timeout(40), aclosing(source.stream(cursor)) as batches:
            modes: tuple[StopMode | None, ...] = (None, "fast", "immediate")
            for number, mode in enumerate(modes, 1):
                if mode is not None:
                    await asyncio.to_thread(server.stop, mode)
                    await asyncio.to_thread(server.start)
                with connect(url) as connection:
                    connection.execute("INSERT INTO t VALUES (%s)", (number,))
                while len(seen) < number:
                    seen += [change.row_id for change in (await anext(batches)).changes]
        assert seen == ["1", "2", "3"]


CONSUMER = """
import asyncio, sys
from forge.capture.wal import WalSource
async def main(url, after):
    source = WalSource(url)
    async for batch in source.stream(after):
        for change in batch.changes:
            print(change.id, flush=False)
        print("cursor", batch.cursor, flush=True)
        await source.ack(batch.cursor)
asyncio.run(main(*sys.argv[1:]))
"""


async def killed_consumer(url: str, cursor: str) -> tuple[list[str], str]:
    """Run a consumer in a process of its own, and kill it after it saved a cursor: what it handled by then."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONSUMER, url, cursor, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    handled: list[str] = []
    async for line in process.stdout:
        word, _, rest = line.decode().strip().partition(" ")
        if rest:
            cursor = rest
            break
        handled.append(word)
    process.kill()
    await process.communicate()
    return handled, cursor


async def test_kill_of_the_consumer(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int, note text)")
    cursor = await WalSource(database).now()
    witness = WalSource(database, slot=f"witness_{database[-8:]}")
    beginning = await witness.now()
    handled: list[str] = []
    async with asyncio.timeout(60):
        for seed in (9, 10):
            history(connection, seed, steps=20)
            some, cursor = await killed_consumer(database, cursor)
            handled += some
    history(connection, 11, steps=20)
    mark(connection)
    rest = [change.id for change in changes(await to_end(WalSource(database), cursor))]
    assert handled + rest == [change.id for change in changes(await to_end(witness, beginning))]
    assert handled
    assert rest


CURSORS = (
    ("nonsense", forge.CursorInvalid),
    ("wal1_1-1-1-s_0/1~AAAA", forge.CursorInvalid),
    ("{cursor}+AAAA", forge.CursorInvalid),
    ("wal1_77-1-{database}-{slot}_0/FFFF", forge.CursorForeign),
    ("wal1_{system}-1-1-{slot}_0/FFFF", forge.CursorForeign),
    ("wal1_{system}-1-{database}-another_0/FFFF", forge.CursorForeign),
    ("wal1_{system}-2-{database}-{slot}_0/FFFF", forge.CursorForeign),
    ("wal1_{system}-1-{database}-{slot}_FF/FFFF", forge.CursorForeign),
    ("wal1_{system}-1-{database}-{slot}_0/FFFF", forge.CursorExpired),
)


async def test_cursors_that_cannot_be_used(database: str) -> None:
    source = WalSource(database)
    cursor = await source.now()
    place = WalCursor.parse(cursor)
    for text, error in CURSORS:
        given = text.format(
            cursor=cursor.partition("~")[0], system=place.system, database=place.database, slot=place.slot
        )
        with pytest.raises(error) as raised:
            await to_end(source, given)
        assert raised.value.fix
        assert "\n" not in str(raised.value)


def test_nothing_connects_before_it_must() -> None:
    source = WalSource("postgresql://nobody:secret@127.0.0.1:1/nowhere?slot=mine")
    assert source.kind == "wal"
    assert "secret" not in source.name
