"""Live queries: whatever changes a result is pushed, nothing else is, and each push says why."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from forge.change import Op
from forge.cursor import Snapshot
from forge.embedded import PostgresServer
from forge.errors import ResultTooLarge
from forge.postgres.connection import Connection, connect
from forge.react.group import Settings
from forge.react.reactor import Reactor
from forge.react.registry import Auth, Registry
from forge.react.result import apply
from forge.react.runner import Reached, Runner
from forge.testing import FaultProxy
from tests.changelog.following import trim_all
from tests.react.live import QUICK, Live, Watcher, live

ORDERS = "SELECT id, status FROM orders WHERE customer_id = %(customer)s ORDER BY id"


def pushed_more(than: int, watcher: Watcher) -> bool:
    return len(watcher.pushes) > than


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, customer_id int NOT NULL, status text, note text);"
        "CREATE TABLE customer (id int PRIMARY KEY, name text)"
    )
    connection.execute("SELECT public.forge_enable_reactivity('orders'), public.forge_enable_reactivity('customer')")
    connection.execute("INSERT INTO orders VALUES (1, 7, 'placed'), (2, 8, 'placed')")
    return connection


@pytest.mark.contract("R1", "X3")
async def test_rows_that_enter_change_and_leave_a_result_are_pushed(database: str, shop: Connection) -> None:
    async with live(database) as node:
        node.sql("orders", ORDERS)
        of7, of8 = (node.watch("orders", args={"customer": customer}) for customer in (7, 8))
        await of7.has([{"id": 1, "status": "placed"}])
        shop.execute("UPDATE orders SET customer_id = 8 WHERE id = 1")
        await of7.has([])
        await of8.has([{"id": 1, "status": "placed"}, {"id": 2, "status": "placed"}])
        shop.execute("UPDATE orders SET status = 'paid' WHERE id = 2")
        await of8.has([{"id": 1, "status": "placed"}, {"id": 2, "status": "paid"}])
        shop.execute("DELETE FROM orders")
        await of8.has([])
        shop.execute("INSERT INTO orders VALUES (3, 7, 'new')")
        await of7.has([{"id": 3, "status": "new"}])


@pytest.mark.contract("R2", "X3")
async def test_what_changes_no_result_runs_and_pushes_nothing(database: str, shop: Connection) -> None:
    async with live(database) as node:
        node.sql("orders", ORDERS)
        watcher = node.watch("orders", args={"customer": 7})
        await watcher.has([{"id": 1, "status": "placed"}])
        runs = node.reactor.metrics.runs
        shop.execute("UPDATE orders SET status = 'paid' WHERE id = 2")  # another customer's
        shop.execute("UPDATE orders SET note = 'x' WHERE id = 1")  # a column that is not read
        shop.execute("INSERT INTO customer VALUES (7, 'ada')")  # another table
        await node.settled()
        assert node.reactor.metrics.runs == runs
        shop.execute("BEGIN; UPDATE orders SET status = 'x' WHERE id = 1; UPDATE orders SET status = 'placed'; COMMIT")
        await node.settled()
        assert (node.reactor.metrics.wasted, len(watcher.pushes)) == (1, 1)


@pytest.mark.contract("R3")
async def test_touches_are_gathered_until_it_is_quiet(database: str, shop: Connection) -> None:
    async with live(database, Settings(quiet=0.3, longest=60.0, check=1e9)) as node:
        node.sql("orders", ORDERS)
        watcher = node.watch("orders", args={"customer": 7})
        await watcher.has([{"id": 1, "status": "placed"}])
        runs = node.reactor.metrics.runs
        for number in range(20):
            shop.execute("UPDATE orders SET status = %s WHERE id = 1", (str(number),))
        await watcher.has([{"id": 1, "status": "19"}])
        assert node.reactor.metrics.runs - runs <= 2


@pytest.mark.contract("R3")
async def test_where_it_is_never_quiet_a_push_comes_200_ms_after_the_first_change(
    database: str, shop: Connection
) -> None:
    """With the settings that a user gets, on a clock that the test sets: a change every 40 ms, for a second."""
    now = 1000.0
    reactor = Reactor(Runner(database), database, Settings(check=1e9), clock=lambda: now)
    await reactor.start()
    try:
        node = Live(reactor, Registry())
        node.sql("orders", ORDERS)
        watcher = node.watch("orders", args={"customer": 7})
        await watcher.has([{"id": 1, "status": "placed"}])
        for _ in range(5):
            pushes, runs = len(watcher.pushes), reactor.metrics.runs
            for number in range(5):  # at 0, 40, 80, 120 and 160 ms
                touched = reactor.metrics.touched
                shop.execute("UPDATE orders SET status = gen_random_uuid()::text WHERE id = 1")
                async with asyncio.timeout(30):
                    while reactor.metrics.touched == touched:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                now += 0.04 if number < 4 else 0.039
            await asyncio.sleep(0.1)  # at 199 ms
            assert (len(watcher.pushes), reactor.metrics.runs) == (pushes, runs)
            now += 0.002  # 41 ms after the last change: not quiet for 50
            await watcher.until(partial(pushed_more, pushes))
            assert shop.execute("SELECT status FROM orders WHERE id = 1").fetchone() == (watcher.value[0]["status"],)
    finally:
        await reactor.stop()


@pytest.mark.contract("R4")
async def test_no_more_runs_at_once_than_allowed(database: str, shop: Connection) -> None:
    async with live(database, Settings(quiet=0.005, longest=0.05, runs=3, check=1e9)) as node:
        now = most = 0

        async def slow(ctx: Any, number: int) -> Any:
            nonlocal now, most
            now += 1
            most = max(most, now)
            try:
                await ctx.db.fetch("SELECT pg_sleep(0.05)")
                return await ctx.db.fetch_value("SELECT count(*) FROM orders")
            finally:
                now -= 1

        node.registry.query(slow)
        watchers = [node.watch("slow", number=number, session=number) for number in range(12)]
        for watcher in watchers:
            await watcher.has(2)
        shop.execute("INSERT INTO orders VALUES (3, 7, 'new')")
        for watcher in watchers:
            await watcher.has(3)
        assert most == 3


@pytest.mark.contract("R5")
async def test_one_run_serves_all_who_ask_the_same(database: str, shop: Connection) -> None:
    async with live(database) as node:
        node.sql("orders", ORDERS)
        watchers = [node.watch("orders", args={"customer": 7}, session=number) for number in range(50)]
        for watcher in watchers:
            await watcher.has([{"id": 1, "status": "placed"}])
        shop.execute("UPDATE orders SET status = 'paid'")
        for watcher in watchers:
            await watcher.has([{"id": 1, "status": "paid"}])
        assert (node.reactor.metrics.runs, len(node.reactor.groups)) == (2, 1)


@pytest.mark.contract("R6")
async def test_scope_is_part_of_the_group(database: str, shop: Connection) -> None:
    async with live(database) as node:

        async def mine(ctx: Any) -> Any:
            return await ctx.db.fetch("SELECT id FROM orders WHERE customer_id = %(me)s::int", me=ctx.auth.user)

        async def ours(ctx: Any) -> Any:
            return [ctx.auth.user, ctx.auth.tenant, dict(ctx.auth.claims)]

        node.registry.query(mine)
        node.registry.query(ours, scope="tenant")
        node.registry.query(ours, name="all", scope="public")
        seven, eight = (
            Auth(user, "t", claims={"sub": user, "tenant": "t", "iat": int(user), "secret": user}) for user in "78"
        )
        watchers = [node.watch("mine", auth=seven), node.watch("mine", auth=eight)]
        await watchers[0].has([{"id": 1}])
        await watchers[1].has([{"id": 2}])
        for name, seen in (("ours", [None, "t", {"tenant": "t"}]), ("all", [None, None, {}])):
            for auth in (seven, eight):
                await node.watch(name, auth=auth).has(seen)
        assert len(node.reactor.groups) == 4


@pytest.mark.contract("X5")
async def test_every_push_says_why(database: str, shop: Connection) -> None:
    async with live(database) as node:

        async def pay(ctx: Any, order: int) -> None:
            await ctx.db.execute("UPDATE orders SET status = 'paid' WHERE id = %(order)s")

        node.registry.mutation(pay)
        node.sql("orders", ORDERS)
        watcher = node.watch("orders", args={"customer": 7})
        await watcher.has([{"id": 1, "status": "placed"}])
        answer = await node.change("pay", auth=Auth("ada"), order=1)
        await watcher.has([{"id": 1, "status": "paid"}])
        push = watcher.pushes[-1]
        (cause,) = push.causes
        assert (cause.table, cause.op, cause.user, cause.function) == ("public.orders", Op.UPDATE.value, "ada", "pay")
        assert cause.transaction == answer.xid
        assert answer.xid is not None
        assert push.coverage.sees(int(answer.xid))
        assert not watcher.pushes[0].coverage.sees(int(answer.xid))


@pytest.mark.contract("R14")
async def test_deltas_lead_from_result_to_result(database: str, shop: Connection) -> None:
    async with live(database) as node:
        node.sql("orders", "SELECT id, status FROM orders ORDER BY status, id", key="id")
        watcher = node.watch("orders")
        await watcher.until(lambda w: w.pushes)
        held = watcher.pushes[0].result
        for statement in (
            "INSERT INTO orders SELECT n, 7, 'new' FROM generate_series(10, 20) n",
            "UPDATE orders SET status = 'a' WHERE id % 3 = 0",
            "DELETE FROM orders WHERE id % 4 = 0",
            "UPDATE orders SET id = id + 100 WHERE id % 5 = 0",
        ):
            seen = len(watcher.pushes)
            shop.execute(statement.encode())
            await watcher.until(partial(pushed_more, seen))
            await node.settled()
        for push in watcher.pushes[1:]:
            assert push.delta is not None
            held = apply(held, push.delta)
            assert (held.rows, held.hash) == (push.result.rows, push.result.hash)


async def test_a_session_sees_one_snapshot_of_what_one_transaction_touched(database: str, shop: Connection) -> None:
    async with live(database) as node:
        node.sql("of", "SELECT count(*) AS n FROM orders WHERE customer_id = %(customer)s")
        one, other = (node.watch("of", args={"customer": customer}, session="s") for customer in (7, 8))
        await one.has([{"n": 1}])
        await other.has([{"n": 1}])
        with connect(database) as writer:
            for number in range(30):
                writer.execute("UPDATE orders SET customer_id = 15 - customer_id WHERE id = %s", (number % 2 + 1,))
                await asyncio.sleep(0.01)
        await node.settled()
        together = {str(push.coverage): push.result.rows for push in one.pushes[1:]}
        pairs = [(together[str(p.coverage)], p.result.rows) for p in other.pushes[1:] if str(p.coverage) in together]
        assert pairs
        for mine, others in pairs:
            assert mine != others or mine == (b'{"n":1}',)


async def test_what_commits_while_the_first_run_runs_is_not_missed(database: str, shop: Connection) -> None:
    async with live(database) as node:
        began = asyncio.Event()

        async def slow(ctx: Any) -> Any:
            rows = await ctx.db.fetch("SELECT status FROM orders WHERE id = 1")
            began.set()
            await asyncio.sleep(0.3)
            return rows

        node.registry.query(slow)
        watcher = node.watch("slow")
        await began.wait()
        shop.execute("UPDATE orders SET status = 'late' WHERE id = 1")
        await watcher.has([{"status": "late"}])


@pytest.mark.contract("R8", "X12")
async def test_a_lost_connection_loses_no_change(database: str, shop: Connection) -> None:
    async with live(database) as node:
        node.sql("orders", ORDERS)
        watcher = node.watch("orders", args={"customer": 7})
        await watcher.has([{"id": 1, "status": "placed"}])
        for number in range(5):
            shop.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid()"
            )
            shop.execute("UPDATE orders SET status = %s WHERE id = 1", (str(number),))
            await watcher.has([{"id": 1, "status": str(number)}])


@pytest.mark.contract("R8")
async def test_past_retention_everything_runs_again(
    database: str, shop: Connection, server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A node cannot reach its database for longer than the log is kept, and the change that it missed is trimmed."""
    async with FaultProxy("127.0.0.1", server.port) as proxy, live(proxy.url(database)) as node:
        node.sql("orders", ORDERS)
        watcher = node.watch("orders", args={"customer": 7})
        await watcher.has([{"id": 1, "status": "placed"}])
        resyncs = node.reactor.metrics.resyncs
        await asyncio.to_thread(proxy.refuse)
        await asyncio.to_thread(proxy.cut)
        shop.execute("UPDATE orders SET status = 'unseen' WHERE id = 1")
        await trim_all(database, shop)
        await asyncio.to_thread(proxy.accept)
        await watcher.has([{"id": 1, "status": "unseen"}])
        assert node.reactor.metrics.resyncs > resyncs
        assert "the log cannot be followed from where it was left" in caplog.text
        shop.execute("UPDATE orders SET status = 'seen' WHERE id = 1")
        await watcher.has([{"id": 1, "status": "seen"}])


