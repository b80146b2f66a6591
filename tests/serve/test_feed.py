"""The raw feed: each change once, from any cursor on; a tenant's rows to that tenant; a stalled client harms nobody."""

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import jwt
import psycopg
import pytest

from forge.change import Change, Op
from forge.changelog.reader import Reader
from forge.cursor import Cursor
from forge.postgres.connection import Connection, connect
from forge.react.group import Settings
from forge.react.reactor import Reactor
from forge.react.registry import Registry
from forge.react.runner import Runner
from forge.serve import feed, feed_hub
from forge.serve.auth import AuthSettings
from forge.serve.limits import Limits
from forge.serve.node import Node, Options
from forge.tracking.context import transaction
from forge.wire import decode
from tests.changelog.following import add, eventually, keys, orders, track, trim_all

SECRET = "0123456789abcdef0123456789abcdef"
MARKER = "classified"


class Sent(NamedTuple):
    """An event as a client reads it."""

    event: str
    id: str | None
    data: str


class Client:
    """A client of the feed; `stall` makes it stop reading."""

    def __init__(
        self, node: Node, *, token: str | None = None, after: str | None = None, **query: str | list[str]
    ) -> None:
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        if after is not None:
            headers.append((b"last-event-id", after.encode()))
        self._scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": "/forge/changes",
            "query_string": urlencode(query, doseq=True).encode(),
            "headers": headers,
            "client": ("192.0.2.7", 4711),
        }
        self._node = node
        self._reading = asyncio.Event()
        self._reading.set()
        self._left = asyncio.Event()
        self.status = 0
        self.body = bytearray()
        self.ended = False

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(feed.changes(self._node, self._scope, self._receive, self._send))
        await eventually(lambda: bool(self.status) or self.task.done())
        if not self.status:
            self.task.result()
        if self.status == 200:
            await eventually(lambda: b"id: " in self.body)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left.set()
        self._reading.set()
        await asyncio.wait_for(self.task, 20)

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self._reading.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")
            self.ended = not message.get("more_body", False)
        await asyncio.sleep(0)

    def stall(self) -> None:
        self._reading.clear()

    def read_on(self) -> None:
        self._reading.set()

    def cut(self, size: int) -> None:
        """Leave, having got so many bytes only."""
        del self.body[size:]

    @property
    def blocks(self) -> list[Sent]:
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and line[0] != ":")
            found.append(Sent(lines.get("event", ""), lines.get("id"), lines.get("data", "")))
        return found

    @property
    def last_id(self) -> str | None:
        return next((block.id for block in reversed(self.blocks) if block.id), None)

    @property
    def changes(self) -> list[Change]:
        return [decode(block.data) for block in self.blocks if block.event == "change"]

    def named(self, event: str) -> list[Any]:
        return [json.loads(block.data) for block in self.blocks if block.event == event]

    async def got(self, count: int) -> list[Change]:
        await eventually(lambda: self.body.count(b"event: change\n") >= count or self.task.done())
        if self.task.done():
            self.task.result()
        return self.changes


@contextlib.asynccontextmanager
async def serving(url: str, **options: Any) -> AsyncIterator[Node]:
    limits = Limits(sessions_per_user=100, sessions_per_ip=100)
    reactor = Reactor(Runner(url), url, Settings())
    node = Node(Registry(), reactor, Options(limits=limits, **options))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def insert(connection: Connection, first: int, number: int, note: str) -> None:
    """That many orders in one transaction."""
    statement = "INSERT INTO orders SELECT %s::int + n, %s FROM generate_series(0, %s::int) n"
    connection.execute(statement, (first, note, number - 1))


def token(tenant: str | None, user: str = "ada", **more: Any) -> str:
    claims = {"sub": user, **({"tenant": tenant} if tenant else {}), **more}
    return jwt.encode(claims, SECRET, "HS256")


def secured(**more: Any) -> dict[str, Any]:
    return {"auth": AuthSettings(algorithms=("HS256",), secret=SECRET), "tenant_column": "tenant", **more}


async def now(url: str) -> str:
    async with Reader.open(url) as reader:
        return str(await reader.now())


