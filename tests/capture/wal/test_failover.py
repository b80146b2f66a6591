"""A primary dies and its standby takes over: who has a failover slot goes on with its cursor, and nothing is lost.

The standby copies the slot (`sync_replication_slots`), and the primary sends a change to readers of such slots only
when the standby has it (`synchronized_standby_slots`). Where the primary does not wait, a reader may have seen what
the standby never got: its cursor is refused.
"""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

import forge
from forge.capture.wal import WalSource
from forge.embedded import PostgresServer
from forge.postgres.connection import connect
from forge.testing.postgres import available_versions, temporary_postgres
from tests.capture.wal.reading import changes, mark, to_end
from tests.servers.standby import standby_of

pytestmark = [
    pytest.mark.contract("W4"),
    pytest.mark.contract("X12"),
    pytest.mark.skipif(max(available_versions(), default=0) < 17, reason="failover slots come with PostgreSQL 17"),
]

SLOT = "forge_failover"


class Pair(NamedTuple):
    primary: PostgresServer
    standby: PostgresServer

    @property
    def either(self) -> str:
        """The URL of whichever of the two takes writes."""
        hosts = ",".join(urlsplit(server.url()).netloc.partition("@")[2] for server in self)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=5"

    def promote(self) -> None:
        with connect(self.standby.url()) as connection:
            assert connection.execute("SELECT pg_promote(wait => true)").fetchone() == (True,)


def _set(server: PostgresServer, **settings: str) -> None:
    with connect(server.url()) as connection:
        for name, value in settings.items():
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        connection.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    """One for all tests: each begins it again, with a standby of its own."""
    with temporary_postgres() as server:
        yield server


_AS_NEW = (
    "SET synchronous_commit = local",
    "ALTER SYSTEM RESET ALL",
    "SELECT pg_reload_conf()",
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
    f"DROP PUBLICATION IF EXISTS {SLOT}",
    "DROP TABLE IF EXISTS t",
    "CREATE TABLE t (id int PRIMARY KEY, who text)",
    "SELECT pg_create_physical_replication_slot('standby')",
)


@contextmanager
def paired(primary: PostgresServer, *, waits: bool) -> Iterator[Pair]:
    """The primary and a standby that copies its slots; one that waits tells readers nothing that the other has not."""
    if not primary.running:
        primary.start()
    with connect(primary.url()) as connection:
        for statement in _AS_NEW:
            connection.execute(statement)
    try:
        with standby_of(primary) as standby:
            _set(
                standby,
                primary_conninfo=f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres",
                primary_slot_name="standby",
                hot_standby_feedback="on",
                sync_replication_slots="on",
                wal_receiver_status_interval="1",
                wal_retrieve_retry_interval="100ms",
            )
            if waits:
                _set(primary, synchronized_standby_slots="standby")
            yield Pair(primary, standby)
    finally:
        shutil.rmtree(primary.data.parent / "standby", ignore_errors=True)


async def copy_slot(pair: Pair, source: WalSource, cursor: str) -> str:
    """Wait until the standby has the slot for good: it can once a reader acknowledges what came after its first try."""
    with connect(pair.primary.url()) as primary, connect(pair.standby.url()) as standby:
        while True:
            primary.execute("SELECT pg_log_standby_snapshot()")  # it would come by itself, within 15 seconds
            mark(primary)
            cursor = (await to_end(source, cursor, ack=True))[-1].cursor
            row = standby.execute(
                "SELECT synced AND NOT temporary AND invalidation_reason IS NULL FROM pg_replication_slots"
                " WHERE slot_name = %s",
                (SLOT,),
            ).fetchone()
            if row == (True,):
                return cursor


