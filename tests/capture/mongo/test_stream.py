"""Change streams of a real server: what each event becomes, filters in the server, large events, ends of streams."""

import asyncio
import random
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId
from pymongo.asynchronous.database import AsyncDatabase

from forge import wire
from forge.capture import Filter
from forge.capture.mongo import MongoSource
from forge.capture.mongo.cursor import MongoCursor
from forge.capture.mongo.pushdown import stages
from forge.change import UNAVAILABLE, Op
from forge.debezium import encode
from tests.capture.mongo.reading import batches_with, take, told
from tests.checkers.conformance.mongo import IMAGES

Database = AsyncDatabase[dict[str, Any]]


@pytest.mark.contract("W2")
async def test_an_update_has_the_document_looked_up_and_says_what_it_touched(database: Database, url: str) -> None:
    await database.orders.insert_one({"_id": 1, "status": "open", "total": 5, "tags": ["a"]})
    async with MongoSource(url) as source:
        start = await source.now()
        await database.orders.update_one({"_id": 1}, {"$set": {"status": "paid"}, "$push": {"tags": "b"}})
        (change,) = await take(source.stream(start), 1)
    assert change.op is Op.UPDATE
    assert change.after == {"_id": 1, "status": "paid", "total": 5, "tags": ["a", "b"]}
    assert change.before == {"_id": 1, "status": UNAVAILABLE, "total": 5, "tags": UNAVAILABLE}
    assert set(change.changed) == {"status", "tags"}


@pytest.mark.contract("W2")
async def test_an_update_whose_document_is_deleted_before_it_is_looked_up(database: Database, url: str) -> None:
    await database.orders.insert_one({"_id": 1, "status": "open", "total": 5, "tags": ["a"], "old": 1})
    async with MongoSource(url) as source:
        start = await source.now()
        await database.orders.update_one({"_id": 1}, {"$set": {"status": "paid", "tags.0": "b"}, "$unset": {"old": 1}})
        await database.orders.delete_one({"_id": 1})
        update, delete = await take(source.stream(start), 2)
    assert update.op is Op.UPDATE
    assert update.after == {"_id": 1, "status": "paid", "tags": UNAVAILABLE}
    assert update.before == {"_id": 1, "status": UNAVAILABLE, "tags": UNAVAILABLE, "old": UNAVAILABLE}
    assert (delete.op, delete.before, delete.after) == (Op.DELETE, {"_id": 1}, None)


async def test_a_replacement_without_pre_image(database: Database, url: str) -> None:
    await database.orders.insert_one({"_id": 1, "a": 1})
    async with MongoSource(url) as source:
        start = await source.now()
        await database.orders.replace_one({"_id": 1}, {"b": 2})
        (change,) = await take(source.stream(start), 1)
    assert (change.op, change.before, change.after) == (Op.UPDATE, {"_id": 1, "b": UNAVAILABLE}, {"_id": 1, "b": 2})


@pytest.mark.contract("W2")
async def test_with_pre_images_both_images_are_exact_however_late_they_are_read(database: Database, url: str) -> None:
    """The server's own post-images are the oracle, over random updates of nested documents and arrays."""
    await database.create_collection("orders", **IMAGES)
    chance = random.Random(7)
    async with MongoSource(url) as source, MongoSource(url, full_document="required") as oracle:
        start = await source.now()
        await database.orders.insert_one({"_id": 1, "a": {"b": [1, 2, 3], "c": {"d": 1}}, "e": [{"f": 1}, {"f": 2}]})
        updates: list[Any] = [
            {"$set": {"a.b.1": 9}},
            {"$set": {"e.0.f": Decimal128("1.5"), "n": Int64(3)}},
            {"$push": {"e": {"f": ObjectId()}}},
            {"$pop": {"a.b": 1}},
            {"$unset": {"a.c.d": 1}},
            {"$set": {"a.c.x.y": 1}},
            {"$unset": {"n": 1}},
            {"$inc": {"a.b.0": 1, "count": 1}},
            {"$set": {"a.b.6": 0}},
            [{"$set": {"e": {"$slice": ["$e", 1]}}}],
            [{"$set": {"a": {"$mergeObjects": ["$a", {"z": "$e"}]}}}],
            {"$rename": {"count": "counted"}},
        ]
        count = 1
        for _ in range(60):
            done = await database.orders.update_one({"_id": 1}, chance.choice(updates))
            count += done.modified_count
        mine = await take(source.stream(start), count)
        theirs = await take(oracle.stream(start), count)
    assert [change.after for change in mine] == [change.after for change in theirs]
    assert [change.before for change in mine[1:]] == [change.after for change in mine[:-1]]
    assert [change.id for change in mine] == [change.id for change in theirs]


