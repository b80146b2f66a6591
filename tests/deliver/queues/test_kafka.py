"""Kafka as a sink, on librdkafka's mock cluster: brokers go down, are slow, answer with errors, and are cut off.

The cluster advertises its own port, so a proxy before it is passed by as soon as it is asked where the brokers are:
connections are cut by taking the brokers down.
"""

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from forge.deliver.message import Message
from forge.deliver.queues import Kafka
from forge.errors import ConfigError, DeliveryRefused, NotDelivered
from tests.deliver.traffic import AT, SOON, check, deliver, messages
from tests.servers.kafka import MockKafka, kafka_missing, temporary_kafka

pytestmark = pytest.mark.skipif(kafka_missing() is not None, reason=str(kafka_missing()))
Open = Callable[..., Kafka]
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockKafka]:
    with temporary_kafka() as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: MockKafka) -> str:
    name = f"t{uuid.uuid4().hex}"
    cluster.topic(name, PARTITIONS)
    return name


@pytest.fixture
async def open(cluster: MockKafka) -> AsyncIterator[Open]:
    """Sinks that are closed after the test."""
    sinks: list[Kafka] = []
    quick = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10}

    def make(**options: Any) -> Kafka:
        settings = {"bootstrap.servers": cluster.bootstrap, **quick, **options.pop("settings", {})}
        sinks.append(Kafka(settings, **options))
        return sinks[-1]

    yield make
    for sink in sinks:
        await sink.close()


