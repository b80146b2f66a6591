"""Messages per second into Redis Streams, Kafka and NATS JetStream, beside a bare loop of the same library.

Both send the same messages in batches of 500, over 1,000 keys, and wait for each batch's answers: Redis by a pipeline
of XADD, Kafka by `produce` and `flush` with acks from all, NATS by concurrent publishes. The bare loops keep no order
where one fails, and send no headers but the id. Kafka is librdkafka's mock cluster, in this process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from time import perf_counter

import confluent_kafka
import nats
import redis.asyncio

from benchmarks.bench import Bench
from benchmarks.figures import Figure, figure, ratios
from forge.deliver.message import Message
from forge.deliver.queues import Kafka, Nats, RedisStreams
from forge.deliver.sink import Sink
from tests.servers.kafka import temporary_kafka
from tests.servers.nats import temporary_nats
from tests.servers.redis import temporary_redis

BATCH, KEYS = 500, 1_000
Send = Callable[[Sequence[Message]], Awaitable[None]]


def run(bench: Bench) -> list[Figure]:
    """Rounds over each sink and its bare loop, in turns."""
    return asyncio.run(_run(bench))


async def _run(bench: Bench) -> list[Figure]:
    found: list[Figure] = []
    with temporary_redis() as server:
        client = redis.asyncio.Redis.from_url(server.url)

        async def add(messages: Sequence[Message]) -> None:
            async with client.pipeline(transaction=False) as pipeline:
                for message in messages:
                    pipeline.xadd("bare", {"forge-id": message.id, "payload": message.payload})
                await pipeline.execute()

        found += await _compare(bench, "Redis Streams", RedisStreams(server.url), add)
        remembering = RedisStreams(server.url, "once.{topic}", dedupe=60)
        found += await _compare(bench, "Redis Streams, ids remembered", remembering, add)
        await client.aclose()
    with temporary_kafka() as cluster:
        settings = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 2}
        producer = confluent_kafka.Producer(settings)

        async def produce(messages: Sequence[Message]) -> None:
            for message in messages:
                producer.produce("bare", message.payload, message.key, headers=[("forge-id", message.id)])
            await asyncio.to_thread(producer.flush)

        found += await _compare(bench, "Kafka (mock cluster)", Kafka(cluster.bootstrap), produce)
    with temporary_nats() as stored:
        connection = await nats.connect(stored.url)
        jetstream = connection.jetstream()
        await jetstream.add_stream(name="bare", subjects=["bare"])

        async def publish(messages: Sequence[Message]) -> None:
            await asyncio.gather(
                *(
                    jetstream.publish("bare", message.payload, timeout=30, headers={"Nats-Msg-Id": message.id})
                    for message in messages
                )
            )

        found += await _compare(bench, "NATS JetStream", Nats(stored.url), publish)
        await connection.close()
    return found


async def _compare(bench: Bench, name: str, sink: Sink, bare: Send) -> list[Figure]:
    rounds, count = (3, 2_000) if bench.quick else (5, 20_000)
    ours, theirs = [], []
    for turn in range(rounds + 1):
        bench.say(f"{name}, round {turn} of {rounds}")
        messages = _messages(count, turn * count)
        alone, sent = await _rate(bare, messages), await _rate(sink.send, messages)
        if turn:  # the first connects, and makes the topic
            theirs.append(alone)
            ours.append(sent)
    await sink.close()
    return [
        figure("queues", f"{name}: sink", ours, "rate"),
        figure("queues", f"{name}: bare loop", theirs, "rate"),
        figure("queues", f"{name}: sink over bare loop", ratios(ours, theirs), "percent"),
    ]


async def _rate(send: Send, messages: Sequence[Message]) -> float:
    start = perf_counter()
    for place in range(0, len(messages), BATCH):
        await send(messages[place : place + BATCH])
    return len(messages) / (perf_counter() - start)


def _messages(count: int, first: int) -> list[Message]:
    now, payload = datetime.now(UTC), b'{"op":"insert","after":{"id":4711,"status":"placed","total":"12.90"}}' * 3
    return [
        Message(f"018f{number:012x}", "shop.orders", payload, now, str(number % KEYS), {"forge-op": "insert"})
        for number in range(first, first + count)
    ]
