"""Kafka as a sink, on a real broker that is killed and started again."""

import asyncio
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from forge.deliver.message import Message
from forge.deliver.queues import Kafka
from forge.errors import NotDelivered, SparkUnavailable
from tests.deliver.traffic import check, messages
from tests.servers.kafka import KafkaBroker, kafka_jars, kafka_missing, temporary_broker

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(kafka_missing() is not None, reason=str(kafka_missing())),
    pytest.mark.timeout(600),
]
PARTITIONS = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    try:
        kafka_jars()
    except SparkUnavailable as missing:
        pytest.skip(str(missing))
    with temporary_broker() as broker:
        yield broker


def arrived(broker: KafkaBroker, topic: str) -> list[tuple[str, str, bytes]]:
    """Key, id and payload of everything, partition by partition."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": uuid.uuid4().hex, "log_level": 2})
    try:
        parts = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(part, timeout=30)[1] for part in parts]
        consumer.assign(parts)
        found: list[Any] = []
        deadline = time.monotonic() + 60
        while len(found) < sum(ends):
            assert time.monotonic() < deadline, f"{len(found)} of {sum(ends)} were read"
            found += [each for each in consumer.consume(500, 0.5) if each.error() is None]
    finally:
        consumer.close()
    found.sort(key=lambda each: (each.partition(), each.offset()))
    return [(each.key().decode(), dict(each.headers())["forge-id"].decode(), each.value()) for each in found]


async def deliver(sink: Kafka, wanted: Sequence[Message], failed: asyncio.Event) -> None:
    """Send all in batches, each until it is taken: a JVM takes its time to start."""
    deadline = time.monotonic() + 300
    for start in range(0, len(wanted), 20):
        rest = wanted[start : start + 20]
        while rest:
            try:
                await sink.send(rest)
                rest = []
            except NotDelivered as error:
                if time.monotonic() > deadline:
                    raise
                failed.set()
                rest = rest[error.delivered :]
                await asyncio.sleep(0.05)


@pytest.mark.contract("W13")
@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_the_broker_is_restarted(broker: KafkaBroker, end: str) -> None:
    topic = f"t{uuid.uuid4().hex}"
    sent = messages(900, topic=topic)
    quick = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10}
    sink = Kafka({"bootstrap.servers": broker.bootstrap, **quick}, timeout=5.0)
    try:
        await deliver(sink, sent[:300], asyncio.Event())
        for start in (300, 600):
            failed = asyncio.Event()
            sending = asyncio.create_task(deliver(sink, sent[start : start + 300], failed))
            await asyncio.sleep(0.02)
            await asyncio.to_thread(getattr(broker, end))
            async with asyncio.timeout(60):
                await failed.wait()
            await asyncio.to_thread(broker.start)
            await sending
    finally:
        await sink.close()
    check(sent, await asyncio.to_thread(arrived, broker, topic), late=True)
