"""The Python client against a served application: live results, calls, tokens, broken networks, the raw feed."""

import asyncio
import random
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal

import jwt
import pytest

from forge.app import Forge
from forge.client import Client, Subscription, connect
from forge.errors import Refused, Unauthorized
from forge.postgres.connection import Connection
from forge.react.group import Settings
from forge.serve.auth import AuthSettings
from forge.serve.limits import Limits
from forge.serve.node import Options
from forge.testing.proxy import FaultProxy
from tests.serve.serving import SOON, serving

QUICK = Settings(quiet=0.005, longest=0.05, check=1e9)
SECRET = "a secret of thirty-two characters!"
SECURED = {"auth": AuthSettings(algorithms=("HS256",), secret=SECRET, leeway=0)}
ORDERS = "SELECT id, status, total, big, raw FROM orders WHERE customer_id = 7 ORDER BY status, id"
MODES = pytest.mark.parametrize("mode", ["full", "delta"])
Mode = Literal["full", "delta"]


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, customer_id int, status text, total numeric, big bigint, raw bytea)"
    )
    connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
    connection.execute("SELECT public.forge_enable_reactivity('orders'), public.forge_enable_reactivity('other')")
    connection.execute(r"INSERT INTO orders VALUES (1, 7, 'placed', 12.30, 9007199254740993, '\x00ff')")
    return connection


