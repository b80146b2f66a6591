"""What a handler gets: every change, once while nothing fails, in order, from where it was."""

import asyncio
from typing import Any

import pytest

from forge.change import Change
from forge.changelog.connection import Connection
from forge.deliver.consumers import Consumers
from tests.deliver.consumers.working import table, until, working


@pytest.mark.contract("T7", "W12")
async def test_every_change_comes_once_and_goes_on_where_it_was(database: str, connection: Connection) -> None:
    table(connection)
    seen: list[Any] = []

    def consumers() -> Consumers:
        found = Consumers()

        @found.consumer("all", tables=["item"], ops=["insert", "update", "delete"])
        async def take(ctx: Any, change: Change) -> None:
            seen.append((change.op.value, change.row_id))

        return found

    async with working(database, consumers()):
        connection.execute("INSERT INTO item SELECT g, 'x' FROM generate_series(1, 5) g")
        await until(lambda: len(seen) == 5)
    connection.execute("UPDATE item SET v = 'y' WHERE id = 3; DELETE FROM item WHERE id = 4")
    async with working(database, consumers()):
        await until(lambda: len(seen) == 7)
        await asyncio.sleep(0.1)
    assert seen == [*(("insert", str(n)) for n in range(1, 6)), ("update", "3"), ("delete", "4")]
