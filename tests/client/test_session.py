"""A client against a scripted server: reconnects, renewals, refusals, mismatches, slow consumers."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import httpx
import pytest

from forge.client import Client, Subscription, connect
from forge.client.tokens import Token
from forge.cursor import Snapshot
from forge.errors import (
    Closed,
    ConfigError,
    Failed,
    NotForge,
    ProtocolError,
    Refused,
    ResultMismatch,
    TooMany,
    Unauthorized,
    Unreachable,
)
from forge.react import result as server
from forge.react.push import Push
from forge.serve import messages

URL = "http://forge.test/app"
PATIENCE = 5.0
Rows = list[dict[str, Any]]
T = TypeVar("T")


class Stream(httpx.AsyncByteStream):
    """An open stream: what is put in comes out; None ends it, an exception breaks it."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.closing = 0.0
        """How long it takes to close."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self.pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def aclose(self) -> None:
        await asyncio.sleep(self.closing)
        self.closed.set()

    def send(self, event: str, body: bytes) -> None:
        self.pieces.put_nowait(messages.sse(event, b"{" + body))

    def tell(self, event: str, **fields: Any) -> None:
        self.send(event, messages.fields(**fields))

    def end(self, error: Exception | None = None) -> None:
        self.pieces.put_nowait(error)


class Server(httpx.AsyncBaseTransport):
    """Answers as the test says; by default it agrees to all and sends nothing by itself."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.posts: list[tuple[str, Any]] = []
        self.tokens: list[str | None] = []
        self.refusals: list[httpx.Response | Exception] = []
        self.answer: Callable[[str, Any], httpx.Response | None] = lambda path, body: None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/app/forge")
        self.tokens.append(request.headers.get("authorization"))
        if request.method == "GET":
            if self.refusals:
                refusal = self.refusals.pop(0)
                if isinstance(refusal, Exception):
                    raise refusal
                return refusal
            stream = Stream()
            stream.tell("session", session=f"id/{self.streams.qsize()}", expires_at=None)
            self.streams.put_nowait(stream)
            return httpx.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"}, stream=stream)
        body = json.loads(await request.aread())
        self.posts.append((path, body))
        answer = self.answer(path, body)
        if path.endswith("/subscribe"):
            self.asked.put_nowait(body)
        return answer or httpx.Response(200, json={})

    async def stream(self) -> Stream:
        return await within(self.streams.get())

    async def subscribed(self) -> dict[str, Any]:
        return await within(self.asked.get())

    def client(self, token: Token = None, **options: Any) -> Client:
        return connect(URL, token=token, http=httpx.AsyncClient(transport=self), **options)


async def within(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, PATIENCE)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def error_of(subscription: Subscription) -> Exception | None:
    return subscription.error


def refusal(status: int, code: str, **more: Any) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": "no", "fix": "ask otherwise", **more}})


def push(rows: Rows, before: Rows | None = None, xmax: int = 9) -> Push:
    previous = None if before is None else server.encode(before, key=("id",))
    return Push(server.encode(rows, key=("id",)), previous, Snapshot(3, xmax), (), 0)


def named(name: str, body: bytes | None) -> bytes:
    assert body is not None
    return messages.fields(subscription=name)[:-1] + b"," + body


def hash_of(rows: Rows) -> str:
    return server.encode(rows).hash


ONE: Rows = [{"id": 1}]
TWO: Rows = [{"id": 1}, {"id": 2}]
THREE: Rows = [{"id": 1}, {"id": 2}, {"id": 3}]


async def test_results_come_in_order_and_say_what_they_show() -> None:
    fake = Server()
    async with fake.client() as client:
        subscription = client.subscribe("orders_of", name="x", mode="y", self=1)
        first = asyncio.ensure_future(anext(subscription))
        asked = await fake.subscribed()
        assert asked["query"] == "orders_of"
        assert asked["args"] == {"name": "x", "mode": "y", "self": 1}
        assert asked["mode"] == "full"
        assert "hash" not in asked
        stream = await fake.stream()
        stream.send("snapshot", named(asked["subscription"], messages.whole(push(ONE))))
        assert await within(first) == ONE
        assert (subscription.result, subscription.hash) == (ONE, hash_of(ONE))
        assert subscription.contains(8)
        assert subscription.contains("8")
        assert subscription.contains(None)
        assert not subscription.contains(9)
        stream.send("update", named(asked["subscription"], messages.whole(push(TWO, xmax=10))))
        assert await within(anext(subscription)) == TWO
        assert subscription.contains(9)


