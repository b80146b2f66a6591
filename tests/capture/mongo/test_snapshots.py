"""Snapshots of a real server: as of one time, and further when that time is too old."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId
from pymongo.asynchronous.database import AsyncDatabase

from forge.capture import Filter, SourceBatch
from forge.capture.mongo import MongoSource
from forge.capture.mongo.codecs import form
from forge.change import Change, Op
from forge.errors import CursorInvalid, SourceError
from tests.capture.mongo.conftest import Starting
from tests.capture.mongo.reading import take, whole

Database = AsyncDatabase[dict[str, Any]]


async def test_keys_of_every_type_are_read_once_and_from_any_cursor_on(database: Database, url: str) -> None:
    keys: list[Any] = [
        *(3, Int64(2**40), 1.5, Decimal128("2.5"), float("-inf"), "a", "b", "", "zażółć", True, False, None),
        *(ObjectId(), Binary(b"\x01"), Binary(b"\x01", 5), datetime(2026, 1, 1, tzinfo=UTC), MinKey(), MaxKey()),
        *({"a": 1}, {"a": 1, "b": 2}, {"b": 1}),
    ]
    await database.mixed.insert_many([{"_id": key} for key in keys])
    await database.other.insert_many([{"_id": number} for number in range(3)])
    async with MongoSource(url, batch_size=3) as source:
        batches = await whole(source.snapshot())
        found = [change for batch in batches for change in batch.changes]
        assert len(found) == len(keys) + 3
        assert all(change.op is Op.READ for change in found)
        assert [change.key for change in found if change.table == "mixed" and change.key == {"_id": form(keys[0])}]
        for place, batch in enumerate(batches[:-1]):
            rest = await whole(source.snapshot(batch.cursor))
            done = sum(len(each.changes) for each in batches[: place + 1])
            assert [change.id for each in rest for change in each.changes] == [change.id for change in found[done:]]
            assert rest[-1].cursor == batches[-1].cursor
        with pytest.raises(CursorInvalid, match="inside a snapshot"):
            await take(source.stream(batches[0].cursor), 1)
        with pytest.raises(CursorInvalid, match="behind its snapshot"):
            await whole(source.snapshot(batches[-1].cursor))


async def test_a_snapshot_that_outlives_the_servers_history_goes_on_as_of_a_newer_time(starting: Starting) -> None:
    """With no history at all every pause makes the time too old: what was read follows as changes, the rest is newer.

    The state that a consumer builds from snapshot and stream is the database's, whatever was written in between.
    """
    with starting(parameters={"minSnapshotHistoryWindowInSeconds": 0}) as server, server.client() as client:
        database = client.shop
        for name in ("a", "b", "c"):
            database[name].insert_many([{"_id": number, "n": 0} for number in range(20)])
        state = _State()
        async with MongoSource(server.url("shop"), batch_size=8, wait=0.1) as source:
            times = set()
            cursor = ""
            for turn in range(20):
                for batch in await _next(source, cursor or None):
                    state.apply(batch)
                    cursor = batch.cursor
                if "+" not in cursor:
                    break
                times.add(cursor.partition("+")[0])
                name = "abc"[turn % 3]
                database[name].update_one({"_id": 1}, {"$inc": {"n": 1}})
                database[name].update_one({"_id": 18}, {"$inc": {"n": 1}})
                database[name].delete_one({"_id": turn})
                database[name].insert_one({"_id": 100 + turn, "n": 0})
                database.a.insert_one({"_id": -turn - 1, "n": 0})
                if turn == 4:
                    database.a.drop()
                    database.a.insert_one({"_id": "new", "n": 7})
                if turn == 5:
                    database.a0.insert_one({"_id": 1, "n": 0})
                    database.d.insert_one({"_id": 1, "n": 0})
                _age(client)
            assert "+" not in cursor
            assert len(times) > 3
            database.c.insert_one({"_id": "end", "n": 0})
            stream = source.stream(cursor)
            async with asyncio.timeout(20):
                async for batch in stream:
                    state.apply(batch)
                    if "end" in state.tables["c"]:
                        break
            await stream.aclose()
        wanted = {name: {row["_id"]: row for row in database[name].find()} for name in database.list_collection_names()}
        assert {name: rows for name, rows in state.tables.items() if rows} == wanted


def _age(client: Any) -> None:
    """Make the server forget how things were a moment ago: its oldest time follows the newest write."""
    for _ in range(3):
        client.other.noise.insert_one({})


async def _next(source: MongoSource, cursor: str | None) -> list[SourceBatch]:
    """A snapshot up to its next batch with rows that are read, or its end."""
    taken = []
    async with asyncio.timeout(20), aclosing(source.snapshot(cursor)) as batches:
        async for batch in batches:
            taken.append(batch)
            if any(change.op is Op.READ for change in batch.changes):
                break
    return taken


class _State:
    """What a consumer holds; it takes nothing twice."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Any, Any]] = {}
        self._seen: set[str] = set()

    def apply(self, batch: SourceBatch) -> None:
        for change in batch.changes:
            assert change.id not in self._seen
            self._seen.add(change.id)
            self._apply(change)

    def _apply(self, change: Change) -> None:
        rows = self.tables.setdefault(change.table, {})
        if change.op is Op.TRUNCATE:
            rows.clear()
            return
        assert change.key is not None
        key = change.key["_id"]
        if change.op in (Op.READ, Op.INSERT):
            assert key not in rows
        else:
            assert key in rows
        if change.op is Op.DELETE:
            del rows[key]
        else:
            rows[key] = change.after


async def test_a_snapshot_with_a_condition_reads_only_what_may_hold(database: Database, url: str) -> None:
    await database.orders.insert_many([{"_id": number, "total": number} for number in range(50)])
    async with MongoSource(url, Filter(tables=("ord*",), where="total >= 45"), batch_size=10) as source:
        batches = await whole(source.snapshot())
    assert [change.row_id for batch in batches for change in batch.changes] == ["45", "46", "47", "48", "49"]
    assert len(batches) == 2


async def test_a_capped_collection_is_refused_and_streamed(database: Database, url: str) -> None:
    await database.create_collection("recent", capped=True, size=4096)
    async with MongoSource(url) as source:
        with pytest.raises(SourceError, match="recent is capped") as refused:
            await whole(source.snapshot())
        assert "tables" in refused.value.fix
        start = await source.now()
        await database.recent.insert_one({"_id": 1})
        assert [change.row_id for change in await take(source.stream(start), 1)] == ["1"]
