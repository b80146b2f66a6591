"""MongoDB's change streams into Change objects, against a bare PyMongo loop on the same events, in turns; and from the
moment a write is acknowledged to the moment the stream yields its change, on one clock.

Rows are of about 150 bytes. The bare loop is `async for event in database.watch(…)` with the same batch size and makes
nothing of its events. A second pair of figures is of updates with their pre-images and looked-up documents.
"""

import asyncio
from contextlib import aclosing
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient

from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_least, figure, ratios
from forge.capture.mongo import MongoSource
from forge.capture.mongo.cursor import MongoCursor
from forge.testing.mongo import MongoServer, temporary_mongo

CHANGES = 200_000
BATCH = 1000
SHARE = 0.90
GAP = 0.02
WRITES = 400
IMAGES: dict[str, Any] = {"changeStreamPreAndPostImages": {"enabled": True}}


def run(bench: Bench) -> list[Figure]:
    """Inserts and updates read in turns, then single writes."""
    rounds = 3 if bench.quick else 5
    changes = CHANGES // 5 if bench.quick else CHANGES
    with temporary_mongo(oplog_mb=4096) as server:
        bench.say(f"MongoDB: writing {changes:,} documents and {changes // 4:,} updates")
        inserts = asyncio.run(_write(server, changes))
        updates = asyncio.run(_update(server, changes // 4))
        found = _compared(bench, server, "inserts", inserts, changes, rounds)
        found += _compared(bench, server, "updates with both images", updates, changes // 4, rounds)
        bench.say("MongoDB: latency")
        taken = asyncio.run(_latency(server, WRITES // 4 if bench.quick else WRITES))
    return [
        *found,
        figure("mongo", "acknowledged write to Change (p50)", [median(taken)], "ms"),
        figure("mongo", "acknowledged write to Change (p99)", [quantiles(taken, n=100)[98]], "ms"),
    ]


def _compared(bench: Bench, server: MongoServer, what: str, start: str, count: int, rounds: int) -> list[Figure]:
    forge: list[float] = []
    bare: list[float] = []
    for turn in range(rounds):
        bench.say(f"MongoDB: reading {what}, round {turn + 1} of {rounds}")
        bare.append(asyncio.run(_bare(server, start, count)))
        forge.append(asyncio.run(_forge(server, start, count)))
    return [
        at_least(figure("mongo", f"{what}, of what a bare PyMongo loop reads", ratios(forge, bare), "percent"), SHARE),
        figure("mongo", f"{what} read into objects", forge, "rate"),
        figure("mongo", f"{what} by a bare PyMongo loop", bare, "rate"),
    ]


async def _write(server: MongoServer, count: int) -> str:
    async with _client(server) as client, MongoSource(server.url("shop")) as source:
        await client.shop.create_collection("orders", **IMAGES)
        start = await source.now()
        for first in range(0, count, 1000):
            await client.shop.orders.insert_many([_order(number) for number in range(first, first + 1000)])
    return start


async def _update(server: MongoServer, count: int) -> str:
    async with _client(server) as client, MongoSource(server.url("shop")) as source:
        start = await source.now()
        for first in range(0, count, 1000):
            among = {"_id": {"$gte": first, "$lt": first + 1000}}
            await client.shop.orders.update_many(among, {"$set": {"status": "paid"}})
    return start


def _order(number: int) -> dict[str, Any]:
    return {
        "_id": number,
        "customer_id": number % 1000 + 1,
        "status": "placed",
        "total": (number % 10000) / 100,
        "note": f"note {number} with some words to make it longer",
        "paid": False,
    }


async def _forge(server: MongoServer, start: str, count: int) -> float:
    async with MongoSource(server.url("shop"), batch_size=BATCH) as source:
        await source.now()
        seen = 0
        began = perf_counter()
        async with aclosing(source.stream(start)) as batches:
            async for batch in batches:
                seen += len(batch.changes)
                if seen >= count:
                    break
        return count / (perf_counter() - began)


async def _bare(server: MongoServer, start: str, count: int) -> float:
    time = MongoCursor.parse(start).place.time
    assert time is not None
    after = Timestamp(time.time, time.inc + 1)
    async with _client(server) as client:
        await client.admin.command("ping")
        seen = 0
        began = perf_counter()
        async with await client.shop.watch(
            full_document="updateLookup",
            full_document_before_change="whenAvailable",
            start_at_operation_time=after,
            batch_size=BATCH,
        ) as stream:
            async for _ in stream:
                seen += 1
                if seen >= count:
                    break
        return count / (perf_counter() - began)


async def _latency(server: MongoServer, writes: int) -> list[float]:
    """Milliseconds from the acknowledgement of a majority to the change, for writes `GAP` apart."""
    done: dict[int, float] = {}
    seen: dict[int, float] = {}
    async with _client(server) as client, MongoSource(server.url("marks")) as source:
        start = await source.now()

        async def follow() -> None:
            async with aclosing(source.stream(start)) as batches:
                async for batch in batches:
                    for change in batch.changes:
                        seen[int(change.row_id)] = perf_counter()
                    if len(seen) >= writes:
                        return

        following = asyncio.create_task(follow())
        for number in range(writes):
            await client.marks.marks.insert_one({"_id": number})
            done[number] = perf_counter()
            await asyncio.sleep(GAP)
        async with asyncio.timeout(30):
            await following
    return [max(0.0, seen[number] - at) * 1000 for number, at in done.items()]


def _client(server: MongoServer) -> AsyncMongoClient[dict[str, Any]]:
    return AsyncMongoClient(server.url())
