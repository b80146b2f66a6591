"""Who may ask what: permissions of queries and mutations, the doors of the console, and the files for browsers."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from starlette.requests import HTTPConnection

from forge.app import Forge
from forge.errors import RegistrationError
from forge.postgres.connection import Connection
from forge.react.group import Settings
from forge.serve import files
from forge.serve.auth import AuthSettings
from forge.serve.node import Options
from forge.serve.permissions import local
from tests.serve.serving import SOON, Served, serving
from tests.serve.test_ws import opened

SECRET = "a secret of thirty-two characters!"
SECURED = AuthSettings(algorithms=("HS256",), secret=SECRET)
QUICK = Settings(quiet=0.005, longest=0.05, check=1e9)


def token(*permissions: str, tenant: str | None = None, user: str = "ada", iat: float = 0.0) -> str:
    claims: dict[str, Any] = {"sub": user, "scope": " ".join(permissions), "iat": int(time.time() - 10 + iat)}
    return jwt.encode({**claims, **({"tenant": tenant} if tenant else {})}, SECRET, algorithm="HS256")


def bearing(*permissions: str, **more: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {token(*permissions, **more)}"}


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, tenant text)")
    connection.execute("SELECT public.forge_enable_reactivity('orders')")
    connection.execute("INSERT INTO orders VALUES (1, 'placed', 'a'), (2, 'placed', 'b')")
    return connection


def application(database: str, **options: Any) -> Forge:
    app = Forge(database, settings=QUICK, options=Options(**options))

    @app.query(permission="orders:read", scope="public", key="id")
    async def orders(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT id, status FROM orders ORDER BY id")

    @app.mutation(permission="orders:write")
    async def pay(ctx: Any, id: int) -> Any:
        return await ctx.db.execute("UPDATE orders SET status = 'paid' WHERE id = %(id)s")

    return app


def refused(answer: Any, *words: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    for word in words:
        assert word in answer.text


@pytest.mark.contract("W11")
async def test_a_permission_is_needed_for_every_way_to_ask(database: str, shop: Connection) -> None:
    async with serving(application(database, auth=SECURED)) as served:
        may, other = bearing("orders:read"), bearing("orders:write openid")
        assert (await served.post("/forge/query/orders", {}, headers=may)).status_code == 200
        refused(await served.post("/forge/query/orders", {}, headers=other), "orders:read")
        refused(await served.post("/forge/query/orders?as_of=2026-01-31T12:00:00Z", {}, headers=other))
        refused(await served.post("/forge/mutation/pay", {"id": 1}, headers=may), "orders:write")
        assert (await served.post("/forge/mutation/pay", {"id": 1}, headers=other)).json()["result"] == 1
        stream = await served.client.get("/forge/live/orders", headers=other)
        refused(stream)
        async with served.stream("/forge/session", headers=other) as session:
            id = (await session.next()).body["session"]
            asked = {"subscription": "o", "query": "orders"}
            refused(await served.post(f"/forge/session/{id}/subscribe", asked, headers=other))
        async with opened(served, token("orders:write")) as socket:
            await socket.event("session")
            await socket.send("subscribe", id="1", subscription="o", query="orders")
            assert (await socket.event("error"))["code"] == "forbidden"
            await socket.send("query", id="2", query="orders")
            assert (await socket.event("error"))["code"] == "forbidden"


async def test_a_permission_may_be_a_list_of_any_of_the_claims(database: str, shop: Connection) -> None:
    async with serving(application(database, auth=SECURED)) as served:
        granting: list[dict[str, Any]] = [{"scp": ["orders:read"]}, {"permissions": ["x", "orders:read"]}]
        for claim in (*granting, {"scope": "x orders:read"}):
            bearer = jwt.encode({"sub": "ada", **claim}, SECRET, algorithm="HS256")
            answer = await served.post("/forge/query/orders", {}, headers={"authorization": f"Bearer {bearer}"})
            assert answer.status_code == 200
        for claim in ({"scope": "orders:reader"}, {"scp": {"orders:read": True}}, {"name": "orders:read"}):
            bearer = jwt.encode({"sub": "ada", **claim}, SECRET, algorithm="HS256")
            refused(await served.post("/forge/query/orders", {}, headers={"authorization": f"Bearer {bearer}"}))


@pytest.mark.contract("X4")
async def test_a_renewed_token_without_the_permission_ends_what_it_opened(database: str, shop: Connection) -> None:
    async with (
        serving(application(database, auth=SECURED)) as served,
        served.stream("/forge/session", headers=bearing("orders:read")) as session,
    ):
        id = (await session.next()).body["session"]
        may = bearing("orders:read")
        await served.post(f"/forge/session/{id}/subscribe", {"subscription": "o", "query": "orders"}, headers=may)
        await session.named("snapshot")
        renewed = await served.post(f"/forge/session/{id}/auth", {"token": token(iat=1)}, headers=may)
        assert renewed.status_code == 200
        assert (await session.named("error")).body["code"] == "forbidden"
        shop.execute("INSERT INTO orders VALUES (3, 'unseen', 'a')")
        await served.post(f"/forge/session/{id}/auth", {"token": token("orders:read", iat=2)}, headers=may)
        found = await session.until(lambda event: "rows" in event.body)
        assert [row["id"] for row in found.body["rows"]] == [1, 2, 3]
        assert not any("unseen" in event.data for event in session.seen[:-1])


async def test_without_tokens_nobody_has_a_permission(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served:
        refused(await served.post("/forge/query/orders", {}), "set auth")
        refused(await served.post("/forge/mutation/pay", {"id": 1}), "set auth")


def test_what_cannot_be_registered_is_said() -> None:
    app = Forge("postgresql://nowhere")

    async def orders(ctx: Any) -> Any: ...

    with pytest.raises(RegistrationError, match="of Forge's own"):
        app.query(name="forge.orders")(orders)
    with pytest.raises(RegistrationError, match="of Forge's own"):
        app.mutation(name="forge.orders")(orders)
    for permission in ("", "two words"):
        with pytest.raises(RegistrationError, match="permission of orders"):
            app.query(permission=permission)(orders)


# The console


OPEN = {"auth": SECURED, "console": "forge:console", "operate": "forge:operate"}


async def ask(served: Served, name: str, arguments: Any = None, *, kind: str = "query", **options: Any) -> Any:
    return await served.post(f"/forge/{kind}/forge.{name}", arguments or {}, **options)


async def test_with_tokens_the_console_is_closed_until_a_permission_is_named(database: str, shop: Connection) -> None:
    async with serving(application(database, auth=SECURED)) as served:
        refused(await ask(served, "tables", headers=bearing("forge:console")), "closed here")
        refused(await ask(served, "enable", {"table": "orders"}, kind="mutation", headers=bearing("forge:operate")))
        refused(await served.client.get("/console/"))


async def test_who_looks_may_not_write(database: str, shop: Connection) -> None:
    async with serving(application(database, **OPEN)) as served:
        looks, works = bearing("forge:console"), bearing("forge:console forge:operate", user="eve")
        assert (await ask(served, "tables", headers=looks)).status_code == 200
        refused(await ask(served, "disable", {"table": "orders"}, kind="mutation", headers=looks), "forge:operate")
        assert (await ask(served, "overview", headers=looks)).json()["result"]["operate"] is False
        assert (await ask(served, "overview", headers=works)).json()["result"]["operate"] is True
        done = await ask(served, "disable", {"table": "orders"}, kind="mutation", headers=works)
        assert done.json()["result"] == {"disabled": True}
        refused(await ask(served, "tables", headers=bearing("orders:read")), "forge:console")
        assert (await ask(served, "tables")).status_code == 401


async def test_the_console_is_for_tokens_without_a_tenant(database: str, shop: Connection) -> None:
    async with serving(application(database, **OPEN)) as served:
        of_one = bearing("forge:console forge:operate", tenant="a")
        refused(await ask(served, "tables", headers=of_one), "without a tenant")
        refused(await ask(served, "disable", {"table": "orders"}, kind="mutation", headers=of_one))
        refused(await served.client.get("/forge/live/forge.queries", headers=of_one))


@pytest.mark.contract("W11")
async def test_who_oversees_sees_the_feed_of_all_tenants(database: str, shop: Connection) -> None:
    async with serving(application(database, **OPEN, tenant_column="tenant")) as served:
        refused(await served.client.get("/forge/changes?from=start", headers=bearing("orders:read")))
        shop.execute("INSERT INTO orders VALUES (3, 'placed', 'a'), (4, 'placed', 'b')")
        for headers, seen in ((bearing("forge:console"), {3, 4}), (bearing("forge:console", tenant="b"), {4})):
            async with served.stream("/forge/changes?from=start&op=insert", headers=headers) as feed:
                found = [(await feed.named("change")).body["key"]["id"] for _ in seen]
                assert set(found) == seen


AWAY: list[dict[str, str]] = [
    {"host": "evil.example"},
    {"host": "127.0.0.1.evil.example"},
    {"x-forwarded-for": "127.0.0.1"},
    {"forwarded": "for=127.0.0.1"},
    {"via": "1.1 proxy"},
    {"origin": "https://evil.example"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


async def test_without_tokens_the_console_is_open_to_this_machine_alone(database: str, shop: Connection) -> None:
    async with serving(application(database, origins=("*",), allowed_hosts=("*",))) as served:
        assert (await ask(served, "tables")).status_code == 200
        for headers in AWAY:
            refused(await ask(served, "tables", headers=headers), "this machine alone")
            refused(await ask(served, "disable", {"table": "orders"}, kind="mutation", headers=headers))
            refused(await served.client.get("/forge/live/forge.tables", headers=headers))
            refused(await served.client.get("/console/", headers=headers))
        async with opened(served) as socket:
            await socket.event("session")
            await socket.send("query", id="1", query="forge.tables")
            assert (await socket.event("answer"))["result"]
        async with served.stream("/forge/session", headers={"host": "evil.example"}) as session:
            id = (await session.next()).body["session"]
            asked = {"subscription": "t", "query": "forge.tables"}
            refused(await served.post(f"/forge/session/{id}/subscribe", asked))


@pytest.mark.parametrize(
    ("peer", "host", "expected"),
    [
        ("127.0.0.1", "localhost:8710", True),
        ("::1", "[::1]:8710", True),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("10.0.0.7", "127.0.0.1:8710", False),
        ("127.0.0.1", "10.0.0.7:8710", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "[::1]evil.example", False),
        ("127.0.0.1", "localhost:80:80", False),
        ("127.0.0.1", "", False),
        (None, "127.0.0.1", False),
    ],
)
def test_who_is_on_this_machine(peer: str | None, host: str, expected: bool) -> None:
    client = None if peer is None else (peer, 1)
    scope = {"type": "http", "headers": [(b"host", host.encode())], "client": client}
    assert local(HTTPConnection(scope)) is expected


@pytest.mark.parametrize(
    ("origin", "expected"), [("http://localhost:1", True), ("x://localhost:1", False), ("null", False)]
)
def test_a_page_of_another_origin_is_not_this_machine(origin: str, expected: bool) -> None:
    headers = [(b"host", b"localhost:1"), (b"origin", origin.encode())]
    assert local(HTTPConnection({"type": "http", "headers": headers, "client": ("127.0.0.1", 1)})) is expected


async def test_a_proxy_that_says_nothing_of_itself_is_not_this_machine(database: str, shop: Connection) -> None:
    """What nginx sends where only `proxy_pass http://127.0.0.1:8710;` is written."""
    async with serving(application(database)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        statuses = []
        for version in ("1.0", "1.1"):
            reader, writer = await asyncio.open_connection(host, int(port))
            headers = f"Host: {host}:{port}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 2"
            writer.write(f"POST /forge/query/forge.tables HTTP/{version}\r\n{headers}\r\n\r\n{{}}".encode())
            async with asyncio.timeout(SOON):
                statuses.append(int((await reader.readline()).split()[1]))
            writer.close()
        assert statuses == [403, 200]


async def test_a_form_of_another_page_cannot_ask(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp"):
            sent = await served.client.post(
                "/forge/mutation/forge.disable", content=b'{"table": "orders"}', headers={"content-type": kind}
            )
            assert (sent.status_code, sent.json()["error"]["code"]) == (415, "not_json")
        typed = {"content-type": "Application/JSON; charset=utf-8"}
        answer = await served.client.post("/forge/query/forge.metrics", content=b"{}", headers=typed)
        assert answer.status_code == 200
        asked = await served.post("/forge/query/forge.tables?as_of=2026-01-31T12:00:00Z", {})
        assert asked.status_code == 400


# Files


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of files that a server has, built or not."""
    monkeypatch.setattr(files, "STATIC", tmp_path / "static")
    files.built.cache_clear()
    yield tmp_path / "static"
    files.built.cache_clear()


