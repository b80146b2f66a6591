"""The server that a run measures on, and what benchmarks need around it."""

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from time import perf_counter

from psycopg import sql

from forge.changelog.install import install
from forge.changelog.partitions import partition_name
from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database, temporary_postgres

Variant = str
UNTRACKED, FORGE, PEER = "untracked", "forge", "row trigger"


class Bench:
    """One run: a server with the embedded settings, and how much to measure."""

    def __init__(self, server: PostgresServer, *, quick: bool, say: Callable[[str], None]) -> None:
        self.server = server
        self.quick = quick
        self.say = say

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new database with Forge and the peer's row trigger installed.

        The log has the partitions that it would have after a month.
        """
        with fresh_database(self.server) as url:
            with connect(url) as connection:
                install(connection)
                for day in past_days():
                    _partition(connection, day)
                connection.execute(script("peer"))
            yield url

    def pgbench(self, url: str, text: str, *, seconds: float, options: str = "") -> "Load":
        """Start one-row transactions by pgbench: 8 connections, prepared statements, as fast as they go."""
        return Load(self.server, url, text, seconds, options)


class Load:
    """A running pgbench."""

    def __init__(self, server: PostgresServer, url: str, text: str, seconds: float, options: str) -> None:
        self._script = server.data / f"{uuid.uuid4().hex}.pgbench"
        self._script.write_text(text)
        self._process = subprocess.Popen(
            [
                str(server.bin / "pgbench"),
                *("-n", "-M", "prepared", "-c", "8", "-j", "1"),
                *("-T", f"{seconds:.0f}", "-f", str(self._script)),
                url,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PGOPTIONS": options},
        )

    def end(self) -> None:
        """Let it go on no longer."""
        self._process.terminate()
        self._process.communicate()
        self._script.unlink()

    def result(self) -> tuple[int, float]:
        """Wait for its end: how many transactions, and how many a second."""
        out, error = self._process.communicate()
        self._script.unlink()
        done = re.search(r"transactions actually processed: (\d+)", out)
        rate = re.search(r"tps = ([\d.]+)", out)
        if self._process.returncode or done is None or rate is None:
            raise RuntimeError(f"pgbench failed: {error.strip()[-500:]}")
        return int(done[1]), float(rate[1])


@contextmanager
def running(*, quick: bool, say: Callable[[str], None]) -> Iterator[Bench]:
    """A run on a server of its own, gone with its data afterwards."""
    with temporary_postgres(settings={"fsync": "on"}, tcp=False) as server:
        yield Bench(server, quick=quick, say=say)


def past_days() -> list[date]:
    """The 30 days before today."""
    today = datetime.now(UTC).date()
    return [today - timedelta(days=n) for n in reversed(range(1, 31))]


def _partition(connection: Connection, day: date) -> None:
    connection.execute(
        sql.SQL("CREATE TABLE {} PARTITION OF forge.forge_event_log FOR VALUES FROM ({}) TO ({})").format(
            sql.Identifier("forge", partition_name(day)), day.isoformat(), (day + timedelta(days=1)).isoformat()
        )
    )


def script(name: str) -> bytes:
    """A file of `sql/`."""
    return (files("benchmarks") / "sql" / f"{name}.sql").read_bytes()


def track(connection: Connection, variant: Variant, table: str) -> None:
    """Make writes to a table be captured as the variant says."""
    if variant == FORGE:
        connection.execute("SELECT forge_enable_reactivity(%s)", (table,))
    elif variant == PEER:
        connection.execute(
            sql.SQL(
                "CREATE TRIGGER peer AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION peer_log()"
            ).format(sql.Identifier(table))
        )


def checkpoint(connection: Connection) -> None:
    """Let what follows start from a clean sheet: no checkpoint of earlier work falls into it."""
    connection.execute("CHECKPOINT")


def timed(action: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = perf_counter()
    action()
    return perf_counter() - start


def python(module: str, *arguments: str) -> list[str]:
    """The command for a process of our own."""
    return [sys.executable, "-m", module, *arguments]


RESULTS = Path(__file__).parent / "results" / "raw"
