"""NATS JetStream as a sink, on a real server that is restarted, killed, frozen, full, and cut off."""

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
import nats
import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from forge.deliver.message import Message
from forge.deliver.queues import Nats
from forge.errors import ConfigError, DeliveryRefused, NotDelivered
from forge.testing.proxy import FaultProxy
from tests.deliver.traffic import AT, check, deliver, messages, until
from tests.servers.nats import NatsServer, nats_missing, temporary_nats

pytestmark = pytest.mark.skipif(nats_missing() is not None, reason=str(nats_missing()))
Open = Callable[..., Nats]


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with temporary_nats("max_payload: 262144") as server:
        yield server


@pytest.fixture
def stream() -> str:
    """The name of a stream, and of its subjects, that no other test has."""
    return f"s{uuid.uuid4().hex}"


@pytest.fixture
async def open(server: NatsServer, stream: str) -> AsyncIterator[Open]:
    """Sinks into the stream, closed after the test."""
    sinks: list[Nats] = []

    def make(url: str = server.url, subject: str = f"{stream}.{{topic}}", **options: Any) -> Nats:
        sinks.append(Nats(url, subject, **{"stream": stream, **options}))
        return sinks[-1]

    yield make
    for sink in sinks:
        await sink.close()


@pytest.fixture
async def jetstream(server: NatsServer) -> AsyncIterator[Any]:
    """A client that the tests look with; it comes back after a restart."""
    client = await nats.connect(server.url, reconnect_time_wait=0.02, max_reconnect_attempts=-1, error_cb=_ignore)
    yield client.jetstream(timeout=10)
    await client.close()


async def _ignore(error: Exception) -> None:
    """Servers of these tests are killed."""


async def stored(jetstream: Any, stream: str) -> list[Any]:
    count = (await jetstream.stream_info(stream)).state.messages
    reader = await jetstream.subscribe(">", stream=stream, ordered_consumer=True)
    found = [await reader.next_msg(timeout=10) for _ in range(count)]
    await reader.unsubscribe()
    return found


async def arrived(jetstream: Any, stream: str) -> list[tuple[str, str, bytes]]:
    found = await stored(jetstream, stream)
    return [(each.headers["forge-key"], each.headers["forge-id"], each.data) for each in found]


