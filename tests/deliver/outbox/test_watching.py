"""How the outbox fares, as it is told: metrics, live tables, and what forge doctor finds."""

import random
import re
from datetime import timedelta
from typing import Any

import pytest

from forge.app import Forge
from forge.deliver.message import Message
from forge.deliver.outbox import OutboxSettings
from forge.deliver.outbox.node import NOBODY
from forge.doctor import Finding, Level, examine
from forge.doctor import outbox as watched
from forge.errors import DeliveryRefused
from forge.postgres.connection import Connection
from tests.deliver.outbox.draining import collecting, draining, put, rows, until
from tests.serve.serving import serving


@pytest.mark.contract("R16")
async def test_a_serving_node_counts_what_it_sends_and_the_tables_are_live(
    database: str, connection: Connection
) -> None:
    app = Forge(database)

    @app.on_outbox("order.*", tries=2, backoff=(0.01, 0.01))
    async def paid(message: Message) -> None:
        if message.payload == b"never":
            raise DeliveryRefused("no")
        if message.payload == b"poison":
            raise ValueError("no")

    @app.query(scope="public")
    async def standing(ctx: Any) -> Any:
        return await ctx.db.fetch(
            "SELECT (SELECT count(*) FROM forge.outbox)::int AS waiting,"
            " (SELECT count(*) FROM forge.outbox_later)::int AS scheduled,"
            " (SELECT count(*) FROM forge.outbox_dead)::int AS dead"
        )

    async with serving(app) as served, served.stream("/forge/live/standing") as live:

        async def shown(waiting: int, scheduled: int, dead: int) -> None:
            wanted = [{"waiting": waiting, "scheduled": scheduled, "dead": dead}]
            await live.until(lambda event: event.name != "bye" and event.body.get("rows") == wanted)

        await shown(0, 0, 0)
        put(connection, "order.paid", "fine", key=1)
        put(connection, "order.paid", "never", key=2)
        put(connection, "order.paid", "poison", key=3)
        put(connection, "user.new", "no route")
        put(connection, "order.paid", "later", after=timedelta(days=1))
        await shown(1, 1, 2)
        lines: list[str] = []

        async def told(*wanted: str) -> None:
            while not set(wanted) <= set(lines):
                lines[:] = (await served.client.get("/metrics")).text.splitlines()

        await told(
            'forge_outbox_sent_total{route="order.*"} 1.0',
            'forge_outbox_retried_total{route="order.*"} 1.0',
            'forge_outbox_parked_total{route="order.*"} 2.0',
            'forge_outbox_waiting{route="order.*"} 0.0',
            'forge_outbox_scheduled{route="order.*"} 1.0',
            'forge_outbox_dead{route="order.*"} 2.0',
            'forge_outbox_waiting{route="(none)"} 1.0',
        )
        (seconds,) = (line for line in lines if line.startswith('forge_outbox_waiting_seconds{route="(none)"}'))
        assert 0 < float(seconds.split()[-1]) < 60


async def test_a_message_waits_since_it_was_due(database: str, connection: Connection) -> None:
    routes, _ = collecting("other")
    async with draining(database, routes, OutboxSettings(measure=0.02)) as node:
        put(connection, "a", "x", after=timedelta(seconds=0.1))
        connection.execute("UPDATE forge.outbox_later SET at = at - interval '1 day'")
        await until(lambda: rows(connection) == 1)
        await until(lambda: any(each.route == NOBODY and each.lag and each.lag.waiting for each in node.samples()))
        (sample,) = (each for each in node.samples() if each.route == NOBODY)
    assert sample.lag is not None
    assert 0 < sample.lag.seconds < 60


def findings(url: str, **measure: Any) -> list[str]:
    """What is told of the outbox; each with a fix."""
    found: list[Finding] = [each for each in examine(url, **measure) if each.check == "outbox"]
    assert all(each.fix for each in found if each.level is not Level.OK)
    return [re.sub(r"\d+ MB", "# MB", each.what) for each in found]


@pytest.mark.contract("X9")
async def test_the_doctor_finds_what_waits_what_is_dead_and_what_grows(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings(database) == []
    for topic in ("order.paid", "order.paid", "user.new"):
        put(connection, topic, "x", key=7)
    assert findings(database) == []
    connection.execute("UPDATE forge.outbox SET at = at - interval '10 minutes'")
    assert findings(database) == ["3 messages of the outbox wait for up to 10 minutes, and nobody sends"]
    routes, _ = collecting("user.*")
    async with draining(database, routes):
        assert findings(database) == ["2 messages wait for a route: no node that runs takes order.paid",
                                      "1 message of user.new wait for up to 10 minutes"]  # fmt: skip
        connection.execute("DELETE FROM forge.outbox WHERE topic = 'order.paid'")
        await until(lambda: not rows(connection))
        assert findings(database) == ["1 worker, and no message waits for long"]
    connection.execute("TRUNCATE forge.outbox")
    put(connection, "a", "x", after=timedelta(hours=1))
    connection.execute("UPDATE forge.outbox_later SET due_at = due_at - interval '70 minutes'")
    assert findings(database) == ["a scheduled message is 10 minutes late: no node looks after the outbox"]
    connection.execute("TRUNCATE forge.outbox_later")
    put(connection, "a", "x", key=1)
    connection.execute(
        "WITH gone AS (DELETE FROM forge.outbox RETURNING *) INSERT INTO forge.outbox_dead"
        " SELECT seq, id, topic, key, payload, content_type, headers, at, xid, 3, 'no', false FROM gone"
    )
    assert findings(database) == ["the outbox has 1 dead letter, of a"]
    connection.execute("TRUNCATE forge.outbox_dead")
    monkeypatch.setattr(watched, "LARGE", 1 << 20)
    for _ in range(2):
        put(connection, "a", random.Random(7).randbytes(1 << 20))
    connection.execute("ANALYZE forge.outbox")
    assert findings(database) == ["forge.outbox has grown to # MB, with about 2 rows"]
