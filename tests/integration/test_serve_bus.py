"""Messages between nodes through PostgreSQL: heard by all, once, in one order; heard again after a lost connection."""

import asyncio
from typing import Any

import pytest

from forge.changelog.connection import Connection
from forge.errors import ServerError
from forge.serve.bus import CHANNEL, Bus
from tests.integration.following import eventually


class Heard:
    """A bus, and what was heard on it."""

    def __init__(self, url: str, beat: float = 3600.0) -> None:
        self.bus = Bus(url, beat=beat)
        self.payloads: list[Any] = []
        self.gaps: list[str] = []
        self.bus.on("test", self.payloads.append)
        self.reconnects = 0
        self.bus.on_gap.append(self.gaps.append)
        self.bus.on_reconnect.append(self._reconnected)

    def _reconnected(self) -> None:
        self.reconnects += 1

    async def __aenter__(self) -> "Heard":
        await self.bus.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.bus.stop()


def hang_up(connection: Connection, name: str) -> None:
    """End the sessions of that name."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = %s AND datname = current_database()",
        (name,),
    )


@pytest.mark.contract("R15")
async def test_every_node_hears_every_message_once_in_one_order(database: str) -> None:
    async with Heard(database) as one, Heard(database) as two:
        sent = [{"from": name, "n": number, "text": "ą\0'\\"} for number in range(20) for name in ("one", "two")]
        await asyncio.gather(*((one if each["from"] == "one" else two).bus.publish("test", each) for each in sent))
        await one.bus.publish("other", "not for the handler")
        await eventually(lambda: len(one.payloads) == len(two.payloads) == len(sent))
        assert one.payloads == two.payloads
        for name in ("one", "two"):
            assert [each["n"] for each in one.payloads if each["from"] == name] == list(range(20))
        assert one.gaps == two.gaps == []


async def test_a_large_message_arrives_whole(database: str) -> None:
    async with Heard(database) as one, Heard(database) as two:
        large = ["x" * 100_000, {"y": "ż" * 50_000}]
        await one.bus.publish("test", large)
        await eventually(lambda: one.payloads == two.payloads == [large])


@pytest.mark.contract("R15")
async def test_lost_connections_are_made_anew_and_what_was_missed_is_noticed(
    database: str, connection: Connection
) -> None:
    async with Heard(database) as one, Heard(database, beat=0.1) as two:
        await two.bus.publish("test", 1)
        await eventually(lambda: one.payloads == two.payloads == [1])
        hang_up(connection, "forge listen")
        for number in range(2, 12):
            await two.bus.publish("test", number)
        await eventually(lambda: one.reconnects == two.reconnects == 1)
        await eventually(lambda: two.bus.id in one.gaps or one.payloads == list(range(1, 12)))
        hang_up(connection, "forge bus")
        await two.bus.publish("test", "again")
        await eventually(lambda: one.payloads[-1] == "again" and two.payloads[-1] == "again")
        for heard in (one, two):
            assert len(heard.payloads) == len(set(heard.payloads))


async def test_a_handler_that_fails_and_messages_that_are_none_harm_nothing(
    database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with Heard(database) as one:

        def fail(payload: Any) -> None:
            raise RuntimeError("handler")

        one.bus.on("test", fail)
        connection.execute("SELECT pg_notify(%s, 'no json')", (CHANNEL,))
        connection.execute('SELECT pg_notify(%s, \'{"forge_ref":"x"}\')', (CHANNEL,))
        await one.bus.publish("test", 1)
        await one.bus.publish("test", 2)
        await eventually(lambda: one.payloads == [1, 2])
        assert "could not be handled" in caplog.text
        assert "malformed" in caplog.text


async def test_a_stopped_bus_leaves_no_connection_and_sends_nothing(database: str, connection: Connection) -> None:
    async with Heard(database) as one:
        await one.bus.publish("test", 1)
    with pytest.raises(ServerError):
        await one.bus.publish("test", 2)

    def none_left() -> bool:
        return connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone() == (0,)

    await eventually(none_left)