async def reached(jetstream: Any, stream: str, enough: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            if (await asyncio.wait_for(jetstream.stream_info(stream), 2)).state.messages > enough:
                return
        except (nats.errors.Error, TimeoutError):
            pass  # not made yet, or just restarted
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


async def test_a_message_has_subject_payload_and_headers(jetstream: Any, stream: str, open: Open) -> None:
    await open().send([Message("7:1", "shop.paid", b'{"id": 1}', AT, key="a%b\nc", headers={"forge-op": "insert"})])
    [found] = await stored(jetstream, stream)
    assert (found.subject, found.data) == (f"{stream}.shop.paid", b'{"id": 1}')
    assert unquote(found.headers["forge-key"]) == "a%b\nc"
    del found.headers["forge-key"]
    assert found.headers == {
        "forge-op": "insert",
        "forge-id": "7:1",
        "forge-topic": "shop.paid",
        "forge-at": "2026-11-16T09:30:00+00:00",
        "content-type": "application/json",
        "Nats-Msg-Id": f"{stream}.shop.paid 7:1",
        "Nats-Expected-Stream": stream,
    }


async def test_the_key_may_be_a_token_of_the_subject(jetstream: Any, stream: str, open: Open) -> None:
    sent = [Message(str(place), "t", b"", AT, key=key) for place, key in enumerate(["4711", "a.b > c", "é", None])]
    await open(subject=f"{stream}.{{topic}}.{{key}}").send(sent)
    subjects = [each.subject for each in await stored(jetstream, stream)]
    assert sorted(subjects) == sorted(f"{stream}.t.{key}" for key in ("4711", "a%2Eb%20%3E%20c", "%C3%A9", "-"))


async def test_a_topic_of_its_own_has_the_same_change_too(jetstream: Any, stream: str, open: Open) -> None:
    sink = open()
    await sink.send(messages(5, topic="one"))
    await sink.send(messages(5, topic="two"))
    assert len(await stored(jetstream, stream)) == 10


@pytest.mark.contract("W13")
async def test_a_copy_is_not_stored_again(jetstream: Any, stream: str, open: Open) -> None:
    sent = messages(100)
    sink = open()
    await sink.send(sent[:60])
    await sink.send(sent)
    found = await arrived(jetstream, stream)
    assert len(found) == 100
    check(sent, found)


@pytest.mark.contract("W13")
@pytest.mark.parametrize("end", [NatsServer.kill, NatsServer.stop])
async def test_the_server_is_restarted(
    server: NatsServer, jetstream: Any, stream: str, open: Open, end: Callable[[NatsServer], None]
) -> None:
    sent = messages(800, keys=30)
    sending = asyncio.create_task(deliver(open(timeout=3), sent, 20))
    for enough in (100, 400):
        await reached(jetstream, stream, enough)
        await asyncio.to_thread(end, server)
        await asyncio.to_thread(server.start)
    assert await sending > 0
    found = await arrived(jetstream, stream)
    assert len(found) == len(sent)
    check(sent, found)


@pytest.mark.contract("W13")
async def test_connections_are_cut(server: NatsServer, jetstream: Any, stream: str, open: Open) -> None:
    sent = messages(800, keys=30)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        sending = asyncio.create_task(deliver(open(f"nats://127.0.0.1:{proxy.port}"), sent, 20))
        for enough in range(100, 700, 150):
            await reached(jetstream, stream, enough)
            await asyncio.to_thread(proxy.cut)
        assert await sending > 0
    found = await arrived(jetstream, stream)
    assert len(found) == len(sent)
    check(sent, found)


@pytest.mark.contract("W13")
async def test_a_half_open_connection_brings_nothing_twice(
    server: NatsServer, jetstream: Any, stream: str, open: Open
) -> None:
    sent = messages(200)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        sink = open(f"nats://127.0.0.1:{proxy.port}", timeout=1.5)
        await deliver(sink, sent[:50])
        await asyncio.to_thread(proxy.stall)
        with pytest.raises(NotDelivered, match=r"did not answer within 1\.5 s") as caught:
            await sink.send(sent[50:100])
        assert caught.value.delivered == 0
        await deliver(open(timeout=3), sent[50:])
        await asyncio.to_thread(proxy.resume)
        await until(lambda: proxy.connections == 0)
    found = await arrived(jetstream, stream)
    assert len(found) == len(sent)
    check(sent, found)


@pytest.mark.contract("W13")
async def test_a_frozen_server_is_given_up_in_time(server: NatsServer, jetstream: Any, stream: str, open: Open) -> None:
    sent = messages(100)
    sink = open(timeout=1.5)
    await deliver(sink, sent[:50])
    server.freeze()
    try:
        start = time.monotonic()
        with pytest.raises(NotDelivered):
            await sink.send(sent[50:])
        assert time.monotonic() - start < 5
    finally:
        server.thaw()
    await deliver(sink, sent[50:])
    check(sent, await arrived(jetstream, stream))


async def test_a_cancelled_send_leaves_nothing_in_flight(
    server: NatsServer, jetstream: Any, stream: str, open: Open
) -> None:
    with FaultProxy("127.0.0.1", server.port) as proxy:
        sink = open(f"nats://127.0.0.1:{proxy.port}")
        await sink.send(messages(1))
        await asyncio.to_thread(proxy.stall)
        sent = messages(200, first=1, keys=500, size=200_000)
        sending = asyncio.create_task(sink.send(sent))
        await asyncio.sleep(0.1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await sink.close()
        await asyncio.to_thread(proxy.resume)
        await until(lambda: proxy.connections == 0)
    assert (await jetstream.stream_info(stream)).state.messages < 150, "what was in the buffer has been sent"


@pytest.mark.contract("W13")
async def test_a_full_stream_takes_none_of_a_key_after_the_first_that_it_did_not(
    jetstream: Any, stream: str, open: Open
) -> None:
    config = StreamConfig(name=stream, subjects=[f"{stream}.>"], max_msgs=100, discard=DiscardPolicy.NEW)
    await jetstream.add_stream(config)
    sent = messages(300)
    sink = open()
    with pytest.raises(NotDelivered, match="maximum messages exceeded") as caught:
        await sink.send(sent)
    there = caught.value.delivered
    assert {message.id for message in sent[:there]} <= {id for _, id, _ in await arrived(jetstream, stream)}
    config.max_msgs = -1
    await jetstream.update_stream(config)
    await sink.send(sent[there:])
    check(sent, await arrived(jetstream, stream))


async def test_what_no_stream_takes_is_not_delivered(open: Open) -> None:
    sink = open(stream=None)
    with pytest.raises(NotDelivered, match="no stream of") as caught:
        await sink.send(messages(3))
    assert "make a stream" in caught.value.fix


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"headers": {"a b": "c"}}, "brokers do not take"),
        ({"headers": {"Nats-Rollup": "all"}}, "are for NATS"),
        ({"topic": "a b"}, "is no subject"),
        ({"topic": "a..b"}, "is no subject"),
        ({"payload": b" " * 262_144}, "bytes are more than"),
        ({"id": "7\n8"}, "line break"),
    ],
)
async def test_what_nats_never_takes_is_refused_in_its_place(
    jetstream: Any, stream: str, open: Open, change: dict[str, Any], said: str
) -> None:
    sent = messages(400)
    sent[300] = msgspec.structs.replace(sent[300], **change)
    sink = open()
    with pytest.raises(DeliveryRefused, match=said) as caught:
        await sink.send(sent)
    assert caught.value.place == 300
    check(sent[:300], await arrived(jetstream, stream))
    await sink.send(sent[301:])


