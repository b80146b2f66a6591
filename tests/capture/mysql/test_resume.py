"""Going on from a cursor: any cursor, after any death, on the same log or not at all."""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge.capture import Filter
from forge.change import Op
from forge.errors import CursorExpired, CursorForeign, CursorInvalid
from forge.testing.mariadb import MariadbServer, fresh_mariadb, run, temporary_mariadb
from tests.capture.mysql.reading import SOON, batches, changes, eventually, following, snapshot, source

pytestmark = [pytest.mark.contract("W5"), pytest.mark.contract("W12")]


@pytest.fixture(scope="module")
def mortal() -> Iterator[MariadbServer]:
    """A server that tests may stop, crash, purge and reset."""
    with temporary_mariadb() as server:
        yield server


@pytest.fixture
def mortal_database(mortal: MariadbServer) -> Iterator[str]:
    with fresh_mariadb(mortal) as url:
        yield url


async def test_from_any_cursor_of_any_batch(database: str) -> None:
    reader = source(database, page=3)
    run(database, "CREATE TABLE t (id int PRIMARY KEY, s text)", "CREATE TABLE u (id int PRIMARY KEY)")
    start = await reader.now()
    filling = ", ".join(f"({n}, repeat('x', 5000))" for n in range(20))
    run(
        database,
        "BEGIN",
        f"INSERT INTO t VALUES {filling}",
        "INSERT INTO u VALUES (1)",
        "UPDATE t SET id = id + 100 WHERE id < 5",
        "COMMIT",
        "TRUNCATE u",
        "ALTER TABLE u ADD COLUMN n int",
        "INSERT INTO u VALUES (1, 2)",
        "FLUSH BINARY LOGS",
        "DELETE FROM t WHERE id < 10",
        "INSERT INTO u VALUES (2, 2)",
    )
    whole = await batches(reader, start, lambda seen: len(seen) >= 20 + 1 + 10 + 2 + 1 + 5 + 1)
    ids = [change.id for batch in whole for change in batch.changes]
    assert len(set(ids)) == len(ids) == 40
    assert len(whole) > 10
    done = 0
    for batch in whole[:-1]:
        done += len(batch.changes)
        rest = await changes(source(database), batch.cursor, len(ids) - done)
        assert [change.id for change in rest] == ids[done:]
    only = await changes(source(database, Filter(tables=("u",))), whole[2].cursor, 5)
    assert [change.id for change in only] == [
        change.id for batch in whole for change in batch.changes if change.table == "u"
    ]


async def test_a_filtered_stream_moves_its_cursor_on(database: str) -> None:
    """What is not wanted is not read twice: the cursor passes it."""
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE noise (id int PRIMARY KEY)")
    reader = source(database, Filter(tables=("t",)))
    start = await reader.now()
    async with following(reader, start) as follower:
        run(database, "INSERT INTO noise VALUES (1)")
        end = await reader.now()
        await eventually(lambda: bool(follower.batches) and follower.batches[-1].cursor == end)
    assert follower.changes == []


def consumer(url: str, folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "tests.capture.mysql.consumer", url, str(folder)])


async def test_a_consumer_that_is_killed(database: str, tmp_path: Path) -> None:
    choose = random.Random(7)
    reader = source(database)
    run(database, "CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, s varchar(99))")
    start = await reader.now()
    (tmp_path / "cursor").write_text(start)
    (tmp_path / "seen").touch()
    for _ in range(2):
        process = consumer(database, tmp_path)
        size = (tmp_path / "seen").stat().st_size
        deadline = time.monotonic() + SOON
        while (tmp_path / "seen").stat().st_size == size:
            run(database, "INSERT INTO t (s) VALUES " + ", ".join(["(uuid())"] * choose.randrange(1, 30)))
            assert time.monotonic() < deadline
            assert process.poll() is None
            await asyncio.sleep(0.01)
        process.kill()
        process.wait()
    ((total,),) = run(database, "SELECT count(*) FROM t")
    rest = await changes(reader, (tmp_path / "cursor").read_text(), 0)
    assert rest == []
    process = consumer(database, tmp_path)
    try:
        deadline = time.monotonic() + SOON
        while len(set((tmp_path / "seen").read_text().split())) < total:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    truth = [change.id for change in await changes(reader, start, total)]
    seen = (tmp_path / "seen").read_text().split()
    assert list(dict.fromkeys(seen)) == truth


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_the_server_restarts(mortal: MariadbServer, mortal_database: str, how: str) -> None:
    run(mortal_database, "CREATE TABLE t (id int PRIMARY KEY)")
    async with following(source(mortal_database)) as follower:
        run(mortal_database, "INSERT INTO t VALUES (1)")
        await follower.until(lambda seen: len(seen) == 1)
        getattr(mortal, how)()
        await asyncio.to_thread(mortal.start)
        run(mortal_database, "INSERT INTO t VALUES (2)")
        found = await follower.until(lambda seen: len(seen) >= 2)
    assert [change.key for change in found] == [{"id": 1}, {"id": 2}]


