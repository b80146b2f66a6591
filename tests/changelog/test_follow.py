"""Following the log: woken after every commit, through lost connections, dead and hung nodes, restarts and crashes.

Where a test is about being woken, the slow poll is so slow that it cannot help.
"""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import cast

import pytest

from forge.change import Op
from forge.changelog import follow as following
from forge.changelog import reader
from forge.changelog.follow import Ears, Pace, Wakeup, follow
from forge.changelog.install import install
from forge.changelog.reader import Batch, Reader
from forge.cursor import Cursor, LogIdentity
from forge.embedded import PostgresServer
from forge.errors import CursorExpired, CursorForeign, NotInstalled, ServerError
from forge.postgres.connection import AsyncConnection, Connection, connect
from forge.postgres.held_session import AsyncHeldSession
from forge.postgres.locks import PACE
from forge.testing import FaultProxy, temporary_postgres
from tests.changelog.following import (
    Follower,
    Locks,
    add,
    eventually,
    following_process,
    hearing,
    now,
    orders,
)

SOON = 10.0
"""Seconds within which a woken follower has read, on a busy machine."""


@pytest.fixture
def awake_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow poll does not come to the rescue."""
    monkeypatch.setattr(following, "SLOW_POLL", 60.0)


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server that tests may stop and crash, with the tracked table in it; what is committed is flushed late."""
    with temporary_postgres(settings={"wal_writer_delay": "10s"}) as server:
        with connect(server.url()) as connection:
            install(connection)
            orders(connection)
        yield server


@pytest.fixture
def living(mortal: PostgresServer) -> Iterator[PostgresServer]:
    """The mortal server, alive, with the table empty and all of it on disk."""
    mortal.start()
    with connect(mortal.url()) as connection:
        connection.execute("DELETE FROM orders")
    yield mortal
    mortal.start()


@asynccontextmanager
async def no_asyncio_complaints() -> AsyncIterator[None]:
    """No task fails unseen within the block."""
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    yield
    for _ in range(3):
        await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert complaints == []


def write(url: str, first: int, count: int, pause: float = 0.0) -> None:
    """Insert that many orders, each in a transaction of its own."""
    with connect(url) as connection:
        for id in range(first, first + count):
            add(connection, id)
            if pause:
                time.sleep(pause)


class Load:
    """Writers that write one row after another until they are told to end."""

    def __init__(self, url: str, writers: int = 2) -> None:
        self.pids: set[int] = set()
        self.written = 0
        self._ended = False
        self._threads = [threading.Thread(target=self._write, args=(url, n)) for n in range(writers)]

    def _write(self, url: str, writer: int) -> None:
        with connect(url) as connection:
            self.pids.add(connection.info.backend_pid)
            id = 1_000_000 * (writer + 1)
            while not self._ended:
                id += 1
                add(connection, id)
                self.written += 1

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def end(self) -> None:
        self._ended = True
        for thread in self._threads:
            thread.join()

    def __exit__(self, *_: object) -> None:
        self.end()


async def led(locks: Locks) -> int:
    """The pacemaker's session, once there is one."""
    await eventually(lambda: locks.leader is not None)
    assert locks.leader is not None
    return locks.leader


# -- every change, once, after commit -------------------------------------------------------------------


@pytest.mark.contract("T1")
@pytest.mark.parametrize("wakeup", ["auto", "notify"])
async def test_every_node_gets_each_change_once_after_commit(
    database: str, connection: Connection, awake_only: None, wakeup: Wakeup
) -> None:
    orders(connection)
    cursor = await now(database)
    async with Follower(database, cursor, wakeup=wakeup) as one, Follower(database, cursor, wakeup=wakeup) as two:
        add(connection, 1)
        connection.execute("UPDATE orders SET note = 'changed' WHERE id = 1")
        for node in (one, two):
            await node.got(2, SOON)
        with connect(database) as other:
            other.execute("BEGIN")
            add(other, 2)
            other.execute("ROLLBACK")
            other.execute("BEGIN")
            other.execute("DELETE FROM orders WHERE id = 1")
            assert [len(one.changes), len(two.changes)] == [2, 2]
            other.execute("COMMIT")
        for node in (one, two):
            await node.got(3, SOON)
            assert [(change.op, change.row_id) for change in node.changes] == [
                (Op.INSERT, "1"),
                (Op.UPDATE, "1"),
                (Op.DELETE, "1"),
            ]
        assert [change.id for change in one.changes] == [change.id for change in two.changes]