@pytest.mark.contract("R12")
async def test_everything_runs_again_after_a_while(database: str, shop: Connection) -> None:
    async with live(database, Settings(quiet=0.005, longest=0.05, resync=0.5, check=1e9)) as node:
        node.sql("orders", ORDERS)
        watcher = node.watch("orders", args={"customer": 7})
        await watcher.has([{"id": 1, "status": "placed"}])
        shop.execute("ALTER TABLE orders DISABLE TRIGGER ALL; UPDATE orders SET status = 'unseen'")
        await watcher.has([{"id": 1, "status": "unseen"}])


async def test_a_missed_change_is_found_by_the_check_and_counted(database: str, shop: Connection) -> None:
    async with live(database, Settings(quiet=0.005, longest=0.05, check=0.2)) as node:
        node.sql("orders", ORDERS)
        watcher = node.watch("orders", args={"customer": 7})
        await watcher.has([{"id": 1, "status": "placed"}])
        await asyncio.sleep(1)
        assert node.reactor.metrics.missed == 0
        shop.execute(
            "SET session_replication_role = replica; UPDATE orders SET status = 'unseen';RESET session_replication_role"
        )
        shop.execute("INSERT INTO customer VALUES (1, 'later')")
        await watcher.has([{"id": 1, "status": "unseen"}])
        assert node.reactor.metrics.missed == 1


