"""Consumers of other databases: their changes come from there, and all that is saved of them is in Forge's."""

import asyncio
import json
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forge.app import Forge
from forge.capture.sqlite import enable
from forge.change import Change
from forge.changelog import unread
from forge.changelog.install import install
from forge.cli import main
from forge.deliver.consumers import ConsumerContext, Consumers, source_feed
from forge.deliver.consumers.control import Control
from forge.deliver.message import Message
from forge.doctor.consumers import consumers as consumers_of
from forge.doctor.finding import Case
from forge.embedded import PostgresServer
from forge.errors import ConsumerInvalid, CursorForeign, CursorInvalid
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database, temporary_postgres
from forge.testing.mariadb import MariadbServer, connect_mariadb, fresh_mariadb, mariadb_missing, temporary_mariadb
from forge.testing.mongo import temporary_mongo
from tests.deliver.consumers.mortal import Receipt, Task, started
from tests.deliver.consumers.working import SOON, table, until, working

Seen = list[tuple[str, str]]
ITEM = "CREATE TABLE item (id int PRIMARY KEY, v int)"
SITES = ("sqlite", "mariadb", "wal")


class Site:
    """A database that a consumer reads: its URL, what is written to it, and how it is restarted."""

    def __init__(self, url: str, open: Callable[[], Any], restart: Callable[[], None] = lambda: None) -> None:
        self.url = url
        self._open = open
        self._restart = restart
        self._connection = open()

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """In one transaction; the rows of the last."""
        cursor = self._connection.cursor()
        cursor.execute("BEGIN")
        for statement in statements:
            cursor.execute(statement)
        rows = list(cursor.fetchall()) if cursor.description else []
        cursor.execute("COMMIT")
        return rows

    def rows(self) -> dict[str, int]:
        return {str(id): v for id, v in self.run("SELECT id, v FROM item")}

    def restart(self) -> None:
        self.close()
        self._restart()
        self._connection = self._open()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_feed, "ACK", 0.02)
    monkeypatch.setattr(source_feed, "MEASURE", 0.05)


@pytest.fixture(scope="module")
def maria() -> Iterator[MariadbServer]:
    """A server that the tests of this file share; who restarts it leaves it running."""
    if missing := mariadb_missing():
        pytest.skip(missing)
    with temporary_mariadb() as server:
        yield server


@pytest.fixture
def other(server: PostgresServer) -> Iterator[str]:
    """Another database, of the server that has Forge's."""
    with fresh_database(server) as url:
        yield url


@contextmanager
def file_site(folder: Path) -> Iterator[Site]:
    path = folder / "shop.db"

    def opened() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    with opened() as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(ITEM)
    connection.close()
    enable(f"sqlite:///{path}", ["item"])
    yield from _closed(Site(f"sqlite:///{path}", opened))


@contextmanager
def maria_site(server: MariadbServer) -> Iterator[Site]:
    def restart() -> None:
        server.stop()
        server.start()

    with fresh_mariadb(server) as url:
        site = Site(url, lambda: connect_mariadb(url), restart)
        site.run(ITEM)
        yield from _closed(site)


@contextmanager
def wal_site(url: str, restart: Callable[[], None] = lambda: None) -> Iterator[Site]:
    site = Site(f"{url}{'&' if '?' in url else '?'}feed=wal", lambda: connect(url), restart)
    site.run(ITEM)
    yield from _closed(site)


def _closed(site: Site) -> Iterator[Site]:
    try:
        yield site
    finally:
        site.close()


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made: dict[str, Callable[[], Any]] = {
        "sqlite": lambda: file_site(tmp_path),
        "mariadb": lambda: maria_site(request.getfixturevalue("maria")),
        "wal": lambda: wal_site(request.getfixturevalue("other")),
    }
    with made[request.param]() as found:
        yield found


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Site]:
    with file_site(tmp_path) as found:
        yield found


def one(seen: Seen, site: Site, **options: Any) -> Consumers:
    """A consumer that remembers what it saw."""
    found = Consumers()

    @found.consumer("all", source=site.url, tables=["item"], **options)
    async def take(ctx: ConsumerContext, change: Change) -> None:
        seen.append((change.op.value, change.row_id))

    return found


