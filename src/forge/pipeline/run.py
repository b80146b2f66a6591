"""Run a pipeline that keeps a lake current: a stream of the log whose batches go through bronze, silver and gold.

    with pipeline(spark, url, Lake("/lake")) as running:
        running.once()

Delivery is exactly once, whichever process is killed and when: Spark writes down the content of a batch before it
begins, bronze accepts a batch once, and every step after bronze is idempotent. So an interrupted batch is repeated. The
steps are durable in this order: offset, bronze, silver, gold, the batch's row in `batches`, commit.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from forge.cursor import Cursor
from forge.errors import CursorForeign, HistoryUnavailable, LakeError
from forge.pipeline import about as abouts
from forge.pipeline import checks, ledger
from forge.pipeline.about import About
from forge.pipeline.batch import Batches
from forge.pipeline.failures import translated
from forge.pipeline.lag import Lag, lag
from forge.pipeline.lake import Lake
from forge.pipeline.lease import lease
from forge.pipeline.ledger import Entry
from forge.pipeline.silver.types import Types
from forge.pipeline.source import register
from forge.pipeline.source.options import MOST_EVENTS, STARTS
from forge.pipeline.source.planner import tracked
from forge.pipeline.tables import CONFLICTS
from forge.pipeline.verify import verify
from forge.postgres.connection import Connection
from forge.postgres.held_session import HeldSession

TRIES: Final = 4
LOST: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark's error class for checkpointed data on an executor that is gone."""

_log = logging.getLogger("forge.pipeline")


class _Stopped(Exception):
    """Raised at the start of a batch after the last one, before any work; the next run begins with this batch."""


class Settings(msgspec.Struct, frozen=True):
    """Settings of a lake. `start` applies only when the lake begins or is read again."""

    tables: tuple[str, ...] = ()
    start: str = "history"
    most: int = MOST_EVENTS
    partitions: int | None = None
    models: str | None = None
    """A folder of users' own SQL models."""
    json: Literal["string", "variant"] | None = None
    """The type of json and jsonb columns in a new lake; default `string`."""


@contextmanager
def pipeline(
    spark: SparkSession,
    url: str,
    lake: Lake,
    settings: Settings | None = None,
    *,
    resnapshot: bool = False,
    on_batch: Callable[[Entry], None] | None = None,
) -> Iterator["Pipeline"]:
    """Open a pipeline that holds the lease of its lake for this block."""
    settings = settings or Settings()
    with translated(), lease(url, lake.path) as session:
        about = _whose(spark, lake, session.connection, settings, resnapshot)
        yield Pipeline(spark, url, lake, settings, about, session, on_batch)


