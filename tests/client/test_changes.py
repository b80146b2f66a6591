"""The raw feed against a scripted server: it goes on where it was, however it broke."""

import asyncio
from datetime import UTC, datetime

import httpx
import pytest

from forge.change import Change, ChangeSource, Op
from forge.client import Client, connect
from forge.client.tokens import Token
from forge.errors import CursorExpired, DecodeError, Refused, Unauthorized, Unreachable
from forge.serve.messages import fields, sse
from forge.wire import encode

PATIENCE = 5.0


def change(number: int) -> Change:
    at = datetime(2026, 1, 31, tzinfo=UTC)
    return Change(str(number), Op.INSERT, "public", "t", ChangeSource("log", "x", str(number)), at, {"id": number})


def event(number: int) -> bytes:
    return sse("change", encode(change(number)), f"c{number}")


class Server(httpx.AsyncBaseTransport):
    """Answers each request with the next of its answers; the bytes of a stream, which then stays open or breaks."""

    def __init__(self, *answers: bytes | httpx.Response, stay: bool = False) -> None:
        self.answers = list(answers)
        self.stay = stay
        self.asked: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, httpx.Response):
            return answer
        last = self.stay and not self.answers

        class Body(httpx.AsyncByteStream):
            async def __aiter__(self):  # type: ignore[no-untyped-def]
                yield answer
                if last:
                    await asyncio.Event().wait()
                raise httpx.ReadError("gone")

        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Body())

    def client(self, token: Token = None) -> Client:
        return connect("http://forge.test", token=token, http=httpx.AsyncClient(transport=self))

    @property
    def cursors(self) -> list[str | None]:
        return [request.headers.get("last-event-id") for request in self.asked]


async def test_it_asks_for_tables_from_a_cursor_on() -> None:
    server = Server(event(1))
    async with server.client() as client, client.changes(["a", "s.b"], after="c0") as changes:
        assert changes.cursor == "c0"
        assert await anext(changes) == change(1)
        assert changes.cursor == "c1"
    assert server.asked[0].url.params.multi_items() == [("backpressure", "pause"), ("table", "a"), ("table", "s.b")]
    assert server.cursors == ["c0"]


async def test_after_a_break_it_goes_on_behind_the_last_change() -> None:
    cut = event(3)
    server = Server(b": \nid: c0\n\n", event(1) + event(2) + cut[:-1], event(3) + event(4))
    found = []
    async with asyncio.timeout(PATIENCE), server.client() as client, client.changes() as changes:
        async for one in changes:
            found.append(one)
            if len(found) == 2:
                assert changes.error is None
            if len(found) == 4:
                break
    assert found == [change(number) for number in (1, 2, 3, 4)]
    assert server.cursors == [None, "c0", "c2"]


async def test_the_cursor_is_of_the_change_that_was_given_and_moves_on_when_all_is_quiet() -> None:
    server = Server(event(1) + event(2) + b": \nid: c9\n\n", stay=True)
    async with server.client() as client, client.changes() as changes:
        await anext(changes)
        assert changes.cursor == "c1"
        await anext(changes)
        assert changes.cursor == "c9", "what follows it is nothing of interest"


async def test_a_wait_that_is_broken_off_loses_nothing() -> None:
    server = Server(event(1), event(2), stay=True)
    server.answers = [event(1)]
    async with server.client() as client, client.changes() as changes:
        await anext(changes)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(changes), 0.05)
        server.answers = [event(2)]
        assert await asyncio.wait_for(anext(changes), PATIENCE) == change(2)
    assert server.cursors == [None, "c1"]


async def test_what_is_final_is_raised() -> None:
    expired = {"error": {"code": "cursor_expired", "message": "trimmed", "fix": "begin again"}}
    refused = sse("error", b"{" + fields(code="forbidden", message="no", fix="ask for less"))
    ended = sse("auth", b"{" + fields(reason="expired"))
    server = Server(httpx.Response(410, json=expired), refused, sse("change", b"{}", "c5"))
    async with server.client() as client, client.changes(after="c4") as changes:
        with pytest.raises(CursorExpired, match="trimmed"):
            await anext(changes)
        with pytest.raises(Refused, match="no"):
            await anext(changes)
        with pytest.raises(DecodeError):
            await anext(changes)
        assert changes.cursor == "c4"
        server.answers = [httpx.Response(200, headers={"content-type": "text/event-stream"}, content=ended)]
        with pytest.raises(Unauthorized, match="expired"):
            await anext(changes)


async def test_what_passes_is_waited_for() -> None:
    tokens = iter(["t1", "t2"])

    async def token() -> str:
        return next(tokens)

    away = {"error": {"code": "server_error", "message": "away", "fix": "wait"}}
    ended = sse("auth", b"{" + fields(reason="expired"))
    server = Server(
        httpx.Response(503, json=away),
        httpx.Response(200, headers={"content-type": "text/event-stream"}, content=ended),
        event(1),
        stay=True,
    )
    async with asyncio.timeout(PATIENCE), server.client(token) as client, client.changes() as changes:
        assert await anext(changes) == change(1)
    assert [request.headers["authorization"] for request in server.asked] == ["Bearer t1", "Bearer t1", "Bearer t2"]


async def test_closing_ends_it() -> None:
    server = Server(event(1), stay=True)
    async with server.client() as client:
        changes = client.changes()
        await anext(changes)
        await changes.aclose()
        assert [one async for one in changes] == []
        assert changes.cursor == "c1"
        assert not isinstance(changes.error, Unreachable)