async def logged(url: str, after: str) -> list[Change]:
    """All that the log has after a cursor."""
    async with Reader.open(url) as reader:
        cursor = Cursor.parse(after)
        found = [change async for batch in reader.read(cursor) for change in batch.changes]
        if cursor.until is not None:
            cursor = Cursor(cursor.log, cursor.until)
            found += [change async for batch in reader.read(cursor) for change in batch.changes]
        return found


def ids(changes: list[Change]) -> list[str]:
    return [change.id for change in changes]


@pytest.mark.contract("W8")
async def test_every_change_comes_with_a_cursor_from_which_exactly_the_rest_comes(
    database: str, connection: Connection
) -> None:
    orders(connection)
    begin = await now(database)
    async with serving(database) as node:
        async with Client(node) as live:
            with transaction(connection, user_id=7):
                add(connection, 1, 2, 3)
            connection.execute("UPDATE orders SET note = E'two\\nlines' WHERE id = 2")
            connection.execute("DELETE FROM orders WHERE id = 1")
            expected = await live.got(5)
        assert expected == await logged(database, begin)
        events = [block for block in live.blocks if block.event == "change"]
        for place, event in enumerate(events):
            async with Client(node, after=event.id) as again:
                add(connection, 100 + place)
                assert keys(await again.got(5))[-1] == 100 + place
                assert ids(again.changes)[: 4 - place] == ids(expected)[place + 1 :]
                assert ids(again.changes) == ids(await logged(database, str(event.id)))
        async with Client(node, **{"from": begin}) as whole, Client(node, **{"from": "start"}) as start:
            assert ids(await whole.got(10)) == ids(await logged(database, begin))
            await eventually(lambda: ids(start.changes)[-10:] == ids(whole.changes))


@pytest.mark.contract("W9")
async def test_filters_by_table_and_operation(database: str, connection: Connection) -> None:
    orders(connection)
    connection.execute("CREATE TABLE items (id integer PRIMARY KEY)")
    track(connection, "items")
    begin = await now(database)
    async with serving(database) as node:
        wanted: dict[str, Any] = {"table": ["public.items", "orders"], "op": ["DELETE", "truncate"]}
        async with Client(node, **wanted) as live, Client(node, table="items") as items:
            add(connection, 1)
            connection.execute("INSERT INTO items VALUES (1)")
            connection.execute("DELETE FROM orders")
            connection.execute("TRUNCATE items")
            found = [(change.table, change.op) for change in await live.got(2)]
            assert found == [("orders", Op.DELETE), ("items", Op.TRUNCATE)]
            assert [change.op for change in await items.got(2)] == [Op.INSERT, Op.TRUNCATE]
        async with Client(node, **{"from": begin, **wanted}) as past:
            assert [(change.table, change.op) for change in await past.got(2)] == found