async def test_a_check_from_before_a_rewrite_of_its_table_misses_nothing(
    database: str, shop: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()
    gate.set()
    async with live(database, Settings(quiet=0.005, longest=0.05, check=1e9)) as node:

        async def orders(ctx: Any) -> Any:  # its snapshot is taken by now
            asked.set()
            await gate.wait()
            return await ctx.db.fetch("SELECT id, status FROM orders ORDER BY id")

        node.registry.query(orders, name="orders")
        watcher = node.watch("orders")
        await watcher.until(lambda w: w.pushes)
        (group,) = node.reactor.groups.values()
        known = group.result
        monkeypatch.setattr(node.reactor, "_take", lambda batch: None)  # the rewrite is not read yet
        monkeypatch.setattr(node.reactor, "reached", Reached(Snapshot(2**40, 2**40), 2**60))  # all before it is
        asked.clear()
        gate.clear()
        checking = asyncio.create_task(node.reactor._check(group))
        await asked.wait()
        shop.execute("ALTER TABLE orders ALTER status TYPE varchar(30)")
        gate.set()
        await checking
        assert group.result is known
        assert node.reactor.metrics.missed == 0


@pytest.mark.contract("X11")
async def test_another_definition_runs_everything_again(database: str, shop: Connection) -> None:
    async with live(database) as node:
        node.sql("orders", "SELECT * FROM orders WHERE id = 1")
        watcher = node.watch("orders")
        await watcher.until(lambda w: w.pushes)
        shop.execute("ALTER TABLE orders ADD extra int DEFAULT 5")
        await watcher.until(lambda w: w.value[0].get("extra") == 5)
        shop.execute("ALTER TABLE orders ALTER extra TYPE text USING 'n' || extra")
        await watcher.until(lambda w: w.value[0].get("extra") == "n5")
        shop.execute("UPDATE orders SET extra = 'seen' WHERE id = 1")
        await watcher.until(lambda w: w.value[0].get("extra") == "seen")


async def test_what_cannot_be_watched_is_refused_with_the_fix(database: str, shop: Connection) -> None:
    shop.execute("CREATE TABLE untracked (id int)")
    async with live(database) as node:
        node.sql("untracked", "SELECT * FROM untracked")
        node.sql("wrong", "SELECT nothing FROM orders")
        watcher = node.watch("untracked")
        await watcher.until(lambda w: w.errors)
        assert "forge enable" in watcher.errors[0].fix
        wrong = node.watch("wrong")
        await wrong.until(lambda w: w.errors)
        assert not node.reactor.groups


async def test_groups_without_subscribers_go(database: str, shop: Connection) -> None:
    async with live(database, Settings(quiet=0.005, longest=0.05, idle=0.1, check=0.2)) as node:
        node.sql("orders", ORDERS)
        watcher = node.watch("orders", args={"customer": 7})
        await watcher.until(lambda w: w.pushes)
        assert watcher.group is not None
        node.reactor.unsubscribe(watcher.group, watcher)
        async with asyncio.timeout(20):
            while node.reactor.groups:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        shop.execute("UPDATE orders SET status = 'paid'")
        await node.settled()
        assert len(watcher.pushes) == 1
        assert len(node.reactor._index) == 0


@pytest.mark.contract("R13")
async def test_a_result_beyond_the_limit_is_an_error_until_it_is_smaller(database: str, shop: Connection) -> None:
    async with live(database, Settings(quiet=0.005, longest=0.05, max_result_bytes=1000, check=1e9)) as node:
        node.sql("wide", "SELECT id, repeat('x', 600) AS x FROM orders")
        watcher = node.watch("wide")
        await watcher.until(lambda w: w.errors)
        assert isinstance(watcher.errors[0], ResultTooLarge)
        assert "1000 bytes" in str(watcher.errors[0])
        assert watcher.pushes == []
        shop.execute("DELETE FROM orders WHERE id = 2")
        await watcher.has([{"id": 1, "x": "x" * 600}])
        shop.execute("INSERT INTO orders VALUES (3, 7, 'too much')")
        await watcher.until(lambda w: len(w.errors) == 2)
        assert len(watcher.pushes) == 1
        shop.execute("DELETE FROM orders WHERE id = 1")
        await watcher.has([{"id": 3, "x": "x" * 600}])


async def test_what_changes_while_nobody_subscribes_is_not_shown_old(database: str, shop: Connection) -> None:
    async with live(database) as node:
        node.sql("orders", ORDERS)
        watcher = node.watch("orders", args={"customer": 7})
        await watcher.has([{"id": 1, "status": "placed"}])
        assert watcher.group is not None
        node.reactor.unsubscribe(watcher.group, watcher)
        shop.execute("UPDATE orders SET status = 'paid'")
        await node.settled()
        other = node.watch("orders", args={"customer": 7})
        await other.until(lambda w: w.pushes)
        assert other.group is watcher.group
        assert other.pushes[0].result.rows == (b'{"id":1,"status":"paid"}',)


@pytest.mark.contract("R15")
@pytest.mark.parametrize("count", [2, 4])
async def test_nodes_agree(database: str, shop: Connection, count: int) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(live(database)) for _ in range(count)]
        watchers = []
        for node in nodes:
            node.sql("orders", ORDERS)
            watchers.append(node.watch("orders", args={"customer": 7}))
        for number in range(20):
            shop.execute("UPDATE orders SET status = %s WHERE id = 1", (str(number),))
        for watcher in watchers:
            await watcher.has([{"id": 1, "status": "19"}])


