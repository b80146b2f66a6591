"""The pages of the tutorial and of the examples, as they are written there, on the origin that they are written for."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from forge.postgres.connection import Connection
from tests import folders
from tests.browser import Tabs
from tests.clients.pages import shows, until
from tests.clients.site import QUICK, ROOT
from tests.serve.serving import Served, serving

pytestmark = pytest.mark.browser

TUTORIAL = ROOT / "docs/tutorial/a-live-page.md"
EXAMPLE = ROOT / "examples/page.html"
PAGES = "http://127.0.0.1:8000"
SERVER = "http://127.0.0.1:8710"


def block(language: str, having: str) -> str:
    """The block of the tutorial in which this stands."""
    found = re.findall(rf"```{language}\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    (one,) = [text for text in found if having in text]
    return str(one)


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[str]:
    """The origin of a web server that has the files of `tmp_path`, as `python -m http.server` would."""
    with folders.served(tmp_path) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def served(database: str, connection: Connection, beside: str) -> AsyncIterator[Served]:
    """The shop of the tutorial, served for pages of that origin."""
    for statement in re.findall(r'db\.execute\("(.+)"\)', block("python", "CREATE TABLE orders")):
        connection.execute(statement.encode())
    connection.execute("SELECT forge_enable_reactivity('orders')")
    namespace: dict[str, Any] = {}
    exec(block("python", "async def open_orders").replace(PAGES, beside), namespace)
    app = namespace["app"]
    app._url, app.settings = database, QUICK
    async with serving(app) as served:
        yield served


@pytest.mark.parametrize("written", ["tutorial", "example"])
async def test_the_page_does_what_it_says(
    tabs: Tabs, served: Served, beside: str, connection: Connection, tmp_path: Path, written: str
) -> None:
    text = block("html", "createClient") if written == "tutorial" else EXAMPLE.read_text()
    assert len(text.splitlines()) < 40
    text = text.replace(SERVER, served.url).replace('"8000"', f'"{beside.rpartition(":")[2]}"')
    (tmp_path / "page.html").write_text(text)
    (tmp_path / "favicon.ico").touch()
    pages = [await tabs.open(f"{beside}/page.html") for _ in range(2)]
    for page in pages:
        await shows(page, "1: placed, 12.30 pay", "2: placed, 99.00 pay")
    await pages[0].locator("li", has_text="2:").get_by_role("button").click()
    for page in pages:
        await shows(page, "1: placed, 12.30 pay", "2: paid, 99.00 pay")
        await expect(page.locator("li", has_text="2:").get_by_role("button")).to_be_disabled()
    await until(lambda: connection.execute("SELECT status FROM orders WHERE id = 2").fetchone() == ("paid",))
    assert len(served.node.sessions) == 1
