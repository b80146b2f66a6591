"""The server is stopped at once, the network is cut or stalls, a worker hangs: nothing is lost, and order is kept."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psutil
import pytest
import redis

from forge.changelog.install import install
from forge.deliver.message import Message
from forge.deliver.outbox import OutboxSettings, Routes
from forge.deliver.outbox.session import OutboxSession
from forge.deliver.queues import RedisStreams
from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from forge.postgres.held_session import LOST
from forge.testing import fresh_database, temporary_postgres
from forge.testing.proxy import FaultProxy
from tests.deliver.outbox import receiver
from tests.deliver.outbox.accounts import TOPIC, accounts, complete, parts, put_many, told, writing
from tests.deliver.outbox.draining import collecting, draining, put, rows, until
from tests.servers.redis import redis_missing, temporary_redis

QUICK = OutboxSettings(poll=0.1, budget=0.3, answer=0.8)


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server of these tests' own, whose commits reach the disk late: it may be crashed."""
    settings = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "0"}
    with temporary_postgres(settings=settings) as server:
        yield server


@pytest.fixture
def url(mortal: PostgresServer) -> Iterator[str]:
    mortal.start()
    with fresh_database(mortal) as url:
        with connect(url) as connection:
            install(connection)
            accounts(connection)
        yield url


@asynccontextmanager
async def reached(url: str, got: list[Message]) -> AsyncIterator[None]:
    """At the end of the block all has arrived, and the outbox is empty."""
    yield
    with connect(url) as connection:
        await until(lambda: not rows(connection))
    complete(url, parts(got))


@pytest.mark.contract("W14", "W13")
async def test_the_server_is_stopped_at_once_while_it_drains(mortal: PostgresServer, url: str) -> None:
    """Nothing is sent that the crash takes back, though the server does not wait for its disk."""
    routes, got = collecting(batch=7, workers=2)
    async with draining(url, routes, QUICK), reached(url, got), writing(url):
        for stop in (mortal.crash, lambda: mortal.stop("immediate")):
            enough = len(got) + 50
            await until(lambda enough=enough: len(got) > enough)  # type: ignore[misc]
            await asyncio.to_thread(stop)
            await asyncio.to_thread(mortal.start)
        enough = len(got) + 50
        await until(lambda: len(got) > enough)


@pytest.mark.contract("W14", "W13")
@pytest.mark.parametrize("fault", ["cut", "stall"])
async def test_the_network_to_the_server_fails(
    server: PostgresServer, database: str, connection: Connection, fault: str
) -> None:
    """A connection that is silent is given up, and its messages are free when its lease is over."""
    accounts(connection)
    routes, got = collecting(batch=5, timeout=0.3)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        async with draining(proxy.url(database), routes, QUICK), reached(database, got), writing(database):
            for _ in range(3 if fault == "cut" else 1):
                enough = len(got) + 30
                await until(lambda enough=enough: len(got) > enough)  # type: ignore[misc]
                if fault == "cut":
                    await asyncio.to_thread(proxy.cut)
                    continue
                await asyncio.to_thread(proxy.stall)
                seen = len(got)
                await asyncio.sleep(1.0)
                assert len(got) - seen <= 5 * len(routes.named), "it went on without its locks"
                await asyncio.to_thread(proxy.resume)


