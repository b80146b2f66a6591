"""Snapshot of a MongoDB database: its collections as of one time, which moves on with the changes of what was read."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure, PyMongoError

from forge.backoff import Backoff
from forge.capture.mongo import pushdown
from forge.capture.mongo.cursor import NOTHING, CollectionProgress, MongoCursor, MongoPosition
from forge.capture.mongo.server import LOST, TOO_OLD, OplogServer
from forge.capture.source import SourceBatch
from forge.errors import SourceError

if TYPE_CHECKING:
    from forge.capture.mongo.source import MongoSource

_LOG = logging.getLogger("forge.capture.mongo")

PAUSES: Final = (0.1, 10.0)
"""The first and the longest pause before reconnecting, in seconds."""


MOST_TRIES: Final = 5
"""How often in a row a snapshot moves to a newer time without reading anything."""


class MongoSnapshot:
    """One snapshot being read: its position, and the steps that advance it."""

    def __init__(self, source: "MongoSource", server: OplogServer, cursor: MongoCursor) -> None:
        assert cursor.progress is not None
        self._source = source
        self._server = server
        self._place = cursor.place
        self._progress = cursor.progress
        self._backoff = Backoff(*PAUSES)
        self._vain = 0

    async def batches(self) -> AsyncGenerator[SourceBatch]:
        if self._place.time is None:
            async with aclosing(self._catch_up()) as behind:
                async for batch in behind:
                    yield batch
        while True:
            try:
                async with aclosing(self._rest()) as rest:
                    async for batch in rest:
                        self._backoff.reset()
                        self._vain = 0
                        yield batch
                break
            except LOST as error:
                await self._wait_for_server(error)
            except OperationFailure as error:
                if error.code not in TOO_OLD:
                    refusal = self._server.refusal(error)
                    if refusal is not None:
                        raise refusal from error
                    await self._wait_for_server(error)
                    continue
                self._vain += 1
                if self._vain > MOST_TRIES:
                    fix = "try again, or raise minSnapshotHistoryWindowInSeconds on the server"
                    raise SourceError(f"{self._source.name} cannot be read as of one time: {error}", fix=fix) from error
                async with aclosing(self._catch_up()) as behind:
                    async for batch in behind:
                        yield batch
        yield SourceBatch((), str(MongoCursor(self._server.identity, self._place)))

    async def _wait_for_server(self, error: BaseException) -> None:
        _LOG.warning("%s: snapshot interrupted, going on: %s", self._source.name, str(error)[:200])
        await asyncio.sleep(self._backoff.next())

    async def _rest(self) -> AsyncGenerator[SourceBatch]:
        """Yield what is not read yet, as of the snapshot's time."""
        listing = [each for each in await self._server.collections() if self._source.wants(each["name"])]
        for listed in listing:
            if listed.get("options", {}).get("capped"):
                raise SourceError(
                    f"{listed['name']} is capped, and a capped collection cannot be read as of one time",
                    fix="name the other collections in the filter's tables; the stream takes capped ones too",
                )
        for listed in listing:
            name = listed["name"]
            if name < self._progress.collection:
                continue
            if name != self._progress.collection:
                self._progress = CollectionProgress(name, NOTHING)
            async with aclosing(self._documents(name)) as pages:
                async for page in pages:
                    yield self._read(name, page)

    def _read(self, name: str, page: Sequence[Mapping[str, Any]]) -> SourceBatch:
        time, source = self._place.time, self._source
        assert time is not None
        self._progress = CollectionProgress(name, page[-1]["_id"])
        reads = (source.events.read(name, document, time) for document in page)
        kept = [change for read in reads if (change := source.filter.keep(read)) is not None]
        return SourceBatch(kept, str(MongoCursor(self._server.identity, self._place, self._progress)))

    async def _documents(self, name: str) -> AsyncGenerator[list[dict[str, Any]]]:
        """Yield the documents of a collection behind the last one that was read, in pages, by `_id`."""
        last = self._progress.last
        find: dict[str, Any] = {
            "find": name,
            "sort": {"_id": 1},
            "hint": {"_id": 1},
            "batchSize": self._source.batch_size,
            "readConcern": {"level": "snapshot", "atClusterTime": self._place.time},
        }
        wanted: list[pushdown.Expression] = []
        if last is not NOTHING:
            wanted.append({"$gt": ["$_id", {"$literal": last}]})
        where = self._source.filter.where
        if where is not None and (said := pushdown.condition(where, "")[0]) is not True:
            wanted.append(said)
        if wanted:
            find["filter"] = {"$and": [{"$expr": each} for each in wanted]}
        async with self._server.new_session() as session:
            cursor = (await self._server.command(find, session))["cursor"]
            page = cursor["firstBatch"]
            try:
                while True:
                    if page:
                        yield page
                    if not cursor["id"]:
                        return
                    more = {"getMore": cursor["id"], "collection": name, "batchSize": self._source.batch_size}
                    cursor = (await self._server.command(more, session))["cursor"]
                    page = cursor["nextBatch"]
            finally:
                if cursor["id"]:
                    await forget(self._server, session, name, cursor["id"])

    async def _catch_up(self) -> AsyncGenerator[SourceBatch]:
        """Yield the changes of what was already read, up to a newer time, which becomes the snapshot's time."""
        with typed(self._server):
            target = await self._server.now()
            listing = await self._server.collections()
        name, last = self._progress
        if last is not NOTHING and any(
            each["name"] == name and each.get("options", {}).get("collation") for each in listing
        ):
            raise SourceError(
                f"{name} has a collation of its own, so what was read of it cannot be told from what was not",
                fix="take the snapshot again within minSnapshotHistoryWindowInSeconds, or raise that on the server",
            )
        stages = [*pushdown.stages(self._source.address.database, self._source.filter), _read_already(name, last)]
        async with aclosing(self._source.follow(self._server, self._place, stages)) as replies:
            async for events, place in replies:
                due = [event for event in events if event["clusterTime"] <= target]
                reached = place.reached
                done = len(due) < len(events) or (
                    reached is not None and (reached > target or (reached == target and not events))
                )
                self._place = MongoPosition(time=target) if done else place
                changes = self._source.changes(due)
                if changes or done:
                    yield SourceBatch(changes, str(MongoCursor(self._server.identity, self._place, self._progress)))
                if done:
                    return