@pytest.mark.contract("R14")
async def test_deltas_are_applied() -> None:
    fake = Server()
    async with fake.client(mode="delta") as client, client.subscribe("q") as subscription:
        name = (await fake.subscribed())["subscription"]
        stream = await fake.stream()
        stream.send("snapshot", named(name, messages.whole(push(ONE))))
        assert await within(anext(subscription)) == ONE
        stream.send("delta", named(name, messages.delta(push(TWO, before=ONE))))
        assert await within(anext(subscription)) == TWO
        assert client.metrics.deltas == 1


async def test_a_mismatch_is_never_shown_and_mends_itself() -> None:
    fake = Server()
    async with fake.client() as client, client.live("q", mode="delta") as subscription:
        name = (await fake.subscribed())["subscription"]
        stream = await fake.stream()
        stream.send("snapshot", named(name, messages.whole(push(ONE))))
        assert await within(anext(subscription)) == ONE
        stream.send("delta", named(name, messages.delta(push(THREE, before=TWO))))
        again = await fake.subscribed()
        assert again["subscription"] != name
        assert "hash" not in again
        assert client.metrics.mismatches == 1
        assert isinstance(error_of(subscription), ResultMismatch)
        stream.send("update", named(name, messages.whole(push(TWO))))  # of the old name, and too late
        stream.send("snapshot", named(again["subscription"], messages.whole(push(THREE))))
        assert await within(anext(subscription)) == THREE
        assert error_of(subscription) is None
        await until(lambda: any(path.endswith("/unsubscribe") for path, _ in fake.posts))


async def test_a_server_whose_results_never_match_is_an_error() -> None:
    fake = Server()
    lie = messages.whole(push(ONE)).replace(hash_of(ONE).encode(), b"0" * 32)
    async with fake.client() as client, client.subscribe("q") as subscription:
        first = asyncio.ensure_future(anext(subscription))
        stream = await fake.stream()
        for _ in range(4):
            stream.send("snapshot", named((await fake.subscribed())["subscription"], lie))
        with pytest.raises(ResultMismatch):
            await within(first)


@pytest.mark.contract("R11")
async def test_a_gap_is_followed_by_a_result() -> None:
    fake = Server()
    async with fake.client(mode="delta") as client, client.subscribe("q") as subscription:
        name = (await fake.subscribed())["subscription"]
        stream = await fake.stream()
        stream.send("snapshot", named(name, messages.whole(push(ONE))))
        assert await within(anext(subscription)) == ONE
        stream.tell("gap", subscription=name)
        stream.send("snapshot", named(name, messages.whole(push(THREE))))
        assert await within(anext(subscription)) == THREE
        assert client.metrics.gaps == 1


async def test_a_broken_stream_is_opened_again_with_what_is_held() -> None:
    fake = Server()
    async with fake.client() as client, client.subscribe("a") as a, client.subscribe("b") as b:
        names = {asked["query"]: asked["subscription"] for asked in [await fake.subscribed(), await fake.subscribed()]}
        stream = await fake.stream()
        stream.send("snapshot", named(names["a"], messages.whole(push(ONE))))
        stream.send("snapshot", named(names["b"], messages.whole(push(TWO))))
        assert await within(anext(a)) == ONE
        assert await within(anext(b)) == TWO
        stream.end(httpx.ReadError("gone"))
        again = {asked["query"]: asked for asked in [await fake.subscribed(), await fake.subscribed()]}
        assert again["a"]["hash"] == hash_of(ONE)
        assert again["b"]["hash"] == hash_of(TWO)
        assert isinstance(a.error, Unreachable)
        stream = await fake.stream()
        stream.tell("snapshot", subscription=again["a"]["subscription"], hash=hash_of(ONE), unchanged=True)
        stream.send("snapshot", named(again["b"]["subscription"], messages.whole(push(THREE))))
        assert await within(anext(b)) == THREE
        assert client.metrics.unchanged == 1
        stream.send("update", named(again["a"]["subscription"], messages.whole(push(TWO))))
        assert await within(anext(a)) == TWO, "the unchanged result was not given again"
        assert client.metrics.connects == 2


async def test_a_server_that_takes_another_result_for_held_is_asked_anew() -> None:
    fake = Server()
    async with fake.client() as client, client.subscribe("q") as subscription:
        stream = await fake.stream()
        name = (await fake.subscribed())["subscription"]
        stream.tell("snapshot", subscription=name, hash=hash_of(TWO), unchanged=True)
        again = await fake.subscribed()
        stream.send("snapshot", named(again["subscription"], messages.whole(push(TWO))))
        assert await within(anext(subscription)) == TWO


