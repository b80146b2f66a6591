"""The demo as a visitor sees it: both windows live, an order in one seen in the other, the console beside them."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.async_api import FrameLocator, expect

from tests.browser import Tabs
from tests.clients.pages import serious, until
from tests.serve.serving import SOON

pytestmark = pytest.mark.browser


@pytest.fixture
def demo(empty_database: str, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "forge", "demo", "--no-lake", "--rate", "2", "--database-url", empty_database]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGE_")}
    with open(tmp_path / "said", "w") as said:
        running = subprocess.Popen(command, cwd=tmp_path, env=kept, stdout=said, stderr=subprocess.STDOUT, text=True)
    yield running
    running.kill()
    running.wait(SOON)


async def test_an_order_in_one_window_is_seen_in_the_other(
    demo: "subprocess.Popen[str]", tabs: Tabs, tmp_path: Path
) -> None:
    def said() -> str:
        return (tmp_path / "said").read_text()

    await until(lambda: "/console\n" in said() or demo.poll() is not None)
    found = re.search(r"live page  (\S+)        console  (\S+)\n", said())
    assert found is not None, said()
    page = await tabs.open(found[1])
    counter: FrameLocator = page.frame_locator("iframe[title^='The counter']")
    office: FrameLocator = page.frame_locator("iframe[title^='The office']")
    await expect(counter.locator("li")).to_have_count(16)
    await expect(page.locator("#status")).to_have_text("live")
    await expect(page.locator("[data-of=placed]")).not_to_have_text("–")
    await expect(office.locator("#when")).to_have_text(re.compile(r"\d+ ms after the write"))
    anvil = counter.locator("li", has_text="Anvil")
    async with asyncio.timeout(SOON):
        seen = False
        while not seen:  # prices move, and others' orders push an older one of hers off the list, at the same moment
            price = await anvil.locator(".price").inner_text()
            mine = office.locator("li", has_text="Ada").filter(has_text=price)  # whom the demo takes for the visitor
            before = await mine.count()
            await anvil.get_by_role("button").click()
            with suppress(AssertionError):
                await expect(mine).to_have_count(before + 1, timeout=5000)
                seen = True
    for frame in page.frames:
        assert await serious(frame) == []
    await page.set_viewport_size({"width": 390, "height": 800})
    for window in (counter, office):
        names = await window.locator(".name").evaluate_all("all => all.map((it) => it.scrollWidth - it.clientWidth)")
        assert names
        assert max(names) == 0
    await page.get_by_role("link", name="Console").click()
    await expect(page.locator("nav")).to_be_visible()
    await page.close()
    demo.send_signal(signal.SIGINT)
    await asyncio.to_thread(demo.wait, SOON)
    assert "nothing lost, nothing twice ✓" in said()
    assert any("INSERT" in line and " order " in line for line in said().splitlines())
