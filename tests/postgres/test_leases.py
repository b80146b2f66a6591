"""Leases: one holder at a time, which only Forge's roles can be, and which is replaced once its session has ended."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest

from forge.changelog.install import install, installed_version, migrations
from forge.changelog.maintenance import Policy, run_once
from forge.changelog.queries import maintenance
from forge.embedded import PostgresServer
from forge.postgres import leases
from forge.postgres.connection import Connection, connect

JOB = "job"


@pytest.fixture
def other(database: str) -> Iterator[Connection]:
    with connect(database, application_name="another node") as connection:
        yield connection


def holder(connection: Connection) -> int | None:
    return next((each.pid for each in leases.holders(connection) if each.name == JOB), None)


@pytest.mark.every_version
def test_one_session_holds_until_it_gives_up(connection: Connection, other: Connection) -> None:
    assert leases.take(connection, JOB)
    assert leases.take(connection, JOB)
    assert not leases.take(other, JOB)
    assert leases.take(other, "another job")
    leases.give_up(other, JOB)
    assert holder(other) == connection.info.backend_pid
    leases.give_up(connection, JOB)
    assert holder(other) is None
    assert leases.take(other, JOB)


@pytest.mark.every_version
def test_a_session_that_has_ended_is_replaced(connection: Connection, database: str) -> None:
    with connect(database) as dying:
        assert leases.take(dying, JOB)
        pid = dying.info.backend_pid
        assert not leases.take(connection, JOB)
    wait_for_end(connection, pid)
    assert leases.take(connection, JOB)
    assert holder(connection) == connection.info.backend_pid


@pytest.mark.every_version
def test_a_holder_holds_no_vacuum_back(connection: Connection, other: Connection) -> None:
    assert leases.take(other, JOB)
    row = connection.execute(
        "SELECT state, backend_xid, backend_xmin FROM pg_stat_activity WHERE pid = %s", (other.info.backend_pid,)
    ).fetchone()
    assert row == ("idle", None, None)


def test_the_holder_is_named(connection: Connection, other: Connection) -> None:
    assert leases.take(other, JOB)
    (found,) = leases.holders(connection)
    assert (found.name, found.pid, found.application) == (JOB, other.info.backend_pid, "another node")
    assert found.role == other.info.user
    assert found.client is not None
    assert found.since is not None
    assert all(text in str(found) for text in (str(found.pid), "another node", found.client, "since"))


def test_another_session_with_the_pid_of_one_that_has_ended_does_not_hold(
    connection: Connection, other: Connection, server: PostgresServer
) -> None:
    """A pid is given again; whoever gets it, be it this very session, is not the one that held."""
    role = f"stranger_{connection.info.dbname}"
    connection.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        with psycopg.connect(server.url(connection.info.dbname, role), autocommit=True) as stranger:
            for pid in (connection.info.backend_pid, other.info.backend_pid, stranger.info.backend_pid):
                connection.execute(
                    "INSERT INTO forge.lease (name, pid, started) VALUES (%s, %s, '2020-01-01')"
                    " ON CONFLICT (name) DO UPDATE SET pid = excluded.pid, started = excluded.started",
                    (JOB, pid),
                )
                assert holder(connection) is None
                assert leases.take(connection, JOB)
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_role_that_cannot_see_when_another_began_does_not_push_it_out(
    connection: Connection, other: Connection, server: PostgresServer
) -> None:
    """Of Forge's roles one need not see the other's sessions whole; a stranger that got the pid is none of them."""
    node, stranger = (f"{name}_{connection.info.dbname}" for name in ("node", "stranger"))
    connection.execute(
        f"CREATE ROLE {node} LOGIN; CREATE ROLE {stranger} LOGIN; GRANT USAGE ON SCHEMA forge TO {node};"
        f" GRANT SELECT, INSERT, UPDATE, DELETE ON forge.lease, forge.held_lease TO {node}".encode()
    )
    name = connection.info.dbname
    try:
        with (
            connect(server.url(name, node)) as second,
            psycopg.connect(server.url(name, stranger), autocommit=True) as passing,
        ):
            assert leases.take(other, JOB)
            assert not leases.take(second, JOB)
            assert holder(second) == other.info.backend_pid
            connection.execute("UPDATE forge.lease SET pid = %s", (passing.info.backend_pid,))
            assert leases.take(second, JOB)
            assert not leases.take(other, JOB)
            assert holder(other) == second.info.backend_pid
    finally:
        connection.execute(f"DROP OWNED BY {node}, {stranger}; DROP ROLE {node}, {stranger}".encode())


def test_whoever_cannot_see_its_own_beginning_holds_all_the_same(
    connection: Connection, other: Connection, server: PostgresServer
) -> None:
    """As a login role does that has become Forge's by SET ROLE."""
    owner, login = (f"{name}_{connection.info.dbname}" for name in ("owner", "login"))
    connection.execute(
        f"CREATE ROLE {owner}; CREATE ROLE {login} LOGIN NOINHERIT IN ROLE {owner};"
        f" GRANT USAGE ON SCHEMA forge TO {owner};"
        f" GRANT SELECT, INSERT, UPDATE, DELETE ON forge.lease, forge.held_lease TO {owner};"
        f" ALTER TABLE forge.lease OWNER TO {owner}".encode()
    )
    try:
        with connect(server.url(connection.info.dbname, login), options=f"-c role={owner}") as node:
            assert leases.take(node, JOB)
            assert connection.execute("SELECT started FROM forge.lease").fetchone() == (None,)
            assert leases.take(node, JOB)
            assert not leases.take(other, JOB)
            assert holder(other) == node.info.backend_pid
            pid = node.info.backend_pid
        wait_for_end(connection, pid)
        assert leases.take(other, JOB)
    finally:
        connection.execute(f"ALTER TABLE forge.lease OWNER TO CURRENT_USER; DROP OWNED BY {owner}, {login}".encode())
        connection.execute(f"DROP ROLE {owner}, {login}".encode())


