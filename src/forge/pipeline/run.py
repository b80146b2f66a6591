"""Run a pipeline that keeps a lake current: ticks bring the log into bronze, batches of ticks are merged into silver.

    with pipeline(spark, url, Lake("/lake")) as running:
        running.once()

Delivery is exactly once, whichever process is killed and when: a tick is one commit to bronze that also has the
position after it (`forge.pipeline.ticks`), and every step after bronze is idempotent, so an interrupted batch is merged
again. The steps are durable in this order: bronze with the position, silver, gold, the batch's row in `batches`.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, TypeVar

import msgspec
from pyspark.sql import SparkSession

from forge.cursor import Cursor
from forge.errors import CursorForeign, HistoryUnavailable, LakeError
from forge.pipeline import about as abouts
from forge.pipeline import checks, ledger, ticks
from forge.pipeline.about import LakeRun
from forge.pipeline.batch import Batches
from forge.pipeline.failures import translated
from forge.pipeline.lag import LakeLag, lag
from forge.pipeline.lake import Lake
from forge.pipeline.lease import lease
from forge.pipeline.ledger import LedgerEntry
from forge.pipeline.silver.types import Types
from forge.pipeline.source.offset import Offset, TableShare
from forge.pipeline.source.options import MOST_EVENTS, STARTS, StreamOptions
from forge.pipeline.source.planner import Planner, tracked
from forge.pipeline.tables import CONFLICTS
from forge.pipeline.ticks import Tick
from forge.pipeline.verify import verify
from forge.postgres.connection import Connection
from forge.postgres.held_session import HeldSession

TRIES: Final = 4
MERGE_AFTER: Final = 30.0
LOST: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark's error class for checkpointed data on an executor that is gone."""

T = TypeVar("T")
_log = logging.getLogger("forge.pipeline")


class LakeSettings(msgspec.Struct, frozen=True):
    """Settings of a lake. `start` applies only when the lake begins or is read again."""

    tables: tuple[str, ...] = ()
    start: str = "history"
    most: int = MOST_EVENTS
    partitions: int | None = None
    models: str | None = None
    """A folder of users' own SQL models."""
    merge_after: float = MERGE_AFTER
    """The age in seconds at which ticks in bronze are merged into silver, while a run follows the log."""
    json: Literal["string", "variant"] | None = None
    """The type of json and jsonb columns in a new lake; default `string`."""


@contextmanager
def pipeline(
    spark: SparkSession,
    url: str,
    lake: Lake,
    settings: LakeSettings | None = None,
    *,
    resnapshot: bool = False,
    on_batch: Callable[[LedgerEntry], None] | None = None,
) -> Iterator["PipelineRun"]:
    """Open a pipeline that holds the lease of its lake for this block."""
    settings = settings or LakeSettings()
    with translated(), lease(url, lake.path) as session:
        about = _whose(spark, lake, session.connection, settings, resnapshot)
        yield PipelineRun(spark, url, lake, settings, about, session, on_batch)


