"""Who and why reach the log with every change of the block, and nothing else does."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
import pytest
from opentelemetry import context as otel
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from psycopg.pq import Trace, TransactionStatus

from forge.errors import ContextError, NotInstalled
from forge.postgres.connection import AsyncConnection, Connection, connect, connect_async
from forge.tracking.context import transaction

Logged = tuple[Any, ...]
NONE: Logged = (None, None, None, None)


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE item (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    return connection


@pytest.fixture(params=["autocommit", "not autocommit"])
def writer(request: pytest.FixtureRequest, database: str, shop: Connection) -> Iterator[Connection]:
    with connect(database) as connection:
        connection.autocommit = request.param == "autocommit"
        yield connection


@pytest.fixture(params=["autocommit", "not autocommit"])
async def async_writer(
    request: pytest.FixtureRequest, database: str, shop: Connection
) -> AsyncIterator[AsyncConnection]:
    async with await connect_async(database) as connection:
        await connection.set_autocommit(request.param == "autocommit")
        yield connection


def undo() -> None:
    raise psycopg.Rollback


def put(connection: Connection, name: str) -> None:
    connection.execute("INSERT INTO item (name) VALUES (%s)", (name,))


def logged(shop: Connection) -> dict[str, Logged]:
    """The context of each item's insert, by its name."""
    rows = shop.execute(
        "SELECT new_data ->> 'name', user_id, function_name, trace_id, context FROM public.forge_events"
        " WHERE operation = 'INSERT'"
    )
    return {name: tuple(context) for name, *context in rows}


@contextmanager
def messages(connection: Connection) -> Iterator[list[str]]:
    """The protocol's messages while in the block: F to the server, B from it."""
    found: list[str] = []
    with tempfile.TemporaryFile("w+") as file:
        connection.pgconn.trace(file.fileno())
        connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS | Trace.REGRESS_MODE)
        try:
            yield found
        finally:
            connection.pgconn.untrace()
            file.seek(0)
            found.extend(line.split("\t")[0] for line in file if line[0] in "FB")


def round_trips(directions: list[str]) -> int:
    return sum(left + right == "FB" for left, right in pairwise(directions))


@pytest.mark.contract("T4")
def test_every_part_of_the_context_is_logged(shop: Connection, writer: Connection) -> None:
    with transaction(writer, user_id="ann", function_name="ship", trace_id="t1", order=118, tags=["a", None]):
        put(writer, "all")
    with transaction(writer, user_id=7, price=Decimal("1.10"), at=UUID(int=5)):
        put(writer, "some")
    with transaction(writer, user_id=UUID(int=9)):
        put(writer, "uuid")
    assert logged(shop) == {
        "all": ("ann", "ship", "t1", {"order": 118, "tags": ["a", None]}),
        "some": ("7", None, None, {"price": "1.10", "at": str(UUID(int=5))}),
        "uuid": (str(UUID(int=9)), None, None, None),
    }


@pytest.mark.contract("T4")
async def test_an_async_connection_does_the_same(shop: Connection, async_writer: AsyncConnection) -> None:
    insert = "INSERT INTO item (name) VALUES (%s)"
    async with transaction(async_writer, user_id=7, order=1) as outer:
        await async_writer.execute(insert, ("outer",))
        async with transaction(async_writer, function_name="inner", line=2):
            await async_writer.execute(insert, ("inner",))
        await async_writer.execute(insert, ("after",))
        assert isinstance(outer, psycopg.AsyncTransaction)
    await async_writer.execute(insert, ("next user",))
    await async_writer.commit()
    async with transaction(async_writer, user_id=8):
        await async_writer.execute(insert, ("undone",))
        undo()
    assert async_writer.info.transaction_status == TransactionStatus.IDLE
    assert logged(shop) == {
        "outer": ("7", None, None, {"order": 1}),
        "inner": ("7", "inner", None, {"order": 1, "line": 2}),
        "after": ("7", None, None, {"order": 1}),
        "next user": NONE,
    }


@pytest.mark.contract("T4")
def test_it_ends_with_the_block_however_that_ends(shop: Connection, writer: Connection) -> None:
    with transaction(writer, user_id=1, function_name="f", trace_id="t", x=1):
        put(writer, "committed")
    put(writer, "after commit")
    writer.commit()
    with pytest.raises(TypeError), transaction(writer, user_id=2, x=2):
        put(writer, "failed", "for an argument too many")  # type: ignore[call-arg]
    put(writer, "after failure")
    writer.commit()
    with transaction(writer, user_id=3):
        undo()
    put(writer, "after rollback")
    writer.commit()
    with pytest.raises(psycopg.errors.SyntaxError), transaction(writer, user_id=4):
        writer.execute("oops")
    put(writer, "after error")
    writer.commit()
    with transaction(writer):
        put(writer, "nothing said")
    assert logged(shop) == {
        "committed": ("1", "f", "t", {"x": 1}),
        **dict.fromkeys(("after commit", "after failure", "after rollback", "after error", "nothing said"), NONE),
    }


@pytest.mark.contract("T4")
def test_a_block_within_a_block_keeps_what_it_does_not_say_and_gives_it_back(
    shop: Connection, writer: Connection
) -> None:
    with transaction(writer, user_id=1, trace_id="t", x=1, y=1):
        with transaction(writer, function_name="inner", y=2):
            put(writer, "inner")
            with transaction(writer, user_id=2, trace_id="u"):
                put(writer, "innermost")
            put(writer, "inner again")
        put(writer, "outer")
        with transaction(writer, user_id=3):
            put(writer, "undone")
            undo()
        put(writer, "outer after rollback")
        with pytest.raises(psycopg.errors.DivisionByZero), transaction(writer, user_id=4):
            writer.execute("SELECT 1 / 0")
        put(writer, "outer after error")
    outer = ("1", None, "t", {"x": 1, "y": 1})
    inner = ("1", "inner", "t", {"x": 1, "y": 2})
    assert logged(shop) == {
        "inner": inner,
        "innermost": ("2", "inner", "u", {"x": 1, "y": 2}),
        "inner again": inner,
        "outer": outer,
        "outer after rollback": outer,
        "outer after error": outer,
    }


