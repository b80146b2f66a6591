"""Live queries over a WebSocket: the same events, requests on the same connection, and close codes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from forge.postgres.connection import Connection
from forge.serve.limits import Limits
from tests.serve.serving import SOON, Served, serving
from tests.serve.test_http import SECURED, application, shop, token

__all__ = ["shop"]


class Socket:
    """A client's end."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, type: str, **fields: Any) -> None:
        await self.connection.send(json.dumps({"type": type, **fields}))

    async def next(self) -> Any:
        async with asyncio.timeout(SOON):
            return json.loads(await self.connection.recv())

    async def event(self, name: str) -> Any:
        while (found := await self.next())["event"] != name:
            pass
        return found

    async def code(self) -> int:
        """The code that the server closes with."""
        with pytest.raises(ConnectionClosed) as closed:  # noqa: PT012
            while True:
                await self.next()
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code


@asynccontextmanager
async def opened(served: Served, bearer: str | None = None) -> AsyncIterator[Socket]:
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    url = served.url.replace("http", "ws") + "/forge/ws"
    async with connect(url, additional_headers=headers, proxy=None) as connection:
        yield Socket(connection)


@pytest.mark.contract("W8", "R14")
async def test_subscriptions_calls_and_answers_on_one_connection(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served, opened(served) as client:
        assert (await client.next())["event"] == "session"
        await client.send(
            "subscribe", id="1", subscription="s", query="orders_of", args={"customer_id": 7}, mode="delta"
        )
        assert (await client.event("answer"))["id"] == "1"
        assert (await client.event("snapshot"))["rows"] == [{"id": 1, "status": "placed"}]
        await client.send("mutate", id="2", mutation="pay", args={"id": 1})
        answer: Any = None
        delta: Any = None
        while not (answer and delta):
            event = await client.next()
            answer = event if event["event"] == "answer" else answer
            delta = event if event["event"] == "delta" else delta
        assert (answer["id"], answer["result"]) == ("2", 1)
        assert (delta["changed"], delta["cause"][0]["xid"]) == ([{"id": 1, "status": "paid"}], answer["xid"])
        await client.send("query", id="3", query="orders_of", args={"customer_id": 8})
        assert (await client.event("answer"))["result"] == [{"id": 2, "status": "placed"}]
        await client.send("unsubscribe", id="4", subscription="s")
        assert (await client.event("answer"))["unsubscribed"] is True
        await client.send("ping", id="5")
        assert (await client.event("answer"))["id"] == "5"


@pytest.mark.contract("W11")
async def test_the_token_comes_in_the_header_or_the_first_message(database: str, shop: Connection) -> None:
    async with serving(application(database, **SECURED)) as served:
        async with opened(served, token("ada")) as client:
            assert (await client.next())["event"] == "session"
        async with opened(served) as client:
            await client.send("auth", token=token("ada"))
            assert (await client.next())["event"] == "session"
        async with opened(served) as client:
            await client.send("auth", token="a.b.c")
            assert await client.code() == 4401
        async with opened(served) as client:
            await client.send("subscribe", subscription="s", query="ours")
            assert await client.code() == 4401
        async with opened(served, token("ada", seconds=-60)) as client:
            assert await client.code() == 4401
        async with opened(served) as client:
            await client.connection.send("garbage")
            assert await client.code() == 4400


@pytest.mark.contract("W11")
async def test_it_is_closed_with_4401_when_the_token_expires(database: str, shop: Connection) -> None:
    async with serving(application(database, **SECURED)) as served, opened(served, token("ada", seconds=2)) as client:
        await client.send("subscribe", subscription="s", query="ours")
        assert await client.code() == 4401


@pytest.mark.contract("R13")
async def test_too_many(database: str, shop: Connection) -> None:
    limits = Limits(sessions_per_ip=1, sessions_per_user=1, messages_per_second=1, message_burst=3)
    async with serving(application(database, limits=limits)) as served, opened(served) as first:
        await first.next()
        async with opened(served) as second:
            error = await second.next()
            assert (error["event"], error["retry_after_secs"] >= 1) == ("error", True)
            assert await second.code() == 4429
        for _ in range(40):
            await first.send("ping", id="x")
        assert await first.code() == 4429


async def test_malformed_messages_get_errors_and_then_the_end(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served, opened(served) as client:
        await client.next()
        for text in (
            "{",
            "[]",
            '{"type": 7}',
            '{"type": "nonsense"}',
            '{"type": "subscribe"}',
            '{"type":"ping","x":1}',
        ):
            await client.connection.send(text)
            assert (await client.event("error"))["code"] == "bad_arguments"
        await client.send("subscribe", id="1", subscription="s", query="nope")
        assert (await client.event("error"))["code"] == "unknown_name"
        for _ in range(40):
            await client.connection.send("{")
        assert await client.code() == 4400
        async with asyncio.timeout(SOON):
            while served.node.sessions:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.contract("R17")
async def test_channels_between_clients_of_two_nodes(database: str, shop: Connection) -> None:
    async with (
        serving(application(database, **SECURED)) as one,
        serving(application(database, **SECURED)) as other,
        opened(one, token("ada", "a")) as ada,
        opened(other, token("bob", "a")) as bob,
        opened(other, token("eve", "b")) as eve,
    ):
        for client in (ada, bob, eve):
            await client.send("join", id="j", channel="room")
            await client.event("answer")
        await ada.send("publish", id="p", channel="room", data={"hello": 1})
        while (message := await bob.event("channel")).get("kind") != "message":
            pass
        assert message["data"] == {"hello": 1}
        await eve.send("publish", id="p", channel="room", data="secret of b")
        await eve.event("answer")
        await ada.send("publish", channel="room", data="last")
        seen: list[Any] = []
        while not seen or seen[-1].get("data") != "last":
            seen.append(await bob.event("channel"))
        assert not any(event.get("data") == "secret of b" for event in seen)


async def test_a_restart_closes_with_1012(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served, opened(served) as client:
        await client.next()
        served.node.farewell()
        assert (await client.event("bye"))["retry_after_ms"] > 0
        assert await client.code() == 1012
