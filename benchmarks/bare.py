"""The least that any server must do to tell many clients: a process that writes the same bytes to every connection.

It speaks just enough HTTP for `benchmarks.clients`, on the same event loop as the application, and does nothing else.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvloop

from benchmarks.process import Child, child, many_files, question, reply

_HELLO: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: \nid: 0\n\n"


class Bare:
    """The process, as its starter sees it."""

    def __init__(self, process: Child, port: int) -> None:
        self.process = process
        self.port = port

    def write(self, message: str, seconds: float) -> None:
        """Write it to all clients, over and over; `written` waits for the end."""
        self.process.tell([message, seconds])

    def written(self) -> None:
        self.process.answer()


@contextmanager
def bare_server() -> Iterator[Bare]:
    """The server while the block lasts."""
    with child("benchmarks.bare", None) as (process, port):
        yield Bare(process, port)


class _Connection(asyncio.Protocol):
    all: Final[set["_Connection"]] = set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.full = False

    def data_received(self, data: bytes) -> None:
        self.transport.write(_HELLO)
        self.all.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.all.discard(self)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    question()
    server = await loop.create_server(_Connection, "127.0.0.1", 0, backlog=4096)
    reply(server.sockets[0].getsockname()[1])
    while True:
        message, seconds = await loop.run_in_executor(None, question)
        data = message.encode("latin-1")
        end = loop.time() + seconds
        while loop.time() < end:
            for connection in _Connection.all:
                if not connection.full:
                    connection.transport.write(data)
            await asyncio.sleep(0)
        reply("written")


if __name__ == "__main__":
    many_files()
    uvloop.run(_serve())