async def test_the_wait_that_the_server_asks_for_is_kept() -> None:
    fake = Server()
    loop = asyncio.get_running_loop()
    async with fake.client() as client, client.subscribe("q"):
        await fake.subscribed()
        stream = await fake.stream()
        stream.tell("bye", reason="restart", retry_after_ms=700)
        stream.end()
        ended = loop.time()
        await fake.stream()
        assert 0.7 <= loop.time() - ended < 3.0


async def test_a_server_that_is_full_or_away_is_tried_again() -> None:
    fake = Server()
    fake.refusals = [
        httpx.ConnectError("refused"),
        refusal(429, "too_many", retry_after_secs=0.3),
        httpx.Response(502, text="<html>"),
    ]
    async with fake.client() as client, client.subscribe("q") as subscription:
        await until(lambda: isinstance(subscription.error, Unreachable))
        await until(lambda: isinstance(subscription.error, TooMany))
        await until(lambda: isinstance(subscription.error, Failed))
        stream = await fake.stream()
        stream.send("snapshot", named((await fake.subscribed())["subscription"], messages.whole(push(ONE))))
        assert await within(anext(subscription)) == ONE
        assert subscription.error is None
        assert client.metrics.lost == 3


async def test_a_url_without_forge_is_an_error() -> None:
    fake = Server()
    fake.refusals = [httpx.Response(404, text="not here")]
    async with fake.client() as client:
        with pytest.raises(NotForge, match="404"):
            await within(anext(client.subscribe("q")))
        fake.refusals = [httpx.Response(200, html="<html>")]
        with pytest.raises(NotForge, match="no stream"):
            await within(anext(client.subscribe("q")))


async def test_what_stands_before_a_server_ends_nothing_that_was_once_connected() -> None:
    fake = Server()
    async with fake.client() as client, client.subscribe("q") as subscription:
        stream = await fake.stream()
        await fake.subscribed()
        fake.refusals = [httpx.Response(404, text="being deployed"), httpx.Response(200, html="soon")]
        stream.end()
        stream = await fake.stream()
        stream.send("snapshot", named((await fake.subscribed())["subscription"], messages.whole(push(ONE))))
        assert await within(anext(subscription)) == ONE


async def test_what_is_refused_raises_and_harms_no_other() -> None:
    fake = Server()
    fake.answer = lambda path, body: refusal(404, "unknown_name") if body.get("query") == "bad" else None
    async with fake.client() as client, client.subscribe("good") as good:
        stream = await fake.stream()
        name = (await fake.subscribed())["subscription"]
        bad = client.subscribe("bad")
        with pytest.raises(Refused) as caught:
            await within(anext(bad))
        assert (caught.value.code, caught.value.status, caught.value.fix) == ("unknown_name", 404, "ask otherwise")
        with pytest.raises(Refused):
            await within(anext(bad))
        stream.send("snapshot", named(name, messages.whole(push(ONE))))
        assert await within(anext(good)) == ONE


async def test_a_full_subscription_waits_and_asks_again() -> None:
    fake = Server()
    answers = [refusal(429, "too_many", retry_after_secs=0.1), refusal(503, "server_error"), None]
    fake.answer = lambda path, body: answers.pop(0) if path.endswith("/subscribe") else None
    async with fake.client() as client, client.subscribe("q") as subscription:
        names = [(await fake.subscribed())["subscription"] for _ in range(3)]
        assert len(set(names)) == 3
        (await fake.stream()).send("snapshot", named(names[-1], messages.whole(push(ONE))))
        assert await within(anext(subscription)) == ONE


async def test_a_session_that_the_server_forgot_is_opened_anew() -> None:
    fake = Server()
    answers = [refusal(404, "unknown_session")]
    fake.answer = lambda path, body: answers.pop() if answers else None
    async with fake.client() as client, client.subscribe("q") as subscription:
        lost = await fake.stream()
        await within(lost.closed.wait())
        stream = await fake.stream()
        await fake.subscribed()
        stream.send("snapshot", named((await fake.subscribed())["subscription"], messages.whole(push(ONE))))
        assert await within(anext(subscription)) == ONE


