"""What one client may cost: arguments of any shape, and requests that run for long, on a served application."""

import asyncio
import contextlib
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from forge.app import Forge
from forge.deliver.consumers import ConsumerNode
from forge.deliver.outbox import OutboxNode
from forge.embedded import PostgresServer
from forge.postgres.connection import Connection
from forge.serve.limits import Limits
from forge.serve.node import Options
from forge.testing import FaultProxy
from forge.values import MOST_LEVELS
from tests.serve.serving import SOON, Served, serving
from tests.serve.test_http import SECURED, bearing
from tests.serve.test_ws import Socket, opened

SLOW = "SELECT pg_advisory_lock_shared(42)::text, pg_advisory_unlock_shared(42), pg_sleep(0.02)::text"
HELD = b"""SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"""


def nested(levels: int) -> Any:
    return json.loads("[" * levels + "]" * levels)


@pytest.fixture
def notes(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE note (id int PRIMARY KEY, about text)")
    connection.execute("SELECT public.forge_enable_reactivity('note')")
    connection.execute("INSERT INTO note VALUES (1, 'a')")
    return connection


def application(database: str, **options: Any) -> Forge:
    app = Forge(database, **options)

    @app.query(key="id")
    async def about(ctx: Any, x: Any, unused: Any = None) -> Any:
        return await ctx.db.fetch("SELECT id FROM note WHERE about = %(x)s")

    @app.query(key="id")
    async def all_notes(ctx: Any, x: Any = None) -> Any:
        return await ctx.db.fetch("SELECT id, about FROM note ORDER BY id")

    @app.mutation
    async def write(ctx: Any, x: Any) -> Any:
        return await ctx.db.execute("UPDATE note SET about = %(x)s::text", x=json.dumps(x))

    @app.query(scope="public", reads=["note"])
    async def slow_query(ctx: Any, number: int = 0) -> Any:
        return await ctx.db.fetch(SLOW)

    @app.query(scope="public", cache=60)
    async def cached_notes(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT id FROM note ORDER BY id")

    @app.mutation
    async def slow(ctx: Any, number: int = 0) -> Any:
        """Runs until the test lets it go; then it has 20 ms of its own."""
        await ctx.db.fetch(SLOW)
        return await ctx.db.fetch_value("INSERT INTO note VALUES (%(number)s + 2, 'slow') RETURNING id")

    return app


async def posted(served: Served, kind: str, arguments: Any) -> tuple[int, str]:
    answer = await served.post(f"/forge/{kind}", arguments)
    return answer.status_code, answer.json().get("error", {}).get("code", "")


async def streamed(served: Served, name: str, arguments: Any) -> tuple[int, str]:
    async with served.stream(f"/forge/live/{name}?args={quote(json.dumps(arguments))}") as stream:
        if stream.response.status_code != 200:
            return stream.response.status_code, json.loads(await stream.response.aread())["error"]["code"]
        event = await stream.next()
        return 200, event.body.get("code", "")


async def answered(client: Socket, id: str) -> Any:
    while (event := await client.next()).get("id") != id:
        pass
    return event


async def sent(served: Served, name: str, arguments: Any) -> str:
    async with opened(served) as client:
        await client.send("query", id="1", query=name, args=arguments)
        return str((await answered(client, "1")).get("code", ""))


@pytest.mark.parametrize("levels", [20, MOST_LEVELS])
async def test_a_nested_argument_costs_what_it_weighs(database: str, notes: Connection, levels: int) -> None:
    async with serving(application(database)) as served:
        await posted(served, "query/about", {"x": "a"})
        tracemalloc.start()
        try:
            for name, arguments in (
                ("about", {"x": nested(levels)}),
                ("about", {"x": "a", "unused": nested(levels)}),
                ("all_notes", {"x": nested(levels)}),
            ):
                assert await posted(served, f"query/{name}", arguments) == (200, "")
                assert await streamed(served, name, arguments) == (200, "")
                assert await sent(served, name, arguments) == ""
            assert await posted(served, "mutation/write", {"x": nested(levels)}) == (200, "")
            assert tracemalloc.get_traced_memory()[1] < 4_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, 900, 5000])