async def ready(database: str, name: str = "all") -> str:
    """The cursor of a consumer that has come to its source."""
    control = Control(database)
    deadline = time.monotonic() + SOON
    while True:
        found = [status for status in await control.statuses() if status.name == name]
        if found and found[0].cursor not in ("now", "start"):
            return found[0].cursor
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.01)


# What is handled


@pytest.mark.contract("T7", "W12")
async def test_every_change_comes_once_and_goes_on_where_it_was(database: str, site: Site) -> None:
    seen: Seen = []
    site.run("INSERT INTO item VALUES (1, 0)")
    async with working(database, one(seen, site)):
        await ready(database)
        site.run("INSERT INTO item VALUES (2, 0), (3, 0)")
        await until(lambda: len(seen) == 2)
    site.run("UPDATE item SET v = 1 WHERE id = 2", "DELETE FROM item WHERE id = 3")
    async with working(database, one(seen, site)):
        await until(lambda: len(seen) == 4)
    assert seen == [("insert", "2"), ("insert", "3"), ("update", "2"), ("delete", "3")]


@pytest.mark.contract("W12")
async def test_from_the_start_the_rows_that_are_there_come_first(database: str, site: Site) -> None:
    seen: Seen = []
    site.run("INSERT INTO item VALUES (1, 0), (2, 0)")
    async with working(database, one(seen, site, start="start")):
        await until(lambda: len(seen) == 2)
        site.run("UPDATE item SET v = 1 WHERE id = 2")
        await until(lambda: len(seen) == 3)
    assert seen == [("read", "1"), ("read", "2"), ("update", "2")]


async def test_the_source_may_forget_what_is_saved(database: str, connection: Connection, file: Site) -> None:
    seen: Seen = []
    stop, go = asyncio.Event(), asyncio.Event()
    consumers = Consumers()

    @consumers.consumer("all", source=file.url)
    async def take(ctx: ConsumerContext, change: Change) -> None:
        if change.row_id == "2":
            stop.set()
            await go.wait()
        seen.append((change.op.value, change.row_id))

    def queued() -> int:
        ((count,),) = file.run("SELECT count(*) FROM forge_queue")
        return int(count)

    async with working(database, consumers):
        await ready(database)
        file.run("INSERT INTO item VALUES (1, 0), (2, 0), (3, 0)")
        async with asyncio.timeout(SOON):
            await stop.wait()
        await asyncio.sleep(10 * source_feed.ACK)
        assert queued() == 3, "a batch under way must stay with the source"
        go.set()
        await until(lambda: queued() == 1)  # the newest is never removed
    assert len(seen) == 3
    assert connection.execute("SELECT count(*) FROM forge.consumer_page").fetchone() == (0,)


async def test_a_slot_moves_on_behind_what_is_saved(database: str, connection: Connection, other: str) -> None:
    seen: Seen = []
    with wal_site(other) as site:

        def confirmed() -> int:
            row = connection.execute(
                "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name ~ 'all'"
            ).fetchone()
            return 0 if row is None else int(row[0])

        async with working(database, one(seen, site)):
            await ready(database)
            before = confirmed()
            site.run("INSERT INTO item VALUES (1, 0)")
            await until(lambda: len(seen) == 1 and confirmed() > before)


async def test_a_sink_gets_the_changes_of_a_source(database: str, file: Site) -> None:
    messages: list[Message] = []

    class Sink:
        async def send(self, messages_: Sequence[Message], /) -> None:
            messages.extend(messages_)

        async def close(self) -> None:
            return None

    app = Forge(database)
    app.deliver("out", to=Sink(), source=file.url, tables=["item"], topic="items")
    async with working(database, app.consumers):
        await ready(database, "out")
        file.run("INSERT INTO item VALUES (7, 1)")
        await until(lambda: messages)
    assert (messages[0].key, json.loads(messages[0].payload)["after"]) == ("7", {"id": 7, "v": 1})


