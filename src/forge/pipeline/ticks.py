"""Ticks: what is new in the log becomes one commit to bronze, with the position after it in the commit itself.

Rows and position are one Delta commit, so a crash leaves both or neither, and a restart goes on at the newest position
that bronze has. A tick that is planned again after a crash may have another content: nothing of the first attempt is
in the lake.

A transaction id per tick keeps a second writer out: of two commits with the same number one fails, or is skipped by
Delta; so after every commit the log is read back, and a commit that is not ours stops the run.
"""

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from forge.errors import LakeError
from forge.pipeline import bronze
from forge.pipeline.about import LakeRun
from forge.pipeline.commits import commits
from forge.pipeline.lake import Lake
from forge.pipeline.source import register
from forge.pipeline.source.offset import LogPiece, Offset, Piece
from forge.pipeline.tables import exists


class Tick(msgspec.Struct, frozen=True):
    """A tick in bronze: its run and number, the stream's offset after it, and its number of rows."""

    run: int
    number: int
    offset: Offset
    rows: int

    @property
    def batch(self) -> int:
        """Its number in the lake."""
        return bronze.number(self.run, self.number)


class _Written(msgspec.Struct):
    """The metadata of a tick's commit."""

    run: int
    tick: int
    offset: dict[str, Any]
    id: str


def append(spark: SparkSession, lake: Lake, about: LakeRun, changes: DataFrame, number: int, offset: Offset) -> Tick:
    """Write the changes of a tick, and the offset after it, to bronze in one commit."""
    written = _Written(about.run, number, offset.dump(), str(uuid.uuid4()))
    metadata = msgspec.json.encode(written).decode()
    bronze.append(changes, lake, about.application, about.run, number, metadata=metadata)
    for commit in commits(spark, lake.changes):
        mine = _parsed(commit.metadata)
        if mine is None:
            continue
        if mine.id != written.id:
            break
        rows = commit.rows or 0
        _check_count(offset.pieces, rows)
        return Tick(about.run, number, offset, rows)
    raise LakeError(f"another run writes to the lake {lake.path}", fix="stop that run first, or give another --lake")


def _check_count(pieces: Sequence[Piece], rows: int) -> None:
    """Raise if bronze has another number of changes than were planned; the source checks each piece before."""
    if pieces and all(isinstance(piece, LogPiece) for piece in pieces):
        planned = sum(piece.count for piece in pieces if isinstance(piece, LogPiece))
        if rows != planned:
            raise LakeError(
                f"bronze has {rows} rows of a tick with {planned} changes", fix="forge pipeline run --resnapshot"
            )


def since(spark: SparkSession, lake: Lake, about: LakeRun, merged: int | None) -> list[Tick]:
    """Return the ticks of a run after the merged one, oldest first; without a merged one, all.

    The last merged tick is the first in the list, if its commit is still in the log.
    """
    found: list[Tick] = []
    for commit in commits(spark, lake.changes):
        written = _parsed(commit.metadata)
        if written is None:
            continue
        if written.run != about.run:
            break
        found.append(Tick(written.run, written.tick, Offset.load(written.offset), commit.rows or 0))
        if merged is not None and written.tick <= merged:
            break
    return found[::-1]


def of_checkpoint(spark: SparkSession, lake: Lake, about: LakeRun, merged: int | None) -> Tick | None:
    """Return the position of a lake that an older Forge kept as a stream, whose checkpoint has it; None without one.

    The newest batch that was planned counts if bronze has it; otherwise the newest that was merged.
    """
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(f"{lake.checkpoint(about.run)}/offsets")
    files = folder.getFileSystem(spark._jsc.hadoopConfiguration())
    if not files.exists(folder):
        return None
    names = (status.getPath().getName() for status in files.listStatus(folder))
    for number in sorted((int(name) for name in names if name.isdecimal()), reverse=True):
        there = exists(spark, lake.changes) and not bronze.batch_of(spark, lake, about.run, number).isEmpty()
        if there or number == merged:
            lines = [row[0] for row in spark.read.text(f"{lake.checkpoint(about.run)}/offsets/{number}").collect()]
            return Tick(about.run, number, Offset.load(msgspec.json.decode(lines[-1])), 0)
    return None


def changes_of(spark: SparkSession, url: str, offset: Offset, log: str, first_id: int, tables: str | None) -> DataFrame:
    """Return the changes of the tick that ends at an offset."""
    register(spark)
    reader = spark.read.format("forge").option("url", url).option("pieces", offset.dump()["pieces"])
    reader = reader.option("log", log).option("firstId", str(first_id))
    return (reader if tables is None else reader.option("tables", tables)).load()


def _parsed(metadata: str | None) -> _Written | None:
    try:
        return None if metadata is None else msgspec.json.decode(metadata, type=_Written)
    except msgspec.DecodeError:
        return None
