"""A log that is promoted, copied, restored or crashed is noticed by every cursor: a resync, never silence."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from forge.change import Op
from forge.changelog.follow import follow
from forge.changelog.install import install
from forge.changelog.reader import Reader
from forge.cursor import Cursor
from forge.embedded import PostgresServer
from forge.errors import CursorForeign, ServerError
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database, temporary_postgres
from tests.changelog.following import Follower, add, batches, changes, eventually, keys, now, orders
from tests.servers.standby import standby_of


def one(connection: Connection, query: str, *parameters: Any) -> Any:
    """The first value that a query gives."""
    row = connection.execute(query.encode(), parameters or None).fetchone()
    return row[0] if row else None


def caught_up(standby: PostgresServer, id: int) -> bool:
    """Whether the standby shows the order."""
    with suppress(psycopg.Error, ServerError), connect(standby.url()) as connection:
        return bool(one(connection, "SELECT count(*) FROM orders WHERE id = %s", id))
    return False


def event_ids(connection: Connection) -> list[int]:
    """The ids of all that is in the log, older incarnations included."""
    return [id for (id,) in connection.execute("SELECT id FROM forge_events ORDER BY id").fetchall()]


def dump(server: PostgresServer, url: str, file: Path, *options: str) -> None:
    """Dump a database into a file of SQL."""
    command = [str(server.bin / "pg_dump"), *options, "-f", str(file), url]
    subprocess.run(command, check=True, capture_output=True)


def restore(server: PostgresServer, url: str, file: Path) -> None:
    """Run a dump; every statement must succeed."""
    command = [str(server.bin / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(file), url]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


async def refused(url: str, cursor: Cursor) -> None:
    """The cursor is foreign, to a reader and to a follower."""
    async with Reader.open(url) as reader:
        with pytest.raises(CursorForeign) as caught:
            await changes(reader, cursor)
        assert "read the tables again" in caught.value.fix
    with pytest.raises(CursorForeign):
        await anext(follow(url, after=cursor))


@pytest.mark.contract("X12")
async def test_failover_to_a_standby() -> None:
    with temporary_postgres() as primary:
        with connect(primary.url()) as connection:
            install(connection)
            orders(connection)
            add(connection, 1)
        old = await now(primary.url())
        with standby_of(primary) as standby, connect(primary.url()) as connection:
            add(connection, 2)
            await eventually(lambda: caught_up(standby, 2))
            with pytest.raises(ServerError, match="standby") as caught:
                async with Reader.open(standby.url()):
                    pass
            assert caught.value.fix == "connect to the primary"
            with pytest.raises(ServerError, match="standby"):
                await anext(follow(standby.url(), after=old))
            with connect(standby.url()) as reading, pytest.raises(ServerError, match="standby"):
                install(reading)
            new = await now(primary.url())
            primary.stop("immediate")
            with connect(standby.url()) as promoted:
                assert one(promoted, "SELECT pg_promote()")
                for cursor in (old, new):
                    await refused(standby.url(), cursor)
                before = event_ids(promoted)
                async with Reader.open(standby.url()) as reader:
                    assert reader.identity.system_identifier == old.log.system_identifier
                    assert reader.identity.timeline > old.log.timeline
                    assert reader.identity.uuid != old.log.uuid
                    assert await changes(reader, reader.start()) == []
                    assert one(promoted, "SELECT count(*) FROM forge_events WHERE operation = 'INSERT'") == 2
                    cursor = await reader.now()
                    async with Follower(standby.url(), cursor) as node:
                        add(promoted, 3)
                        assert await node.got(1) == [3]
                    assert keys(await changes(reader, reader.start())) == [3]
                    assert not set(event_ids(promoted)[len(before) :]) & set(before)
                    again = await now(standby.url())
                    assert again.log == reader.identity, "the new log stays the same one"


@pytest.fixture(params=["another server", "the same server"])
def target(request: pytest.FixtureRequest, server: PostgresServer) -> Iterator[str]:
    """An empty database to restore into."""
    with ExitStack() as stack:
        there = server if request.param == "the same server" else stack.enter_context(temporary_postgres())
        yield stack.enter_context(fresh_database(there))


@pytest.mark.contract("X12")
async def test_dump_and_restore(server: PostgresServer, database: str, connection: Connection, target: str) -> None:
    orders(connection)
    add(connection, 1)
    connection.execute("UPDATE orders SET note = 'changed'")
    old = await now(database)
    file = server.data.parent / "dump.sql"
    dump(server, database, file)
    restore(server, target, file)
    with connect(target) as restored:
        before = event_ids(restored)
        assert before == event_ids(connection)
        assert install(restored) == []
        await refused(target, old)
        async with Reader.open(target) as reader:
            again = await changes(reader, reader.start())
            assert {change.op for change in again} <= {Op.SCHEMA}, "no row of the old log is delivered again"
            cursor = await reader.now()
            add(restored, 2)
            restored.execute("DELETE FROM orders WHERE id = 1")
            assert keys(await changes(reader, cursor)) == [2, 1]
            assert keys(await changes(reader, reader.start()))[-2:] == [2, 1]
        ids = event_ids(restored)
        assert len(ids) == len(set(ids))
        assert set(before) < set(ids)
    add(connection, 5)
    async with Reader.open(database) as reader:
        assert keys(await changes(reader, old)) == [5], "the original goes on"


@pytest.mark.contract("X12")
async def test_a_dump_restored_over_its_own_database(
    server: PostgresServer, database: str, connection: Connection
) -> None:
    """Everything goes back in time, and neither server, timeline nor database is another."""
    orders(connection)
    add(connection, 1)
    before = await now(database)
    file = server.data.parent / "over.sql"
    dump(server, database, file, "--clean", "--if-exists")
    add(connection, 2)
    after = await now(database)
    connection.close()
    restore(server, database, file)
    with connect(database) as restored:
        install(restored)
        for cursor in (before, after):
            await refused(database, cursor)
        async with Reader.open(database) as reader:
            cursor = await reader.now()
            add(restored, 2)
            assert keys(await changes(reader, cursor)) == [2]


@pytest.mark.contract("X12")
async def test_a_copied_database_is_another_log(server: PostgresServer, database: str, connection: Connection) -> None:
    orders(connection)
    add(connection, 1)
    old = await now(database)
    name = connection.info.dbname
    connection.close()
    with fresh_database(server, template=name) as copy, connect(copy) as copied:
        await refused(copy, old)
        async with Reader.open(copy) as reader:
            assert await changes(reader, reader.start()) == []
            cursor = await reader.now()
            add(copied, 2)
            assert keys(await changes(reader, cursor)) == [2]
    with connect(database) as original:
        add(original, 3)
    async with Reader.open(database) as reader:
        assert keys(await changes(reader, old)) == [3]


@pytest.mark.contract("X12")
async def test_a_writer_that_began_before_the_new_identity_was_recorded_is_delivered(
    database: str, connection: Connection
) -> None:
    """After a failover the first writers may be in flight when the first reader comes."""
    orders(connection)
    connection.execute("UPDATE forge.log_identity SET timeline = 99")  # as if it had been another timeline until now
    with connect(database) as writer:
        writer.execute("BEGIN")
        add(writer, 1)
        xid = one(writer, "SELECT pg_current_xact_id()::text::bigint")
        opening = asyncio.create_task(now(database))
        await asyncio.wait({opening}, timeout=0.5)  # it may wait for the writer, or not
        writer.execute("COMMIT")
        cursor = await opening
    async with Reader.open(database) as reader:
        assert keys(await changes(reader, cursor)) == ([] if cursor.snapshot.sees(xid) else [1])


@pytest.mark.contract("X12")
async def test_a_flushed_batch_survives_a_crash_and_an_unflushed_one_need_not() -> None:
    with temporary_postgres(settings={"wal_writer_delay": "10s"}) as server:
        url = server.url()
        with connect(url) as connection:
            install(connection)
            orders(connection)
        with connect(url) as writer:
            writer.execute("SET synchronous_commit = off")
            async with Reader.open(url) as reader:
                cursor = await reader.now()
                add(writer, 1)
                (first,) = await batches(reader, cursor)
                assert keys(first.changes) == [1]
                assert not first.flushed
                await reader.flushed(first.lsn)
                assert one(writer, "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", first.lsn)
                add(writer, 2)
                (second,) = await batches(reader, first.cursor)
                assert keys(second.changes) == [2]
                assert not second.flushed
                server.crash()
        server.start()
        with connect(url) as connection:
            assert connection.execute("SELECT id FROM orders").fetchall() == [(1,)]
            async with Reader.open(url) as reader:
                assert reader.identity == cursor.log
                assert keys(await changes(reader, cursor)) == [1]
                assert keys(await changes(reader, first.cursor)) == []
                with pytest.raises(CursorForeign, match="ahead"):
                    await changes(reader, second.cursor)
                add(connection, 3)
                assert keys(await changes(reader, first.cursor)) == [3]
