"""`forge serve`: an application on a port, one process or several, told to end while clients listen."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from forge.app import SERVE_FLAGS
from forge.changelog.install import install
from forge.cli import main
from forge.postgres.connection import connect
from forge.testing.postgres import fresh_database, temporary_postgres

pytestmark = pytest.mark.command

SHOP = """
import forge

app = forge.Forge()


@app.query
async def items(ctx):
    return await ctx.db.fetch("SELECT id FROM item ORDER BY id")


@app.mutation
async def add(ctx, id: int):
    await ctx.db.execute("INSERT INTO item VALUES (%(id)s)")


not_an_app = 1
"""
MODULES = {"shop": SHOP, "broken": "import nosuch", "wrong": "def"}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with temporary_postgres() as server, fresh_database(server) as url:
        with connect(url) as connection:
            install(connection)
            connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
            connection.execute("SELECT public.forge_enable_reactivity('item')")
        yield url


def modules(folder: Path) -> None:
    """Write an application, and two modules that cannot be imported."""
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)


def forge(*arguments: str, folder: Path, url: str) -> subprocess.Popen[str]:
    modules(folder)
    return subprocess.Popen(
        [sys.executable, "-m", "forge", "serve", *arguments],
        cwd=folder,
        env={**os.environ, "FORGE_DATABASE_URL": url, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def serving(url: str, folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = forge("shop:app", "--port", str(port), *options, folder=folder, url=url)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                if httpx.get(f"{address}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield address, process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("options", "end"),
    [((), signal.SIGTERM), ((), signal.SIGHUP), (("--workers", "2"), signal.SIGTERM)],
    ids=["one", "a closed terminal", "two"],
)
def test_clients_are_told_to_come_back_when_it_ends(
    database: str, tmp_path: Path, options: tuple[str, ...], end: signal.Signals
) -> None:
    with serving(database, tmp_path, *options) as (address, process):
        with httpx.stream("GET", f"{address}/forge/live/items", timeout=30) as response:
            lines = response.iter_lines()
            assert any(line == "event: snapshot" for line in lines)
            added = httpx.post(f"{address}/forge/mutation/add", json={"id": len(options) + end}, timeout=30)
            assert added.status_code == 200
            assert any(line == "event: update" for line in lines)
            process.send_signal(end)
            assert any(line == "event: bye" for line in lines)
        out, err = process.communicate(timeout=30)
        assert process.returncode in (0, 128 + signal.SIGTERM, -signal.SIGTERM), err
        assert "Traceback" not in err, err
        assert address in out


def test_flags_win_over_the_environment_and_the_file(database: str, tmp_path: Path) -> None:
    (tmp_path / "forge.toml").write_text('database_url = "postgresql://postgres@127.0.0.1:1/nowhere"\n')
    with serving("postgresql://postgres@127.0.0.1:1/nowhere", tmp_path, "--database-url", database) as (address, _):
        assert httpx.post(f"{address}/forge/query/items", timeout=30).status_code == 200


def test_the_port_of_the_environment_wins_over_that_of_the_file(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "forge.toml").write_text("[serve]\nport = 1\n")
        monkeypatch.setenv("FORGE_SERVE_PORT", str(port))
        process = forge("shop:app", folder=tmp_path, url=database)
        _, err = process.communicate(timeout=60)
        assert f"error: port {port} is taken" in err
    with serving(database, tmp_path) as (address, _):  # by --port
        assert httpx.get(f"{address}/readyz").status_code == 200


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop", "'shop' is not MODULE:APP"),
        ("nowhere:app", "there is no module nowhere"),
        ("broken:app", "broken imports nosuch, which is not installed"),
        ("wrong:app", "wrong cannot be imported: SyntaxError"),
        ("shop:missing", "missing in shop is not a forge.Forge"),
        ("shop:not_an_app", "not_an_app in shop is not a forge.Forge"),
    ],
)
def test_what_cannot_be_served(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    said: str,
) -> None:
    modules(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(SERVE_FLAGS, "")
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["serve", target, "--database-url", database])
    for name in MODULES:
        sys.modules.pop(name, None)
    err = capsys.readouterr().err
    assert ended.value.code == 1
    assert said in err
    assert "fix: " in err
    assert "Traceback" not in err


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    process = forge("shop:app", "--port", "0", folder=tmp_path, url="postgresql://postgres@127.0.0.1:1/postgres")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error: cannot reach the database" in err
    assert "fix: " in err
    assert "Traceback" not in err


def test_a_port_that_is_taken(database: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = forge("shop:app", "--port", str(port), folder=tmp_path, url=database)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"error: port {port} is taken\nfix: forge serve shop:app --port {port + 1}" in err


def test_the_consoles_doctor_looks_by_the_servers_configuration(database: str, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('log_size_limit = "7GB"\n')
    with serving(database, tmp_path, "--config", str(settings)) as (address, _):
        found = httpx.post(f"{address}/forge/query/forge.doctor", json={}, timeout=30).json()["result"]
    (growth,) = [each for each in found if each["check"] == "growth"]
    assert growth["what"].endswith("of 7 GB")


SLOW = {
    "dead_letters": ("dead_letter", "forge console"),  # in a thread, on a connection of its own
    "outbox": ("outbox", "forge outbox"),  # in a thread, on one of the outbox
    "consumers": ("consumer", "forge"),  # on the loop
}
"""Questions of the console: the table that they wait for, and as who."""


def test_slow_questions_of_the_console_do_not_delay_the_end(database: str, tmp_path: Path) -> None:
    def waiting() -> Counter[str]:
        other.execute("SELECT pg_stat_clear_snapshot()")
        rows = other.execute("SELECT application_name FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchall()
        return Counter(name for (name,) in rows)

    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, waiting()
            time.sleep(0.02)

    def ask(name: str) -> str:
        return httpx.post(f"{address}/forge/query/forge.{name}", json={}, timeout=60).text

    def listen(name: str) -> str:
        return httpx.get(f"{address}/forge/live/forge.{name}", timeout=60).text

    with (
        connect(database) as other,
        serving(database, tmp_path) as (address, process),
        ThreadPoolExecutor(2 * len(SLOW)) as threads,
        other.transaction(),
    ):
        for table, _ in SLOW.values():
            other.execute(f"LOCK TABLE forge.{table} IN ACCESS EXCLUSIVE MODE".encode())
        asked = [threads.submit(ask, name) for name in SLOW]
        heard = [threads.submit(listen, name) for name in SLOW]
        wait_for(lambda: waiting() >= Counter([name for _, name in SLOW.values()] * 2))
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        took = time.monotonic() - begun
        assert took < 5, took  # 1 s on a quiet machine; requests have 10 s, statements of the console 30 s
        assert "Traceback" not in err, err
        assert all("the server ends before this is answered" in each.result() for each in asked)
        assert all("event: bye" in each.result() for each in heard)
        wait_for(lambda: "forge console" not in waiting())
