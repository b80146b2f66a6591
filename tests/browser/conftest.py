"""A real browser for the tests: Debian's Chromium, started once in each process of pytest, and an application for it.

`tabs` opens pages in a profile of the test's own: cookies, storage, locks and channels are shared by its tabs and by no
other test. A test fails when a page of its wrote an error to its console that the test did not announce by
`tabs.expect`, or left an error uncaught. Tests here are coroutines that share one event loop, in which the browser
lives too.
"""

import asyncio
import inspect
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, WebError, async_playwright

from forge.postgres.connection import Connection
from forge.serve.auth import AuthSettings
from forge.testing.chromium import ARGUMENTS, PATH
from tests.browser.site import DATABASE, ROOT, SHOP, Site, shop
from tests.integration.serving import SOON, Served, serving

SECRET = "a secret of thirty-two characters!"
AUTH = AuthSettings(algorithms=("HS256",), secret=SECRET, leeway=0)


NEEDED = {
    "Chromium": Path(PATH),
    "what is built from clients/": ROOT / "src/forge/serve/static/client.js",
    "the packages of clients/": ROOT / "clients/node_modules",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    missing = [what for what, place in NEEDED.items() if not place.exists()]
    for item in items:
        if here not in item.path.parents:
            continue
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"{missing[0]} is not here: make setup"))
        if inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """The running browser."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=PATH, args=ARGUMENTS)
        yield browser
        await browser.close()


class Tabs:
    """The tabs of one browser profile, and what their consoles said."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.errors: list[str] = []
        self._expected: list[str] = []
        context.on("console", self._said)
        context.on("weberror", self._failed)

    async def open(self, url: str, **options: Any) -> Page:
        """A new tab on the page; `options`, as JSON, are what `options()` of the harness reads."""
        page = await self.context.new_page()
        await page.goto(f"{url}?{urlencode({'options': json.dumps(options)})}" if options else url)
        return page

    def expect(self, pattern: str) -> None:
        """Errors in which this regular expression is found are meant to be there."""
        self._expected.append(pattern)

    @property
    def unexpected(self) -> list[str]:
        return [error for error in self.errors if not any(re.search(pattern, error) for pattern in self._expected)]

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def _failed(self, error: WebError) -> None:
        self.errors.append(str(error.error))


Profile = Callable[..., Awaitable[Tabs]]


@pytest.fixture
def servers_first(request: pytest.FixtureRequest) -> None:
    """A test's servers outlive its tabs, which would else complain that theirs is gone."""
    for name in ("served", "secured", "process"):
        if name in request.fixturenames:
            request.getfixturevalue(name)


@pytest_asyncio.fixture(loop_scope="session")
async def profile(chromium: Browser, servers_first: None) -> AsyncIterator[Profile]:
    """Makes browser profiles, each with tabs of its own: two are two people's browsers."""
    made: list[Tabs] = []

    async def make(**options: Any) -> Tabs:
        context = await chromium.new_context(**options)
        context.set_default_timeout(SOON * 1000)
        made.append(Tabs(context))
        return made[-1]

    yield make
    for tabs in made:
        await tabs.context.close()
    assert [error for tabs in made for error in tabs.unexpected] == []


@pytest_asyncio.fixture(loop_scope="session")
async def tabs(profile: Profile) -> Tabs:
    """The tabs of this test's browser."""
    return await profile()


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
        command = [sys.executable, "-m", "uvicorn", "tests.browser.site:site", *options]
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