class Writers:
    """Threads that write orders in transactions that overlap, some of which roll back."""

    def __init__(self, url: str, number: int, transactions: int) -> None:
        self._url = url
        self._transactions = transactions
        self._threads = [threading.Thread(target=self._write, args=(writer,)) for writer in range(number)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _write(self, writer: int) -> None:
        chance = random.Random(writer)
        with connect(self._url) as connection:
            for number in range(self._transactions):
                with contextlib.suppress(psycopg.errors.UniqueViolation), connection.transaction():
                    first = (writer * self._transactions + number) * 10
                    for id in range(first, first + chance.randint(1, 5)):
                        connection.execute("INSERT INTO orders VALUES (%s, 'new')", (id,))
                        connection.execute("UPDATE orders SET note = 'next' WHERE id = %s", (id,))
                    time.sleep(chance.choice((0, 0, 0.002, 0.02)))
                    if chance.random() < 0.1:
                        raise psycopg.Rollback


@pytest.mark.contract("W8")
@pytest.mark.parametrize("backpressure", ["drop", "pause"])
async def test_resuming_under_concurrent_writers_loses_and_doubles_nothing(
    database: str, connection: Connection, backpressure: str
) -> None:
    orders(connection)
    chance = random.Random(3)
    async with serving(database) as node:
        begin = await now(database)
        async with Client(node, **{"from": begin, "backpressure": "pause"}) as steady:
            got: list[Change] = []
            cursor, visits = begin, 0
            with Writers(database, 6, 60) as writers:
                while writers.running:
                    async with Client(node, after=cursor, backpressure=backpressure) as client:
                        await asyncio.sleep(chance.uniform(0, 0.1))
                        client.cut(chance.randint(len(client.body) // 2, len(client.body)))
                        client.stall()
                        if b"event: gap" in client.body:  # a busy machine: what was dropped is had from there
                            client.cut(client.body.index(b"event: gap"))
                        part, last = client.changes, client.last_id
                        got += part
                        cursor = last or cursor
                        visits += 1
                await asyncio.to_thread(writers.__exit__)
            expected = await logged(database, begin)
            async with Client(node, after=cursor, backpressure="pause") as client:
                got += await client.got(len(expected) - len(got))
            assert visits > 2
            assert len(expected) > 500
            assert sorted(ids(got)) == sorted(ids(expected))
            assert [change.op for change in got if change.key == got[0].key] == [Op.INSERT, Op.UPDATE]
            for found in (got, await steady.got(len(expected))):
                assert len(found) == len(expected)
                inserted = set()
                for change in found:
                    assert change.key is not None
                    if change.op is Op.INSERT:
                        inserted.add(change.key["id"])
                    assert change.key["id"] in inserted


async def test_a_transaction_of_several_pages_can_be_left_and_resumed_anywhere(
    database: str, connection: Connection
) -> None:
    orders(connection)
    async with serving(database) as node, Client(node, backpressure="pause") as live:
        begin = await now(database)
        connection.execute("INSERT INTO orders SELECT n, repeat('x', 900) FROM generate_series(1, 3500) n")
        expected = ids(await live.got(3500))
        assert expected == ids(await logged(database, begin))
        events = [block for block in live.blocks if block.event == "change"]
        for added, place in enumerate((0, 998, 999, 1000, 2500, 3499), 1):
            async with Client(node, after=events[place].id) as again:
                add(connection, 10_000 + place)
                found = await again.got(3499 - place + added)
                assert ids(found)[: 3499 - place] == expected[place + 1 :]
                assert keys(found)[-1] == 10_000 + place
                assert len(found) == 3499 - place + added


# Who may see what


def tenants(connection: Connection) -> None:
    connection.execute("CREATE TABLE docs (id integer PRIMARY KEY, tenant text, body text)")
    connection.execute("CREATE TABLE shared (id integer PRIMARY KEY, body text)")
    connection.execute("CREATE TABLE masked (id integer PRIMARY KEY, tenant text, body text)")
    for table in ("docs", "shared"):
        track(connection, table)
    connection.execute("SELECT forge_enable_reactivity('masked', exclude => ARRAY['tenant'])")


def a_day_of_acme(connection: Connection) -> None:
    """Whatever can happen to rows of acme; every value of theirs has the marker."""
    with transaction(connection, user_id=f"{MARKER}-user", function_name=f"{MARKER}_f", trace_id=f"{MARKER}-trace"):
        connection.execute(f"INSERT INTO docs SELECT n, 'acme', '{MARKER} ' || n FROM generate_series(1, 9) n")
        connection.execute(f"INSERT INTO shared VALUES (1, '{MARKER}')")
        connection.execute(f"INSERT INTO masked VALUES (1, 'acme', '{MARKER}'), (2, 'evil', '{MARKER}')")
        connection.execute(f"INSERT INTO docs VALUES (90, NULL, '{MARKER}'), (91, 'None', '{MARKER}')")
        connection.execute(f"UPDATE docs SET body = '{MARKER} again' WHERE id < 5")
        connection.execute("DELETE FROM docs WHERE id = 4")
        # evil's row goes to acme and gets a secret, acme's goes to evil and loses its own
        connection.execute(f"UPDATE docs SET tenant = 'acme', body = '{MARKER}' WHERE id = 100")
        connection.execute("UPDATE docs SET tenant = 'evil', body = 'given' WHERE id = 5")
        connection.execute("UPDATE docs SET id = 106, tenant = 'evil', body = 'moved' WHERE id = 6")
        connection.execute(f"UPDATE docs SET id = 201, tenant = 'acme', body = '{MARKER}' WHERE id = 101")


@pytest.mark.contract("W11")
async def test_no_byte_of_a_tenants_rows_reaches_another(database: str, connection: Connection) -> None:
    tenants(connection)
    async with serving(database, **secured()) as node:
        begin = await now(database)
        everything: dict[str, Any] = {"table": ["docs", "public.docs", "shared", "masked"], "backpressure": "pause"}
        async with (
            Client(node, token=token("evil")) as live,
            Client(node, token=token("evil"), **everything) as greedy,
            Client(node, token=token("acme")) as owner,
        ):
            connection.execute("INSERT INTO docs VALUES (100, 'evil', 'mine'), (101, 'evil', 'mine')")
            a_day_of_acme(connection)
            with transaction(connection, user_id=f"{MARKER}-user"):
                connection.execute("TRUNCATE docs")
            connection.execute("INSERT INTO docs VALUES (300, 'evil', 'end')")
            connection.execute("INSERT INTO docs VALUES (301, 'acme', 'end')")
            seen = [
                (Op.INSERT, 100, "mine"),
                (Op.INSERT, 101, "mine"),
                (Op.DELETE, 100, "mine"),
                (Op.INSERT, 5, "given"),
                (Op.INSERT, 106, "moved"),
                (Op.DELETE, 101, "mine"),
                (Op.TRUNCATE, None, None),
                (Op.INSERT, 300, "end"),
            ]
            await live.got(len(seen))
            await greedy.got(len(seen))
            async with (
                Client(node, token=token("evil"), after=begin) as past,
                Client(node, token=token("evil"), after=begin, **everything) as greedy_past,
                Client(node, token=token("evil"), **{"from": "start"}) as start,
            ):
                for client in (live, greedy, past, greedy_past, start):
                    await client.got(len(seen))
                    found = [
                        (change.op, (change.key or {}).get("id"), (change.after or change.before or {}).get("body"))
                        for change in client.changes
                        if change.op is not Op.SCHEMA
                    ]
                    assert found == seen
                    assert MARKER.encode() not in client.body
                    assert b"acme" not in client.body
                    assert {change.table for change in client.changes} <= {"docs"}
            mine = await owner.got(9 + 4 + 1 + 1 + 1 + 1 + 1 + 1 + 1)
            assert [change.key["id"] for change in mine if change.op is Op.DELETE and change.key] == [4, 5, 6]
            moved = next(change for change in mine if change.op is Op.DELETE and change.key == {"id": 5})
            assert moved.before is not None
            assert MARKER in moved.before["body"]
            assert b"given" not in owner.body
            assert moved.context.user_id is None
            with transaction(connection, user_id="ada"):
                connection.execute("INSERT INTO docs VALUES (400, 'acme', 'signed')")
                connection.execute("UPDATE docs SET body = 'signed again' WHERE id = 400")
            await eventually(lambda: keys(owner.changes)[-2:] == [400, 400])
            assert [change.context.user_id for change in owner.changes[-2:]] == ["ada", "ada"]


async def test_operations_are_those_that_the_tenant_sees(database: str, connection: Connection) -> None:
    tenants(connection)
    async with serving(database, **secured()) as node, Client(node, token=token("acme"), op="delete") as acme:
        connection.execute("INSERT INTO docs VALUES (1, 'acme', 'x'), (2, 'evil', 'x')")
        connection.execute("UPDATE docs SET tenant = 'evil' WHERE id = 1")
        connection.execute("UPDATE docs SET tenant = 'acme' WHERE id = 2")
        connection.execute("DELETE FROM docs WHERE id = 2")
        assert keys(await acme.got(2)) == [1, 2]
        assert all(change.op is Op.DELETE and change.after is None for change in acme.changes)


@pytest.mark.parametrize(
    ("query", "credentials", "options", "status", "code"),
    [
        ({"from": "garbage"}, None, {}, 400, "cursor_invalid"),
        ({"op": "explode"}, None, {}, 400, "bad_arguments"),
        ({"backpressure": "pray"}, None, {}, 400, "bad_arguments"),
        ({"table": ""}, None, {}, 400, "bad_arguments"),
        ({"from": "forge1_6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11_1_1_5:9:"}, None, {}, 410, "cursor_foreign"),
        ({}, None, secured(), 401, "auth_failed"),
        ({}, token("acme"), secured(tenant_column=None), 403, "forbidden"),
        ({}, token(None), secured(), 403, "forbidden"),
    ],
)
async def test_what_cannot_be_answered_is_refused_before_it_starts(
    database: str, query: Any, credentials: str | None, options: dict[str, Any], status: int, code: str
) -> None:
    async with serving(database, **options) as node:
        async with Client(node, token=credentials, **query) as client:
            await eventually(lambda: client.ended)
            assert client.status == status
            error = json.loads(client.body)["error"]
            assert error["code"] == code
            assert error["fix"]
        assert node.sessions == {}
        assert node.reactor.on_batch == []


async def test_an_expired_cursor_is_gone(database: str, connection: Connection) -> None:
    orders(connection)
    begin = await now(database)
    add(connection, 1)
    await trim_all(database, connection)
    async with serving(database) as node, Client(node, after=begin) as client:
        await eventually(lambda: client.ended)
        assert client.status == 410
        assert json.loads(client.body)["error"]["code"] == "cursor_expired"


@pytest.mark.contract("X4", "W11")
async def test_a_session_ends_when_it_is_revoked_and_a_new_token_shows_its_own_tenant(
    database: str, connection: Connection
) -> None:
    tenants(connection)
    async with serving(database, **secured()) as node, Client(node, token=token("acme", iat=1)) as client:
        connection.execute("INSERT INTO docs VALUES (1, 'acme', 'first')")
        await client.got(1)
        session = next(iter(node.sessions.values()))
        client.stall()
        connection.execute("INSERT INTO docs SELECT n, 'acme', 'stalled' FROM generate_series(10, 20) n")
        session.identity = await node.identify(token("evil", iat=2))
        connection.execute("INSERT INTO docs VALUES (2, 'evil', 'second'), (3, 'acme', 'third')")
        client.read_on()
        await eventually(lambda: any(change.key == {"id": 2} for change in client.changes))
        late = [change for change in client.changes if change.after and change.after["tenant"] == "acme"]
        assert [change.key for change in late if change.key == {"id": 3}] == []
        node.revoke(user="ada", at=2.0)
        connection.execute("INSERT INTO docs VALUES (4, 'evil', 'too late')")
        await eventually(lambda: client.ended)
        assert client.named("auth")[-1] == {"reason": "revoked"}
        assert b"too late" not in client.body


# Slow clients


@pytest.mark.contract("W10")
async def test_a_stalled_client_loses_the_oldest_and_is_told_where_to_find_them(
    database: str, connection: Connection
) -> None:
    orders(connection)
    async with serving(database) as node, Client(node) as stalled, Client(node, backpressure="pause") as other:
        begin = await now(database)
        stalled.stall()
        for first in range(0, 1000, 100):
            insert(connection, first, 100, "x")
            await other.got(first + 100)
        assert keys(other.changes) == list(range(1000))
        stalled.read_on()
        await eventually(lambda: keys(stalled.changes)[-1:] == [999])
        gaps = stalled.named("gap")
        got = keys(stalled.changes)
        assert len(got) + sum(gap["dropped"] for gap in gaps) == 1000
        assert got[-256:] == list(range(744, 1000))
        assert len(got) <= 2 * 256 + 100
        async with Client(node, after=gaps[0]["cursor"]) as again:
            missing = keys(await again.got(1000 - got.index(744)))
            assert [*got[: got.index(744)], *missing] == list(range(1000))
        assert ids(await logged(database, begin)) == ids(other.changes)


async def test_a_client_that_reads_loses_nothing_of_a_large_transaction(database: str, connection: Connection) -> None:
    orders(connection)
    async with serving(database) as node, Client(node) as live:
        insert(connection, 1, 900, "x" * 2000)
        assert keys(await live.got(900)) == list(range(1, 901))
        assert live.named("gap") == []


@pytest.mark.contract("W10")
async def test_a_paused_client_is_given_all_of_it_later_and_costs_a_megabyte(
    database: str, connection: Connection
) -> None:
    orders(connection)
    async with serving(database) as node, Client(node, backpressure="pause") as stalled, Client(node) as other:
        stalled.stall()
        begin = await now(database)
        held = 0
        for first in range(0, 400, 20):
            insert(connection, first, 20, "x" * 20_000)
            await other.got(first + 20)
            hub = next(iter(feed_hub.HUBS.values()))
            held = max(held, *(client._size for client in hub.clients))
        assert len(next(iter(feed_hub.HUBS.values())).clients) == 1
        assert held < feed.MOST_BYTES + 50_000
        stalled.read_on()
        assert keys(await stalled.got(400)) == list(range(400))
        add(connection, 1000)
        assert ids(await stalled.got(401)) == ids(await logged(database, begin))
        assert stalled.named("gap") == []


@pytest.mark.contract("W10")
async def test_clients_that_stall_in_the_past_keep_no_reader_from_others(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "PATIENCE", 0.3)
    orders(connection)
    begin = await now(database)
    connection.execute("INSERT INTO orders SELECT n, repeat('x', 2000) FROM generate_series(1, 3000) n")
    async with serving(database) as node, contextlib.AsyncExitStack() as stack:
        stalled = [Client(node, after=begin) for _ in range(feed_hub.MOST_READERS + 2)]

        async def stall(client: Client) -> None:
            await stack.enter_async_context(client)
            client.stall()

        for client in stalled:
            await stall(client)
        async with Client(node, after=begin) as reader:
            assert len(await reader.got(3000)) == 3000
        add(connection, 5000)
        for client in stalled:
            client.read_on()
        for client in stalled:
            assert keys(await client.got(3001)) == [*range(1, 3001), 5000]


# What goes wrong


async def test_lost_connections_and_what_the_reactor_left_out_lose_nothing(
    database: str, connection: Connection
) -> None:
    orders(connection)
    begin = await now(database)
    async with serving(database) as node, Client(node) as live:
        add(connection, 1)
        await live.got(1)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        add(connection, 2, 3)
        await live.got(3)
        hub = next(iter(feed_hub.HUBS.values()))
        node.reactor.on_batch.remove(hub._take)
        seen: list[int] = []
        node.reactor.on_batch.append(lambda batch: seen.append(len(batch.changes)))
        add(connection, 4)
        await eventually(lambda: sum(seen) == 1)
        node.reactor.on_batch.append(hub._take)
        node.reactor.resync()
        add(connection, 5)
        assert ids(await live.got(5)) == ids(await logged(database, begin))
        assert keys(live.changes) == [1, 2, 3, 4, 5]


async def test_a_quiet_client_is_told_where_it_stands(database: str, connection: Connection) -> None:
    orders(connection)
    connection.execute("CREATE TABLE items (id integer PRIMARY KEY)")
    track(connection, "items")
    async with serving(database, keepalive=0.2) as node, Client(node, table="items") as quiet:
        begin = quiet.last_id
        add(connection, 1)
        await eventually(lambda: quiet.last_id != begin)
        connection.execute("INSERT INTO items VALUES (1)")
        last = quiet.last_id
        await quiet.got(1)
        assert last is not None
        async with Client(node, after=last) as again:
            assert [change.table for change in await again.got(1)] == ["items"]


async def test_nothing_is_left_when_clients_are_gone(database: str, connection: Connection) -> None:
    orders(connection)
    async with serving(database) as node:

        def sessions() -> int:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'forge'"
            ).fetchone()
            assert row is not None
            return int(row[0])

        idle = sessions()
        many: list[Callable[[], Client]] = [lambda: Client(node), lambda: Client(node, **{"from": "start"})]
        for make in many * 3:
            async with make() as client:
                add(connection, random.randrange(10**9))
                await client.got(1)
        await eventually(lambda: sessions() <= idle)
        assert node.reactor.on_batch == []
        assert node.sessions == {}