@pytest.mark.contract("W13")
async def test_dead_letters_and_their_replay(database: str, site: Site) -> None:
    seen: Seen = []
    healed = False
    consumers = Consumers()

    @consumers.consumer("all", source=site.url, tables=["item"], tries=2, backoff=(0.001, 0.01))
    async def take(ctx: ConsumerContext, change: Change) -> None:
        if change.row_id == "2" and not healed:
            raise ValueError("no twos")
        seen.append((change.op.value, change.row_id))

    async with working(database, consumers):
        await ready(database)
        site.run("INSERT INTO item VALUES (1, 0), (2, 0), (3, 0)", "UPDATE item SET v = 1")
        await until(lambda: len(seen) == 4)
        control = Control(database)
        letters = await control.letters("all")
        assert [(each.key, each.tries, each.behind) for each in letters] == [("2", 2, False), ("2", 0, True)]
        healed = True
        assert await control.replay_dead("all") == (2, 0, 0)
        site.run("DELETE FROM item WHERE id = 2")
        await until(lambda: len(seen) == 7)
    assert [op for op, key in seen if key == "2"] == ["insert", "update", "delete"]


async def test_once_and_a_batch_that_is_interrupted(database: str, connection: Connection, file: Site) -> None:
    """A batch that was under way is finished as it was begun, also by a consumer that wants other changes by then."""
    connection.execute("CREATE TABLE done (id text, first bool)")
    stop = asyncio.Event()

    def made(last: str, **options: Any) -> Consumers:
        found = Consumers()

        @found.consumer("all", source=file.url, tables=["item"], **options)
        async def take(ctx: ConsumerContext, change: Change) -> None:
            if change.row_id == last:
                stop.set()
                raise ValueError("not yet")
            await ctx.tx.execute("INSERT INTO done VALUES (%s, %s)", (change.row_id, await ctx.once(change.id)))

        return found

    async with working(database, made("3", tries=None, backoff=(0.01, 0.01))):
        await ready(database)
        file.run("INSERT INTO item VALUES (1, 0), (2, 0), (3, 0), (4, 9)")
        async with asyncio.timeout(SOON):
            await stop.wait()
    assert (await ready(database)).endswith("#2")
    async with working(database, made("", where="v = 9")):
        await until(lambda: connection.execute("SELECT count(*) FROM done").fetchone() == (4,))
        file.run("INSERT INTO item VALUES (5, 0), (6, 9)")
        await until(lambda: connection.execute("SELECT count(*) FROM done").fetchone() == (5,))
    found = connection.execute("SELECT id, first FROM done").fetchall()
    assert found == [(str(id), True) for id in (1, 2, 3, 4, 6)]


@pytest.mark.long
async def test_documents(database: str, connection: Connection) -> None:
    """Values that only MongoDB has survive a batch that is interrupted."""
    from bson import Decimal128, ObjectId
    from pymongo import AsyncMongoClient

    seen: dict[str, list[Change]] = {"first": [], "then": []}

    def made(life: str, url: str) -> Consumers:
        found = Consumers()

        @found.consumer("all", source=url, tables=["item"], start="start", tries=None, backoff=(0.01, 0.01))
        async def take(ctx: ConsumerContext, change: Change) -> None:
            if life == "first" and len(seen[life]) == 2:
                raise ValueError("not yet")
            seen[life].append(change)

        return found

    with temporary_mongo() as server:
        async with AsyncMongoClient[dict[str, Any]](server.url()) as client:
            ids = [ObjectId() for _ in range(4)]
            await client["shop"]["item"].insert_many([{"_id": id, "n": Decimal128("1.50")} for id in ids])
            async with working(database, made("first", server.url("shop"))):
                await until(lambda: len(seen["first"]) == 2)
                await until(lambda: connection.execute("SELECT retried > 0 FROM forge.consumer").fetchone() == (True,))
            await client["shop"]["item"].delete_one({"_id": ids[0]})
            async with working(database, made("then", server.url("shop"))):
                await until(lambda: len(seen["then"]) == 3)
                await client["shop"]["item"].update_one({"_id": ids[3]}, {"$set": {"n": 2}})
                await until(lambda: len(seen["then"]) == 4)
                (status,) = await Control(database).statuses("all")
    assert [change.op.value for change in seen["then"]] == ["read", "read", "delete", "update"]
    assert seen["then"][0].after == {**(seen["first"][0].after or {}), "_id": str(ids[2])}
    assert (status.lag_events, status.lag_bytes) == (None, None)


# What breaks


