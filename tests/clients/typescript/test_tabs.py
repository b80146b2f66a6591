"""Tabs of one user share one connection: one of them leads, another one when it is gone. Two users share nothing."""

import pytest

from forge.postgres.connection import Connection
from tests.browser import Tabs
from tests.clients.pages import equals, shows, token, until
from tests.serve.serving import Served

pytestmark = pytest.mark.browser


@pytest.mark.contract("R6")
async def test_tabs_of_two_users_share_nothing(tabs: Tabs, secured: Served, orders: Connection) -> None:
    url = f"{secured.url}/page/live.html"
    users = ("ada", "bob", "ada")
    pages = [await tabs.open(url, query="who", args={}, token=token(user, 3600)) for user in users]
    for page, user in zip(pages, users, strict=True):
        await shows(page, f'{{"user":"{user}","orders":3}}')
    assert sorted(str(one.identity.auth.user) for one in secured.node.sessions.values()) == ["ada", "bob"]
    orders.execute("DELETE FROM orders WHERE id = 3")
    for page, user in zip(pages, users, strict=True):
        await shows(page, f'{{"user":"{user}","orders":2}}')
        told = {state["data"]["user"] for state in await page.evaluate("window.states") if state["data"]}
        assert told == {user}


async def test_a_second_tab_leads_when_the_first_closes(tabs: Tabs, served: Served, orders: Connection) -> None:
    pages = [await tabs.open(f"{served.url}/page/live.html", record=True) for _ in range(3)]
    await equals(orders, *pages)
    for gone in range(2):
        before = set(served.node.sessions)
        await pages[gone].close()
        await until(lambda: before.isdisjoint(served.node.sessions))  # noqa: B023
        await until(lambda: [len(one.subscriptions) for one in served.node.sessions.values()] == [1])
        orders.execute("UPDATE orders SET status = %s WHERE id = 1", (f"after {gone}",))
        await equals(orders, *pages[gone + 1 :])
    await pages[2].close()
    await until(lambda: not served.node.sessions)


@pytest.mark.long
async def test_a_tab_that_was_suspended_while_it_led_follows_when_it_wakes(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    asleep, awake = [await tabs.open(f"{served.url}/page/live.html") for _ in range(2)]
    await equals(orders, asleep, awake)
    before = set(served.node.sessions)
    debugger = await tabs.context.new_cdp_session(asleep)
    await debugger.send("Debugger.enable")
    await debugger.send("Debugger.pause")
    await awake.bring_to_front()
    await until(lambda: set(served.node.sessions) - before)
    orders.execute("UPDATE orders SET status = 'meanwhile' WHERE id = 1")
    await equals(orders, awake)
    await debugger.send("Debugger.resume")
    await debugger.send("Debugger.disable")
    await equals(orders, asleep)
    await until(lambda: len(served.node.sessions) == 1)
    assert before.isdisjoint(served.node.sessions)
    orders.execute("UPDATE orders SET status = 'together again' WHERE id = 1")
    await equals(orders, asleep, awake)