@pytest.mark.contract("W2", "W9")
async def test_conditions_on_rows_run_in_the_server_and_keep_what_forge_keeps(database: Database, url: str) -> None:
    chance = random.Random(11)
    values: list[Any] = [
        *(None, True, False, 0, 1, 10, 11, Int64(12), 10.5, float("nan"), Decimal128("10.50")),
        *("open", "paid", "10", "", ObjectId("65f0c0ffee65f0c0ffee65f0"), [11], {"x": 11}),
    ]
    conditions = [
        "total > 10",
        "NOT total > 10 AND total <> 0",
        "status = 'paid' OR total BETWEEN 1 AND 10.5",
        "status IN ('open', '65f0c0ffee65f0c0ffee65f0') AND status IS NOT NULL",
        "done",
        "NOT (done OR status = 'paid')",
        "status IS NULL",
        "total NOT BETWEEN 1 AND 10 AND status NOT IN ('open')",
        "status < 'p' AND 10 <= total",
    ]
    for name in ("with_images", "without"):
        await database.create_collection(name, **(IMAGES if name == "with_images" else {}))
    async with MongoSource(url) as source:
        start = await source.now()
    for _ in range(80):
        collection = database[chance.choice(["with_images", "without"])]
        fields = {name: chance.choice(values) for name in chance.sample(("total", "status", "done", "note"), 2)}
        kind = chance.random()
        key = {"_id": chance.randrange(8)}
        if kind < 0.4:
            await collection.replace_one(key, fields, upsert=True)
        elif kind < 0.8:
            await collection.update_one(key, {"$set": fields}, upsert=True)
        else:
            await collection.delete_one(key)
    await database.with_images.insert_one({"_id": "last"})
    everything = await _until_last(MongoSource(url), start)
    for where in conditions:
        filter = Filter(where=where)
        found = await _until_last(MongoSource(url, filter), start)
        wanted = [change.id for change in everything if filter.keep(change) is not None]
        lost = [change for change in everything if change.id in {*wanted} - {each.id for each in found}]
        assert not [(each.op.value, each.before, each.after) for each in lost], where
        assert [change.id for change in found] == wanted, where
    assert 0 < await _sent(database, Filter(where="total > 10"), start) < len(everything)


async def _until_last(source: MongoSource, start: str) -> list[Any]:
    found: list[Any] = []
    async with source, asyncio.timeout(20):
        stream = source.stream(start)
        async for batch in stream:
            found += batch.changes
            if any(change.row_id == "last" for change in found):
                break
        await stream.aclose()
    return found


async def _sent(database: Database, filter: Filter, start: str) -> int:
    """How many events the server sends for the stages of a filter."""
    time = MongoCursor.parse(start).place.time
    stream = {"startAtOperationTime": time, "fullDocument": "updateLookup", "fullDocumentBeforeChange": "whenAvailable"}
    async with await database.aggregate(
        [{"$changeStream": stream}, *stages(database.name, filter)], batchSize=1000
    ) as cursor:
        count = 0
        while await cursor.try_next() is not None:
            count += 1
        return count


@pytest.mark.contract("W2")
async def test_tables_by_pattern_run_in_the_server(database: Database, url: str) -> None:
    async with MongoSource(url, Filter(tables=("ord*", f"{database.name}.li?es"))) as source:
        start = await source.now()
        for name in ("orders", "lines", "other", "ordinary", "lies"):
            await database[name].insert_one({"_id": name})
        await database.other.rename("orders2")
        changes = await take(source.stream(start), 4)
        status = await source.status()
    assert told(changes) == [
        ("insert", "orders", "orders"),
        ("insert", "lines", "lines"),
        ("insert", "ordinary", "ordinary"),
        ("invalidate", "orders2", "*"),
    ]
    assert (status.in_feed, status.in_forge) == (("tables",), ())


async def test_a_transaction_has_one_name_and_its_changes_sort(database: Database, url: str) -> None:
    await database.create_collection("orders")
    async with MongoSource(url, batch_size=2) as source:
        start = await source.now()
        async with database.client.start_session() as session, await session.start_transaction():
            for number in range(5):
                await database.orders.insert_one({"_id": number}, session=session)
        await database.orders.insert_one({"_id": 9})
        batches = await batches_with(source.stream(start), 6)
        changes = [change for batch in batches for change in batch.changes]
        behind_one = await take(source.stream(batches[0].cursor), 6 - len(batches[0].changes))
    assert [change.row_id for change in changes] == ["0", "1", "2", "3", "4", "9"]
    assert len({change.source.transaction for change in changes[:5]}) == 1
    assert changes[5].source.transaction not in (None, changes[0].source.transaction)
    assert [change.source.position for change in changes] == sorted(change.source.position for change in changes)
    assert len(batches[0].changes) == 2
    assert behind_one == changes[2:]


