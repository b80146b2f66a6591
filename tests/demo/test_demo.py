"""The demo ends by itself with a summary that adds up, leaves no server behind, and can be run again."""

import asyncio
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.changelog.reader import Reader
from forge.demo import lake as lakes
from forge.demo import shop
from forge.demo.lake import LakeBeside
from forge.embedded import PostgresServer
from forge.errors import LakeError
from forge.postgres.connection import connect
from tests.command import Forge, environment

pytestmark = pytest.mark.command

STANDS_IN = """
import json, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
java = subprocess.Popen(["sleep", "600"])
pathlib.Path(sys.argv[1]).write_text(str(java.pid))
print(json.dumps({"changes": 3, "equal": True, "cursor": sys.argv[2]}), flush=True)
time.sleep(600)
"""
"""A run of the pipeline that has one batch, and then one that does not end; `sleep` is its Java."""

DEMO = """
import sys
from forge.cli import main
from forge.demo import lake
lake.unavailable = lambda: None
lake.command = lambda *_: [sys.executable, "-c", sys.argv[1], *sys.argv[2:4]]
main(sys.argv[4:])
"""


@pytest.fixture
def data() -> Iterator[Path]:
    """A directory that the server's user can reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="forge-demo-") as name:
        path = Path(name)
        path.chmod(0o711)
        yield path


def test_the_demo_on_the_embedded_server(process: Forge, data: Path) -> None:
    arguments = ("demo", "--no-lake", "--seconds", "3", "--rate", "30", "--data", str(data))
    result = process(*arguments, FORGE_DATABASE_URL="postgresql://not-used.invalid/x")
    assert result.code == 0, result.err
    first, *feed = result.out.splitlines()
    assert first.startswith("✓ PostgreSQL ")
    assert "embedded" in first
    assert "5 tables tracked" in first
    assert re.fullmatch(r"live page  http://127\.0\.0\.1:(\d+)        console  http://127\.0\.0\.1:\1/console", feed[0])
    summary = result.out[result.out.rindex("\n\n") :]
    assert "nothing lost, nothing twice ✓" in summary
    assert "commit to feed   p50" in summary
    assert any("checkout" in line and "INSERT" in line for line in feed)
    assert any("→" in line for line in feed)
    assert not PostgresServer(data / "postgres").running

    again = process(*arguments, "--json")
    assert again.code == 0, again.err
    found = json.loads(again.out)
    assert found["whole"]
    assert found["written"] == found["logged"] == found["seen"] == sum(found["tables"].values()) > 0


def test_ctrl_c_ends_the_demo_in_order(start: Callable[..., "subprocess.Popen[str]"], empty_database: str) -> None:
    demo = start("demo", "--no-lake", "--rate", "30", "--database-url", empty_database)
    assert demo.stdout is not None
    assert demo.stdout.readline().startswith("✓ PostgreSQL ")
    assert "shop" not in demo.stdout.readline()
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=60)
    assert (demo.returncode, err) == (0, "")
    assert "nothing lost, nothing twice ✓" in out


@pytest.mark.parametrize("again", [False, True], ids=["by the kernel", "and by the shell"])
def test_a_terminal_that_is_closed_leaves_no_server(
    start: Callable[..., "subprocess.Popen[str]"], data: Path, again: bool
) -> None:
    demo = start("demo", "--no-lake", "--no-open", "--rate", "30", "--data", str(data))
    assert demo.stdout is not None
    assert demo.stdout.readline().startswith("✓ PostgreSQL ")
    assert demo.stdout.readline().startswith("live page ")
    demo.send_signal(signal.SIGHUP)
    if again:
        time.sleep(0.2)  # signals that come together are one
        demo.send_signal(signal.SIGHUP)
    out, err = demo.communicate(timeout=60)
    assert (demo.returncode, err) == (0, "")
    assert "nothing lost, nothing twice ✓" in out
    assert not PostgresServer(data / "postgres").running


def test_the_lakes_command_is_one_that_forge_takes(
    forge: Forge, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to where Spark would be started."""
    pytest.importorskip("pyspark")
    started: list[dict[str, str]] = []

    def session(**options: Any) -> None:
        started.append(options["conf"])
        raise LakeError("Spark stays away", fix="none")

    monkeypatch.setattr("forge.pipeline.session.session", session)
    words = lakes.command(database, tmp_path / "lake", [f"{shop.SCHEMA}.{table}" for table in shop.TABLES])
    assert words[:3] == [sys.executable, "-m", "forge"]
    result = forge(*words[3:])
    assert (result.code, "Spark stays away" in result.err) == (1, True), result.err
    assert "spark.driver.extraJavaOptions" in started[0]


def test_a_schema_of_that_name_that_is_not_the_demos_is_left_alone(forge: Forge, empty_database: str) -> None:
    with connect(empty_database) as connection:
        connection.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int)")
        result = forge("demo", "--seconds", "1", "--database-url", empty_database)
        assert result.code == 1
        assert "schema shop of its own" in result.err
        assert connection.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone() == (0,)


