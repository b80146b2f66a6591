"""The log as a Spark data source, for batches and streams.

    forge.pipeline.register(spark)
    spark.read.format("forge").option("url", url).load()
    spark.readStream.format("forge").option("url", url).option("tables", "orders").load()

The frame is `forge.pipeline.changes.CHANGES`. Offsets are cursors; a batch between two of them gives the same rows at
every attempt, is read by `numPartitions` tasks, and has at most `maxEventsPerTrigger` changes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from forge.cursor import Cursor
from forge.pipeline.changes import CHANGES
from forge.pipeline.source.filters import condition
from forge.pipeline.source.offset import Offset, Piece, pieces_of
from forge.pipeline.source.options import StreamOptions
from forge.pipeline.source.planner import Planner
from forge.pipeline.source.reading import StreamScope, read

__all__ = ["ForgeSource", "register"]


def register(spark: SparkSession) -> None:
    """Register the format `forge` with a session and enable filter pushdown."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(ForgeSource)


class ForgePiece(InputPartition):
    """A piece of a batch, with everything that a task needs to read it."""

    def __init__(self, scope: StreamScope, piece: Piece) -> None:
        super().__init__(None)
        self.scope = scope
        self.piece = piece


class ForgeSource(DataSource):
    """The data source behind `format("forge")`."""

    @classmethod
    def name(cls) -> str:
        return "forge"

    def schema(self) -> StructType:
        return CHANGES

    def reader(self, schema: StructType) -> "DataSourceReader":
        return BatchReader(StreamOptions.parse(self.options, start="log"))

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":
        return StreamReader(StreamOptions.parse(self.options, start="history"))


class BatchReader(DataSourceReader):
    """Read the log from `start` up to `until`, by default up to now."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._where: str | None = None
        self._pieces: list[ForgePiece] | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Push down the conditions that PostgreSQL can apply; Spark still checks every condition itself."""
        self._where = condition(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        if self._pieces is None:
            self._pieces = self._planned()
        return self._pieces

    def _planned(self) -> list[ForgePiece]:
        if self._options.pieces is not None:
            given = StreamScope(
                self._options.url, self._options.log, self._options.first_id, self._options.tables, self._where
            )
            return [ForgePiece(given, piece) for piece in pieces_of(self._options.pieces)]
        planner = Planner(self._options)
        try:
            scope = _scope(self._options, planner, self._where)
            planner.settle(Cursor.parse(self._options.until) if self._options.until is not None else None)
            offset, pieces = planner.initial(), list[ForgePiece]()
            while (following := planner.next(offset, None)) != offset:
                offset = following
                pieces.extend(ForgePiece(scope, piece) for piece in offset.pieces)
            return pieces
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ForgePiece)
        return read(partition.scope, partition.piece)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plan on the driver, read in tasks; state between calls only speeds up planning."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_planner": None}

    def _driver(self) -> Planner:
        if self._planner is not None and self._planner.connection.closed:
            self._planner = None
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        return self._driver().initial().dump()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._driver().settle()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", self._options.most)
        offset = Offset.load(start)
        following = self._driver().next(offset, most)
        return start if following == offset else following.dump()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        offset = Offset.load(end)
        planner = self._driver()
        scope = _scope(self._options, planner, None)
        return [ForgePiece(scope, piece) for piece in offset.pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ForgePiece)
        return read(partition.scope, partition.piece)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the database keeps no state for a stream."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def _scope(options: StreamOptions, planner: Planner, where: str | None) -> StreamScope:
    return StreamScope(options.url, planner.identity.uuid, planner.first_id, options.tables, where)
