"""Check Spark's requirements on this machine before it starts: Java, pyspark and delta. Raise one clear error if any is
missing.

This module imports neither pyspark nor delta, so it can report that they are missing.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from forge.errors import SparkUnavailable

SPARK: Final = "4.2"
DELTA: Final = "4.4.0"
JAVAS: Final = (17, 21, 25)

_INSTALL: Final = "pip install 'forge-changes[spark]'"
_INSTALL_JAVA: Final = "install Java 17 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"


def need_pyspark() -> None:
    """Raise unless pyspark and delta-spark are installed in compatible versions."""
    found = {name: _version(name) for name in ("pyspark", "delta-spark")}
    for name, version in found.items():
        if version is None:
            raise SparkUnavailable(f"{name} is not installed", fix=_INSTALL)
    if not (_is_of(found["pyspark"], SPARK) and _is_of(found["delta-spark"], DELTA.rpartition(".")[0])):
        raise SparkUnavailable(
            f"pyspark {found['pyspark']} with delta-spark {found['delta-spark']} is not what Forge runs on",
            fix=f"{_INSTALL}, which brings pyspark {SPARK} and delta-spark {DELTA}",
        )


def need_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the `java` that Spark will run; raise unless Spark supports its version."""
    java = find_java(environ)
    version = version_of(java)
    if version not in JAVAS:
        wanted = f"{', '.join(map(str, JAVAS[:-1]))} or {JAVAS[-1]}"
        raise SparkUnavailable(f"Spark needs Java {wanted}, {java} is Java {version}", fix=_INSTALL_JAVA)
    return java


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Find `java` as Spark's own scripts do: in JAVA_HOME, else the first on the PATH."""
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not os.access(java, os.X_OK):
            raise SparkUnavailable(f"JAVA_HOME is {home}, which has no bin/java", fix=_INSTALL_JAVA)
        return java
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise SparkUnavailable("Java is not installed, and Spark runs on it", fix=_INSTALL_JAVA)
    return Path(found)


def version_of(java: Path) -> int:
    """Return the feature release of a `java`, from its `release` file or its own output."""
    try:
        told = (java.resolve().parent.parent / "release").read_text("utf-8")
    except OSError:
        told = _ask(java)
    found = re.search(r'version(?:="| ")(\d+)(?:\.(\d+))?', told, re.IGNORECASE)
    if found is None:
        raise SparkUnavailable(f"{java} does not tell its version", fix=_INSTALL_JAVA)
    first, second = found.groups()
    return int(second) if first == "1" and second else int(first)


def _ask(java: Path) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkUnavailable(f"{java} cannot be run: {error}", fix=_INSTALL_JAVA) from error
    return done.stderr + done.stdout


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_of(version: str | None, line: str) -> bool:
    return version is not None and (version + ".").startswith(line + ".")