def test_what_is_tracked_stays_as_its_user_has_it(forge: Forge, empty_database: str) -> None:
    shop.prepare(empty_database, lambda step: None)
    forge("enable", "shop.customers", "--exclude", "email", url=empty_database)
    forge("disable", "shop.orders", url=empty_database)
    shop.prepare(empty_database, lambda step: None)
    with connect(empty_database) as connection:
        found = connection.execute(
            "SELECT table_name, excluded, masked FROM forge.tracked_table WHERE disabled_at IS NULL"
        )
        tracked = {name: (excluded, masked) for name, excluded, masked in found}
    assert tracked == {table: ([], []) for table in shop.TABLES} | {
        "customers": (["email"], []),
        "payments": ([], ["card"]),
    }


@pytest.mark.parametrize("written", [0, 2], ids=["current", "behind"])
async def test_a_lake_is_equal_only_when_it_lacks_nothing(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    with connect(database) as connection:
        connection.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
        connection.execute("SELECT forge_enable_reactivity('customers')")
    cursor = await head(database)
    with connect(database) as connection:
        connection.execute("INSERT INTO customers SELECT i, 'n' FROM generate_series(1, %s) i", (written,))
    java = tmp_path / "java"
    importlib.import_module("forge.pipeline.lag")  # takes a second, which is not the lake's
    monkeypatch.setattr(lakes, "PATIENCE", 3.0 if written else 60.0)
    monkeypatch.setattr(lakes, "GRACE", 0.1)
    monkeypatch.setattr(lakes, "command", lambda *_: [sys.executable, "-c", STANDS_IN, str(java), cursor])
    told: list[int | None] = []
    lake = LakeBeside(database, tmp_path / "lake", ["public.customers"])
    async with asyncio.TaskGroup() as group:
        group.create_task(lake.follow())
        await asyncio.to_thread(begun, java)
        state = await lake.caught_up(told.append)
        await lake.stop()
    expected = "lake = database ✓" if not written else "✗ not compared: it did not catch up in time, 2 changes missing"
    assert state.line() == f"lake   3 changes in 1 batch   {expected}"
    assert (2 in told) == bool(written)
    ended(int(java.read_text()))


async def test_a_lake_that_dies_says_why(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it said more than a pipe holds."""
    dies = "import sys; print('WARN ' * 50_000, file=sys.stderr); raise OSError('no room')"
    monkeypatch.setattr(lakes, "command", lambda *_: [sys.executable, "-c", dies])
    told: list[str] = []
    lake = LakeBeside(database, tmp_path / "lake", [], told.append)
    async with asyncio.timeout(60):
        await lake.follow()
        state = await lake.caught_up()
    assert told == ["OSError: no room"]
    assert state.line() == "lake   0 changes in 0 batches   ✗ not compared: OSError: no room"


async def test_a_run_that_is_cancelled_leaves_no_process(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    monkeypatch.setattr(lakes, "command", lambda *_: [sys.executable, "-c", STANDS_IN, str(java), "-"])
    running = asyncio.create_task(LakeBeside(database, tmp_path / "lake", []).follow())
    await asyncio.to_thread(begun, java)
    running.cancel()
    await asyncio.wait([running], timeout=20)
    assert running.cancelled()
    ended(int(java.read_text()))


@pytest.mark.parametrize("signals", [1, 2], ids=["in order", "at once"])
def test_ctrl_c_ends_the_wait_for_the_lake_and_all_its_processes(database: str, tmp_path: Path, signals: int) -> None:
    java = tmp_path / "java"
    words = ["demo", "--no-page", "--seconds", "1", "--rate", "50", "--database-url", database]
    demo = subprocess.Popen(
        [sys.executable, "-c", DEMO, STANDS_IN, str(java), asyncio.run(head(database)), *words],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert demo.stdout is not None
        told = (line for line in demo.stdout if line.startswith("the lake takes in the rest: "))
        assert any(re.search("[0-9] changes? to come", line) for line in told)
        began = time.monotonic()
        for _ in range(signals):
            demo.send_signal(signal.SIGINT)
            time.sleep(0.2)  # signals that come together are one
        out, err = demo.communicate(timeout=60)
        assert time.monotonic() - began < lakes.GRACE, "nobody waits for the batch"
    finally:
        demo.kill()
        demo.communicate()
    assert err == ""
    ended(int(java.read_text()))
    if signals == 1:
        assert demo.returncode == 1
        assert "nothing lost, nothing twice ✓" in out
        assert re.search(r"✗ not compared: interrupted, [0-9,]+ changes? missing\n$", out)
    else:
        assert (demo.returncode, out) == (130, "")


async def head(url: str) -> str:
    async with Reader.open(url) as reader:
        return str(await reader.now())


def begun(java: Path) -> None:
    """The pipeline that stands in has started its Java."""
    deadline = time.monotonic() + 20
    while not java.exists() or not java.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(pid: int) -> None:
    """The process is gone, or will be in a moment."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"process {pid} was left behind")