@pytest.mark.parametrize("wakeup", ["auto", "notify", "poll"])
async def test_every_mode_delivers_everything_under_concurrent_writers(
    database: str, connection: Connection, awake_only: None, wakeup: Wakeup
) -> None:
    orders(connection)
    cursor = await now(database)
    async with Follower(database, cursor, wakeup=wakeup) as one, Follower(database, cursor, wakeup=wakeup) as two:
        writers = [threading.Thread(target=write, args=(database, 1000 * n, 150)) for n in range(3)]
        for writer in writers:
            writer.start()
        expected = [1000 * n + id for n in range(3) for id in range(150)]
        for node in (one, two):
            assert sorted(await node.got(450)) == expected
        for writer in writers:
            writer.join()
        add(connection, 7777)
        for node in (one, two):
            assert (await node.got(451, SOON))[-1] == 7777


async def test_only_the_tables_asked_for_are_followed(database: str, connection: Connection) -> None:
    orders(connection)
    connection.execute("CREATE TABLE other (id integer PRIMARY KEY)")
    connection.execute("SELECT forge_enable_reactivity('other')")
    cursor = await now(database)
    async with Follower(database, cursor, tables=["public.other"]) as node:
        add(connection, 1)
        connection.execute("INSERT INTO other VALUES (2)")
        add(connection, 3)
        connection.execute("INSERT INTO other VALUES (4)")
        assert await node.got(2) == [2, 4]


# -- waking ---------------------------------------------------------------------------------------------


async def test_under_load_the_pacemaker_speaks_and_writers_are_silent(
    database: str, connection: Connection, awake_only: None
) -> None:
    orders(connection)
    cursor = await now(database)
    async with hearing(database) as heard, Follower(database, cursor) as one, Follower(database, cursor) as two:
        with Locks(database) as locks, Load(database) as load:
            await eventually(lambda: locks.awake is not None)
            assert locks.awake == locks.leader
            before = (len(heard), load.written)
            await eventually(lambda: load.written > before[1] + 1000)
            spoken = heard[before[0] :]
            by_writers = [pid for pid, _ in spoken if pid in load.pids]
            by_pacemaker = [pid for pid, _ in spoken if pid not in load.pids]
            assert by_pacemaker
            assert len(by_writers) < 1000 / 4, "most commits under load send nothing"
            load.end()
            for node in (one, two):
                await node.got(load.written)
            await eventually(lambda: locks.awake is None)
            heard.clear()
            add(connection, -1)
            for node in (one, two):
                assert (await node.got(load.written + 1, SOON))[-1] == -1
            await eventually(lambda: connection.info.backend_pid in [pid for pid, _ in heard])