@pytest.mark.contract("W14")
async def test_what_a_stalled_worker_held_goes_to_another(
    server: PostgresServer, database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease ends on the server, whatever the worker knows; when the line is back it can settle nothing."""
    accounts(connection)
    held, over = asyncio.Event(), asyncio.Event()
    stalled = Routes()

    @stalled.on(TOPIC, batch=3, timeout=0.3)
    async def hold(message: Message) -> None:
        held.set()
        await over.wait()

    routes, got = collecting(TOPIC)
    put_many(connection, 4)
    with FaultProxy("127.0.0.1", server.port) as proxy, caplog.at_level(logging.ERROR):
        async with draining(proxy.url(database), stalled, QUICK) as first:
            await until(held.is_set)
            await asyncio.to_thread(proxy.stall)
            async with draining(database, routes, QUICK):
                await until(lambda: not rows(connection))
            over.set()
            await asyncio.to_thread(proxy.resume)
            put(connection, TOPIC, "x", key="again")
            await until(lambda: not rows(connection))
            assert first.workers[0].counts.parked == 0
    complete(database, parts([each for each in got if each.key != "again"]))
    assert not caplog.records


@pytest.mark.skipif(redis_missing() is not None, reason=str(redis_missing()))
@pytest.mark.contract("W14", "W13")
async def test_the_network_to_the_sink_fails(database: str, connection: Connection) -> None:
    accounts(connection)
    with temporary_redis() as server, FaultProxy("127.0.0.1", server.port) as proxy:
        routes = Routes()
        sink = RedisStreams(f"redis://127.0.0.1:{proxy.port}/0", timeout=0.3)
        routes.to(TOPIC, sink, batch=10, timeout=2.0, backoff=(0.01, 0.1))
        stream = f"forge.{TOPIC}"

        def length() -> int:
            return int(server.command("XLEN", stream)[1:])

        async with draining(database, routes, OutboxSettings(poll=0.1)), writing(database):
            for fault in (proxy.cut, proxy.stall, proxy.cut):
                enough = length() + 40
                await until(lambda enough=enough: length() > enough)  # type: ignore[misc]
                await asyncio.to_thread(fault)
                if fault == proxy.stall:
                    await asyncio.sleep(0.5)
                    await asyncio.to_thread(proxy.resume)
        async with draining(database, routes, OutboxSettings(poll=0.1)):
            await until(lambda: not rows(connection))
        complete(database, streamed(server.url, stream))
        assert rows(connection, "outbox_dead") == 0


def streamed(url: str, stream: str) -> list[tuple[str, str, bytes]]:
    """What is in a stream of Redis, by key, id, payload."""
    with redis.Redis.from_url(url) as client:
        found = client.xrange(stream)
    return [(fields[b"forge-key"].decode(), fields[b"forge-id"].decode(), fields[b"payload"]) for _, fields in found]


@pytest.mark.contract("W14")
@pytest.mark.every_version
@pytest.mark.parametrize("trips", [1, 2, 3])
async def test_a_session_that_says_nothing_is_ended_after_any_number_of_round_trips(
    database: str, connection: Connection, trips: int
) -> None:
    async with OutboxSession.open(database, "forge outbox t", lease=0.2, answer=10.0) as session:
        await session.ask("BEGIN", "SELECT 1")
        for _ in range(1, trips):
            assert await session.ask("COMMIT", "BEGIN", "SELECT 1") == [(1,)]
        there = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        pid = session.connection.info.backend_pid
        await until(lambda: connection.execute(there, (pid,)).fetchone() == (0,), 10)
        with pytest.raises(LOST):
            await session.ask("COMMIT")


@pytest.mark.contract("W14", "W13")
@pytest.mark.parametrize("point", ["BEFORE", pytest.param("AFTER", marks=pytest.mark.long)])
async def test_a_worker_that_hangs_loses_its_messages_and_settles_nothing_when_it_wakes(
    database: str, connection: Connection, point: str
) -> None:
    receiver.tables(connection)
    accounts(connection, 1)
    put_many(connection, 8, 1)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.deliver.outbox.receiver", database, point, "3", stdout=asyncio.subprocess.PIPE
    )
    routes, got = Routes(), list[Message]()
    begun, go = asyncio.Event(), asyncio.Event()

    @routes.on(TOPIC)
    async def take(message: Message) -> None:
        begun.set()
        await go.wait()
        got.append(message)

    def arrived() -> list[str]:
        return [id for _, id, _ in receiver.arrived(connection)]

    try:
        assert process.stdout is not None
        await until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        before = arrived()
        async with draining(database, routes):
            assert not begun.is_set()
            await until(begun.is_set)
            process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(30):
                while b"connection lost" not in await process.stdout.readline():
                    pass
            assert rows(connection) == 8, "it settled what is another's"
            after = arrived()
            go.set()
            await until(lambda: not rows(connection))
    finally:
        process.kill()
        await process.wait()
    ids = [each.id for each in told(database)]
    assert before == ids[: 2 if point == "BEFORE" else 3]
    assert after in (before, ids[:3]), "it began another call"
    assert [each.id for each in got] == ids
