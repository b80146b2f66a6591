"""Slots and publications: what is wrong is said with what to do, and what is too much is acted upon."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

import forge
from forge.capture import Filter
from forge.capture.wal import SlotLimits, WalSource
from forge.capture.wal.position import WalCursor
from forge.change import Op
from forge.cli import main
from forge.errors import ForgeError, SlotInUse, SlotLost, SourceError
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database, temporary_postgres
from tests.capture.wal.reading import mark, to_end, until

pytestmark = pytest.mark.contract("W4")


async def refused(source: WalSource, error: type[ForgeError]) -> ForgeError:
    """The error that a source raises at once, whatever is asked of it."""
    with pytest.raises(error) as raised:
        await source.now()
    assert raised.value.fix
    assert "\n" not in str(raised.value) + raised.value.fix
    return raised.value


async def test_a_wal_that_does_not_say_what_changed() -> None:
    settings = {"wal_level": "replica", "max_replication_slots": "2", "max_wal_senders": "1"}
    with temporary_postgres(settings=settings) as server, fresh_database(server) as url:
        error = await refused(WalSource(url), SourceError)
        assert "wal_level is replica" in str(error)
        assert "ALTER SYSTEM SET wal_level = logical" in error.fix
        with connect(url) as connection:
            connection.execute("ALTER SYSTEM SET wal_level = logical")
        server.stop("fast")
        server.start()
        with connect(url) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            cursor = await WalSource(url).now()
            await WalSource(url, slot="another").now()
            error = await refused(WalSource(url, slot="one_more"), SourceError)
            assert "max_replication_slots" in error.fix
            connection.execute("INSERT INTO t VALUES (1)")
            async with asyncio.timeout(20), aclosing(WalSource(url).stream(cursor)) as batches:
                await anext(batches)
                with pytest.raises(SourceError) as raised:
                    await anext(WalSource(url, slot="another").stream())
                assert "max_wal_senders" in raised.value.fix


async def test_a_role_without_the_right(database: str, connection: Connection) -> None:
    role = f"plain_{database[-8:]}"
    connection.execute(f"CREATE ROLE {role} LOGIN")
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    url = database.replace("postgres@", f"{role}@")
    error = await refused(WalSource(url), SourceError)
    assert "CREATE PUBLICATION" in error.fix
    name = f"made_{database[-8:]}"
    connection.execute(f"CREATE PUBLICATION {name} FOR ALL TABLES")
    error = await refused(WalSource(url, slot=name), SourceError)
    assert "ALTER ROLE" in error.fix
    connection.execute(f"ALTER ROLE {role} REPLICATION")
    cursor = await WalSource(url, slot=name).now()
    mark(connection)
    await to_end(WalSource(url, slot=name), cursor)
    connection.execute(f"DROP ROLE {role}")


async def test_a_slot_in_use(database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge.capture.wal.upstream.PATIENCE", 0.2)
    first = WalSource(database)
    cursor = await first.now()
    async with aclosing(first.stream(cursor)) as batches:
        mark(connection)
        await anext(batches)
        with pytest.raises(SlotInUse, match="another process") as raised:
            await anext(WalSource(database).stream(cursor))
        assert "slot=NAME" in raised.value.fix
    await to_end(WalSource(database), cursor)


async def test_a_slot_that_is_gone_or_lost(database: str, connection: Connection) -> None:
    source = WalSource(database)
    cursor = await source.now()
    slot = WalCursor.parse(cursor).slot
    connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    with pytest.raises(SlotLost) as raised:
        await to_end(source, cursor)
    assert isinstance(raised.value, forge.CursorExpired)
    assert "snapshot" in raised.value.fix
    with pytest.raises(SlotLost):
        async for _ in source.snapshot(f"{cursor.partition('~')[0]}+lYCQkwCQwgAA"):
            pass
    with connect(f"{database.rpartition('/')[0]}/postgres") as elsewhere:
        elsewhere.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        error = await refused(WalSource(database), SourceError)
        assert "belongs to the database postgres" in str(error)
        elsewhere.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


async def test_a_slot_whose_wal_the_server_removed() -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with temporary_postgres(settings=settings) as server, fresh_database(server) as url, connect(url) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        source = WalSource(url)
        cursor = await source.now()
        for _ in range(3):
            connection.execute("SELECT pg_switch_wal()")
            connection.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")
        connection.execute("CHECKPOINT")
        with pytest.raises(SlotLost, match="lost"):
            await to_end(source, cursor)
        status = await source.status()
        assert any("lost" in warning for warning in status.warnings)


async def test_a_hard_limit_drops_the_slot_of_a_consumer_that_does_not_come_back(
    database: str, connection: Connection
) -> None:
    limits = SlotLimits(warn=50_000, most=1_000_000, act="drop")
    source = WalSource(database, limits=limits, interval=0.05)
    cursor = await source.now()
    slot = WalCursor.parse(cursor).slot
    async with asyncio.timeout(20), aclosing(source.stream(cursor)) as batches:
        mark(connection)
        await anext(batches)
        connection.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 100000))")
        status = await source.status()
        assert any("slow or away" in warning for warning in status.warnings)
        assert status.lag_bytes is not None
        assert status.lag_bytes > 100_000
        connection.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 2000000))")
        query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
        await until(lambda: connection.execute(query, (slot,)).fetchone(), lambda row: row == (0,))
        with pytest.raises(SlotLost, match="was dropped"):
            await anext(batches)
    with pytest.raises(SlotLost):
        await to_end(WalSource(database), cursor)


async def test_a_hard_limit_that_only_alerts(
    database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    source = WalSource(database, limits=SlotLimits(most=1_000_000), interval=0.05)
    cursor = await source.now()
    async with asyncio.timeout(20), aclosing(source.stream(cursor)) as batches:
        mark(connection)
        await anext(batches)
        connection.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 2000000))")
        await until(lambda: caplog.text, lambda text: "beyond its limit" in text)
        mark(connection)
        assert [change.op for change in (await anext(batches)).changes] == [Op.INSERT]


async def test_publications_are_made_widened_and_not_mistaken(database: str, connection: Connection) -> None:
    connection.execute("CREATE SCHEMA shop")
    for name in ("public.a", "public.b", "shop.c"):
        connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    slot = f"s_{database[-8:]}"

    def published() -> list[tuple[Any, ...]]:
        return connection.execute(
            "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1", (slot,)
        ).fetchall()

    await WalSource(database, Filter(tables=("a",), operations=(Op.INSERT,)), slot=slot).now()
    assert published() == [("public.a",)]
    await WalSource(database, Filter(tables=("a", "b")), slot=slot).now()
    assert published() == [("public.a",), ("public.b",)]
    row = connection.execute("SELECT pubdelete, pubtruncate FROM pg_publication WHERE pubname = %s", (slot,)).fetchone()
    assert row == (True, True)
    error = await refused(WalSource(database, slot=slot), SourceError)
    assert "another filter" in str(error)
    await WalSource(database, Filter(tables=("shop.*",)), slot=f"{slot}_shop").now()
    connection.execute("CREATE TABLE shop.later (id int PRIMARY KEY)")
    slot = f"{slot}_shop"
    assert published() == [("shop.c",), ("shop.later",)]


def test_names_and_options_that_cannot_be(database: str) -> None:
    with pytest.raises(forge.errors.ConfigError, match="replication slot"):
        WalSource(database, slot="Not-Good")


@pytest.fixture
def command(database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`forge …` on the database: its exit code, what it printed, and its error."""
    monkeypatch.delenv("FORGE_DATABASE_URL", raising=False)

    def run(*words: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["slot", *words, "-d", database])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run


def test_the_command(command: Any, connection: Connection, database: str) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    name = f"cli_{database[-8:]}"
    code, out, _ = command("create", name, "--table", "t")
    assert code == 0
    assert name in out
    code, out, _ = command("list", "--json")
    found = {slot["name"]: slot for slot in json.loads(out)}
    assert found[name]["plugin"] == "pgoutput"
    assert found[name]["active"] is False
    code, out, _ = command("list")
    assert name in out
    assert "nobody" in out
    connection.execute("INSERT INTO t VALUES (1)")
    before = found[name]["confirmed"]
    assert command("advance", name, "--to", "now", "--json")[0] == 0
    code, out, _ = command("list", "--json")
    assert next(slot["confirmed"] for slot in json.loads(out) if slot["name"] == name) != before
    code, _, err = command("advance", name, "--to", "tomorrow")
    assert code == 2
    assert "0/16B3748" in err
    assert command("drop", name)[0] == 0
    code, _, err = command("drop", name)
    assert code == 1
    assert f"no replication slot {name}" in err
    assert connection.execute("SELECT count(*) FROM pg_publication WHERE pubname = %s", (name,)).fetchone() == (0,)
