"""History and audit over HTTP: closed unless granted, by tenant, in pages."""

import time
from typing import Any

import jwt
import pytest

from forge.app import Forge
from forge.postgres.connection import Connection
from forge.serve.auth import AuthSettings
from forge.serve.node import Options
from tests.history.moments import begin, record
from tests.serve.serving import Served, serving

SECRET = "s" * 32
AUTH = AuthSettings(algorithms=("HS256",), secret=SECRET)


def token(**claims: Any) -> dict[str, str]:
    coded = jwt.encode({"sub": "ada", "exp": time.time() + 3600, **claims}, SECRET, algorithm="HS256")
    return {"authorization": f"Bearer {coded}"}


GRANTED = token(scope="openid forge:history")


@pytest.fixture
def shop(connection: Connection) -> Connection:
    begin(connection)
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, tenant text, card text, pin text)")
    connection.execute("CREATE TABLE page (path text PRIMARY KEY)")
    connection.execute(
        "SELECT forge_enable_reactivity('orders', exclude => '{pin}', mask => '{card}'),"
        " forge_enable_reactivity('page')"
    )
    connection.execute("INSERT INTO orders VALUES (1, 'placed', 'acme', '4111', '0000'), (2, 'x', 'zeta', '4222', '1')")
    connection.execute("UPDATE orders SET status = 'paid', pin = '1111', card = '4333' WHERE id = 1")
    connection.execute("INSERT INTO page VALUES ('c/d e'), (E'c\\nd')")
    record(connection, ["orders"])
    connection.execute("UPDATE orders SET tenant = 'zeta' WHERE id = 1")
    connection.execute("DELETE FROM orders WHERE id = 1")
    return connection


async def test_history_and_audit(database: str, shop: Connection) -> None:
    async with serving(Forge(database, options=Options(auth=AUTH))) as served:
        get = served.client.get
        page = (await get("/forge/history/orders/1?limit=3", headers=GRANTED)).json()
        assert (page["table"], page["key"], [entry["op"] for entry in page["entries"]]) == (
            "public.orders",
            {"id": 1},
            ["DELETE", "UPDATE", "UPDATE"],
        )
        rest = (await get(f"/forge/history/orders/1?before={page['next']}", headers=GRANTED)).json()
        assert [entry["op"] for entry in rest["entries"]] == ["INSERT", "SCHEMA"]
        assert rest["next"] is None
        assert page["entries"][2]["diff"] == [
            {"column": "status", "before": "placed", "after": "paid"},
            {"column": "card", "hidden": True},
            {"column": "pin", "hidden": True},
        ]
        then = (await get(f"/forge/history/orders/1?at={moment(shop)}", headers=GRANTED)).json()
        assert (then["row"]["status"], then["row"]["pin"]) == ("paid", {"$unavailable": True})
        assert (then["asked"], then["gap_seconds"], then["changes_between"]) == (then["at"], 0, 0)
        now = (await get("/forge/history/orders/1?at=now", headers=GRANTED)).json()
        assert (now["row"], now["asked"], now["gap_seconds"], now["changes_unsure"]) == (None, now["at"], 0, 0)
        slashes = (await get("/forge/history/page/c%2Fd%20e", headers=GRANTED)).json()
        assert slashes["entries"][0]["key"] == {"path": "c/d e"}
        lines = (await get("/forge/history/page/c%0Ad", headers=GRANTED)).json()
        assert lines["entries"][0]["key"] == {"path": "c\nd"}
        audit = (await get("/forge/audit?table=orders&op=update&limit=1", headers=GRANTED)).json()
        assert audit["entries"][0]["changed_columns"] == ["tenant"]
        more = (await get(f"/forge/audit?table=orders&op=update&before={audit['next']}", headers=GRANTED)).json()
        assert [entry["changed_columns"] for entry in more["entries"]] == [["status", "card", "pin"]]
        counted = (await get("/forge/audit?by=table,op&since=1h", headers=GRANTED)).json()["counts"]
        assert {(line["table"], line["op"]): line["changes"] for line in counted}["public.orders", "UPDATE"] == 2
        document = (await get("/forge/openapi.json")).json()
        assert {"/forge/history/{table}/{key}", "/forge/audit"} <= document["paths"].keys()
        for path in ("/forge/history/orders/1", "/forge/history/orders/2", "/forge/audit"):
            body = (await get(path, headers=GRANTED)).text
            assert not {"4111", "4222", "4333", "0000", "1111"} & set(_words(body))


def moment(connection: Connection) -> str:
    """The instant that was recorded before the row left its tenant."""
    row = connection.execute("SELECT min(at) FROM forge.instant").fetchone()
    assert row is not None
    return str(row[0].isoformat()).replace("+00:00", "Z")


def _words(text: str) -> list[str]:
    return [word.strip('"') for word in text.replace(":", " ").replace(",", " ").replace("}", " ").split()]


async def test_it_is_closed_unless_granted(database: str, shop: Connection) -> None:
    paths = ("/forge/history/orders/1", "/forge/audit")
    async with serving(Forge(database, options=Options(auth=AUTH))) as served:
        for path in paths:
            assert (await served.client.get(path)).status_code == 401
            for claims in ({}, {"scope": "openid"}, {"scope": "forge:history2"}, {"permissions": "forge_history"}):
                assert (await served.client.get(path, headers=token(**claims))).status_code == 403
            for name in ("permissions", "scp"):
                answer = await served.client.get(path, headers=token(**{name: ["forge:history"]}))
                assert answer.status_code == 200
            refused = await served.client.get(path, headers=token(scope="forge:history", tenant="acme"))
            assert (refused.status_code, "whose a row is" in refused.text) == (403, True)
    for options in (Options(), Options(auth=AUTH, history=None)):
        async with serving(Forge(database, options=options)) as served:
            for path in paths:
                assert (await served.client.get(path, headers=GRANTED)).status_code == 403


