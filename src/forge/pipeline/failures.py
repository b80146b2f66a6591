"""Translate Spark's failures into Forge's errors: one line with the problem and one with the fix.

A Forge error raised in a Spark process, of the source or of a task, returns as text only; it is recovered from that
text. A syntax error in the user's SQL becomes one line. All other failures stay unchanged.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from forge import errors
from forge.errors import ForgeError, LakeError

_RAISED: Final = re.compile(r"forge\.errors\.(\w+): ([^\n]+)\nfix: ([^\n]+)")
_PLACES: Final = (
    (
        re.compile(
            r"(?:Permission denied|Mkdirs failed|Not a directory|Read-only file system|ParentNotDirectory)[^\n]*"
        ),
        "the lake cannot be written",
        "give a --lake that this user may write",
    ),
    (
        re.compile(r"No FileSystem for scheme[^\n]*|Class [\w.]*FileSystem not found"),
        "Spark does not know the lake's filesystem",
        "add its jars, e.g. --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3.5.0 for s3a",
    ),
    (
        re.compile(r"No space left on device[^\n]*"),
        "the disk is full",
        "free some space, or forge pipeline maintain",
    ),
    (
        re.compile(r"Multiple streaming queries are concurrently using[^\n]*|CONCURRENT_STREAM_LOG_UPDATE[^\n]*"),
        "another run uses the lake's checkpoint",
        "stop that run first, or give another --lake",
    ),
)


def translate(failure: BaseException) -> ForgeError | None:
    """Return the Forge error that a Spark failure contains; None when it contains none.

    >>> translate(RuntimeError("forge.errors.LakeError: no lake\\nfix: make one"))
    LakeError('no lake')
    >>> translate(RuntimeError("forge.errors.ModelError: a.sql:1: no model\\nfix: make one"))
    ForgeError('a.sql:1: no model')
    """
    text = str(failure).strip()
    if raised := _RAISED.search(text):
        kind: type[ForgeError] = getattr(errors, raised[1], ForgeError)
        with suppress(TypeError):  # a kind with fields of its own, which the text does not have
            return kind(raised[2], fix=raised[3])
        return ForgeError(raised[2], fix=raised[3])
    for place, message, fix in _PLACES:
        if found := place.search(text):
            return LakeError(f"{message}: {' '.join(found[0].split())[:160]}", fix=fix)
    if isinstance(failure, AnalysisException):
        return ForgeError(f"Spark refuses it: {text.splitlines()[0][:300]}", fix="fix what it names")
    return None


@contextmanager
def translated() -> Iterator[None]:
    """Turn Spark's failures into Forge's errors within this block."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as failure:
        typed = translate(failure)
        if typed is None:
            raise
        raise typed from failure
