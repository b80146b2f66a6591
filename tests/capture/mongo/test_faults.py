"""What goes wrong with a real server: it dies, it fails over, it forgets, it is the wrong one, it lets nobody in."""

import asyncio
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure

from forge.capture import Filter, open_source
from forge.capture.mongo import MongoSource
from forge.errors import ConfigError, CursorExpired, CursorForeign, CursorInvalid, SourceError
from forge.testing.mongo import MongoServer
from tests.capture.mongo.conftest import Starting
from tests.capture.mongo.reading import UNCLOSED, batches_with, take, told, whole

Database = AsyncDatabase[dict[str, Any]]


@pytest.mark.contract("W2", "W12")
async def test_a_server_that_is_killed_and_comes_back(starting: Starting) -> None:
    with starting() as server:
        async with MongoSource(server.url("shop"), wait=0.1, patience=10) as source:
            stream = source.stream(await source.now())
            with server.client() as client:
                client.shop.orders.insert_one({"_id": 1})
            seen = (await asyncio.wait_for(anext(stream), 20)).changes
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(server.await_primary)
            with server.client() as client:
                client.shop.orders.insert_one({"_id": 2})
            assert told([*seen, *await take(stream, 1)]) == [("insert", "orders", "1"), ("insert", "orders", "2")]


@pytest.mark.contract("W2", "W12")
async def test_a_primary_that_fails_over(starting: Starting) -> None:
    """Three members: the primary is killed while the stream is read; another one takes its place."""
    with starting(members=3) as primary:
        url = f"mongodb://{primary.host}/shop?replicaSet=rs0"
        with MongoClient[dict[str, Any]](url) as client:
            orders = client.shop.orders
            client.shop.create_collection("orders", writeConcern={"w": 3})
            async with MongoSource(url, wait=0.1, patience=5) as source:
                stream = source.stream(await source.now())
                await asyncio.to_thread(orders.insert_one, {"_id": 1})
                found = list((await asyncio.wait_for(anext(stream), 20)).changes)
                primary.kill()
                for number in range(2, 5):
                    await asyncio.to_thread(_surely, orders, {"_id": number})
                found += await take(stream, 4 - len(found))
    assert told(found) == [("insert", "orders", str(number)) for number in range(1, 5)]


def _surely(collection: Any, document: dict[str, Any]) -> None:
    """Insert once, however often it takes."""
    collection.update_one({"_id": document["_id"]}, {"$setOnInsert": document}, upsert=True)


@pytest.mark.contract("W2", "W12")
async def test_history_that_the_oplog_has_lost(starting: Starting) -> None:
    with starting(oplog_mb=1, options=("--syncdelay", "1")) as server, server.client() as client:
        async with MongoSource(server.url("shop"), wait=0.1) as source:
            client.shop.orders.insert_one({"_id": 0})
            by_time = await source.now()
            inside = (await whole(source.snapshot()))[0].cursor
            client.shop.orders.insert_one({"_id": 1})
            (by_token,) = [batch.cursor for batch in await batches_with(source.stream(by_time), 1)]
            async with asyncio.timeout(30):
                while _first(client) <= by_time_of(by_token):
                    await asyncio.to_thread(client.other.noise.insert_one, {"text": "x" * 8_000_000})
            for cursor in (by_time, by_token):
                with pytest.raises(CursorExpired, match="no longer has what follows") as expired:
                    await take(source.stream(cursor), 1)
                assert "snapshot" in expired.value.fix
            client.admin.command("setParameter", 1, minSnapshotHistoryWindowInSeconds=0)
            client.other.noise.insert_many([{}, {}])
            with pytest.raises(CursorExpired):
                await whole(source.snapshot(inside))
            start = await source.now()
            client.shop.orders.insert_one({"_id": 2})
            assert told(await take(source.stream(start), 1)) == [("insert", "orders", "2")]


def _first(client: Any) -> Any:
    return client.local["oplog.rs"].find_one({}, sort=[("$natural", 1)])["ts"]


def by_time_of(cursor: str) -> Any:
    from forge.capture.mongo.cursor import MongoCursor

    return MongoCursor.parse(cursor).place.reached


@pytest.mark.contract("W2")
async def test_tokens_that_are_damaged_or_of_another_server(database: Database, url: str, starting: Starting) -> None:
    async with MongoSource(url, wait=0.1, patience=1, batch_size=1) as source:
        start = await source.now()
        await database.orders.insert_many([{"_id": 1}, {"_id": 2}])
        good = (await batches_with(source.stream(start), 1))[-1].cursor
        head, token = good.rsplit("_", 1)
        for damaged in ("82", token[:40], token[:-6], "FF" + token[2:], "AB" * 40, "bBQAAAAA", "bAAAA"):
            with pytest.raises(CursorInvalid):
                await take(source.stream(f"{head}_{damaged}"), 1)
        with pytest.raises(CursorForeign, match="is only at"):
            await take(source.stream(f"{head}_82FFFFFFF0{token[10:]}"), 1)
        with pytest.raises(CursorForeign, match="does not know the event"):
            await take(source.stream(f"{head}_8200000001{token[10:]}"), 1)
        with pytest.raises(CursorForeign, match="another source"):
            await take(source.stream("mysql1_x_y"), 1)
        with starting() as other, other.client() as client:
            client[database.name].orders.insert_one({"_id": 1})
            theirs = MongoSource(other.url(database.name), wait=0.1)
            async with theirs:
                with pytest.raises(CursorForeign, match="another server"):
                    await take(theirs.stream(good), 1)
                name = (await theirs.now()).split("_")[1]
                with pytest.raises(CursorForeign, match="does not know the event"):
                    await take(theirs.stream(f"mongo1_{name}_{token}"), 1)
        assert told(await take(source.stream(start), 1)) == [("insert", "orders", "1")]