@contextmanager
def typed(server: OplogServer) -> Iterator[None]:
    """Convert the errors of one request to the server into Forge's."""
    try:
        yield
    except LOST as error:
        raise SourceError(f"{server.name} is lost: {str(error)[:200]}", fix="try again when it is back") from error
    except PyMongoError as error:
        fix = "try again when it is well"
        raise server.refusal(error) or SourceError(f"{server.name}: {str(error)[:200]}", fix=fix) from error


def _read_already(collection: str, last: Any) -> dict[str, Any]:
    """Return a stage for the events of what a snapshot has read: earlier collections, and this one up to `last`."""
    done = [{"$lt": ["$ns.coll", {"$literal": collection}]}, {"$lt": ["$to.coll", {"$literal": collection}]}]
    done[1] = {"$and": [{"$eq": [{"$type": "$to.coll"}, "string"]}, done[1]]}
    if last is not NOTHING:
        here = {"$eq": ["$ns.coll", {"$literal": collection}]}
        done.append({"$and": [here, {"$lte": ["$documentKey._id", {"$literal": last}]}]})
    return {"$match": {"$or": [{"operationType": {"$in": list(pushdown.ALWAYS)}}, {"$expr": {"$or": done}}]}}


async def forget(server: OplogServer, session: AsyncClientSession, collection: str, cursor: int) -> None:
    """Let the server free a cursor; if it cannot be reached, the cursor ends with its session."""
    with suppress(PyMongoError, *LOST):
        await server.command({"killCursors": collection, "cursors": [cursor]}, session)
