"""Pausing, rewinding and watching consumers; several nodes and shards; what a lost lease does."""

import asyncio
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forge.change import Change
from forge.changelog.maintenance import Maintainer, Policy
from forge.cursor import Cursor
from forge.deliver.consumers import ConsumerContext, ConsumerNode, Consumers
from forge.deliver.consumers.control import Control
from forge.errors import (
    ConfigError,
    ConsumerInvalid,
    ConsumerUnknown,
    CursorForeign,
    CursorInvalid,
    DeliveryRefused,
    HistoryUnavailable,
    NotDelivered,
    NotInstalled,
)
from forge.postgres.connection import Connection
from tests.deliver.consumers.working import table, until, working

Seen = list[str]


def one(seen: Seen, **options: Any) -> Consumers:
    found = Consumers()

    @found.consumer("all", tables=["item"], **options)
    async def take(ctx: ConsumerContext, change: Change) -> None:
        seen.append(change.row_id)

    return found


async def test_a_paused_consumer_handles_nothing_and_goes_on_where_it_was(
    database: str, connection: Connection
) -> None:
    table(connection)
    seen: Seen = []
    control = Control(database)
    async with working(database, one(seen)):
        connection.execute("INSERT INTO item VALUES (1)")
        await until(lambda: seen == ["1"])
        assert await control.pause("all")
        connection.execute("INSERT INTO item VALUES (2)")
        (status,) = await control.statuses()
        assert (status.state, status.working, status.lag_events) == ("paused", False, 1)
        assert status.lag_seconds is not None
        assert status.lag_seconds > 0
        assert seen == ["1"]
        await control.resume("all")
        await until(lambda: seen == ["1", "2"])


@pytest.mark.contract("T11")
async def test_rewinding_is_exact(database: str, connection: Connection) -> None:
    table(connection)
    seen: Seen = []
    control = Control(database)
    with Maintainer.open(database, Policy()) as keeper:
        async with working(database, one(seen, start="start")):
            for n in range(1, 4):
                connection.execute("INSERT INTO item VALUES (%s)", (n,))
            await until(lambda: len(seen) == 3)
            assert keeper.record_instant()
            at = datetime.now(UTC)
            (status,) = await control.statuses("all")
            connection.execute("INSERT INTO item VALUES (4), (5)")
            await until(lambda: len(seen) == 5)
            await control.rewind("all", at)
            await until(lambda: len(seen) == 7)
            await control.rewind("all", status.cursor)
            await until(lambda: len(seen) == 9)
            await control.rewind("all", "start")
            await until(lambda: len(seen) == 14)
            await control.rewind("all", "now")
            connection.execute("INSERT INTO item VALUES (6)")
            await until(lambda: len(seen) == 15)
    assert seen == [*"12345", *"45", *"45", *"12345", "6"]
    with pytest.raises(HistoryUnavailable):
        await control.rewind("all", at - timedelta(days=400))
    with pytest.raises(CursorInvalid):
        await control.rewind("all", "nonsense")
    uuid = Cursor.parse(status.cursor).log.uuid
    with pytest.raises(CursorForeign):
        await control.rewind("all", status.cursor.replace(uuid, "0" * 8 + uuid[8:]))
    with pytest.raises(ConsumerUnknown, match="there is no consumer 'al'"):
        await control.rewind("al", "start")


async def test_rewinding_inside_a_batch_is_exact(database: str, connection: Connection) -> None:
    """A cursor that was saved between two changes of one transaction leads to exactly the rest of it."""
    table(connection)
    seen: Seen = []
    control = Control(database)
    gate = asyncio.Event()
    consumers = Consumers()

    @consumers.consumer("all", tables=["item"])
    async def take(ctx: ConsumerContext, change: Change) -> None:
        if change.row_id == "6":
            await gate.wait()
        seen.append(change.row_id)

    async with working(database, consumers) as node:
        connection.execute("INSERT INTO item SELECT g FROM generate_series(1, 9) g")
        await until(lambda: len(seen) == 5)
        pausing = asyncio.create_task(control.pause("all"))
        await until(lambda: all(held.stopping for held in node._held.values()))
        gate.set()
        assert await pausing
        (status,) = await control.statuses("all")
        assert (seen, status.lag_events) == (list("123456"), 3)
        await control.resume("all")
        await until(lambda: len(seen) == 9)
        await control.rewind("all", status.cursor)
        await until(lambda: len(seen) == 12)
    assert seen == [*"123456789", *"789"]


