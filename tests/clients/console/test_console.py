"""The console in a real browser: every page does its job, nobody is kept out by how they look or type, and no row that
somebody wrote can do anything there but be shown."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from forge import transaction
from forge.app import Forge
from forge.change import Change
from forge.changelog.reader import Reader
from forge.postgres.connection import Connection
from tests.browser import Profile, Tabs
from tests.clients.conftest import AUTH, Process
from tests.clients.pages import CUT_OFF, serious, token
from tests.clients.site import shop
from tests.serve.console.test_lake import a_lake
from tests.serve.serving import SOON, Served, serving

pytestmark = pytest.mark.browser

FITS: Final = "it => it.scrollWidth <= it.clientWidth"
PAGES: Final = ("feed", "tables", "row/cards/1", "queries", "consumers", "pipeline", "doctor")


@pytest_asyncio.fixture(loop_scope="session")
async def console(tabs: Tabs, served: Served) -> Page:
    """The console of the shop, on its feed, live."""
    return await opened(tabs, served.url)


async def opened(tabs: Tabs, url: str, page: str = "feed") -> Page:
    tab = await tabs.open(f"{url}/console/#/{page}")
    await is_live(tab)
    return tab


async def is_live(page: Page) -> None:
    await expect(page.locator(".health")).to_have_text("live")


def change(page: Page, *words: str) -> Locator:
    """The lines of the feed that have all these words."""
    lines = page.get_by_role("option")
    for word in words:
        lines = lines.filter(has_text=word)
    return lines


def pay(orders: Connection, id: int) -> None:
    with transaction(orders, user_id="ada", function_name="checkout", trace_id="3f2a9c", region="eu"):
        orders.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (id,))


# Pages


async def test_a_quiet_feed_can_show_what_was_before(tabs: Tabs, served: Served, orders: Connection) -> None:
    pay(orders, 1)
    console = await opened(tabs, served.url)
    await expect(console.locator("main")).to_contain_text("Nothing has changed yet.")
    await console.get_by_role("button", name="Show the last changes").click()
    line = change(console, "UPDATE", "orders", "status", "ada · checkout")
    await expect(line).to_have_count(1)
    pay(orders, 2)
    await expect(change(console).first).to_contain_text("placed→paid")
    await line.filter(has_not_text="paid").click()
    details = console.get_by_role("complementary", name="The chosen change")
    await expect(details).to_contain_text("it changed status")
    await details.get_by_role("link", name="History of this row").click()
    await expect(console.locator(".timeline li").first).to_contain_text("placed → paid")


@pytest.mark.contract("R16")
async def test_the_feed_shows_what_changed_who_did_it_and_why(console: Page, orders: Connection) -> None:
    pay(orders, 1)
    line = change(console, "UPDATE", "orders")
    await expect(line).to_contain_text("placed→paid")
    await expect(line).to_contain_text("ada · checkout · 3f2a9c")
    await line.click()
    details = console.get_by_role("complementary", name="The chosen change")
    await expect(details.get_by_role("row", name="status placed paid")).to_be_visible()
    for fact in ("ada", "checkout", "3f2a9c", "eu"):
        await expect(details.locator("dl")).to_contain_text(fact)
    await details.get_by_role("button", name=re.compile("4 more columns")).click()
    await expect(details.get_by_role("row", name="big 9007199254740993")).to_be_visible()
    await details.get_by_role("link", name="History of this row").click()
    await expect(console.get_by_role("heading", name="Row", exact=True)).to_be_focused()
    await expect(console.get_by_role("textbox", name="Key")).to_have_value("1")


async def test_the_feed_is_filtered_paused_and_walked_by_keys(console: Page, orders: Connection) -> None:
    pay(orders, 1)
    orders.execute("INSERT INTO orders VALUES (4, 9, 'placed', 1, 1)")
    orders.execute("DELETE FROM orders WHERE id = 4")
    await expect(change(console)).to_have_count(3)
    await console.keyboard.press("/")
    await console.keyboard.type("op:insert customer_id")
    await expect(change(console)).to_have_count(1)
    assert "filter=op" in console.url
    await expect(console.get_by_role("status").filter(has_text="1 change matches")).to_be_attached()
    await console.keyboard.press("Escape")
    await expect(console.get_by_label("Filter")).to_have_value("")
    await expect(change(console)).to_have_count(3)
    assert "filter=" not in console.url
    await console.get_by_role("button", name="insert").click()
    await expect(change(console)).to_have_count(1)
    await console.get_by_label("Filter").fill("")
    await expect(change(console)).to_have_count(3)

    await console.locator("h1").click()
    await console.keyboard.press("p")
    await expect(console.get_by_role("button", name="Resume")).to_be_visible()
    pay(orders, 2)
    await expect(console.get_by_role("button", name="1 new")).to_be_visible()
    await expect(change(console)).to_have_count(3)
    await console.keyboard.press("p")
    await expect(change(console)).to_have_count(4)

    await console.keyboard.press("j")
    await expect(change(console).nth(0)).to_have_attribute("aria-selected", "true")
    await console.keyboard.press("j")
    await expect(change(console).nth(1)).to_have_attribute("aria-selected", "true")
    await console.keyboard.press("k")
    await expect(change(console).nth(0)).to_have_attribute("aria-selected", "true")
    await change(console).nth(1).click()
    await expect(console.get_by_role("listbox")).to_be_focused()
    await console.keyboard.press("ArrowDown")
    await expect(change(console).nth(2)).to_have_attribute("aria-selected", "true")
    await console.keyboard.press("Escape")
    await expect(change(console).nth(2)).to_have_attribute("aria-selected", "false")
    await console.keyboard.press("?")
    await expect(console.get_by_role("dialog", name="Keys")).to_contain_text("pause and resume")


async def test_the_feed_holds_two_thousand_and_draws_what_is_seen(console: Page, orders: Connection) -> None:
    many = "INSERT INTO orders SELECT %s::int + i, 9, 'placed', 1, 1 FROM generate_series(1, 500) i"
    for start in range(100, 3100, 500):
        orders.execute(many, (start,))
    await expect(console.locator(".count")).to_contain_text("2,000 shown")
    assert await change(console).count() < 100
    await console.get_by_role("listbox").focus()
    await console.keyboard.press("End")
    last = console.locator("[aria-posinset='2000']")
    await expect(last).to_have_attribute("aria-selected", "true")
    await expect(last).to_be_in_viewport()


async def test_tables_are_tracked_and_no_longer_tracked(tabs: Tabs, served: Served, orders: Connection) -> None:
    orders.execute("CREATE TABLE notes (id int PRIMARY KEY, text text, secret text)")
    console = await opened(tabs, served.url, "tables")
    row = console.get_by_role("row").filter(has_text="public.notes")
    await row.get_by_role("button", name="Enable public.notes").click()
    dialog = console.get_by_role("dialog", name="Track public.notes")
    await expect(dialog.get_by_label("id")).to_be_disabled()
    await dialog.get_by_label("secret").select_option("excluded")
    await dialog.get_by_role("button", name="Track it").click()
    await expect(console.get_by_role("log")).to_contain_text("public.notes is tracked")
    await expect(row).to_contain_text("tracked")
    await expect(row).to_contain_text("secret")
    found = orders.execute("SELECT excluded FROM forge.tracked_table WHERE table_name = 'notes'").fetchone()
    assert found == (["secret"],)
    orders.execute("INSERT INTO notes VALUES (1, 'seen', 'unseen')")
    await expect(row).to_contain_text(re.compile("now|ago"))

    await row.get_by_role("button", name="Disable public.notes").click()
    await console.get_by_role("button", name="Stop tracking").click()
    await expect(row.get_by_role("button", name="Enable public.notes")).to_be_visible()
    await row.get_by_role("button", name="Enable public.notes").click()
    await expect(dialog.get_by_label("secret")).to_have_value("excluded")
    await console.keyboard.press("Escape")
    await expect(console.get_by_role("dialog")).to_have_count(0)


async def test_a_row_is_shown_as_it_was_and_what_undoing_would_do(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    pay(orders, 1)
    orders.execute("UPDATE orders SET total = 50 WHERE id = 1")
    console = await opened(tabs, served.url, "row/orders/1")
    changes = console.locator(".timeline li")
    await expect(changes).to_have_count(4)
    await expect(changes.nth(0)).to_contain_text("total 12.30 → 50.00")
    await expect(
        console.get_by_role("table", name="The row now").get_by_role("row", name="status paid")
    ).to_be_visible()

    slider = console.get_by_role("slider", name="As of")
    await slider.focus()
    await console.keyboard.press("ArrowLeft")
    await console.keyboard.press("ArrowLeft")
    then = console.get_by_role("table", name="The row then and now")
    await expect(then.get_by_role("row", name="status placed paid")).to_be_visible()
    await expect(then.get_by_role("row", name="total 12.30 50.00")).to_be_visible()
    await console.keyboard.press("ArrowRight")
    await expect(then.get_by_role("row", name="status placed paid")).to_have_count(0)
    await expect(console.locator("dd").filter(has_text="checkout")).to_be_visible()

    await console.get_by_role("button", name="What would undoing it do?").click()
    plan = console.get_by_role("dialog", name="What undoing it would do")
    await expect(plan).to_contain_text("1 row would be written, for 1 change.")
    await expect(plan.get_by_role("row", name="status paid placed")).to_be_visible()
    await plan.get_by_role("button", name="the whole request").click()
    await expect(plan).to_contain_text("forge revert --trace 3f2a9c")
    await console.keyboard.press("Escape")
    assert orders.execute("SELECT status FROM orders WHERE id = 1").fetchone() == ("paid",)

    pay(orders, 1)
    orders.execute("DELETE FROM orders WHERE id = 1")
    await expect(changes.nth(0)).to_contain_text("DELETE")
    await console.get_by_role("button", name="Now", exact=True).click()
    await expect(console.locator("main")).to_contain_text("It is deleted.")


async def test_a_row_that_never_changed_is_not_taken_for_one_that_did(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    orders.execute("CREATE TABLE notes (id int PRIMARY KEY, text text)")
    orders.execute("INSERT INTO notes VALUES (1, 'older than its history')")
    orders.execute("SELECT public.forge_enable_reactivity('notes')")
    console = await opened(tabs, served.url, "row/notes/99999")
    main = console.locator("main")
    await expect(main).to_contain_text("The log has no change of this row.")
    await expect(main).to_contain_text("There is none with this key")
    for role in ("table", "slider"):
        await expect(main.get_by_role(role)).to_have_count(0)
    await console.evaluate("location.hash = '#/row/notes/1'")
    now = console.get_by_role("table", name="The row now")
    await expect(now.get_by_role("row", name="text older than its history")).to_be_visible()

    orders.execute("UPDATE notes SET text = 'new' WHERE id = 1")
    undo = console.get_by_role("button", name="What would undoing it do?")
    await expect(undo).to_be_visible()
    await console.locator(".timeline li").filter(has_text="tracking began").get_by_role("button").click()
    await expect(undo).to_have_count(0)


async def test_a_row_is_found_whatever_its_key(console: Page, orders: Connection) -> None:
    orders.execute("CREATE TABLE items (order_id bigint, line text, amount int, PRIMARY KEY (order_id, line))")
    orders.execute("SELECT public.forge_enable_reactivity('items')")
    orders.execute("INSERT INTO items VALUES (9007199254740993, 'a b@c', 1)")
    orders.execute("UPDATE items SET amount = 2")
    await change(console, "UPDATE", "9007199254740993 · a b@c").click()
    await console.get_by_role("link", name="History of this row").click()
    newest = console.locator(".timeline li").first
    await expect(newest).to_contain_text("amount 1 → 2")
    now = console.get_by_role("table", name="The row now")
    await expect(now.get_by_role("row", name="line a b@c")).to_be_visible()
    for key in ("order_id=9007199254740993,line=a b@c", "9007199254740993 · a b@c"):
        await console.get_by_role("link", name="Row").click()
        await console.get_by_role("combobox", name="Table").fill("items")
        await console.get_by_role("textbox", name="Key").fill(key)
        await console.get_by_role("button", name="Show").click()
        await expect(newest).to_contain_text("amount 1 → 2")


async def test_queries_and_their_latency_are_shown(tabs: Tabs, served: Served, orders: Connection) -> None:
    console = await opened(tabs, served.url, "queries")
    async with served.stream("/forge/live/orders_of", params={"args": '{"customer_id": 7}'}) as live:
        await live.named("snapshot")
        group = console.get_by_role("row").filter(has_text="orders_of")
        await expect(group).to_contain_text('{"customer_id": 7}')
        pay(orders, 1)
        await live.named("update")
        await expect(console.locator("figcaption").filter(has_text="Commit to push")).to_contain_text(
            re.compile(r"p50 \d.* m?s")
        )
        stat = console.locator(".stat")
        await expect(stat.filter(has_text="subscribers")).to_contain_text("1 groups")
        await expect(stat.filter(has_text="missed")).to_contain_text("as it must be")
        chart = console.get_by_role("slider", name="Commit to push, second by second")
        await chart.focus()
        await console.keyboard.press("ArrowLeft")
        await expect(chart).to_have_attribute("aria-valuetext", re.compile(r"^\d\d:\d\d:\d\d p50 "))
    await expect(group).to_have_count(0)
    await console.get_by_label("with the console's own").check()
    await expect(console.get_by_role("row").filter(has_text="forge.metrics")).to_be_visible()


async def test_queries_show_what_changes_cost_them(tabs: Tabs, database: str, orders: Connection) -> None:
    app = shop(database)

    @app.query
    async def largest(ctx: Any) -> Any:
        return await ctx.db.fetch_value("SELECT max(big) FROM orders")

    async with serving(app) as served:
        console = await opened(tabs, served.url, "queries")
        async with (
            served.stream("/forge/live/largest") as first,
            served.stream("/forge/live/orders_of", params={"args": '{"customer_id": 8}'}) as second,
        ):
            await first.named("snapshot")
            await second.named("snapshot")
            orders.execute("UPDATE orders SET big = 4 WHERE id = 2")
            cells = console.get_by_role("row").filter(has_text="largest").get_by_role("cell")
            for place, count in ((3, "1"), (4, "2"), (5, "1"), (6, "1")):  # subscribers, runs, pushed, wasted
                await expect(cells.nth(place)).to_have_text(count)
            stat = console.locator(".stat")
            await expect(stat.filter(has_text="wasted")).to_contain_text(re.compile(r"1\s*33.* % of 3"))
            await expect(stat.filter(has_text="pruned")).to_contain_text(re.compile(r"1\s*50 % of 2"))
        await console.close()


async def test_tables_show_how_often_they_change_how_late_and_how_large(
    tabs: Tabs, served: Served, orders: Connection
) -> None:
    console = await opened(tabs, served.url, "tables")
    cells = console.get_by_role("row").filter(has_text="public.orders").get_by_role("cell")
    rate, lag, size = cells.nth(2), cells.nth(4), cells.nth(5)
    await expect(rate).to_have_text("0")
    await expect(lag).to_have_text("none")
    await expect(size).to_have_text(re.compile(r"^\d+ kB$"))
    pay(orders, 1)
    pay(orders, 2)
    await expect(rate).to_have_text("2")
    with orders.transaction():
        pay(orders, 3)
        await expect(lag).to_have_text(re.compile(r"^[\d.]+ m?s$"))
    await expect(lag).to_have_text("none")


async def test_dead_letters_are_replayed_and_discarded(tabs: Tabs, database: str, orders: Connection) -> None:
    app = shop(database)
    broken: set[int] = {1, 2}

    @app.consumer("search", tables=["orders"], tries=1)
    async def index(ctx: Any, change: Change) -> None:
        assert change.key is not None
        if change.key["id"] in broken:
            raise ValueError("<b>total</b> is negative")

    async with serving(app) as served:
        console = await opened(tabs, served.url, "consumers")
        await expect(console.get_by_role("region", name="Consumers").get_by_role("row", name="search")).to_contain_text(
            "running"
        )
        pay(orders, 1)
        pay(orders, 2)
        letters = console.get_by_role("region", name="Dead letters").locator("tbody tr")
        await expect(letters).to_have_count(2)
        await expect(letters.first).to_contain_text("<b>total</b> is negative")
        await expect(console.get_by_role("link", name="Consumers 2 dead letters")).to_be_visible()
        broken.clear()
        await letters.filter(has_text="public.orders 1").get_by_role("button", name="Replay").click()
        await expect(letters).to_have_count(1)
        await letters.get_by_role("button", name="Discard").click()
        await console.get_by_role("dialog").get_by_role("button", name="Discard").click()
        await expect(console.get_by_role("log")).to_contain_text("it is discarded")
        await expect(letters).to_have_text("none: everything was delivered")
        await console.close()


async def test_the_pipeline_and_the_doctor_say_how_it_is(
    tabs: Tabs, database: str, orders: Connection, tmp_path: Path
) -> None:
    async with serving(shop(database, lake=str(tmp_path / "lake"))) as served:
        console = await opened(tabs, served.url, "pipeline")
        await expect(console.locator("main")).to_contain_text("not compared yet")
        await expect(console.locator(".stat").filter(has_text="state")).to_contain_text("empty")
        await console.get_by_role("link", name="Doctor").click()
        await expect(console.get_by_role("listitem").filter(has_text="PostgreSQL")).to_contain_text("version")
        await console.close()


async def test_the_pipeline_shows_whether_the_lake_is_the_database(
    tabs: Tabs, database: str, orders: Connection, tmp_path: Path
) -> None:
    async with Reader.open(database) as reader:
        cursor = str(await reader.now())
    a_lake(tmp_path / "lake", cursor, range(3))
    pay(orders, 1)
    async with serving(shop(database, lake=str(tmp_path / "lake"))) as served:
        console = await opened(tabs, served.url, "pipeline")
        verdict = console.locator(".verdict")
        await expect(verdict).to_contain_text("lake = database")
        await expect(verdict).to_contain_text("row by row")
        stat = console.locator(".stat")
        await expect(stat.filter(has_text="behind")).to_contain_text("1 changes")
        await expect(stat.filter(has_text="state")).to_contain_text("ok")
        batches = console.get_by_role("region", name="Last batches").locator("tbody tr")
        await expect(batches).to_have_count(3)
        for place, word in enumerate(("✓ equal", "✗ differs", "not asked")):
            await expect(batches.nth(place)).to_contain_text(word)
        await expect(batches.first.get_by_role("cell").nth(2)).to_have_text("7")
        tables = console.get_by_role("region", name="Tables of the lake")
        await expect(tables.get_by_role("row", name="public.odd name 8 20")).to_be_visible()
        await expect(console.get_by_role("alert")).to_contain_text("did not fit and is in quarantine")
        await console.close()


async def test_where_there_is_no_lake_the_pipeline_says_how_to_have_one(tabs: Tabs, served: Served) -> None:
    console = await opened(tabs, served.url, "pipeline")
    await expect(console.locator("main")).to_contain_text("No lake is kept here.")


# For everybody


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        ("dark", 400),
        pytest.param("dark", 1280, marks=pytest.mark.long),
        pytest.param("light", 400, marks=pytest.mark.long),
    ],
)
async def test_nothing_serious_keeps_anybody_out(
    profile: Profile, served: Served, orders: Connection, scheme: str, width: int
) -> None:
    tabs = await profile(color_scheme=scheme, viewport={"width": width, "height": 800}, reduced_motion="reduce")
    orders.execute("CREATE TABLE cards (id int PRIMARY KEY, number text, owner text, note text)")
    orders.execute("SELECT public.forge_enable_reactivity('cards', exclude => '{number}', mask => '{owner}')")
    console = await opened(tabs, served.url)
    orders.execute("INSERT INTO cards VALUES (1, '4242', 'ada', NULL)")
    orders.execute("UPDATE cards SET note = %s, number = '4243'", ("lost\x01" * 100,))
    await change(console, "UPDATE").click()
    for page in PAGES:
        if page != "feed":
            await console.evaluate("page => { location.hash = '#/' + page }", page)
        await expect(console.locator("main")).not_to_contain_text("waiting for")
        if page.startswith("row"):
            await console.get_by_role("slider", name="As of").fill("1")
            await expect(console.get_by_role("table", name="The row then and now")).to_be_visible()
        assert await serious(console) == [], page
        across = await console.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert across == 0, f"{page} is wider than the screen"
    doctor = console.get_by_role("link", name="Doctor")
    await expect(doctor).to_be_in_viewport(ratio=1)
    await doctor.click(timeout=SOON * 1000)
    await console.get_by_role("button", name="Keys").click()
    assert await serious(console) == []
    assert await console.locator(".about").evaluate(FITS)


@pytest.mark.parametrize("width", [320, 1200])
async def test_the_room_there_is_is_used(profile: Profile, served: Served, orders: Connection, width: int) -> None:
    tabs = await profile(viewport={"width": width, "height": 700})
    console = await opened(tabs, served.url)
    orders.execute("UPDATE orders SET status = 'x' WHERE id = 1")
    await expect(change(console)).to_have_count(1)
    for page in PAGES:
        await console.evaluate("page => { location.hash = '#/' + page }", page)
        for link in await console.get_by_role("navigation").get_by_role("listitem").all():
            await expect(link).to_be_in_viewport(ratio=1)
        assert await console.locator("nav ul").evaluate(FITS), page
    await console.evaluate("location.hash = '#/feed'")
    if width == 1200:
        wide = "it => it.getBoundingClientRect().width"
        detail, who = [await change(console).locator(part).evaluate(wide) for part in (".what", ".who")]
        assert detail > 2 * who, "the detail has what the author leaves"
        assert await change(console).locator(".who").evaluate(FITS)
    else:
        await console.evaluate("location.hash = '#/tables'")
        tables = console.get_by_role("region", name="Tables")
        await expect(tables).to_have_attribute("data-more", "")
        await tables.evaluate("it => { it.scrollLeft = it.scrollWidth }")
        await expect(tables).not_to_have_attribute("data-more", "")


async def test_the_appearance_is_chosen_and_kept(console: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = await console.evaluate(ground)
    await console.keyboard.press("t")
    await console.keyboard.press("t")
    assert await console.evaluate(ground) != light
    await console.reload()
    await is_live(console)
    await expect(console.get_by_role("button", name="Appearance: dark")).to_be_visible()
    assert await console.evaluate(ground) != light


async def test_the_keyboard_reaches_the_page_first(console: Page) -> None:
    await console.keyboard.press("Tab")
    skip = console.get_by_role("button", name="Skip to the page")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await console.keyboard.press("Enter")
    await expect(console.locator("main")).to_be_focused()
    await console.keyboard.press("7")
    await expect(console.get_by_role("heading", name="Doctor")).to_be_focused()
    assert await console.title() == "Doctor · Forge console"


# Against everybody


HOSTILE: Final = {
    1: "<script>window.harmed = 1</script>",
    2: "<img src=x onerror='window.harmed = 2'>",
    3: "{@html '<b>bold</b>'} ${window.harmed = 3} {{7*7}}",
    4: "red \x1b[31m bell \x07 back \x08 line \r\n end",
    5: "invoice\u202efdp.exe \u2066 \ufeff zero\u200bwidth",
    6: "שלום مرحبا 👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 z̷̢̛̗̊ą̸l̵g̶o̵",
    7: "javascript:alert(1)",
    8: "<" + "A" * 5_000_000,
}
SHOWN: Final = {
    1: "<script>window.harmed = 1</script>",
    2: "<img src=x onerror='window.harmed = 2'>",
    3: "{@html '<b>bold</b>'}",
    4: "red \\x1b[31m bell \\x07 back \\x08 line \\x0d↵ end",
    5: "invoice\\u202efdp.exe \\u2066 \\ufeff zero\\u200bwidth",
    6: "שלום مرحبا 👩\u200d👩\u200d👧\u200d👦",
    7: "javascript:alert(1)",
    8: "<AAAA",
}


async def test_a_hostile_row_harms_nothing(console: Page, served: Served, orders: Connection) -> None:
    orders.execute("""CREATE TABLE "Böse <i>Namen</i>" (id int PRIMARY KEY, "<u>text</u>" text)""")
    orders.execute("""SELECT public.forge_enable_reactivity('"Böse <i>Namen</i>"')""")
    requests: list[str] = []
    console.on("request", lambda request: requests.append(request.url))
    for id, text in HOSTILE.items():
        orders.execute("""INSERT INTO "Böse <i>Namen</i>" VALUES (%s, %s)""", (id, text))
    await expect(change(console, "INSERT", "Böse <i>Namen</i>")).to_have_count(len(HOSTILE))
    details = console.get_by_role("complementary", name="The chosen change")
    for place, (id, text) in enumerate(reversed(SHOWN.items())):
        await change(console).nth(place).click()
        await expect(details.get_by_role("row").filter(has_text="<u>text</u>")).to_contain_text(text)
        assert await details.locator("script, img, b:not(.x), i, u").count() == 0, id
    await expect(details.locator(".value").filter(has_text="<script>")).to_have_css("unicode-bidi", "isolate")
    await change(console).nth(0).click()
    await expect(details).to_contain_text("5.0M characters")
    assert len(await details.inner_text()) < 10_000
    await details.get_by_role("button", name="show more").click()
    assert len(await details.inner_text()) < 20_000

    await details.get_by_role("link", name="History of this row").click()
    await expect(console.locator(".timeline li").first).to_contain_text("<AAAA")
    await console.evaluate("location.hash = '#/tables'")
    await expect(console.get_by_role("row").filter(has_text="Böse <i>Namen</i>")).to_be_visible()
    await console.evaluate("location.hash = '#/row/<img src=x onerror=window.harmed=9>/%E0%A4%A'")
    await expect(console.get_by_role("alert")).to_be_visible()
    assert await console.evaluate("window.harmed") is None
    assert all(url.startswith(served.url) for url in requests)


BLOCKED: Final = """
    for (const name of ["localStorage", "sessionStorage"])
        Object.defineProperty(window, name, { get() { throw new DOMException("blocked", "SecurityError"); } });
