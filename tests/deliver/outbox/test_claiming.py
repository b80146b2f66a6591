"""Workers that are in each other's way, or come upon what they did not expect."""

import asyncio
from collections.abc import Sequence

import pytest

from forge.deliver.message import Message
from forge.deliver.outbox import OutboxSettings, Routes
from forge.errors import NotInstalled
from forge.postgres.connection import Connection
from tests.deliver.outbox.accounts import accounts, complete, parts, writing
from tests.deliver.outbox.draining import collecting, draining, put, rows, until


@pytest.mark.contract("W14")
async def test_a_worker_keeps_no_key_from_another_whose_first_message_that_one_has(
    database: str, connection: Connection
) -> None:
    """While the second is busy with a key of its own, the first goes on with what it has begun."""
    gates = {name: asyncio.Event() for name in ("k1", "l1")}
    got: list[str] = []
    begun: set[str] = set()

    def routes() -> Routes:
        found = Routes()

        @found.on("*")
        async def take(message: Message) -> None:
            name = message.payload.decode()
            begun.add(name)
            if name in gates:
                await gates[name].wait()
            got.append(name)

        return found

    put(connection, "t", "k1", key="k")
    async with draining(database, routes(), OutboxSettings(poll=0.05)):
        await until(lambda: "k1" in begun)
        put(connection, "t", "k2", key="k")
        put(connection, "t", "l1", key="l")
        async with draining(database, routes(), OutboxSettings(poll=0.05)):
            await until(lambda: "l1" in begun)
            gates["k1"].set()
            await until(lambda: got == ["k1", "k2"])
            gates["l1"].set()
            await until(lambda: not rows(connection))
    assert got == ["k1", "k2", "l1"]


@pytest.mark.contract("W14")
async def test_nobody_sleeps_while_something_waits_though_several_try_at_once(
    database: str, connection: Connection
) -> None:
    """Without a poll: a worker that found another in its way looks again by itself."""
    accounts(connection, 2)
    routes, got = collecting(batch=3, workers=3)
    async with draining(database, routes, OutboxSettings(poll=3600)):
        async with writing(database, writers=3, keys=2, pause=0.0):
            await until(lambda: len(got) > 150)
        await until(lambda: not rows(connection))
    complete(database, parts(got))
    assert len(got) == len({each.id for each in got})


async def test_a_batch_is_bounded_in_bytes(database: str, connection: Connection) -> None:
    sizes: list[int] = []

    class Measuring:
        async def send(self, messages: Sequence[Message], /) -> None:
            sizes.append(sum(len(each.payload) for each in messages))

        async def close(self) -> None: ...

    routes = Routes()
    routes.to("*", Measuring())
    for _ in range(20):
        put(connection, "t", b"x" * (1 << 20))
    async with draining(database, routes):
        await until(lambda: not rows(connection))
    assert sum(sizes) == 20 << 20
    assert max(sizes) == 16 << 20


@pytest.mark.contract("W14")
async def test_a_worker_goes_on_after_an_error_of_the_database(database: str, connection: Connection) -> None:
    routes, got = collecting()
    async with draining(database, routes, OutboxSettings(poll=0.05)) as node:
        put(connection, "t", "one")
        await until(lambda: len(got) == 1)
        # in a thread: it waits for a claim, which ends only while this loop goes on
        await asyncio.to_thread(connection.execute, "ALTER TABLE forge.outbox RENAME TO elsewhere")
        await until(lambda: not node.workers[0].asleep)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(connection.execute, "ALTER TABLE forge.elsewhere RENAME TO outbox")
        put(connection, "t", "two")
        await until(lambda: len(got) == 2)
        assert not node.ended.done()


async def test_a_database_without_forge_is_told_at_once(empty_database: str) -> None:
    routes, _ = collecting()
    with pytest.raises(NotInstalled) as caught:
        async with draining(empty_database, routes):
            pass
    assert caught.value.fix == "forge init"


@pytest.mark.contract("W14")
@pytest.mark.parametrize("messages", [1, 2])
async def test_a_handler_that_is_cancelled_by_something_of_its_own_has_failed(
    database: str, connection: Connection, messages: int
) -> None:
    routes, calls = Routes(), list[str]()

    @routes.on("*", backoff=(0.01, 0.01))
    async def take(message: Message) -> None:
        calls.append(message.id)
        if len(calls) <= messages:
            raise asyncio.CancelledError

    for _ in range(messages):
        put(connection, "t", "x")
    async with draining(database, routes):
        await until(lambda: not rows(connection))
    assert len(calls) == 2 * messages
    assert rows(connection, "outbox_dead") == 0
