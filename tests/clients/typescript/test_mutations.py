"""Mutations in a real browser: shown before they are done, taken back when refused, sent again and run once."""

import asyncio
from typing import Any

import pytest
from playwright.async_api import Page

from forge.postgres.connection import Connection
from forge.testing.proxy import FaultProxy
from tests.browser import Tabs
from tests.clients.pages import CUT_OFF, equals, port_of, shows, until
from tests.serve.serving import Served

pytestmark = pytest.mark.browser

KEPT = """async () => {
  if (!(await indexedDB.databases()).some(({ name }) => name === "forge")) return false;
  return new Promise((resolve, reject) => {
    const opened = indexedDB.open("forge");
    opened.onerror = () => reject(opened.error);
    opened.onsuccess = () => {
      const counted = opened.result.transaction("mutations").objectStore("mutations").count();
      counted.onsuccess = () => (opened.result.close(), resolve(counted.result === 2));
    };
  });
}"""
"""Whether two mutations are where they outlive the page."""
TRANSPORTS = pytest.mark.parametrize("transport", ["sse", "ws"])


async def mutating(page: Page, name: str, args: dict[str, Any], status: str | None = None) -> Any:
    """Run a mutation in the page; with a status, order 1 is expected to have it."""
    return await page.evaluate(
        "([name, args, status]) => window.mutate(name, args, status).then(({ result }) => ({ result }),"
        " (error) => ({ code: error.code, message: error.message }))",
        [name, args, status],
    )


async def statuses(page: Page) -> list[str]:
    """The statuses that order 1 was ever shown with, one after the other."""
    told = [state["data"][0]["status"] for state in await page.evaluate("window.states") if state["data"]]
    return [status for place, status in enumerate(told) if place == 0 or told[place - 1] != status]


@TRANSPORTS
async def test_an_optimistic_change_shows_at_once_and_never_flickers(
    tabs: Tabs, served: Served, orders: Connection, transport: str
) -> None:
    pages = [await tabs.open(f"{served.url}/page/live.html", transport=transport) for _ in range(2)]
    await equals(orders, *pages)
    ever = ["placed"]
    for page in pages:  # one leads, the other follows
        for number in range(5):
            status = f"{len(ever)}: {'leader' if page is pages[0] else 'follower'} {number}"
            ever.append(status)
            assert await mutating(page, "set_status", {"order_id": 1, "status": status}, status) == {"result": 1}
        await equals(orders, *pages)
        own = await statuses(page)
        assert own[-5:] == ever[-5:], "each was shown where it was made"
    for page in pages:
        shown = await statuses(page)
        assert shown == sorted(shown, key=ever.index), "nothing came back"
        assert shown[-1] == ever[-1]
        assert await page.evaluate("window.client.pending.getSnapshot().length") == 0


async def test_an_optimistic_change_is_taken_back_on_an_error(tabs: Tabs, served: Served, orders: Connection) -> None:
    tabs.expect(CUT_OFF)  # what it says of 422
    page = await tabs.open(f"{served.url}/page/live.html")
    await equals(orders, page)
    done = await mutating(page, "order", {"order_id": 1, "customer_id": 7}, "too early")
    assert done["code"] == "query_failed"
    await equals(orders, page)
    assert await statuses(page) == ["placed", "too early", "placed"]


async def test_mutations_wait_for_the_network_and_a_reload_and_run_once(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    tabs.expect(CUT_OFF)
    with FaultProxy("127.0.0.1", port_of(served)) as proxy:
        url = f"http://127.0.0.1:{proxy.port}/page/live.html"
        page, other = await tabs.open(url), await tabs.open(url)
        await equals(orders, page, other)
        proxy.refuse()
        proxy.cut()
        waiting = [
            asyncio.create_task(mutating(page, "order", {"order_id": number, "customer_id": 7})) for number in (7, 8)
        ]
        await page.wait_for_function("window.client.pending.getSnapshot().length === 2")
        await other.wait_for_function(KEPT)
        assert not any(task.done() for task in waiting)
        await page.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        proxy.accept()
        await other.evaluate("window.dispatchEvent(new Event('online'))")
        await equals(orders, other)
        await shows(other, "1 placed 12.30", "2 placed 99.00", "7 placed 1.00", "8 placed 1.00")
        await other.wait_for_function("window.client.pending.getSnapshot().length === 0")


async def test_a_mutation_whose_answer_was_lost_is_not_run_again(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    tabs.expect(CUT_OFF)
    with FaultProxy("127.0.0.1", port_of(served)) as proxy:
        page = await tabs.open(f"http://127.0.0.1:{proxy.port}/page/live.html")
        await equals(orders, page)
        with orders.transaction():  # holds the mutation inside the server until the network is gone
            orders.execute("LOCK TABLE orders IN EXCLUSIVE MODE")
            task = asyncio.create_task(mutating(page, "order", {"order_id": 7, "customer_id": 7}))
            await until(lambda: waits(orders))
            proxy.refuse()
            proxy.cut()
        proxy.accept()
        await page.evaluate("window.dispatchEvent(new Event('online'))")
        assert await task == {"result": 7}, "run twice it would have failed: the key is taken"
        await equals(orders, page)


def waits(orders: Connection) -> bool:
    """Whether somebody waits for a lock."""
    row = orders.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return row is not None and row[0] > 0


async def test_what_is_done_offline_is_shown_at_once_and_sent_when_the_browser_is_online(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    tabs.expect(CUT_OFF)
    page = await tabs.open(f"{served.url}/page/live.html")
    await equals(orders, page)
    await tabs.context.set_offline(True)
    done = asyncio.create_task(mutating(page, "set_status", {"order_id": 1, "status": "offline"}, "offline"))
    await shows(page, "1 offline 12.30", "2 placed 99.00")
    await page.wait_for_function("window.client.pending.getSnapshot()[0].error?.kind === 'unreachable'")
    assert orders.execute("SELECT status FROM orders WHERE id = 1").fetchone() == ("placed",)
    await tabs.context.set_offline(False)
    assert await done == {"result": 1}
    await equals(orders, page)
    assert await statuses(page) == ["placed", "offline"]
