"""What a handler gets: every change, once while nothing fails, in order, from where it was."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from forge.change import Change
from forge.deliver.consumers import ConsumerContext, Consumers
from forge.deliver.consumers.control import Control
from forge.errors import DeliveryRefused, HandlerMisused, NotDelivered
from forge.postgres.connection import Connection, connect
from tests.deliver.consumers.working import QUICK, table, until, working

Seen = list[tuple[str, str]]
NO_WAIT = (0.001, 0.01)


def one(seen: Seen, **options: Any) -> Consumers:
    """A consumer that remembers what it saw."""
    found = Consumers()

    @found.consumer("all", tables=["item"], **options)
    async def take(ctx: ConsumerContext, change: Change) -> None:
        seen.append((change.op.value, change.row_id))

    return found


def failing(seen: Seen, fails: Callable[[Change], Exception | None], **options: Any) -> Consumers:
    """A consumer of one change a call that fails for some."""
    found = Consumers()

    @found.consumer("all", tables=["item"], backoff=NO_WAIT, **options)
    async def take(ctx: ConsumerContext, change: Change) -> None:
        if (error := fails(change)) is not None:
            raise error
        seen.append((change.op.value, change.row_id))

    return found


@pytest.mark.contract("T7", "W12")
async def test_every_change_comes_once_and_goes_on_where_it_was(database: str, connection: Connection) -> None:
    table(connection)
    seen: Seen = []
    async with working(database, one(seen)):
        connection.execute("INSERT INTO item SELECT g, 'x' FROM generate_series(1, 5) g")
        await until(lambda: len(seen) == 5)
    connection.execute("UPDATE item SET v = 'y' WHERE id = 3; DELETE FROM item WHERE id = 4; TRUNCATE item")
    async with working(database, one(seen)) as node:
        await until(lambda: len(seen) == 8)
        (sample,) = node.samples()
        assert sample.counts.delivered == 3
    assert seen == [
        *(("insert", str(n)) for n in range(1, 6)), ("update", "3"), ("delete", "4"), ("truncate", "*"),
    ]  # fmt: skip


async def test_a_new_consumer_begins_now_or_at_the_start(database: str, connection: Connection) -> None:
    table(connection)
    connection.execute("INSERT INTO item VALUES (1)")
    now: Seen = []
    start: Seen = []
    consumers = one(now)

    @consumers.consumer("old", tables=["item"], start="start")
    async def take(ctx: ConsumerContext, change: Change) -> None:
        start.append((change.op.value, change.row_id))

    async with working(database, consumers):
        connection.execute("INSERT INTO item VALUES (2)")
        await until(lambda: len(start) == 2 and now)
    assert now == [("insert", "2")]
    assert start == [("insert", "1"), ("insert", "2")]


async def test_what_is_wanted_is_chosen_by_table_operation_columns_and_condition(
    database: str, connection: Connection
) -> None:
    table(connection)
    table(connection, "other")
    seen: list[Any] = []
    consumers = Consumers()

    @consumers.consumer("some", tables=["it*"], ops=["UPDATE"], where="id > 1", batch=10, columns=["v"])
    async def take(ctx: ConsumerContext, changes: list[Change]) -> None:
        assert isinstance(changes, list)
        seen.extend((change.row_id, change.after) for change in changes)

    async with working(database, consumers):
        connection.execute("INSERT INTO other VALUES (5)")
        connection.execute("INSERT INTO item VALUES (1), (2), (3)")
        connection.execute("UPDATE item SET v = 'y'")
        await until(lambda: len(seen) == 2)
    assert seen == [("2", {"id": 2, "v": "y"}), ("3", {"id": 3, "v": "y"})]


async def test_a_batch_is_no_larger_than_asked(database: str, connection: Connection) -> None:
    table(connection)
    sizes: list[int] = []
    consumers = Consumers()

    @consumers.consumer("batches", tables=["item"], batch=400)
    async def take(ctx: ConsumerContext, changes: list[Change]) -> None:
        sizes.append(len(changes))

    async with working(database, consumers):
        connection.execute("INSERT INTO item SELECT g FROM generate_series(1, 2500) g")
        await until(lambda: sum(sizes) == 2500)
    assert max(sizes) == 400


@pytest.mark.contract("W12")
async def test_what_fails_is_tried_again_and_the_cursor_waits_for_it(database: str, connection: Connection) -> None:
    table(connection)
    seen: Seen = []
    left = [3]

    def fails(change: Change) -> Exception | None:
        left[0] -= 1
        return OSError("away") if left[0] >= 0 else None

    async with working(database, failing(seen, fails)):
        connection.execute("INSERT INTO item VALUES (1), (2)")
        await until(lambda: len(seen) == 2)
    assert seen == [("insert", "1"), ("insert", "2")]
    (status,) = await Control(database).statuses("all")
    assert (status.delivered, status.retried, status.parked) == (2, 3, 0)
    assert status.last_error == "OSError: away"


@pytest.mark.parametrize("batch", [None, 10])
@pytest.mark.contract("W13")
async def test_a_poison_change_is_parked_and_only_its_row_waits_behind_it(
    database: str, connection: Connection, batch: int | None
) -> None:
    table(connection)
    seen: Seen = []
    poison = {"2"}
    consumers = Consumers()

    async def take(ctx: ConsumerContext, changes: Any) -> None:
        for change in changes if batch else [changes]:
            if change.row_id in poison:
                raise ValueError("poison")
        seen.extend((change.op.value, change.row_id) for change in (changes if batch else [changes]))

    consumers.declare("all", take, tables=["item"], ops=["insert", "update"], tries=2, backoff=NO_WAIT, batch=batch)
    control = Control(database)
    async with working(database, consumers):
        connection.execute("INSERT INTO item VALUES (1), (2), (3)")
        await until(lambda: len(seen) == 2)
        connection.execute("UPDATE item SET v = 'a'")
        await until(lambda: len(seen) == 4)
        assert [(row, op) for op, row in seen] == [("1", "insert"), ("3", "insert"), ("1", "update"), ("3", "update")]
        letters = await control.letters("all")
        assert [(letter.key, letter.tries, letter.behind) for letter in letters] == [("2", 2, False), ("2", 0, True)]
        assert letters[0].error == "ValueError: poison"
        assert tuple(await control.replay_dead("all")) == (0, 2, 0)
        poison.clear()
        assert tuple(await control.replay_dead("all")) == (2, 0, 0)
        connection.execute("UPDATE item SET v = 'b' WHERE id = 2")
        await until(lambda: len(seen) == 7)
    assert seen[4:] == [("insert", "2"), ("update", "2"), ("update", "2")]


async def test_a_truncate_waits_behind_a_parked_row_and_the_table_behind_it(
    database: str, connection: Connection
) -> None:
    table(connection)
    seen: Seen = []
    poison = {"1"}
    bad = ValueError("poison")
    async with working(database, failing(seen, lambda c: bad if c.row_id in poison else None, tries=1)):
        connection.execute("INSERT INTO item VALUES (1), (2)")
        connection.execute("TRUNCATE item")
        connection.execute("INSERT INTO item VALUES (2)")
        control = Control(database)

        await until(lambda: connection.execute("SELECT count(*) FROM forge.dead_letter").fetchone() == (3,))
        assert seen == [("insert", "2")]
        poison.clear()
        assert (await control.replay_dead("all")).left == 0
    assert seen == [("insert", "2"), ("insert", "1"), ("truncate", "*"), ("insert", "2")]


async def test_handlers_may_say_what_to_do_with_a_change(database: str, connection: Connection) -> None:
    table(connection)
    seen: Seen = []
    left = [20]

    def fails(change: Change) -> Exception | None:
        if change.row_id == "1":
            return DeliveryRefused("never")
        left[0] -= 1
        return NotDelivered("not now", after=0.001) if left[0] > 0 else None

    async with working(database, failing(seen, fails, tries=None)):
        connection.execute("INSERT INTO item VALUES (1), (2)")
        await until(lambda: seen)
    assert seen == [("insert", "2")]
    (letter,) = await Control(database).letters("all")
    assert (letter.key, letter.tries, letter.error) == ("1", 1, "DeliveryRefused: never")


async def test_a_handler_that_hangs_is_ended_by_its_timeout(database: str, connection: Connection) -> None:
    table(connection)
    seen: Seen = []
    calls = [0]
    consumers = Consumers()

    @consumers.consumer("slow", tables=["item"], timeout=0.05, tries=2, backoff=NO_WAIT)
    async def take(ctx: ConsumerContext, change: Change) -> None:
        calls[0] += 1
        if change.row_id == "1":
            await asyncio.sleep(60)
        seen.append((change.op.value, change.row_id))

    async with working(database, consumers):
        connection.execute("INSERT INTO item VALUES (1), (2)")
        await until(lambda: seen)
    assert calls == [3]
    (letter,) = await Control(database).letters("slow")
    assert letter.error == "HandlerTimeout: the handler took longer than 0.05 s"


async def test_a_handler_that_is_cancelled_by_itself_is_a_failure_like_any(
    database: str, connection: Connection
) -> None:
    table(connection)
    seen: Seen = []
    consumers = Consumers()

    @consumers.consumer("odd", tables=["item"], tries=2, backoff=NO_WAIT)
    async def take(ctx: ConsumerContext, change: Change) -> None:
        if change.row_id == "1":
            raise asyncio.CancelledError
        seen.append((change.op.value, change.row_id))

    async with working(database, consumers):
        connection.execute("INSERT INTO item VALUES (1), (2)")
        await until(lambda: seen)
    (letter,) = await Control(database).letters("odd")
    assert "cancelled by something of its own" in letter.error


async def test_a_handler_that_returns_something_stands_still_and_parks_nothing(
    database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    table(connection)
    consumers = Consumers()

    @consumers.consumer("odd", tables=["item"])
    async def take(ctx: ConsumerContext, change: Change) -> Any:
        return [change]

    async with working(database, consumers) as node:
        connection.execute("INSERT INTO item VALUES (1)")
        await until(lambda: any("returned a list" in record.message for record in caplog.records))
        await until(lambda: not node._held)
    (status,) = await Control(database).statuses("odd")
    assert status.dead_letters == 0
    assert status.lag_events == 1
    assert status.last_error is not None
    assert "returned a list" in status.last_error


async def test_a_handler_that_blocks_the_loop_is_named_with_the_line(
    database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    table(connection)
    seen: Seen = []
    consumers = one(seen)

    @consumers.consumer("blocker", tables=["item"])
    async def take(ctx: ConsumerContext, change: Change) -> None:
        time.sleep(0.5)  # noqa: ASYNC251

    settings = QUICK.__class__(tick=0.02, report=0.05, lag=0.1, idle=0.1, blocked=0.2)
    async with working(database, consumers, settings):
        connection.execute("INSERT INTO item VALUES (1)")
        await until(lambda: any("stands still" in record.message for record in caplog.records))
        await until(lambda: seen)
    (message,) = [record.message for record in caplog.records if "stands still" in record.message]
    assert "blocker" in message
    assert "test_delivery.py" in message


# ctx.tx


def counting(fail_at: set[str] = frozenset(), **options: Any) -> Consumers:  # type: ignore[assignment]
    """A consumer that writes down in Postgres what it saw, and fails after it did for some."""
    consumers = Consumers()

    async def take(ctx: ConsumerContext, changes: Any) -> None:
        for change in changes if options.get("batch") else [changes]:
            async with ctx.tx.transaction():
                await ctx.tx.execute("INSERT INTO seen (id, key) VALUES (%s, %s)", (change.id, change.row_id))
            if change.row_id in fail_at:
                fail_at.discard(change.row_id)
                raise OSError("after the side effect")

    consumers.declare("tx", take, tables=["item"], ops=["insert"], backoff=NO_WAIT, **options)
    return consumers


@pytest.mark.parametrize("batch", [None, 7])
async def test_what_is_written_in_ctx_tx_happens_exactly_once(
    database: str, connection: Connection, batch: int | None
) -> None:
    table(connection)
    connection.execute("CREATE TABLE seen (n bigint GENERATED ALWAYS AS IDENTITY, id text, key text)")
    async with working(database, counting({"3", "11"}, batch=batch)):
        connection.execute("INSERT INTO item SELECT g FROM generate_series(1, 30) g")

        def done() -> bool:
            return connection.execute("SELECT count(*) FROM seen").fetchone() == (30,)

        await until(done)
    rows = connection.execute("SELECT key FROM seen ORDER BY n").fetchall()
    assert [key for (key,) in rows] == [str(n) for n in range(1, 31)]


async def test_a_handler_cannot_end_the_transaction(database: str, connection: Connection) -> None:
    table(connection)
    connection.execute("CREATE TABLE seen (id text)")
    caught: list[BaseException] = []
    consumers = Consumers()

    @consumers.consumer("tx", tables=["item"])
    async def take(ctx: ConsumerContext, change: Change) -> None:
        await ctx.tx.execute("INSERT INTO seen VALUES ('x')")
        try:
            await ctx.tx.commit()
        except HandlerMisused as error:
            caught.append(error)
        await ctx.tx.execute("COMMIT")

    async with working(database, consumers):
        connection.execute("INSERT INTO item VALUES (1)")
        await until(lambda: caught)
        wanted = "SELECT last_error LIKE '%COMMIT or ROLLBACK on ctx.tx is not for handlers%' FROM forge.consumer"
        await until(lambda: connection.execute(wanted).fetchone() == (True,))


@pytest.mark.contract("W13")
async def test_once_is_true_once_even_after_a_rewind(database: str, connection: Connection) -> None:
    table(connection)
    seen: list[tuple[str, bool]] = []
    consumers = Consumers()

    @consumers.consumer("once", tables=["item"])
    async def take(ctx: ConsumerContext, change: Change) -> None:
        seen.append((change.row_id, await ctx.once(change.id)))

    control = Control(database)
    async with working(database, consumers):
        (before,) = await control.statuses("once")
        connection.execute("INSERT INTO item VALUES (1), (2)")
        await until(lambda: len(seen) == 2)
        await control.rewind("once", before.cursor)
        await until(lambda: len(seen) == 4)
    assert seen == [("1", True), ("2", True), ("1", False), ("2", False)]


async def test_an_update_of_its_own_table_in_ctx_tx_comes_back(database: str, connection: Connection) -> None:
    """What a handler writes is a change too; it is read after its transaction."""
    table(connection)
    seen: Seen = []
    consumers = Consumers()

    @consumers.consumer("echo", tables=["item"], where="v IS NULL OR v = 'done'")
    async def take(ctx: ConsumerContext, change: Change) -> None:
        seen.append((change.op.value, change.row_id))
        if change.after is not None and change.after["v"] is None:
            await ctx.tx.execute("UPDATE item SET v = 'done' WHERE id = %s", (change.after["id"],))

    async with working(database, consumers):
        connection.execute("INSERT INTO item VALUES (1)")
        await until(lambda: len(seen) == 2)
    assert seen == [("insert", "1"), ("update", "1")]
    with connect(database) as other:
        assert other.execute("SELECT v FROM item").fetchone() == ("done",)


def test_psycopg_is_what_ctx_tx_is() -> None:
    from forge.deliver.consumers.context import HandlerTransaction

    assert issubclass(HandlerTransaction, psycopg.AsyncConnection)
