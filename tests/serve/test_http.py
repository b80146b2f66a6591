"""Live queries over HTTP: streams, sessions, resuming, limits, tokens, and clients that do not read."""

import asyncio
import time
from typing import Any

import httpx
import jwt
import msgspec
import pytest

from forge.app import Forge
from forge.postgres import leases
from forge.postgres.connection import Connection
from forge.react.group import Settings
from forge.serve.auth import AuthSettings
from forge.serve.limits import Limits
from forge.serve.node import Options
from tests.serve.serving import Served, serving

QUICK = Settings(quiet=0.005, longest=0.05, check=1e9)
SECRET = "a secret of thirty-two characters!"


def token(user: str, tenant: str = "t", seconds: float = 60, **more: Any) -> str:
    claims = {"sub": user, "tenant": tenant, "iat": int(time.time()) - 1, "exp": time.time() + seconds, **more}
    return jwt.encode(claims, SECRET, algorithm="HS256")


def bearing(user: str, tenant: str = "t", **more: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {token(user, tenant, **more)}"}


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, customer_id int, status text, tenant text)")
    connection.execute("SELECT public.forge_enable_reactivity('orders')")
    connection.execute("INSERT INTO orders VALUES (1, 7, 'placed', 'a'), (2, 8, 'placed', 'b')")
    return connection


