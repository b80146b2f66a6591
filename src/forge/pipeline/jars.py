"""Download Delta's jars: return two files for Spark, fetched once and cached.

    spark-submit --jars "$(python -m forge.pipeline.jars)" …

pyspark ships all other dependencies of Delta, so only two of the more than thirty jars that a resolver would fetch are
needed. They come from Maven Central by Ivy, which pyspark also ships, or else by `mvn` with its own settings, and are
cached under `$FORGE_CACHE` (or `~/.cache/forge`).

Invariants:

- A jar is used only when its SHA-256 equals the one in this module; otherwise it is fetched again.
- A jar appears under its name complete or not at all. One of several processes fetches it, the others wait.
- With the jars in the cache, no process is started and no network is needed.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from forge.errors import SparkUnavailable
from forge.pipeline.java import DELTA, SPARK, need_java

SECONDS: Final = 300
Means = Callable[[Sequence["Jar"], Path], None]
"""Fetches jars into a folder, or raises."""


class Jar(msgspec.Struct, frozen=True):
    """An artifact of Maven's central repository."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        """
        >>> Jar("io.delta", "delta-storage", "4.4.0", "").file
        'delta-storage-4.4.0.jar'
        """
        return f"{self.artifact}-{self.version}.jar"


DELTA_JARS: Final = (
    Jar(
        "io.delta",
        f"delta-spark_{SPARK}_2.13",
        DELTA,
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    ),
    Jar(
        "io.delta",
        "delta-storage",
        DELTA,
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    ),
)
JDBC: Final = Jar(
    "org.postgresql",
    "postgresql",
    "42.7.14",
    "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c",
)


def delta_jars() -> list[Path]:
    """Return Delta's jars as the value of `spark.jars`."""
    return resolve(DELTA_JARS, cache() / "jars" / DELTA)


def jdbc_driver() -> Path:
    """Return PostgreSQL's driver for Spark's own JDBC source, the baseline in Forge's benchmarks."""
    return resolve([JDBC], cache() / "jars" / "postgresql")[0]


def cache() -> Path:
    return Path(os.environ.get("FORGE_CACHE") or Path.home() / ".cache" / "forge").absolute()


def resolve(jars: Sequence[Jar], folder: Path, means: Sequence[Means] | None = None) -> list[Path]:
    """Return the jars as files of the folder; fetch missing or damaged ones by the first means that works."""
    if not all(_is_whole(jar, folder) for jar in jars):
        with _alone(folder):
            missing = [jar for jar in jars if not _is_whole(jar, folder)]
            if missing:
                _fetch(missing, folder, means or (by_ivy, by_maven))
    return [folder / jar.file for jar in jars]


def _is_whole(jar: Jar, folder: Path) -> bool:
    try:
        with open(folder / jar.file, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "w")  # noqa: SIM115, the line below closes it
    except OSError as error:
        fix = "make it writable, or name another place in FORGE_CACHE"
        raise SparkUnavailable(f"Delta's jars cannot be kept in {folder}: {error.strerror}", fix=fix) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(jars: Sequence[Jar], folder: Path, means: Sequence[Means]) -> None:
    """Fetch the jars; called by one process at a time."""
    for left in folder.glob("fetching-*"):
        shutil.rmtree(left, ignore_errors=True)
    failures = []
    for bring in means:
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder) as here:
            problem = _try(bring, jars, Path(here))
            if problem is None:
                for jar in jars:
                    os.replace(Path(here, jar.file), folder / jar.file)
                return
            failures.append(problem)
    raise SparkUnavailable(
        f"{', '.join(jar.file for jar in jars)} cannot be fetched: {'; '.join(failures)}",
        fix=f"connect to the network once, or copy the jars of Delta {DELTA} into {folder}",
    )


def _try(bring: Means, jars: Sequence[Jar], here: Path) -> str | None:
    """Return a short description of the failure, or nothing."""
    name = bring.__name__.removeprefix("by_")
    try:
        bring(jars, here)
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    except subprocess.TimeoutExpired:
        return f"{name} did not end within {SECONDS} s"
    except subprocess.CalledProcessError as error:
        told = [line.strip() for line in (error.stdout or "").splitlines() if line.strip()]
        why = next((line for line in told if any(word in line for word in ("not found", "ERROR", "failed"))), "")
        return f"{name} failed{f' ({why[:120]})' if why else ''}"
    for jar in jars:
        if not _is_whole(jar, here):
            return f"{name} did not bring the {jar.file} that Forge knows"
    return None


def by_ivy(jars: Sequence[Jar], here: Path) -> None:
    """Fetch with Ivy's own command, not through Spark, which would ask a second host for thirty more jars."""
    ivy = next(iter(spark_jars().glob("ivy-*.jar")), Path("ivy.jar"))
    java = need_java()
    for jar in jars:
        what = ["-confs", "default", "-notransitive", "-dependency", jar.group, jar.artifact, jar.version]
        where = ["-cache", f"{here}/ivy", "-retrieve", f"{here}/[artifact]-[revision].[ext]"]
        _run([str(java), "-cp", str(ivy), "org.apache.ivy.Main", "-warn", *what, *where], here)


def by_maven(jars: Sequence[Jar], here: Path) -> None:
    wanted = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version></dependency>"
        for jar in jars
    )
    (here / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>forge</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{wanted}</dependencies></project>"
    )
    flags = ["-B", "-q", "-DexcludeTransitive=true", f"-DoutputDirectory={here}"]
    _run(["mvn", *flags, "dependency:copy-dependencies"], here)


def _run(command: Sequence[str], folder: Path) -> None:
    subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=SECONDS,
        check=True,
    )


def spark_jars() -> Path:
    """Return the folder of the jars that pyspark brings."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SparkUnavailable("pyspark is not installed", fix="pip install 'forge-changes[spark]'")
    return Path(found.origin).parent / "jars"


if __name__ == "__main__":
    try:
        print(",".join(map(str, delta_jars())))
    except SparkUnavailable as unavailable:
        sys.exit(f"error: {unavailable}\nfix: {unavailable.fix}")