@pytest.mark.contract("X1")
async def test_one_worker_at_a_time_and_another_node_takes_over(database: str, connection: Connection) -> None:
    table(connection)
    seen: list[tuple[str, str]] = []

    def consumers(node: str) -> Consumers:
        found = Consumers()

        @found.consumer("all", tables=["item"])
        async def take(ctx: ConsumerContext, change: Change) -> None:
            seen.append((node, change.row_id))

        return found

    async with working(database, consumers("b"), name="b") as other:
        async with working(database, consumers("a"), name="a"):
            for n in range(10):
                connection.execute("INSERT INTO item VALUES (%s)", (n,))
            await until(lambda: len(seen) == 10)
            assert len({node for node, _ in seen}) == 1
        connection.execute("INSERT INTO item VALUES (10)")
        await until(lambda: len(seen) == 11)
        assert len(other._held) == 1
    assert [key for _, key in seen] == [str(n) for n in range(11)]
    assert seen[-1][0] == "b"


async def test_a_worker_whose_lease_is_cut_stops_and_comes_back(database: str, connection: Connection) -> None:
    table(connection)
    seen: Seen = []
    async with working(database, one(seen)) as node:
        connection.execute("INSERT INTO item VALUES (1)")
        await until(lambda: seen == ["1"])
        fence = connection.execute("SELECT fence FROM forge.consumer_cursor").fetchone()
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'forge consumers%'"
            " AND datname = current_database()"
        )
        await until(lambda: connection.execute("SELECT fence FROM forge.consumer_cursor").fetchone() != fence)
        connection.execute("INSERT INTO item VALUES (2)")
        await until(lambda: seen[-1] == "2")
        assert node.working.is_set()


@pytest.mark.contract("X1")
async def test_no_call_begins_once_the_lease_may_be_anothers(database: str, connection: Connection) -> None:
    """As after a process was stopped for a while: its clock says that the server has given its locks away."""
    table(connection)
    seen: list[tuple[str, int]] = []
    running: list[ConsumerNode] = []
    consumers = Consumers()

    @consumers.consumer("all", tables=["item"])
    async def take(ctx: ConsumerContext, change: Change) -> None:
        seen.append((change.row_id, ctx.fence))
        if len(seen) == 2:
            (held,) = running[0]._held.values()
            held.worker._lease.proof.asked -= 60

    async with working(database, consumers) as node:
        running.append(node)
        connection.execute("INSERT INTO item VALUES (1), (2), (3), (4)")
        await until(lambda: seen and seen[-1][0] == "4")
    fences = sorted({fence for _, fence in seen})
    assert len(fences) == 2
    assert [key for key, fence in seen if fence == fences[0]] == ["1", "2"]
    assert [key for key, fence in seen if fence == fences[1]][-2:] == ["3", "4"]


@pytest.mark.contract("X1")
async def test_a_fenced_worker_saves_nothing_not_even_in_ctx_tx(database: str, connection: Connection) -> None:
    table(connection)
    connection.execute("CREATE TABLE seen (key text)")
    held = asyncio.Event()
    go = asyncio.Event()
    consumers = Consumers()

    @consumers.consumer("tx", tables=["item"])
    async def take(ctx: ConsumerContext, change: Change) -> None:
        held.set()
        await go.wait()
        await ctx.tx.execute("INSERT INTO seen VALUES (%s)", (change.row_id,))

    control = Control(database)
    async with working(database, consumers):
        (before,) = await control.statuses("tx")
        connection.execute("INSERT INTO item VALUES (1)")
        async with asyncio.timeout(20):
            await held.wait()
        await control.rewind("tx", before.cursor)  # raises the fence while a call is under way
        go.set()
        await until(lambda: connection.execute("SELECT count(*) FROM seen").fetchone() == (1,))
        await asyncio.sleep(0.1)
    assert connection.execute("SELECT count(*) FROM seen").fetchone() == (1,)