async def test_passing_errors_are_kept_and_final_ones_raised() -> None:
    fake = Server()
    async with fake.client() as client, client.subscribe("q") as subscription:
        stream = await fake.stream()
        name = (await fake.subscribed())["subscription"]
        stream.tell("error", subscription=name, code="server_error", message="away", fix="wait")
        await until(lambda: isinstance(subscription.error, Failed))
        stream.send("snapshot", named(name, messages.whole(push(ONE))))
        assert await within(anext(subscription)) == ONE
        assert subscription.error is None
        stream.tell("error", subscription=name, code="query_failed", message="division by zero", fix="fix it")
        await until(lambda: subscription.error)
        stream.send("update", named(name, messages.whole(push(TWO))))
        assert await within(anext(subscription)) == TWO
        stream.tell("error", subscription=name, code="bad_arguments", message="no", fix="yes")
        with pytest.raises(Refused, match="no"):
            await within(anext(subscription))


async def test_a_query_that_fails_before_it_has_a_result_raises() -> None:
    fake = Server()
    async with fake.client() as client, client.subscribe("q") as subscription:
        stream = await fake.stream()
        name = (await fake.subscribed())["subscription"]
        stream.tell("error", subscription=name, code="query_failed", message="division by zero", fix="fix it")
        with pytest.raises(Refused, match="division"):
            await within(anext(subscription))


async def test_a_slow_consumer_gets_the_latest() -> None:
    fake = Server()
    async with fake.client() as client, client.subscribe("q") as subscription:
        stream = await fake.stream()
        name = (await fake.subscribed())["subscription"]
        stream.send("snapshot", named(name, messages.whole(push(ONE))))
        assert await within(anext(subscription)) == ONE
        for number in range(100):
            stream.send("update", named(name, messages.whole(push([{"id": number + 10}]))))
        await until(lambda: client.metrics.results == 101)
        assert subscription.result == ONE, "what it says is of the result that was given"
        assert await within(anext(subscription)) == [{"id": 109}]
        assert client.metrics.replaced == 99
        stream.send("update", named(name, messages.whole(push(ONE))))
        stream.send("update", named(name, messages.whole(push([{"id": 109}], xmax=20))))
        await until(lambda: client.metrics.results == 103)
        assert subscription.contains(19), "the same result on a later snapshot is shown at once"
        following = asyncio.ensure_future(anext(subscription))
        stream.send("update", named(name, messages.whole(push(TWO))))
        assert await within(following) == TWO


@pytest.mark.contract("W11")
async def test_a_token_is_renewed_over_the_open_stream() -> None:
    fake = Server()
    count = iter(range(1, 10))

    async def token() -> str:
        return f"t{next(count)}"

    async with fake.client(token) as client, client.subscribe("q"):
        await fake.subscribed()
        stream = await fake.stream()
        stream.tell("auth", expires_at=1, renew=True)
        await until(lambda: ("/session/id/0/auth", {"token": "t2"}) in fake.posts)
        assert fake.tokens == ["Bearer t1", "Bearer t1", "Bearer t2"]
        assert client.metrics.connects == 1


@pytest.mark.parametrize("reason", ["expired", "revoked"])
async def test_after_an_expulsion_a_new_token_opens_a_new_stream(reason: str) -> None:
    fake = Server()
    count = iter(range(1, 10))

    async def token() -> str:
        return f"t{next(count)}"

    async with fake.client(token) as client, client.subscribe("q") as subscription:
        stream = await fake.stream()
        await fake.subscribed()
        stream.tell("auth", reason=reason)
        stream.end()
        stream = await fake.stream()
        stream.send("snapshot", named((await fake.subscribed())["subscription"], messages.whole(push(ONE))))
        assert await within(anext(subscription)) == ONE
        assert fake.tokens[-1] == "Bearer t2"


async def test_without_a_newer_token_an_expulsion_raises() -> None:
    fake = Server()
    async with fake.client("secret") as client, client.subscribe("q") as subscription:
        stream = await fake.stream()
        await fake.subscribed()
        stream.tell("auth", reason="revoked")
        stream.end()
        with pytest.raises(Unauthorized, match="revoked"):
            await within(anext(subscription))


async def test_a_refused_token_is_renewed_once() -> None:
    fake = Server()
    count = iter(range(1, 10))

    async def token() -> str:
        return f"t{next(count)}"

    fake.refusals = [refusal(401, "auth_failed"), refusal(401, "auth_failed")]
    async with fake.client(token) as client:
        with pytest.raises(Unauthorized):
            await within(anext(client.subscribe("q")))
        assert fake.tokens == ["Bearer t1", "Bearer t2"]
        fake.refusals = [refusal(401, "auth_failed")]
        async with client.subscribe("q"):
            await fake.subscribed()
        assert fake.tokens[-1] == "Bearer t3"


