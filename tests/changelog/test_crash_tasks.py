"""A crash of the server is survived without a task that fails unseen: asyncio has nothing to complain about."""

import asyncio
import gc
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from forge.app import Forge
from forge.change import Change
from forge.changelog.install import install
from forge.changelog.reader import PAGE, Reader
from forge.embedded import PostgresServer
from forge.postgres.connection import connect
from forge.testing import temporary_postgres
from forge.tracking.notify import listen
from tests.changelog.following import Follower, eventually, now
from tests.serve.serving import serving

ROWS = 5 * PAGE
"""More than a few pages of the reader, so that one is fetched while another is handled."""


@pytest.fixture
def mortal() -> Iterator[PostgresServer]:
    with temporary_postgres() as server:
        with connect(server.url()) as connection:
            install(connection)
            connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
            connection.execute("SELECT forge_enable_reactivity('orders')")
        yield server


async def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What asyncio said of failures that nobody took: it says so when a task is collected."""
    for _ in range(3):
        await asyncio.sleep(0)
        gc.collect()
    return [record.getMessage() for record in caplog.records if record.name == "asyncio"]


async def test_a_reader_that_is_closed_after_a_crash(mortal: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    cursor = await now(mortal.url())
    with connect(mortal.url()) as connection:
        connection.execute("INSERT INTO orders SELECT n, 'new' FROM generate_series(1, %s) n", (ROWS,))
    async with asyncio.timeout(60), Reader.open(mortal.url()) as reader:
        batches = reader.read(cursor)
        read = [await anext(batches), await anext(batches)]
        await asyncio.to_thread(mortal.crash)
        read.append(await anext(batches))  # was fetched before the crash; the page behind it cannot be
        await batches.aclose()
    assert sum(len(batch.changes) for batch in read) == 3 * PAGE
    del batches
    assert await complaints(caplog) == []


async def test_followers_and_a_listener_through_a_crash(
    mortal: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    cursor = await now(mortal.url())
    async with listen(mortal.url(), "news") as listener:
        hearing = asyncio.create_task(anext(listener))
        async with Follower(mortal.url(), cursor) as one, Follower(mortal.url(), cursor, wakeup="poll") as two:
            for id in (1, 2):
                with connect(mortal.url()) as connection:
                    connection.execute("INSERT INTO orders VALUES (%s, 'new')", (id,))
                for node in (one, two):
                    await node.got(id)
                if id == 1:
                    await asyncio.to_thread(mortal.crash)
                    await asyncio.to_thread(mortal.start)
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
    assert await complaints(caplog) == []


async def test_a_served_application_with_a_consumer_through_a_crash(
    mortal: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = Forge(mortal.url())
    handled: list[str] = []

    @app.query(scope="public")
    async def orders(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT id, status FROM orders ORDER BY id")

    @app.consumer("copy", tables=["orders"])
    async def copy(ctx: Any, change: Change) -> None:
        handled.append(change.row_id)

    async with serving(app) as served, served.stream("/forge/live/orders") as stream:
        await stream.named("snapshot")
        with connect(mortal.url()) as connection:  # a new consumer begins at the present, so it must be there first
            registered = "SELECT count(*) > 0 FROM forge.consumer_cursor"
            await eventually(lambda: connection.execute(registered).fetchone() == (True,))
        await asyncio.to_thread(mortal.crash)
        await asyncio.to_thread(mortal.start)
        with connect(mortal.url()) as connection:
            connection.execute("INSERT INTO orders VALUES (1, 'new')")
        await stream.until(lambda event: '"new"' in event.data)
        await eventually(lambda: set(handled) == {"1"})  # twice, if the lost session could not save the first time
    assert await complaints(caplog) == []
    assert not [record for record in caplog.records if "a background task failed" in record.getMessage()]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING]  # the crash was told
