"""The harness itself: a page of the folder is shown, and what its console says is heard."""

import pytest

from tests.browser import Tabs
from tests.serve.serving import Served

pytestmark = pytest.mark.browser


async def test_a_page_is_served_and_its_errors_are_heard(tabs: Tabs, served: Served) -> None:
    tabs.expect("meant to be")
    page = await tabs.open(f"{served.url}/page/empty.html", answer=42)
    assert await page.title() == "Empty"
    assert await page.evaluate("new URLSearchParams(location.search).get('options')") == '{"answer": 42}'
    await page.evaluate("console.error('this is meant to be here')")
    await page.evaluate("fetch('/clients/package.json').then((answer) => answer.json())")
    async with tabs.context.expect_event("weberror"):
        await page.evaluate("setTimeout(() => { throw new Error('nobody catches this') })")
    assert len(tabs.errors) == 2
    assert ["nobody catches this" in error for error in tabs.unexpected] == [True]
    tabs.expect("nobody catches this")
