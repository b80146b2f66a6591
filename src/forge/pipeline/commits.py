"""Commits of a Delta table, newest first, from its log alone: no Spark job, any filesystem that Hadoop knows.

A checkpoint of the log has no commit information, and other writers' commits (OPTIMIZE) have no metadata of ours; so
what is read here is also stored elsewhere (`forge.pipeline.ledger`), and this module yields only what is still there.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql import SparkSession

_COMMIT: Final = re.compile(r"([0-9]{20})\.json")


class _Info(msgspec.Struct):
    userMetadata: str | None = None
    operationMetrics: dict[str, str] = {}


class _Action(msgspec.Struct):
    commitInfo: _Info | None = None


class LakeCommit(NamedTuple):
    """A commit: `metadata` is the user metadata of its writer, `rows` the number of rows that it wrote, if known."""

    version: int
    metadata: str | None
    rows: int | None


_action: Final = msgspec.json.Decoder(_Action)


def commits(spark: SparkSession, path: str) -> Iterator[LakeCommit]:
    """Yield the commits of a table, newest first; none when there is no table."""
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(f"{path.rstrip('/')}/_delta_log")
    files = folder.getFileSystem(spark._jsc.hadoopConfiguration())
    if not files.exists(folder):
        return
    names = [status.getPath().getName() for status in files.listStatus(folder)]
    for name in sorted(filter(_COMMIT.fullmatch, names), reverse=True):
        stream = files.open(jvm.org.apache.hadoop.fs.Path(folder, name))
        try:
            content = bytes(stream.readAllBytes())
        finally:
            stream.close()
        for line in content.splitlines():
            if (info := _action.decode(line).commitInfo) is not None:
                rows = info.operationMetrics.get("numOutputRows")
                yield LakeCommit(int(name[:20]), info.userMetadata, None if rows is None else int(rows))
                break
