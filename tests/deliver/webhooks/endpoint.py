"""A receiver of webhooks that behaves as badly as it is told to, over real sockets."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from socket import SO_LINGER, SOL_SOCKET

import msgspec

from forge.deliver.webhooks import verify

SECRET = "whsec_" + "c2VjcmV0" * 4
ALLOW = ["127.0.0.1"]


class Request(msgspec.Struct, frozen=True):
    """What arrived."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


Answer = int | str
"""A status; or `reset`, `hang`, `slow`, `cut`, `endless`, `late`, `moved`, `garbage`, or a status with more."""


class Receiver:
    """Takes requests. `answer` says how each is answered; only those answered with 2xx count as taken."""

    def __init__(self) -> None:
        self.answer: Callable[[Request], Answer] = lambda request: 204
        self.secrets = [SECRET]
        self.requests: list[Request] = []
        self.taken: list[Request] = []
        self.under_way = 0
        self.most = 0
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._one(reader, writer):
                    pass
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Request(head[0].split()[1], headers, body)
        verify(body, headers, self.secrets)
        self.requests.append(request)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await self._answer(request, self.answer(request), reader, writer)
        finally:
            self.under_way -= 1

    async def _answer(
        self, request: Request, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        status, text, more = answer, "", ""
        if answer == "reset":
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        if answer == "hang":
            await reader.read()  # until the sender hangs up
            return False
        if answer == "slow":
            await asyncio.sleep(0.05)
            status = 200
        if answer == "garbage":
            writer.write(b"\x00\xff not HTTP\r\n\r\n")
            return False
        if answer == "cut":
            writer.write(b"HTTP/1.1 200 OK\r\nconte")
            await writer.drain()
            return False
        if answer == "endless":
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            self.taken.append(request)
            while True:
                writer.write(b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n")
                await writer.drain()
        if answer == "late":
            self.taken.append(request)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
            await writer.drain()
            await asyncio.sleep(3600)
        if answer == "moved":
            status, more = 302, f"location: {self.url}/elsewhere\r\n"
        if isinstance(answer, str) and answer[0].isdigit():
            number, _, rest = answer.partition(" ")
            status = int(number)
            text, more = ("", rest + "\r\n") if ": " in rest else (rest, "")
        assert isinstance(status, int)
        if 200 <= status < 300:
            self.taken.append(request)
        coded = text.encode()
        length = "" if status == 204 else f"content-length: {len(coded)}\r\n"
        writer.write(f"HTTP/1.1 {status} X\r\n{length}{more}\r\n".encode() + coded)
        await writer.drain()
        return True


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver on loopback while the block lasts."""
    receiver = Receiver()
    tasks: set[asyncio.Task[None]] = set()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await receiver.serve(reader, writer)
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(begin, "127.0.0.1", 0, limit=1 << 24)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # connections that were aborted are closed now