def application(database: str, **options: Any) -> Forge:
    app = Forge(database, settings=QUICK, options=Options(**options))

    @app.query(key="id")
    async def orders_of(ctx: Any, customer_id: int) -> Any:
        return await ctx.db.fetch(
            "SELECT id, status, total, big, raw FROM orders WHERE customer_id = %(customer_id)s ORDER BY status, id"
        )

    @app.query(key="id")
    async def statuses(ctx: Any, mode: str = "", name: str = "") -> Any:
        return await ctx.db.fetch("SELECT id, status FROM orders ORDER BY id")

    @app.query
    async def how_many(ctx: Any) -> Any:
        return len(await ctx.db.fetch("SELECT id FROM orders"))

    @app.query
    async def who(ctx: Any) -> Any:
        return {"user": ctx.auth.user, "orders": len(await ctx.db.fetch("SELECT id FROM orders"))}

    @app.query
    async def fails(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT 1 / (count(*) - count(*)) FROM orders")

    @app.mutation
    async def set_status(ctx: Any, order_id: int, status: str) -> Any:
        return await ctx.db.execute("UPDATE orders SET status = %(status)s WHERE id = %(order_id)s")

    return app


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@MODES
@pytest.mark.contract("W8", "R14", "X5")
async def test_a_result_is_live_and_says_why_it_changed(database: str, shop: Connection, mode: Mode) -> None:
    async with serving(application(database)) as served, connect(served.url, mode=mode) as client:
        subscription = client.subscribe("orders_of", customer_id=7)
        row = {"id": 1, "status": "placed", "total": Decimal("12.30"), "big": 9007199254740993, "raw": b"\x00\xff"}
        assert await anext(subscription) == [row]
        assert list(subscription.cause) == []
        paid = await client.mutate("set_status", order_id=1, status="paid")
        assert paid.result == 1
        assert not subscription.contains(paid.xid)
        assert await anext(subscription) == [{**row, "status": "paid"}]
        assert subscription.contains(paid.xid)
        (cause,) = subscription.cause
        assert (cause.table, cause.op, cause.function) == ("public.orders", "update", "set_status")
        assert cause.xid == str(paid.xid)
        assert await client.query("orders_of", customer_id=7) == subscription.result
        assert client.metrics.deltas == (mode == "delta")
        assert (await client.mutate("set_status", order_id=99, status="x")).result == 0


async def test_subscriptions_share_a_stream_and_arguments_may_have_any_name(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served, connect(served.url) as client:
        many = [client.live("statuses", {"mode": "y", "name": str(number)}, mode="delta") for number in range(20)]
        many += [client.subscribe("how_many"), client.subscribe("statuses", mode="y", name="x")]
        await asyncio.gather(*(anext(one) for one in many))
        assert len(served.node.sessions) == 1
        shop.execute("INSERT INTO orders (id, status) VALUES (2, 'new')")
        results = await asyncio.gather(*(anext(one) for one in many))
        assert results[-2] == 2
        assert all(result == results[0] for result in [*results[:-2], results[-1]])
        for one in many:
            await one.aclose()
        await until(lambda: not served.node.sessions)


@MODES
async def test_random_writes_over_a_network_that_breaks(database: str, shop: Connection, mode: Mode) -> None:
    chance = random.Random(7)
    given: list[Any] = []

    async def consume(subscription: Subscription) -> None:
        async for result in subscription:
            given.append(result)

    async with (
        serving(application(database)) as served,
        FaultProxy("127.0.0.1", port_of(served.url)) as proxy,
        connect(f"http://127.0.0.1:{proxy.port}", mode=mode) as client,
    ):
        states = [state(shop)]
        consuming = asyncio.ensure_future(consume(client.subscribe("orders_of", customer_id=7)))
        await until(lambda: given)
        for cut in range(3):
            for _ in range(50):
                write(shop, chance)
                states.append(state(shop))
                await asyncio.sleep(0.01)
            await asyncio.to_thread(proxy.cut)
            for _ in range(5):
                write(shop, chance)
                states.append(state(shop))
            await connected(client, cut + 2)
        shop.execute("INSERT INTO orders (id, customer_id, status) VALUES (1000, 7, 'last')")
        states.append(state(shop))
        await until(lambda: given[-1] == states[-1])
        left = iter(states)
        assert all(result in left for result in given), "every result was one of the database's, in its order"
        assert client.metrics.mismatches == 0
        assert client.metrics.deltas > 10 or mode == "full"
    await consuming


async def connected(client: Client, times: int) -> None:
    await until(lambda: client.metrics.connects == times)


def state(shop: Connection) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in shop.execute(ORDERS)]


COLUMNS = ("id", "status", "total", "big", "raw")


def write(shop: Connection, chance: random.Random) -> None:
    id, status = chance.randrange(12), chance.choice("abc")
    statement = chance.choice(
        [
            "INSERT INTO orders (id, customer_id, status, total) VALUES (%(id)s, 7, %(status)s, 1.50)"
            " ON CONFLICT (id) DO UPDATE SET customer_id = 7",
            "UPDATE orders SET status = %(status)s, total = total + 1 WHERE id = %(id)s",
            "UPDATE orders SET customer_id = 15 - customer_id WHERE id = %(id)s",
            "DELETE FROM orders WHERE id = %(id)s",
        ]
    )
    shop.execute(statement, {"id": id, "status": status})


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_what_did_not_change_during_an_outage_is_not_given_again(database: str, shop: Connection) -> None:
    async with (
        serving(application(database)) as served,
        FaultProxy("127.0.0.1", port_of(served.url)) as proxy,
        connect(f"http://127.0.0.1:{proxy.port}") as client,
    ):
        same, other = client.subscribe("how_many"), client.subscribe("statuses")
        assert await anext(same) == 1
        await anext(other)
        await asyncio.to_thread(proxy.refuse)
        await asyncio.to_thread(proxy.cut)
        shop.execute("UPDATE orders SET status = 'changed while away'")
        await until(lambda: same.error)
        await asyncio.to_thread(proxy.accept)
        assert await anext(other) == [{"id": 1, "status": "changed while away"}]
        await until(lambda: client.metrics.unchanged == 1)
        assert same.error is None
        shop.execute("INSERT INTO orders (id) VALUES (2)")
        assert await anext(same) == 2


async def test_a_network_that_falls_silent_is_left(database: str, shop: Connection) -> None:
    app = application(database, keepalive=0.2)
    async with (
        serving(app) as served,
        FaultProxy("127.0.0.1", port_of(served.url)) as proxy,
        connect(f"http://127.0.0.1:{proxy.port}", silence=1.0) as client,
    ):
        subscription = client.subscribe("how_many")
        assert await anext(subscription) == 1
        await asyncio.sleep(1.5)
        assert client.metrics.lost == 0, "keep-alives are no silence"
        await asyncio.to_thread(proxy.stall)
        await until(lambda: client.metrics.lost)
        shop.execute("INSERT INTO orders (id) VALUES (2)")
        await asyncio.to_thread(proxy.resume)
        assert await anext(subscription) == 2


async def test_a_server_that_says_bye_is_come_back_to(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served, connect(served.url) as client:
        subscription = client.subscribe("how_many")
        assert await anext(subscription) == 1
        served.node.farewell()
        await until(lambda: client.metrics.connects == 2)
        shop.execute("INSERT INTO orders (id) VALUES (2)")
        assert await anext(subscription) == 2


async def test_what_the_server_refuses_is_raised(database: str, shop: Connection) -> None:
    app = application(database, limits=Limits(subscriptions_per_user=1))
    async with serving(app) as served, connect(served.url) as client:
        for name, args, code in (
            ("nothing", {}, "unknown_name"),
            ("orders_of", {"customer_id": "x"}, "bad_arguments"),
            ("fails", {}, "query_failed"),
        ):
            with pytest.raises(Refused) as caught:
                await asyncio.wait_for(anext(client.live(name, args)), SOON)
            assert caught.value.code == code
            with pytest.raises(Refused):
                await client.query(name, **args)
        async with client.subscribe("how_many") as first, client.subscribe("statuses") as second:
            assert await anext(first) == 1
            await until(lambda: second.error)
            await first.aclose()
            assert await asyncio.wait_for(anext(second), SOON) == [{"id": 1, "status": "placed"}]


def token(seconds: float, user: str = "ada") -> str:
    now = time.time()
    return jwt.encode({"sub": user, "tenant": "t", "iat": now, "exp": now + seconds}, SECRET, algorithm="HS256")


@pytest.mark.contract("W11")
async def test_tokens_are_renewed_over_the_open_stream(database: str, shop: Connection) -> None:
    given = 0

    async def newest() -> str:
        nonlocal given
        given += 1
        return token(2.0 if given == 1 else 600.0)

    async with serving(application(database, **SECURED)) as served, connect(served.url, token=newest) as client:
        subscription = client.subscribe("who")
        assert await anext(subscription) == {"user": "ada", "orders": 1}
        await until(lambda: given == 2)
        await asyncio.sleep(2.5)
        shop.execute("INSERT INTO orders (id) VALUES (2)")
        assert await anext(subscription) == {"user": "ada", "orders": 2}
        assert (client.metrics.connects, given) == (1, 2)
        assert await client.query("who") == subscription.result


@pytest.mark.contract("W11")
async def test_a_revoked_token_is_replaced_where_it_can_be(database: str, shop: Connection) -> None:
    async def newest() -> str:
        return token(600)

    async with (
        serving(application(database, **SECURED)) as served,
        connect(served.url, token=newest) as able,
        connect(served.url, token=token(600)) as unable,
        connect(served.url) as nobody,
    ):
        live, ended = able.subscribe("who"), unable.subscribe("who")
        await anext(live)
        await anext(ended)
        await served.app.revoke(user="ada")
        with pytest.raises(Unauthorized):
            await asyncio.wait_for(anext(ended), SOON)
        await until(lambda: able.metrics.connects == 2)
        shop.execute("INSERT INTO orders (id) VALUES (2)")
        assert await anext(live) == {"user": "ada", "orders": 2}
        with pytest.raises(Unauthorized):
            await unable.query("who")
        with pytest.raises(Unauthorized):
            await anext(nobody.subscribe("who"))


async def test_the_feed_goes_on_over_breaks_without_loss(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served, FaultProxy("127.0.0.1", port_of(served.url)) as proxy:
        async with connect(f"http://127.0.0.1:{proxy.port}") as client, client.changes(["orders"]) as changes:
            first = asyncio.ensure_future(anext(changes))
            await until(lambda: changes.cursor)
            shop.execute("INSERT INTO other VALUES (1)")
            seen = []
            for number in range(10, 40):
                shop.execute("INSERT INTO orders (id, total) VALUES (%s, 1.50)", (number,))
                if number % 10 == 5:
                    await asyncio.to_thread(proxy.cut)
                change = await asyncio.wait_for(first if number == 10 else anext(changes), SOON)
                seen.append(change)
            assert [change.key["id"] for change in seen if change.key] == list(range(10, 40))
            assert seen[0].after is not None
            assert seen[0].after["total"] == Decimal("1.50")
            assert {change.table for change in seen} == {"orders"}
            saved = changes.cursor
        async with connect(served.url) as client, client.changes(after=saved) as changes:
            shop.execute("DELETE FROM other")
            change = await asyncio.wait_for(anext(changes), SOON)
            assert (change.table, change.op) == ("other", "delete")


@pytest.mark.contract("W9")
async def test_the_client_filters_what_the_server_cannot(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served, connect(served.url) as client:
        large = client.changes(["orders"], where=lambda change: bool(change.after and change.after["total"] > 10))
        async with large as changes:
            found = asyncio.ensure_future(anext(changes))
            await until(lambda: changes.cursor)
            for number, total in ((50, 1), (51, 11), (52, 2), (53, 12)):
                shop.execute("INSERT INTO orders (id, total) VALUES (%s, %s)", (number, total))
            first, second = await asyncio.wait_for(found, SOON), await asyncio.wait_for(anext(changes), SOON)
            assert [first.key, second.key] == [{"id": 51}, {"id": 53}]
