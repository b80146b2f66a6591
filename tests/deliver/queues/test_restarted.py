"""Redis and NATS are restarted while the outbox and a consumer deliver into them: nothing is lost, order is kept."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import nats
import pytest
import redis

from forge.deliver.consumers import Consumers
from forge.deliver.outbox import OutboxSettings, Routes
from forge.deliver.queues import Nats, RedisStreams
from forge.deliver.sink import Sink
from forge.postgres.connection import Connection
from tests.deliver.consumers.working import working
from tests.deliver.outbox.accounts import TOPIC, accounts, complete, writing
from tests.deliver.outbox.draining import draining, rows, until
from tests.servers.nats import NatsServer, nats_missing, temporary_nats
from tests.servers.redis import RedisServer, redis_missing, temporary_redis

Parts = list[tuple[str, str, bytes]]
CHANGES = "changes"


class Queue(NamedTuple):
    """A server, a sink into it, and what is there of a topic by key, id, payload."""

    server: RedisServer | NatsServer
    sink: Callable[[], Sink]
    stored: Callable[[str], Awaitable[Parts]]


@pytest.fixture(params=["redis", "nats"])
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    if request.param == "redis":
        if redis_missing():
            pytest.skip(str(redis_missing()))
        with temporary_redis("--appendonly", "yes", "--appendfsync", "always") as server:
            yield Queue(server, lambda: RedisStreams(server.url, timeout=2.0), lambda topic: _streamed(server, topic))
    else:
        if nats_missing():
            pytest.skip(str(nats_missing()))
        with temporary_nats() as other:
            yield Queue(other, lambda: Nats(other.url, timeout=2.0), lambda topic: _published(other, topic))


async def _streamed(server: RedisServer, topic: str) -> Parts:
    with redis.Redis.from_url(server.url) as client:
        found = client.xrange(f"forge.{topic}")
    return [(fields[b"forge-key"].decode(), fields[b"forge-id"].decode(), fields[b"payload"]) for _, fields in found]


async def _published(server: NatsServer, topic: str) -> Parts:
    client = await nats.connect(server.url)
    try:
        jetstream = client.jetstream(timeout=10)
        reader = await jetstream.subscribe(f"forge.{topic}", stream="forge", ordered_consumer=True)
        found: list[Any] = []
        while not found or found[-1].metadata.num_pending:
            found.append(await reader.next_msg(timeout=10))
        return [(each.headers["forge-key"], each.headers["forge-id"], each.data) for each in found]
    finally:
        await client.close()


@asynccontextmanager
async def delivering(url: str, queue: Queue) -> AsyncIterator[list[int]]:
    """The outbox and a consumer, each into the queue by a sink of its own; how many each has delivered."""
    routes, consumers, delivered = Routes(), Consumers(), [0, 0]
    routes.to(TOPIC, _Counting(queue.sink(), delivered, 0), batch=10, backoff=(0.01, 0.1))
    sink = _Counting(queue.sink(), delivered, 1)
    options: dict[str, Any] = {"tables": ["account"], "ops": ["update"], "start": "start", "backoff": (0.01, 0.1)}
    consumers.deliver("copies", to=sink, topic=CHANGES, batch=10, **options)
    async with draining(url, routes, OutboxSettings(poll=0.1)), working(url, consumers):
        yield delivered
    await sink.close()


class _Counting:
    """A sink that counts what another takes."""

    def __init__(self, sink: Sink, counts: list[int], place: int) -> None:
        self._sink, self._counts, self._place = sink, counts, place

    async def send(self, messages: Any, /) -> None:
        await self._sink.send(messages)
        self._counts[self._place] += len(messages)

    async def close(self) -> None:
        await self._sink.close()


@pytest.mark.contract("W12", "W13", "W14")
async def test_the_queue_is_restarted_while_the_outbox_and_a_consumer_deliver_into_it(
    database: str, connection: Connection, queue: Queue
) -> None:
    connection.execute("SELECT forge.current_identity()")
    accounts(connection)
    connection.execute("SELECT forge_enable_reactivity('account')")
    async with delivering(database, queue) as delivered:
        async with writing(database):
            for end in (queue.server.kill, queue.server.stop):
                enough = [count + 40 for count in delivered]
                await until(lambda enough=enough: all(a > b for a, b in zip(delivered, enough, strict=True)))  # type: ignore[misc]
                await asyncio.to_thread(end)
                await asyncio.to_thread(queue.server.start)
            enough = [count + 40 for count in delivered]
            await until(lambda: all(a > b for a, b in zip(delivered, enough, strict=True)))
        last: dict[str, int] = dict(connection.execute("SELECT id::text, n FROM account").fetchall())
        await until(lambda: not rows(connection))
        complete(database, await queue.stored(TOPIC))
        while True:
            seen = _numbers(await queue.stored(CHANGES))
            if {key: max(found) for key, found in seen.items()} == last:
                break
            await asyncio.sleep(0.02)
    assert seen == {key: list(range(1, n + 1)) for key, n in last.items()}
    assert rows(connection, "outbox_dead") == rows(connection, "dead_letter") == 0


def _numbers(stored: Parts) -> dict[str, list[int]]:
    """By key the numbers that an account had, as they came first; copies have the same id."""
    found: dict[str, list[int]] = defaultdict(list)
    ids: dict[tuple[str, int], str] = {}
    for key, id, payload in stored:
        n = msgspec.json.decode(payload)["after"]["n"]
        if ids.setdefault((key, n), id) != id:
            raise AssertionError(f"{key}/{n} came with two ids")
        if n not in found[key]:
            found[key].append(n)
    return dict(found)
