"""Workers that are killed at any moment lose nothing: others go on at once, and what comes twice has the same id."""

import asyncio
import random
import sys

import pytest

from forge.postgres.connection import Connection
from tests.deliver.outbox import receiver
from tests.deliver.outbox.accounts import accounts, complete, told, writing
from tests.deliver.outbox.draining import collecting, draining, put, rows, until


@pytest.mark.contract("W13", "W14")
@pytest.mark.parametrize("deaths", [2, pytest.param(15, marks=pytest.mark.long)])
async def test_workers_killed_at_random_lose_nothing_and_the_inbox_absorbs_what_comes_twice(
    database: str, connection: Connection, deaths: int
) -> None:
    receiver.tables(connection)
    accounts(connection)
    chance = random.Random(7)
    processes: list[asyncio.subprocess.Process] = []

    async def start() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.deliver.outbox.receiver", database, stdout=asyncio.subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"ready\n"

    async def moved_on() -> None:
        enough = rows(connection, "taken", "public") + 15
        await until(lambda: rows(connection, "taken", "public") > enough)

    try:
        await asyncio.gather(*(start() for _ in range(3)))
        async with writing(database):
            for death in range(deaths):
                await moved_on()
                await asyncio.sleep(chance.random() * 0.05)
                victim = processes.pop(0)
                victim.kill()
                await victim.wait()
                if deaths - death > 2:
                    await start()
            await moved_on()
        await until(lambda: not rows(connection))
    finally:
        for process in processes:
            process.kill()
            await process.wait()
    complete(database, receiver.arrived(connection))
    once = receiver.arrived(connection, "taken")
    assert len(once) == len(told(database))
    complete(database, once)


@pytest.mark.contract("W14")
async def test_a_dead_workers_messages_are_free_at_once(database: str, connection: Connection) -> None:
    """The rows that it had are claimed by another as soon as its session ends, long before any lease."""
    held, over = asyncio.Event(), asyncio.Event()
    routes, _ = collecting("never")

    @routes.on("t")
    async def hold(message: object) -> None:
        held.set()
        await over.wait()

    put(connection, "t", "x", key=1)
    others, got = collecting("t")
    async with draining(database, routes):
        await asyncio.wait_for(held.wait(), 20)
        async with draining(database, others):
            assert got == []
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'forge outbox t' AND state = 'idle in transaction'"
            )
            await until(lambda: got, 10)
        over.set()
    assert got[0].payload == b"x"
