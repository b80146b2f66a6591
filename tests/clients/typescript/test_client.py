"""The client in a real browser, on a network that fails: whatever happens, each tab ends with what the database has."""

import random
import subprocess
import time

import pytest
from playwright.async_api import Page

from forge.postgres.connection import Connection
from forge.testing import available_versions
from forge.testing.proxy import FaultProxy
from tests.browser import Profile, Tabs
from tests.clients.conftest import Process
from tests.clients.pages import CUT_OFF, equals, is_now, port_of, shows, token, until, with_tokens
from tests.serve.serving import SOON, Served

pytestmark = pytest.mark.browser

TRANSPORTS = pytest.mark.parametrize("transport", ["sse", "ws"])


def psql(url: str, statement: str) -> None:
    newest = list(available_versions().values())[-1]
    subprocess.run([newest / "psql", url, "-qc", statement], check=True, timeout=SOON)


@TRANSPORTS
@pytest.mark.contract("R1", "W8")
async def test_a_write_by_psql_appears_in_two_tabs(
    tabs: Tabs, served: Served, database: str, orders: Connection, transport: str
) -> None:
    pages = [await tabs.open(f"{served.url}/page/live.html", transport=transport) for _ in range(2)]
    for page in pages:
        await shows(page, "1 placed 12.30", "2 placed 99.00")
    psql(database, "UPDATE orders SET status = 'paid' WHERE id = 2")
    for page in pages:
        await shows(page, "1 placed 12.30", "2 paid 99.00")
    assert len(served.node.sessions) == 1, "tabs share one connection"
    first = (await pages[0].evaluate("window.states"))[-1]["data"][0]
    assert first == {"id": 1, "status": "placed", "total": {"$numeric": "12.30"}, "big": "9007199254740993n"}


@pytest.mark.parametrize("mode", ["full", "delta"])
@pytest.mark.contract("R14")
async def test_full_results_and_deltas_show_the_same(tabs: Tabs, served: Served, orders: Connection, mode: str) -> None:
    page = await tabs.open(f"{served.url}/page/live.html", mode=mode)
    await equals(orders, page)
    for statement in (
        "INSERT INTO orders VALUES (0, 7, 'first', 0, 0), (9, 7, 'last', 9, 9)",
        "UPDATE orders SET status = 'paid' WHERE id IN (1, 9)",
        "UPDATE orders SET id = 5 WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
        "UPDATE orders SET customer_id = 7 WHERE id = 3",
        "DELETE FROM orders",
    ):
        orders.execute(statement.encode())
        await equals(orders, page)


async def test_a_value_is_live_too_and_ends_when_nobody_watches(tabs: Tabs, served: Served, orders: Connection) -> None:
    page = await tabs.open(f"{served.url}/page/live.html", query="how_many", args={}, linger=10)
    await shows(page, "3")
    orders.execute("DELETE FROM orders WHERE id = 3")
    await shows(page, "2")
    await page.evaluate("window.stop()")
    await until(lambda: not served.node.sessions)


@pytest.mark.contract("R11", "W10")
async def test_a_slow_tab_gets_a_gap_converges_and_slows_no_other(
    profile: Profile, served: Served, orders: Connection
) -> None:
    slow, quick = await profile(), await profile()
    with FaultProxy("127.0.0.1", port_of(served)) as proxy:
        behind = await slow.open(f"http://127.0.0.1:{proxy.port}/page/live.html", record=True)
        beside = await quick.open(f"{served.url}/page/live.html")
        await equals(orders, behind, beside)
        proxy.stall()
        for number in range(400):
            status = f"{number} {'x' * 200_000}"
            orders.execute("UPDATE orders SET status = %s WHERE id = 1", (status,))
            await beside.wait_for_function(f"window.live.state.data[0].status.startsWith('{number} ')")
            if sum(one.waiting for one in served.node.sessions.values()):
                break
        else:
            pytest.fail("nothing ever waited for the slow one")
        waiting = [one for one in served.node.sessions.values() if one.waiting]
        orders.execute("UPDATE orders SET status = 'nobody sees this' WHERE id = 1")
        await equals(orders, beside)
        assert waiting == [one for one in served.node.sessions.values() if one.waiting]
        orders.execute("UPDATE orders SET status = 'short again' WHERE id = 1")
        await equals(orders, beside)
        proxy.resume()
        await equals(orders, behind)
        assert "gap" in await behind.evaluate("window.events")
        await behind.close()


