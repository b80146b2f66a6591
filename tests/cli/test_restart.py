"""Commands that run for ever and are started while the server restarts: they wait; a wrong URL is told at once."""

import json
import os
import signal
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import IO

import pytest

from forge.changelog.install import install
from forge.embedded import PostgresServer
from forge.errors import ServerError
from forge.postgres.connection import Connection, await_server, connect, rejecting
from forge.testing import temporary_postgres
from tests.command import Forge

pytestmark = pytest.mark.command

Start = Callable[..., "subprocess.Popen[str]"]
SOON = 60.0
WAITING = "waiting: the server is starting up or shutting down; waiting until it takes connections\n"
SHOP = """
from forge import Forge
app = Forge()

@app.consumer("copy", tables=["orders"])
async def copy(ctx, change):
    print("handled", change.row_id, flush=True)

@app.on_outbox("order.paid")
async def paid(message):
    pass
"""


class Restart:
    """A server that shuts down but is held up by a session, so that it says so to everybody who comes."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.url = server.url()
        self._held: Connection | None = None

    def begin(self) -> None:
        """A smart shutdown: new connections are refused with 57P03 until the last session ends."""
        self._held = connect(self.url)
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGTERM)
        end = time.monotonic() + SOON
        while not rejecting(self.url):
            assert time.monotonic() < end

    def finish(self) -> None:
        """The server goes, and comes back."""
        assert self._held is not None
        self._held.close()
        self.server.stop()
        self.server.start()


@pytest.fixture
def restart() -> Iterator[Restart]:
    with temporary_postgres() as server:
        with connect(server.url()) as connection:
            install(connection)
            connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
            connection.execute("SELECT forge_enable_reactivity('orders')")
        yield Restart(server)


@pytest.fixture
def shop(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))


class Lines:
    """What a process prints, line by line, each awaited with a deadline."""

    def __init__(self, stream: IO[str]) -> None:
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put(line)

    def until(self, wanted: str) -> str:
        seen: list[str] = []
        end = time.monotonic() + SOON
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                pytest.fail(f"{wanted!r} was not printed, but {seen}")
            seen.append(line)
            if wanted in line:
                return line


@pytest.mark.parametrize(
    ("words", "ready"),
    [
        (("maintain",), "keeping the log"),
        (("serve", "shop:app", "--port", "0"), "serving shop:app"),
        (("consumers", "run", "shop:app"), "working on copy"),
        (("outbox", "run", "shop:app"), "sending order.paid"),
        (("webhooks", "run"), "sending to the webhooks"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_service_waits(start: Start, shop: None, restart: Restart, words: tuple[str, ...], ready: str) -> None:
    restart.begin()
    process = start(*words, url=restart.url)
    assert process.stderr is not None
    assert process.stdout is not None
    err, out = Lines(process.stderr), Lines(process.stdout)
    assert err.until("waiting") == WAITING
    restart.finish()
    out.until(ready)
    assert process.poll() is None


@pytest.mark.parametrize("feed", ["log", "snapshot", "wal"])
def test_a_tail_waits_and_then_prints(start: Start, restart: Restart, feed: str) -> None:
    url = restart.url + "?feed=wal" if feed == "wal" else restart.url
    with connect(restart.url) as connection:
        connection.execute("INSERT INTO orders VALUES (1, 'early')")
    restart.begin()
    words = ["--from", "start"] if feed == "log" else ["--snapshot"]
    process = start("tail", url, "--table", "orders", "--format", "json", *words)
    assert process.stderr is not None
    assert process.stdout is not None
    err, out = Lines(process.stderr), Lines(process.stdout)
    assert err.until("waiting") == WAITING
    restart.finish()
    assert json.loads(out.until('"early"'))["after"] == {"id": 1, "status": "early"}
    with connect(restart.url) as connection:
        connection.execute("INSERT INTO orders VALUES (2, 'later')")
    assert json.loads(out.until('"later"'))["operation"] == "INSERT"


def test_a_command_that_ends_does_not_wait(forge: Forge, restart: Restart) -> None:
    restart.begin()
    for words in (["tail", "--once"], ["status"]):
        result = forge(*words, url=restart.url)
        assert (result.code, result.out) == (1, "")
        assert "shutting down" in result.err
        assert "waiting" not in result.err
    restart.finish()


@pytest.mark.parametrize("words", [["tail"], ["maintain"]])
def test_nobody_there_is_told_at_once(forge: Forge, words: list[str]) -> None:
    result = forge(*words, url="postgresql://postgres@127.0.0.1:1/x")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: cannot reach the database")
    assert "waiting" not in result.err


def test_a_database_that_is_not_there_after_the_wait_is_told(restart: Restart) -> None:
    told: list[str] = []
    missing = restart.server.url("missing")
    with pytest.raises(ServerError, match="does not exist"):
        await_server(missing, told.append)
    assert told == []
    restart.begin()
    finishing = threading.Thread(target=restart.finish)

    def waiting(text: str) -> None:
        told.append(text)
        finishing.start()

    with pytest.raises(ServerError, match="does not exist"):
        await_server(missing, waiting)
    finishing.join()
    assert len(told) == 1