async def test_a_tenant_sees_its_own_rows_only(database: str, shop: Connection) -> None:
    async with serving(Forge(database, options=Options(auth=AUTH, tenant_column="tenant"))) as served:

        async def seen(tenant: str, path: str) -> list[tuple[str, Any]]:
            headers = token(scope="forge:history", tenant=tenant)
            entries = (await served.client.get(path, headers=headers)).json()["entries"]
            return [(entry["op"], entry["key"]) for entry in entries]

        assert await seen("acme", "/forge/history/orders/1") == [("UPDATE", {"id": 1}), ("INSERT", {"id": 1})]
        assert await seen("zeta", "/forge/history/orders/1") == [("DELETE", {"id": 1})]
        assert await seen("nobody", "/forge/history/orders/1") == []
        assert await seen("zeta", "/forge/audit") == [("DELETE", "1"), ("INSERT", "2")]
        headers = token(scope="forge:history", tenant="zeta")
        path = f"/forge/history/orders/1?at={moment(shop)}"
        assert (await served.client.get(path, headers=headers)).json()["row"] is None
        headers = token(scope="forge:history", tenant="acme")
        then = (await served.client.get(path, headers=headers)).json()
        assert then["row"]["status"] == "paid"
        assert (then["changes_between"], then["changes_unsure"]) == (None, None)  # other tenants' are among them


async def pages(served: Served, tenant: str, row: str, limit: int) -> list[Any]:
    """All pages of a row's history."""
    headers = token(scope="forge:history", tenant=tenant)
    found, query = [], ""
    while True:
        answer = await served.client.get(f"/forge/history/{row}?limit={limit}{query}", headers=headers)
        assert answer.status_code == 200
        found.append(answer.json())
        if found[-1]["next"] is None:
            return found
        query = f"&before={found[-1]['next']}"


async def test_pages_tell_nothing_of_what_a_tenant_may_not_see(
    database: str, shop: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as full, and end where they would, as if nothing else were in the log."""
    monkeypatch.setattr("forge.history.timeline.MOST_BYTES", 4000)
    shop.execute("ALTER TABLE orders ADD body text")
    for number in range(12):  # a row that goes to and fro, of which zeta sees every fourth change
        tenant = "zeta" if number % 4 < 2 else "acme"
        size = 100 if tenant == "zeta" else 3000
        values = (tenant, str(number) * size, str(number))
        if number == 0:
            shop.execute("INSERT INTO orders (id, tenant, body, status) VALUES (9, %s, %s, %s)", values)
        else:
            shop.execute("UPDATE orders SET tenant = %s, body = %s, status = %s WHERE id = 9", values)
    shop.execute("UPDATE orders SET id = 10, tenant = 'acme' WHERE id = 9")
    shop.execute("INSERT INTO orders (id, tenant, status) VALUES (11, 'acme', 'x')")
    shop.execute("UPDATE orders SET id = 12, tenant = 'zeta' WHERE id = 11")
    options = Options(auth=AUTH, tenant_column="tenant")
    async with serving(Forge(database, options=options)) as served:
        for limit in (1, 2, 3, 50):
            found = await pages(served, "zeta", "orders/9", limit)
            entries = [entry for page in found for entry in page["entries"]]
            statuses = [next(one for one in entry["diff"] if one["column"] == "status") for entry in entries]
            assert [(one.get("before"), one.get("after")) for one in statuses] == [
                ("8", "9"),
                ("4", "5"),
                ("0", "1"),
                (None, "0"),
            ]
            assert [len(page["entries"]) for page in found] == {1: [1] * 4, 2: [2, 2], 3: [3, 1], 50: [4]}[limit]
        # where nothing is to be seen, nothing tells a row that is there from one that is not
        for tenant, there in (("zeta", "orders/10"), ("nobody", "orders/9")):
            [hidden] = await pages(served, tenant, there, 1)
            [absent] = await pages(served, tenant, "orders/4711", 1)
            assert hidden == {**absent, "key": hidden["key"]}
            assert hidden["key"] == {"id": there.removeprefix("orders/")}
        [arrived] = await pages(served, "zeta", "orders/12", 1)
        assert [entry["op"] for entry in arrived["entries"]] == ["INSERT"]


async def test_bad_questions(database: str, shop: Connection) -> None:
    async with serving(Forge(database, options=Options(auth=AUTH))) as served:
        for path, code in (
            ("/forge/history", 404),
            ("/forge/history/nothing/1", 404),
            ("/forge/history/orders/x", 400),
            ("/forge/history/orders/a=1,b=2", 400),
            ("/forge/history/orders/1?limit=0", 400),
            ("/forge/history/orders/1?before=x", 400),
            ("/forge/history/orders/1?at=2026-01-01T00:00", 400),
            ("/forge/history/orders/1?at=2020-01-01T00:00Z", 410),
            ("/forge/audit?op=paint", 400),
            ("/forge/audit?by=colour", 400),
            ("/forge/audit?since=soon", 400),
            ("/forge/audit?limit=many", 400),
            ("/forge/audit?since=0001-01-01T00:00%2B14:00", 400),
            ("/forge/audit?user=%00", 400),
            ("/forge/history/orders/%00", 400),
            ("/forge/history/orders/%7B%22id%22:%22%5Cud800%22%7D", 400),
        ):
            answer = await served.client.get(path, headers=GRANTED)
            assert answer.status_code == code, path
            assert answer.json()["error"]["fix"]
            assert ("oldest" in answer.json()) == (code == 410)
