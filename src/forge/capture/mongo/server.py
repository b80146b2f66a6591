"""The server behind a source: commands to one node, its capabilities, and the meaning of its errors.

Cursors live on the node that created them, so all commands of a client go to one node as long as it is there: the
primary, or a node that the URL's `readPreference` allows, or one of several mongos.

A command that is not answered within `patience` counts as a lost connection, half-open ones too. A server that scans a
long oplog is silent for long, so each consecutive timeout doubles the patience; a reply resets it.
"""

import asyncio
import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.driver_info import DriverInfo
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.server_description import ServerDescription

from forge.capture.mongo.codecs import CODEC
from forge.errors import ConfigError, CursorExpired, CursorForeign, ForgeError, SourceError

LOST: Final = (ConnectionFailure, TimeoutError, OSError)
_FIX_URL: Final = "mongodb://user:password@host:27017/database, or …/database.collection for one collection"
_FIX_STANDALONE: Final = "run it as a replica set, be it of one: mongod --replSet rs0, then once rs.initiate()"
_FIX_RIGHTS: Final = "grant the URL's user the role read on the database (find, changeStream), and check authSource"
_PASSING: Final = frozenset({6, 7, 43, 63, 89, 91, 133, 134, 136, 150, 189, 202, 217, 234, 237, 262, 290, 384, 9001})
_PASSING_NOT_PRIMARY: Final = frozenset({10107, 11600, 11602, 13388, 13435, 13436, 50915})
_DENIED: Final = frozenset({13, 18, 31, 33, 8000})
_NO_SUCH_COMMAND: Final = 59
STANDALONE, HISTORY_LOST, FATAL, TOO_LARGE = 40573, 286, 280, (10334, 17419, 17420, 16493)
TOO_OLD: Final = frozenset({239, 246})
"""SnapshotTooOld and SnapshotUnavailable: the server cannot read as of that time."""


