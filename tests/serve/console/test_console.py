"""The console's queries: each answers what its page says, lives on by itself, and shows nothing that is hidden."""

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from forge.app import Forge
from forge.deliver.webhooks.endpoints import Endpoints
from forge.postgres.connection import Connection
from forge.react.group import Settings
from tests.serve.serving import SOON, Served, serving

QUICK = Settings(quiet=0.005, longest=0.05, check=0.2)
PAGE = Path(__file__).parents[3] / "docs/how-to/console.md"


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, status text, total numeric, card text, pin text)")
    connection.execute("SELECT public.forge_enable_reactivity('orders')")
    connection.execute("""CREATE TABLE "odd.names" (a int, "B c" text, PRIMARY KEY ("B c", a))""")
    return connection


def application(database: str) -> Forge:
    app = Forge(database, settings=QUICK, title="Shop")

    @app.query(scope="public", key="id")
    async def orders(ctx: Any, status: str = "placed") -> Any:
        return await ctx.db.fetch("SELECT id, total FROM orders WHERE status = %(status)s ORDER BY id")

    @app.mutation
    async def tell(ctx: Any, topic: str) -> Any:
        return await ctx.outbox(topic, {"pin": "9999"}, key="k")

    @app.consumer("search", tables=["orders"], tries=1, backoff=(0.01, 0.01))
    async def search(ctx: Any, change: Any) -> None:
        if change.after and change.after["status"] == "broken":
            raise ValueError("cannot be indexed")

    @app.on_outbox("mail", tries=1)
    async def mail(message: Any) -> None:
        raise ValueError("no such mailbox")

    return app


async def ask(served: Served, name: str, **arguments: Any) -> Any:
    answer = await served.post(f"/forge/query/forge.{name}", arguments, timeout=SOON)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


async def do(served: Served, name: str, **arguments: Any) -> Any:
    answer = await served.post(f"/forge/mutation/forge.{name}", arguments)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


async def until(served: Served, name: str, condition: Any, **arguments: Any) -> Any:
    """The answer when it is so."""
    async with asyncio.timeout(SOON):
        while True:
            found = await ask(served, name, **arguments)
            if condition(found):
                return found
            await asyncio.sleep(0.02)


def documented(query: str) -> set[str]:
    """The words that the page has of a query."""
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `forge.{query}` |"))
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", line))))