def test_a_block_in_a_transaction_without_a_context_leaves_none_behind(shop: Connection, writer: Connection) -> None:
    with writer.transaction():
        with transaction(writer, user_id=1, x=1):
            put(writer, "inside")
        put(writer, "outside")
    assert logged(shop) == {"inside": ("1", None, None, {"x": 1}), "outside": NONE}


@pytest.mark.contract("T4")
def test_begin_and_context_are_one_round_trip(database: str, shop: Connection) -> None:
    with connect(database) as writer:
        for _ in range(7):  # beyond the fifth psycopg might prepare
            with messages(writer) as seen:
                block = transaction(writer, user_id=7, function_name="f", trace_id="t", more="x")
                block.__enter__()
            assert round_trips(seen) == 1
            with messages(writer) as seen, transaction(writer, user_id=8), messages(writer):
                pass
            assert round_trips(seen) == 1
            block.__exit__(None, None, None)


def test_without_autocommit_the_context_is_one_round_trip_after_begin(database: str, shop: Connection) -> None:
    notices: list[psycopg.errors.Diagnostic] = []
    with connect(database) as writer:
        writer.autocommit = False
        writer.add_notice_handler(notices.append)
        with messages(writer) as seen:
            block = transaction(writer, user_id=7)
            block.__enter__()
        assert round_trips(seen) == 2
        block.__exit__(None, None, None)
    assert notices == []


def test_it_works_inside_a_pipeline(database: str, shop: Connection) -> None:
    with connect(database) as writer, writer.pipeline():
        with transaction(writer, user_id=7):
            put(writer, "outer")
            with transaction(writer, function_name="f"):
                put(writer, "inner")
            put(writer, "again")
        put(writer, "none")
    outer = ("7", None, None, None)
    assert logged(shop) == {"outer": outer, "inner": ("7", "f", None, None), "again": outer, "none": NONE}


LOOP: list[Any] = []
LOOP.append(LOOP)


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"user_id": ""}, "user_id is empty"),
    ({"user_id": "a\0b"}, "user_id has a NUL character"),
    ({"user_id": "\ud800"}, "user_id has half of a surrogate pair"),
    ({"user_id": "x" * 256}, "256 characters; 255 is the most"),
    ({"user_id": 10**255}, "255 is the most"),
    ({"user_id": 1.5}, "user_id is of type float"),
    ({"user_id": True}, "user_id is of type bool"),
    ({"user_id": b"x"}, "user_id is of type bytes"),
    ({"function_name": "x" * 256}, "function_name has 256 characters"),
    ({"function_name": 3}, "function_name is of type int"),
    ({"trace_id": "x" * 65}, "trace_id has 65 characters; 64 is the most"),
    ({"thing": object()}, "thing is not JSON"),
    ({"number": float("nan")}, "number is not JSON"),
    ({"number": [float("inf")]}, "number is not JSON"),
    ({"note": "a\0b"}, "note has a NUL character"),
    ({"note": {"a\0b": 1}}, "note has a NUL character"),
    ({"note": ["\udfff"]}, "note has half of a surrogate pair"),
    ({"loop": LOOP}, "loop is not JSON"),
    ({"note": "x" * 9000}, "8192 is the most"),
]


@pytest.mark.contract("T4")
def test_a_malformed_context_is_an_error_before_anything_is_sent(database: str) -> None:
    with connect(database) as writer:
        for context, message in MALFORMED:
            with messages(writer) as seen, pytest.raises(ContextError, match=message) as caught:
                transaction(writer, **context)
            assert seen == []
            assert caught.value.fix
            assert writer.info.transaction_status == TransactionStatus.IDLE


def test_the_limits_themselves_are_allowed(database: str, shop: Connection) -> None:
    user, function, trace = "ü" * 255, "f" * 255, "0" * 64
    note = "'\"\\ \u2028 %s {}"
    with (
        connect(database) as writer,
        transaction(writer, user_id=user, function_name=function, trace_id=trace, note=note),
    ):
        put(writer, "limits")
    assert logged(shop) == {"limits": (user, function, trace, {"note": note})}


def test_the_trace_of_the_current_span_is_taken_unless_one_is_given(database: str, shop: Connection) -> None:
    span = NonRecordingSpan(SpanContext(0xABC, 0x1, is_remote=False, trace_flags=TraceFlags(1)))
    with connect(database) as writer:
        token = otel.attach(set_span_in_context(span))
        try:
            with transaction(writer, user_id=1):
                put(writer, "span")
            with transaction(writer, trace_id="own"):
                put(writer, "own")
                with transaction(writer, user_id=2):
                    put(writer, "nested")
        finally:
            otel.detach(token)
        with transaction(writer, user_id=1):
            put(writer, "no span")
    assert {name: context[2] for name, context in logged(shop).items()} == {
        "span": f"{0xABC:032x}",
        "own": "own",
        "nested": "own",
        "no span": None,
    }


def test_without_forge_the_error_says_so_and_the_transaction_is_over(empty_database: str) -> None:
    with connect(empty_database) as writer:
        with pytest.raises(NotInstalled) as caught, transaction(writer, user_id=1):
            pytest.fail("the block must not run")
        assert caught.value.fix == "forge init"
        assert writer.info.transaction_status == TransactionStatus.IDLE
        assert writer.execute("SELECT 1").fetchone() == (1,)
