"""Live queries on read replicas: never an older result than was pushed, and the primary where no replica will do."""

from collections.abc import Callable, Iterator

import pytest

from forge.changelog.install import install
from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from forge.testing.postgres import temporary_postgres
from tests.changelog.following import eventually
from tests.react.live import QUICK, Live, Watcher, live
from tests.servers.standby import standby_of

WHERE = "SELECT v, pg_is_in_recovery() AS replica FROM t WHERE id = 1"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with temporary_postgres() as primary:
        with connect(primary.url()) as connection:
            install(connection)
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
            connection.execute("SELECT public.forge_enable_reactivity('t')")
            connection.execute("INSERT INTO t VALUES (1, 0)")
        with standby_of(primary) as standby:
            yield primary, standby


def register(node: Live) -> None:
    node.sql("anywhere", WHERE, reads=["t"])
    node.sql("consistent", WHERE, reads=["t"], consistent=True)


def has(number: int) -> Callable[[Watcher], bool]:
    return lambda watcher: bool(watcher.value[0]["v"] == number)


def replay(standby: PostgresServer, function: str) -> None:
    with connect(standby.url()) as connection:
        connection.execute(f"SELECT {function}()".encode())


@pytest.mark.contract("R10")
async def test_a_lagging_replica_never_yields_an_older_result(servers: tuple[PostgresServer, PostgresServer]) -> None:
    primary, standby = servers
    async with live(primary.url(), QUICK, replicas=[standby.url()]) as node:
        register(node)
        with connect(primary.url()) as writer:
            writer.execute("UPDATE t SET v = 0")
            watcher, strict = node.watch("anywhere", session=1), node.watch("consistent", session=2)
            await watcher.until(lambda w: w.pushes)
            await strict.until(lambda w: w.pushes)
            for number in range(1, 30):
                if number == 10:
                    replay(standby, "pg_wal_replay_pause")
                if number == 20:
                    replay(standby, "pg_wal_replay_resume")
                writer.execute("UPDATE t SET v = %s", (number,))
                await watcher.until(has(number))
        await strict.until(lambda w: w.value[0]["v"] == 29)
        values = [push.result.rows for push in watcher.pushes]
        seen = [int(row.split(b":")[1].split(b",")[0]) for (row,) in values]
        assert seen == sorted(seen)
        assert all(b"false" in push.result.rows[0] for push in strict.pushes)
        assert node.reactor.runner.fallbacks > 0
        paused = [row for (row,) in values if 10 <= int(row.split(b":")[1].split(b",")[0]) < 20]
        assert all(b"false" in row for row in paused)


@pytest.mark.contract("R10")
async def test_replicas_serve_what_they_have(servers: tuple[PostgresServer, PostgresServer]) -> None:
    primary, standby = servers
    async with live(primary.url(), QUICK, replicas=[standby.url()]) as node:
        register(node)
        with connect(primary.url()) as writer:
            await caught_up(writer, standby)
            watcher = node.watch("anywhere")
            await watcher.until(lambda w: w.pushes)
            assert watcher.value[0]["replica"] is True


@pytest.mark.contract("R10")
async def test_without_a_replica_the_primary_answers(servers: tuple[PostgresServer, PostgresServer]) -> None:
    primary, _ = servers
    nowhere = "postgresql://postgres@127.0.0.1:1/postgres"
    async with live(primary.url(), QUICK, replicas=[nowhere]) as node:
        register(node)
        watcher = node.watch("anywhere")
        await watcher.until(lambda w: w.pushes)
        assert watcher.value[0]["replica"] is False


async def caught_up(writer: Connection, standby: PostgresServer) -> None:
    row = writer.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    with connect(standby.url()) as connection:
        await eventually(
            lambda: connection.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", row).fetchone() == (True,)
        )
