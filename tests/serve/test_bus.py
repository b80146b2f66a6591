"""Messages between nodes through PostgreSQL: heard by all, once, in one order; heard again after a lost connection."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from forge.embedded import PostgresServer
from forge.errors import ServerError
from forge.postgres.connection import Connection
from forge.serve import bus as bus_module
from forge.serve.auth import Revocations
from forge.serve.bus import CHANNEL, SLACK, WINDOW, Bus, Envelope, wire_revocations
from forge.serve.cipher import Cipher
from tests.changelog.following import eventually


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
        assert one.bus.dropped == {"forged": 2, "stale": 0, "repeated": 0}
        assert caplog.text.count("was dropped") == 1


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


# Roles that are not Forge's


@contextlib.contextmanager
def stranger(server: PostgresServer, connection: Connection) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A session of a role that may connect, and nothing else."""
    role = f"stranger_{connection.info.dbname}"
    connection.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        with psycopg.connect(server.url(connection.info.dbname, role), autocommit=True) as session:
            yield session
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def overheard(session: psycopg.Connection[tuple[Any, ...]], many: int) -> list[str]:
    """What came by NOTIFY, with what large messages stand for."""
    found = [each.payload for each in session.notifies(timeout=20, stop_after=many)]
    large = session.execute(
        "SELECT public.forge_payload((t::json->>'forge_ref')::uuid) FROM unnest(%s::text[]) t",
        ([text for text in found if text.startswith("{")],),
    ).fetchall()
    return [*found, *(text for (text,) in large)]


class Heeding:
    """A node as far as revoking is concerned."""

    def __init__(self, bus: Bus) -> None:
        self.revocations = Revocations()
        self.at: list[float] = []
        wire_revocations(self, bus)

    def revoke(
        self, *, user: str | None = None, tenant: str | None = None, token_id: str | None = None, at: float
    ) -> None:
        self.at.append(at)
        self.revocations.revoke(user=user, tenant=tenant, token_id=token_id, at=at)