def stored(cluster: MockKafka, topic: str) -> list[Any]:
    """Everything of the topic, partition by partition."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": uuid.uuid4().hex, "log_level": 2})
    try:
        parts = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(part, timeout=10)[1] for part in parts]
        consumer.assign(parts)
        found: list[Any] = []
        deadline = time.monotonic() + 20
        while len(found) < sum(ends):
            assert time.monotonic() < deadline, f"{len(found)} of {sum(ends)} were read"
            found += [each for each in consumer.consume(500, 0.5) if each.error() is None]
    finally:
        consumer.close()
    return sorted(found, key=lambda each: (each.partition(), each.offset()))


def arrived(cluster: MockKafka, topic: str) -> list[tuple[str, str, bytes]]:
    found = []
    for each in stored(cluster, topic):
        headers = dict(each.headers())
        found.append((each.key().decode(), headers["forge-id"].decode(), each.value()))
    return found


async def test_a_message_has_key_payload_and_headers(cluster: MockKafka, topic: str, open: Open) -> None:
    await open().send([Message("7:1", topic, b'{"id": 1}', AT, key="é", headers={"forge-op": "insert"})])
    [found] = stored(cluster, topic)
    assert (found.key().decode(), found.value()) == ("é", b'{"id": 1}')
    assert found.timestamp()[1] == AT.timestamp() * 1000
    assert dict(found.headers()) == {
        "forge-op": b"insert",
        "forge-id": b"7:1",
        "forge-topic": topic.encode(),
        "forge-at": b"2026-11-16T09:30:00+00:00",
        "content-type": b"application/json",
        "forge-key": "é".encode(),
    }


async def test_a_key_is_in_one_partition_and_what_has_none_too(cluster: MockKafka, topic: str, open: Open) -> None:
    sent = messages(300, keys=20, topic=topic)
    await open().send([*sent, *(Message(f"n{n}", topic, b"", AT) for n in range(20))])
    places: dict[bytes | None, set[int]] = {}
    for each in stored(cluster, topic):
        places.setdefault(each.key(), set()).add(each.partition())
    assert len(places) == 21
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) == PARTITIONS


@pytest.mark.contract("W13")
async def test_brokers_go_down(cluster: MockKafka, topic: str, open: Open) -> None:
    sent = messages(600, topic=topic)
    sink = open(timeout=1.5)
    cluster.slow(0.02)  # so that there is always something under way
    try:
        for start in range(0, 600, 200):
            failed = asyncio.Event()
            sending = asyncio.create_task(deliver(sink, sent[start : start + 200], 20, failed))
            await asyncio.sleep(0.05)
            cluster.down()
            async with asyncio.timeout(SOON):
                await failed.wait()
            cluster.up()
            await sending
    finally:
        cluster.slow(0)
    check(sent, await asyncio.to_thread(arrived, cluster, topic), late=True)


@pytest.mark.contract("W13")
async def test_errors_that_pass_are_tried_again_without_a_copy(cluster: MockKafka, topic: str, open: Open) -> None:
    sent = messages(200, topic=topic)
    cluster.errors(KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT)
    await open().send(sent)
    found = await asyncio.to_thread(arrived, cluster, topic)
    assert len(found) == len(sent)
    check(sent, found)


@pytest.mark.contract("W13")
async def test_what_is_too_much_together_is_sent_in_parts(cluster: MockKafka, topic: str, open: Open) -> None:
    sent = messages(200, topic=topic)
    cluster.errors(KafkaError.MSG_SIZE_TOO_LARGE)
    await open().send(sent)
    check(sent, await asyncio.to_thread(arrived, cluster, topic))


async def test_what_kafka_finds_too_large_by_itself_is_refused(cluster: MockKafka, topic: str, open: Open) -> None:
    cluster.errors(KafkaError.MSG_SIZE_TOO_LARGE)
    sink = open()
    with pytest.raises(DeliveryRefused, match="too large") as caught:
        await sink.send(messages(1, topic=topic))
    assert caught.value.place == 0
    await sink.send(messages(1, topic=topic))


@pytest.mark.contract("W13")
async def test_a_silent_broker_is_given_up_in_time(cluster: MockKafka, topic: str, open: Open) -> None:
    sent = messages(100, topic=topic)
    sink = open(timeout=0.5)
    await deliver(sink, sent[:50])
    cluster.slow(30)
    try:
        start = time.monotonic()
        with pytest.raises(NotDelivered, match=r"did not acknowledge within 0\.5 s"):
            await sink.send(sent[50:])
        assert time.monotonic() - start < 5
    finally:
        cluster.slow(0)
    await deliver(sink, sent[50:])
    check(sent, await asyncio.to_thread(arrived, cluster, topic), late=True)


async def test_a_cancelled_send_leaves_nothing_in_flight(cluster: MockKafka, topic: str, open: Open) -> None:
    sink = open()
    cluster.down()
    try:
        sending = asyncio.create_task(sink.send(messages(10, topic=topic)))
        await asyncio.sleep(0.1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await sink.close()
    finally:
        cluster.up()
    sent = messages(5, first=100, topic=topic)
    await deliver(open(timeout=3), sent)
    check(sent, await asyncio.to_thread(arrived, cluster, topic))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topic": "a b"}, "no topic's name"),
        ({"topic": "x" * 250}, "no topic's name"),
        ({"headers": {"a b": ""}}, "brokers do not take"),
        ({"payload": b" " * 1_100_000}, "more than message.max.bytes"),
    ],
)
async def test_what_kafka_never_takes_is_refused_in_its_place(
    cluster: MockKafka, topic: str, open: Open, change: dict[str, Any], said: str
) -> None:
    sent = messages(40, topic=topic)
    sent[30] = msgspec.structs.replace(sent[30], **change)
    sink = open()
    with pytest.raises(DeliveryRefused, match=said) as caught:
        await sink.send(sent)
    assert caught.value.place == 30
    await sink.send(sent[31:])
    check(sent[:30] + sent[31:], await asyncio.to_thread(arrived, cluster, topic))


async def test_more_than_librdkafka_queues_goes_in_parts(cluster: MockKafka, topic: str, open: Open) -> None:
    sent = messages(500, topic=topic)
    await open(settings={"queue.buffering.max.messages": 100}).send(sent)
    check(sent, await asyncio.to_thread(arrived, cluster, topic))


def test_the_extra_is_named_where_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConfigError) as caught:
        Kafka("127.0.0.1:9092")
    assert "forge-changes[kafka]" in caught.value.fix


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ("", {}),
        ("h:9092", {"topic": "{table}"}),
        ("h:9092", {"timeout": 0}),
        ({"bootstrap.servers": "h", "enable.idempotence": False}, {}),
        ({"bootstrap.servers": "h", "transactional.id": "x"}, {}),
    ],
)
def test_bad_settings_are_told(settings: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Kafka(settings, **options)