async def test_an_argument_that_is_nested_too_deep_is_refused(database: str, notes: Connection, levels: int) -> None:
    text = '{"x":' + "[" * levels + "]" * levels + "}"
    async with serving(application(database)) as served:
        for path in ("query/about", "query/all_notes", "mutation/write"):
            answer = await served.client.post(f"/forge/{path}", content=text)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_arguments")
            assert f"deeper than {MOST_LEVELS} levels" in answer.json()["error"]["message"]
            assert answer.json()["error"]["fix"]
        async with served.stream(f"/forge/live/about?args={quote(text)}") as stream:
            assert stream.response.status_code == 400
        async with opened(served) as client:
            await client.connection.send('{"type":"query","id":"1","query":"about","args":' + text + "}")
            assert (await client.event("error"))["code"] == "bad_arguments"
        assert (await posted(served, "query/all_notes", {}))[0] == 200


async def test_a_nested_message_of_a_channel_is_refused(database: str, notes: Connection) -> None:
    async with serving(application(database)) as served, opened(served) as client:
        await client.send("join", id="1", channel="room")
        await answered(client, "1")
        for levels in (MOST_LEVELS, 900):
            await client.send("publish", id=str(levels), channel="room", data=nested(levels))
            answer = await answered(client, str(levels))
            assert answer["event"] == ("answer" if levels == MOST_LEVELS else "error")


# Requests that run for long


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def held(connection: Connection) -> int:
    """How many connections to the database wait for the test."""
    row = connection.execute(HELD).fetchone()
    assert row is not None
    return int(row[0])


def secured(database: str, limits: Limits = Limits()) -> Forge:  # noqa: B008
    return application(database, options=Options(auth=SECURED["auth"], limits=limits))


def many(served: Served, count: int, path: str, **options: Any) -> list[asyncio.Task[Any]]:
    ask = (served.post(path, {"number": n}, timeout=2 * SOON, **options) for n in range(count))
    return [asyncio.create_task(request) for request in ask]


@pytest.mark.contract("R18")
async def test_one_user_s_slow_mutations_hold_up_nobody_else(database: str, notes: Connection) -> None:
    ada, bob = {"headers": bearing("ada")}, {"headers": bearing("bob")}
    async with serving(secured(database)) as served, served.stream("/forge/live/all_notes", **bob) as stream:
        await stream.named("snapshot")
        notes.execute("SELECT pg_advisory_lock(42)")
        slow = many(served, 40, "/forge/mutation/slow", **ada)
        turns = served.node.turns
        await until(lambda: (turns.running, turns.waiting, held(notes)) == (8, 32, 8))
        assert (await served.post("/forge/query/all_notes", {}, **bob)).status_code == 200
        assert (await served.post("/forge/mutation/write", {"x": "b"}, **bob)).status_code == 200
        assert (await stream.named("update")).body["rows"] == [{"id": 1, "about": '"b"'}]
        ready = await served.client.get("/readyz")
        assert (ready.status_code, ready.json()["ok"]) == (200, True)
        refused = await served.post("/forge/query/all_notes", {}, **ada)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many")
        assert refused.json()["error"]["retry_after_secs"] == int(refused.headers["retry-after"]) > 0
        told = (await served.client.get("/metrics")).text
        for line in ("forge_requests_running 8.0", "forge_requests_waiting 32.0", "forge_requests_refused_total 1.0"):
            assert line in told
        assert not any(task.done() for task in slow)
        assert held(notes) == 8
        notes.execute("SELECT pg_advisory_unlock(42)")
        assert [answer.json().get("result") for answer in await asyncio.gather(*slow)] == list(range(2, 42))
        assert (turns.running, turns.waiting, len(turns)) == (0, 0, 0)


