"""The outbox in an application: ctx.outbox in a mutation, routes that run with it, and the command line."""

import json
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from forge.app import Forge
from forge.cli.command import application
from forge.deliver.message import Message
from forge.postgres.connection import Connection
from forge.react.registry import ANYONE
from tests.deliver.outbox.draining import put, rows, until


@pytest.mark.contract("W14")
async def test_a_mutation_sends_what_it_committed_and_nothing_else(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
    app, got = Forge(database), list[Message]()

    @app.mutation
    async def pay(ctx, order_id: int, fail: bool):  # type: ignore[no-untyped-def]
        await ctx.db.execute("INSERT INTO orders VALUES (%(order_id)s, 'paid')")
        await ctx.outbox("order.paid", {"id": order_id}, key=order_id)
        if fail:
            raise ZeroDivisionError

    @app.on_outbox("order.*")
    async def paid(message: Message) -> None:
        got.append(message)

    async with app.running() as node:
        runner = node.reactor.runner
        with pytest.raises(ZeroDivisionError):
            await runner.mutate(app.registry.mutations["pay"], {"order_id": 1, "fail": True}, ANYONE)
        await runner.mutate(app.registry.mutations["pay"], {"order_id": 2, "fail": False}, ANYONE)
        await until(lambda: got and not rows(connection))
    assert [(m.topic, m.key, m.payload) for m in got] == [("order.paid", "2", b'{"id":2}')]


def test_the_command_line_shows_and_replays(database: str, connection: Connection) -> None:
    put(connection, "a", "x", key=1)
    put(connection, "b", "y", after=timedelta(days=1))
    connection.execute(
        "WITH gone AS (DELETE FROM forge.outbox RETURNING *) INSERT INTO forge.outbox_dead"
        " SELECT seq, id, topic, key, payload, content_type, headers, at, xid, 3, 'no', false FROM gone"
    )

    def run(*words: str) -> str:
        done = CliRunner().invoke(application(), ["--database-url", database, *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    assert "scheduled" in run("outbox", "list")
    assert [
        (each["topic"], each["scheduled"], each["dead"]) for each in json.loads(run("--json", "outbox", "lag"))
    ] == [
        ("a", 0, 1),
        ("b", 1, 0),
    ]
    assert "no" in run("outbox", "dead")
    assert json.loads(run("--json", "outbox", "replay-dead", "--topic", "a")) == {"replayed": 1}
    assert rows(connection) == 1
    assert json.loads(run("--json", "outbox", "drop-dead", "--yes")) == {"dropped": 0, "released": 0}
    assert "forge outbox run shop:app" in run("outbox", "run", "--help")
