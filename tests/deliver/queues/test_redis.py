"""Redis Streams as a sink, on a real server that is restarted, killed, frozen, full, and cut off."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec
import pytest
import redis

from forge.deliver.message import Message
from forge.deliver.queues import RedisStreams
from forge.errors import ConfigError, DeliveryRefused, NotDelivered
from forge.testing.proxy import FaultProxy
from tests.deliver.traffic import AT, check, deliver, messages, until
from tests.servers.redis import RedisServer, redis_missing, temporary_redis

pytestmark = pytest.mark.skipif(redis_missing() is not None, reason=str(redis_missing()))
STREAM = "forge.shop.paid"
Open = Callable[..., RedisStreams]


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisServer]:
    with temporary_redis("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def server(shared: RedisServer) -> RedisServer:
    shared.command("FLUSHALL")
    return shared


@pytest.fixture
async def open(server: RedisServer) -> AsyncIterator[Open]:
    """Sinks that are closed after the test."""
    sinks: list[RedisStreams] = []

    def make(url: str = server.url, **options: object) -> RedisStreams:
        sinks.append(RedisStreams(url, **options))  # type: ignore[arg-type]
        return sinks[-1]

    yield make
    for sink in sinks:
        await sink.close()


def arrived(server: RedisServer, stream: str = STREAM) -> list[tuple[str, str, bytes]]:
    with redis.Redis.from_url(server.url) as client:
        found = client.xrange(stream)
    return [(fields[b"forge-key"].decode(), fields[b"forge-id"].decode(), fields[b"payload"]) for _, fields in found]


def length(server: RedisServer) -> int:
    return int(server.command("XLEN", STREAM)[1:])


async def reached(server: RedisServer, enough: int) -> None:
    await until(lambda: length(server) > enough)


async def test_an_entry_has_the_payload_and_the_headers(server: RedisServer, open: Open) -> None:
    await open().send([Message("7:1", "shop.paid", b'{"id": 1}', AT, key="4711", headers={"forge-op": "insert"})])
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        [(_, fields)] = client.xrange(STREAM)
    assert fields == {
        "forge-op": "insert",
        "forge-id": "7:1",
        "forge-topic": "shop.paid",
        "forge-at": "2026-11-16T09:30:00+00:00",
        "content-type": "application/json",
        "forge-key": "4711",
        "payload": '{"id": 1}',
    }


async def test_nothing_is_sent_for_nothing(server: RedisServer, open: Open) -> None:
    await open().send([])
    assert server.command("DBSIZE") == b":0\r\n"


async def test_a_key_is_in_one_of_the_streams(server: RedisServer, open: Open) -> None:
    sent = messages(300, keys=20)
    await open(streams=3).send(sent)
    parts = [arrived(server, f"{STREAM}.{number}") for number in range(3)]
    keys = [{key for key, _, _ in part} for part in parts]
    assert all(keys)
    assert sum(map(len, keys)) == 20
    check(sent, [each for part in parts for each in part])


async def test_about_maxlen_entries_are_kept(server: RedisServer, open: Open) -> None:
    await open(maxlen=100).send(messages(2_000))
    assert 100 <= len(arrived(server)) < 400


@pytest.mark.contract("W13")
async def test_an_id_within_the_window_is_added_once(server: RedisServer, open: Open) -> None:
    sent = messages(100)
    sink = open(dedupe=60)
    await sink.send(sent[:60])
    await sink.send(sent)
    assert [id for _, id, _ in arrived(server)] == [message.id for message in sent]


@pytest.mark.contract("W13")
@pytest.mark.parametrize("end", [RedisServer.kill, RedisServer.stop])
async def test_the_server_is_restarted(server: RedisServer, open: Open, end: Callable[[RedisServer], None]) -> None:
    sent = messages(2_000)
    sending = asyncio.create_task(deliver(open(timeout=2), sent, 20))
    for enough in (100, 1_000):
        await reached(server, enough)
        await asyncio.to_thread(end, server)
        await asyncio.to_thread(server.start)
    assert await sending > 0
    check(sent, arrived(server))


@pytest.mark.contract("W13")
async def test_connections_are_cut(server: RedisServer, open: Open) -> None:
    sent = messages(2_000)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        sending = asyncio.create_task(deliver(open(f"redis://127.0.0.1:{proxy.port}/0"), sent, 20))
        for enough in range(200, 1_500, 300):
            await reached(server, enough)
            await asyncio.to_thread(proxy.cut)
        assert await sending > 0
    check(sent, arrived(server))


@pytest.mark.contract("W13")
async def test_a_half_open_connection_brings_nothing_late(server: RedisServer, open: Open) -> None:
    sent = messages(200)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        sink = open(f"redis://127.0.0.1:{proxy.port}/0", timeout=0.3)
        await sink.send(sent[:50])
        await asyncio.to_thread(proxy.stall)
        with pytest.raises(NotDelivered, match=r"did not answer within 0\.3 s") as caught:
            await sink.send(sent[50:100])
        assert caught.value.delivered == 0
        sink._pool.connection_kwargs["port"] = server.port  # another way, as the old one holds back what it has
        await deliver(sink, sent[50:])
        await asyncio.to_thread(proxy.resume)
        await until(lambda: proxy.connections == 0)
    assert [id for _, id, _ in arrived(server)] == [message.id for message in sent]


@pytest.mark.contract("W13")
async def test_a_frozen_server_is_given_up_in_time(server: RedisServer, open: Open) -> None:
    sent = messages(100)
    sink = open(timeout=0.3)
    await sink.send(sent[:50])
    server.freeze()
    try:
        start = time.monotonic()
        with pytest.raises(NotDelivered):
            await sink.send(sent[50:])
        assert time.monotonic() - start < 2
    finally:
        server.thaw()
    await deliver(sink, sent[50:])
    check(sent, arrived(server))


async def test_a_cancelled_send_leaves_nothing_in_flight(server: RedisServer, open: Open) -> None:
    with FaultProxy("127.0.0.1", server.port) as proxy:
        sink = open(f"redis://127.0.0.1:{proxy.port}/0")
        await sink.send(messages(1))
        await asyncio.to_thread(proxy.stall)
        sending = asyncio.create_task(sink.send(messages(1, first=1, size=16 << 20)))
        await asyncio.sleep(0.1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await sink.close()
        await asyncio.to_thread(proxy.resume)
        await until(lambda: proxy.connections == 0)
    assert len(arrived(server)) == 1


@pytest.mark.contract("W13")
async def test_a_full_server_takes_none_after_the_first_that_it_did_not(server: RedisServer, open: Open) -> None:
    sent = messages(2_000, size=1_000)
    sink = open()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 500_000)
        with pytest.raises(NotDelivered, match="OOM") as caught:
            await sink.send(sent)
        assert caught.value.fix == "give Redis more memory, or the streams a maxlen"
        there = caught.value.delivered
        assert [id for _, id, _ in arrived(server)] == [message.id for message in sent[:there]]
        client.config_set("maxmemory", 0)
    await sink.send(sent[there:])
    assert [id for _, id, _ in arrived(server)] == [message.id for message in sent]


async def test_an_unfit_header_is_refused_in_its_place(server: RedisServer, open: Open) -> None:
    sent = messages(1_000)
    sent[700] = msgspec.structs.replace(sent[700], headers={"a\nb": "c"})
    with pytest.raises(DeliveryRefused, match="message 7:700: the header") as caught:
        await open().send(sent)
    assert caught.value.place == 700
    assert len(arrived(server)) == 700


async def test_a_message_larger_than_the_server_takes_is_refused(server: RedisServer, open: Open) -> None:
    server.command("CONFIG", "SET", "proto-max-bulk-len", "1mb")
    sink = open()
    sent = [*messages(3), *messages(1, first=3, size=2 << 20), *messages(3, first=4)]
    try:
        with pytest.raises(DeliveryRefused, match="bytes are more than") as caught:
            await sink.send(sent)
    finally:
        server.command("CONFIG", "SET", "proto-max-bulk-len", "512mb")
    assert caught.value.place == 3
    await sink.send(sent[4:])
    assert [id for _, id, _ in arrived(server)] == ["7:0", "7:1", "7:2", "7:4", "7:5", "7:6"]


async def test_a_key_of_another_kind_is_told(server: RedisServer, open: Open) -> None:
    server.command("SET", STREAM, "x")
    with pytest.raises(NotDelivered, match="WRONGTYPE") as caught:
        await open().send(messages(1))
    assert caught.value.fix == "another key has the stream's name: rename one"


async def test_replicas_that_are_not_there_are_missed(server: RedisServer, open: Open) -> None:
    with pytest.raises(NotDelivered, match="0 of 1 replicas") as caught:
        await open(replicas=1, timeout=1).send(messages(5))
    assert caught.value.delivered == 0


async def test_several_may_send_at_once(server: RedisServer, open: Open) -> None:
    sink = open()
    parts = [messages(200, first=200 * part, topic=f"t{part}") for part in range(4)]
    await asyncio.gather(*(sink.send(part) for part in parts))
    for number, part in enumerate(parts):
        check(part, arrived(server, f"forge.t{number}"))


def test_the_extra_is_named_where_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigError) as caught:
        RedisStreams("redis://127.0.0.1")
    assert "forge-changes[redis]" in caught.value.fix


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://127.0.0.1", {}),
        ("redis://127.0.0.1", {"stream": "forge.{table}"}),
        ("redis://127.0.0.1", {"stream": ""}),
        ("redis://127.0.0.1", {"streams": 0}),
        ("redis://127.0.0.1", {"maxlen": 0}),
        ("redis://127.0.0.1", {"timeout": 0}),
    ],
)
def test_bad_settings_are_told(url: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        RedisStreams(url, **options)  # type: ignore[arg-type]


async def test_a_password_is_never_shown() -> None:
    sink = RedisStreams("redis://ada:secret@127.0.0.1:1/0")
    with pytest.raises(NotDelivered) as caught:
        await sink.send(messages(1))
    assert "secret" not in f"{sink!r} {caught.value}"