@pytest.mark.contract("W5")
async def test_a_source_that_is_away_holds_up_nobody_else(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    table(connection)
    seen: Seen = []
    consumers = Consumers()

    async def take(ctx: ConsumerContext, change: Change) -> None:
        seen.append((change.op.value, change.row_id))

    url = f"sqlite:///{tmp_path}/shop.db"
    consumers.consumer("away", source=url, start="start")(take)
    consumers.consumer("here", tables=["item"])(take)
    failed = "SELECT last_error FROM forge.consumer WHERE name = 'away'"
    async with working(database, consumers):
        await until(lambda: "there is no file" in str(connection.execute(failed).fetchone()))
        connection.execute("INSERT INTO item VALUES (1)")
        await until(lambda: seen == [("insert", "1")])
        with file_site(tmp_path) as site:
            site.run("INSERT INTO item VALUES (2, 0)")
            await until(lambda: ("read", "2") in seen or ("insert", "2") in seen)


async def test_a_server_that_goes_away_is_told_of_and_come_back_to(
    database: str, connection: Connection, maria: MariadbServer
) -> None:
    seen: Seen = []
    failed = "SELECT last_error FROM forge.consumer"
    with maria_site(maria) as site:
        async with working(database, one(seen, site)):
            await ready(database)
            site.run("INSERT INTO item VALUES (1, 0)")
            await until(lambda: len(seen) == 1)
            site.close()
            await asyncio.to_thread(maria.kill)
            try:
                await until(lambda: "cannot be reached" in str(connection.execute(failed).fetchone()))
            finally:
                await asyncio.to_thread(maria.start)
            site.restart()
            site.run("INSERT INTO item VALUES (2, 0)")
            await until(lambda: len(seen) == 2)
    assert seen == [("insert", "1"), ("insert", "2")]


@pytest.fixture
def fragile(request: pytest.FixtureRequest, site: Site) -> Iterator[Site]:
    """A site whose server may be restarted: that of a WAL has one of its own then."""
    if "feed=wal" not in site.url:
        yield site
        return
    with temporary_postgres() as server, fresh_database(server) as url:

        def restart() -> None:
            server.stop("immediate")
            server.start()

        with wal_site(url, restart) as found:
            yield found


class Writer:
    """Random transactions; `truth` has for each row what was done to it, in order."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.dice = random.Random(seed)
        self.truth: dict[str, list[tuple[str, int | None]]] = {}
        self.rows: set[int] = set()
        self.count = 0

    def fill(self, rows: int) -> None:
        self.site.run(*(self._change(id) for id in range(rows)))

    def write(self) -> None:
        """A few rows; sometimes many of them."""
        some = self.dice.sample(range(40), self.dice.choice((1, 1, 1, 2, 25)))
        self.site.run(*(self._change(id) for id in some))

    def _change(self, id: int) -> str:
        self.count += 1
        done = self.truth.setdefault(str(id), [])
        if id not in self.rows:
            self.rows.add(id)
            done.append(("insert", self.count))
            return f"INSERT INTO item VALUES ({id}, {self.count})"
        if self.dice.random() < 0.2:
            self.rows.remove(id)
            done.append(("delete", None))
            return f"DELETE FROM item WHERE id = {id}"
        done.append(("update", self.count))
        return f"UPDATE item SET v = {self.count} WHERE id = {id}"

    def check(self, receipts: list[Receipt]) -> None:
        """Nothing twice, nothing lost, each row in order: all that was done to it since it was read, or made."""
        ids = [receipt.id for receipt in receipts]
        assert len(set(ids)) == len(ids), "a change came twice"
        for key, truth in self.truth.items():
            found = [(receipt.op, receipt.v) for receipt in receipts if receipt.key == key]
            if found and found[0][0] == "read":
                place = next(n for n, (_, v) in enumerate(truth) if v == found[0][1])
                found, truth = found[1:], truth[place + 1 :]
            assert found == truth[len(truth) - len(found) :], f"row {key} is not in order"
            left = truth[: len(truth) - len(found)]
            assert not left or (left[-1][0] == "delete" and not receipts_of(receipts, key, "read")), (
                f"row {key} lacks {left}"
            )


def receipts_of(receipts: list[Receipt], key: str, op: str) -> list[Receipt]:
    return [receipt for receipt in receipts if (receipt.key, receipt.op) == (key, op)]


@pytest.mark.contract("X1", "W12", "W13")
@pytest.mark.parametrize("batch", [None, pytest.param(7, marks=pytest.mark.long)], ids=["one", "seven"])
def test_nothing_is_lost_or_doubled_when_workers_and_the_server_die(
    database: str, connection: Connection, fragile: Site, batch: int | None
) -> None:
    connection.execute(
        "CREATE TABLE received (n bigint GENERATED ALWAYS AS IDENTITY, id text, op text, key text, v int)"
    )
    writer = Writer(fragile, seed=batch or 1)
    writer.fill(200)
    task = Task(database, fragile.url, batch)
    chance = random.Random(3)

    def received() -> int:
        row = connection.execute("SELECT count(*) FROM received").fetchone()
        assert row is not None
        return int(row[0])

    def living(enough: Callable[[], bool], write: Callable[[], None]) -> int | None:
        """A life of a worker, until it has done enough; how it ended."""
        worker = started(task)
        deadline = time.monotonic() + SOON
        try:
            while not enough():
                error = connection.execute("SELECT last_error FROM forge.consumer").fetchone()
                assert time.monotonic() < deadline, error
                assert worker.is_alive(), error
                if writer.count - received() < 150:
                    write()
                time.sleep(chance.uniform(0.0, 0.01))
        finally:
            worker.kill()
            worker.join()
        return worker.exitcode

    lives = 5 if batch is None else 12
    for life in range(lives):
        wanted = received() + chance.randint(1, 90)
        assert living(lambda wanted=wanted: received() >= wanted, writer.write) == -signal.SIGKILL  # type: ignore[misc]
        if life == lives // 2:
            fragile.restart()
    last = "SELECT FROM received WHERE key = '999'"
    fragile.run("INSERT INTO item VALUES (999, 0)")
    living(lambda: connection.execute(last).fetchone() is not None, lambda: None)
    rows = connection.execute("SELECT id, op, key, v FROM received ORDER BY n").fetchall()
    writer.check([Receipt(*row) for row in rows])
    assert len(rows) > 150


@pytest.mark.long
@pytest.mark.contract("X1", "W12")
def test_what_a_source_was_told_to_forget_is_never_wanted_again(tmp_path: Path) -> None:
    """Saves do not wait for the disk, and a crash takes back some: none that the source was told of."""
    out = tmp_path / "receipts"

    def receipts() -> list[Receipt]:
        lines = out.read_bytes().splitlines() if out.exists() else []
        found = [msgspec.json.decode(line, type=Receipt) for line in lines]
        return list({receipt.id: receipt for receipt in reversed(found)}.values())[::-1]

    def come(key: str) -> None:
        deadline = time.monotonic() + SOON
        while all(receipt.key != key for receipt in receipts()):
            assert time.monotonic() < deadline, f"{key} does not come"
            time.sleep(0.02)

    with temporary_postgres() as server, fresh_database(server) as url, file_site(tmp_path) as site:
        with connect(url) as connection:
            install(connection)
        writer = Writer(site, seed=5)
        worker = started(Task(url, site.url, file=str(out)))
        try:
            for round in range(8):
                end = time.monotonic() + writer.dice.uniform(0.3, 0.7)
                while time.monotonic() < end:
                    writer.write()
                    time.sleep(0.005)
                server.crash()
                server.start()
                site.run(f"INSERT INTO item VALUES ({1000 + round}, 0)")
                come(str(1000 + round))
            with connect(url) as connection:
                assert connection.execute("SELECT state FROM forge.consumer").fetchone() == ("running",)
        finally:
            worker.kill()
            worker.join()
    writer.check(receipts())


@pytest.mark.contract("X1", "W12")
def test_a_row_that_goes_while_a_snapshot_is_interrupted_is_told_to_be_gone(
    database: str, connection: Connection, site: Site, tmp_path: Path
) -> None:
    """What was handled of a snapshot, and not saved, is not in what is left of it by then."""
    site.run(*(f"INSERT INTO item VALUES ({id}, 0)" for id in range(1, 9)))
    out = tmp_path / "receipts"
    first = started(Task(database, site.url, file=str(out), die_at=5))
    first.join(SOON)
    assert not first.is_alive()
    site.run(
        "DELETE FROM item WHERE id <= 3", "UPDATE item SET v = 1 WHERE id IN (4, 8)", "INSERT INTO item VALUES (9, 1)"
    )
    last = started(Task(database, site.url, file=str(out)))
    state: dict[str, int | None] = {}
    deadline = time.monotonic() + SOON
    try:
        while state != site.rows() and time.monotonic() < deadline:
            state = {}
            for line in out.read_bytes().splitlines():
                receipt = msgspec.json.decode(line, type=Receipt)
                if receipt.op == "delete":
                    state.pop(receipt.key)
                else:
                    state[receipt.key] = receipt.v
            time.sleep(0.02)
    finally:
        last.kill()
        last.join()
    assert state == site.rows()


# Steering


async def test_it_is_rewound_to_a_cursor_the_start_and_now(
    database: str, connection: Connection, maria: MariadbServer
) -> None:
    seen: Seen = []
    control = Control(database)
    with maria_site(maria) as site:
        site.run("INSERT INTO item VALUES (1, 0)")
        async with working(database, one(seen, site)):
            begun = await ready(database)
            site.run("INSERT INTO item VALUES (2, 0)")
            await until(lambda: len(seen) == 1)
            await control.rewind("all", begun)
            await until(lambda: len(seen) == 2)
            assert await control.pause("all")
            assert await control.rewind("all", "start") == "start"
            await control.resume("all")
            await until(lambda: len(seen) == 4)
            assert await control.pause("all")
            site.run("INSERT INTO item VALUES (3, 0)")
            await control.rewind("all", "now")
            await control.resume("all")
            await ready(database)
            site.run("INSERT INTO item VALUES (4, 0)")
            await until(lambda: len(seen) == 5)
            (status,) = await control.statuses("all")
            assert status.source is not None
            assert status.source.startswith("mysql 127.0.0.1:")
            with pytest.raises(CursorInvalid, match="cannot be asked for a time") as raised:
                await control.rewind("all", datetime.now(UTC))
            assert "--to start" in raised.value.fix
            with pytest.raises(CursorForeign, match="a cursor of another source"):
                await control.rewind("all", "sqlite1_6f_7.8")
            with pytest.raises(CursorInvalid, match="is not a cursor"):
                await control.rewind("all", "nonsense")
    assert seen == [("insert", "2"), ("insert", "2"), ("read", "1"), ("read", "2"), ("insert", "4")]


async def test_a_place_that_the_source_has_forgotten_expires_it(
    database: str, connection: Connection, file: Site
) -> None:
    seen: Seen = []
    state = "SELECT state, last_error FROM forge.consumer"
    async with working(database, one(seen, file)):
        begun = await ready(database)
        file.run("INSERT INTO item VALUES (1, 0)")
        acknowledged = "SELECT removed = (SELECT max(id) FROM forge_queue) FROM forge_state"
        await until(lambda: file.run(acknowledged) == [(1,)])
        await Control(database).rewind("all", begun)
        await until(lambda: connection.execute(state).fetchone()[0] == "expired")  # type: ignore[index]
        assert "was acknowledged" in str(connection.execute(state).fetchone())
        await Control(database).rewind("all", "start")
        await until(lambda: len(seen) == 2)
    assert seen == [("insert", "1"), ("read", "1")]


async def test_how_far_behind_it_is(database: str, connection: Connection, site: Site) -> None:
    seen: Seen = []
    lag = "SELECT lag_events, lag_bytes, lag_seconds FROM forge.consumer"
    async with working(database, one(seen, site)) as node:
        await ready(database)
        site.run("INSERT INTO item VALUES (1, 0)")
        told = (
            (lambda row: row[0] == 0 and row[2] == 0.0)
            if site.url.startswith("sqlite")
            else (lambda row: row[1] is not None)
        )
        await until(lambda: len(seen) == 1 and told(connection.execute(lag).fetchone()))
        (sample,) = node.samples()
        assert sample.lag is not None
    (status,) = await Control(database).statuses("all")
    assert (status.lag_events is None) != (status.lag_bytes is None)


@contextmanager
def working_beside(database: str, consumers: Consumers) -> Iterator[None]:
    """A node in a thread of its own: the command line wants to be in the main one."""
    began, end = threading.Event(), threading.Event()

    async def work() -> None:
        async with working(database, consumers):
            began.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert began.wait(SOON)
        yield
    finally:
        end.set()
        thread.join(SOON)


def test_the_command_line_steers_it(
    database: str, file: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGE_DATABASE_URL", database)

    def forge(*words: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["consumers", *words])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    def told(*words: str) -> Any:
        code, out, error = forge(*words, "--json")
        assert code == 0, error
        return json.loads(out)

    seen: Seen = []
    with working_beside(database, one(seen, file)):
        begun = asyncio.run(ready(database))
        file.run("INSERT INTO item VALUES (1, 0)")
        asyncio.run(until(lambda: seen))
        assert told("pause", "all")["working"] is False
        (listed,) = told("list")
        assert (listed["state"], listed["source"].split()[0]) == ("paused", "sqlite")
        (lag,) = told("lag")
        assert set(lag) == {"name", "shard", "events", "seconds", "bytes"}
        code, out, _ = forge("list")
        assert (code, "paused" in out) == (0, True)
        code, _, error = forge("rewind", "all", "--to", "2026-11-10 09:00+00")
        assert (code, "cannot be asked for a time" in error, "--to start" in error) == (1, True, True)
        assert told("rewind", "all", "--to", begun) == {"name": "all", "cursor": begun}
        assert told("rewind", "all", "--to", "start") == {"name": "all", "cursor": "start"}
        told("resume", "all")
        asyncio.run(until(lambda: len(seen) == 2))
    assert seen == [("insert", "1"), ("read", "1")]
    assert told("forget", "all", "--yes") == {"name": "all", "forgotten": True}


async def test_the_log_is_kept_for_nobody_who_does_not_read_it(
    database: str, connection: Connection, file: Site
) -> None:
    async with working(database, one([], file)):
        await ready(database)
    assert unread.cursors(connection) == []
    idle, finding = consumers_of(Case(database, connection))
    assert idle.what.startswith("nobody works on consumer ")
    assert finding.what == "1 consumer, none near the end of retention"


# What is refused


async def handle(ctx: ConsumerContext, change: Change) -> None:
    return None


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        (
            {"source": "sqlite:///a.db", "shards": 2},
            "cannot have 2 shards: a source is read by one",
            "leave shards out",
        ),
        ({"source": "oracle://h/d"}, "no source for oracle://", "mysql://"),
        ({"source": "sqlite:///a.db", "start": "start", "ops": ["insert"]}, "its ops leave these out", '"read" to ops'),
        ({"source": "postgresql://h/d?feed=carrier"}, "no feed 'carrier'", "feed=wal"),
        ({"source": "mysql://h/d?speed=9"}, "no option 'speed'", "server_id"),
        ({"source": "postgresql://h/d?feed=wal&slot=A!"}, "cannot be the name of a replication slot", "lower-case"),
    ],
    ids=["shards", "scheme", "ops", "feed", "option", "slot"],
)
def test_what_cannot_be_is_refused_when_it_is_declared(options: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(ConsumerInvalid, match=what) as raised:
        Consumers().consumer("x", **options)(handle)
    assert fix in raised.value.fix
    assert "\n" not in str(raised.value)


def test_no_secret_is_shown() -> None:
    consumers = Consumers()
    consumers.consumer("x", source="mysql://me:hunter2@127.0.0.1/shop")(handle)
    consumers.consumer("y", source="postgresql://me:hunter2@127.0.0.1/shop?feed=wal")(handle)
    assert "hunter2" not in repr(consumers.named)


async def test_two_consumers_cannot_empty_one_queue(database: str, file: Site) -> None:
    consumers = Consumers()
    consumers.consumer("a", source=file.url)(handle)
    consumers.consumer("b", source=file.url)(handle)
    with pytest.raises(ConsumerInvalid, match=r"a reads sqlite .* already"):
        async with working(database, consumers):
            pass


async def test_a_name_cannot_change_what_it_reads(database: str, file: Site) -> None:
    async with working(database, one([], file)):
        pass
    consumers = Consumers()
    consumers.consumer("all")(handle)
    with pytest.raises(ConsumerInvalid, match=r"all reads sqlite .* in the database, and the log here"):
        async with working(database, consumers):
            pass


@pytest.mark.parametrize("options", [{"columns": ["statsu"]}, {"where": "statsu = 1"}], ids=["columns", "where"])
async def test_a_misspelt_column_is_refused(database: str, connection: Connection, options: dict[str, Any]) -> None:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status int)")
    connection.execute("SELECT forge_enable_reactivity('orders')")
    consumers = Consumers()
    consumers.consumer("x", tables=["orders"], **options)(handle)
    with pytest.raises(ConsumerInvalid, match="x: orders has no column statsu") as raised:
        async with working(database, consumers):
            pass
    assert raised.value.fix.startswith("did you mean status?")
    assert connection.execute("SELECT count(*) FROM forge.consumer").fetchone() == (0,)
