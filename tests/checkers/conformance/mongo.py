"""A MongoDB database for the conformance suite: collections with pre-images, so that both images are exact."""

import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar
from urllib.parse import urlsplit

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession

from forge.capture import Filter, Source
from forge.capture.mongo import MongoSource
from forge.testing.conformance.adapter import Adapter, Opening, Sample, Unsupported, Writer
from forge.testing.conformance.operations import ITEMS, OTHERS, TYPES, Delete, Fill, Insert, Operation, Truncate, Update
from forge.testing.conformance.proxy import CountingProxy
from forge.testing.mongo import temporary_mongo

IMAGES: dict[str, Any] = {"changeStreamPreAndPostImages": {"enabled": True}}
IDENTITY = uuid.UUID("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11")
NESTED = {"a": [Decimal("2.5"), None], "b": {"c": 7}}
SAMPLES: Sequence[Sample] = (
    Sample("bool", True, True),
    Sample("int", -(2**31), -(2**31)),
    Sample("long", Int64(2**63 - 1), 2**63 - 1),
    Sample("long", Int64(1), 1),
    Sample("double", 0.1, 0.1),
    Sample("double", float("-inf"), float("-inf")),
    Sample("double", -0.0, -0.0),
    Sample("decimal", Decimal128("12.30"), Decimal("12.30")),
    Sample("decimal", Decimal128("NaN"), Decimal("NaN")),
    Sample("string", "zażółć\n'\"\\ \U0001f600", "zażółć\n'\"\\ \U0001f600"),
    Sample("objectId", ObjectId("65f0c0ffee65f0c0ffee65f0"), "65f0c0ffee65f0c0ffee65f0"),
    Sample("date", datetime(2026, 1, 31, 12, 0, 0, 500000, UTC), "2026-01-31T12:00:00.5+00:00"),
    Sample("date", datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), "1969-12-31T23:59:59+00:00"),
    Sample("binData", b"\x00\xff", b"\x00\xff"),
    Sample("binData 5", Binary(b"\x01\x02", 5), b"\x01\x02"),
    Sample("uuid", Binary.from_uuid(IDENTITY), str(IDENTITY)),
    Sample("object", {"a": [Decimal128("2.5"), None], "b": {"c": Int64(7)}}, NESTED),
    Sample("array", [1, [ObjectId("65f0c0ffee65f0c0ffee65f0")]], [1, ["65f0c0ffee65f0c0ffee65f0"]]),
    Sample("empty", {}, {}),
    Sample("regex", Regex("^a", "i"), '{"$regularExpression":{"pattern":"^a","options":"i"}}'),
    Sample("timestamp", Timestamp(1, 2), '{"$timestamp":{"t":1,"i":2}}'),
    Sample("javascript", Code("f()"), '{"$code":"f()"}'),
    Sample("minKey", MinKey(), '{"$minKey":1}'),
    Sample("maxKey", MaxKey(), '{"$maxKey":1}'),
)  # fmt: skip


class MongoWriter(Writer):
    """A session; outside a transaction it writes by itself."""

    def __init__(self, client: AsyncMongoClient[dict[str, Any]], database: str) -> None:
        self._client = client
        self._database = client[database]
        self._session: AsyncClientSession | None = None

    async def run(self, operation: Operation) -> None:
        collection = self._database[operation.table]
        if isinstance(operation, Insert):
            await collection.insert_one(dict(operation.row), session=self._session)
        elif isinstance(operation, Update):
            done = await collection.update_one(
                {"_id": operation.id}, {"$set": dict(operation.row)}, session=self._session
            )
            assert done.matched_count == 1
        elif isinstance(operation, Delete):
            await collection.delete_one({"_id": operation.id}, session=self._session)
        elif isinstance(operation, Truncate):
            if self._session is not None:
                raise Unsupported("a collection is not dropped in a transaction")
            await collection.drop()
            await self._database.create_collection(operation.table, **IMAGES)
        elif isinstance(operation, Fill):
            await self._fill(operation)
        else:
            raise Unsupported("a collection has no columns to add")

    async def _fill(self, fill: Fill) -> None:
        rows = [
            {"_id": fill.first + place, "name": "fill", "amount": 0, "note": fill.note} for place in range(fill.count)
        ]
        if self._session is not None:
            await self._database[fill.table].insert_many(rows, session=self._session)
            return
        await self.begin()
        await self._database[fill.table].insert_many(rows, session=self._session)
        await self.commit()

    async def begin(self) -> None:
        self._session = self._client.start_session()
        await self._session.start_transaction()

    async def commit(self) -> None:
        assert self._session is not None
        await self._session.commit_transaction()
        await self._end()

    async def rollback(self) -> None:
        assert self._session is not None
        await self._session.abort_transaction()
        await self._end()

    async def _end(self) -> None:
        assert self._session is not None
        await self._session.end_session()
        self._session = None


class MongoAdapter(Adapter):
    """A database of its own, with the suite's collections in it."""

    name: ClassVar[str] = "mongo"
    key: ClassVar[str] = "_id"
    samples: ClassVar[Sequence[Sample]] = SAMPLES
    keys_change: ClassVar[bool] = False
    silence: ClassVar[float] = 15.0
    backlog: ClassVar[tuple[int, int]] = (9_000, 4_000)

    def __init__(self, url: str, proxy: CountingProxy | None) -> None:
        self.url = url
        self.proxy = proxy
        self.database = urlsplit(url).path.lstrip("/")
        self.consumer = ("forge.capture:open_source", url)

    def source(self, filter: Filter | None = None, *, proxied: bool = False) -> Source:
        url = self.url
        if proxied:
            assert self.proxy is not None
            url = self.proxy.url(url)
            if "directConnection" not in url:  # else the client goes around the proxy, to the members of the set
                url += "&directConnection=true" if "?" in url else "?directConnection=true"
        return MongoSource(url, filter, wait=0.2, patience=2.0)

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[Writer]:
        async with AsyncMongoClient[dict[str, Any]](self.url) as client:
            yield MongoWriter(client, self.database)

    async def foreign_cursor(self) -> str:
        other = self.url.replace(f"/{self.database}", "/another")
        async with MongoSource(other) as source:
            return await source.now()


@asynccontextmanager
async def opened(url: str, proxy: CountingProxy | None) -> AsyncIterator[MongoAdapter]:
    """A fresh database on the server of a URL, whose own database is left alone."""
    name = f"forge_{uuid.uuid4().hex[:12]}"
    parts = urlsplit(url)
    url = parts._replace(path=f"/{name}").geturl()
    async with AsyncMongoClient[dict[str, Any]](url) as client:
        for table in (ITEMS, OTHERS, TYPES):
            await client[name].create_collection(table, **IMAGES)
        try:
            yield MongoAdapter(url, proxy)
        finally:
            await client.drop_database(name)


@contextmanager
def serving() -> Iterator[Opening]:
    """A server, and what makes databases in it."""
    with temporary_mongo() as server, CountingProxy("127.0.0.1", server.port) as proxy:
        yield lambda: opened(server.url(), proxy)