async def test_purged_logs(mortal: MariadbServer, mortal_database: str) -> None:
    reader = source(mortal_database)
    run(mortal_database, "CREATE TABLE t (id int PRIMARY KEY)")
    start = await reader.now()
    run(mortal_database, "INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS")
    ((newest, *_),) = run(mortal_database, "SHOW MASTER STATUS")
    purge = f"PURGE BINARY LOGS TO '{newest}'"  # it is not done while the server still sends it to anybody
    await eventually(lambda: bool(run(mortal_database, purge, "SHOW BINARY LOGS")[0][0] == newest))
    with pytest.raises(CursorExpired) as expired:
        await changes(reader, start, 1)
    assert "snapshot" in expired.value.fix
    (first, *_) = await snapshot(reader)
    assert [change.after for change in first.changes] == [{"id": 1}]
    await reader.ack(start)
    assert "the server has purged" in " ".join((await reader.status()).warnings)


async def test_a_log_that_was_reset(mortal: MariadbServer, mortal_database: str) -> None:
    """The same file at the same offset, after RESET MASTER, is another log."""
    reader = source(mortal_database)
    run(mortal_database, "CREATE TABLE t (id int PRIMARY KEY)")
    cursor = await reader.now()
    run(mortal_database, "RESET MASTER")
    with pytest.raises(CursorForeign):
        await changes(reader, cursor, 1)
    first = await reader.now()
    await asyncio.sleep(1.0 - time.time() % 1.0)  # a file is told from another by the second in which it was begun
    run(mortal_database, "RESET MASTER")
    assert (await reader.now()).split(":")[:2] == first.split(":")[:2]
    with pytest.raises(CursorForeign):
        await changes(reader, first, 1)


async def test_cursors_that_are_none(database: str) -> None:
    reader = source(database)
    good = await reader.now()
    identity = good.split("_")[1]
    for text in (
        "",
        "nonsense",
        "mysql1_",
        good + " ",
        good.replace(":", ";"),
        good + "+***",
        f"mysql1_{identity}_x:y:z",
    ):
        with pytest.raises(CursorInvalid):
            await changes(reader, text, 1)
    for text in ("wal1_7_0/16B3748", good.replace(identity, "another"), good.replace("mysql-bin.0", "mysql-bin.9")):
        with pytest.raises(CursorForeign):
            await changes(reader, text, 1)
    file, offset, _ = good.split("_")[2].split(":")
    with pytest.raises(CursorForeign):
        await changes(reader, good.replace(f"{file}:{offset}", f"{file}:{int(offset) + 10**9}"), 1)
    with pytest.raises(CursorInvalid):
        await snapshot(reader, good)


async def test_another_server_of_the_same_history(mortal: MariadbServer) -> None:
    """A replica takes over: with failover=yes the cursor goes on there, by its global transaction id."""
    run(mortal.url(), "CREATE USER IF NOT EXISTS copy@'%' IDENTIFIED BY 'pw'", "GRANT ALL ON *.* TO copy@'%'")
    run(mortal.url(), "RESET MASTER")
    settings: dict[str, str | None] = {"server_id": "2", "log_slave_updates": "ON", "log_bin": "other-bin"}
    with temporary_mariadb(settings) as replica, fresh_mariadb(mortal) as url:
        name = url.rpartition("/")[2]
        run(
            replica.url(),
            f"CHANGE MASTER TO master_host='127.0.0.1', master_port={mortal.port}, master_user='copy',"
            " master_password='pw', master_use_gtid=slave_pos",
            "START SLAVE",
        )
        run(url, "CREATE TABLE t (id int PRIMARY KEY, s text)")
        before = source(url, page=2)
        start = await before.now()
        run(url, "BEGIN", *(f"INSERT INTO t VALUES ({n}, repeat('x', 5000))" for n in range(6)), "COMMIT")
        run(url, "INSERT INTO t VALUES (6, '')")
        whole = await batches(before, start, lambda seen: len(seen) == 7)
        ids = [change.id for batch in whole for change in batch.changes]
        end = run(mortal.url(), "SELECT @@gtid_binlog_pos")
        await eventually(lambda: run(replica.url(), "SELECT @@gtid_slave_pos") == end)
        with pytest.raises(CursorForeign):
            await changes(source(replica.url(name)), whole[0].cursor, 1)
        after = source(replica.url(name) + "?failover=yes", page=2)
        done = 0
        for batch in whole[:-1]:
            done += len(batch.changes)
            rest = await changes(after, batch.cursor, len(ids) - done)
            assert [change.id for change in rest] == ids[done:]
        there = await batches(after, whole[0].cursor, lambda seen: len(seen) >= 1)
        left = len(ids) - len(whole[0].changes) - len(there[0].changes)
        rest = await changes(source(replica.url(name)), there[0].cursor, left)
        assert [change.id for change in rest] == ids[-len(rest) :]
        lost = whole[0].cursor.rpartition("_")[0] + "_0-9-99999"
        with pytest.raises(CursorForeign):
            await changes(after, lost, 1)


async def test_truncate_is_told_as_such_after_a_resume(database: str) -> None:
    reader = source(database)
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    start = await reader.now()
    run(database, "TRUNCATE t", "INSERT INTO t VALUES (2)")
    first = await batches(source(database, page=1), start, lambda seen: len(seen) == 1)
    assert [change.op for change in first[0].changes] == [Op.TRUNCATE]
    (rest,) = await changes(reader, first[0].cursor, 1)
    assert rest.after == {"id": 2}
