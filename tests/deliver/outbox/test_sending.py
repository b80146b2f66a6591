"""From a transaction to a receiver: what is sent, what is not, in which order, and when."""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta

import pytest

import forge
from forge.changelog.connection import Connection, connect, connect_async
from forge.deliver.message import Message
from forge.deliver.outbox import Routes
from tests.deliver.outbox.draining import draining, until


def collecting(pattern: str = "*", **options: object) -> tuple[Routes, list[Message]]:
    """Routes with a handler that keeps what it gets."""
    routes, got = Routes(), list[Message]()

    @routes.on(pattern, **options)
    async def keep(message: Message) -> None:
        got.append(message)

    return routes, got


def rows(connection: Connection, table: str = "outbox") -> int:
    """How many messages there are."""
    row = connection.execute(f"SELECT count(*) FROM forge.{table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.contract("W14")
@pytest.mark.every_version
async def test_a_message_is_sent_after_its_commit_and_gone(database: str, connection: Connection) -> None:
    routes, got = collecting()
    async with draining(database, routes):
        with connection.transaction():
            id = forge.outbox(connection, "order.paid", {"id": 7}, key=7, headers={"trace": "a1"})
        await until(lambda: got and not rows(connection))
    assert [(m.id, m.topic, m.key, json.loads(m.payload), m.headers, m.content_type) for m in got] == [
        (id, "order.paid", "7", {"id": 7}, {"trace": "a1"}, "application/json")
    ]


@pytest.mark.contract("W14")
async def test_a_rollback_sends_nothing(database: str, connection: Connection) -> None:
    routes, got = collecting()
    async with draining(database, routes):
        with pytest.raises(ZeroDivisionError), connection.transaction():
            forge.outbox(connection, "order.paid", "no")
            raise ZeroDivisionError
        with connection.transaction():
            with pytest.raises(ZeroDivisionError), connection.transaction():
                forge.outbox(connection, "order.paid", "no savepoint")
                raise ZeroDivisionError
            forge.outbox(connection, "order.paid", "yes")
        await until(lambda: got)
    assert [m.payload for m in got] == [b"yes"]