@pytest.mark.contract("R18")
async def test_copies_of_one_key_hold_one_connection(database: str, notes: Connection) -> None:
    ada = {**bearing("ada"), "idempotency-key": "k"}
    async with serving(secured(database)) as served, serving(secured(database)) as other:
        notes.execute("SELECT pg_advisory_lock(42)")
        ask = {"headers": ada, "timeout": 2 * SOON}
        copies = [asyncio.create_task(served.post("/forge/mutation/slow", {}, **ask)) for _ in range(40)]
        await until(lambda: (served.node.turns.running, served.node.turns.waiting) == (1, 39))
        await until(lambda: held(notes) == 1)
        copies += [asyncio.create_task(other.post("/forge/mutation/slow", {}, **ask)) for _ in range(10)]
        await until(lambda: (other.node.turns.running, other.node.turns.waiting) == (1, 9))
        for node in (served, other):
            bob = await node.post("/forge/query/all_notes", {}, headers=bearing("bob"))
            assert (bob.status_code, bob.json()["result"]) == (200, [{"id": 1, "about": "a"}])
            assert (await node.client.get("/readyz")).status_code == 200
        assert held(notes) == 1
        assert not any(task.done() for task in copies)
        notes.execute("SELECT pg_advisory_unlock(42)")
        answers = await asyncio.gather(*copies)
        assert {(answer.status_code, answer.json()["result"]) for answer in answers} == {(200, 2)}
        assert sum("forge-repeated" not in answer.headers for answer in answers) == 1
        assert len(served.node.turns) == len(other.node.turns) == 0


async def test_live_queries_wait_for_nothing_that_is_asked_once(database: str, notes: Connection) -> None:
    """Enough users hold every connection of queries and mutations."""
    async with serving(secured(database)) as served:
        notes.execute("SELECT pg_advisory_lock(42)")
        users = [{"headers": bearing(f"user{number}")} for number in range(3)]
        slow = [task for user in users for task in many(served, 8, "/forge/query/slow_query", **user)]
        await until(lambda: (served.node.turns.running, held(notes)) == (24, 16))
        async with served.stream("/forge/live/all_notes", headers=bearing("bob")) as stream:
            await stream.named("snapshot")
            notes.execute("UPDATE note SET about = 'changed'")
            assert (await stream.named("update")).body["rows"] == [{"id": 1, "about": "changed"}]
            assert (await served.client.get("/readyz")).status_code == 200
            assert not any(task.done() for task in slow)
        notes.execute("SELECT pg_advisory_unlock(42)")
        assert {answer.status_code for answer in await asyncio.gather(*slow)} == {200}


async def sessions(served: Served, user: str, count: int) -> list[int]:
    """The answers to so many sessions of one user that are open at the same time."""
    async with contextlib.AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(served.stream("/forge/session", headers=bearing(user)))
            for _ in range(count)
        ]
        return [stream.response.status_code for stream in streams]