@pytest.mark.every_version
async def test_others_overhear_nothing_that_is_said(
    database: str, connection: Connection, server: PostgresServer
) -> None:
    said = {"user": "ada lovelace", "channel": "salaries", "text": "confidential " * 2000}
    with stranger(server, connection) as session:
        session.execute(f"LISTEN {CHANNEL}".encode())
        async with Heard(database) as one:
            await one.bus.publish("channels.message", {**said, "text": "confidential"})
            await one.bus.publish("test", said)
            await eventually(lambda: one.payloads == [said])
            found = await asyncio.to_thread(overheard, session, 2)
        assert len(found) == 3
        assert len(found[-1]) > 20_000
        for text in found:
            for word in ("lovelace", "salaries", "confidential", "channels"):
                assert word not in text
        for statement in (
            "SELECT secret FROM forge.log_identity",
            "SELECT forge.tell_definitions()",
            "SELECT payload FROM forge.large_payload",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(statement.encode())


async def test_a_role_that_follows_the_log_cannot_read_the_secret(
    database: str, connection: Connection, server: PostgresServer
) -> None:
    with stranger(server, connection) as session:
        connection.execute(
            f"GRANT USAGE ON SCHEMA forge TO {session.info.user};"
            f" GRANT SELECT ON forge.forge_event_log, forge.table_version, forge.trimmed, forge.schema_version"
            f" TO {session.info.user}".encode()
        )
        assert session.execute("SELECT (forge.current_identity()).secret").fetchone() == (None,)
        for statement in ("SELECT secret FROM forge.log_identity", "SELECT forge.tell_definitions()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(statement.encode())


async def test_what_others_send_is_dropped_and_counted_and_logged_once(
    database: str, connection: Connection, server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    plain = msgspec.json.encode(Envelope("0" * 16, 1, "test", "forged", time.time())).decode()
    forged = [
        plain,
        Cipher("a guess").sealed("0" * 16, plain.encode()),
        "definitions 7 " + "0" * 64,
        '{"forge_ref" : "------------------------------------"}',
        '{"forge_ref" : "00000000-0000-0000-0000-000000000000"}',
        "x" * 7900,
    ]
    with stranger(server, connection) as session:
        async with Heard(database) as one:
            defined: list[Any] = []
            one.bus.on("definitions", defined.append)
            for text in forged:
                session.execute("SELECT pg_notify(%s, %s)", (CHANNEL, text))
            session.execute("SELECT public.forge_notify(%s, repeat('x', 100000))", (CHANNEL,))
            await eventually(lambda: one.bus.dropped["forged"] == len(forged) + 1)
            await one.bus.publish("test", 1)
            await eventually(lambda: one.payloads == [1])
            assert defined == []
            assert one.gaps == []
    assert caplog.text.count("was dropped") == 1


async def test_a_forged_revocation_locks_nobody_out(
    database: str, connection: Connection, server: PostgresServer
) -> None:
    said = Envelope("0" * 16, 1, "revoke", {"user": "ada", "at": 4e9}, time.time())
    with stranger(server, connection) as session:
        async with Heard(database) as one:
            node = Heeding(one.bus)
            session.execute("SELECT pg_notify(%s, %s)", (CHANNEL, msgspec.json.encode(said).decode()))
            await eventually(lambda: one.bus.dropped["forged"] == 1)
            assert node.at == []


async def test_a_revocation_is_of_the_future_by_no_more_than_clocks_differ(database: str) -> None:
    async with Heard(database) as one:
        node = Heeding(one.bus)
        await one.bus.publish("revoke", {"user": "ada", "at": 4e9})
        await eventually(lambda: node.at != [])
        assert node.at[0] < one.bus.now() + SLACK + 1.0  # the clock is compared again now and then


async def test_what_was_overheard_cannot_be_sent_again(
    database: str, connection: Connection, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stranger(server, connection) as session:
        session.execute(f"LISTEN {CHANNEL}".encode())
        async with Heard(database) as one, Heard(database) as two:
            await one.bus.publish("test", "once")
            await eventually(lambda: one.payloads == two.payloads == ["once"])
            (text,) = await asyncio.to_thread(overheard, session, 1)
            session.execute("SELECT pg_notify(%s, %s)", (CHANNEL, text))
            await eventually(lambda: one.bus.dropped["repeated"] == two.bus.dropped["repeated"] == 1)
        monkeypatch.setattr(bus_module, "SLACK", 0.0)  # a node that starts after it was sent, and has heard of nobody
        async with Heard(database) as late:
            session.execute("SELECT pg_notify(%s, %s)", (CHANNEL, text))
            await eventually(lambda: late.bus.dropped["stale"] == 1)
            assert late.payloads == []
    assert one.payloads == two.payloads == ["once"]


async def test_the_first_message_of_a_sender_is_taken_for_a_while_only(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = connection.execute("SELECT secret FROM forge.log_identity ORDER BY id LIMIT 1").fetchone()
    assert row is not None
    cipher = Cipher(row[0])

    def send(sender: str, age: float) -> None:
        text = msgspec.json.encode(Envelope(sender, 1, "test", sender, one.bus.now() - age))
        connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, cipher.sealed(sender, text)))

    async with Heard(database) as one:
        monkeypatch.setattr(one.bus, "_began", one.bus._began - 10 * WINDOW)
        send("a" * 16, 2 * WINDOW)
        send("b" * 16, WINDOW / 2)
        await eventually(lambda: one.payloads == ["b" * 16])
        assert one.bus.dropped == {"forged": 0, "stale": 1, "repeated": 0}


async def test_definitions_that_change_are_told_by_the_database(database: str, connection: Connection) -> None:
    async with Heard(database) as one:
        told: list[Any] = []
        one.bus.on("definitions", told.append)
        connection.execute("CREATE VIEW numbers AS SELECT 1 AS n")
        await eventually(lambda: len(told) == 1)
        connection.execute("SELECT forge.tell_definitions()")
        await eventually(lambda: len(told) == 2)
        assert not any(one.bus.dropped.values())


@pytest.mark.parametrize("slow", [-3600.0, 3600.0])
async def test_times_are_the_databases_however_a_nodes_clock_goes(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, slow: float
) -> None:
    """A node whose clock is an hour slow would revoke what was issued until an hour ago, and not the token in use."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + slow)
    async with Heard(database) as one, Heard(database) as two:
        node = Heeding(two.bus)
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        assert row is not None
        await one.bus.publish("revoke", {"user": "ada", "at": one.bus.now()})
        await eventually(lambda: node.at != [])
        assert abs(node.at[0] - row[0]) < 60
        assert one.bus.now() == pytest.approx(row[0], abs=60)


async def test_a_log_that_was_installed_anew_has_another_secret_which_nodes_read(
    database: str, connection: Connection
) -> None:
    async with Heard(database) as one, Heard(database) as two:
        await one.bus.publish("test", 1)
        await eventually(lambda: two.payloads == [1])
        connection.execute("UPDATE forge.log_identity SET secret = gen_random_uuid()::text")
        hang_up(connection, "forge bus")

        async with asyncio.timeout(30):
            while "again" not in two.payloads:
                with contextlib.suppress(ServerError):
                    await one.bus.publish("test", "again")
                await asyncio.sleep(0.2)