async def test_a_change_of_a_table_that_the_pacemaker_does_not_follow_wakes_the_others(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders(connection)
    connection.execute("CREATE TABLE other (id integer PRIMARY KEY)")
    connection.execute("SELECT forge_enable_reactivity('other')")
    cursor = await now(database)
    async with Follower(database, cursor, wakeup="poll", tables=["other"]) as pacemaker:
        with Locks(database) as locks:
            await eventually(lambda: locks.awake is not None)
            monkeypatch.setattr(following, "SLOW_POLL", 60.0)
            add(connection, 1)
            async with Follower(database, cursor, wakeup="notify") as node:
                assert await node.got(1) == [1]
                add(connection, 2)
                assert await node.got(2, SOON) == [1, 2]
        connection.execute("INSERT INTO other VALUES (3)")
        assert await pacemaker.got(1, SOON) == [3]


async def test_what_the_pacemaker_finds_when_it_falls_asleep_wakes_the_others(
    database: str, connection: Connection, awake_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that stayed silent may be found only by the read after K was given up."""
    orders(connection)
    cursor = await now(database)
    released = Pace.release
    silent: list[int] = []

    async def write_first(pace: Pace) -> None:
        if pace.asked and not silent:
            silent.append(-1)
            add(connection, -1)
        await released(pace)

    async with Follower(database, cursor) as one, Follower(database, cursor, wakeup="notify") as two:
        monkeypatch.setattr(Pace, "release", write_first)
        with Load(database) as load, Locks(database) as locks:
            await eventually(lambda: locks.awake is not None)
            load.end()
            await eventually(lambda: bool(silent))
            for node in (one, two):
                assert -1 in await node.got(load.written + 1, SOON)


async def test_a_slow_consumer_lets_writers_speak_and_others_know(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders(connection)
    cursor = await now(database)
    back = asyncio.Event()

    async def slowly(batch: Batch) -> None:
        await back.wait()

    async with Follower(database, cursor, wakeup="poll", each=slowly) as slow:
        with Locks(database) as locks:
            await eventually(lambda: locks.awake is not None)
            monkeypatch.setattr(following, "SLOW_POLL", 60.0)
            back.set()
            add(connection, 1)
            await slow.got(1)
            back.clear()
            async with Follower(database, cursor, wakeup="notify") as other:
                assert await other.got(1, SOON) == [1]
                add(connection, 2)
                await slow.got(2)
                assert await other.got(2, SOON) == [1, 2]
                await eventually(lambda: locks.awake is None, SOON)
                add(connection, 3)
                assert await other.got(3, SOON) == [1, 2, 3]
                assert slow.keys == [1, 2]
                back.set()
                assert await slow.got(3) == [1, 2, 3]


async def test_a_pacemaker_that_is_killed_is_replaced(database: str, connection: Connection) -> None:
    orders(connection)
    cursor = await now(database)
    async with following_process(database, cursor, "poll") as doomed:
        add(connection, 1)
        await eventually(lambda: doomed.keys == [1])
        with Locks(database) as locks:
            await eventually(lambda: locks.awake is not None)
            first = await led(locks)
            async with Follower(database, cursor) as node:
                with Load(database) as load:
                    await eventually(lambda: load.written > 100)
                    doomed.signal(signal.SIGKILL)
                    await doomed.ended()
                    await eventually(lambda: locks.leader not in (None, first))
                await node.got(load.written + 1)
                assert len(node.keys) == len(set(node.keys)) == load.written + 1


async def test_a_killed_pacemaker_that_waited_for_its_lock_does_not_silence_writers(
    database: str, connection: Connection, awake_only: None
) -> None:
    orders(connection)
    cursor = await now(database)
    async with following_process(database, cursor, "poll") as doomed:
        with connect(database) as long, Locks(database) as locks:
            long.execute("BEGIN")
            add(long, 1)  # it will speak at its end, and shares the lock until then
            add(connection, 2)
            await eventually(lambda: bool(locks.waiting))
            doomed.signal(signal.SIGKILL)
            await doomed.ended()
            await eventually(lambda: not locks.waiting, 15)
            async with Follower(database, cursor, wakeup="notify") as node:
                await node.got(1)
                add(connection, 3)
                assert await node.got(2, SOON) == [2, 3]
            long.execute("ROLLBACK")


async def test_a_pacemaker_that_hangs_loses_its_lock(database: str, connection: Connection) -> None:
    orders(connection)
    cursor = await now(database)
    async with following_process(database, cursor, "poll") as hung:
        add(connection, 1)
        await eventually(lambda: hung.keys == [1])
        with Locks(database) as locks:
            await eventually(lambda: locks.awake is not None)
            async with Follower(database, cursor) as node:
                assert await node.got(1) == [1]
                hung.signal(signal.SIGSTOP)
                try:
                    add(connection, 2)
                    assert locks.awake is not None
                    assert await node.got(2, 5) == [1, 2]  # by the slow poll
                    await eventually(lambda: locks.awake is None, 8)
                    async with hearing(database) as heard:
                        add(connection, 3)
                        await eventually(lambda: connection.info.backend_pid in [pid for pid, _ in heard], SOON)
                    assert await node.got(3) == [1, 2, 3]
                finally:
                    hung.signal(signal.SIGCONT)
                await eventually(lambda: hung.keys == [1, 2, 3])


async def test_a_notify_that_never_arrives_costs_one_slow_poll(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CHANNEL", "nobody_speaks_here")
    orders(connection)
    cursor = await now(database)
    async with Follower(database, cursor, wakeup="notify") as node:
        add(connection, 1)
        await node.got(1, SOON)
        add(connection, 2)
        assert await node.got(2, SOON) == [1, 2]


@pytest.mark.parametrize("wakeup", ["auto", "poll"])
async def test_a_prepared_transaction_is_delivered_when_it_commits(
    database: str, connection: Connection, wakeup: Wakeup
) -> None:
    orders(connection)
    cursor = await now(database)
    async with Follower(database, cursor, wakeup=wakeup) as node:
        with connect(database) as two_phase:
            two_phase.execute("BEGIN")
            two_phase.execute("SET LOCAL forge.wakeup = 'poll'")
            add(two_phase, 1)
            two_phase.execute("PREPARE TRANSACTION 'order one'")
        add(connection, 2)
        assert await node.got(1) == [2]
        connection.execute("COMMIT PREPARED 'order one'")
        assert await node.got(2, SOON) == [2, 1]


# -- lost connections -----------------------------------------------------------------------------------


@pytest.mark.contract("R8")
@pytest.mark.parametrize("wakeup", ["auto", "poll"])
async def test_cut_and_refused_connections_lose_and_double_nothing(
    database: str, connection: Connection, proxy: FaultProxy, wakeup: Wakeup
) -> None:
    orders(connection)
    cursor = await now(database)
    async with Follower(proxy.url(database), cursor, wakeup=wakeup) as node:
        writing = threading.Thread(target=write, args=(database, 0, 300, 0.003))
        writing.start()
        for _ in range(3):
            seen = len(node.changes)
            await eventually(lambda seen=seen: len(node.changes) > seen)  # type: ignore[misc]
            await asyncio.to_thread(proxy.cut)
        await asyncio.to_thread(proxy.refuse)
        await asyncio.to_thread(proxy.cut)
        await asyncio.to_thread(writing.join)
        seen = len(node.changes)
        assert seen < 300
        await asyncio.to_thread(proxy.accept)
        assert await node.got(300) == list(range(300))
        add(connection, 300)
        assert await node.got(301) == list(range(301))


@pytest.mark.contract("R8")
async def test_a_connection_cut_inside_a_large_batch_is_resumed_there(
    database: str, connection: Connection, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE", 300)
    orders(connection)
    cursor = await now(database)
    cuts: list[int] = []

    async def cut(batch: Batch) -> None:
        if len(node.batches) in (2, 5, 7):
            cuts.append(len(node.batches))
            await asyncio.to_thread(proxy.cut)

    async with Follower(proxy.url(database), cursor, each=cut) as node:
        connection.execute("INSERT INTO orders SELECT n, '' FROM generate_series(1, 3000) n")
        assert await node.got(3000) == list(range(1, 3001))
    assert cuts == [2, 5, 7]


@pytest.mark.parametrize("where", ["asleep", "candidate", "opening", "in a batch", "awake"])
async def test_a_stalled_follower_goes_on_by_a_new_connection(
    database: str,
    connection: Connection,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    """Wherever it stands when its lines fall silent, it gives them up within a few times ALIVE."""
    monkeypatch.setattr(following, "ALIVE", 0.5)
    monkeypatch.setattr(following, "SLOW_POLL", 0.2)
    monkeypatch.setattr(following, "CANDIDACY", 0.1)
    monkeypatch.setattr(reader, "PAGE", 300)
    caplog.set_level(logging.WARNING, "forge.follow")
    orders(connection)
    cursor = await now(database)
    url = proxy.url(database)
    reading = Reader.over
    stalls: list[float] = []

    def stall() -> None:
        proxy.stall()
        stalls.append(time.monotonic())

    async def stalled_over(connection: object) -> Reader:
        if not stalls:
            await asyncio.to_thread(stall)
        return await reading(connection)  # type: ignore[arg-type]

    async def stall_inside(batch: Batch) -> None:
        if batch.cursor.last is not None and not stalls:
            await asyncio.to_thread(stall)

    with Locks(database) as locks:
        if where == "candidate":
            blocker = connect(database)
            blocker.execute("SELECT pg_advisory_lock(%s)", (PACE,))
        mode: Wakeup = "poll" if where == "awake" else "auto"
        async with Follower(url, cursor, wakeup=mode, each=stall_inside if where == "in a batch" else None) as node:
            if where in ("asleep", "awake"):
                await led(locks)
            if where == "awake":
                await eventually(lambda: locks.awake is not None)
            if where in ("candidate", "opening"):
                add(connection, 0)
                await node.got(1)
            if where == "opening":
                monkeypatch.setattr(Reader, "over", stalled_over)
                await asyncio.to_thread(proxy.cut)
            if where == "in a batch":
                connection.execute("INSERT INTO orders SELECT n, '' FROM generate_series(1, 1000) n")
            if where not in ("opening", "in a batch"):
                await asyncio.to_thread(stall)
            await eventually(lambda: bool(stalls))
            await eventually(lambda: caplog.text.count("the log: connection lost") > (where == "opening"), 8)
            await asyncio.to_thread(proxy.cut)
            await asyncio.to_thread(proxy.resume)
            add(connection, 9999)
            expected = {"in a batch": [*range(1, 1001), 9999], "asleep": [9999], "awake": [9999]}.get(where, [0, 9999])
            assert await node.got(len(expected)) == expected
        if where == "candidate":
            blocker.close()


# -- restarts and crashes -------------------------------------------------------------------------------


@pytest.mark.contract("R8", "T7")
@pytest.mark.parametrize("how", ["restart", "immediate", "crash"])
async def test_a_server_that_goes_and_comes_back_loses_and_doubles_nothing(living: PostgresServer, how: str) -> None:
    url = living.url()
    cursor = await now(url)
    async with Follower(url, cursor) as one, Follower(url, cursor, wakeup="poll") as two:
        await asyncio.to_thread(write, url, 0, 50)
        for node in (one, two):
            await node.got(1)
        if how == "crash":
            await asyncio.to_thread(living.crash)
        else:
            await asyncio.to_thread(living.stop, "immediate" if how == "immediate" else "fast")
        await asyncio.to_thread(living.start)
        await asyncio.to_thread(write, url, 50, 50)
        for node in (one, two):
            assert await node.got(100) == list(range(100))


async def test_durable_following_waits_for_the_disk(living: PostgresServer) -> None:
    url = living.url()
    cursor = await now(url)
    with connect(url) as writer, connect(url) as look:
        writer.execute("SET synchronous_commit = off")
        async with Follower(url, cursor) as node:
            add(writer, 1)
            await node.got(1)
            (batch,) = node.batches
            assert batch.flushed
            on_disk = look.execute("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", (batch.lsn,)).fetchone()
            assert on_disk == (True,)
            await asyncio.to_thread(living.crash)
            await asyncio.to_thread(living.start)
            with connect(url) as again:
                assert again.execute("SELECT id FROM orders").fetchall() == [(1,)]
                add(again, 2)
            assert await node.got(2) == [1, 2]


@pytest.mark.parametrize("how", ["crash of the server", "crash of a backend"])
async def test_hasty_following_returns_to_what_was_on_disk(living: PostgresServer, how: str) -> None:
    """A change that was delivered and then lost with the server; its transaction number is used again."""
    url = living.url()
    cursor = await now(url)
    async with Follower(url, cursor, durable=False) as node:
        with connect(url) as kept:
            add(kept, 1)
        await node.got(1)
        with connect(url) as writer:
            flushed = "SELECT pg_current_wal_flush_lsn() >= %s::text::pg_lsn"
            await eventually(lambda: writer.execute(flushed, (node.batches[-1].lsn,)).fetchone() == (True,))
            writer.execute("SET synchronous_commit = off")
            for attempt in range(20):  # the checkpointer may flush at any time; most attempts are lost
                add(writer, 100 + attempt)
            lost = await node.got(21)
            assert not node.batches[-1].flushed
            if how == "crash of the server":
                await asyncio.to_thread(living.crash)
                await asyncio.to_thread(living.start)
            else:
                os.kill(writer.info.backend_pid, signal.SIGKILL)
        await eventually(lambda: reachable(url))
        with connect(url) as again:
            stored = {id for (id,) in again.execute("SELECT id FROM orders").fetchall()}
            assert set(lost) - stored, "nothing was lost: the test proves nothing"
            for id in range(200, 230):
                add(again, id)
        await eventually(lambda: {*range(200, 230)} <= set(node.keys))
        delivered = [key for key in node.keys if key >= 200]
        assert delivered == list(range(200, 230))


def reachable(url: str) -> bool:
    try:
        with connect(url):
            return True
    except (ServerError, OSError):
        return False


# -- beginnings and ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["aclose", "cancel"])
@pytest.mark.parametrize("wakeup", ["auto", "notify", "poll"])
async def test_following_ends_cleanly(
    database: str, connection: Connection, caplog: pytest.LogCaptureFixture, wakeup: Wakeup, how: str
) -> None:
    orders(connection)
    cursor = await now(database)
    with Locks(database) as locks:
        await eventually(lambda: locks.sessions() == 1)  # the one that asked for the cursor has ended
        async with no_asyncio_complaints():
            stream = follow(database, after=cursor, wakeup=wakeup)
            add(connection, 1)
            assert len((await anext(stream)).changes) == 1
            if how == "aclose":
                if wakeup == "poll":
                    await advance_until_awake(stream, connection, locks)
                await stream.aclose()
            else:
                waiting = asyncio.ensure_future(anext(stream))
                if wakeup == "poll":
                    await eventually(lambda: locks.awake is not None)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await stream.aclose()
            await eventually(lambda: locks.sessions() == 1)
            await asyncio.sleep(2 * following.SLOW_CONSUMER)  # what a consumer's slowness would have begun by now
            assert len(asyncio.all_tasks()) == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancellation_is_heard_although_a_notify_came_first(steps: int) -> None:
    ears = Ears(cast(AsyncHeldSession, None))
    sleeping = asyncio.create_task(ears.heard(10))
    await asyncio.sleep(0.01)
    ears._heard.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    if sleeping.cancel():
        with pytest.raises(asyncio.CancelledError):
            await sleeping
    else:
        assert sleeping.result()


async def advance_until_awake(stream: AsyncIterator[Batch], connection: Connection, locks: Locks) -> None:
    """Take batches until the follower holds K while its consumer has one."""
    for id in range(2, 1000):
        add(connection, id)
        await anext(stream)
        if locks.awake is not None:
            return
    raise AssertionError("it never held K")


async def test_a_consumer_that_breaks_off_closes_everything(database: str, connection: Connection) -> None:
    orders(connection)
    cursor = await now(database)
    connection.execute("INSERT INTO orders SELECT n, '' FROM generate_series(1, 5000) n")
    with Locks(database) as locks:
        await eventually(lambda: locks.sessions() == 1)
        async with no_asyncio_complaints(), aclosing(follow(database, after=cursor)) as stream:
            async for batch in stream:
                assert batch.cursor.last is not None
                break
        await eventually(lambda: locks.sessions() == 1)


async def test_without_a_cursor_it_begins_now(database: str, connection: Connection) -> None:
    orders(connection)
    add(connection, 1)
    with Locks(database) as locks:
        async with Follower(database, None) as node:
            await led(locks)
            add(connection, 2)
            assert await node.got(1) == [2]


@pytest.mark.contract("T7")
async def test_a_node_that_was_down_replays_from_its_cursor(database: str, connection: Connection) -> None:
    orders(connection)
    async with Follower(database, await now(database)) as node:
        add(connection, 1, 2)
        await node.got(2)
    saved = str(node.batches[-1].cursor)
    add(connection, 3)
    connection.execute("UPDATE orders SET note = 'while nobody listened'")
    connection.execute("DELETE FROM orders WHERE id = 1")
    async with Follower(database, Cursor.parse(saved)) as back:
        assert await back.got(5) == [3, 1, 2, 3, 1]
    async with Follower(database, back.batches[-1].cursor) as again:
        add(connection, 4)
        assert await again.got(1) == [4]


@pytest.mark.contract("T11")
async def test_replay_from_the_start_rebuilds_the_table(database: str, connection: Connection) -> None:
    orders(connection)
    connection.execute("INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 2000) n")
    connection.execute("UPDATE orders SET note = 'odd' WHERE id % 2 = 1")
    connection.execute("UPDATE orders SET id = -id WHERE id % 5 = 0")
    connection.execute("DELETE FROM orders WHERE id % 3 = 0")
    connection.execute("INSERT INTO orders VALUES (3, 'again')")
    async with Reader.open(database) as reader:
        start = reader.start()
    rebuilt: dict[int, object] = {}
    async with aclosing(follow(database, after=start, tables=["orders"])) as stream:
        async for batch in stream:
            for change in batch.changes:
                if change.key is None:
                    continue
                if change.before is not None:
                    assert rebuilt.pop(change.key["id"]) == change.before["note"]
                if change.after is not None:
                    rebuilt[change.key["id"]] = change.after["note"]
            if rebuilt.get(3) == "again":
                break
    assert rebuilt == dict(connection.execute("SELECT id, note FROM orders").fetchall())


@pytest.mark.contract("R8")
async def test_an_expired_cursor_asks_for_a_resync(database: str, connection: Connection) -> None:
    orders(connection)
    cursor = await now(database)
    add(connection, 1)
    connection.execute(
        "INSERT INTO forge.trimmed (partition, reason, rows, last_id, last_transaction)"
        " SELECT 'p', 'retention', 1, id, transaction_id FROM forge.forge_event_log WHERE row_id = '1'"
    )
    with pytest.raises(CursorExpired):
        await anext(follow(database, after=cursor))
    async with Follower(database, await now(database)) as node:
        add(connection, 2)
        assert await node.got(1) == [2]


@pytest.mark.contract("R8")
async def test_a_follower_whose_cursor_expires_while_it_is_cut_off_asks_for_a_resync(
    database: str, connection: Connection, proxy: FaultProxy
) -> None:
    orders(connection)
    cursor = await now(database)
    async with Follower(proxy.url(database), cursor) as node:
        add(connection, 1)
        await node.got(1)
        await asyncio.to_thread(proxy.refuse)
        await asyncio.to_thread(proxy.cut)
        add(connection, 2)
        connection.execute(
            "INSERT INTO forge.trimmed (partition, reason, rows, last_id, last_transaction)"
            " SELECT 'p', 'retention', 1, id, transaction_id FROM forge.forge_event_log WHERE row_id = '2'"
        )
        await asyncio.to_thread(proxy.accept)
        with pytest.raises(CursorExpired):
            await asyncio.wait_for(asyncio.shield(node.task), 30)
        node.task = asyncio.create_task(asyncio.sleep(0))


async def test_a_foreign_cursor_is_refused(database: str) -> None:
    cursor = await now(database)
    other = Cursor(LogIdentity(cursor.log.uuid, cursor.log.system_identifier, 7), cursor.snapshot)
    with pytest.raises(CursorForeign):
        await anext(follow(database, after=other))


async def test_the_first_connection_must_succeed(empty_database: str) -> None:
    with pytest.raises(NotInstalled):
        await anext(follow(empty_database))
    with pytest.raises(ServerError):
        await anext(follow("postgresql://postgres@127.0.0.1:1/none"))


async def test_forge_taken_from_the_database_is_said(database: str, connection: Connection) -> None:
    orders(connection)
    source = follow(database)
    first = asyncio.ensure_future(anext(source))
    await eventually(lambda: connection.execute(_LISTENERS).fetchone() == (1,))
    connection.execute("DROP SCHEMA forge CASCADE")
    with pytest.raises(NotInstalled):
        await asyncio.wait_for(first, 60)
    await source.aclose()


_LISTENERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"


@pytest.mark.parametrize("ending", ["closed", "cancelled"])
async def test_a_follower_ends_though_its_connections_fail_meanwhile(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    orders(connection)
    begun = asyncio.Event()
    failures: list[str] = []

    leave = Pace.__aexit__

    async def fail(self: Pace, *details: object) -> None:
        await leave(self, *details)
        failures.append(ending)
        raise OSError("the network went while it was ended")

    monkeypatch.setattr(Pace, "__aexit__", fail)

    async def consume() -> None:
        async with aclosing(follow(database, after=await now(database), wakeup="auto")) as batches:
            async for _ in batches:
                begun.set()
                if ending == "closed":
                    return

    consuming = asyncio.create_task(consume())
    for id in range(200):
        add(connection, id)
        await asyncio.sleep(0.05)
        if begun.is_set():
            break
    if ending == "cancelled":
        consuming.cancel()
    async with asyncio.timeout(SOON):
        await asyncio.wait([consuming])
    assert consuming.cancelled() is (ending == "cancelled")
    assert failures == [ending]
    if ending == "closed":
        consuming.result()


async def test_a_first_connection_that_the_server_ends_is_a_typed_error(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    after, over = await now(database), Reader.over

    async def ended(opened: AsyncConnection) -> Reader:
        connection.execute("SELECT pg_terminate_backend(%s)", (opened.info.backend_pid,))
        return await over(opened)

    monkeypatch.setattr(Reader, "over", ended)
    with pytest.raises(ServerError, match="ended the connection"):
        await anext(follow(database, after=after))
