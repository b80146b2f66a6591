"""The console in trouble: a network that comes and goes, slow answers, and writers that put too much where little
belongs."""

import asyncio
import json
import re

import pytest
from playwright.async_api import Route, expect

from forge.postgres.connection import Connection
from tests.browser import Tabs
from tests.clients.console.test_console import change, is_live, opened
from tests.clients.pages import CUT_OFF
from tests.serve.serving import SOON, Served

pytestmark = pytest.mark.browser

WAITING = """() => new Promise((done, failed) => {
    const request = indexedDB.open("forge", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("mutations", { keyPath: ["group", "at", "key"] });
    request.onerror = () => failed(request.error);
    request.onsuccess = () => {
        const all = request.result.transaction("mutations").objectStore("mutations").getAll();
        all.onsuccess = () => { request.result.close(); done(all.result.map((each) => each.name)); };
    };
})"""
"""The mutations that the browser would send again."""


async def test_what_was_given_up_while_offline_is_never_done(tabs: Tabs, served: Served, orders: Connection) -> None:
    tabs.expect(CUT_OFF)
    console = await opened(tabs, served.url, "tables")
    await console.get_by_role("button", name="Disable public.orders").click()
    await tabs.context.set_offline(True)
    dialog = console.get_by_role("dialog")
    await dialog.get_by_role("button", name="Stop tracking").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("cannot be reached")
    assert await console.evaluate(WAITING) == []
    await console.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await tabs.context.set_offline(False)
    await is_live(console)
    assert orders.execute("SELECT count(*) FROM forge.tracked_relation").fetchone() == (1,)
    # the same, now that it can be done
    await console.get_by_role("button", name="Disable public.orders").click()
    await dialog.get_by_role("button", name="Stop tracking").click()
    await expect(console.get_by_role("log")).to_contain_text("not tracked any more")
    assert orders.execute("SELECT count(*) FROM forge.tracked_relation").fetchone() == (0,)