def application(database: str, **options: Any) -> Forge:
    app = Forge(database, settings=QUICK, options=Options(**options))

    @app.query(key="id")
    async def orders_of(ctx: Any, customer_id: int) -> Any:
        """The orders of a customer."""
        return await ctx.db.fetch("SELECT id, status FROM orders WHERE customer_id = %(customer_id)s ORDER BY id")

    @app.query(scope="tenant", key="id")
    async def ours(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT id, status FROM orders WHERE tenant = %(t)s ORDER BY id", t=ctx.auth.tenant)

    @app.query
    async def fails(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT 1 / (count(*) - count(*)) FROM orders")

    @app.query
    async def big(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT id, repeat(status, 100000) AS x FROM orders ORDER BY id")

    @app.mutation
    async def pay(ctx: Any, id: int) -> Any:
        return await ctx.db.execute("UPDATE orders SET status = 'paid' WHERE id = %(id)s")

    @app.mutation
    async def breaks(ctx: Any) -> Any:
        raise RuntimeError("secret inside")

    return app


SECURED = {"auth": AuthSettings(algorithms=("HS256",), secret=SECRET)}


@pytest.mark.contract("W8", "R1")
async def test_one_query_as_a_stream(database: str, shop: Connection) -> None:
    async with (
        serving(application(database)) as served,
        served.stream('/forge/live/orders_of?args={"customer_id":7}') as stream,
    ):
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        first = await stream.next()
        assert (first.name, first.body["rows"]) == ("snapshot", [{"id": 1, "status": "placed"}])
        assert first.id == first.body["hash"]
        answer = await served.post("/forge/mutation/pay", {"id": 1})
        assert (answer.status_code, answer.json()["result"]) == (200, 1)
        update = await stream.next()
        assert (update.name, update.body["rows"]) == ("update", [{"id": 1, "status": "paid"}])
        assert update.body["cause"][0]["xid"] == answer.json()["xid"]
        assert update.body["cause"][0]["function"] == "pay"


@pytest.mark.contract("R14")
async def test_a_stream_of_deltas(database: str, shop: Connection) -> None:
    async with (
        serving(application(database)) as served,
        served.stream('/forge/live/orders_of?args={"customer_id":7}&mode=delta') as stream,
    ):
        first = await stream.next()
        shop.execute("INSERT INTO orders VALUES (3, 7, 'new', 'a')")
        delta = await stream.next()
        assert delta.name == "delta"
        assert (delta.body["added"], delta.body["at"], delta.body["changed"]) == ([{"id": 3, "status": "new"}], [1], [])
        assert delta.body["from"] == first.body["hash"]
        shop.execute("UPDATE orders SET customer_id = 9 WHERE id = 1")
        assert (await stream.next()).body["removed"] == [[1]]


async def test_an_unchanged_result_is_not_sent_again(database: str, shop: Connection) -> None:
    path = '/forge/live/orders_of?args={"customer_id":7}'
    async with serving(application(database)) as served:
        async with served.stream(path) as stream:
            known = (await stream.next()).id or ""
        async with served.stream(path, headers={"last-event-id": known}) as stream:
            async with asyncio.timeout(30):
                while not served.node.sessions:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            shop.execute("UPDATE orders SET status = 'paid'")
            event = await stream.next()
            assert (event.name, event.body["rows"]) == ("update", [{"id": 1, "status": "paid"}])
        shop.execute("UPDATE orders SET status = 'sent'")
        async with served.stream(path, headers={"last-event-id": known}) as stream:
            await stream.until(lambda event: event.body["rows"] == [{"id": 1, "status": "sent"}])


async def subscribe(served: Served, session: str, name: str, query: str, **more: Any) -> httpx.Response:
    return await served.post(f"/forge/session/{session}/subscribe", {"subscription": name, "query": query, **more})


@pytest.mark.contract("W8")
async def test_a_session_carries_many_subscriptions(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served, served.stream("/forge/session") as stream:
        session = (await stream.next()).body["session"]
        for customer in (7, 8):
            answer = await subscribe(served, session, f"c{customer}", "orders_of", args={"customer_id": customer})
            assert answer.status_code == 200
        found = {(event := await stream.next()).body["subscription"]: event.body["rows"] for _ in range(2)}
        assert found == {"c7": [{"id": 1, "status": "placed"}], "c8": [{"id": 2, "status": "placed"}]}
        shop.execute("UPDATE orders SET status = 'paid'")
        snapshots = {(await stream.next()).body["snapshot"] for _ in range(2)}
        assert len(snapshots) == 1  # both on one snapshot
        gone = await served.post(f"/forge/session/{session}/unsubscribe", {"subscription": "c7"})
        assert gone.json() == {"unsubscribed": True}
        shop.execute("UPDATE orders SET status = 'sent'")
        assert (await stream.next()).body["subscription"] == "c8"
        known = stream.seen[-1].body["hash"]
        again = await subscribe(served, session, "again", "orders_of", args={"customer_id": 8}, hash=known)
        assert again.status_code == 200
        unchanged = await stream.next()
        assert (unchanged.body["subscription"], unchanged.body["unchanged"]) == ("again", True)


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/forge/query/nope", {}, 404, "unknown_name"),
        ("/forge/query/orders_of", {"customer_id": "x"}, 400, "bad_arguments"),
        ("/forge/query/orders_of", {"customer_id": 7, "more": 1}, 400, "bad_arguments"),
        ("/forge/query/orders_of", [], 400, "bad_arguments"),
        ("/forge/query/fails", {}, 422, "query_failed"),
        ("/forge/mutation/breaks", {}, 500, "failed"),
        ("/forge/session/none/subscribe", {"subscription": "a", "query": "big"}, 404, "unknown_session"),
        ("/forge/session/none/subscribe", {"nonsense": 1}, 400, "bad_arguments"),
        ("/forge/query/orders_of", {"customer_id": 7, "x": "y" * 100_000}, 413, "too_large"),
    ],
)
async def test_bad_requests(database: str, shop: Connection, path: str, body: Any, status: int, code: str) -> None:
    async with serving(application(database)) as served:
        answer = await served.post(path, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert "secret" not in answer.text


@pytest.mark.contract("W11")
@pytest.mark.parametrize("kind", ["none", "garbage", "expired", "unsigned", "other key"])
async def test_without_a_good_token_nothing_is_answered(database: str, shop: Connection, kind: str) -> None:
    tokens = {
        "none": None,
        "garbage": "a.b.c",
        "expired": token("ada", seconds=-60),
        "unsigned": jwt.encode({"sub": "ada"}, "", algorithm="none"),
        "other key": jwt.encode({"sub": "ada"}, "x" * 32, algorithm="HS256"),
    }
    headers = {} if tokens[kind] is None else {"authorization": f"Bearer {tokens[kind]}"}
    async with serving(application(database, **SECURED)) as served:
        for path in ("/forge/live/ours", "/forge/session", "/forge/changes?table=orders"):
            answer = await served.client.get(path, headers=headers)
            assert answer.status_code == 401
        for path in ("/forge/query/ours", "/forge/mutation/pay"):
            assert (await served.post(path, {}, headers=headers)).status_code == 401


@pytest.mark.contract("R6", "W11")
async def test_tenants_never_see_each_other(database: str, shop: Connection) -> None:
    shop.execute("UPDATE orders SET status = 'secret-of-' || tenant")
    async with (
        serving(application(database, **SECURED)) as served,
        served.stream("/forge/live/ours", headers=bearing("ada", "a")) as first,
        served.stream("/forge/live/ours", headers=bearing("bob", "b")) as second,
    ):
        assert (await first.next()).body["rows"] == [{"id": 1, "status": "secret-of-a"}]
        assert (await second.next()).body["rows"] == [{"id": 2, "status": "secret-of-b"}]
        shop.execute("UPDATE orders SET tenant = 'b' WHERE id = 1")  # moves out, and in
        assert (await first.next()).body["rows"] == []
        assert len((await second.next()).body["rows"]) == 2
        shop.execute("INSERT INTO orders VALUES (3, 9, 'secret-of-c', 'c'), (4, 9, 'done', 'a'), (5, 9, 'done', 'b')")
        await first.until(lambda event: "done" in event.data)
        await second.until(lambda event: "done" in event.data)
        assert not any("secret-of-b" in event.data or "secret-of-c" in event.data for event in first.seen)
        assert not any("secret-of-c" in event.data for event in second.seen)


async def test_a_session_is_its_users_alone(database: str, shop: Connection) -> None:
    async with (
        serving(application(database, **SECURED)) as served,
        served.stream("/forge/session", headers=bearing("ada")) as stream,
    ):
        session = (await stream.next()).body["session"]
        path = f"/forge/session/{session}/subscribe"
        body = {"subscription": "s", "query": "ours"}
        assert (await served.post(path, body, headers=bearing("bob"))).status_code == 404
        assert (await served.post(path, body, headers=bearing("ada"))).status_code == 200


@pytest.mark.contract("W11")
async def test_a_stream_ends_when_its_token_does_unless_renewed(database: str, shop: Connection) -> None:
    async with (
        serving(application(database, **SECURED)) as served,
        served.stream("/forge/session", headers=bearing("ada", seconds=2)) as stream,
    ):
        session = (await stream.next()).body["session"]
        assert (await stream.named("auth")).body["renew"] is True
        renewed = {"token": token("ada", seconds=5)}
        path = f"/forge/session/{session}/auth"
        assert (await served.post(path, renewed, headers=bearing("ada"))).status_code == 200
        assert (await served.post(path, {"token": token("bob")}, headers=bearing("ada"))).status_code == 401
        assert (await stream.named("auth")).body["expires_at"] > time.time() + 2
        end = await stream.until(lambda event: event.name == "auth" and event.body.get("reason"))
        assert end.body["reason"] == "expired"
        with pytest.raises(StopAsyncIteration):
            await stream.next()


@pytest.mark.contract("X4")
async def test_revoked_tokens_end_their_streams_at_once(database: str, shop: Connection) -> None:
    first, second = application(database, **SECURED), application(database, **SECURED)
    async with (
        serving(first) as one,
        serving(second) as other,
        other.stream("/forge/live/ours", headers=bearing("ada")) as ada,
        other.stream("/forge/live/ours", headers=bearing("bob")) as bob,
    ):
        await ada.next()
        await bob.next()
        await first.revoke(user="ada")  # on another node
        assert (await ada.named("auth")).body["reason"] == "revoked"
        with pytest.raises(StopAsyncIteration):
            await ada.next()
        assert (await one.client.get("/forge/live/ours", headers=bearing("ada"))).status_code == 401
        shop.execute("INSERT INTO orders VALUES (9, 9, 'new', 't')")
        assert (await bob.next()).name == "update"


@pytest.mark.contract("R13")
async def test_limits_are_429_with_when_to_come_back(database: str, shop: Connection) -> None:
    limits = Limits(sessions_per_user=2, sessions_per_ip=3, subscriptions_per_user=3)
    async with (
        serving(application(database, limits=limits, **SECURED)) as served,
        served.stream("/forge/session", headers=bearing("ada")) as stream,
    ):
        session = (await stream.next()).body["session"]
        async with served.stream("/forge/session", headers=bearing("ada")) as second:
            await second.next()
            third = await served.client.get("/forge/session", headers=bearing("ada"))
            assert third.status_code == 429
            assert third.json()["error"]["retry_after_secs"] >= 1
            assert third.headers["retry-after"]
            async with served.stream("/forge/session", headers=bearing("bob")) as other:
                await other.next()
                assert (await served.client.get("/forge/session", headers=bearing("eve"))).status_code == 429
        codes = []
        for number in range(4):
            body = {"subscription": str(number), "query": "orders_of", "args": {"customer_id": number}}
            answer = await served.post(f"/forge/session/{session}/subscribe", body, headers=bearing("ada"))
            codes.append(answer.status_code)
        assert codes == [200, 200, 200, 429]


@pytest.mark.contract("R11", "W10")
async def test_a_client_that_does_not_read_slows_nobody_and_recovers(database: str, shop: Connection) -> None:
    app = application(database)

    @app.query(key="id")
    async def wide(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT id, status, repeat('x', 300000) AS x FROM orders ORDER BY id")

    async with serving(app) as served:
        slow_reader, slow_writer = await asyncio.open_connection(
            "127.0.0.1", int(served.url.rsplit(":", 1)[1]), limit=1024
        )
        slow_writer.write(b"GET /forge/live/wide?mode=delta HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await slow_writer.drain()
        async with served.stream("/forge/live/wide?mode=delta") as quick:
            await quick.next()
            for number in range(60):
                shop.execute("UPDATE orders SET status = %s WHERE id = %s", (str(number), number % 2 + 1))
                status = f'"status":"{number}"'
                while status not in (await quick.next()).data:
                    pass
            waiting = max(session.waiting for session in served.node.sessions.values())
            assert waiting <= 1  # of sixty results one waits
        # now it reads, and finds a gap and then the newest result
        seen = b""
        async with asyncio.timeout(30):
            while (
                b"event: gap" not in seen
                or seen.count(b"\n\n") < 3
                or b'"status":"59"' not in seen[seen.rindex(b"event: ") :]
            ):
                chunk = await slow_reader.read(1 << 20)
                assert chunk
                seen += chunk
        after = seen[seen.rindex(b"event: gap") :]
        assert b"event: snapshot" in after
        slow_writer.close()


async def test_a_restart_tells_clients_to_come_back(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served, served.stream("/forge/live/big") as stream:
        await stream.next()
        served.node.farewell()
        bye = await stream.named("bye")
        assert 0 < bye.body["retry_after_ms"] <= 3000
        with pytest.raises(StopAsyncIteration):
            await stream.next()


@pytest.mark.contract("R13")
async def test_of_a_result_beyond_the_limit_nothing_is_sent_until_it_is_smaller(
    database: str, shop: Connection
) -> None:
    app = Forge(database, settings=msgspec.structs.replace(QUICK, max_result_bytes=1000))

    @app.query
    async def wide(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT id, repeat('x', 600) AS x FROM orders ORDER BY id")

    async with serving(app) as served, served.stream("/forge/live/wide") as stream:
        error = await stream.next()
        assert (error.name, error.body["code"]) == ("error", "result_too_large")
        assert "xxx" not in error.data
        answer = await served.post("/forge/query/wide", {})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "result_too_large")
        assert "xxx" not in answer.text
        shop.execute("DELETE FROM orders WHERE id = 2")
        assert (await stream.next()).body["rows"] == [{"id": 1, "x": "x" * 600}]
        assert (await served.post("/forge/query/wide", {})).status_code == 200


@pytest.mark.contract("W8")
async def test_comments_keep_a_quiet_stream_alive(database: str, shop: Connection) -> None:
    """Nothing but comments comes, one after each time of silence, and the stream goes on as it was."""
    async with (
        serving(application(database, keepalive=0.2)) as served,
        served.client.stream("GET", '/forge/live/orders_of?args={"customer_id":7}', timeout=30) as response,
    ):
        lines = response.aiter_lines()
        events, comments = [], 0
        began = time.monotonic()
        while comments < 4:
            line = await anext(lines)
            comments += line.startswith(":")
            events += [line] if line.startswith("event:") else []
        assert events == ["event: snapshot"]
        assert time.monotonic() - began >= 3 * 0.2
        shop.execute("UPDATE orders SET status = 'paid' WHERE id = 1")
        while not line.startswith("event:"):
            line = await anext(lines)
        assert line == "event: update"


async def test_readiness_names_who_maintains_the_log(database: str, connection: Connection) -> None:
    assert leases.take(connection, leases.MAINTENANCE)
    async with serving(application(database)) as served:
        told = (await served.client.get("/readyz")).json()["maintained_by"]
        assert told == f"pid {connection.info.backend_pid}, forge"
        leases.give_up(connection, leases.MAINTENANCE)


async def test_what_operators_ask(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served, served.stream("/forge/live/ours") as stream:
        await stream.next()
        assert (await served.client.get("/healthz")).json() == {"ok": True}
        ready = await served.client.get("/readyz")
        assert (ready.status_code, ready.json()["ok"]) == (200, True)
        metrics = (await served.client.get("/metrics")).text
        assert "forge_sessions 1.0" in metrics
        assert "forge_missed_total 0.0" in metrics
        document = (await served.client.get("/forge/openapi.json")).json()
        assert "/forge/query/orders_of" in document["paths"]


async def test_gone_clients_leave_nothing_behind(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served:
        for _ in range(5):
            async with served.stream('/forge/live/orders_of?args={"customer_id":7}') as stream:
                await stream.next()
        async with asyncio.timeout(30):
            while served.node.sessions or len(served.node.gate):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_mounted_into_another_application(database: str, shop: Connection) -> None:
    """No lifespan reaches a mounted app: it starts with its first request."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = application(database)
    outer = Starlette(routes=[Mount("/", app.asgi())])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://x") as client:
        answer = await client.post("/forge/query/orders_of", json={"customer_id": 7})
        assert answer.json()["result"] == [{"id": 1, "status": "placed"}]
    await app.asgi().stop()


@pytest.mark.contract("R16")
async def test_forges_own_tables_are_live(database: str, shop: Connection) -> None:
    app = application(database)

    @app.query
    async def tables(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT table_name FROM forge.tracked_table WHERE disabled_at IS NULL ORDER BY 1")

    @app.query
    async def latest(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT operation, row_id FROM forge_events ORDER BY id DESC LIMIT 1")

    async with (
        serving(app) as served,
        served.stream("/forge/live/tables") as names,
        served.stream("/forge/live/latest") as events,
    ):
        assert (await names.next()).body["rows"] == [{"table_name": "orders"}]
        await events.next()
        shop.execute("DELETE FROM orders WHERE id = 2")
        assert (await events.next()).body["rows"] == [{"operation": "DELETE", "row_id": "2"}]
        shop.execute("CREATE TABLE more (id int PRIMARY KEY); SELECT public.forge_enable_reactivity('more')")
        assert (await names.next()).body["rows"] == [{"table_name": "more"}, {"table_name": "orders"}]
        secret = await served.post("/forge/query/latest")
        assert secret.status_code == 200


@pytest.mark.contract("X4")
async def test_a_changed_permission_takes_rows_away_at_once(database: str, shop: Connection) -> None:
    role = f"reader_{database.rsplit('_', 1)[1]}"
    shop.execute(
        f"CREATE ROLE {role}; GRANT {role} TO CURRENT_USER; GRANT SELECT ON orders TO {role};"
        "CREATE TABLE member (person text PRIMARY KEY, tenant text);"
        f"GRANT SELECT ON member TO {role};"
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY own ON orders USING (tenant IN (SELECT m.tenant FROM member m"
        " WHERE m.person = current_setting('request.jwt.claims', true)::json ->> 'sub'));"
        "INSERT INTO member VALUES ('ada', 'a'), ('ada too', 'b')"
    )
    shop.execute("SELECT public.forge_enable_reactivity('member')")
    auth = AuthSettings(algorithms=("HS256",), secret=SECRET, default_role=role)
    app = application(database, auth=auth)

    @app.query
    async def everything(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT id FROM orders ORDER BY id")

    try:
        async with serving(app) as served, served.stream("/forge/live/everything", headers=bearing("ada")) as stream:
            assert (await stream.next()).body["rows"] == [{"id": 1}]
            shop.execute("UPDATE member SET tenant = 'b' WHERE person = 'ada'")
            assert (await stream.next()).body["rows"] == [{"id": 2}]
            shop.execute("ALTER POLICY own ON orders USING (false)")  # no row changed, only the rule
            assert (await stream.next()).body["rows"] == []
            shop.execute("ALTER TABLE orders DISABLE ROW LEVEL SECURITY")
            assert (await stream.next()).body["rows"] == [{"id": 1}, {"id": 2}]
            shop.execute(f"REVOKE SELECT ON orders FROM {role}")
            assert (await stream.next()).body["code"] == "query_failed"
            async with served.stream("/forge/live/everything", headers=bearing("ada")) as newcomer:
                assert (await newcomer.next()).name == "error"  # not the rows that were seen before
    finally:
        shop.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_another_view_is_another_result(database: str, shop: Connection) -> None:
    shop.execute("CREATE VIEW v AS SELECT id FROM orders WHERE id < 2")
    app = application(database)

    @app.query
    async def seen(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT * FROM v ORDER BY id")

    async with serving(app) as served, served.stream("/forge/live/seen") as stream:
        assert (await stream.next()).body["rows"] == [{"id": 1}]
        shop.execute("CREATE OR REPLACE VIEW v AS SELECT id FROM orders")
        assert (await stream.next()).body["rows"] == [{"id": 1}, {"id": 2}]


async def test_a_write_and_its_push_are_one_trace(database: str, shop: Connection) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    number = "0af7651916cd43dd8448eb211c80319c"
    async with (
        serving(application(database)) as served,
        served.stream('/forge/live/orders_of?args={"customer_id":7}') as stream,
    ):
        await stream.next()
        headers = {"traceparent": f"00-{number}-b7ad6b7169203331-01"}
        await served.post("/forge/mutation/pay", {"id": 1}, headers=headers)
        await stream.next()
    (span,) = [span for span in found.get_finished_spans() if span.name == "forge.push"]
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == number
    assert span.attributes is not None
    assert span.attributes["forge.query"] == "orders_of"
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time > span.start_time


async def test_pages_of_other_sites_cannot_write_or_listen(database: str, shop: Connection) -> None:
    from websockets.asyncio.client import connect as open_socket
    from websockets.exceptions import InvalidStatus
    from websockets.typing import Origin

    app = application(database, origins=("https://allowed.example",))
    async with serving(app) as served:
        own = {"origin": served.url}
        for headers, status in (({"origin": "https://evil.example"}, 403), (own, 200), ({}, 200)):
            assert (await served.post("/forge/mutation/pay", {"id": 1}, headers=headers)).status_code == status
        allowed = await served.post("/forge/mutation/pay", {"id": 1}, headers={"origin": "https://allowed.example"})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://allowed.example"
        url = served.url.replace("http", "ws") + "/forge/ws"
        with pytest.raises(InvalidStatus):
            await open_socket(url, origin=Origin("https://evil.example"), proxy=None)
        async with open_socket(url, origin=Origin("https://allowed.example"), proxy=None) as socket:
            assert "session" in str(await socket.recv())


@pytest.mark.contract("R6")
async def test_who_made_a_change_is_not_told_to_other_tenants(database: str, shop: Connection) -> None:
    app = application(database, tenant_column="tenant", **SECURED)

    @app.query(scope="tenant")
    async def all_statuses(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT id, status FROM orders WHERE tenant || '' = %(t)s", t=ctx.auth.tenant)

    async with serving(app) as served, served.stream("/forge/live/all_statuses", headers=bearing("ada", "a")) as stream:
        await stream.next()
        shop.execute(
            "BEGIN; SELECT forge_context('secret-bob', 'secret-function', 'secret-trace');"
            "UPDATE orders SET status = 'x' WHERE id = 2;"
            "SELECT forge_context('secret-eve', 'paying'); UPDATE orders SET status = 'y' WHERE id = 1; COMMIT"
        )
        event = await stream.next()
        assert {cause["user"] for cause in event.body["cause"]} == {None}
        assert "secret" not in event.data
        shop.execute(
            "BEGIN; SELECT forge_context('eve', 'paying'); UPDATE orders SET status = 'z' WHERE id = 1; COMMIT"
        )
        event = await stream.next()
        assert [(cause["user"], cause["function"]) for cause in event.body["cause"]] == [("eve", "paying")]


async def test_a_function_that_raises_anything_leaves_nobody_with_an_old_result(
    database: str, shop: Connection
) -> None:
    app = application(database)
    failing = False

    @app.query
    async def odd(ctx: Any) -> Any:
        rows = await ctx.db.fetch("SELECT id FROM orders WHERE status = 'x' ORDER BY id")
        if failing:
            raise asyncio.CancelledError
        return rows

    async with serving(app) as served, served.stream("/forge/live/odd") as stream:
        assert (await stream.next()).body["rows"] == []
        failing = True
        shop.execute("UPDATE orders SET status = 'x' WHERE id = 1")
        assert (await stream.next()).body["code"] == "unexpected"
        failing = False
        shop.execute("UPDATE orders SET status = 'y' WHERE id = 1")  # the result is what it was before the error
        assert (await stream.next()).body["unchanged"] is True
        shop.execute("UPDATE orders SET status = 'x' WHERE id = 2")
        assert (await stream.next()).body["rows"] == [{"id": 2}]


async def test_who_leaves_has_the_call_cancelled_and_the_connection_back(database: str, shop: Connection) -> None:
    app = Forge(database, settings=QUICK, connections=2)

    @app.query
    async def slow(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT pg_sleep(60)")

    @app.query
    async def quick(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT 1 AS one")

    async with serving(app) as served:
        for _ in range(4):
            with pytest.raises(httpx.ReadTimeout):
                await served.client.post("/forge/query/slow", timeout=httpx.Timeout(20, read=0.3))
        answer = await served.client.post("/forge/query/quick", timeout=20)
        assert answer.json()["result"] == [{"one": 1}]


async def test_a_mutation_whose_answer_cannot_be_sent_writes_nothing(database: str, shop: Connection) -> None:
    app = application(database)

    @app.mutation
    async def strange(ctx: Any) -> Any:
        await ctx.db.execute("DELETE FROM orders")
        return object()

    async with serving(app) as served:
        assert (await served.post("/forge/mutation/strange")).json()["error"]["code"] == "result_invalid"
        assert shop.execute("SELECT count(*) FROM orders").fetchone() == (2,)


async def test_users_of_the_same_name_have_limits_of_their_own(database: str, shop: Connection) -> None:
    limits = Limits(sessions_per_user=1)
    async with (
        serving(application(database, limits=limits, **SECURED)) as served,
        served.stream("/forge/session", headers=bearing("admin", "a")) as stream,
    ):
        await stream.next()
        assert (await served.client.get("/forge/session", headers=bearing("admin", "a"))).status_code == 429
        async with served.stream("/forge/session", headers=bearing("admin", "b")) as other:
            assert (await other.next()).name == "session"
