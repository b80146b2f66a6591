"""What no server here does, by scripted replies: clusters behind mongos, older servers, silence, events too large."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from bson import ObjectId
from bson.timestamp import Timestamp

from forge.capture.mongo import MongoSource
from forge.change import Op
from forge.errors import CursorForeign, SourceError
from tests.capture.mongo.reading import take, told, whole
from tests.servers.scripted_mongo import ScriptedMongo

Script = Callable[[str, dict[str, Any]], Mapping[str, Any]]

CLUSTER = ObjectId("65f0c0ffee65f0c0ffee65f0")


def event(number: int, **more: Any) -> dict[str, Any]:
    time = Timestamp(1_799_999_000, number)
    return {
        "_id": {"_data": f"82{time.time:08X}{number:08X}2B0404"},
        "operationType": "insert",
        "clusterTime": time,
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": number},
        "fullDocument": {"_id": number},
        **more,
    }


def one_batch(*events: Mapping[str, Any]) -> Script:
    """Gives the events once, in the reply that opens the stream, and nothing more."""

    def script(name: str, command: dict[str, Any]) -> Mapping[str, Any]:
        if name == "aggregate":
            return {"cursor": {"id": 7, "ns": "shop.$cmd.aggregate", "firstBatch": list(events)}}
        if name == "getMore":
            return {"cursor": {"id": 7, "ns": "shop.$cmd.aggregate", "nextBatch": []}}
        raise KeyError(name)

    return script


async def test_an_older_server_is_asked_for_what_it_knows_and_its_cursors_go_on() -> None:
    script = one_batch(event(1), event(2))
    async with ScriptedMongo(script, "4.4.29") as server, MongoSource(server.url("shop")) as source:
        changes = await take(source.stream(), 2)
        with pytest.raises(SourceError, match=r"older than MongoDB 5\.0"):
            await whole(source.snapshot())
    opened = next(command for command in server.commands if "aggregate" in command)
    assert list(opened["pipeline"][0]["$changeStream"]) == ["fullDocument", "startAtOperationTime"]
    assert len(opened["pipeline"]) == 1
    assert told(changes) == [("insert", "orders", "1"), ("insert", "orders", "2")]
    assert changes[0].at.timestamp() == 1_799_999_000


async def test_a_token_with_more_than_its_data_survives_in_a_cursor() -> None:
    token = {"_data": "826B49CF18000000012B0404", "_typeBits": b"\x01"}
    async with ScriptedMongo(one_batch(event(1, _id=token))) as server, MongoSource(server.url("shop")) as source:
        stream = source.stream()
        batch = await anext(stream)
        await stream.aclose()
        await take(source.stream(batch.cursor), 1)
    opened = [command for command in server.commands if "aggregate" in command]
    assert opened[1]["pipeline"][0]["$changeStream"]["startAfter"] == token


async def test_a_sharded_cluster_is_known_by_its_own_id() -> None:
    def cluster(identity: ObjectId) -> Script:
        plain = one_batch(event(1))

        def script(name: str, command: dict[str, Any]) -> Mapping[str, Any]:
            if name in ("hello", "ismaster", "isMaster"):
                sizes = {"maxBsonObjectSize": 1 << 24, "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 1000}
                wire = {"minWireVersion": 0, "maxWireVersion": 21, "logicalSessionTimeoutMinutes": 30}
                return {**sizes, **wire, "msg": "isdbgrid", "operationTime": Timestamp(1_800_000_000, 1)}
            if name == "find":
                found = [{"_id": 1, "clusterId": identity}]
                return {"cursor": {"id": 0, "ns": "config.version", "firstBatch": found}}
            return plain(name, command)

        return script

    async with (
        ScriptedMongo(cluster(CLUSTER)) as server,
        ScriptedMongo(cluster(ObjectId())) as other,
        MongoSource(server.url("shop")) as source,
        MongoSource(other.url("shop")) as stranger,
    ):
        assert told(await take(source.stream(), 1)) == [("insert", "orders", "1")]
        cursor = await source.now()
        assert str(CLUSTER) in cursor
        with pytest.raises(CursorForeign):
            await take(stranger.stream(cursor), 1)


async def test_a_server_that_is_silent_for_long_is_given_more_time_each_try() -> None:
    """A scan of a long oplog takes longer than the patience; it must not begin again for ever."""
    tries = 0

    async def later() -> Mapping[str, Any]:
        await asyncio.sleep(1.0)
        return {"cursor": {"id": 0, "ns": "shop.$cmd.aggregate", "firstBatch": [event(1)]}}

    def script(name: str, command: dict[str, Any]) -> Any:
        nonlocal tries
        if name == "aggregate":
            tries += 1
            return later()
        raise KeyError(name)

    async with ScriptedMongo(script) as server, MongoSource(server.url("shop"), patience=0.2) as source:
        changes = await take(source.stream(), 1)
    assert [change.op for change in changes] == [Op.INSERT]
    assert tries == 4


async def test_an_event_that_is_too_large_and_cannot_be_split() -> None:
    def script(name: str, command: dict[str, Any]) -> Mapping[str, Any]:
        if name == "getMore":
            return {"ok": 0, "code": 10334, "codeName": "BSONObjectTooLarge", "errmsg": "BSONObj size: 18000000"}
        return one_batch()(name, command)

    async with ScriptedMongo(script, "6.0.5") as server, MongoSource(server.url("shop")) as source:
        with pytest.raises(SourceError, match="larger than 16 MB") as refused:
            await take(source.stream(), 1)
        assert "6.0.9" in refused.value.fix
    assert not any("$changeStreamSplitLargeEvent" in stage for c in server.commands for stage in c.get("pipeline", ()))
