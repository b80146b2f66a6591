"""Files of an archive: list them and read their contents.

A path is a file, a folder with everything under it, or a pattern. Names that begin with `_` or `.` are skipped, as in
Spark. A name that ends in `.parquet` is Parquet; any other file is lines of text, compressed as its suffix says (`.gz`,
`.zst`, `.bz2`). Exactly the listed files are read, and `import_id` identifies them.
"""

from collections.abc import Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructType

from forge.errors import DecodeError
from forge.pipeline.changes import CHANGES
from forge.pipeline.tables import exists

Paths = str | Sequence[str]


class ArchiveFile(NamedTuple):
    """A listed file."""

    path: str
    size: int
    modified: datetime

    @property
    def is_parquet(self) -> bool:
        return self.path.endswith(".parquet")


class Contents(msgspec.Struct, frozen=True):
    """The content of the files: `lines` to parse, and a copy of bronze that needs no parsing; either may be None."""

    lines: DataFrame | None
    copied: DataFrame | None


def listed(spark: SparkSession, paths: Paths) -> list[ArchiveFile]:
    """Return the files of an archive, sorted by name; raise DecodeError when there are none."""
    names = [paths] if isinstance(paths, str) else list(paths)
    for name in names:
        if exists(spark, name):
            fix = "its files are not its rows: write what spark.read.format('delta') gives as Parquet, and name that"
            raise DecodeError(f"{name} is a Delta table", fix=fix)
    found = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        rows = found.load(names).select("path", "length", "modificationTime").collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        rows = []
    if not rows:
        raise DecodeError(
            f"there is nothing in {', '.join(names)}", fix="name a file, a folder or a pattern of JSON lines or Parquet"
        )
    return sorted(ArchiveFile(*row) for row in rows)


def import_id(spark: SparkSession, paths: Paths) -> str:
    """Return an id of this set of files, derived from their names, sizes and modification times.

    It is the application id of the Delta transaction, so the same files are imported once.
    """
    return id_of(listed(spark, paths))


def id_of(files: Sequence[ArchiveFile]) -> str:
    content = [(file.path, file.size, file.modified.isoformat()) for file in files]
    return f"archive-{blake2b(msgspec.json.encode(content), digest_size=16).hexdigest()}"


def contents(spark: SparkSession, files: Sequence[ArchiveFile], longest: int) -> Contents:
    """Return the content of the files. A line of more than `longest` bytes is cut and marked as too long."""
    frames: list[DataFrame] = []
    copies: list[DataFrame] = []
    texts = [_escaped(file.path) for file in files if not file.is_parquet]
    if texts:
        frames.append(_lines(spark.read.text(texts), F.col("value"), None, longest))
    tables = [_escaped(file.path) for file in files if file.is_parquet]
    if tables:
        frame = spark.read.option("mergeSchema", "true").parquet(*tables)
        if _has_changes(frame.schema):
            copies.append(frame)
        elif _is_text(frame.schema, "value"):
            key = F.col("key").cast("binary") if _is_text(frame.schema, "key") else None
            frames.append(_lines(frame, F.col("value"), key, longest))
        else:
            raise DecodeError(
                f"the Parquet files have the columns {', '.join(frame.columns)[:200]}",
                fix="give them one column value with a JSON text, or the columns of the lake's own changes",
            )
    lines = None
    for frame in frames:
        lines = frame if lines is None else lines.unionByName(frame)
    return Contents(lines, copies[0] if copies else None)


def _lines(frame: DataFrame, value: Column, key: Column | None, longest: int) -> DataFrame:
    """Return lines as bytes, because a text may not be UTF-8, with their position: file, byte offset and row number.

    Using `number` makes Spark cut a long line here and not later, after more copies of it were made.
    """
    too_long = F.octet_length(value) > longest
    return frame.select(
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().alias("number"),
        F.when(too_long, F.substring(value, 1, CUT)).otherwise(value).cast("binary").alias("value"),
        (F.lit(None).cast("binary") if key is None else key).alias("key"),
        F.coalesce(too_long, F.lit(False)).alias("too_long"),
    )


CUT: Final = 1_000
"""The number of bytes of a refused line that are kept."""


def _has_changes(schema: StructType) -> bool:
    types = {field.name: field.dataType for field in schema.fields}
    return all(types.get(field.name) == field.dataType for field in CHANGES.fields)


def _is_text(schema: StructType, name: str) -> bool:
    return name in schema.names and isinstance(schema[name].dataType, (StringType, BinaryType))


def _escaped(path: str) -> str:
    """Escape the wildcards of a listed name, because Spark reads paths as patterns."""
    return "".join(f"\\{character}" if character in "*?[]{}\\" else character for character in path)
