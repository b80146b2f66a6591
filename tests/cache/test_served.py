"""The cache over HTTP and WebSocket, with tokens that clients send back by themselves; replicas, roles, and DDL."""

import json
from typing import Any

import pytest
import websockets

import forge
from forge.app import Forge
from forge.cache import Cache
from forge.changelog.install import install
from forge.cursor import After
from forge.errors import ConfigError, ServerError
from forge.postgres.connection import Connection, connect
from forge.react.registry import Auth
from forge.testing.postgres import temporary_postgres
from tests.cache.shop import QUICK, Shop, application, shop_node
from tests.changelog.following import eventually
from tests.serve.serving import serving
from tests.servers.redis import RedisServer
from tests.servers.standby import standby_of


async def test_the_answer_says_whether_it_is_a_hit(database: str, shop: Connection) -> None:
    app, _ = application(database)
    async with serving(app) as served:
        await Shop(app, served.node, []).cached()

        async def told(**headers: str) -> tuple[int, str | None]:
            answer = await served.post("/forge/query/orders_of", {"customer_id": 7}, headers=headers)
            return answer.status_code, answer.headers.get("forge-cache")

        assert [await told(), await told()] == [(200, "miss"), (200, "hit")]
        assert (await served.post("/forge/query/uncached")).headers.get("forge-cache") is None
        paid = (await served.post("/forge/mutation/pay", {"id": 1})).json()
        assert await told(**{"Forge-After": paid["xid"]}) == (200, "miss")
        assert await told(**{"Forge-After": paid["xid"]}) == (200, "hit")
        refused = await served.post("/forge/query/orders_of", {"customer_id": 7}, headers={"Forge-After": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "cursor_invalid")
        counted = (await served.client.get("/metrics")).text
        assert "forge_cache_hits_total 2.0" in counted


async def test_a_client_sends_back_what_it_wrote_by_itself(database: str, shop: Connection) -> None:
    apps = [application(database)[0] for _ in range(2)]
    async with (
        serving(apps[0]) as one,
        serving(apps[1]) as two,
        forge.connect(one.url) as writer,
        forge.connect(two.url) as reader,
    ):
        for number in range(10):
            await reader.query("orders_of", customer_id=7)
            written = await writer.mutate("pay", id=1, status=str(number))
            assert writer.after == After(frozenset({written.xid or 0}))
            reader.after = writer.after  # as one client behind a balancer
            assert await reader.query("orders_of", customer_id=7) == [{"id": 1, "status": str(number)}]
        idle = await writer.mutate("nothing")
        assert str(writer.after) == str(idle.xid or written.xid)


async def test_a_socket_remembers_what_it_wrote(database: str, shop: Connection) -> None:
    app, _ = application(database)
    async with serving(app) as served, websockets.connect(served.url.replace("http", "ws") + "/forge/ws") as socket:

        async def call(**message: Any) -> Any:
            await socket.send(json.dumps({"id": "1", **message}))
            while (answer := json.loads(await socket.recv())).get("id") != "1":
                pass
            return answer

        for number in range(5):
            await call(type="query", query="orders_of", args={"customer_id": 7})
            await call(type="mutate", mutation="pay", args={"id": 1, "status": str(number)})
            answer = await call(type="query", query="orders_of", args={"customer_id": 7})
            assert answer["result"] == [{"id": 1, "status": str(number)}]
        wrong = await call(type="query", query="orders_of", args={"customer_id": 7}, after="x")
        assert (wrong["event"], wrong["code"]) == ("error", "cursor_invalid")


@pytest.mark.contract("R10")
async def test_a_replica_that_lags_fills_no_cache_with_what_is_old() -> None:
    with temporary_postgres() as primary:
        with connect(primary.url()) as writer:
            install(writer)
            writer.execute("CREATE TABLE orders (id int PRIMARY KEY, customer_id int, status text, total int)")
            writer.execute("CREATE TABLE notes (id int PRIMARY KEY, text text)")
            for table in ("orders", "notes"):
                writer.execute("SELECT public.forge_enable_reactivity(%s)", (table,))
            writer.execute("INSERT INTO orders VALUES (1, 7, 'placed', 0)")
        with standby_of(primary) as standby:
            async with shop_node(primary.url(), replicas=[standby.url()]) as node:
                with connect(standby.url()) as paused:
                    paused.execute("SELECT pg_wal_replay_pause()")
                for number in range(5):
                    xid = await node.change("pay", id=1, status=str(number))
                    assert xid is not None
                    after = After(frozenset({xid}))
                    assert (await node.ask("orders_of", after=after, customer_id=7))[0]["status"] == str(number)
                    assert (await node.ask("orders_of", customer_id=7))[0]["status"] == str(number)
                    await node.change("total", id=1, to=number)
                    xid = await node.change("total", id=1, to=number + 100)
                    rows = await node.ask("uncached", after=After(frozenset({xid or 0})))
                    assert rows == [{"id": 1, "total": number + 100}], "without a cache too"


async def test_a_mutation_of_a_role_that_may_not_read_the_log(database: str, shop: Connection) -> None:
    role = "clerk_of_the_cache"
    shop.execute(f"DROP ROLE IF EXISTS {role}".encode())
    shop.execute(f"CREATE ROLE {role}".encode())
    shop.execute(f"GRANT SELECT, UPDATE ON orders TO {role}".encode())
    try:
        async with shop_node(database) as node:
            clerk = Auth(user="c", role=role)
            await node.ask("mine", clerk)
            await node.change("pay", clerk, id=1)
            rows = await node.ask("mine", clerk)
            assert rows[0]["status"] == "paid"
            assert await node.hit("mine", clerk)
    finally:
        shop.execute(f"DROP OWNED BY {role}".encode())
        shop.execute(f"DROP ROLE {role}".encode())


async def test_what_is_deferred_until_the_commit_ends_entries_too(database: str, shop: Connection) -> None:
    shop.execute(
        """
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN UPDATE notes SET text = NEW.status; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER noted AFTER UPDATE ON orders DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION note();
        """
    )
    async with shop_node(database) as node:
        for number in range(10):
            await node.ask("notes")
            await node.change("pay", id=1, status=str(number))
            assert await node.ask("notes") == [{"id": 1, "text": str(number)}]


async def test_another_definition_ends_everything(database: str, shop: Connection) -> None:
    async with shop_node(database) as node:
        await node.ask("notes")
        shop.execute("ALTER TABLE notes ALTER COLUMN text TYPE text USING text || '!'")

        async def shows() -> bool:
            return bool(await node.ask("notes") == [{"id": 1, "text": "a!"}])

        await eventually(shows, 10.0)
        await node.cached()
        await node.ask("notes")
        assert await node.hit("notes")


async def test_what_reads_the_log_itself_is_ended_by_every_change(database: str, shop: Connection) -> None:
    app = Forge(database, settings=QUICK, cache=Cache())

    @app.query(cache=60)
    async def events(ctx: Any) -> Any:
        return await ctx.db.fetch_value("SELECT count(*)::int AS n FROM forge.forge_event_log")

    @app.mutation
    async def write(ctx: Any) -> Any:
        return await ctx.db.execute("UPDATE notes SET text = text || 'x'")

    async with app.running() as node:
        found = Shop(app, node, [])
        await found.cached()
        for _ in range(5):
            before = await found.ask("events")
            await found.change("write")
            assert await found.ask("events") == before + 1


async def test_an_application_without_cached_queries_has_no_cache(database: str, shop: Connection) -> None:
    app = Forge(database, settings=QUICK)

    @app.query
    async def plain(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT id FROM orders")

    async with app.running() as node:
        assert node.cached is None
        assert node.reactor.runner.on_commit is None


async def test_an_entry_of_another_node_is_ended_by_what_it_read(
    database: str, shop: Connection, redis: RedisServer
) -> None:
    caches = [Cache(redis.url, timeout=10) for _ in range(2)]
    async with shop_node(database, caches[0]) as one, shop_node(database, caches[1]) as two:
        for id in (7, 8):
            await one.ask("orders_of", customer_id=id)
            assert await two.hit("orders_of", customer_id=id)
        xid = await one.change("pay", id=1)
        await two.followed(xid)
        assert await two.hit("orders_of", customer_id=8)
        assert not await two.hit("orders_of", customer_id=7)
        assert two.runs == ["orders_of"]


async def test_after_a_crash_of_the_server_nothing_from_before_is_shown(redis: RedisServer) -> None:
    with temporary_postgres() as server:
        with connect(server.url()) as writer:
            install(writer)
            writer.execute("CREATE TABLE notes (id int PRIMARY KEY, text text)")
            writer.execute("CREATE TABLE orders (id int PRIMARY KEY, customer_id int, status text, total int)")
            for table in ("orders", "notes"):
                writer.execute("SELECT public.forge_enable_reactivity(%s)", (table,))
        async with shop_node(server.url(), Cache(redis.url, timeout=10)) as node:
            await node.ask("notes")
            assert await node.hit("notes")
            server.stop("immediate")
            server.start()
            with connect(server.url()) as writer:
                writer.execute("INSERT INTO notes VALUES (1, 'after')")

            async def answered() -> bool:
                try:
                    return bool(await node.ask("notes") == [{"id": 1, "text": "after"}])
                except ServerError:
                    return False

            await eventually(answered, 20.0)
            await node.cached()
            runs = len(node.runs)
            assert await node.ask("notes") == [{"id": 1, "text": "after"}]
            assert await node.hit("notes")
            assert len(node.runs) <= runs + 1


async def test_two_applications_may_share_a_cache(database: str, shop: Connection) -> None:
    cache = Cache()
    async with shop_node(database, cache) as two:
        async with shop_node(database, cache) as one:
            for number in range(10):
                await one.ask("orders_of", customer_id=7)
                await two.change("pay", id=1, status=str(number))
                assert (await one.ask("orders_of", customer_id=7))[0]["status"] == str(number)
                assert (await two.ask("orders_of", customer_id=7))[0]["status"] == str(number)
        await two.ask("orders_of", customer_id=7)
        assert await two.hit("orders_of", customer_id=7)
    with pytest.raises(ConfigError, match="another database"):
        async with shop_node(database, Cache(database="postgresql://elsewhere")):
            pass
