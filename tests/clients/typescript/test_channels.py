"""Channels in a real browser: tabs that see each other come, speak and go, and find each other again."""

import json
import re

import pytest
from playwright.async_api import Page, expect

from tests.browser import Tabs
from tests.clients.conftest import Process
from tests.clients.pages import CUT_OFF, token, until, with_tokens
from tests.serve.serving import Served

pytestmark = pytest.mark.browser

ANYBODY = re.compile("^[0-9a-f]{16}$")


async def are_members(*pages: Page) -> list[str]:
    """Each page shows all of them, and nobody else; returns who they are."""
    for page in pages:
        await expect(page.locator("body")).to_have_attribute("data-you", ANYBODY)
    found = [str(await page.locator("body").get_attribute("data-you")) for page in pages]
    assert len(set(found)) == len(pages), "each tab is a member of its own"
    for page in pages:
        await page.wait_for_function(
            "all => JSON.stringify([...document.querySelectorAll('li')].map((one) => one.textContent).sort()) === all",
            arg=json.dumps(sorted(found), separators=(",", ":")),
        )
    return found


@pytest.mark.contract("R17")
async def test_tabs_see_who_is_there_and_what_is_said(tabs: Tabs, served: Served) -> None:
    one, other = [await tabs.open(f"{served.url}/page/channels.html") for _ in range(2)]
    first, _ = await are_members(one, other)
    await one.evaluate("window.room.publish({ typing: true, total: 12.5 })")
    for page in (one, other):
        await page.wait_for_function("window.heard.length === 1")
        assert await page.evaluate("window.heard") == [[first, {"typing": True, "total": 12.5}]]
    await other.close()
    await are_members(one)
    await one.evaluate("window.room.leave()")
    await until(lambda: not served.node.sessions)


@pytest.mark.contract("R17")
async def test_a_server_that_is_started_again_has_both_as_members(tabs: Tabs, process: Process) -> None:
    tabs.expect(CUT_OFF)
    await process.start()
    pages = [await tabs.open(f"{process.url}/page/channels.html") for _ in range(2)]
    before = await are_members(*pages)
    process.kill()
    for page in pages:
        await expect(page.locator("body")).to_have_attribute("data-you", "")
    await process.start()
    after = await are_members(*pages)
    assert not {*before} & {*after}, "a connection is another member"
    await pages[1].evaluate("window.room.publish('again')")
    await pages[0].wait_for_function("JSON.stringify(window.heard.at(-1)?.[1]) === '\"again\"'")


@pytest.mark.contract("R17")
async def test_members_have_the_names_of_their_tokens(tabs: Tabs, secured: Served) -> None:
    asked = await with_tokens(tabs, lambda: token("ada", 31))  # so it is to be renewed after a second
    page = await tabs.open(f"{secured.url}/page/channels.html")
    await expect(page.locator("li")).to_have_text(["ada"])
    you = await page.evaluate("window.room.you.getSnapshot()")
    await until(lambda: len(asked) > 1)
    await page.evaluate("window.room.publish(1)")
    assert await page.evaluate("window.room.you.getSnapshot()") == you, "the connection is the same"
