"""Workers that are killed at any moment lose nothing: others go on at once, and what comes twice has the same id."""

import asyncio
import random
import sys

import pytest

import forge
from forge.changelog.connection import Connection, connect_async
from tests.deliver.outbox.draining import collecting, draining, put, rows, until

KEYS, EACH = 4, 15


@pytest.mark.contract("W13")
@pytest.mark.contract("W14")
async def test_workers_killed_at_random_lose_nothing_and_the_inbox_absorbs_what_comes_twice(
    database: str, connection: Connection
) -> None:
    connection.execute("CREATE TABLE arrival (place bigserial PRIMARY KEY, id text)")
    connection.execute("CREATE TABLE taken (place bigserial PRIMARY KEY, key text, n int)")
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

    async def moved_on(seen: int) -> None:
        await until(lambda: rows(connection, "taken", "public") > seen or not rows(connection), 60)

    async def kill_often() -> None:
        for _ in range(3):
            await start()
            seen = rows(connection, "taken", "public")
            await moved_on(seen)
            await asyncio.sleep(chance.random() * 0.05)
            victim = processes[-1]
            victim.kill()
            await victim.wait()

    async def write(key: int) -> None:
        async with await connect_async(database) as own:
            for n in range(EACH):
                async with own.transaction():
                    await forge.outbox(own, "t", str(n), key=key)

    try:
        await asyncio.gather(*(write(key) for key in range(KEYS)))
        await kill_often()
        await start()
        await until(lambda: not rows(connection), 60)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    taken = connection.execute(
        "SELECT key, array_agg(n ORDER BY place) FROM taken GROUP BY key ORDER BY key"
    ).fetchall()
    assert taken == [(str(key), list(range(EACH))) for key in range(KEYS)]
    arrived = connection.execute("SELECT count(*), count(DISTINCT id) FROM arrival").fetchone()
    assert arrived is not None
    assert arrived[0] >= arrived[1] == KEYS * EACH


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