class Pipeline:
    """One run of a lake."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        lake: Lake,
        settings: Settings,
        about: About,
        session: HeldSession,
        on_batch: Callable[[Entry], None] | None,
    ) -> None:
        self.about = about
        self._spark = spark
        self._url = url
        self._lake = lake
        self._settings = settings
        self._session = session
        self._on_batch = on_batch
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._batches = Batches(spark, lake, about, session.connection, settings.models, about.types)

    def once(self) -> None:
        """Process everything committed by now, in as many batches as needed."""
        self._follow({"availableNow": True})

    def follow(self, seconds: float) -> None:
        """Process new commits at an interval in seconds, until `stop` is called."""
        self._follow({"processingTime": f"{max(1, round(seconds * 1000))} milliseconds"})

    def stop(self) -> None:
        """Stop after the current batch; may be called from a signal handler."""
        self._stopping.set()

    def lag(self, entry: Entry) -> Lag:
        """Return the lag of the lake after a batch."""
        return lag(self._session.connection, entry.cursor, self.about.tables)

    def verify(self, entry: Entry) -> bool | None:
        """Whether the lake equals the database after a batch; None when only a later batch can tell."""
        try:
            snapshot = str(entry.cursor.snapshot)
            named = self.about.tables.split(",") if self.about.tables else None
            equal = verify(self._spark, self._lake, self._url, named, snapshot=snapshot).equal
        except HistoryUnavailable:
            return None
        checks.note(self._spark, self._lake, equal, entry)
        return equal

    def _follow(self, trigger: dict[str, Any]) -> None:
        query = self._started(trigger)
        try:
            while not query.awaitTermination(1):
                idle = not query.status["isTriggerActive"]
                if self._stopping.is_set() and idle:
                    break
                if idle:
                    self._batches.rest()
                if not self._session.alive():
                    raise LakeError("the database is gone, and the lease of the lake with it", fix="start again")
        except StreamingQueryException:
            if self._failure is None:
                raise
            if not isinstance(self._failure, _Stopped):
                raise self._failure from None
        finally:
            query.stop()
        self._batches.finish()

    def _started(self, trigger: dict[str, Any]) -> StreamingQuery:
        register(self._spark)
        options = {
            "url": self._url,
            "start": self.about.start,
            "generation": str(self.about.generation),
            "maxEventsPerTrigger": str(self._settings.most),
        }
        if self.about.tables:
            options["tables"] = self.about.tables
        if self._settings.partitions:
            options["numPartitions"] = str(self._settings.partitions)
        changes = self._spark.readStream.format("forge").options(**options).load()
        writer = changes.writeStream.foreachBatch(self._batch).queryName(f"forge {self._lake.path}")
        checkpoint = self._lake.checkpoint(self.about.run)
        return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()

    def _batch(self, changes: DataFrame, batch: int) -> None:
        try:
            if self._stopping.is_set():
                raise _Stopped
            entry = self._taken(changes, batch)
            if self._on_batch is not None:
                self._on_batch(entry)
        except BaseException as failure:
            # Spark would return only the text of the failure.
            self._failure = failure
            raise

    def _taken(self, changes: DataFrame, batch: int) -> Entry:
        """Process a batch; retry if an executor was lost together with its results, or if another process, such as
        `forge pipeline maintain`, has written to a table during its merge."""
        began = time.monotonic()
        for tries_left in reversed(range(TRIES)):
            try:
                return self._batches.take(changes, batch, began)
            except Exception as failure:
                why = _passing(failure)
                if not tries_left or why is None:
                    raise
                _log.warning("%s, the batch %s is done again", why, batch)
        raise AssertionError("the last try returns or raises")


def _passing(failure: Exception) -> str | None:
    """Return a description of a transient failure; None for a failure that a retry would repeat."""
    if LOST in str(failure):
        return "an executor was lost"
    return "somebody else wrote to the lake" if isinstance(failure, CONFLICTS) else None


def _whose(spark: SparkSession, lake: Lake, connection: Connection, settings: Settings, resnapshot: bool) -> About:
    """Return the run to continue: the lake's newest, or a new one."""
    tables = ",".join(settings.tables) or None
    about = abouts.read(spark, lake)
    if about is None:
        _check(settings, connection)
        types = Types(settings.json or "string")
        return abouts.begin(spark, lake, connection, generation=0, start=settings.start, tables=tables, types=types)
    abouts.check(about, lake, connection)
    if settings.json not in (None, about.types.json):
        raise LakeError(
            f"the lake {lake.path} keeps json as {about.types.json}", fix="leave out --variant, or give another --lake"
        )
    if resnapshot:
        _check(settings, connection)
        entry = ledger.last(spark, lake)
        generation = about.generation if entry is None else max(about.generation, entry.generation)
        wanted = tables if settings.tables else about.tables
        # A batch that never completed may have begun one more generation.
        return abouts.begin(
            spark, lake, connection, generation=generation + 1, start="snapshot", tables=wanted, types=about.types
        )
    if settings.tables and tables != about.tables:
        raise LakeError(
            f"the lake {lake.path} mirrors {about.tables or 'all tracked tables'}",
            fix="leave out --tables, or give --resnapshot to begin with these tables",
        )
    return about


def _check(settings: Settings, connection: Connection) -> None:
    """Raise for settings that no stream can begin with, before a lake is created with them."""
    tracked(connection, settings.tables or None)
    if settings.start not in STARTS and Cursor.parse(settings.start).log != abouts.identity(connection):
        raise CursorForeign("--start is a cursor of another log", fix="use a cursor of this database")