"""


def bearing(*permissions: str, seconds: float = 600) -> str:
    return token("ada", seconds, scope=" ".join(permissions))


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(database: str, orders: Connection) -> AsyncIterator[Served]:
    app: Forge = shop(database, auth=AUTH, console="forge:console", operate="forge:operate")
    async with serving(app) as served:
        yield served


async def test_only_who_may_look_is_let_in_and_only_who_may_operate_can_change(
    tabs: Tabs, guarded: Served, orders: Connection
) -> None:
    tabs.expect(CUT_OFF)
    console = await tabs.open(f"{guarded.url}/console")
    field, why = console.get_by_label("Token"), console.get_by_role("alert")
    for bearer, reason in (
        ("nonsense", "token"),
        (bearing("other"), "forge:console"),
        (bearing(seconds=-9), "expired"),
    ):
        await field.fill(bearer)
        await console.keyboard.press("Enter")
        await expect(why).to_contain_text(reason)
    assert await serious(console) == []
    await field.fill(bearing("forge:console"))
    await console.get_by_role("button", name="Sign in").click()
    await is_live(console)
    pay(orders, 1)
    await expect(change(console, "placed→paid")).to_be_visible()
    await console.get_by_role("link", name="Tables").click()
    await expect(console.locator("main")).to_contain_text("sign in with a token that may operate")
    await expect(console.get_by_role("button", name=re.compile("Disable"))).to_have_count(0)
    assert await tabs.context.cookies() == []
    stored = await console.evaluate("[Object.keys(sessionStorage), JSON.stringify(localStorage)]")
    assert stored[0] == ["forge:token"]
    assert "eyJ" not in stored[1]

    await console.reload()
    await is_live(console)
    await console.get_by_role("button", name="Sign out").click()
    await expect(field).to_be_visible()
    assert await console.evaluate("sessionStorage.length") == 0
    await field.fill(bearing("forge:console", "forge:operate"))
    await console.keyboard.press("Enter")
    await is_live(console)
    await expect(console.get_by_role("button", name=re.compile("Disable"))).to_be_visible()


async def test_a_token_that_ends_leads_back_to_the_door(tabs: Tabs, guarded: Served) -> None:
    tabs.expect(CUT_OFF)
    console = await tabs.open(f"{guarded.url}/console")
    await console.get_by_label("Token").fill(bearing("forge:console", seconds=5))
    await console.keyboard.press("Enter")
    await is_live(console)
    await expect(console.get_by_label("Token")).to_be_visible()
    await expect(console.get_by_role("alert")).not_to_be_empty()


async def test_a_token_that_cannot_be_sent_is_refused_and_the_field_stays(tabs: Tabs, guarded: Served) -> None:
    tabs.expect(CUT_OFF)
    console = await tabs.open(f"{guarded.url}/console")
    field, why = console.get_by_label("Token"), console.get_by_role("alert")
    await field.fill("abc…def")
    await console.keyboard.press("Enter")
    await expect(why).to_contain_text("signs of ASCII")
    await tabs.context.set_offline(True)
    await field.fill(bearing("forge:console"))
    await console.keyboard.press("Enter")
    await expect(why).to_contain_text("does not answer")
    await expect(field).to_be_visible()
    await tabs.context.set_offline(False)
    await field.press("Enter")
    await is_live(console)


async def test_a_browser_that_keeps_nothing_shows_the_console(tabs: Tabs, guarded: Served) -> None:
    tabs.expect(CUT_OFF)
    await tabs.context.add_init_script(BLOCKED)
    console = await tabs.open(f"{guarded.url}/console")
    await console.get_by_label("Token").fill(bearing("forge:console"))
    await console.keyboard.press("Enter")
    await is_live(console)
    await expect(console.get_by_role("button", name="Sign out")).to_be_visible()
    await console.keyboard.press("t")
    await expect(console.get_by_role("button", name="Appearance: light")).to_be_visible()


@pytest.mark.long
async def test_a_server_that_comes_back_is_found_and_nothing_is_left_out(
    tabs: Tabs, process: Process, orders: Connection
) -> None:
    tabs.expect(CUT_OFF)
    await process.start()
    console = await opened(tabs, process.url)
    pay(orders, 1)
    await expect(change(console)).to_have_count(1)
    process.kill()
    await expect(console.locator(".banner")).to_contain_text("The connection is lost.")
    pay(orders, 2)
    await process.start()
    await is_live(console)
    await expect(change(console)).to_have_count(2)
    await expect(console.locator(".banner")).to_have_count(0)