async def test_dropped_and_renamed_collections_and_a_dropped_database(database: Database, url: str) -> None:
    async with MongoSource(url) as source, MongoSource(url.replace("?", ".b?") if "?" in url else f"{url}.b") as one:
        start, of_one = await source.now(), await one.now()
        await database.a.insert_one({"_id": 1})
        await database.a.rename("b")
        await database.b.insert_one({"_id": 2})
        await database.b.drop()
        await database.b.insert_one({"_id": 3})
        await database.client.drop_database(database.name)
        await database.b.insert_one({"_id": 4})
        wanted = [
            ("insert", "a", "1"),
            ("truncate", "a", "*"),
            ("invalidate", "b", "*"),
            ("insert", "b", "2"),
            ("truncate", "b", "*"),
            ("insert", "b", "3"),
            ("truncate", "b", "*"),
            ("insert", "b", "4"),
        ]
        batches = await batches_with(source.stream(start), len(wanted))
        assert told([change for batch in batches for change in batch.changes]) == wanted
        for place, batch in enumerate(batches[:-1]):
            done = sum(len(each.changes) for each in batches[: place + 1])
            rest = await take(source.stream(batch.cursor), len(wanted) - done)
            assert told(rest) == wanted[done:]
        only_b = await batches_with(one.stream(of_one), 6)
        found = told([change for batch in only_b for change in batch.changes])
        assert found == [each for each in wanted if each[1] == "b"]
        assert told(await take(one.stream(only_b[-2].cursor), 1))[-1] == ("insert", "b", "4")


async def test_events_that_are_too_large_for_one_document(database: Database, url: str) -> None:
    """The event is split by the server when the lookup is in it too, and its id is the same."""
    await database.create_collection("orders", **IMAGES)
    async with MongoSource(url) as source, MongoSource(url, full_document="default") as light:
        start = await source.now()
        await database.orders.insert_one({"_id": 1, "text": "x" * 9_000_000})
        await database.orders.update_one({"_id": 1}, {"$set": {"n": 1}})
        await database.orders.update_one({"_id": 1}, {"$set": {"text": "y" * 9_000_000}})
        await database.orders.delete_one({"_id": 1})
        batches = await batches_with(source.stream(start), 4)
        changes = [change for batch in batches for change in batch.changes]
        lighter = await take(light.stream(start), 4)
        again = await take(source.stream(batches[0].cursor), 4 - len(batches[0].changes))
    assert [change.op for change in changes] == [Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE]
    assert changes[1].before == changes[0].after
    assert changes[2].after == {"_id": 1, "text": "y" * 9_000_000, "n": 1}
    assert changes[3].before == changes[2].after
    assert [change.id for change in lighter] == [change.id for change in changes]
    assert again == changes[len(batches[0].changes) :]


async def test_the_cursor_moves_on_while_only_others_write(database: Database, url: str) -> None:
    async with MongoSource(url, Filter(tables=("orders",)), wait=0.1) as source:
        start = await source.now()
        stream = source.stream(start)
        seen = {start}
        async with asyncio.timeout(20):
            while len(seen) < 4:
                await database.other.insert_one({})
                batch = await anext(stream)
                assert not batch.changes
                assert batch.cursor not in seen
                seen.add(batch.cursor)
        await stream.aclose()
        await database.orders.insert_one({"_id": 1})
        assert told(await take(source.stream(batch.cursor), 1)) == [("insert", "orders", "1")]


@pytest.mark.contract("W15")
async def test_every_change_has_an_envelope_and_a_wire_form(database: Database, url: str) -> None:
    from tests.checkers.conformance.mongo import SAMPLES

    async with MongoSource(url) as source:
        start = await source.now()
        await database.types.insert_one({"_id": {"a": 1}, **{f"c{n}": each.written for n, each in enumerate(SAMPLES)}})
        await database.types.update_one({"_id": {"a": 1}}, {"$set": {"c0": None}})
        await database.types.delete_one({"_id": {"a": 1}})
        await database.types.drop()
        changes = await take(source.stream(start), 4)
    assert [change.op for change in changes] == [Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE]
    for change in changes:
        assert encode(change) is not None
        assert wire.encode(wire.decode(wire.encode(change))) == wire.encode(change)