async def test_what_the_stream_finds_too_large_is_refused_in_its_place(jetstream: Any, stream: str, open: Open) -> None:
    await jetstream.add_stream(name=stream, subjects=[f"{stream}.>"], max_msg_size=2_000)
    sent = [*messages(300), *messages(1, first=300, size=5_000), *messages(50, first=301)]
    sink = open()
    with pytest.raises(DeliveryRefused, match="message size exceeds maximum allowed") as caught:
        await sink.send(sent)
    assert caught.value.place == 300
    await sink.send(sent[301:])
    check(sent[:300] + sent[301:], await arrived(jetstream, stream))


async def test_several_may_send_at_once(jetstream: Any, stream: str, open: Open) -> None:
    sink = open()
    parts = [messages(200, first=200 * part, topic=f"t{part}") for part in range(4)]
    await asyncio.gather(*(sink.send(part) for part in parts))
    assert len(await stored(jetstream, stream)) == 800


async def test_a_stream_keeps_maxlen(jetstream: Any, stream: str, open: Open) -> None:
    await open(maxlen=10).send(messages(50))
    assert len(await stored(jetstream, stream)) == 10


def test_the_extra_is_named_where_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(ConfigError) as caught:
        Nats("nats://127.0.0.1")
    assert "forge-changes[nats]" in caught.value.fix


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://127.0.0.1", {}),
        ("nats://127.0.0.1", {"subject": "forge.{table}"}),
        ("nats://127.0.0.1", {"subject": "forge. {topic}"}),
        ("nats://127.0.0.1", {"subject": "$JS.{topic}"}),
        ("nats://127.0.0.1", {"stream": "a.b"}),
        ("nats://127.0.0.1", {"maxlen": 0}),
        ("nats://127.0.0.1", {"timeout": 0}),
    ],
)
def test_bad_settings_are_told(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Nats(url, **options)


async def test_a_password_is_never_shown() -> None:
    sink = Nats("nats://ada:secret@127.0.0.1:1")
    with pytest.raises(NotDelivered, match="Connect") as caught:
        await sink.send(messages(1))
    assert "secret" not in f"{sink!r} {caught.value}"