class PipelineRun:
    """One run of a lake."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        lake: Lake,
        settings: LakeSettings,
        about: LakeRun,
        session: HeldSession,
        on_batch: Callable[[LedgerEntry], None] | None,
    ) -> None:
        self.about = about
        self._spark = spark
        self._url = url
        self._lake = lake
        self._settings = settings
        self._session = session
        self._on_batch = on_batch
        self._stopping = threading.Event()
        self._number = -1
        self._offset: Offset
        self._unmerged: list[Tick] = []
        """The ticks in bronze that are not in silver, oldest first."""
        self._since = 0.0
        """The time since when there are any."""
        self._batches = Batches(spark, lake, about, session.connection, settings.models, about.types)

    def once(self) -> None:
        """Process everything committed by now, in as many ticks and batches as needed."""
        with self._planning() as planner:
            planner.settle()
            while not self._stopping.is_set() and self._tick(planner):
                if self._unmerged_rows() >= self._settings.most:
                    self._merge()
            while not self._stopping.is_set() and self._unmerged:
                self._merge()
        self._batches.finish()

    def follow(self, seconds: float) -> None:
        """Take in new commits at an interval in seconds, until `stop` is called; merge them when that is due."""
        with self._planning() as planner:
            while not self._stopping.is_set():
                began = time.monotonic()
                more = self._tick(planner)
                if self._due():
                    self._merge()
                elif not more:
                    self._batches.rest()
                if not self._session.alive():
                    raise LakeError("the database is gone, and the lease of the lake with it", fix="start again")
                if not more:
                    self._stopping.wait(max(0.0, seconds - (time.monotonic() - began)))
        self._batches.finish()

    def stop(self) -> None:
        """Stop after the current batch; may be called from a signal handler."""
        self._stopping.set()

    def lag(self, entry: LedgerEntry) -> LakeLag:
        """Return the lag of the lake after a batch."""
        return lag(self._session.connection, entry.cursor, self.about.tables)

    def verify(self, entry: LedgerEntry) -> bool | None:
        """Whether the lake equals the database after a batch; None when only a later batch can tell."""
        try:
            snapshot = str(entry.cursor.snapshot)
            named = self.about.tables.split(",") if self.about.tables else None
            equal = verify(self._spark, self._lake, self._url, named, snapshot=snapshot).equal
        except HistoryUnavailable:
            return None
        checks.note(self._spark, self._lake, equal, entry)
        return equal

    @contextmanager
    def _planning(self) -> Iterator[Planner]:
        """Open a planner, and find where the run stands: at the newest tick in bronze."""
        tables = None if self.about.tables is None else tuple(self.about.tables.split(","))
        options = StreamOptions(
            self._url,
            self.about.start,
            tables,
            generation=self.about.generation,
            partitions=self._settings.partitions or max(2, os.cpu_count() or 2),
            most=self._settings.most,
        )
        planner = Planner(options)
        try:
            self._resume(planner)
            yield planner
        finally:
            planner.close()

    def _resume(self, planner: Planner) -> None:
        spark, lake = self._spark, self._lake
        entry = ledger.last(spark, lake)
        merged = entry.batch if entry is not None and entry.run == self.about.run else None
        found = ticks.since(spark, lake, self.about, merged)
        if not found and (kept := ledger.offset(spark, lake, self.about.run)) is not None:
            found = [Tick(self.about.run, *kept, 0)]
        if not found and (older := ticks.of_checkpoint(spark, lake, self.about, merged)) is not None:
            found = [older]
        self._number = found[-1].number if found else -1
        self._offset = found[-1].offset if found else planner.initial()
        self._unmerged = [tick for tick in found if merged is None or tick.number > merged]
        self._since = time.monotonic()

    def _tick(self, planner: Planner) -> bool:
        """Bring what is new, up to a batch of it, into bronze; return whether there was anything."""
        following = planner.next(self._offset, self._settings.most)
        if following == self._offset:
            return False
        if not following.pieces:
            self._offset = following
            return True
        changes = ticks.changes_of(
            self._spark, self._url, following, planner.identity.uuid, planner.first_id, self.about.tables
        )

        def append() -> Tick:
            return ticks.append(self._spark, self._lake, self.about, changes, self._number + 1, following)

        tick = _retried(append, f"the tick {self._number + 1}")
        self._number, self._offset = tick.number, tick.offset
        if not self._unmerged:
            self._since = time.monotonic()
        self._unmerged.append(tick)
        return True

    def _due(self) -> bool:
        """Whether the ticks in bronze must be merged now: because of their age, or of their number of changes."""
        if not self._unmerged:
            return False
        return (
            time.monotonic() - self._since >= self._settings.merge_after or self._unmerged_rows() >= self._settings.most
        )

    def _unmerged_rows(self) -> int:
        return sum(tick.rows for tick in self._unmerged)

    def _merge(self) -> None:
        """Merge the oldest ticks, as many as a batch may have; retry if an executor was lost together with its results,
        or if another process, such as `forge pipeline maintain`, has written to a table during its merge."""
        began = time.monotonic()
        some = together(self._unmerged, self._settings.most)
        entry = _retried(lambda: self._batches.take(some, began), f"the batch {some[-1].number}")
        self._unmerged = self._unmerged[len(some) :]
        self._since = time.monotonic()
        if self._on_batch is not None:
            self._on_batch(entry)


def together(ticks: Sequence[Tick], most: int) -> list[Tick]:
    """Return the first ticks that can be merged together: up to a number of rows, and of one snapshot at most."""
    taken: list[Tick] = []
    rows, generation = 0, None
    for tick in ticks:
        own = next((piece.generation for piece in tick.offset.pieces if isinstance(piece, TableShare)), None)
        if taken and (rows + tick.rows > most or (own is not None and generation not in (None, own))):
            break
        taken.append(tick)
        rows, generation = rows + tick.rows, own if own is not None else generation
    return taken


def _retried(step: Callable[[], T], what: str) -> T:
    for tries_left in reversed(range(TRIES)):
        try:
            return step()
        except Exception as failure:
            why = _passing(failure)
            if not tries_left or why is None:
                raise
            _log.warning("%s, %s is done again", why, what)
    raise AssertionError("the last try returns or raises")


def _passing(failure: Exception) -> str | None:
    """Return a description of a transient failure; None for a failure that a retry would repeat."""
    if LOST in str(failure):
        return "an executor was lost"
    return "somebody else wrote to the lake" if isinstance(failure, CONFLICTS) else None


def _whose(
    spark: SparkSession, lake: Lake, connection: Connection, settings: LakeSettings, resnapshot: bool
) -> LakeRun:
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


def _check(settings: LakeSettings, connection: Connection) -> None:
    """Raise for settings that no stream can begin with, before a lake is created with them."""
    tracked(connection, settings.tables or None)
    if settings.start not in STARTS and Cursor.parse(settings.start).log != abouts.identity(connection):
        raise CursorForeign("--start is a cursor of another log", fix="use a cursor of this database")