async def test_what_the_token_function_raises_is_raised() -> None:
    async def token() -> str:
        raise LookupError("no such user")

    async with Server().client(token) as client:
        with pytest.raises(LookupError):
            await within(anext(client.subscribe("q")))
        with pytest.raises(LookupError):
            await within(client.query("q"))


async def test_the_stream_ends_with_the_last_subscription_and_comes_back_with_the_next() -> None:
    fake = Server()
    async with fake.client() as client:
        async with client.subscribe("a"):
            stream = await fake.stream()
            stream.closing = 0.05
            await fake.subscribed()
            async with client.subscribe("b"):
                await fake.subscribed()
            await until(lambda: any(path.endswith("/unsubscribe") for path, _ in fake.posts))
            assert not stream.closed.is_set()
        async with client.subscribe("c"):
            assert (await fake.subscribed())["query"] == "c"
            assert stream.closed.is_set()
            await fake.stream()


async def test_a_subscription_that_nobody_refers_to_ends() -> None:
    fake = Server()
    async with fake.client() as client:

        async def first() -> Any:
            async for rows in client.subscribe("q"):
                return rows

        found = asyncio.ensure_future(first())
        stream = await fake.stream()
        stream.send("snapshot", named((await fake.subscribed())["subscription"], messages.whole(push(ONE))))
        assert await within(found) == ONE
        gc.collect()
        await within(stream.closed.wait())


async def test_closing_ends_iterations() -> None:
    fake = Server()
    client = fake.client()
    subscription = client.subscribe("q")
    waiting = asyncio.ensure_future(anext(subscription, "ended"))
    stream = await fake.stream()
    await client.aclose()
    assert await within(waiting) == "ended"
    assert stream.closed.is_set()
    with pytest.raises(Closed):
        await anext(client.subscribe("q"))
    with pytest.raises(Closed):
        await client.query("q")


async def test_calls() -> None:
    fake = Server()
    answers: dict[str, Any] = {
        "/query/totals of": {"hash": "", "snapshot": "3:9:", "result": [{"total": {"$numeric": "1.50"}}]},
        "/mutation/pay": {"xid": "900", "result": {"$int": "9007199254740993"}},
        "/mutation/look": {"xid": None, "result": None},
    }
    fake.answer = lambda path, body: httpx.Response(200, json=answers[path])
    async with fake.client() as client:
        (row,) = await client.query("totals of", name=7)
        assert str(row["total"]) == "1.50"
        paid = await client.mutate("pay", name=7)
        assert (paid.result, paid.xid) == (9007199254740993, 900)
        assert (await client.mutate("look")).xid is None
    assert fake.posts[0] == ("/query/totals of", {"name": 7})


async def test_calls_raise_what_the_server_tells() -> None:
    fake = Server()
    answers = [
        refusal(400, "bad_arguments"),
        refusal(429, "too_many", retry_after_secs=7),
        refusal(500, "failed"),
        refusal(401, "auth_failed"),
        httpx.Response(200, text="nonsense"),
    ]
    fake.answer = lambda path, body: answers.pop(0)
    async with fake.client("secret") as client:
        with pytest.raises(Refused):
            await client.mutate("pay")
        with pytest.raises(TooMany) as caught:
            await client.mutate("pay")
        assert caught.value.retry_after_secs == 7
        with pytest.raises(Failed):
            await client.mutate("pay")
        with pytest.raises(Unauthorized):
            await client.mutate("pay")
        with pytest.raises(ProtocolError, match="cannot be read"):
            await client.mutate("pay")


async def test_a_silent_stream_is_taken_for_dead() -> None:
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        await reader.readuntil(b"\r\n\r\n")
        opened += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: hello\n\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        async with (
            connect(f"http://{host}:{port}", silence=0.2) as client,
            client.subscribe("q") as subscription,
        ):
            await until(lambda: opened == 2)
            assert isinstance(subscription.error, Unreachable)
            assert "in time" in str(subscription.error)


@pytest.mark.parametrize("url", ["", "postgresql://localhost/db", "127.0.0.1:8710", "http://"])
def test_a_url_that_is_none_is_told(url: str) -> None:
    with pytest.raises(ConfigError):
        connect(url)
    with pytest.raises(ConfigError):
        connect(URL, mode="some")  # type: ignore[arg-type]
