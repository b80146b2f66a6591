"""From a transaction to a receiver: what is sent, what is not, in which order, and when."""

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

import forge
from forge.deliver.message import Message
from forge.deliver.outbox import OutboxSettings, Routes
from forge.deliver.outbox.control import OutboxControl
from forge.errors import DeliveryRefused, NotDelivered
from forge.postgres.connection import Connection, connect, connect_async
from tests.deliver.outbox.draining import collecting, draining, put, rows, until


@pytest.mark.contract("W14")
@pytest.mark.every_version
async def test_a_message_is_sent_after_its_commit_and_gone(database: str, connection: Connection) -> None:
    routes, got = collecting()
    async with draining(database, routes):
        with connection.transaction():
            id = forge.outbox(connection, "order.paid", {"id": 7}, key=7, headers={"trace": "a1"})
        await until(lambda: got and not rows(connection))
    assert [(m.id, m.topic, m.key, json.loads(m.payload), m.headers, m.content_type) for m in got] == [
        (id, "order.paid", "7", {"id": 7}, {"trace": "a1"}, "application/json")
    ]


@pytest.mark.contract("W14")
async def test_a_rollback_sends_nothing(database: str, connection: Connection) -> None:
    routes, got = collecting()
    async with draining(database, routes):
        with connection.transaction(force_rollback=True):
            forge.outbox(connection, "order.paid", "no")
        with connection.transaction():
            with connection.transaction(force_rollback=True):
                forge.outbox(connection, "order.paid", "no savepoint")
            forge.outbox(connection, "order.paid", "yes")
        await until(lambda: got)
    assert [m.payload for m in got] == [b"yes"]


@pytest.mark.contract("W14")
async def test_a_notify_wakes_it_long_before_the_poll_and_the_poll_finds_what_was_not_told(
    database: str, connection: Connection
) -> None:
    routes, got = collecting()
    async with draining(database, routes, OutboxSettings(poll=3600)) as node:
        await until(lambda: all(worker.asleep for worker in node.workers))
        put(connection, "a", "told")
        await until(lambda: got)
    got.clear()
    async with draining(database, routes, OutboxSettings(poll=0.05)) as node:
        await until(lambda: all(worker.asleep for worker in node.workers))
        connection.execute(
            "INSERT INTO forge.outbox (topic, payload, content_type) VALUES ('a', 'untold', 'text/plain')"
        )
        await until(lambda: got)
    assert got[0].payload == b"untold"


@pytest.mark.contract("W14")
async def test_messages_of_a_key_are_sent_in_order_under_concurrency(database: str, connection: Connection) -> None:
    """Writers that lock the row of their key, and workers on two nodes that are slow at random."""
    connection.execute("CREATE TABLE account (id int PRIMARY KEY, n int NOT NULL)")
    connection.execute("INSERT INTO account SELECT g, 0 FROM generate_series(0, 4) g")
    got: list[tuple[str | None, int]] = []
    inside: set[str | None] = set()
    overlaps: list[str | None] = []

    def routes() -> Routes:
        found = Routes()

        async def keep(message: Message) -> None:
            if message.key in inside:
                overlaps.append(message.key)
            inside.add(message.key)
            await asyncio.sleep(0.001 * (len(got) % 3))
            got.append((message.key, int(message.payload)))
            inside.discard(message.key)

        found.on("even", batch=7, workers=2)(keep)
        found.on("od*", batch=3)(keep)
        return found

    async def write(number: int) -> None:
        async with await connect_async(database) as own:
            for step in range(30):
                key = (number + step) % 5
                async with own.transaction():
                    cursor = await own.execute("UPDATE account SET n = n + 1 WHERE id = %s RETURNING n", (key,))
                    row = await cursor.fetchone()
                    assert row is not None
                    await forge.outbox(own, "even" if row[0] % 2 == 0 else "odd", str(row[0]), key=key)

    async with draining(database, routes()), draining(database, routes()):
        await asyncio.gather(*(write(number) for number in range(5)))
        await until(lambda: len(got) == 150 and not rows(connection))
    assert overlaps == []
    for key in range(5):
        assert [n for k, n in got if k == str(key)] == list(range(1, 31))


@pytest.mark.contract("W14")
async def test_a_smaller_number_that_is_committed_late_is_sent_all_the_same(
    database: str, connection: Connection
) -> None:
    routes, got = collecting(batch=2)
    with connect(database) as slow, slow.transaction():
        forge.outbox(slow, "a", "late", key=1)
        async with draining(database, routes):
            for number in range(5):
                put(connection, "a", str(number), key=1)
            await until(lambda: len(got) == 5)
    async with draining(database, routes):
        await until(lambda: len(got) == 6)
    assert [m.payload for m in got] == [b"0", b"1", b"2", b"3", b"4", b"late"]


async def test_a_scheduled_message_is_sent_when_it_is_due_and_holds_nobody_up(
    database: str, connection: Connection
) -> None:
    routes, got = collecting()
    async with draining(database, routes, OutboxSettings(poll=3600)):
        began = time.monotonic()
        put(connection, "a", "later", key=1, after=timedelta(seconds=0.4))
        put(connection, "a", "at", key=1, after=datetime.now(UTC) + timedelta(seconds=0.2))
        put(connection, "a", "now", key=1)
        put(connection, "a", "past", key=1, after=datetime(2020, 1, 1, tzinfo=UTC))
        await until(lambda: len(got) == 4)
        assert time.monotonic() - began >= 0.4
    assert [m.payload for m in got] == [b"now", b"past", b"at", b"later"]


