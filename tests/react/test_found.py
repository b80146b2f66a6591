"""What the oracle of live queries found, or its writing brought to light, each in its smallest form.

A test that is marked as failing says what must be and is not yet.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from forge.errors import ForgeError
from forge.postgres.connection import Connection, connect
from forge.react.group import Settings
from forge.react.push import Push
from forge.react.reactor import Reactor
from forge.react.registry import ANYONE, Auth, Registry
from forge.react.runner import Runner
from forge.serve.node import Node, Options

SETTINGS = Settings(quiet=0.01, longest=0.05, check=1e9, resync=1e9)
READER = Auth(user="ada", role="forge_found_reader")
TABLES = f"""
    DO $$ BEGIN CREATE ROLE {READER.role}; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
    CREATE TABLE orders (id int PRIMARY KEY, customer int, status text);
    CREATE TABLE banned (customer int PRIMARY KEY);
    CREATE VIEW open_orders AS SELECT id, customer FROM orders WHERE status = 'open';
    CREATE FUNCTION open_count() RETURNS bigint LANGUAGE sql STABLE
        BEGIN ATOMIC SELECT count(*) FROM orders WHERE status = 'open'; END;
    GRANT SELECT ON ALL TABLES IN SCHEMA public TO {READER.role};
    SELECT forge_enable_reactivity('orders'), forge_enable_reactivity('banned');
    INSERT INTO orders VALUES (1, 1, 'open'), (2, 2, 'done');