async def test_older_changes_come_once_and_stay_while_the_row_changes(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    tabs.expect("ERR_FAILED")
    orders.execute("CREATE TABLE counter (id int PRIMARY KEY, n int)")
    orders.execute("SELECT public.forge_enable_reactivity('counter')")
    orders.execute("INSERT INTO counter VALUES (1, 0)")
    for number in range(1, 119):
        orders.execute("UPDATE counter SET n = %s", (number,))
    console = await opened(tabs, served.url, "row/counter/1")
    entries = console.locator(".timeline li:has(.head)")
    older = console.get_by_role("button", name="Older changes")
    await expect(entries).to_have_count(50)

    history = "**/forge/query/forge.history"
    await console.route(history, lambda route: route.abort())
    await older.click()
    await expect(console.get_by_role("log")).to_contain_text("cannot be reached")
    await console.unroute(history)
    await older.evaluate("button => { button.click(); button.click(); }")
    await expect(entries).to_have_count(100)
    for number in (777, 778):
        orders.execute("UPDATE counter SET n = %s", (number,))
    await expect(entries).to_have_count(102)
    await expect(entries.first).to_contain_text("777 → 778")
    await older.click()
    await expect(entries).to_have_count(122)
    await expect(older).to_have_count(0)
    found = [" ".join(text.split()) for text in await entries.locator(".diff").all_inner_texts()]
    steps = [f"n {a} → {b}" for a, b in zip([*range(118), 118, 777], [*range(1, 119), 777, 778], strict=True)]
    assert found[:120] == steps[::-1]
    await entries.filter(has_text="n 67 → 68").click()
    then = console.get_by_role("table", name="The row then and now")
    await expect(then.get_by_role("row", name="n 68 778")).to_be_visible()


async def test_a_slow_answer_about_one_row_is_not_shown_of_another(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    orders.execute("CREATE TABLE old (id int PRIMARY KEY, v int, w text)")
    orders.execute("INSERT INTO old VALUES (1, 0, 'x'), (2, 0, 'x')")
    orders.execute("SELECT public.forge_enable_reactivity('old')")
    orders.execute("UPDATE old SET v = 1")
    console = await opened(tabs, served.url)
    late = asyncio.Event()

    async def answer(route: Route) -> None:
        key = int(json.loads(route.request.post_data or "{}")["key"])
        if key == 1:
            await late.wait()
        row = {"id": key, "v": 1, "w": f"of {key}"}
        body = json.dumps({"hash": "", "result": {"table": "old", "at": "2026-01-31T12:00:00Z", "row": row}})
        await route.fulfill(body=body.replace(', "result": ', ',"result":'), content_type="application/json")

    await console.route("**/forge/query/forge.as_of", answer)
    now = console.get_by_role("table", name="The row now")
    await console.evaluate("location.hash = '#/row/old/1'")
    await expect(now.get_by_role("row", name="v 1")).to_be_visible()
    await console.evaluate("location.hash = '#/row/old/2'")
    await expect(now.get_by_role("row", name="w of 2")).to_be_visible()
    async with console.expect_event("requestfinished", lambda request: "as_of" in request.url):
        late.set()
    await console.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    await expect(now.get_by_role("row", name="w of 2")).to_be_visible()


async def test_tables_whose_names_read_alike_are_two(tabs: Tabs, served: Served, orders: Connection) -> None:
    orders.execute('CREATE SCHEMA "a.b"; CREATE TABLE "a.b".c (id int PRIMARY KEY)')
    orders.execute('CREATE SCHEMA a; CREATE TABLE a."b.c" (id int PRIMARY KEY)')
    console = await opened(tabs, served.url, "tables")
    await expect(console.get_by_role("row").filter(has_text="a.b.c")).to_have_count(2)


async def test_keys_that_are_characters_can_be_switched_off(tabs: Tabs, served: Served) -> None:
    console = await opened(tabs, served.url)
    await console.keyboard.press("?")
    switch = console.get_by_role("dialog", name="Keys").get_by_role("checkbox")
    await switch.uncheck()
    await console.keyboard.press("Escape")
    await console.reload()
    await is_live(console)
    for key in ("2", "?", "t"):
        await console.keyboard.press(key)
    await expect(console.get_by_role("dialog")).to_have_count(0)
    await expect(console.get_by_role("heading", name="Feed")).to_be_visible()
    await expect(console.get_by_role("button", name="Appearance: as the system")).to_be_visible()
    await console.get_by_role("button", name="Keys").click()
    await switch.check()
    await console.keyboard.press("Escape")
    await console.keyboard.press("2")
    await expect(console.get_by_role("heading", name="Tables")).to_be_visible()


async def test_a_fix_that_cannot_be_copied_is_told(tabs: Tabs, served: Served, orders: Connection) -> None:
    refused = "Promise.reject(new DOMException('no', 'NotAllowedError'))"
    await tabs.context.add_init_script(f"if (navigator.clipboard) navigator.clipboard.writeText = () => {refused}")
    orders.execute("ALTER TABLE orders DISABLE TRIGGER ALL")
    console = await opened(tabs, served.url, "doctor")
    await console.get_by_role("button", name=re.compile("Copy the fix of")).first.click()
    await expect(console.get_by_role("log")).to_contain_text("does not let the page copy")


async def test_who_and_why_of_any_length_and_columns_of_any_name_are_shown(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    orders.execute("""CREATE TABLE odd (id int PRIMARY KEY, "__proto__" jsonb, "constructor" text)""")
    orders.execute("SELECT public.forge_enable_reactivity('odd')")
    console = await opened(tabs, served.url)
    with orders.transaction():
        orders.execute("SELECT set_config('forge.user_id', repeat('u', 5000000), true)")
        orders.execute("SELECT set_config('forge.function_name', repeat('f', 1000000), true)")
        orders.execute("""INSERT INTO odd VALUES (1, '{"x": 1}', 'made')""")
    line = change(console, "odd")
    await expect(line).to_have_count(1, timeout=SOON * 1000)
    assert await line.locator(".who").evaluate("it => it.textContent.length") < 2000
    await line.click()
    details = console.get_by_role("complementary", name="The chosen change")
    await expect(details.get_by_role("row", name='__proto__ {"x": 1}')).to_be_visible()
    await expect(details.get_by_role("row", name="constructor made")).to_be_visible()
    assert len(await details.inner_text()) < 10_000
    orders.execute("UPDATE odd SET constructor = 'new'")
    await details.get_by_role("link", name="History of this row").click()
    now = console.get_by_role("table", name="The row now")
    await expect(now.get_by_role("row", name='__proto__ {"x": 1}')).to_be_visible()
    await expect(now.get_by_role("row", name="constructor new")).to_be_visible()
