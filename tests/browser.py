"""A real browser for the tests: Debian's Chromium, started once in each process of pytest.

A test marked `browser` is skipped where there is none. `tabs` opens pages in a profile of the test's own: cookies,
storage, locks and channels are shared by its tabs and by no other test. A test fails when a page of its wrote an error
to its console that the test did not announce by `tabs.expect`, or left an error uncaught. Tests with a browser are
coroutines that share one event loop, in which the browser lives too.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from tests.serve.serving import SOON
from tests.servers.chromium import ARGUMENTS, PATH

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, WebError

ROOT = Path(__file__).resolve().parent.parent
NEEDED = {
    "Chromium": Path(PATH),
    "what is built from clients/": ROOT / "src/forge/serve/static/client.js",
    "the packages of clients/": ROOT / "clients/node_modules",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [what for what, place in NEEDED.items() if not place.exists()]
    for item in items:
        if item.get_closest_marker("browser") is None:
            continue
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"{missing[0]} is not here: make setup"))
        if inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """The running browser."""
    from playwright.async_api import async_playwright

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
