"""What a test asks of the harness's pages: to show what the database has, in the end."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import jwt
from playwright.async_api import Frame, Page, expect

from forge.postgres.connection import Connection
from tests.browser import Tabs
from tests.clients.conftest import SECRET
from tests.clients.site import ROOT
from tests.serve.serving import SOON, Served

expect.set_options(timeout=SOON * 1000)

CUT_OFF = r"Failed to load resource|WebSocket connection to|net::ERR_"
"""What Chromium itself says when a server cannot be reached, or refuses something."""
AXE = ROOT / "clients/node_modules/axe-core/axe.min.js"


def port_of(served: Served) -> int:
    return int(served.url.rpartition(":")[2])


async def serious(page: Page | Frame) -> list[str]:
    """What axe-core finds that would keep somebody out, by name."""
    await page.evaluate(AXE.read_text("utf-8"))
    found = await page.evaluate("axe.run()")
    return [one["id"] for one in found["violations"] if one["impact"] in ("serious", "critical")]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def shows(page: Page, *lines: str) -> None:
    await expect(page.locator("li")).to_have_text(list(lines))


async def is_now(page: Page, status: str) -> None:
    await expect(page.locator("body")).to_have_attribute("data-status", status)


async def equals(orders: Connection, *pages: Page) -> None:
    """Every page shows, live, what the database has for customer 7."""
    rows = orders.execute("SELECT id, status, total FROM orders WHERE customer_id = 7 ORDER BY id").fetchall()
    for page in pages:
        await shows(page, *(f"{id} {status} {total}" for id, status, total in rows))
        await is_now(page, "live")


def token(user: str, seconds: float, **claims: Any) -> str:
    return jwt.encode({"sub": user, "exp": time.time() + seconds, **claims}, SECRET, "HS256")


async def with_tokens(tabs: Tabs, give: Callable[[], str]) -> list[float]:
    """Pages of these tabs ask here for their token; returns when they did."""
    asked: list[float] = []

    def giving(_source: Any) -> str:
        asked.append(time.time())
        return give()

    await tabs.context.expose_binding("token", giving)
    return asked
