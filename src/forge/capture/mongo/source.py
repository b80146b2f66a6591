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
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Self

from pymongo.errors import PyMongoError

from forge.backoff import Backoff
from forge.capture.capabilities import Capabilities
from forge.capture.filters import Filter
from forge.capture.mongo import pushdown
from forge.capture.mongo.cursor import KIND, NOTHING, CollectionProgress, MongoCursor, MongoPosition, following
from forge.capture.mongo.events import Fragments, MongoEvents
from forge.capture.mongo.server import LOST, MongoAddress, OplogServer, foreign
from forge.capture.mongo.snapshot import PAUSES, MongoSnapshot, forget, typed
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
        self.address = MongoAddress(url)
        self.filter = filter or Filter()
        self.filter.check()
        self.batch_size = batch_size
        self._wait = wait
        self._patience = patience
        self._server: OplogServer | None = None
        self._connecting = asyncio.Lock()
        self.events = MongoEvents(self.address.name, self.address.database)

    @property
    def name(self) -> str:
        """Return hosts and database, without secrets."""
        return self.address.name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def now(self) -> str:
        """Return the cursor behind the newest write of the primary."""
        server = await self._connected()
        with typed(server):
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
        stages = pushdown.stages(self.address.database, self.filter)
        await self._await_time(server, cursor.place)
        stands = cursor.place
        async with aclosing(self.follow(server, cursor.place, stages)) as replies:
            async for events, place in replies:
                changes = self.changes(events)
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
            with typed(server):
                cursor = MongoCursor(
                    server.identity, MongoPosition(time=await server.now()), CollectionProgress("", NOTHING)
                )
        else:
            cursor = MongoCursor.parse(after)
            self._own(cursor, server)
            if cursor.progress is None:
                raise CursorInvalid("the cursor stands behind its snapshot", fix="go on with stream(after=cursor)")
            await self._await_time(server, cursor.place)
        reading = MongoSnapshot(self, server, cursor)
        async with aclosing(reading.batches()) as batches:
            async for batch in batches:
                yield batch

    async def status(self) -> Status:
        """Return the status; `details` has the server's version and how far back the oplog reaches."""
        server = await self._connected()
        with typed(server):
            position = await self.now()
            oplog = await server.oplog()
            collections = await server.collections()
        wanted = [each for each in collections if self.wants(each["name"])]
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
        in_feed = pushdown.in_feed(self.filter)
        return Status(
            KIND,
            self.name,
            CAPABILITIES,
            position,
            in_feed=in_feed,
            in_forge=tuple(part for part in self.filter.parts if part not in in_feed),
            details=details,
            warnings=tuple(warnings),
        )

    # -- in pieces -------------------------------------------------------------------------------------

    async def _connected(self) -> OplogServer:
        async with self._connecting:  # the status may be requested while a stream starts
            if self._server is None:
                server = OplogServer(self.address, patience=self._patience)
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
        with typed(server):
            while wanted is not None and wanted > (reached := await server.now()):
                if asyncio.get_running_loop().time() > deadline:
                    ahead, behind = wanted.as_datetime(), reached.as_datetime()
                    raise CursorForeign(
                        f"the cursor stands at {ahead}, and {self.name} is only at {behind}",
                        fix="take a new snapshot: the server was restored, or the cursor is of another one",
                    )
                await asyncio.sleep(0.2)

    def wants(self, collection: str) -> bool:
        own = self.address.collection
        return own in (None, collection) and self.filter.wants_table(self.address.database, collection)

    def changes(self, events: Sequence[Mapping[str, Any]]) -> list[Change]:
        keep = self.filter.keep
        made = self.events.changes(events)
        if not self.filter.parts and self.address.collection is None:
            return made
        return [kept for change in made if (kept := keep(change)) is not None and self.wants(change.table)]

    async def follow(
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
            wait = {"batchSize": self.batch_size, "maxTimeMS": int(self._wait * 1000)}
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
                    await forget(server, session, collection, cursor["id"])

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
            "aggregate": self.address.collection or 1,
            "pipeline": pipeline,
            "cursor": {"batchSize": self.batch_size},
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
                await forget(server, session, opened["cursor"]["ns"].partition(".")[2], opened["cursor"]["id"])
        except (PyMongoError, *LOST):
            return refusal
        return CursorInvalid(f"the resume token of the cursor is damaged: {refusal}", fix="take a new snapshot")


def _splits(server: OplogServer) -> bool:
    return server.version >= (7, 0) or (6, 0, 9) <= server.version < (6, 1)