class Writer(threading.Thread):
    """Inserts rows one by one for as long as it can; `done` are those whose commit the primary confirmed."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.done: list[int] = []

    def run(self) -> None:
        with suppress(psycopg.OperationalError), connect(self._url) as connection:
            connection.execute("SET synchronous_commit = remote_apply")
            for number in range(1, 1_000_000):
                connection.execute("INSERT INTO t VALUES (%s, 'primary')", (number,))
                self.done.append(number)


async def test_a_stream_goes_on_at_the_promoted_standby(primary: PostgresServer) -> None:
    with paired(primary, waits=True) as pair:
        source = WalSource(pair.either, slot=SLOT, heartbeat=0.2, interval=0.2)
        cursor = await source.now()
        assert (await source.status()).details["failover"] is True
        async with asyncio.timeout(30):
            cursor = await copy_slot(pair, source, cursor)
        _set(pair.primary, synchronous_standby_names="*")
        writer = Writer(pair.primary.url())
        writer.start()
        seen: list[int] = []
        ids: list[str] = []
        async with asyncio.timeout(60), aclosing(source.stream(cursor)) as batches:
            async for batch in batches:
                seen += [int(change.row_id) for change in batch.changes]
                ids += [change.id for change in batch.changes]
                if len(seen) < 100:
                    await source.ack(batch.cursor)
                elif pair.primary.running:
                    await asyncio.to_thread(pair.primary.crash)
                    await asyncio.to_thread(writer.join)
                    await asyncio.to_thread(pair.promote)
                    with connect(pair.standby.url()) as connection:
                        connection.execute("ALTER SYSTEM RESET primary_conninfo")
                        connection.execute("INSERT INTO t VALUES (0, 'standby')")
                if 0 in seen:
                    break
            last = batch.cursor
        with connect(pair.standby.url()) as connection:
            there = [row[0] for row in connection.execute("SELECT id FROM t WHERE id > 0 ORDER BY id")]
        assert seen == [*there, 0]
        assert set(writer.done) <= set(there)
        assert len(set(ids)) == len(ids)
        again = WalSource(pair.standby.url(), slot=SLOT)
        with connect(pair.standby.url()) as connection:
            mark(connection)
        assert changes(await to_end(again, last)) == []


async def test_a_cursor_of_the_old_primary_is_good_at_the_new_one(primary: PostgresServer) -> None:
    with paired(primary, waits=True) as pair:
        source = WalSource(pair.primary.url(), slot=SLOT)
        cursor = await source.now()
        async with asyncio.timeout(30):
            cursor = await copy_slot(pair, source, cursor)
        with connect(pair.primary.url()) as connection:
            connection.execute("INSERT INTO t VALUES (1, 'read'), (2, 'read')")
            mark(connection)
        batches = await to_end(source, cursor)
        with connect(pair.primary.url()) as connection:
            connection.execute("INSERT INTO t VALUES (3, 'not read')")
            connection.execute("UPDATE t SET who = 'again' WHERE id = 1")
        await asyncio.to_thread(pair.primary.stop, "fast")  # the standby gets all of it
        await asyncio.to_thread(pair.promote)
        with connect(pair.standby.url()) as connection:
            connection.execute("DELETE FROM t WHERE id = 2")
            mark(connection)
        moved = WalSource(pair.standby.url(), slot=SLOT)
        rest = changes(await to_end(moved, batches[-1].cursor))
        assert [(change.op.value, change.row_id) for change in rest] == [
            ("insert", "3"), ("update", "1"), ("delete", "2"),
        ]  # fmt: skip
        first = [change.id for change in changes(batches)]
        assert [change.id for change in changes(await to_end(moved, cursor))][: len(first)] == first


async def test_what_only_the_old_primary_had_is_not_passed_over_in_silence(primary: PostgresServer) -> None:
    with paired(primary, waits=False) as pair:
        source = WalSource(pair.primary.url(), slot=SLOT)
        cursor = await source.now()
        async with asyncio.timeout(30):
            cursor = await copy_slot(pair, source, cursor)
        await asyncio.to_thread(pair.standby.stop)
        with connect(pair.primary.url()) as connection:
            connection.execute("INSERT INTO t VALUES (1, 'nobody else has it')")
            mark(connection)
        batches = await to_end(source, cursor)
        await asyncio.to_thread(pair.primary.crash)
        await asyncio.to_thread(pair.standby.start)
        await asyncio.to_thread(pair.promote)
        with connect(pair.standby.url()) as connection:
            connection.execute("INSERT INTO t VALUES (1, 'another')")
            for _ in range(50):
                connection.execute("SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1000))")
            mark(connection)
        moved = WalSource(pair.standby.url(), slot=SLOT)
        with pytest.raises(forge.CursorForeign, match="failover"):
            await to_end(moved, batches[-1].cursor)
        assert [change.after for change in changes(await to_end(moved, cursor))] == [{"id": 1, "who": "another"}]