class MongoAddress:
    """The parts of a URL.

    >>> address = MongoAddress("mongodb://forge:secret@a.example,b.example:27018/shop.orders?replicaSet=rs0")
    >>> address.name, address.database, address.collection
    ('a.example,b.example:27018/shop.orders', 'shop', 'orders')
    >>> MongoAddress("mongodb://localhost")
    Traceback (most recent call last):
      ...
    forge.errors.ConfigError: the URL of the MongoDB server names no database
    fix: mongodb://user:password@host:27017/database, or …/database.collection for one collection
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("mongodb", "mongodb+srv") or not parts.netloc:
            raise ConfigError("the URL of the MongoDB server cannot be read", fix=_FIX_URL)
        path = unquote(parts.path.lstrip("/"))
        self.database, _, collection = path.partition(".")
        if not self.database:
            raise ConfigError("the URL of the MongoDB server names no database", fix=_FIX_URL)
        if self.database in ("admin", "local", "config"):
            raise ConfigError(f"{self.database} is the server's own and has no change streams", fix=_FIX_URL)
        if re.search(r"(?i)loadBalanced=true", parts.query):
            raise ConfigError(
                "a change stream cannot be followed through a load balancer",
                fix="name the nodes, or mongos, themselves",
            )
        self.url = url
        self.collection = collection or None
        self.name = f"{parts.netloc.rpartition('@')[2]}/{path}"


class OplogServer:
    """A connected server that has an oplog."""

    def __init__(self, address: MongoAddress, *, patience: float) -> None:
        self._address = address
        self._patience = self._limit = patience
        self._node: tuple[str, int | None] | None = None
        self._client = _client(address, patience, self._same_node)
        self._database = self._client.get_database(address.database, codec_options=CODEC)
        self._preference = self._client.read_preference
        self.name = address.name
        self.version: tuple[int, ...] = ()
        self.identity = ""
        self.sharded = False

    async def check(self) -> None:
        """Identify the server; raise SourceError if it cannot be followed."""
        try:
            async with asyncio.timeout(2 * self._patience):
                hello = await self._client.admin.command("hello", read_preference=ReadPreference.PRIMARY_PREFERRED)
                self.sharded = hello.get("msg") == "isdbgrid"
                if not self.sharded and "setName" not in hello:
                    raise self._refused(hello)
                built = await self._client.admin.command("buildInfo", read_preference=self._preference)
                self.version = tuple(built["versionArray"][:3])
                self.identity = await self._identify(hello)
        except ServerSelectionTimeoutError as error:
            raise self._unreachable(error) from None
        except LOST as error:
            raise SourceError(f"{self._address.name} cannot be reached: {_line(error)}", fix=_FIX_REACH) from None
        except OperationFailure as error:
            raise self.refusal(error) or SourceError(
                f"{self._address.name} answers with an error: {_line(error)}", fix="try again when the server is well"
            ) from None

    def new_session(self) -> AsyncClientSession:
        """Start a session: a cursor is read only in the session that opened it."""
        return self._client.start_session(causal_consistency=False)

    async def command(self, command: dict[str, Any], session: AsyncClientSession) -> dict[str, Any]:
        """Return the reply to a command on the database, or raise in time."""
        try:
            async with asyncio.timeout(self._limit):
                reply = await self._database.command(
                    command, read_preference=self._preference, codec_options=CODEC, session=session
                )
        except TimeoutError:
            self._limit *= 2
            raise
        self._limit = self._patience
        return reply

    async def now(self) -> Timestamp:
        """Return the cluster time of the newest write of the primary."""
        async with asyncio.timeout(self._limit):
            reply = await self._client.admin.command("hello", read_preference=ReadPreference.PRIMARY)
        time: Timestamp | None = reply.get("operationTime")  # hidden from users without any role
        return reply["lastWrite"]["opTime"]["ts"] if time is None else time

    async def collections(self) -> list[Mapping[str, Any]]:
        """Return the collections that a change stream sees, by name, with their options."""
        async with asyncio.timeout(self._limit):
            found = await self._database.list_collections(filter={"type": "collection"})
            listed = await found.to_list()
        return sorted(
            (each for each in listed if not each["name"].startswith("system.")), key=lambda each: str(each["name"])
        )

    async def oplog(self) -> tuple[Timestamp, Timestamp] | None:
        """Return the oldest and the newest entry of the oplog, if this user may read it."""
        if self.sharded:
            return None
        entries = self._client.local.get_collection("oplog.rs", read_preference=self._preference)
        try:
            async with asyncio.timeout(self._limit):
                ends = [await entries.find_one({}, {"ts": 1}, sort=[("$natural", direction)]) for direction in (1, -1)]
        except OperationFailure as error:
            if error.code in _DENIED:
                return None
            raise
        first, last = ends
        return (first["ts"], last["ts"]) if first and last else None

    async def close(self) -> None:
        await self._client.close()

    def refusal(self, error: PyMongoError) -> ForgeError | None:
        """Return Forge's error for one that no retry fixes; None for a transient one."""
        name, told = self._address.name, _line(error)
        if isinstance(error, ConfigurationError):
            return SourceError(f"{name} cannot be used: {told}", fix="check the options of the URL")
        if not isinstance(error, OperationFailure):
            return None
        code = error.code or 0
        if code == STANDALONE or "only supported on replica sets" in told:
            return self._refused({})
        if code in _DENIED:
            return SourceError(f"{name} does not let this user in: {told}", fix=_FIX_RIGHTS)
        if code == HISTORY_LOST:
            return CursorExpired(
                f"the oplog of {name} no longer has what follows the cursor",
                fix="take a new snapshot, and enlarge the oplog (replSetResizeOplog) or read more often",
            )
        if code == FATAL:
            return CursorForeign(
                f"{name} does not know the event of the cursor: {told}",
                fix="take a new snapshot: the cursor is of another server, or of this one before it was restored",
            )
        if code in TOO_LARGE:
            return SourceError(
                f"an event of {name} is larger than 16 MB: {told}",
                fix="MongoDB 6.0.9 or newer splits such events; or switch pre-images off for the collection",
            )
        if error.has_error_label("ResumableChangeStreamError") or code in _PASSING | _PASSING_NOT_PRIMARY:
            return None
        return SourceError(f"{name} refuses to be followed: {told}", fix="see the server's message")

    async def _identify(self, hello: Mapping[str, Any]) -> str:
        """Return an id of the replica set, one of what is watched, and the set's own id if this user may read it."""
        words = [_word(str(hello.get("setName", "mongos"))), _word(self._address.name.rpartition("/")[2])]
        try:
            if self.sharded:
                found = await self._client.config.get_collection("version").find_one({})
                words.append(str((found or {}).get("clusterId", "")))
            else:
                reply = await self._client.admin.command("replSetGetConfig", read_preference=self._preference)
                words.append(str(reply["config"].get("settings", {}).get("replicaSetId", "")))
        except OperationFailure as error:
            if error.code not in _DENIED | {_NO_SUCH_COMMAND}:
                raise
        return ".".join(word for word in words if word)

    def _refused(self, hello: Mapping[str, Any]) -> SourceError:
        if hello.get("isreplicaset"):
            return SourceError(
                f"{self._address.name} is to be in a replica set that was never initiated",
                fix="rs.initiate() once in mongosh",
            )
        return SourceError(
            f"{self._address.name} is a standalone server, which has no oplog and so no change streams",
            fix=_FIX_STANDALONE,
        )

    def _unreachable(self, error: ServerSelectionTimeoutError) -> SourceError:
        seen = self._client.topology_description.server_descriptions().values()
        if any(server.server_type_name == "RSGhost" for server in seen):
            return self._refused({"isreplicaset": True})
        why = next((_line(server.error) for server in seen if server.error is not None), _line(error))
        return SourceError(f"{self._address.name} cannot be reached: {why}", fix=_FIX_REACH)

    def _same_node(self, servers: Sequence[ServerDescription]) -> list[ServerDescription]:
        """Return the previously chosen node if it is suitable, else the nearest suitable one."""
        if len(servers) < 2:
            return list(servers)
        for server in servers:
            if server.address == self._node:
                return [server]
        nearest = min(servers, key=lambda server: server.round_trip_time or 0.0)
        self._node = nearest.address
        return [nearest]