# Shards


def sharded(seen: dict[int, list[tuple[str, str]]], shards: int, **options: Any) -> Consumers:
    found = Consumers()

    @found.consumer("sharded", tables=["item"], shards=shards, **options)
    async def take(ctx: ConsumerContext, change: Change) -> None:
        await asyncio.sleep(0)
        seen[ctx.shard].append((change.op.value, change.row_id))

    return found


async def test_shards_share_the_keys_and_meet_at_a_truncate(database: str, connection: Connection) -> None:
    table(connection)
    seen: dict[int, list[tuple[str, str]]] = defaultdict(list)
    order: list[tuple[str, str]] = []
    consumers = Consumers()

    @consumers.consumer("sharded", tables=["item"], shards=3)
    async def take(ctx: ConsumerContext, change: Change) -> None:
        await asyncio.sleep(0.002 * ctx.shard)
        seen[ctx.shard].append((change.op.value, change.row_id))
        order.append((change.op.value, change.row_id))

    async with working(database, consumers):
        connection.execute("INSERT INTO item SELECT g FROM generate_series(1, 60) g")
        connection.execute("UPDATE item SET v = 'x'")
        connection.execute("TRUNCATE item")
        connection.execute("INSERT INTO item SELECT g FROM generate_series(1, 60) g")
        await until(lambda: len(order) == 181)
    assert set(seen) == {0, 1, 2}
    assert order[120] == ("truncate", "*")
    keys = [{key for op, key in some if op == "insert"} for some in seen.values()]
    assert sum(map(len, keys)) == 60 == len(set.union(*keys))
    for some in seen.values():
        for key in {key for _, key in some} - {"*"}:
            assert [op for op, of in some if of == key] == ["insert", "update", "insert"]


async def test_shards_are_spread_over_the_nodes_that_there_are(database: str, connection: Connection) -> None:
    table(connection)
    first: dict[int, list[tuple[str, str]]] = defaultdict(list)
    second: dict[int, list[tuple[str, str]]] = defaultdict(list)
    async with working(database, sharded(first, 4), name="a") as a:
        await until(lambda: len(a._held) == 4)
        async with working(database, sharded(second, 4), name="b") as b:
            await until(lambda: len(a._held) == len(b._held) == 2)
            connection.execute("INSERT INTO item SELECT g FROM generate_series(1, 40) g")
            await until(lambda: sum(map(len, [*first.values(), *second.values()])) == 40)
            assert first.keys() | second.keys() == {0, 1, 2, 3}
        await until(lambda: len(a._held) == 4)
        connection.execute("UPDATE item SET v = 'x'")
        await until(lambda: sum(map(len, first.values())) + sum(map(len, second.values())) == 80)


async def test_another_number_of_shards_needs_them_at_one_place(database: str, connection: Connection) -> None:
    table(connection)
    seen: dict[int, list[tuple[str, str]]] = defaultdict(list)
    async with working(database, sharded(seen, 2)):
        connection.execute("INSERT INTO item SELECT g FROM generate_series(1, 20) g")
        await until(lambda: sum(map(len, seen.values())) == 20)
    connection.execute("UPDATE item SET v = 'x'")
    (now, other) = await Control(database).statuses("sharded")
    earlier = now.cursor.rpartition("_")[0] + "_3:3:"
    connection.execute("UPDATE forge.consumer_cursor SET cursor = %s WHERE shard = 0", (earlier,))
    with pytest.raises(ConsumerInvalid, match="stand at different places"):
        async with working(database, sharded(seen, 4)):
            pass
    await Control(database).rewind("sharded", other.cursor)
    seen.clear()
    async with working(database, sharded(seen, 4)):
        await until(lambda: sum(map(len, seen.values())) == 20)
    assert len(seen) == 4