async def test_the_page_may_load_nothing_of_others(database: str, built: Path, tmp_path: Path) -> None:
    (built / "console/assets").mkdir(parents=True)
    (built / "console/index.html").write_text("<!doctype html><title>console</title>")
    (built / "console/assets/app-1.js").write_text("export {}")
    (built / "client.js").write_text("export const createClient = 1")
    (tmp_path / "secret.js").write_text("secret")
    async with serving(application(database)) as served:
        client = served.client
        moved = await client.get("/console")
        assert (moved.status_code, str(moved.next_request.url if moved.next_request else "")) == (
            307,
            f"{served.url}/console/",
        )
        page, script = await client.get("/console/"), await client.get("/console/assets/app-1.js")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert script.headers["content-type"].startswith("text/javascript")
        assert "immutable" in script.headers["cache-control"]
        for answer in (moved, page, script, await client.get("/console/none.js"), await client.post("/console/")):
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self';")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert (answer.headers["x-content-type-options"], answer.headers["referrer-policy"]) == (
                "nosniff",
                "no-referrer",
            )
            assert "set-cookie" not in answer.headers
        assert page.headers["cache-control"] == "no-cache"
        again = await client.get("/console/", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for path in ("../secret.js", "%2e%2e/secret.js", "..%2f..%2fsecret.js", "assets/", "assets/../../secret.js"):
            gone = await client.get(f"/console/{path}")
            assert gone.status_code == 404
            assert "secret" not in gone.text
        library = await client.get("/forge/client.js")
        assert library.text == "export const createClient = 1"
        assert library.headers["content-type"].startswith("text/javascript")


async def test_what_is_not_built_says_how_it_is(database: str, built: Path) -> None:
    async with serving(application(database)) as served:
        for path in ("/console/", "/forge/client.js"):
            answer = await served.client.get(path)
            assert answer.status_code == 404
            assert "make setup" in answer.text


async def test_the_page_needs_no_token_and_its_data_do(database: str, built: Path) -> None:
    (built / "console").mkdir(parents=True)
    (built / "console/index.html").write_text("sign in")
    async with serving(application(database, **OPEN)) as served:
        far = {"host": "shop.example"}
        assert (await served.client.get("/console/", headers=far)).text == "sign in"
        assert (await ask(served, "overview", headers=far)).status_code == 401
        async with asyncio.timeout(SOON):
            assert (await ask(served, "overview", headers={**far, **bearing("forge:console")})).status_code == 200