async def test_a_query_that_reads_the_clock_is_refreshed(database: str, shop: Connection) -> None:
    async with live(database, QUICK) as node:
        node.sql("clock", "SELECT clock_timestamp() AS now", refresh_every=0.1)
        watcher = node.watch("clock")
        await watcher.until(lambda w: len(w.pushes) >= 3)


@pytest.mark.contract("R8", "X1")
async def test_a_crash_of_the_server(server: PostgresServer) -> None:
    """In its own server: what was pushed and then lost in the crash is taken back."""
    from forge.changelog.install import install
    from forge.testing.postgres import fresh_database, temporary_postgres

    with temporary_postgres() as own, fresh_database(own) as url:
        with connect(url) as connection:
            install(connection)
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
            connection.execute("SELECT public.forge_enable_reactivity('t')")
        async with live(url) as node:
            node.sql("rows", "SELECT id, v FROM t ORDER BY id")
            watcher = node.watch("rows")
            await watcher.has([])
            with connect(url) as writer:
                writer.execute("INSERT INTO t VALUES (1, 1)")
                await watcher.has([{"id": 1, "v": 1}])
                writer.execute("SET synchronous_commit = off")
                writer.execute("INSERT INTO t VALUES (2, 2)")
                own.stop("immediate")
            own.start()
            with connect(url) as writer:
                writer.execute("INSERT INTO t VALUES (3, 3)")
                rows = [{"id": id, "v": id} for (id,) in writer.execute("SELECT id FROM t ORDER BY id").fetchall()]
            await watcher.has(rows)


async def test_sqlalchemy_selects_are_watched_as_precisely(database: str, shop: Connection) -> None:
    import sqlalchemy as sa

    orders = sa.table("orders", sa.column("id", sa.Integer), sa.column("customer_id", sa.Integer), sa.column("status"))
    async with live(database) as node:

        async def of(ctx: Any, customer: int) -> Any:
            return await ctx.db.fetch(
                sa.select(orders.c.id, orders.c.status).where(orders.c.customer_id == customer, orders.c.id.in_([1, 2]))
            )

        node.registry.query(of)
        watcher = node.watch("of", customer=7)
        await watcher.has([{"id": 1, "status": "placed"}])
        runs = node.reactor.metrics.runs
        shop.execute("UPDATE orders SET status = 'paid' WHERE id = 2")
        await node.settled()
        assert node.reactor.metrics.runs == runs
        shop.execute("UPDATE orders SET status = 'paid' WHERE id = 1")
        await watcher.has([{"id": 1, "status": "paid"}])