_FIX_REACH: Final = "check host, port, replicaSet and TLS of the URL, and that the server runs"


def _client(address: MongoAddress, patience: float, selector: Any) -> AsyncMongoClient[dict[str, Any]]:
    """Create a client; the URL's own timeouts win, and an option that PyMongo would only warn about is an error."""
    timeouts: dict[str, Any] = {
        "serverSelectionTimeoutMS": int(patience * 1000),
        "connectTimeoutMS": int(patience * 1000),
        "heartbeatFrequencyMS": max(500, int(patience * 500)),
    }
    said = {name.lower() for name, _ in parse_qsl(urlsplit(address.url).query)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            return AsyncMongoClient(
                address.url,
                appname="forge",
                driver=DriverInfo("forge"),
                server_selector=selector,
                document_class=dict,
                **{name: value for name, value in timeouts.items() if name.lower() not in said},
            )
    except (ConfigurationError, InvalidURI, ValueError, UserWarning) as error:
        raise ConfigError(f"the URL of the MongoDB server cannot be used: {_line(error)}", fix=_FIX_URL) from None


def foreign(cursor: str, own: str) -> bool:
    """Tell whether two identities are known to be of different servers: either may lack the last part.

    >>> foreign("1f.2e", "1f.2e.65f0"), foreign("1f.2e.65f0", "1f.2e.77aa"), foreign("1f.2e", "1f.3d")
    (False, True, True)
    """
    return any(one != two for one, two in zip(cursor.split("."), own.split("."), strict=False))


def _word(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _line(error: BaseException | object) -> str:
    """Return an error of PyMongo in one line, without the reply that it appends."""
    text = " ".join(str(error).split()).partition(", full error:")[0]
    return text[:200] or type(error).__name__