"""


class Held:
    """Keeps the last result."""

    session: Hashable = 1

    def __init__(self) -> None:
        self.rows: tuple[bytes, ...] | None = None
        self.error: ForgeError | None = None
        self.told = asyncio.Event()

    def push(self, push: Push, /) -> None:
        self.rows, self.error = push.result.rows, None
        self.told.set()

    def fail(self, error: ForgeError, /) -> None:
        self.error = error
        self.told.set()

    async def becomes(self, rows: tuple[bytes, ...], timeout: float = 4) -> None:
        try:
            async with asyncio.timeout(timeout):
                while self.rows != rows or self.error is not None:
                    self.told.clear()
                    await self.told.wait()
        except TimeoutError:
            assert (self.rows, self.error) == (rows, None)


@asynccontextmanager
async def subscribed(url: str, sql: str, auth: Auth = ANYONE) -> AsyncIterator[tuple[Reactor, Held]]:
    async def asked(ctx: Any) -> Any:
        return await ctx.db.fetch(sql)

    registry = Registry()
    registry.query(asked)
    node = Node(registry, Reactor(Runner(url), url, SETTINGS), Options())
    await node.start()
    try:
        held = Held()
        node.reactor.subscribe(registry.call("asked", {}, auth), held)
        yield node.reactor, held
    finally:
        await node.stop()


DDL = {
    "enable row-level security": (
        "SELECT id FROM orders ORDER BY id",
        ["ALTER TABLE orders ENABLE ROW LEVEL SECURITY"],
        (),
    ),
    "create a policy": (
        "SELECT id FROM orders ORDER BY id",
        [
            "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY few ON orders FOR SELECT USING (customer = 2)",
        ],
        (b'{"id":2}',),
    ),
    "replace a view": (
        "SELECT id FROM open_orders ORDER BY id",
        ["CREATE OR REPLACE VIEW open_orders AS SELECT id, customer FROM orders"],
        (b'{"id":1}', b'{"id":2}'),
    ),
    "replace a function": (
        "SELECT open_count() AS n",
        [
            "CREATE OR REPLACE FUNCTION open_count() RETURNS bigint LANGUAGE sql STABLE"
            " BEGIN ATOMIC SELECT count(*) FROM orders; END"
        ],
        (b'{"n":2}',),
    ),
    "let a view be another": (
        "SELECT id FROM open_orders ORDER BY id",
        [
            "BEGIN; DROP VIEW open_orders;"
            "CREATE VIEW open_orders AS SELECT id, customer FROM orders WHERE status = 'done';"
            f"GRANT SELECT ON open_orders TO {READER.role}; COMMIT"
        ],
        (b'{"id":2}',),
    ),
}


@pytest.mark.parametrize("name", DDL)
async def test_a_definition_that_a_query_depends_on_changes(database: str, connection: Connection, name: str) -> None:
    sql, ddl, expected = DDL[name]
    connection.execute(TABLES)
    async with subscribed(database, sql, READER) as (_, held):
        async with asyncio.timeout(10):
            await held.told.wait()
        for statement in ddl:
            connection.execute(statement)
        await held.becomes(expected)


async def test_what_is_written_after_a_view_was_replaced(database: str, connection: Connection) -> None:
    """The query reads another table from now on, and the index does not know."""
    connection.execute(TABLES)
    async with subscribed(database, "SELECT id FROM open_orders ORDER BY id") as (_, held):
        await held.becomes((b'{"id":1}',))
        connection.execute("CREATE OR REPLACE VIEW open_orders AS SELECT customer AS id, customer FROM banned")
        connection.execute("INSERT INTO banned VALUES (7)")
        await held.becomes((b'{"id":7}',))


async def test_a_view_is_replaced_while_a_node_does_not_hear(database: str, connection: Connection) -> None:
    """A NOTIFY is lost to a node whose listening connection is down, and nothing tells it that it missed one."""
    connection.execute(TABLES)
    async with subscribed(database, "SELECT id FROM open_orders ORDER BY id") as (_, held):
        await held.becomes((b'{"id":1}',))
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        connection.execute("CREATE OR REPLACE VIEW open_orders AS SELECT id, customer FROM orders")
        await held.becomes((b'{"id":1}', b'{"id":2}'), timeout=15)


async def once_read(reactor: Reactor, connection: Connection, statement: str) -> None:
    """Write, and wait until the reactor has read it from the log."""
    read = asyncio.Event()
    reactor.on_batch.append(lambda batch: read.set())
    connection.execute(statement)
    async with asyncio.timeout(10):
        await read.wait()
    reactor.on_batch.clear()


async def test_somebody_comes_back_after_a_change(database: str, connection: Connection) -> None:
    """A group that nobody subscribes to is not run; whoever comes while it is kept gets its old result, for good."""
    connection.execute(TABLES)
    async with subscribed(database, "SELECT id FROM orders ORDER BY id") as (reactor, first):
        await first.becomes((b'{"id":1}', b'{"id":2}'))
        (group,) = reactor.groups.values()
        reactor.unsubscribe(group, first)
        await once_read(reactor, connection, "DELETE FROM orders WHERE id = 1")
        await asyncio.sleep(10 * SETTINGS.longest)  # it would have run by now
        again = Held()
        reactor.subscribe(group.call, again)
        await again.becomes((b'{"id":2}',))


class Gated(Runner):
    """Waits between a shared snapshot and the runs on it, as a busy event loop does."""

    gate: asyncio.Event | None = None
    reached_gate: asyncio.Event | None = None

    @asynccontextmanager
    async def shared_snapshot(self) -> AsyncIterator[str]:
        async with super().shared_snapshot() as snapshot:
            if self.gate is not None and self.reached_gate is not None:
                self.reached_gate.set()
                await self.gate.wait()
            yield snapshot


async def test_a_change_between_a_shared_snapshot_and_the_runs_on_it(database: str, connection: Connection) -> None:
    """`Group.begin` forgets what touched the group after the snapshot was taken, and the snapshot does not show it."""
    connection.execute(TABLES)

    async def some(ctx: Any, which: int) -> Any:
        return await ctx.db.fetch("SELECT id, status FROM orders WHERE customer = %(which)s")

    registry = Registry()
    registry.query(some)
    runner = Gated(database)
    reactor = Reactor(runner, database, SETTINGS)
    await reactor.start()
    try:
        held = [Held(), Held()]
        for number, each in enumerate(held):
            reactor.subscribe(registry.call("some", {"which": number + 1}, ANYONE), each)
        await held[0].becomes((b'{"id":1,"status":"open"}',))
        await held[1].becomes((b'{"id":2,"status":"done"}',))
        runner.gate, runner.reached_gate = asyncio.Event(), asyncio.Event()
        connection.execute("UPDATE orders SET status = 'a'")
        async with asyncio.timeout(10):
            await runner.reached_gate.wait()
        await once_read(reactor, connection, "UPDATE orders SET status = 'b'")
        runner.gate.set()
        await held[0].becomes((b'{"id":1,"status":"b"}',))
        await held[1].becomes((b'{"id":2,"status":"b"}',))
    finally:
        await reactor.stop()


async def test_a_statement_that_failed_is_mended_by_a_change_of_what_it_alone_reads(
    database: str, connection: Connection
) -> None:
    """What a failed run read is forgotten: here `banned`, which no run before had read."""
    connection.execute(TABLES)

    async def two(ctx: Any) -> Any:
        found = await ctx.db.fetch("SELECT id FROM orders WHERE status = 'new'")
        return await ctx.db.fetch("SELECT 10 / customer AS n FROM banned") if found else []

    registry = Registry()
    registry.query(two)
    reactor = Reactor(Runner(database), database, SETTINGS)
    await reactor.start()
    try:
        held = Held()
        reactor.subscribe(registry.call("two", {}, ANYONE), held)
        await held.becomes(())
        connection.execute("INSERT INTO banned VALUES (0)")
        held.told.clear()
        connection.execute("INSERT INTO orders VALUES (3, 3, 'new')")
        async with asyncio.timeout(10):
            await held.told.wait()
        assert held.error is not None
        connection.execute("UPDATE banned SET customer = 5")
        await held.becomes((b'{"n":2}',))
    finally:
        await reactor.stop()


async def test_a_query_that_a_deadlock_ended(database: str, connection: Connection) -> None:
    """The server says "again"; a mutation is tried again, a query is not."""
    connection.execute(TABLES)

    def waits(pid: int) -> bool:
        with connect(database) as other:
            found = other.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (pid,)).fetchone()
        return bool(found and found[0])

    between, go_on = asyncio.Event(), asyncio.Event()
    go_on.set()

    async def two(ctx: Any) -> Any:
        orders = await ctx.db.fetch("SELECT id FROM orders ORDER BY id")
        between.set()
        await go_on.wait()
        return orders + await ctx.db.fetch("SELECT customer AS id FROM banned")

    registry = Registry()
    registry.query(two)
    reactor = Reactor(Runner(database), database, SETTINGS)
    await reactor.start()
    try:
        held = Held()
        reactor.subscribe(registry.call("two", {}, ANYONE), held)
        await held.becomes((b'{"id":1}', b'{"id":2}'))
        between.clear()
        go_on.clear()
        connection.execute("DELETE FROM orders WHERE id = 1")
        async with asyncio.timeout(10):
            await between.wait()
        connection.execute("SET deadlock_timeout = '1h'; BEGIN; LOCK TABLE banned")
        locking = asyncio.create_task(asyncio.to_thread(connection.execute, "LOCK TABLE orders"))
        async with asyncio.timeout(10):
            while not waits(connection.info.backend_pid):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            go_on.set()
        await locking
        connection.execute("ROLLBACK")
        await held.becomes((b'{"id":2}',), timeout=8)
    finally:
        await reactor.stop()


async def test_a_prepared_statement_whose_result_has_another_type(database: str, connection: Connection) -> None:
    """psycopg prepares a statement at its sixth run; after ALTER TYPE the server refuses the cached plan."""
    connection.execute(TABLES)
    connection.execute("DROP VIEW open_orders")

    async def some(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT customer FROM orders WHERE id = 1")

    registry = Registry()
    registry.query(some)
    reactor = Reactor(Runner(database, connections=1), database, SETTINGS)
    await reactor.start()
    try:
        held = Held()
        reactor.subscribe(registry.call("some", {}, ANYONE), held)
        for number in range(10, 18):
            connection.execute("UPDATE orders SET customer = %s WHERE id = 1", (number,))
            await held.becomes((b'{"customer":%d}' % number,))
        connection.execute("ALTER TABLE orders ALTER COLUMN customer TYPE text USING 'c' || customer")
        await held.becomes((b'{"customer":"c17"}',))
    finally:
        await reactor.stop()


async def test_a_parameter_of_another_type_chooses_another_function(database: str, connection: Connection) -> None:
    """What a statement reads is remembered by its text alone."""
    connection.execute(TABLES)
    connection.execute(
        "CREATE FUNCTION counted(which int) RETURNS bigint LANGUAGE sql STABLE"
        " BEGIN ATOMIC SELECT count(*) FROM orders; END;"
        "CREATE FUNCTION counted(which boolean) RETURNS bigint LANGUAGE sql STABLE"
        " BEGIN ATOMIC SELECT count(*) FROM banned; END"
    )

    async def some(ctx: Any, which: int | bool) -> Any:
        return await ctx.db.fetch("SELECT counted(%(which)s) AS n")

    registry = Registry()
    registry.query(some)
    reactor = Reactor(Runner(database), database, SETTINGS)
    await reactor.start()
    try:
        numbers, truths = Held(), Held()
        reactor.subscribe(registry.call("some", {"which": 100_000}, ANYONE), numbers)
        await numbers.becomes((b'{"n":2}',))
        reactor.subscribe(registry.call("some", {"which": True}, ANYONE), truths)
        await truths.becomes((b'{"n":0}',))
        connection.execute("INSERT INTO banned VALUES (1)")
        await truths.becomes((b'{"n":1}',))
    finally:
        await reactor.stop()


async def test_a_role_whose_own_schema_hides_a_table(database: str, connection: Connection) -> None:
    """`$user` in the search path is the role that reads, but the query is analysed as the role that connects."""
    connection.execute(TABLES)
    connection.execute(
        f"CREATE SCHEMA {READER.role} AUTHORIZATION {READER.role};"
        f"CREATE TABLE {READER.role}.orders (id int PRIMARY KEY);"
        f"GRANT SELECT ON {READER.role}.orders TO {READER.role};"
        f"SELECT forge_enable_reactivity('{READER.role}.orders')"
    )
    async with subscribed(database, "SELECT id FROM orders", READER) as (_, held):
        await held.becomes(())
        connection.execute(f"INSERT INTO {READER.role}.orders VALUES (9)")
        await held.becomes((b'{"id":9}',))


async def test_a_row_moves_out_of_the_partition_that_is_read(database: str, connection: Connection) -> None:
    """Of a table without a key the log has an update of the partition key alone, which the query does not read."""
    connection.execute(
        "CREATE TABLE parts (n int, t text) PARTITION BY RANGE (n);"
        "CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (10) TO (20);"
        "SELECT forge_enable_reactivity('parts');"
        "INSERT INTO parts VALUES (1, 'a')"
    )
    async with subscribed(database, "SELECT t FROM parts_0") as (_, held):
        await held.becomes((b'{"t":"a"}',))
        connection.execute("UPDATE parts SET n = 11")
        await held.becomes(())