async def two_each(profile: Profile, url: str) -> list[Page]:
    """Two tabs of a browser that streams, two of one that has a WebSocket."""
    pages = []
    for transport in ("sse", "ws"):
        tabs = await profile()
        tabs.expect(CUT_OFF)
        pages += [await tabs.open(url, transport=transport) for _ in range(2)]
    return pages


@pytest.mark.contract("R8")
async def test_the_server_is_killed_and_started_again(profile: Profile, process: Process, orders: Connection) -> None:
    await process.start()
    pages = await two_each(profile, f"{process.url}/page/live.html")
    await equals(orders, *pages)
    process.kill()
    for page in pages:
        await is_now(page, "stale")
        await shows(page, "1 placed 12.30", "2 placed 99.00")
    orders.execute("UPDATE orders SET status = 'paid' WHERE id = 2")
    await process.start()
    await equals(orders, *pages)


@pytest.mark.contract("R8")
async def test_the_network_breaks_again_and_again(profile: Profile, served: Served, orders: Connection) -> None:
    chance = random.Random(9)
    with FaultProxy("127.0.0.1", port_of(served)) as proxy:
        pages = await two_each(profile, f"http://127.0.0.1:{proxy.port}/page/live.html")
        await equals(orders, *pages)
        for round in range(3):
            proxy.refuse()
            proxy.cut()
            for page in pages:
                await is_now(page, "stale")
            for _ in range(chance.randrange(3)):
                orders.execute(
                    "INSERT INTO orders VALUES (%s, 7, %s, %s, 0)"
                    " ON CONFLICT (id) DO UPDATE SET status = excluded.status",
                    (chance.randrange(9), f"round {round}", round),
                )
            proxy.accept()
            for page in pages:
                await page.evaluate("window.dispatchEvent(new Event('online'))")
            await equals(orders, *pages)
        for page in pages:
            assert [state["status"] for state in await page.evaluate("window.states")].count("stale") >= 3


@pytest.mark.contract("W11")
async def test_a_token_is_refreshed_while_the_stream_goes_on(tabs: Tabs, secured: Served, orders: Connection) -> None:
    lives = iter([30.8, 3600.0])
    asked = await with_tokens(tabs, lambda: token("ada", next(lives)))
    page = await tabs.open(f"{secured.url}/page/live.html")
    await equals(orders, page)
    (before,) = secured.node.sessions
    await until(lambda: len(asked) == 2)
    await until(lambda: (secured.node.sessions[before].identity.expires_at or 0) > time.time() + 1000)
    orders.execute("UPDATE orders SET status = 'paid'")
    await equals(orders, page)
    assert list(secured.node.sessions) == [before]
    assert "stale" not in [state["status"] for state in await page.evaluate("window.states")]


@pytest.mark.contract("W11")
async def test_an_expired_token_ends_the_stream_and_a_new_one_brings_it_back(
    tabs: Tabs, secured: Served, orders: Connection
) -> None:
    tabs.expect(CUT_OFF)
    given: list[tuple[str, float]] = []

    def give() -> str:
        """The first one lives for six seconds; there is no newer one before it has expired."""
        if not given or given[-1][1] < time.time():
            seconds = 3600 if given else 6
            given.append((token("ada", seconds), time.time() + seconds))
        return given[-1][0]

    asked = await with_tokens(tabs, give)
    page = await tabs.open(f"{secured.url}/page/live.html")
    await until(lambda: secured.node.sessions)
    before = set(secured.node.sessions)
    await equals(orders, page)
    await until(lambda: len(given) == 2)
    orders.execute("UPDATE orders SET status = 'paid'")
    await equals(orders, page)
    assert before.isdisjoint(secured.node.sessions)
    assert "stale" in [state["status"] for state in await page.evaluate("window.states")]
    assert len(asked) > 1
