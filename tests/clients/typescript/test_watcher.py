"""The local watcher: SQLite in the worker of each tab, one file for all, and queries that stay true in every tab.

A query that reads `random()` tells whether it ran again, whatever the rows are.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.async_api import Error, Page

from forge.postgres.connection import Connection
from tests import folders
from tests.browser import Tabs
from tests.clients.site import ROOT
from tests.serve.serving import Served

pytestmark = pytest.mark.browser

BY_KEY = "SELECT status, random() AS ran FROM orders WHERE id = ?"
OF_TABLE = "SELECT count(*) AS n, random() AS ran FROM notes"
ALL = "SELECT id, status FROM orders ORDER BY id"


@pytest.fixture(scope="module")
def pages() -> Iterator[str]:
    """The address of the page, served with what clients/ built, and without an application."""
    with folders.served(ROOT) as url:
        yield f"{url}/tests/clients/page/watcher.html"


async def opened(tabs: Tabs, url: str, **options: Any) -> Page:
    page = await tabs.open(url, **options)
    await page.evaluate("open()")
    return page


async def live(page: Page, name: str, sql: str, *params: Any) -> None:
    """The query is shown under the name, and has its first result."""
    await page.evaluate("([name, sql, params]) => void live(name, sql, params)", [name, sql, params])
    await until(page, f"shown.{name} !== undefined")


async def until(page: Page, condition: str) -> None:
    await page.wait_for_function(condition, polling=5)


async def ran(page: Page, name: str) -> Any:
    """Another number whenever the query ran again."""
    return await page.evaluate("(name) => shown[name][0].ran", name)


async def run(page: Page, sql: str, *params: Any) -> Any:
    return await page.evaluate("([sql, params]) => watcher.run(sql, params)", [sql, params])


async def select(page: Page, sql: str) -> Any:
    return await page.evaluate("(sql) => watcher.select(sql)", sql)


@pytest.mark.contract("W7")
async def test_a_write_reaches_the_queries_of_another_tab_that_it_touches_and_no_others(tabs: Tabs, pages: str) -> None:
    writer, reader = await opened(tabs, pages), await opened(tabs, pages)
    await run(writer, "INSERT INTO orders (id, status) VALUES (1, 'placed'), (2, 'placed')")
    await live(reader, "all", ALL)
    await live(reader, "one", BY_KEY, 1)
    await live(reader, "two", BY_KEY, 2)
    await live(reader, "notes", OF_TABLE)
    before = [await ran(reader, name) for name in ("one", "two", "notes")]

    answer = await run(writer, "UPDATE orders SET status = 'paid' WHERE id = 2")
    assert answer == {"changes": 1, "lastId": None}
    await until(reader, "shown.two[0].status === 'paid' && shown.all[1].status === 'paid'")
    # what it touches runs in one turn, so the others would have run by now
    after = [await ran(reader, name) for name in ("one", "two", "notes")]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]
    assert await reader.evaluate("times.all") == 2

    await run(writer, "INSERT INTO notes VALUES ('hello')")
    await until(reader, "shown.notes[0].n === 1")
    assert await ran(reader, "one") == before[0]


@pytest.mark.contract("W7")
async def test_tabs_that_write_at_once_lose_nothing_and_all_come_to_the_same(tabs: Tabs, pages: str) -> None:
    several = [await opened(tabs, pages) for _ in range(3)]
    await run(several[0], "INSERT INTO orders (id, big) VALUES (1, 0)")
    for page in several:
        await live(page, "big", "SELECT big FROM orders")
    work = """async () => {
        for (let i = 0; i < 6; i++) {
            if (i % 2) await watcher.run("UPDATE orders SET big = big + 1");
            else await watcher.transaction(async (tx) => {
                const [{ big }] = await tx.select("SELECT big FROM orders");
                await tx.run("UPDATE orders SET big = ?", [big + 1]);
            });
        }
    }"""
    await asyncio.gather(*(page.evaluate(work) for page in several))
    for page in several:
        await until(page, "shown.big[0].big === 18")


async def test_a_transaction_that_fails_leaves_nothing_and_others_go_on(tabs: Tabs, pages: str) -> None:
    one, other = await opened(tabs, pages), await opened(tabs, pages)
    failing = """() => watcher.transaction(async (tx) => {
        await tx.run("INSERT INTO orders (id) VALUES (1)");
        await tx.run("INSERT INTO orders (id) VALUES (1)");
    })"""
    with pytest.raises(Error, match="UNIQUE constraint failed"):
        await one.evaluate(failing)
    with pytest.raises(Error, match="BEGIN as a statement is not let in"):
        await one.evaluate("watcher.exec('BEGIN')")
    assert await select(other, ALL) == []


async def test_a_tab_that_is_closed_in_a_transaction_leaves_nothing_and_holds_nobody_up(tabs: Tabs, pages: str) -> None:
    one, other = await opened(tabs, pages), await opened(tabs, pages)
    await live(other, "all", ALL)
    await one.evaluate("""() => new Promise((inside) => void watcher.transaction(async (tx) => {
        await tx.run("INSERT INTO orders (id, status) VALUES (1, 'lost')");
        inside();
        await new Promise(() => {});
    }))""")
    waiting = asyncio.create_task(run(other, "INSERT INTO orders (id, status) VALUES (2, 'kept')"))
    await one.close()
    await waiting
    await until(other, "shown.all.length === 1")
    assert await select(other, ALL) == [{"id": 2, "status": "kept"}]


async def test_the_data_stays_and_the_schema_grows(tabs: Tabs, pages: str) -> None:
    page = await tabs.open(pages)
    assert await page.evaluate("open()") == "opfs"
    await run(page, "INSERT INTO orders (id, status) VALUES (9007199254740993, ?)", "\u202e<script> 🦀\u0007")
    await page.reload()
    await page.evaluate("open('shop', [...schema, 'ALTER TABLE orders ADD COLUMN at TEXT'])")
    rows = await page.evaluate(
        "watcher.select('SELECT * FROM orders').then(([row]) => [String(row.id), row.status, row.at])"
    )
    assert rows == ["9007199254740993", "\u202e<script> 🦀\u0007", None]
    older = await tabs.open(pages)
    with pytest.raises(Error, match="the database has 3 steps of its schema, this page knows 2"):
        await older.evaluate("open()")


async def test_a_new_column_makes_every_query_run_again(tabs: Tabs, pages: str) -> None:
    one, other = await opened(tabs, pages), await opened(tabs, pages)
    await run(one, "INSERT INTO orders (id) VALUES (1)")
    await live(other, "star", "SELECT * FROM orders WHERE id = 1")
    await live(other, "missing", "SELECT * FROM later")
    assert await other.evaluate("shown.missing") == "sql"
    await one.evaluate("watcher.exec('ALTER TABLE orders ADD COLUMN at TEXT; CREATE TABLE later (a)')")
    await until(other, "'at' in shown.star[0] && shown.missing.length === 0")


async def test_without_private_files_it_is_in_memory_and_says_so(tabs: Tabs, pages: str) -> None:
    one = await tabs.open(pages, worker="memory")
    other = await tabs.open(pages, worker="memory")
    assert [await one.evaluate("open()"), await other.evaluate("open()")] == ["memory", "memory"]
    await live(one, "all", ALL)
    await run(one, "INSERT INTO orders (id, status) VALUES (1, 'placed')")
    await until(one, "shown.all.length === 1")
    assert await select(other, ALL) == []


async def test_a_write_whose_announcement_is_lost_is_noticed(tabs: Tabs, pages: str) -> None:
    mute, reader = await opened(tabs, pages, worker="mute"), await opened(tabs, pages)
    await live(reader, "all", ALL)
    await run(mute, "INSERT INTO orders (id, status) VALUES (1, 'unsaid')")
    await reader.evaluate("dispatchEvent(new Event('pageshow'))")
    await until(reader, "shown.all.length === 1")


@pytest.mark.contract("W7")
async def test_changes_of_a_server_take_the_same_path(tabs: Tabs, pages: str) -> None:
    one, other = await opened(tabs, pages), await opened(tabs, pages)
    await live(other, "all", ALL)
    await live(other, "three", "SELECT random() AS ran, count(*) FROM orders WHERE id = 3")
    before = await ran(other, "three")
    change = {"schema": "public", "table": "orders", "operation": "INSERT", "key": {"id": 7}}
    changes = [change | {"after": {"id": 7, "status": "placed", "total": "1.00", "unknown": True}}]
    await one.evaluate("(changes) => watcher.apply(changes)", changes)
    await until(other, "shown.all.length === 1 && shown.all[0].id === 7")
    assert await ran(other, "three") == before
    await one.evaluate("(changes) => watcher.apply(changes)", changes)
    await one.evaluate("(changes) => watcher.apply(changes)", [change | {"operation": "DELETE"}])
    await until(other, "shown.all.length === 0")
    assert await other.evaluate("times.all") == 3, "what was applied again changed nothing"


@pytest.mark.contract("W7")
async def test_a_table_that_mirrors_a_live_query_follows_the_database_in_every_tab(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    url = f"{served.url}/page/watcher.html"
    one, other = await opened(tabs, url), await opened(tabs, url)
    await live(other, "all", "SELECT id, status, total, CAST(big AS TEXT) AS big FROM orders ORDER BY id")
    for page in (one, other):
        await page.evaluate("mirror()")
    await until(other, "shown.all.length === 2")
    first = {"id": 1, "status": "placed", "total": "12.30", "big": "9007199254740993"}
    assert await other.evaluate("shown.all[0]") == first
    orders.execute(b"UPDATE orders SET status = 'paid' WHERE id = 2; DELETE FROM orders WHERE id = 1")
    await until(other, "shown.all.length === 1 && shown.all[0].status === 'paid'")
    await one.close()
    orders.execute(b"INSERT INTO orders VALUES (5, 7, 'placed', 3, 4)")
    await until(other, "shown.all.length === 2")


@pytest.mark.contract("W7")
async def test_the_raw_feed_is_followed_by_one_tab_and_nothing_is_lost_when_it_closes(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    url = f"{served.url}/page/watcher.html"
    one, other = await opened(tabs, url), await opened(tabs, url)
    await live(other, "all", ALL)
    follow = "void (window.feed = watcher.follow({ url: location.origin, tables: { orders: 'orders' } }))"
    await one.evaluate(follow)
    await until(one, "feed.getSnapshot().status === 'live'")
    orders.execute(b"UPDATE orders SET status = 'seen'")
    await until(other, "shown.all.length === 3")
    await other.evaluate(follow)
    assert await other.evaluate("feed.getSnapshot().status") == "waiting"
    orders.execute(b"UPDATE orders SET id = 9 WHERE id = 1")
    await until(other, "shown.all.map(({ id }) => id).join() === '2,3,9'")
    assert await other.evaluate("feed.getSnapshot().status") == "waiting"
    await one.close()
    orders.execute(b"UPDATE orders SET status = 'late' WHERE id = 3; DELETE FROM orders WHERE id = 2")
    await until(other, "shown.all.map(({ id, status }) => id + status).join() === '3late,9seen'")
    await other.evaluate("feed.stop()")


async def test_rows_that_did_not_change_are_the_same_objects(tabs: Tabs, pages: str) -> None:
    page = await opened(tabs, pages)
    await run(page, "INSERT INTO orders (id, status) VALUES (1, 'a'), (2, 'b')")
    await live(page, "all", ALL)
    await page.evaluate("void (window.before = shown.all)")
    await run(page, "UPDATE orders SET status = 'c' WHERE id = 2")
    await until(page, "shown.all[1].status === 'c'")
    assert await page.evaluate("[before[0] === shown.all[0], before[1] === shown.all[1]]") == [True, False]


async def test_closing_ends_what_waits(tabs: Tabs, pages: str) -> None:
    page = await opened(tabs, pages)
    await live(page, "all", ALL)
    await page.evaluate("watcher.close()")
    assert await page.evaluate("shown.all") == "closed"
    with pytest.raises(Error, match="the client was closed"):
        await run(page, "DELETE FROM orders")
