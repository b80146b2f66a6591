"""Checks of local paths without Spark: mistakes are reported before a JVM is started.

Paths on other filesystems are left to Spark.
"""

import glob
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from forge.errors import DecodeError, LakeError
from forge.pipeline.lake import Lake


def local(path: str) -> Path | None:
    """Return the path if it is on this machine.

    >>> str(local("/lake")), str(local("file:/a%20b")), local("s3a://lake/shop")
    ('/lake', '/a b', None)
    """
    if path.startswith("file:"):
        return Path(unquote(urlsplit(path).path))
    return None if "://" in path else Path(path)


def need_files(paths: Sequence[str]) -> None:
    """Raise unless every local path or pattern names something."""
    for path in paths:
        here = local(path)
        if here is not None and not here.exists() and not glob.glob(str(here)):
            raise DecodeError(
                f"there is nothing in {path}", fix="name a file, a folder or a pattern of JSON lines or Parquet"
            )


def need_lake(lake: Lake) -> None:
    """Raise unless there is a lake, if its path is local."""
    about = local(lake.about)
    if about is not None and not (about / "_delta_log").is_dir():
        raise no_lake(lake)


def no_lake(lake: Lake) -> LakeError:
    """Return the error for a lake that does not exist."""
    return LakeError(f"there is no lake at {lake.path}", fix="forge pipeline run --once")