async def test_the_configuration_limits_what_code_does_not(
    database: str, notes: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forge.toml").write_text("[realtime]\nmax_sessions_per_user = 1\n")
    async with serving(secured(database)) as served:
        assert await sessions(served, "ada", 2) == [200, 429]
    explicit = Options(auth=SECURED["auth"], limits=Limits(sessions_per_user=8))
    async with serving(application(database, options=explicit)) as served:
        assert await sessions(served, "ada", 2) == [200, 200]
    monkeypatch.setenv("FORGE_REALTIME_MAX_SESSIONS_PER_USER", "2")
    other = Options(auth=SECURED["auth"], limits=Limits(request_bytes=1000))
    async with serving(application(database, options=other)) as served:
        assert await sessions(served, "ada", 3) == [200, 200, 429]


async def test_the_configuration_reaches_every_part_of_a_node(
    database: str, notes: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forge.toml").write_text(
        'wakeup = "notify"\n[realtime]\ndebounce = "1ms"\nkeepalive_interval = "3s"\n'
        '[serve]\nconnections = 3\norigins = ["https://a.example"]\nallowed_hosts = ["a.example"]\n'
        '[deliver]\ntick_interval = "20ms"\nreport_interval = "30ms"\n'
    )
    nodes: list[ConsumerNode | OutboxNode] = []
    for kind in (ConsumerNode, OutboxNode):

        def made(*arguments: Any, kind: Any = kind, **more: Any) -> Any:
            nodes.append(kind(*arguments, **more))
            return nodes[-1]

        monkeypatch.setattr(f"forge.app.{kind.__name__}", made)
    async with serving(application(database)) as served:
        node = served.node
        assert (node.reactor.settings.quiet, node.reactor.settings.wakeup) == (0.001, "notify")
        assert (node.options.keepalive, node.reactor.runner.connections) == (3, 3)
        consuming, sending = nodes
        assert isinstance(consuming, ConsumerNode)
        assert (consuming.settings.tick, consuming.settings.report) == (0.02, 0.03)
        assert isinstance(sending, OutboxNode)
        assert sending.settings.report == 0.03
        ours = {"host": "a.example", "origin": "https://a.example"}
        answer = await served.post("/forge/query/all_notes", {}, headers=ours)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://a.example")
        assert (await served.post("/forge/query/all_notes", {}, headers={"host": "b.example"})).status_code == 403
    async with serving(application(database, connections=16)) as served:
        assert served.node.reactor.runner.connections == 16
    for work in (application(database).consume, application(database).drain):
        nodes.clear()
        task = asyncio.create_task(work())
        await until(lambda: nodes)
        assert nodes[0].settings.report == 0.03
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_who_has_no_name_is_counted_by_address(database: str, notes: Connection) -> None:
    limits = Limits(requests_per_user=2, waiting_per_user=1)
    async with serving(application(database, options=Options(limits=limits))) as served, opened(served) as client:
        notes.execute("SELECT pg_advisory_lock(42)")
        slow = many(served, 3, "/forge/query/slow_query")
        await until(lambda: (served.node.turns.running, served.node.turns.waiting) == (2, 1))
        assert await posted(served, "query/all_notes", {}) == (429, "too_many")
        assert await posted(served, "mutation/write", {"x": 1}) == (429, "too_many")
        await client.send("query", id="1", query="all_notes", args={})
        assert (await answered(client, "1"))["code"] == "too_many"
        at = "2026-01-01T00:00:00Z"
        assert await posted(served, f"query/all_notes?as_of={at}", {}) == (429, "too_many")
        notes.execute("SELECT pg_advisory_unlock(42)")
        await asyncio.gather(*slow)
        assert await posted(served, "query/all_notes", {}) == (200, "")


async def test_a_cached_query_waits_for_no_other_user(database: str, notes: Connection) -> None:
    """Ada has no turn free and asks first; Bob asks the same, which would have him wait for her run."""
    ada, bob = {"headers": bearing("ada")}, {"headers": bearing("bob")}
    async with serving(secured(database)) as served:
        notes.execute("SELECT pg_advisory_lock(42)")
        slow = many(served, 8, "/forge/mutation/slow", **ada)
        await until(lambda: served.node.turns.running == 8)
        first = asyncio.create_task(served.post("/forge/query/cached_notes", {}, timeout=2 * SOON, **ada))
        await until(lambda: served.node.turns.waiting == 1)
        answer = await served.post("/forge/query/cached_notes", {}, **bob)
        assert (answer.status_code, answer.json()["result"]) == (200, [{"id": 1}])
        assert (await served.post("/forge/query/cached_notes", {}, **ada)).headers["forge-cache"] == "hit"
        assert not first.done()
        notes.execute("SELECT pg_advisory_unlock(42)")
        assert {answer.status_code for answer in await asyncio.gather(first, *slow)} == {200}


async def test_a_node_whose_database_does_not_answer_is_not_ready(
    server: PostgresServer, database: str, notes: Connection
) -> None:
    with FaultProxy("127.0.0.1", server.port) as proxy:
        async with serving(application(proxy.url(database))) as served:
            assert (await served.client.get("/readyz")).status_code == 200
            proxy.refuse()
            proxy.cut()
            assert (await served.client.get("/readyz", timeout=SOON)).status_code == 503
            proxy.accept()
            async with asyncio.timeout(SOON):
                while (await served.client.get("/readyz", timeout=SOON)).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