# Sinks


class Receiver:
    """A sink that takes what it is told to."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str | None, str]] = []
        self.trouble: list[Exception] = []
        self.closed = False

    async def send(self, messages: Any, /) -> None:
        if self.trouble:
            error = self.trouble.pop(0)
            if isinstance(error, NotDelivered):
                self.got += [(m.topic, m.key, m.id) for m in messages[: error.delivered]]
            if isinstance(error, DeliveryRefused):
                self.got += [(m.topic, m.key, m.id) for m in messages[: error.place]]
            raise error
        self.got += [(m.topic, m.key, m.id) for m in messages]

    async def close(self) -> None:
        self.closed = True


@pytest.mark.contract("W13")
async def test_a_sink_is_given_every_change_and_told_of_trouble(database: str, connection: Connection) -> None:
    table(connection)
    receiver = Receiver()
    receiver.trouble = [
        NotDelivered("busy", after=0.01, delivered=2),
        NotDelivered("busy"),
        DeliveryRefused("too odd", place=1),
    ]
    consumers = Consumers()
    consumers.deliver("out", to=receiver, tables=["item"], ops=["insert"], topic="items", backoff=(0.001, 0.01))
    async with working(database, consumers) as node:
        connection.execute("INSERT INTO item SELECT g FROM generate_series(1, 6) g")
        await until(lambda: len(receiver.got) == 5)
        await node.close()
    assert receiver.closed
    assert [key for _, key, _ in receiver.got] == ["1", "2", "3", "5", "6"]
    assert {topic for topic, _, _ in receiver.got} == {"items"}
    (letter,) = await Control(database).letters("out")
    assert (letter.key, letter.error) == ("4", "DeliveryRefused: too odd")


# What is refused


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"batch": 0}, "batch of x cannot be 0"),
        ({"shards": 0}, "shards of x cannot be 0"),
        ({"tries": 0}, "tries of x cannot be 0"),
        ({"timeout": 0}, "timeout of x cannot be 0"),
        ({"backoff": (2, 1)}, "backoff of x"),
        ({"start": "then"}, "start of x cannot be 'then'"),
        ({"ops": ["updat"]}, "ops of x cannot have 'updat'"),
        ({"tables": "orders"}, "are lists"),
        ({"retries": 3}, "no option retries"),
    ],
)
def test_a_consumer_that_cannot_work_is_refused_when_declared(options: dict[str, Any], wanted: str) -> None:
    async def take(ctx: ConsumerContext, change: Change) -> None: ...

    with pytest.raises(ConsumerInvalid, match=wanted):
        Consumers().declare("x", take, **options)


def test_a_handler_must_be_async_and_take_a_context_and_a_change() -> None:
    consumers = Consumers()

    def blocking(ctx: ConsumerContext, change: Change) -> None: ...

    async def short(ctx: ConsumerContext) -> None: ...

    async def right(ctx: ConsumerContext, change: Change) -> None: ...

    with pytest.raises(ConsumerInvalid, match="not an async function"):
        consumers.declare("x", blocking)  # type: ignore[arg-type]
    with pytest.raises(ConsumerInvalid, match="does not take"):
        consumers.declare("x", short)
    with pytest.raises(ConsumerInvalid, match="not a consumer's name"):
        consumers.declare("x y", right)
    with pytest.raises(ConfigError):
        consumers.declare("x", right, where="total >")
    with pytest.raises(ConsumerInvalid, match="no sink"):
        consumers.deliver("x", to=object())  # type: ignore[arg-type]
    with pytest.raises(ConsumerInvalid, match="envelope"):
        consumers.deliver("x", to=Receiver(), envelope="avro")  # type: ignore[arg-type]
    consumers.declare("x", right)
    with pytest.raises(ConsumerInvalid, match="two consumers"):
        consumers.declare("x", right)


async def test_a_node_without_forge_says_so(empty_database: str) -> None:
    with pytest.raises(NotInstalled):
        async with working(empty_database, one([])):
            pass
