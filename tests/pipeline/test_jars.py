"""Jars: fetched once, by one of several processes, whole or not at all; used only with the right hash."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from forge.errors import SparkUnavailable
from forge.pipeline.jars import DELTA_JARS, Jar, by_ivy, by_maven, delta_jars, resolve
from forge.pipeline.java import find_java

CONTENT = b"jar" * 1000
JAR = Jar("group", "thing", "1", hashlib.sha256(CONTENT).hexdigest())


def by_hand(jars: Sequence[Jar], here: Path) -> None:
    for jar in jars:
        (here / jar.file).write_bytes(CONTENT)


def by_nobody(jars: Sequence[Jar], here: Path) -> None:
    raise AssertionError(f"{jars} are fetched, though they are there")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java's way out is a port that nobody listens on; `mvn` cannot be found."""
    closed = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=9"
    monkeypatch.setenv("JAVA_HOME", str(find_java().resolve().parent.parent))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", closed)
    monkeypatch.setenv("PATH", "")


def test_jars_in_place_need_no_network_and_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    there = delta_jars()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert delta_jars() == there
    assert [hashlib.sha256(jar.read_bytes()).hexdigest() for jar in there] == [jar.sha256 for jar in DELTA_JARS]


def test_the_cache_can_be_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = delta_jars()
    folder = tmp_path / "jars" / there[0].parent.name
    folder.mkdir(parents=True)
    for jar in there:
        (folder / jar.name).symlink_to(jar)
    monkeypatch.setenv("FORGE_CACHE", str(tmp_path))
    assert delta_jars() == [folder / jar.name for jar in there]


@pytest.mark.parametrize("kept", [CONTENT[:-1], b"", b"other" + CONTENT[5:]], ids=["short", "empty", "other"])
def test_a_jar_that_is_not_whole_is_fetched_again(tmp_path: Path, kept: bytes) -> None:
    (tmp_path / JAR.file).write_bytes(kept)
    assert resolve([JAR], tmp_path, [by_hand]) == [tmp_path / JAR.file]
    assert (tmp_path / JAR.file).read_bytes() == CONTENT
    resolve([JAR], tmp_path, [by_nobody])


def test_a_jar_with_another_hash_is_not_kept(tmp_path: Path) -> None:
    def by_forger(jars: Sequence[Jar], here: Path) -> None:
        (here / JAR.file).write_bytes(b"forged")

    with pytest.raises(SparkUnavailable, match=r"forger did not bring the thing-1\.jar that Forge knows"):
        resolve([JAR], tmp_path, [by_forger])
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    resolve([JAR], tmp_path, [by_forger, by_hand])
    assert (tmp_path / JAR.file).read_bytes() == CONTENT


OF_SEVERAL = """
import sys, time
from pathlib import Path
from tests.pipeline.test_jars import JAR, by_hand
from forge.pipeline.jars import resolve

def by_turtle(jars, here):
    with open(sys.argv[1] + "/fetches", "a") as file:
        file.write("one\\n")
    (here / JAR.file).write_bytes(b"half")
    time.sleep(float(sys.argv[2]))
    by_hand(jars, here)

print(resolve([JAR], Path(sys.argv[1], "jars"), [by_turtle])[0].stat().st_size)
"""


def fetching(tmp_path: Path, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", OF_SEVERAL, str(tmp_path), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_of_several_processes_one_fetches(tmp_path: Path) -> None:
    processes = [fetching(tmp_path, 0.5) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in processes] == [f"{len(CONTENT)}\n"] * 3
    assert (tmp_path / "fetches").read_text() == "one\n"


def test_a_fetch_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    process = fetching(tmp_path, 60)
    deadline = time.monotonic() + 30
    while not list(folder.glob("fetching-*/*.jar")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert not (folder / JAR.file).exists()
    resolve([JAR], folder, [by_hand])
    assert sorted(path.name for path in folder.iterdir()) == ["lock", JAR.file]


def test_without_network_the_error_says_what_to_do(no_network: None, tmp_path: Path) -> None:
    with pytest.raises(
        SparkUnavailable, match=r"delta-storage-.*\.jar cannot be fetched: ivy failed.*; mvn is not inst"
    ) as e:
        resolve(DELTA_JARS[1:], tmp_path, [by_ivy, by_maven])
    assert "\n" not in str(e.value)
    assert str(tmp_path) in e.value.fix


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FORGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(SparkUnavailable, match=f"cannot be kept in {tmp_path}") as e:
        delta_jars()
    assert "FORGE_CACHE" in e.value.fix
