"""A served application in tests: uvicorn on a free loopback port, and streams as clients read them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from forge.app import Forge
from forge.serve.node import Node

SOON = 30.0


class Event:
    """One server-sent event."""

    def __init__(self, name: str, id: str | None, data: str) -> None:
        self.name = name
        self.id = id
        self.data = data

    @property
    def body(self) -> Any:
        return json.loads(self.data)

    def __repr__(self) -> str:
        return f"{self.name} {self.data[:200]}"


class Stream:
    """The events of one response, and its bytes."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.seen: list[Event] = []
        self.bytes = 0
        self._lines = response.aiter_lines()

    async def next(self) -> Event:
        """The next event; comments are left out. StopAsyncIteration when the stream ends."""
        async with asyncio.timeout(SOON):
            fields: dict[str, list[str]] = {}
            while True:
                line = await anext(self._lines)
                self.bytes += len(line)
                if not line and fields.get("data"):
                    event = Event(fields["event"][0], fields.get("id", [None])[0], "\n".join(fields["data"]))
                    self.seen.append(event)
                    return event
                name, _, value = line.partition(": ")
                if line and name:
                    fields.setdefault(name, []).append(value)

    async def until(self, condition: Callable[[Event], object]) -> Event:
        async with asyncio.timeout(SOON):
            while not condition(event := await self.next()):
                pass
            return event

    async def named(self, name: str) -> Event:
        return await self.until(lambda event: event.name == name)


class Served:
    """A served application, and a client of it."""

    def __init__(self, app: Forge, url: str, client: httpx.AsyncClient, server: uvicorn.Server) -> None:
        self.app = app
        self.url = url
        self.client = client
        self.server = server

    @property
    def node(self) -> Node:
        node = self.app.asgi().node
        assert node is not None
        return node

    @asynccontextmanager
    async def stream(self, path: str, **options: Any) -> AsyncIterator[Stream]:
        async with self.client.stream("GET", path, timeout=httpx.Timeout(SOON), **options) as response:
            yield Stream(response)

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return await self.client.post(path, json=body, **options)


@asynccontextmanager
async def serving(app: Forge, asgi: ASGIApp | None = None) -> AsyncIterator[Served]:
    """The application, served while the block lasts; by `asgi`, where that leads to it."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(asgi or app, log_level="warning", ws="websockets-sansio", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve([listening]))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with asyncio.timeout(SOON):
        while not server.started:
            assert not task.done(), "the server ended"
            await asyncio.sleep(0.01)
    async with httpx.AsyncClient(base_url=url, verify=False) as client:
        served = Served(app, url, client, server)
        try:
            yield served
        finally:
            if (node := app.asgi().node) is not None:
                node.farewell()
            server.should_exit = True
            await task
            listening.close()
