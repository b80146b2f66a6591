"""A MongoDB database, or one collection of it, as a source. In: a URL and a filter. Out: batches.

A batch is one reply of the server. Its cursor is the reply's resume token, which also advances when no wanted event
happens, so that a quiet collection does not fall out of the oplog. The stream is opened with `startAfter`, which
continues behind every event, even behind the `invalidate` that ends a stream whose collection or database was dropped.

A snapshot reads one collection after the other by `_id`, as of one cluster time T (read concern `snapshot`), and the
stream continues behind T: no gap and no overlap. A server can read as of T for five minutes
(`minSnapshotHistoryWindowInSeconds`). If T is too old, or if a collection was created or indexed since, the snapshot
continues as of a newer time: first come the changes in between of what was already read, then the rest, read as of the
newer time. So a snapshot may take as long as the oplog reaches back, and may be resumed for that long.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Final, Self

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure, PyMongoError

from forge.backoff import Backoff
from forge.capture.capabilities import Capabilities
from forge.capture.filters import Filter
from forge.capture.mongo import pushdown
from forge.capture.mongo.cursor import KIND, NOTHING, CollectionProgress, MongoCursor, MongoPosition, following
from forge.capture.mongo.events import Fragments, MongoEvents
from forge.capture.mongo.server import LOST, TOO_OLD, MongoAddress, OplogServer, foreign
from forge.capture.source import SourceBatch, Status
from forge.capture.urls import split_option
from forge.change import Change
from forge.errors import ConfigError, CursorForeign, CursorInvalid, ForgeError, SourceError

CAPABILITIES: Final = Capabilities(
    durable=True,
    replayable=True,
    retention="as far as the oplog of the server reaches back; status says how many hours that is",
    other_processes=True,
    before="some",
    context=False,
    ordered=True,
    transactions=True,
    snapshots=True,
    truncates=True,
    schema_changes=False,
    filters=("tables", "operations", "rows"),
)
PAUSES: Final = (0.1, 10.0)
"""The first and the longest pause before reconnecting, in seconds."""
MOST_TRIES: Final = 5
"""How often in a row a snapshot moves to a newer time without reading anything."""
DOCUMENTS: Final = ("updateLookup", "whenAvailable", "required", "default")

_LOG = logging.getLogger("forge.capture.mongo")


class MongoSource:
    """Follows a database by its change streams.

    `full_document` (also an option of the URL, `fullDocument`) selects the document of an update: `updateLookup` is
    read together with the event, so it may be newer; `whenAvailable` is the exact post-image of collections that record
    it. `batch_size` limits the events of a batch, `wait` the seconds that the server waits for a first one, `patience`
    the seconds that it may be silent.
    """

    kind = KIND
    capabilities = CAPABILITIES

    def __init__(
        self,
        url: str,
        filter: Filter | None = None,
        *,
        full_document: str | None = None,
        batch_size: int = 1000,
        wait: float = 1.0,
        patience: float = 20.0,
    ) -> None:
        url, option = split_option(url, "fullDocument")
        self._documents = full_document or option or DOCUMENTS[0]
        if self._documents not in DOCUMENTS:
            raise ConfigError(f"fullDocument={self._documents} is not known", fix=f"one of {', '.join(DOCUMENTS)}")
        self._address = MongoAddress(url)
        self._filter = filter or Filter()
        self._filter.check()
        self._batch_size = batch_size
        self._wait = wait
        self._patience = patience
        self._server: OplogServer | None = None
        self._connecting = asyncio.Lock()
        self._events = MongoEvents(self._address.name, self._address.database)

    @property
    def name(self) -> str:
        """Return hosts and database, without secrets."""
        return self._address.name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def now(self) -> str:
        """Return the cursor behind the newest write of the primary."""
        server = await self._connected()
        with _typed(server):
            return str(MongoCursor(server.identity, MongoPosition(time=await server.now())))

    async def ack(self, cursor: str) -> None:
        """Do nothing: the oplog keeps what it can, read or not."""
        MongoCursor.parse(cursor)

    async def stream(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield the changes behind the cursor, or from now on."""
        server = await self._connected()
        cursor = MongoCursor.parse(after if after is not None else await self.now())
        self._own(cursor, server)
        if cursor.progress is not None:
            raise CursorInvalid("the cursor stands inside a snapshot", fix="finish it first: snapshot(after=cursor)")
        stages = pushdown.stages(self._address.database, self._filter)
        await self._await_time(server, cursor.place)
        stands = cursor.place
        async with aclosing(self._follow(server, cursor.place, stages)) as replies:
            async for events, place in replies:
                changes = self._changes(events)
                if changes or place != stands:
                    stands = place
                    yield SourceBatch(changes, str(MongoCursor(server.identity, place)))

    async def snapshot(self, after: str | None = None) -> AsyncGenerator[SourceBatch]:
        """Yield the existing documents, by collection and `_id`; see the module's docstring for the guarantees."""
        server = await self._connected()
        if server.version < (5, 0):
            raise SourceError(
                f"{self.name} is older than MongoDB 5.0 and cannot read several collections as of one time",
                fix="upgrade the server, or stream from now on and load what is there by other means",
            )
        if after is None:
            with _typed(server):
                cursor = MongoCursor(
                    server.identity, MongoPosition(time=await server.now()), CollectionProgress("", NOTHING)
                )
        else:
            cursor = MongoCursor.parse(after)
            self._own(cursor, server)
            if cursor.progress is None:
                raise CursorInvalid("the cursor stands behind its snapshot", fix="go on with stream(after=cursor)")
            await self._await_time(server, cursor.place)
        reading = _Snapshot(self, server, cursor)
        async with aclosing(reading.batches()) as batches:
            async for batch in batches:
                yield batch

    async def status(self) -> Status:
        """Return the status; `details` has the server's version and how far back the oplog reaches."""
        server = await self._connected()
        with _typed(server):
            position = await self.now()
            oplog = await server.oplog()
            collections = await server.collections()
        wanted = [each for each in collections if self._wants(each["name"])]
        bare = [
            each["name"]
            for each in wanted
            if not each.get("options", {}).get("changeStreamPreAndPostImages", {}).get("enabled")
        ]
        details: dict[str, object] = {
            "version": ".".join(map(str, server.version)),
            "sharded": server.sharded,
            "collections": len(wanted),
            "full_document": self._documents,
            "splits_large_events": _splits(server),
        }
        warnings = []
        if oplog is not None:
            details["oplog_hours"] = round((oplog[1].time - oplog[0].time) / 3600, 2)
        if server.version < (6, 0):
            warnings.append("a server older than MongoDB 6.0 records no pre-images: updates and deletes have no before")
        elif bare:
            warnings.append(
                f"no pre-images of {', '.join(bare[:5])}{' and others' if len(bare) > 5 else ''}: updates and deletes "
                "have no before; collMod with changeStreamPreAndPostImages: {enabled: true} records them"
            )
        in_feed = pushdown.in_feed(self._filter)
        return Status(
            KIND,
            self.name,
            CAPABILITIES,
            position,
            in_feed=in_feed,
            in_forge=tuple(part for part in self._filter.parts if part not in in_feed),
            details=details,
            warnings=tuple(warnings),
        )

    # -- in pieces -------------------------------------------------------------------------------------

    async def _connected(self) -> OplogServer:
        async with self._connecting:  # the status may be requested while a stream starts
            if self._server is None:
                server = OplogServer(self._address, patience=self._patience)
                try:
                    await server.check()
                except BaseException:
                    await server.close()
                    raise
                self._server = server
            return self._server

    def _own(self, cursor: MongoCursor, server: OplogServer) -> None:
        if foreign(cursor.server, server.identity):
            raise CursorForeign(
                f"the cursor is of another server, database or collection than {self.name}",
                fix="take a new snapshot here, or use the URL that the cursor was made with",
            )

    async def _await_time(self, server: OplogServer, place: MongoPosition) -> None:
        """Wait for the place's time: a server that stays behind a cursor it issued has lost its past."""
        wanted = place.reached
        deadline = asyncio.get_running_loop().time() + self._patience
        with _typed(server):
            while wanted is not None and wanted > (reached := await server.now()):
                if asyncio.get_running_loop().time() > deadline:
                    ahead, behind = wanted.as_datetime(), reached.as_datetime()
                    raise CursorForeign(
                        f"the cursor stands at {ahead}, and {self.name} is only at {behind}",
                        fix="take a new snapshot: the server was restored, or the cursor is of another one",
                    )
                await asyncio.sleep(0.2)

    def _wants(self, collection: str) -> bool:
        own = self._address.collection
        return own in (None, collection) and self._filter.wants_table(self._address.database, collection)

    def _changes(self, events: Sequence[Mapping[str, Any]]) -> list[Change]:
        keep = self._filter.keep
        made = self._events.changes(events)
        if not self._filter.parts and self._address.collection is None:
            return made
        return [kept for change in made if (kept := keep(change)) is not None and self._wants(change.table)]

    async def _follow(
        self, server: OplogServer, place: MongoPosition, stages: Sequence[Mapping[str, Any]]
    ) -> AsyncGenerator[tuple[Sequence[Mapping[str, Any]], MongoPosition]]:
        """Yield events, perhaps none, and the place behind them, without end, across lost connections and nodes."""
        backoff = Backoff(*PAUSES)
        given = place
        while True:
            try:
                async with aclosing(self._replies(server, place, stages)) as replies:
                    async for events, reached in replies:
                        backoff.reset()
                        place = reached
                        yield events, place
            except LOST as error:
                _LOG.warning("%s: connection lost, trying again: %s", self.name, str(error)[:200])
                await asyncio.sleep(backoff.next())
            except PyMongoError as error:
                refusal = server.refusal(error)
                if refusal is not None:
                    raise await self._about_token(server, refusal, given, place, stages) from error
                _LOG.warning("%s: stream ended, opening it again: %s", self.name, str(error)[:200])
                await asyncio.sleep(backoff.next())

    async def _replies(
        self, server: OplogServer, place: MongoPosition, stages: Sequence[Mapping[str, Any]]
    ) -> AsyncGenerator[tuple[Sequence[Mapping[str, Any]], MongoPosition]]:
        """Yield the replies of one server cursor until it ends; request the next one while one is handled."""
        fragments = Fragments()
        async with server.new_session() as session:
            cursor = (await server.command(self._opening(server, place, stages), session))["cursor"]
            collection = cursor["ns"].partition(".")[2]
            wait = {"batchSize": self._batch_size, "maxTimeMS": int(self._wait * 1000)}
            asked: asyncio.Task[dict[str, Any]] | None = None
            batch = cursor["firstBatch"]
            try:
                while True:
                    if cursor["id"]:
                        more = {"getMore": cursor["id"], "collection": collection, **wait}
                        asked = asyncio.create_task(server.command(more, session))
                    events = fragments.joined(batch)
                    if not fragments.waiting and "postBatchResumeToken" in cursor:
                        place = MongoPosition(token=cursor["postBatchResumeToken"])
                    elif fragments.behind is not None:
                        place = MongoPosition(token=fragments.behind)
                    del batch
                    yield events, place
                    if asked is None:
                        return
                    cursor = (await asked)["cursor"]
                    asked = None
                    batch = cursor["nextBatch"]
            finally:
                if asked is not None:
                    asked.cancel()
                    await asyncio.wait([asked])
                    if not asked.cancelled():
                        asked.exception()
                if cursor["id"]:
                    await _forget(server, session, collection, cursor["id"])

    def _opening(
        self, server: OplogServer, place: MongoPosition, stages: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._documents != "default":
            options["fullDocument"] = self._documents
        if server.version >= (6, 0):
            options["fullDocumentBeforeChange"] = "whenAvailable"
        if place.token is not None:
            options["startAfter"] = place.token
        elif place.time is not None:
            options["startAtOperationTime"] = following(place.time)
        pipeline = [{"$changeStream": options}, *stages]
        if _splits(server):
            pipeline.append({"$changeStreamSplitLargeEvent": {}})
        return {
            "aggregate": self._address.collection or 1,
            "pipeline": pipeline,
            "cursor": {"batchSize": self._batch_size},
        }

    async def _about_token(
        self,
        server: OplogServer,
        refusal: ForgeError,
        given: MongoPosition,
        place: MongoPosition,
        stages: Sequence[Mapping[str, Any]],
    ) -> ForgeError:
        """Return the error to raise: if the stream opens without the cursor's token, only the token is to blame."""
        if type(refusal) is not SourceError or given.token is None or place != given:
            return refusal
        try:
            async with server.new_session() as session:
                opened = await server.command(self._opening(server, MongoPosition(), stages), session)
                await _forget(server, session, opened["cursor"]["ns"].partition(".")[2], opened["cursor"]["id"])
        except (PyMongoError, *LOST):
            return refusal
        return CursorInvalid(f"the resume token of the cursor is damaged: {refusal}", fix="take a new snapshot")


class _Snapshot:
    """One snapshot being read: its position, and the steps that advance it."""

    def __init__(self, source: MongoSource, server: OplogServer, cursor: MongoCursor) -> None:
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
        listing = [each for each in await self._server.collections() if self._source._wants(each["name"])]
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
        reads = (source._events.read(name, document, time) for document in page)
        kept = [change for read in reads if (change := source._filter.keep(read)) is not None]
        return SourceBatch(kept, str(MongoCursor(self._server.identity, self._place, self._progress)))

    async def _documents(self, name: str) -> AsyncGenerator[list[dict[str, Any]]]:
        """Yield the documents of a collection behind the last one that was read, in pages, by `_id`."""
        last = self._progress.last
        find: dict[str, Any] = {
            "find": name,
            "sort": {"_id": 1},
            "hint": {"_id": 1},
            "batchSize": self._source._batch_size,
            "readConcern": {"level": "snapshot", "atClusterTime": self._place.time},
        }
        wanted: list[pushdown.Expression] = []
        if last is not NOTHING:
            wanted.append({"$gt": ["$_id", {"$literal": last}]})
        where = self._source._filter.where
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
                    more = {"getMore": cursor["id"], "collection": name, "batchSize": self._source._batch_size}
                    cursor = (await self._server.command(more, session))["cursor"]
                    page = cursor["nextBatch"]
            finally:
                if cursor["id"]:
                    await _forget(self._server, session, name, cursor["id"])

    async def _catch_up(self) -> AsyncGenerator[SourceBatch]:
        """Yield the changes of what was already read, up to a newer time, which becomes the snapshot's time."""
        with _typed(self._server):
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
        stages = [*pushdown.stages(self._source._address.database, self._source._filter), _read_already(name, last)]
        async with aclosing(self._source._follow(self._server, self._place, stages)) as replies:
            async for events, place in replies:
                due = [event for event in events if event["clusterTime"] <= target]
                reached = place.reached
                done = len(due) < len(events) or (
                    reached is not None and (reached > target or (reached == target and not events))
                )
                self._place = MongoPosition(time=target) if done else place
                changes = self._source._changes(due)
                if changes or done:
                    yield SourceBatch(changes, str(MongoCursor(self._server.identity, self._place, self._progress)))
                if done:
                    return


@contextmanager
def _typed(server: OplogServer) -> Iterator[None]:
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


def _splits(server: OplogServer) -> bool:
    return server.version >= (7, 0) or (6, 0, 9) <= server.version < (6, 1)


async def _forget(server: OplogServer, session: AsyncClientSession, collection: str, cursor: int) -> None:
    """Let the server free a cursor; if it cannot be reached, the cursor ends with its session."""
    with suppress(PyMongoError, *LOST):
        await server.command({"killCursors": collection, "cursors": [cursor]}, session)
