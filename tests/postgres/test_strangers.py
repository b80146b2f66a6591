"""A role without any right, but to connect, that takes every lock it can name: Forge works all the same.

It takes the numbers that it reads in pg_locks while Forge works, and those that the source code of any release shows.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from datetime import timedelta

import psycopg
import pytest

from forge.changelog.follow import SLOW_POLL, follow
from forge.changelog.install import install
from forge.changelog.maintenance import Policy, run_once
from forge.deliver.consumers import Consumers
from forge.doctor import examine
from forge.embedded import PostgresServer
from forge.pipeline.lease import lease
from forge.postgres.connection import Connection
from forge.versions import Resource, declare, maintain, newest, put, use_strategy
from forge.versions import install as install_versions
from tests.deliver.consumers.working import table, until, working
from tests.deliver.outbox.draining import collecting, draining
from tests.deliver.outbox.draining import put as put_message

WHOLE = [int.from_bytes(b"Forge\0\0\0") + number for number in range(128)]
"""Every number that has stood for a lock of Forge's."""
FIRST = [int.from_bytes(b"Forg"), int.from_bytes(b"Forg") + 1]
"""The first halves of those with two numbers; the second counts shards."""
SCHOOLS = Resource("ed-fi", "schools")


class Stranger:
    """A role that may connect. It holds whatever it could take."""

    def __init__(self, server: PostgresServer, connection: Connection) -> None:
        self.role = f"stranger_{connection.info.dbname}"
        connection.execute(f"CREATE ROLE {self.role} LOGIN".encode())
        self._owner = connection
        self.session = psycopg.connect(server.url(connection.info.dbname, self.role), autocommit=True)

    def take_all(self) -> None:
        """Take what the code shows, and what anybody holds now as soon as it is let go."""
        self.session.execute("SELECT pg_try_advisory_lock(n) FROM unnest(%s::bigint[]) n", (WHOLE,))
        self.session.execute(
            "SELECT pg_try_advisory_lock(f::integer, n) FROM unnest(%s::bigint[]) f, generate_series(0, 99) n", (FIRST,)
        )
        lake = ("SELECT pg_try_advisory_lock(hashtextextended('forge pipeline ' || %s, 0))", ("/lake",))
        self.session.execute(*lake)
        seen = self.session.execute(
            "SELECT classid::bigint << 32 | objid::bigint, classid::bigint, objid::bigint, objsubid FROM pg_locks"
            " WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
        ).fetchall()
        for whole, first, second, parts in seen:
            if parts == 1:
                self.session.execute("SELECT pg_try_advisory_lock(%s)", (whole,))
            else:
                self.session.execute("SELECT pg_try_advisory_lock(%s, %s)", (first, second))

    def end(self) -> None:
        self.session.close()
        self._owner.execute(f"DROP OWNED BY {self.role}; DROP ROLE {self.role}".encode())


@pytest.fixture
def stranger(server: PostgresServer, connection: Connection) -> Iterator[Stranger]:
    stranger = Stranger(server, connection)
    stranger.take_all()
    yield stranger
    stranger.end()


@pytest.mark.contract("T5", "R9")
@pytest.mark.every_version
def test_maintenance_goes_on(stranger: Stranger, database: str) -> None:
    report = run_once(database, Policy())
    assert not report.busy
    assert report.problems == []


async def test_consumers_go_on(stranger: Stranger, connection: Connection, database: str) -> None:
    table(connection)
    consumers, got = Consumers(), list[object]()

    @consumers.consumer("search", tables=["item"], start="start")
    async def keep(changes: object, context: object) -> None:
        got.append(changes)

    async with working(database, consumers):
        stranger.take_all()
        connection.execute("INSERT INTO item VALUES (1, 'a')")
        await until(lambda: got)
    stranger.take_all()
    async with working(database, consumers):
        connection.execute("INSERT INTO item VALUES (2, 'b')")
        await until(lambda: len(got) >= 2)


async def test_scheduled_messages_go_on(stranger: Stranger, connection: Connection, database: str) -> None:
    routes, got = collecting()
    put_message(connection, "a", "later", after=timedelta(seconds=0.2))
    async with draining(database, routes):
        await until(lambda: got)


def test_change_versions_go_on(stranger: Stranger, connection: Connection, database: str) -> None:
    within(lambda: install_versions(connection))
    declare(connection, SCHOOLS)
    stamp = put(connection, SCHOOLS, {"id": 1}, {}).version
    assert newest(connection) == stamp
    assert not maintain(connection).busy
    use_strategy(connection, "monotonic")


def test_an_upgrade_goes_on(stranger: Stranger, connection: Connection) -> None:
    within(lambda: install(connection))


def test_a_lake_is_kept(stranger: Stranger, database: str) -> None:
    with lease(database, "/lake"):
        pass


async def test_a_change_comes_by_the_poll_at_the_latest_and_the_doctor_says_why(
    stranger: Stranger, connection: Connection, database: str
) -> None:
    table(connection)
    opened: list[bool] = []
    async with aclosing(follow(database, on_open=opened.append)) as batches:
        first = asyncio.ensure_future(anext(batches))
        await until(lambda: opened)
        for number in range(3):
            connection.execute("INSERT INTO item VALUES (%s, 'a')", (number,))
            assert len((await asyncio.wait_for(first, SLOW_POLL + 20)).changes) == 1
            first = asyncio.ensure_future(anext(batches))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    found = [each for each in await asyncio.to_thread(lambda: list(examine(database))) if each.check == "locks"]
    assert [stranger.role in each.what for each in found] == [True, True]
    assert {word for each in found for word in ("wake-up", "pacemaker") if word in each.what} == {
        "wake-up",
        "pacemaker",
    }
    assert all(str(stranger.session.info.backend_pid) in (each.fix or "") for each in found)


def within(work: Callable[[], object], seconds: float = 20.0) -> None:
    """Run it, but not for ever."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits for a lock that a stranger holds"
    assert failures == []
