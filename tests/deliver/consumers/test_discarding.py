"""A dead letter that is discarded holds nothing up any more: what waited behind it goes on, in order, and no sooner."""

import asyncio

from forge.change import Change
from forge.deliver.consumers import ConsumerContext, Consumers
from forge.deliver.consumers.sql import sql
from forge.postgres.connection import Connection
from tests.deliver.consumers.working import table, until, working


def letters(connection: Connection) -> list[tuple[int, str | None]]:
    return [(id, key) for id, key in connection.execute("SELECT id, key FROM forge.dead_letter ORDER BY id").fetchall()]


def discard(connection: Connection, id: int) -> int:
    with connection.transaction():
        connection.execute(sql("keep_letters"))
        row = connection.execute(sql("discard_letter"), {"id": id}).fetchone()
    assert row is not None
    return int(row[0])


async def test_what_waits_behind_two_goes_on_when_both_are_gone(database: str, connection: Connection) -> None:
    table(connection)
    seen: list[str] = []
    consumers = Consumers()

    @consumers.consumer("all", tables=["item"], tries=1, backoff=(0.01, 0.01))
    async def take(ctx: ConsumerContext, change: Change) -> None:
        if change.op == "insert" and (change.after or {})["v"] == "broken":
            raise ValueError("broken")
        seen.append(f"{change.op} {change.row_id}")

    async with working(database, consumers):
        connection.execute("INSERT INTO item VALUES (1, 'broken'), (2, 'broken')")
        connection.execute("TRUNCATE item")
        connection.execute("INSERT INTO item VALUES (1, 'well')")
        connection.execute("INSERT INTO item VALUES (3, 'well')")
        await until(lambda: len(letters(connection)) == 5)
        (first, _), (second, _), *behind = letters(connection)
        assert discard(connection, behind[-1][0]) == 1  # one that itself waits lets nobody through
        assert discard(connection, first) == 1
        assert discard(connection, first) == 0
        connection.execute("INSERT INTO item VALUES (4, 'well')")
        await until(lambda: len(letters(connection)) == 4)
        assert (seen, letters(connection)[0]) == ([], (second, "2"))
        assert discard(connection, second) == 1
        await until(lambda: not letters(connection))
    assert seen == ["truncate *", "insert 1", "insert 4"]


async def test_what_was_to_wait_behind_one_that_is_gone_meanwhile_goes_on(
    database: str, connection: Connection
) -> None:
    """A worker looks for letters once for each page of changes."""
    table(connection)
    seen: list[str] = []
    busy, go = asyncio.Event(), asyncio.Event()
    consumers = Consumers()

    @consumers.consumer("all", tables=["item"], tries=1, backoff=(0.01, 0.01))
    async def take(ctx: ConsumerContext, change: Change) -> None:
        value = (change.after or {})["v"]
        if value == "broken":
            raise ValueError("broken")
        if value == "slow":
            busy.set()
            await go.wait()
        seen.append(value)

    async with working(database, consumers):
        connection.execute("INSERT INTO item VALUES (1, 'broken')")
        await until(lambda: letters(connection))
        connection.execute("INSERT INTO item VALUES (2, 'slow'), (3, 'after it')")
        await until(busy.is_set)
        busy.clear()
        go.set()
        await until(lambda: seen == ["slow", "after it"])
        go.clear()
        with connection.transaction():
            connection.execute("UPDATE item SET v = 'slow' WHERE id = 2")
            connection.execute("UPDATE item SET v = 'well' WHERE id = 1")
        await until(busy.is_set)
        assert discard(connection, letters(connection)[0][0]) == 1
        go.set()
        await until(lambda: seen[2:] == ["slow", "well"])
        await until(lambda: not letters(connection))


async def test_one_that_fails_again_after_it_was_discarded_holds_nothing_up(
    database: str, connection: Connection
) -> None:
    """An operator sends it again, gives it up while its handler runs, and then that fails."""
    table(connection)
    seen: list[str] = []
    tried = 0
    busy, go = asyncio.Event(), asyncio.Event()
    consumers = Consumers()

    @consumers.consumer("all", tables=["item"], tries=1, backoff=(0.01, 0.01))
    async def take(ctx: ConsumerContext, change: Change) -> None:
        nonlocal tried
        value = (change.after or {})["v"]
        if value == "broken":
            tried += 1
            if tried == 2:
                busy.set()
                await go.wait()
            raise ValueError("broken")
        seen.append(value)

    async with working(database, consumers):
        connection.execute("INSERT INTO item VALUES (1, 'broken')")
        await until(lambda: letters(connection))
        connection.execute("UPDATE item SET v = 'behind it'")
        await until(lambda: len(letters(connection)) == 2)
        connection.execute("UPDATE forge.dead_letter SET replay = true")
        await until(busy.is_set)
        assert discard(connection, letters(connection)[0][0]) == 1
        go.set()
        await until(lambda: not letters(connection))
        connection.execute("UPDATE item SET v = 'later'")
        await until(lambda: seen == ["behind it", "later"])