@pytest.mark.contract("W14")
async def test_a_poison_message_holds_up_its_own_key_only_and_is_parked(database: str, connection: Connection) -> None:
    routes, got = Routes(), list[str]()
    healed = False

    @routes.on("*", tries=3, backoff=(0.01, 0.02))
    async def handle(message: Message) -> None:
        if message.payload == b"poison" and not healed:
            raise ValueError("it is bad\0 indeed")
        got.append(message.payload.decode())

    for key, payload in ((1, "poison"), (1, "behind"), (2, "other"), (None, "free")):
        put(connection, "a", payload, key=key)
    async with draining(database, routes):
        await until(lambda: rows(connection, "outbox_dead") == 2)
        put(connection, "a", "behind too", key=1)
        await until(lambda: rows(connection, "outbox_dead") == 3)
        assert sorted(got) == ["free", "other"]
        control = OutboxControl(database)
        dead = control.dead()
        assert [(each.state, each.tries) for each in dead] == [("dead", 3), ("behind", 0), ("behind", 0)]
        assert dead[0].error == "ValueError: it is bad� indeed"
        healed = True
        assert control.replay_dead(key="1") == 3
        await until(lambda: len(got) == 5)
        assert rows(connection, "outbox_dead") == 0
    assert got[2:] == ["poison", "behind", "behind too"]


async def test_a_refused_message_is_parked_at_once_and_can_be_dropped(database: str, connection: Connection) -> None:
    sink = Picky()
    routes = Routes()
    routes.to("*", sink)
    for payload in ("a", "refuse", "b"):
        put(connection, "t", payload, key=1)
    put(connection, "t", "c", key=2)
    async with draining(database, routes):
        await until(lambda: rows(connection, "outbox_dead") == 2 and not rows(connection))
        assert sorted(sink.got) == ["a", "c"]
        assert OutboxControl(database).drop_dead(topic="t") == (1, 1)
        await until(lambda: "b" in sink.got)
    assert sink.closed


async def test_a_receiver_that_is_down_loses_nothing_and_keeps_the_order(database: str, connection: Connection) -> None:
    sink = Picky()
    sink.down = True
    routes = Routes()
    routes.to("*", sink, backoff=(0.01, 0.05))
    for number in range(30):
        put(connection, "t", str(number), key=number % 3)
    async with draining(database, routes):
        await until(lambda: sink.calls >= 3)
        assert sink.got == []
        sink.down = False
        await until(lambda: not rows(connection))
    for key in range(3):
        assert [n for n in map(int, sink.got) if n % 3 == key] == list(range(key, 30, 3))
    assert rows(connection, "outbox_dead") == 0


async def test_a_handler_that_hangs_or_returns_something_is_tried_again(database: str, connection: Connection) -> None:
    routes, calls = Routes(), list[str]()

    @routes.on("hang", timeout=0.05, tries=2, backoff=(0.01, 0.01))
    async def hang(message: Message) -> None:
        calls.append("hang")
        await asyncio.sleep(3600)

    @routes.on("wrong", tries=1, backoff=(0.01, 0.01))
    async def wrong(message: Message) -> bool | None:
        calls.append("wrong")
        return False if calls.count("wrong") == 1 else None

    put(connection, "hang", "")
    put(connection, "wrong", "")
    async with draining(database, routes):
        await until(lambda: rows(connection, "outbox_dead") == 1 and not rows(connection))
    assert sorted(calls) == ["hang", "hang", "wrong", "wrong"]
    (letter,) = OutboxControl(database).dead()
    assert letter.error == "the handler took longer than 0.05 s"


async def test_what_has_no_route_waits_and_the_most_particular_route_takes_it(
    database: str, connection: Connection
) -> None:
    routes, got = Routes(), list[tuple[str, str]]()

    def keep(name: str, pattern: str) -> None:
        async def handle(message: Message) -> None:
            got.append((name, message.topic))

        routes.on(pattern)(handle)

    keep("orders", "order.*")
    keep("paid", "order.paid")
    for topic in ("order.new", "order.paid", "user.new"):
        put(connection, topic, "")
    async with draining(database, routes):
        await until(lambda: rows(connection) == 1)
    assert sorted(got) == [("orders", "order.new"), ("paid", "order.paid")]
    assert [(each.topic, each.waiting) for each in OutboxControl(database).lag()] == [("user.new", 1)]


class Picky:
    """A sink that refuses what says so, and may be down."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.down = False
        self.calls = 0
        self.closed = False

    async def send(self, messages: Sequence[Message], /) -> None:
        self.calls += 1
        if self.down:
            raise NotDelivered("it is down")
        for place, message in enumerate(messages):
            if message.payload == b"refuse":
                raise DeliveryRefused("never", place=place)
            self.got.append(message.payload.decode())

    async def close(self) -> None:
        self.closed = True
