"""One query: subscribe to it, and ask it as of a past instant."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forge.app import Forge
from forge.changelog.maintenance import Maintainer, Policy
from forge.errors import HistoryUnavailable
from forge.postgres.connection import Connection
from tests.serve.serving import serving

REPORT = (
    "SELECT c.name, count(o.id) AS orders, sum(o.total) AS total FROM public.customer c"
    " LEFT JOIN orders o ON o.customer_id = c.id AND o.status <> 'void' GROUP BY c.name ORDER BY c.name"
)


@pytest.fixture
def app(database: str, connection: Connection) -> Forge:
    connection.execute(
        "CREATE TABLE customer (id int PRIMARY KEY, name text);"
        "CREATE TABLE orders (id int PRIMARY KEY, customer_id int, status text, total numeric(10, 2), seen timestamptz)"
    )
    connection.execute("SELECT public.forge_enable_reactivity('orders'), public.forge_enable_reactivity('customer')")
    connection.execute("CREATE VIEW v AS SELECT * FROM orders")
    connection.execute("SELECT forge.current_identity()")
    app = Forge(database)

    @app.query
    async def report(ctx: Any) -> Any:
        return await ctx.db.fetch(REPORT)

    @app.query
    async def one(ctx: Any, id: int) -> Any:
        name = await ctx.db.fetch_value("SELECT customer_id FROM orders WHERE id = %(id)s")
        return [name, await ctx.db.fetch_value("SELECT name FROM customer WHERE id = %(c)s", c=name)]

    @app.query
    async def through_a_view(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT * FROM v")

    @app.query
    async def clock(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT now() FROM orders")

    return app


def instant(database: str) -> datetime:
    """A recorded instant after all that is committed."""
    with Maintainer.open(database, Policy()) as keeper:
        keeper.record_instant()
    time.sleep(0.002)
    return datetime.now(UTC)


@pytest.mark.contract("X6")
async def test_a_query_is_answered_as_it_was(database: str, connection: Connection, app: Forge) -> None:
    connection.execute("INSERT INTO customer VALUES (1, 'ada'), (2, 'bob')")
    connection.execute("INSERT INTO orders VALUES (1, 1, 'new', 10.50), (2, 1, 'void', 3), (3, 2, 'new', 7)")
    instants = []
    for statement in (
        "UPDATE orders SET status = 'void' WHERE id = 1",
        "DELETE FROM customer WHERE id = 2",
        "INSERT INTO orders VALUES (9, 1, 'new', 100)",
        "UPDATE customer SET name = 'eve'",
    ):
        then = [
            dict(zip(("name", "orders", "total"), row, strict=True)) for row in connection.execute(REPORT).fetchall()
        ]
        instants.append((instant(database), then))
        connection.execute(statement.encode())
    for at, then in instants:
        assert await app.as_of(at).query("report") == then
    assert await app.as_of(instants[0][0]).query("one", id=3) == [2, "bob"]
    assert await app.as_of(instant(database)).query("one", id=3) == [2, None]


@pytest.mark.contract("X6")
async def test_a_query_as_of_now_needs_no_recorded_instant(connection: Connection, app: Forge) -> None:
    connection.execute("INSERT INTO customer VALUES (1, 'ada')")
    connection.execute("INSERT INTO orders VALUES (3, 1, 'new', 7)")
    now = app.as_of(None)
    assert await now.query("one", id=3) == [1, "ada"]
    assert now.gap is not None
    assert (now.gap.seconds, now.gap.changes, now.gap.unsure) == (0, 0, 0)


@pytest.mark.contract("X6")
async def test_all_tables_of_a_query_are_of_one_snapshot_whatever_is_written_meanwhile(
    database: str, connection: Connection, app: Forge
) -> None:
    @app.query
    async def twice(ctx: Any) -> Any:
        orders = await ctx.db.fetch("SELECT id FROM orders ORDER BY id")
        connection.execute("WITH o AS (INSERT INTO orders VALUES (2, 2)) INSERT INTO customer VALUES (2, 'bob')")
        instant(database)  # recorded before the instant asked for, which is in the future
        return [orders, await ctx.db.fetch("SELECT id FROM customer ORDER BY id")]

    connection.execute("INSERT INTO orders VALUES (1, 1)")
    connection.execute("INSERT INTO customer VALUES (1, 'ada')")
    for at in (None, datetime.now(UTC) + timedelta(hours=1)):
        assert await app.as_of(at).query("twice") == [[{"id": 1}], [{"id": 1}]]
        connection.execute("DELETE FROM orders WHERE id = 2")
        connection.execute("DELETE FROM customer WHERE id = 2")


@pytest.mark.contract("X6")
async def test_a_query_of_the_past_says_how_old_its_answer_is(
    database: str, connection: Connection, app: Forge
) -> None:
    connection.execute("INSERT INTO customer VALUES (1, 'ada')")
    instant(database)
    connection.execute("UPDATE customer SET name = 'eve'")
    connection.execute("INSERT INTO orders VALUES (1, 1, 'new', 1)")
    at = datetime.now(UTC)
    instant(database)
    then = app.as_of(at)
    assert await then.query("report") == [{"name": "ada", "orders": 0, "total": None}]
    assert then.gap is not None
    assert (then.gap.asked, then.gap.changes) == (at, 2)
    assert then.gap.seconds > 0
    async with serving(app) as served:
        answer = (await served.post(f"/forge/query/report?as_of={at.isoformat().replace('+', '%2B')}", {})).json()
        assert (answer["changes_between"], answer["gap_seconds"]) == (2, then.gap.seconds)
        now = (await served.post("/forge/query/report?as_of=now", {})).json()
        assert (now["result"][0]["orders"], now["gap_seconds"], now["as_of"]) == (1, 0, now["asked"])


@pytest.mark.contract("X6")
async def test_a_query_is_replayed(database: str, connection: Connection, app: Forge) -> None:
    connection.execute("INSERT INTO customer VALUES (1, 'ada')")
    since = instant(database)
    for status in ("new", "paid", "sent"):
        connection.execute(
            "INSERT INTO orders VALUES (1, 1, %s, 1) ON CONFLICT (id) DO UPDATE SET status = excluded.status", (status,)
        )
        connection.execute("UPDATE customer SET name = %s", (status,))
        until = instant(database)
    seen = [value async for _, value in app.replay("one", since, until, id=1)]
    assert seen == [[None, None], [1, "new"], [1, "paid"], [1, "sent"]]


async def test_what_has_no_past_is_refused(database: str, connection: Connection, app: Forge) -> None:
    connection.execute("INSERT INTO orders VALUES (1, 1, 'new', 10.50)")
    at = instant(database)
    connection.execute("UPDATE orders SET status = 'old'")
    for name in ("through_a_view", "clock"):
        with pytest.raises(HistoryUnavailable):
            await app.as_of(at).query(name)
    connection.execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    with pytest.raises(HistoryUnavailable, match="row-level security"):
        await app.as_of(instant(database)).query("report")
    with pytest.raises(HistoryUnavailable):
        await app.as_of(datetime(2000, 1, 1, tzinfo=UTC)).query("report")
