"""Changes per second to a webhook on loopback: a backlog in the log, one change a request, 16 requests in flight.

The receiver is a process of its own that reads requests and answers 204; it parses no more than it must. Beside it the
same requests, unsigned and in no order, by a bare loop of the same HTTP library.
"""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from time import perf_counter

import aiohttp

from benchmarks import reading
from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_least, figure
from forge.deliver.consumers import ConsumerNode, Consumers, ConsumerSettings
from forge.deliver.consumers.control import Control
from forge.deliver.message import Message
from forge.deliver.webhooks import Webhook, new_secret

LEAST = 3_000
IN_FLIGHT = 16
BODY = b'{"table":"orders","operation":"INSERT"}' * 8


def run(bench: Bench) -> list[Figure]:
    """Rounds of Forge and of the bare loop, in turns."""
    rounds, changes = (3, 6_000) if bench.quick else (5, 30_000)
    ours, bare = [], []
    with bench.database() as url, _receiver() as port:
        bench.say(f"writing {changes:,} changes to send")
        reading._write(url, changes)
        for turn in range(rounds):
            bench.say(f"sending them, round {turn + 1} of {rounds}")
            ours.append(asyncio.run(_delivered(url, port, changes)))
            bare.append(asyncio.run(_bare(port, changes)))
    return [
        at_least(figure("webhooks", "one change a request, 16 in flight, from the log", ours, "rate"), LEAST),
        figure("webhooks", "bare requests of the same library", bare, "rate"),
    ]


class _Counting:
    """A webhook that knows when all is sent."""

    def __init__(self, sink: Webhook, changes: int) -> None:
        self._sink = sink
        self._left = changes
        self.first = self.last = 0.0
        self.done = asyncio.Event()

    async def send(self, messages: "list[Message]", /) -> None:
        self.first = self.first or perf_counter()
        await self._sink.send(messages)
        self._left -= len(messages)
        if self._left <= 0:
            self.last = perf_counter()
            self.done.set()

    async def close(self) -> None:
        await self._sink.close()


async def _delivered(url: str, port: int, changes: int) -> float:
    sink = _Counting(
        Webhook(f"http://127.0.0.1:{port}/", secret=new_secret(), in_flight=IN_FLIGHT, allow=["127.0.0.1"]), changes
    )
    consumers = Consumers()
    consumers.deliver("hook", to=sink, batch=500, ops=["insert", "update"], start="start")  # type: ignore[arg-type]
    node = ConsumerNode(url, consumers.named.values(), ConsumerSettings(tick=0.02))
    async with node.running():
        async with asyncio.timeout(300):
            await sink.done.wait()
    await node.close()
    await Control(url).forget("hook")
    return changes / (sink.last - sink.first)


async def _bare(port: int, count: int) -> float:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:
        left = count

        async def lane() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                async with session.post(f"http://127.0.0.1:{port}/", data=BODY) as response:
                    await response.read()

        began = perf_counter()
        await asyncio.gather(*(lane() for _ in range(IN_FLIGHT)))
        return count / (perf_counter() - began)


@contextmanager
def _receiver() -> Iterator[int]:
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=_serve, args=(far,), daemon=True)
    process.start()
    try:
        yield near.recv()
    finally:
        process.terminate()
        process.join()


def _serve(pipe: Pipe) -> None:
    asyncio.run(_serving(pipe))


async def _serving(pipe: Pipe) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Protocol, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class _Protocol(asyncio.Protocol):
    """Answers each request once it is whole."""

    def __init__(self) -> None:
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._seen += data
        while (end := self._seen.find(b"\r\n\r\n")) >= 0:
            head = self._seen[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._seen) < end + 4 + length:
                return
            self._seen = self._seen[end + 4 + length :]
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
