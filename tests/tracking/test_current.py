"""The context of a block: what is said is there until it ends, for what it runs and for nothing else."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from opentelemetry import context as otel
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

import forge
from forge.errors import ContextError
from forge.postgres.connection import Connection, connect_async
from forge.react.registry import Auth
from forge.react.runner import Runner
from forge.tracking.current import NOTHING, Current

UNFIT: list[dict[str, Any]] = [
    {"user_id": ""},
    {"user_id": True},
    {"user_id": "x" * 256},
    {"function_name": 7},
    {"trace_id": "t" * 65},
    {"trace_id": "a\0b"},
    {"note": float("nan")},
    {"note": object()},
    {"note": "x" * 8192},
]


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE item (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    return connection


def put(connection: Connection, name: str) -> None:
    connection.execute("INSERT INTO item (name) VALUES (%s)", (name,))


def logged(shop: Connection) -> dict[str, Current]:
    rows = shop.execute(
        "SELECT new_data ->> 'name', user_id, function_name, trace_id, context FROM public.forge_events"
        " WHERE operation = 'INSERT'"
    ).fetchall()
    return {name: Current(user, function, trace, more or {}) for name, user, function, trace, more in rows}


def fail_as(user: str) -> None:
    assert forge.current().user_id == user
    raise ZeroDivisionError


def test_an_inner_block_overrides_name_by_name_and_the_outer_is_back() -> None:
    with forge.context(user_id=7, trace_id="t", order=118, step=1):
        with forge.context(function_name="ship", step=2):
            assert forge.current() == Current("7", "ship", "t", {"order": 118, "step": 2})
        with pytest.raises(ZeroDivisionError), forge.context(user_id=UUID(int=1)):
            fail_as("00000000-0000-0000-0000-000000000001")
        assert forge.current() == Current("7", None, "t", {"order": 118, "step": 1})
    assert forge.current() == NOTHING


@pytest.mark.parametrize("said", UNFIT, ids=lambda said: str(said)[:40].partition(" object at")[0])
def test_what_the_log_cannot_hold_is_refused_before_the_block_runs(said: dict[str, Any]) -> None:
    with pytest.raises(ContextError):
        forge.context(**said)


def test_blocks_that_are_too_large_together_are_refused() -> None:
    with forge.context(a="x" * 5000), pytest.raises(ContextError, match="8192"):
        forge.context(b="y" * 5000).__enter__()
    assert forge.current() == NOTHING


def test_one_block_can_be_entered_again() -> None:
    block = forge.context(user_id=1)
    with block, block:
        assert forge.current().user_id == "1"
    assert forge.current() == NOTHING


async def test_tasks_keep_what_they_started_with_and_do_not_see_each_other() -> None:
    ready = asyncio.Barrier(50)

    async def one(user: int) -> str | None:
        async with forge.context(user_id=user):
            await ready.wait()
            started = asyncio.create_task(asyncio.to_thread(lambda: forge.current().user_id))
        assert forge.current() == NOTHING
        return await started

    assert await asyncio.gather(*(one(user) for user in range(50))) == [str(user) for user in range(50)]
    assert forge.current() == NOTHING


def test_a_thread_starts_with_none() -> None:
    seen: list[Current] = []
    with forge.context(user_id=1):
        thread = threading.Thread(target=lambda: seen.append(forge.current()))
        thread.start()
        thread.join(10)
    assert seen == [NOTHING]


def test_the_trace_is_opentelemetrys_where_none_was_said() -> None:
    span = NonRecordingSpan(SpanContext(0xABC, 1, is_remote=False, trace_flags=TraceFlags(1)))
    token = otel.attach(set_span_in_context(span))
    try:
        assert forge.current().trace_id == f"{0xABC:032x}"
        with forge.context(trace_id="mine"):
            assert forge.current().trace_id == "mine"
    finally:
        otel.detach(token)


def test_a_transaction_takes_what_it_is_not_told(shop: Connection) -> None:
    with forge.context(user_id="ada", function_name="job", a=1):
        with forge.transaction(shop, function_name="told", b=2):
            put(shop, "both")
            assert forge.current() == Current("ada", "told", None, {"a": 1, "b": 2})
        with forge.transaction(shop):
            put(shop, "outer")
            with forge.context(user_id="bob"), forge.transaction(shop):
                put(shop, "inner")
            put(shop, "outer again")
    with forge.transaction(shop):
        put(shop, "nobody")
    outer = Current("ada", "job", None, {"a": 1})
    assert logged(shop) == {
        "both": Current("ada", "told", None, {"a": 1, "b": 2}),
        "outer": outer,
        "inner": Current("bob", "job", None, {"a": 1}),
        "outer again": outer,
        "nobody": NOTHING,
    }


def test_an_inner_transaction_keeps_what_the_outer_one_was_told(shop: Connection) -> None:
    with forge.context(user_id="middleware"), forge.transaction(shop, user_id="told"), forge.transaction(shop):
        put(shop, "inner")
    assert logged(shop)["inner"].user_id == "told"


@pytest.mark.parametrize("find", [lambda: 1 / 0, lambda: forge.context(user_id="x" * 300)], ids=["bug", "unfit"])
def test_a_context_that_cannot_be_found_writes_nothing(shop: Connection, find: Callable[[], Any]) -> None:
    with (
        forge.context.found_by(find),
        pytest.raises((ZeroDivisionError, ContextError)),
        forge.transaction(shop),
    ):
        put(shop, "never")
    assert logged(shop) == {}


async def test_asynchronous_transactions_too(shop: Connection, database: str) -> None:
    async with await connect_async(database) as connection:

        async def write(user: int) -> None:
            async with forge.context(user_id=user), forge.transaction(connection):
                await connection.execute("INSERT INTO item (name) VALUES (%s)", (f"of {user}",))

        for user in range(3):
            await write(user)
    found = {name: current.user_id for name, current in logged(shop).items()}
    assert found == {"of 0": "0", "of 1": "1", "of 2": "2"}


async def test_a_mutation_says_for_itself_who_and_what_and_more_is_merged(shop: Connection, database: str) -> None:
    app = forge.Forge(database)

    @app.mutation
    async def add(ctx: Any, name: str) -> str | None:
        await ctx.db.execute("INSERT INTO item (name) VALUES (%(name)s)")
        return forge.current().function_name

    runner = Runner(database)
    await runner.open()
    try:
        with forge.context(user_id="outer", function_name="POST /add", trace_id="t", tenant=4):
            answer = await runner.mutate(app.registry.mutations["add"], {"name": "x"}, Auth(user="ada"))
    finally:
        await runner.close()
    assert answer.value == "add"
    assert logged(shop)["x"] == Current("ada", "add", "t", {"tenant": 4})
