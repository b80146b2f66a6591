"""Several processes write and read one file, and some are killed."""

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forge.capture.sqlite import SqliteSource, enable
from forge.change import Change
from tests.capture.sqlite.files import Replica, everything, now, since, stored, url_of, writer

pytestmark = [pytest.mark.contract("W6")]

WRITER = """
import random, sqlite3, sys
path, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
connection = sqlite3.connect(path, isolation_level=None, timeout=30)
connection.execute("PRAGMA synchronous = OFF")
for number in range(count):
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO commits (writer, number) VALUES (?, ?)", (seed, number))
    for _ in range(chance.randint(1, 4)):
        connection.execute("REPLACE INTO t VALUES (?, ?, ?)", (chance.randint(1, 50), chance.randint(1, 50), seed))
    if chance.random() < 0.2:
        connection.execute("DELETE FROM t WHERE id = ?", (chance.randint(1, 50),))
    connection.execute("ROLLBACK" if chance.random() < 0.1 else "COMMIT")
    print(number, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "shared.db"
    connection = writer(found)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, other UNIQUE, writer)")
    connection.execute("CREATE TABLE commits (n INTEGER PRIMARY KEY, writer, number)")
    connection.close()
    enable(url_of(found), every=True)
    return found


@pytest.fixture
def processes() -> Iterator[list["subprocess.Popen[str]"]]:
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def writing(path: Path, seed: int, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(path), str(seed), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_writers_of_several_processes_are_seen_in_the_order_of_commits(
    path: Path, processes: list["subprocess.Popen[str]"]
) -> None:
    start = await now(path)
    connection = writer(path)
    changes: list[Change] = []
    async with SqliteSource(url_of(path)) as source:

        async def read() -> None:
            async for batch in source.stream(start):
                changes.extend(batch.changes)

        reading = asyncio.create_task(read())
        for seed in range(4):
            processes.append(writing(path, seed, 60))
        for process in processes:
            await asyncio.to_thread(process.communicate)
            assert process.returncode == 0
        (head,) = connection.execute("SELECT max(id) FROM forge_queue").fetchone()
        async with asyncio.timeout(20):
            while not changes or changes[-1].source.position.partition(".")[0] != str(head):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        assert changes == await everything(source, start)
    replica = Replica(changes)
    for table in ("t", "commits"):
        assert replica.rows(table) == stored(connection, table)
    numbers = [change.key["n"] for change in changes if change.table == "commits" and change.key]
    assert numbers == sorted(numbers)
    assert len(numbers) == len(set(numbers))


async def test_a_writer_that_is_killed_leaves_whole_transactions(
    path: Path, processes: list["subprocess.Popen[str]"]
) -> None:
    start = await now(path)
    for seed in range(3):
        process = writing(path, seed, 100_000)
        processes.append(process)
        assert process.stdout is not None
        for _ in range(random.Random(seed).randint(5, 40)):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
    connection = writer(path)
    replica = Replica(await since(path, start))
    for table in ("t", "commits"):
        assert replica.rows(table) == stored(connection, table)
    assert replica.rows("commits")


async def test_a_locked_file_is_waited_for(path: Path) -> None:
    """A stream that is under way outlasts a lock of any length; what it read stays read."""
    plain = sqlite3.connect(path, isolation_level=None)
    plain.execute("PRAGMA journal_mode = DELETE")
    async with SqliteSource(url_of(path), patience=0.1) as source:
        cursor = await source.now()
        batches = source.stream(cursor)
        plain.execute("INSERT INTO t VALUES (1, 1, 0)")
        first = await anext(batches)
        plain.execute("BEGIN EXCLUSIVE")
        plain.execute("INSERT INTO t VALUES (2, 2, 0)")
        reading = asyncio.ensure_future(anext(batches))
        await asyncio.wait([reading], timeout=0.5)
        assert not reading.done()
        plain.execute("COMMIT")
        second = await asyncio.wait_for(reading, 10)
        assert [change.row_id for change in (*first.changes, *second.changes)] == ["1", "2"]
        await batches.aclose()
