"""The application's own messages: sent with its transaction, delivered whole, heard again after a lost connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from forge.embedded import PostgresServer
from forge.errors import NotifyError, ServerError
from forge.postgres.connection import Connection, connect, connect_async
from forge.testing import FaultProxy
from forge.tracking import notify as module
from forge.tracking.context import transaction
from forge.tracking.notify import Notification, listen, notify

SOON = 20


async def take(listener: AsyncIterator[Notification], number: int = 1) -> list[Notification]:
    return [await asyncio.wait_for(anext(listener), SOON) for _ in range(number)]


async def until_heard(listener: AsyncIterator[Notification], sender: Connection, wanted: Notification) -> None:
    """Send until the listener hears: it may be connecting."""
    heard = asyncio.ensure_future(take(listener))
    deadline = asyncio.get_running_loop().time() + SOON
    while not heard.done():
        assert asyncio.get_running_loop().time() < deadline
        notify(sender, wanted.channel, wanted.payload)
        await asyncio.wait({heard}, timeout=0.05)
    assert heard.result() == [wanted]


@pytest.mark.contract("W3")
async def test_a_message_is_delivered_with_the_commit_and_not_after_a_rollback(
    database: str, connection: Connection
) -> None:
    async with listen(database, "orders", 'Täglich "x"') as listener:
        with transaction(connection, user_id=1):
            notify(connection, "orders", "first")
            with connection.transaction(force_rollback=True):
                notify(connection, "orders", "undone savepoint")
            with connect(database) as other:
                notify(other, "orders", "committed before")
                notify(other, "elsewhere", "not listened to")
        with connection.transaction(force_rollback=True):
            notify(connection, "orders", "undone")
        notify(connection, 'Täglich "x"', "")
        assert await take(listener, 3) == [
            Notification("orders", "committed before"),
            Notification("orders", "first"),
            Notification('Täglich "x"', ""),
        ]


@pytest.mark.contract("W3")
async def test_an_async_connection_sends_too(database: str) -> None:
    async with listen(database, "orders") as listener, await connect_async(database) as connection:
        async with transaction(connection, user_id=1):
            await notify(connection, "orders", {"shipped": 118, "by": None})
        assert await take(listener) == [Notification("orders", '{"shipped":118,"by":null}')]


@pytest.mark.contract("W3")
async def test_a_large_message_arrives_whole(database: str, connection: Connection) -> None:
    large = "äß∂" * 150_000
    assert len(large.encode()) > 1_000_000
    look_alike = '{"forge_ref": "not ours"}'
    async with listen(database, "orders") as listener:
        notify(connection, "orders", large)
        notify(connection, "orders", look_alike)
        notify(connection, "orders", {"rows": ["x" * 1000] * 10})
        connection.execute("SELECT pg_notify('orders', '{\"forge_ref\": \"garbage\"}')")
        got = await take(listener, 4)
        assert [message.payload for message in got[:2]] == [large, look_alike]
        assert len(got[2].payload) > 10_000
        assert got[3].payload == '{"forge_ref": "garbage"}'
    with connection.transaction(force_rollback=True):
        notify(connection, "orders", large)
    assert connection.execute("SELECT count(*) FROM forge.large_payload").fetchone() == (3,)


@asynccontextmanager
async def proxied(server: PostgresServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.mark.contract("W3")
async def test_a_cut_connection_is_made_anew(
    server: PostgresServer, database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(server) as proxy, listen(proxy.url(database), "orders") as listener:
        await asyncio.to_thread(proxy.cut)
        await until_heard(listener, connection, Notification("orders", "again"))
    assert "connection lost" in caplog.text


async def test_a_connection_that_is_only_half_there_is_noticed(
    server: PostgresServer,
    database: str,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "_QUIET", 0.1)
    monkeypatch.setattr(module, "_ANSWER", 0.3)
    async with proxied(server) as proxy, listen(proxy.url(database), "orders") as listener:
        await asyncio.to_thread(proxy.stall)
        waiting = asyncio.ensure_future(take(listener))
        deadline = asyncio.get_running_loop().time() + SOON
        while "does not answer" not in caplog.text:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
        await asyncio.to_thread(proxy.resume)
        while not waiting.done():
            assert asyncio.get_running_loop().time() < deadline
            notify(connection, "orders", "again")
            await asyncio.wait({waiting}, timeout=0.05)
        assert waiting.result() == [Notification("orders", "again")]


async def test_a_plain_loop_listens_and_a_closed_listener_ends(database: str, connection: Connection) -> None:
    listener = listen(database, "orders")
    await until_heard(listener, connection, Notification("orders", "x"))
    await listener.aclose()
    assert [message async for message in listener] == []
    left = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'forge listen'")
    deadline = asyncio.get_running_loop().time() + SOON
    while left.fetchone() != (0,):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)
        left = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'forge listen'")


@pytest.mark.contract("W3")
async def test_bad_channels_and_payloads_are_refused_and_nothing_is_sent(database: str, connection: Connection) -> None:
    bad: list[Any] = ["", "forge_changes", "a\0b", "\ud800", "ü" * 32, None, 3]
    async with listen(database, "ü" * 31, "orders") as listener:
        for channel in bad:
            with pytest.raises(NotifyError) as caught:
                notify(connection, channel, "x")
            assert caught.value.fix
            with pytest.raises(NotifyError):
                listen(database, channel)
        for payload in ("a\0b", "\udfff", object(), {"x": "a\0b"}, float("nan")):
            with pytest.raises(NotifyError):
                notify(connection, "orders", payload)
        notify(connection, "ü" * 31, "fine")
        assert await take(listener) == [Notification("ü" * 31, "fine")]
    with pytest.raises(NotifyError, match="no channel"):
        listen(database)


async def test_the_first_connection_must_succeed(server: PostgresServer) -> None:
    with pytest.raises(ServerError):
        await anext(listen(server.url("no_such_database"), "orders"))


def test_a_message_needs_a_living_transaction(connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            notify(connection, "orders", "x")
