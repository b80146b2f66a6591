"""An application for the browser: the shop of `site.py`, served with the harness's pages beside it."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from forge.postgres.connection import Connection
from forge.serve.auth import AuthSettings
from tests.clients.site import DATABASE, ROOT, SHOP, Site, shop
from tests.serve.serving import SOON, Served, serving

SECRET = "a secret of thirty-two characters!"
AUTH = AuthSettings(algorithms=("HS256",), secret=SECRET, leeway=0)


@pytest.fixture
def orders(connection: Connection) -> Connection:
    """A connection to `database`, with the shop's orders in it."""
    connection.execute(SHOP.encode())
    return connection


@pytest_asyncio.fixture(loop_scope="session")
async def served(database: str, orders: Connection) -> AsyncIterator[Served]:
    """The shop, served with the harness's pages beside it."""
    app = shop(database)
    async with serving(app, Site(app)) as served:
        yield served


@pytest_asyncio.fixture(loop_scope="session")
async def secured(database: str, orders: Connection) -> AsyncIterator[Served]:
    """The same for those who have a token."""
    app = shop(database, auth=AUTH)
    async with serving(app, Site(app)) as served:
        yield served


class Process:
    """The shop as a process of its own, which can be killed and started again at the same address."""

    def __init__(self, database: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {**os.environ, DATABASE: database}
        self._running: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Returns when it is ready."""
        self._running = self._begin()
        async with asyncio.timeout(SOON), httpx.AsyncClient(verify=False) as client:
            while True:
                assert self._running.poll() is None, "the server ended"
                try:
                    if (await client.get(f"{self.url}/readyz")).is_success:
                        return
                except httpx.TransportError:
                    await asyncio.sleep(0.05)

    def _begin(self) -> "subprocess.Popen[bytes]":
        options = ["--factory", "--port", str(self.port), "--log-level", "error", "--ws", "websockets-sansio"]
        command = [sys.executable, "-m", "uvicorn", "tests.clients.site:site", *options]
        return subprocess.Popen(command, cwd=ROOT, env=self._environment)

    def kill(self) -> None:
        """End it at once, without a word to its clients."""
        if self._running is not None:
            self._running.kill()
            self._running.wait(SOON)
            self._running = None


@pytest.fixture
def process(database: str, orders: Connection) -> Iterator[Process]:
    """The shop in a process that is not started yet."""
    process = Process(database)
    yield process
    process.kill()