def names(value: Any) -> Iterable[str]:
    """The names of a row's fields, and of the rows inside of it; not those of rows of users' tables."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield from each
            for name in ("scope", "ring", "entries", "diff", "tables", "recent", "steps"):
                yield from names(each.get(name) or [])


async def test_every_query_answers_what_its_page_says(database: str, shop: Connection) -> None:
    await Endpoints(database).add("crm", "https://crm.example/hush", tables=["untouched"])
    async with serving(application(database)) as served, served.stream("/forge/live/orders") as live:
        await live.next()
        shop.execute("INSERT INTO orders VALUES (1, 'placed', 1.50), (2, 'broken', 2)")
        await live.next()
        await served.post("/forge/mutation/tell", {"topic": "mail"})
        await served.post("/forge/mutation/tell", {"topic": "unrouted"})
        letters = await until(served, "dead_letters", lambda found: len(found) == 2)
        entries = (await ask(served, "audit", table="orders", op="insert"))["entries"]
        found = {
            "overview": await until(served, "overview", lambda found: found["dead_letters"] == 2),
            "tables": await ask(served, "tables"),
            "queries": await ask(served, "queries"),
            "metrics": await ask(served, "metrics"),
            "consumers": await ask(served, "consumers"),
            "dead_letters": letters,
            "outbox": await ask(served, "outbox"),
            "webhooks": await ask(served, "webhooks"),
            "doctor": await ask(served, "doctor"),
            "history": await ask(served, "history", table="orders", key=1),
            "as_of": await ask(served, "as_of", table="orders", key=1, at="now"),
            "audit": {"entries": entries, "next": None},
            "revert_plan": await ask(served, "revert_plan", transaction=entries[0]["transaction"]),
        }
        assert await ask(served, "pipeline") is None
        for query, answer in found.items():
            assert answer, query
            assert set(names(answer)) <= documented(query), query
        assert found["overview"]["title"] == "Shop"
        assert found["overview"]["tables_tracked"] == 1
        assert [each["consumer"] for each in letters] == ["search", "mail"]
        assert "cannot be indexed" in letters[0]["error"]
        assert [(each["topic"], each["dead"]) for each in found["outbox"] if each["dead"]] == [("mail", 1)]
        assert found["webhooks"][0]["url"] == "https://crm.example/…"
        assert "hush" not in str(found)
        assert [each["name"] for each in found["consumers"]] == ["search"]
        assert found["revert_plan"]["rows"] == len(found["revert_plan"]["steps"]) == 2
        assert {each["level"] for each in found["doctor"]} <= {"ok", "info", "warning", "problem"}
        assert all(each["fix"] for each in found["doctor"] if each["level"] in ("warning", "problem"))


@pytest.mark.contract("R16")
async def test_tables_are_live_and_can_be_tracked_from_here(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served, served.stream("/forge/live/forge.tables?mode=delta") as tables:
        rows = {each["table"]: each for each in (await tables.next()).body["rows"]}
        assert {name: each["tracked"] for name, each in rows.items()} == {"orders": True, "odd.names": False}
        odd = rows["odd.names"]
        assert (odd["name"], odd["key"]) == ('public."odd.names"', ["B c", "a"])
        enabled = rows["orders"]["last_change"]
        assert (rows["orders"]["changes_per_minute"], odd["last_change"]) == (0, None)
        await do(served, "enable", table=odd["name"], exclude=["a"][:0], mask=[])
        delta = await tables.until(lambda event: "odd.names" in event.data)
        assert [(each["table"], each["tracked"]) for each in delta.body["changed"]] == [("odd.names", True)]
        shop.execute("INSERT INTO orders VALUES (1), (2)")
        shop.execute("""INSERT INTO "odd.names" VALUES (1, 'x')""")
        seen: dict[str, Any] = {}
        while not all(seen.get(name, {}).get("last_change") for name in ("orders", "odd.names")):
            seen.update({each["table"]: each for each in (await tables.next()).body["changed"]})
        assert seen["orders"]["last_change"] > enabled
        assert (seen["orders"]["changes_per_minute"], seen["odd.names"]["changes_per_minute"]) == (2, 2)
        history = await ask(served, "history", table=odd["name"], key={"a": 1, "B c": "x"})
        assert [entry["op"] for entry in history["entries"]] == ["INSERT", "SCHEMA"]
        assert await do(served, "disable", table=odd["name"]) == {"disabled": True}
        assert await do(served, "disable", table=odd["name"]) == {"disabled": False}
        gone = await served.post("/forge/mutation/forge.enable", {"table": "nothing"})
        assert (gone.status_code, "nothing" in gone.text) == (422, True)


async def test_enable_keeps_what_is_not_said_and_waits_for_no_lock(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served:
        await do(served, "enable", table="orders", exclude=["pin"], mask=["card"])
        await do(served, "enable", table="orders")
        (orders,) = [each for each in await ask(served, "tables") if each["table"] == "orders"]
        assert (orders["excluded"], orders["masked"]) == (["pin"], ["card"])
        with shop.transaction():
            shop.execute("UPDATE orders SET status = status")
            held = await served.post("/forge/mutation/forge.disable", {"table": "orders"})
        assert (held.status_code, held.json()["error"]["code"]) == (422, "tracking_error")
        assert "does not end" in held.text


async def test_a_table_that_is_tracked_again_has_its_secrets_kept(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served:
        await do(served, "enable", table="orders", exclude=["pin", "status"], mask=["card"])
        await do(served, "disable", table="orders")
        await asyncio.to_thread(shop.execute, "ALTER TABLE orders RENAME pin TO secret")
        await asyncio.to_thread(shop.execute, "ALTER TABLE orders DROP status")
        (orders,) = [each for each in await ask(served, "tables") if each["table"] == "orders"]
        assert (orders["tracked"], orders["excluded"], orders["masked"]) == (False, ["secret"], ["card"])
        await do(served, "enable", table="orders")
        shop.execute("INSERT INTO orders (id, total, card, secret) VALUES (1, 5, '4242', '9999')")
        (logged,) = shop.execute("SELECT after::text FROM forge.forge_event_log WHERE op = 'I'").fetchone() or ("",)
        assert "9999" not in logged
        assert "4242" not in logged
        await do(served, "disable", table="orders")
        await do(served, "enable", table="orders", exclude=[], mask=[])
        (orders,) = [each for each in await ask(served, "tables") if each["table"] == "orders"]
        assert (orders["tracked"], orders["excluded"], orders["masked"]) == (True, [], [])


async def test_the_consoles_own_queries_are_neither_counted_nor_checked(database: str, shop: Connection) -> None:
    async with (
        serving(application(database)) as served,
        served.stream("/forge/live/forge.metrics") as metrics,
        served.stream("/forge/live/forge.queries?mode=delta") as queries,
        served.stream("/forge/live/orders") as live,
    ):
        await live.next()
        shop.execute("INSERT INTO orders VALUES (1, 'placed')")
        await live.next()
        shop.execute("UPDATE orders SET card = 'x'")
        found = (await metrics.until(lambda event: event.body["value"]["changes"] == 2)).body["value"]
        counted = {name: found[name] for name in ("runs", "pushed", "wasted", "missed", "failed", "touched", "pruned")}
        expected = {"runs": 2, "pushed": 2, "wasted": 0, "missed": 0, "failed": 0, "touched": 1, "pruned": 1}
        assert (counted, found["groups"], found["subscribers"], found["sessions"]) == (expected, 1, 1, 3)
        assert found["commit_to_push_p50_ms"] > 0
        assert len(found["ring"]) == 120
        assert sum(second["changes"] for second in found["ring"]) == 2
        rows: dict[str, Any] = {}
        while rows.get("orders", {}).get("runs") != 2 or rows.get("forge.metrics", {}).get("runs", 0) < 3:
            event = await queries.next()
            for row in event.body.get("rows", []) + event.body.get("changed", []) + event.body.get("added", []):
                rows[row["query"]] = row
        own, mine = rows["forge.metrics"], rows["orders"]
        assert (own["own"], own["failed"]) == (True, 0)
        assert (mine["own"], mine["arguments"], mine["scope"]["kind"]) == (False, {"status": "placed"}, "public")
        assert (mine["reads"], mine["rows"], mine["subscribers"]) == (["public.orders"], 1, 1)
        assert mine["last_ms"] > 0
        node = served.node
        assert (node.reactor.metrics.runs, node.reactor.metrics.missed) == (2, 0)


async def test_letters_are_sent_again_and_forgotten(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served:
        shop.execute("INSERT INTO orders VALUES (1, 'broken'), (2, 'broken')")
        shop.execute("UPDATE orders SET total = 1 WHERE id = 1")
        await served.post("/forge/mutation/tell", {"topic": "mail"})
        letters = await until(served, "dead_letters", lambda found: len(found) == 4)
        by_key = {(each["key"], each["behind"]): each["id"] for each in letters}
        assert await do(served, "discard_letter", id=by_key["2", False]) == {"discarded": 1}
        again = await served.post("/forge/mutation/forge.discard_letter", {"id": by_key["2", False]})
        assert (again.status_code, again.json()["error"]["code"]) == (422, "letter_unknown")
        # those of a row go together, in their order, and come back when they fail again
        assert await do(served, "replay_letter", id=by_key["1", True]) == {"replayed": 2}
        tried = await until(
            served, "dead_letters", lambda found: any(each["tries"] == 2 for each in found if each["key"] == "1")
        )
        assert len(tried) == 3
        message = by_key["k", False]
        assert await do(served, "replay_letter", id=message) == {"replayed": 1}
        await until(served, "dead_letters", lambda found: len(found) == 3)
        assert await do(served, "discard_letter", id=message) == {"discarded": 1}
        assert {each["kind"] for each in await ask(served, "dead_letters")} == {"consumer"}
        for id in ("", "consumer:x", "other:1", "consumer:99999999999999999999"):
            assert (await served.post("/forge/mutation/forge.replay_letter", {"id": id})).status_code == 400


async def test_what_waits_behind_a_discarded_letter_goes_on(database: str, shop: Connection) -> None:
    app, handled = Forge(database, settings=QUICK), list[tuple[int, int]]()

    @app.consumer("search", tables=["orders"], tries=1, backoff=(0.01, 0.01))
    async def search(ctx: Any, change: Any) -> None:
        if not change.after["total"]:
            raise ValueError("it costs nothing")
        handled.append((change.after["id"], int(change.after["total"])))

    async with serving(app) as served:
        shop.execute("INSERT INTO orders (id, total) VALUES (1, 0), (2, 0)")
        for total in (1, 2):
            shop.execute("UPDATE orders SET total = %s WHERE id = 1", (total,))
        letters = await until(served, "dead_letters", lambda found: len(found) == 4)
        by_key = {each["key"]: each["id"] for each in letters if not each["behind"]}
        assert await do(served, "discard_letter", id=by_key["1"]) == {"discarded": 1}
        await until(served, "dead_letters", lambda found: [each["id"] for each in found] == [by_key["2"]])
        assert handled == [(1, 1), (1, 2)]
        shop.execute("UPDATE orders SET total = 3 WHERE id = 1")
        async with asyncio.timeout(SOON):
            while handled[2:] != [(1, 3)]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_hidden_values_are_in_no_answer(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served:
        shop.execute("INSERT INTO orders VALUES (1, 'broken', 1, 'card-4711', 'pin-1234')")
        shop.execute("UPDATE orders SET card = 'card-0815', pin = 'pin-5678', total = 2")
        await until(served, "dead_letters", lambda found: len(found) == 2)
        shown = await ask(served, "history", table="orders", key=1)
        assert "card-4711" in str(shown)
        await do(served, "enable", table="orders", exclude=["pin"], mask=["card"])
        transaction = (await ask(served, "audit", op="update"))["entries"][0]["transaction"]
        answers = [
            await ask(served, "history", table="orders", key=1),
            await ask(served, "as_of", table="orders", key=1, at="now"),
            await ask(served, "revert_plan", transaction=transaction),
            *[await ask(served, name) for name in ("audit", "dead_letters", "tables", "queries", "consumers")],
        ]
        assert answers[2]["steps"][0]["then"]["total"] == 1
        for value in ("card-4711", "card-0815", "pin-1234", "pin-5678"):
            assert value not in str(answers)


async def test_a_document_that_is_nested_deep_is_shown_as_its_text(database: str, shop: Connection) -> None:
    deep = "[" * 3000 + "]" * 3000
    async with serving(application(database)) as served:
        shop.execute("CREATE TABLE document (id int PRIMARY KEY, body jsonb)")
        shop.execute("SELECT public.forge_enable_reactivity('document')")
        shop.execute("INSERT INTO document VALUES (1, %s)", (deep,))
        entries = (await ask(served, "history", table="document", key=1))["entries"]
        plan = await ask(served, "revert_plan", transaction=entries[0]["transaction"])
        assert [step["now"] for step in plan["steps"]] == [{"id": 1, "body": deep}]


async def test_hostile_values_are_cut_and_stay_what_they_are(database: str, shop: Connection) -> None:
    hostile = "<script>alert(1)</script>\x01\x1b[31m\u202egnirts\u202c 🙂"
    huge = hostile + "x" * 5_000_000
    async with serving(application(database)) as served:
        shop.execute("INSERT INTO orders VALUES (9007199254740993, %s, 'NaN', %s)", (hostile, huge))
        shop.execute("UPDATE orders SET card = card || 'y'")
        key = {"id": {"$int": "9007199254740993"}}
        answer = await ask(served, "history", table="orders", key=key)
        assert answer["key"] == key
        update, insert = answer["entries"][:2]
        first = {each["column"]: each["after"] for each in insert["diff"]}
        assert (first["status"], first["total"]) == (hostile, {"$numeric": "NaN"})
        assert first["card"].startswith(hostile)
        assert first["card"].endswith(f"… ({len(huge):,} characters)")
        assert len(str(answer)) < 100_000
        assert update["diff"][0]["after"].endswith(f"… ({len(huge) + 1:,} characters)")


ODD: list[Any] = [
    {"a": "1", "B c": "x y@z"},
    {"a": {"$int": "1"}, "B c": "x y@z"},
    '{"a": 1, "B c": "x y@z"}',
    "B c=x y@z,a=1",
    "x y@z · 1",
    "x y@z, 1",
    '["x y@z", "1"]',
]


async def test_a_key_is_taken_in_every_form(database: str, shop: Connection) -> None:
    shop.execute("CREATE TABLE people (email text PRIMARY KEY)")
    for table in ('"odd.names"', "people"):
        shop.execute("SELECT public.forge_enable_reactivity(%s)", (table,))
    shop.execute("""INSERT INTO "odd.names" VALUES (1, 'x y@z'), (2, 'x y@z')""")
    shop.execute("INSERT INTO people VALUES ('a b@c'), ('[1,2]')")
    forms = [('"odd.names"', key, {"a": 1, "B c": "x y@z"}) for key in ODD]
    forms += [("people", key, {"email": "a b@c"}) for key in ("a b@c", '{"email": "a b@c"}', "email=a b@c")]
    forms += [("people", "[1,2]", {"email": "[1,2]"})]
    async with serving(application(database)) as served:
        for table, key, row in forms:
            history = await ask(served, "history", table=table, key=key)
            assert (history["key"], history["entries"][0]["op"]) == (row, "INSERT"), key
            then = await ask(served, "as_of", table=table, key=key, at="now")
            assert then["row"] == row, key


async def test_what_cannot_be_answered_says_why(database: str, shop: Connection) -> None:
    wrong: list[tuple[str, dict[str, Any], int]] = [
        ("history", {"table": "orders", "key": 1, "limit": 0}, 400),
        ("history", {"table": "orders", "key": {"no": 1}}, 422),
        ("history", {"table": "orders", "key": "a\0b"}, 422),
        ("history", {"table": "a\0b", "key": 1}, 422),
        ("history", {"table": "orders", "key": 1, "before": "nowhere"}, 400),
        ("as_of", {"table": "orders", "key": 1, "at": "yesterday"}, 422),
        ("audit", {"op": "upsert"}, 400),
        ("audit", {"since": "2026-01-01"}, 422),
        ("revert_plan", {}, 422),
        ("revert_plan", {"trace": "none"}, 422),
        ("dead_letters", {"limit": 100_000}, 400),
        ("history", {"table": "orders", "key": {"$odd": 1}}, 422),
        ("nothing", {}, 404),
    ]
    async with serving(application(database)) as served:
        for name, arguments, code in wrong:
            answer = await served.post(f"/forge/query/forge.{name}", arguments)
            assert (answer.status_code, bool(answer.json()["error"]["fix"])) == (code, True), (name, answer.text)


async def test_others_are_answered_while_the_console_waits_for_its_answers(database: str, shop: Connection) -> None:
    def waiting() -> int:
        shop.execute("SELECT pg_stat_clear_snapshot()")
        about = "FROM pg_stat_activity WHERE application_name = 'forge console' AND wait_event_type = 'Lock'"
        return shop.execute(f"SELECT {about}".encode()).rowcount

    async with serving(application(database)) as served:
        with shop.transaction():
            await asyncio.to_thread(shop.execute, "LOCK TABLE forge.dead_letter IN ACCESS EXCLUSIVE MODE")
            asking = [asyncio.create_task(ask(served, "dead_letters", limit=limit)) for limit in range(1, 71)]
            async with asyncio.timeout(SOON):
                while waiting() < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            for task in asking[::2]:
                task.cancel()
            async with asyncio.timeout(10):
                assert (await served.post("/forge/query/orders", {"status": "paid"})).status_code == 200
                assert (await served.post("/forge/mutation/tell", {"topic": "unrouted"})).status_code == 200
                await ask(served, "metrics")
                await asyncio.to_thread(int)
            async with asyncio.timeout(SOON):
                while waiting() != 4:  # noqa: ASYNC110  others take the places of those who left, and no more
                    await asyncio.sleep(0.01)
        assert await asyncio.gather(*asking[1::2]) == [[]] * 35


async def test_who_leaves_has_what_was_asked_cancelled(database: str, shop: Connection) -> None:
    about = b"SELECT FROM pg_stat_activity WHERE application_name = 'forge console' AND state = 'active'"

    async def active(wanted: int) -> None:
        async with asyncio.timeout(SOON):
            while shop.execute(about).rowcount != wanted:
                shop.execute("SELECT pg_stat_clear_snapshot()")
                await asyncio.sleep(0.01)

    async with serving(application(database)) as served:
        with shop.transaction():
            await asyncio.to_thread(shop.execute, "LOCK TABLE forge.dead_letter IN ACCESS EXCLUSIVE MODE")
            asking = asyncio.create_task(ask(served, "dead_letters"))
            await active(1)
            asking.cancel()
            await active(0)


async def test_a_table_that_somebody_has_to_himself_holds_nothing_up(database: str, shop: Connection) -> None:
    shop.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    shop.execute("CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (9)")
    shop.execute("INSERT INTO parts VALUES (1)")
    locks = [
        ("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE", {"orders"}),
        ("LOCK TABLE part IN ACCESS EXCLUSIVE MODE", {"parts"}),
        ("ALTER INDEX orders_pkey RENAME TO orders_key", set()),  # which readers need not wait for
        ("REINDEX INDEX orders_pkey", {"orders"}),
    ]
    async with serving(application(database)) as served:
        for statement, unknown in locks:
            with shop.transaction(force_rollback=True):
                await asyncio.to_thread(shop.execute, statement.encode())  # it may wait for the server, in this loop
                async with asyncio.timeout(10):
                    found = await ask(served, "tables")
            assert {each["table"] for each in found if each["size_bytes"] is None} == unknown
        known = {each["table"]: each["size_bytes"] for each in await ask(served, "tables")}
        assert known.keys() >= {"orders", "parts"}
        assert all(size is not None and size > 0 for size in (known["orders"], known["parts"]))
