"""A tracked engine and live queries on one database: what the engine commits is pushed, with who and why."""

from typing import Any

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, create_engine, insert, text, update
from sqlalchemy.ext.asyncio import create_async_engine

import forge
from forge.postgres.connection import Connection as Admin
from tests.react.live import live

metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("status", String))


def first(connection: Connection) -> None:
    connection.execute(insert(orders), [{"id": 1, "status": "open"}, {"id": 2, "status": "done"}])


def second(connection: Connection) -> None:
    connection.execute(update(orders).where(orders.c.id == 2).values(status="open"))


def third(connection: Connection) -> None:
    connection.execute(text("DELETE FROM orders WHERE id = 1"))


@pytest.mark.contract("M6", "R1")
@pytest.mark.parametrize("driver", ["sync", "async"])
async def test_what_a_tracked_engine_commits_is_pushed_with_who_and_why(
    database: str, connection: Admin, driver: str
) -> None:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
    connection.execute("SELECT forge_enable_reactivity('orders')")
    url = database.replace("postgresql://", "postgresql+psycopg://")
    plain, engine = create_engine(url), create_async_engine(url)
    forge.track(plain)
    forge.track(engine)

    async def run(work: Any, *, roll_back: bool = False) -> None:
        with forge.context(user_id="ada", function_name=work.__name__):
            if driver == "sync":
                with plain.connect() as sync:
                    work(sync)
                    sync.rollback() if roll_back else sync.commit()
            else:
                async with engine.connect() as made:
                    await made.run_sync(work)
                    await (made.rollback() if roll_back else made.commit())

    async with live(database) as shop:
        shop.sql("open", "SELECT id FROM orders WHERE status = 'open' ORDER BY id")
        watcher = shop.watch("open")
        await watcher.has([])
        for work, expected in ((first, [{"id": 1}]), (second, [{"id": 1}, {"id": 2}]), (third, [{"id": 2}])):
            await run(work, roll_back=True)
            await run(work)
            await watcher.has(expected)
            assert {(cause.user, cause.function) for cause in watcher.pushes[-1].causes} == {("ada", work.__name__)}
    with plain.connect() as sync:
        assert not sync.dialect.has_table(sync, "forge_tracked_changes"), "the triggers have recorded it"
    plain.dispose()
    await engine.dispose()
