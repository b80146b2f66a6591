"""Networks that fail and consumers that are slow: nothing is lost, nothing grows, nothing hangs."""

import asyncio
import gc
import logging
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from forge.capture.mysql.changes import BinlogChanges
from forge.capture.mysql.tail import AHEAD, BinlogTail
from forge.capture.source import SourceBatch
from forge.errors import SourceError
from forge.testing import FaultProxy
from forge.testing.mariadb import MariadbServer, run
from tests.capture.mysql.reading import SOON, changes, eventually, following, snapshot, source

pytestmark = pytest.mark.contract("W5")
HEARTBEATS = (27, 41)


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    """How often, and why, the reader says that it lost the log."""
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("lost the binary log")]


@pytest.fixture
async def proxy(maria: MariadbServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy("127.0.0.1", maria.port) as proxy:
        yield proxy


async def test_a_cut_connection_is_made_again(maria_database: str, proxy: FaultProxy) -> None:
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY)")
    reader = source(proxy.url(maria_database))
    async with following(reader) as follower:
        for number in range(1, 4):
            run(maria_database, f"INSERT INTO t VALUES ({number})")
            await follower.until(lambda seen, number=number: len(seen) == number)  # type: ignore[misc]
            await asyncio.to_thread(proxy.cut)
        run(maria_database, "INSERT INTO t VALUES (4)")
        found = await follower.until(lambda seen: len(seen) >= 4)
    assert [change.key for change in found] == [{"id": number} for number in range(1, 5)]
    assert reader.connections >= 2


async def test_a_server_that_cannot_be_reached_for_a_while(
    maria_database: str, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "forge.capture.mysql")
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY)")
    async with following(source(proxy.url(maria_database))) as follower:
        run(maria_database, "INSERT INTO t VALUES (1)")
        await follower.until(lambda seen: len(seen) == 1)
        await asyncio.to_thread(proxy.refuse)
        await asyncio.to_thread(proxy.cut)
        run(maria_database, "INSERT INTO t VALUES (2)")
        await eventually(lambda: any("cannot be reached" in why for why in lost(caplog)))
        await asyncio.to_thread(proxy.accept)
        found = await follower.until(lambda seen: len(seen) >= 2)
    assert [change.key for change in found] == [{"id": 1}, {"id": 2}]


async def test_a_half_open_connection_is_noticed(
    maria_database: str, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """No byte comes and no end: the missing heartbeat gives it away."""
    caplog.set_level(logging.WARNING, "forge.capture.mysql")
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY)")
    reader = source(proxy.url(maria_database), heartbeat=0.1, timeout=1.0)
    async with following(reader) as follower:
        run(maria_database, "INSERT INTO t VALUES (1)")
        await follower.until(lambda seen: len(seen) == 1)
        connections = reader.connections
        await asyncio.to_thread(proxy.stall)
        run(maria_database, "INSERT INTO t VALUES (2)")
        await eventually(lambda: bool(lost(caplog)))
        await asyncio.to_thread(proxy.resume)
        found = await follower.until(lambda seen: len(seen) >= 2)
    assert [change.key for change in found] == [{"id": 1}, {"id": 2}]
    assert reader.connections > connections


async def test_an_idle_stream_stays_connected(maria_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than the silence after which it would be given up: heartbeats come."""
    came: list[int] = []
    take = BinlogChanges.take

    def counted(self: BinlogChanges, event: bytes) -> None:
        came.append(event[4])
        take(self, event)

    monkeypatch.setattr(BinlogChanges, "take", counted)
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY)")
    reader = source(maria_database, heartbeat=0.1)
    async with following(reader) as follower:
        run(maria_database, "INSERT INTO t VALUES (1)")
        await follower.until(lambda seen: len(seen) == 1)
        came.clear()
        await eventually(lambda: sum(kind in HEARTBEATS for kind in came) >= 5)
        run(maria_database, "INSERT INTO t VALUES (2)")
        await follower.until(lambda seen: len(seen) == 2)
    assert reader.connections == 1


async def test_a_snapshot_goes_on_after_a_cut(maria_database: str, proxy: FaultProxy) -> None:
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY)")
    run(maria_database, "INSERT INTO t VALUES " + ", ".join(f"({number})" for number in range(50)))
    seen = []
    async with asyncio.timeout(SOON), aclosing(source(proxy.url(maria_database), page=10).snapshot()) as batches:
        async for batch in batches:
            seen += [change.key for change in batch.changes]
            if len(seen) == 20 and batch.changes:
                await asyncio.to_thread(proxy.cut)
    assert seen == [{"id": number} for number in range(50)]


async def test_nobody_there(maria_database: str, proxy: FaultProxy) -> None:
    await asyncio.to_thread(proxy.refuse)
    reader = source(proxy.url(maria_database))
    cursor = await source(maria_database).now()
    for action in (changes(reader, cursor, 1), changes(reader, None, 1), snapshot(reader), reader.status()):
        with pytest.raises(SourceError, match="cannot be reached") as refused:
            await action
        assert refused.value.fix


async def test_a_slow_consumer_costs_no_memory(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction of 10 MB, and a consumer that takes its first batch and then none until nothing more fits."""
    ready = 0
    hand = BinlogTail._hand

    def counted(self: BinlogTail, batch: SourceBatch | None) -> None:
        nonlocal ready
        ready += 1
        hand(self, batch)

    monkeypatch.setattr(BinlogTail, "_hand", counted)
    run(database, "CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, s varchar(1000))")
    reader = source(database, page=100)
    start = await reader.now()
    rows = ", ".join(["(repeat('x', 1000))"] * 500)
    run(database, "BEGIN", *([f"INSERT INTO t (s) VALUES {rows}"] * 20), "COMMIT")
    gc.collect()
    tracemalloc.start()
    try:
        count = 0
        most = 0
        async with asyncio.timeout(4 * SOON), aclosing(reader.stream(start)) as batches:
            async for batch in batches:
                if count == 0:
                    await eventually(lambda: ready == 1 + AHEAD + 1)
                count += len(batch.changes)
                most = max(most, tracemalloc.get_traced_memory()[0])
                if count == 10_000:
                    break
    finally:
        tracemalloc.stop()
    assert most < 5_000_000


async def test_closing_is_prompt(maria_database: str, proxy: FaultProxy) -> None:
    """Idle, silent or with a full hand-over: a stream that is closed is gone at once."""
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY)")
    start = await source(maria_database).now()
    run(maria_database, "INSERT INTO t VALUES " + ", ".join(f"({number})" for number in range(5000)))
    for stalled in (False, True):
        stream = source(proxy.url(maria_database), page=10, heartbeat=30.0).stream(start)
        await anext(stream)
        if stalled:
            await asyncio.to_thread(proxy.stall)
        begun = time.monotonic()
        await stream.aclose()
        assert time.monotonic() - begun < 2.0
    await asyncio.to_thread(proxy.resume)


async def test_two_streams_of_one_source_are_two_replicas(maria_database: str) -> None:
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY)")
    reader = source(maria_database)
    async with following(reader) as one, following(reader) as two:
        run(maria_database, "INSERT INTO t VALUES (1)")
        assert (await one.until(lambda seen: len(seen) == 1))[0].id == (await two.until(lambda seen: len(seen) == 1))[
            0
        ].id
