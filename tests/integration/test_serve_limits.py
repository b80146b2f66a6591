"""What one client may cost: arguments of any shape, and requests that run for long, on a served application."""

import json
import tracemalloc
from typing import Any
from urllib.parse import quote

import pytest

from forge.app import Forge
from forge.changelog.connection import Connection
from forge.values import MOST_LEVELS
from tests.integration.serving import Served, serving
from tests.integration.test_serve_ws import Socket, opened


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