def test_a_stranger_cannot_touch_a_lease(connection: Connection, server: PostgresServer) -> None:
    role = f"stranger_{connection.info.dbname}"
    connection.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        with psycopg.connect(server.url(connection.info.dbname, role), autocommit=True) as stranger:
            for statement in (
                "SELECT forge.take_lease('job')",
                "SELECT * FROM forge.lease",
                "LOCK TABLE forge.lease IN ACCESS SHARE MODE",
                "DELETE FROM forge.lease",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege), stranger.transaction():
                    stranger.execute(statement.encode())
    finally:
        connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.every_version
def test_of_many_that_want_it_at_once_one_gets_it(connection: Connection, database: str) -> None:
    many = 6
    with ExitStack() as stack, ThreadPoolExecutor(many) as threads:
        for _ in range(10):
            candidates = [stack.enter_context(connect(database)) for _ in range(many)]
            together = threading.Barrier(many)

            def take(candidate: Connection, together: threading.Barrier = together) -> bool:
                together.wait()
                return leases.take(candidate, JOB)

            won = [each for each, got in zip(candidates, threads.map(take, candidates, timeout=60), strict=True) if got]
            assert len(won) == 1
            pid = won[0].info.backend_pid
            assert holder(connection) == pid
            for candidate in candidates:
                candidate.close()
            wait_for_end(connection, pid)


def test_maintenance_forgets_the_leases_of_sessions_that_ended(connection: Connection, database: str) -> None:
    assert leases.take(connection, JOB)
    connection.execute("INSERT INTO forge.lease (name, pid, started) VALUES ('gone', 1, '2020-01-01')")
    report = run_once(database, Policy())
    assert report.problems == []
    names = connection.execute("SELECT name FROM forge.lease ORDER BY name").fetchall()
    assert (JOB,) in names
    assert ("gone",) not in names


@pytest.mark.every_version
def test_maintenance_keeps_the_lease_that_a_new_session_takes_meanwhile(connection: Connection, database: str) -> None:
    """Who lives is looked up once per statement: a session that begins after that must not count as ended."""
    connection.execute("INSERT INTO forge.lease (name, pid, started) VALUES (%s, 1, '2020-01-01')", (JOB,))
    with ExitStack() as stack, ThreadPoolExecutor(1) as threads:
        keeper, taking = (stack.enter_context(connect(database)) for _ in range(2))
        with taking.transaction():
            taking.execute("SELECT FROM forge.lease WHERE name = %s FOR UPDATE", (JOB,))
            trimmed = threads.submit(keeper.execute, maintenance("trim_leases"))
            wait_for_lock(connection, keeper.info.backend_pid)
            new = stack.enter_context(connect(database))
            taking.execute(
                "UPDATE forge.lease SET pid = a.pid, started = a.backend_start FROM pg_stat_activity a"
                " WHERE a.pid = %s",
                (new.info.backend_pid,),
            )
        assert trimmed.result(timeout=20).rowcount == 0
        assert holder(connection) == new.info.backend_pid


@pytest.mark.every_version
def test_two_first_installs_at_once(empty_database: str) -> None:
    together = threading.Barrier(3)

    def run(_: int) -> int:
        with connect(empty_database) as connection:
            together.wait()
            return len(install(connection))

    with ThreadPoolExecutor(3) as threads:
        applied = list(threads.map(run, range(3), timeout=120))
    assert sorted(applied) == [0, 0, len(migrations())]
    with connect(empty_database) as connection:
        assert installed_version(connection) == migrations()[-1].version


def wait_for_lock(connection: Connection, pid: int) -> None:
    """Wait until a session waits for a lock."""
    deadline = time.monotonic() + 20
    waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    while connection.execute(waiting, (pid,)).fetchone() is None:
        assert time.monotonic() < deadline, "the session does not wait"
        time.sleep(0.01)


def wait_for_end(connection: Connection, pid: int) -> None:
    """A server takes a moment to end the session of a connection that was closed."""
    deadline = time.monotonic() + 20
    while connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is not None:
        assert time.monotonic() < deadline, "the session has not ended"
        time.sleep(0.01)