@pytest.mark.contract("W2")
async def test_a_standalone_server_and_one_never_initiated_are_refused(starting: Starting, tmp_path: Path) -> None:
    with starting(replica_set=False) as server:
        async with open_source(server.url("shop")) as source:
            for asking in (source.now(), take(source.stream(), 1), whole(source.snapshot()), source.status()):
                with pytest.raises(SourceError, match="is a standalone server") as refused:
                    await asking
                assert "rs.initiate()" in refused.value.fix
    server = MongoServer(tmp_path / "new")
    try:
        server.start()
        async with MongoSource(server.url("shop"), patience=2) as source:
            with pytest.raises(SourceError, match="never initiated"):
                await source.now()
    finally:
        server.stop()


@UNCLOSED
async def test_wrong_settings_say_what_is_wrong(tmp_path: Path, starting: Starting) -> None:
    for url in ("mongodb://h", "mongodb://h/admin", "mongodb:///x", "mongodb://h/x?loadBalanced=true"):
        with pytest.raises(ConfigError):
            MongoSource(url)
    with pytest.raises(ConfigError, match="fullDocument=all is not known"):
        open_source("mongodb://h/x?fullDocument=all")
    with pytest.raises(ConfigError):
        MongoSource("mongodb://h/x", Filter(where="sum(x) > 1"))
    async with MongoSource("mongodb://127.0.0.1:1/shop?directConnection=true", patience=0.5) as source:
        with pytest.raises(SourceError, match="cannot be reached"):
            await source.now()
    async with MongoSource("mongodb://127.0.0.1:1/shop?maxPoolSize=x", patience=0.5) as source:
        with pytest.raises(ConfigError, match="cannot be used"):
            await source.now()
    key = tmp_path / "key"
    key.write_text("forgeforgeforge")
    key.chmod(0o400)
    with starting(options=("--keyFile", str(key), "--transitionToAuth")) as server:
        with server.client() as client:
            client.admin.command("createUser", "root", pwd="s3cret", roles=["root"])
            client.admin.command("createUser", "reader", pwd="s3cret", roles=[{"role": "read", "db": "shop"}])
            client.admin.command("createUser", "nobody", pwd="s3cret", roles=[])
            client.shop.orders.insert_one({"_id": 1})
        server.kill()
        server.options = ("--keyFile", str(key))
        server.start()
        at = f"{server.host}/shop?directConnection=true&authSource=admin"
        for user, password in (("reader", "wrong"), ("nobody", "s3cret")):
            async with MongoSource(f"mongodb://{user}:{password}@{at}", wait=0.1) as source:
                with pytest.raises(SourceError, match="does not let this user in") as refused:
                    await take(source.stream(), 1)
                assert "role read" in refused.value.fix
        async with MongoSource(f"mongodb://reader:s3cret@{at}", wait=0.1) as source:
            assert "s3cret" not in source.name
            batches = await whole(source.snapshot())
            assert [change.row_id for batch in batches for change in batch.changes] == ["1"]
            status = await source.status()
            assert "oplog_hours" not in status.details
            with MongoClient[dict[str, Any]](f"mongodb://root:s3cret@{at}") as client:
                client.shop.orders.insert_one({"_id": 2})
            assert told(await take(source.stream(batches[-1].cursor), 1)) == [("insert", "orders", "2")]


async def test_status_says_what_the_server_keeps_and_what_is_missing(database: Database, url: str) -> None:
    await database.orders.insert_one({"_id": 1})
    where = Filter(tables=("orders",), columns=("total",), where="total > 1")
    async with MongoSource(url, where) as source:
        status = await source.status()
    assert (status.in_feed, status.in_forge) == (("tables", "rows"), ("columns",))
    assert status.details["collections"] == 1
    assert "no pre-images of orders" in status.warnings[0]
    await database.command("collMod", "orders", changeStreamPreAndPostImages={"enabled": True})
    async with MongoSource(url, where) as source:
        assert (await source.status()).warnings == ()


async def test_a_consumer_that_stops_leaves_no_cursor_on_the_server(database: Database, url: str) -> None:
    async with MongoSource(url, wait=0.1) as source:
        start = await source.now()
        await database.orders.insert_many([{"_id": number} for number in range(5)])
        async with aclosing(source.stream(start)) as stream:
            await asyncio.wait_for(anext(stream), 20)
            await _until_open(database, 1)
        await _until_open(database, 0)


async def _until_open(database: Database, count: int) -> None:
    async with asyncio.timeout(20):
        while await _open_cursors(database) != count:  # noqa: ASYNC110, only the server can tell
            await asyncio.sleep(0.02)


async def _open_cursors(database: Database) -> int:
    """Cursors on the database, idle ones and one that is being read."""
    try:
        found = await database.client.admin.aggregate(
            [
                {"$currentOp": {"idleCursors": True, "allUsers": True}},
                {"$match": {"cursor.cursorId": {"$exists": True}, "ns": {"$regex": f"^{database.name}\\."}}},
            ]
        )
    except OperationFailure as denied:
        pytest.skip(f"currentOp is not allowed here: {denied}")
    return len(await found.to_list())


def test_without_pymongo_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['pymongo'] = sys.modules['bson'] = None\n"
        "from forge.capture import open_source\n"
        "from forge.errors import SourceError\n"
        "try: open_source('mongodb://h/shop')\n"
        "except SourceError as error: print(error.fix)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == 'pip install "forge-changes[mongo]"'
