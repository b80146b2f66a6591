"""What Spark needs: found, or missed with one line that says what to do."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from forge.errors import SparkUnavailable
from forge.pipeline.java import find_java, need_java, version_of

SPARKS = ("pyspark", "delta", "py4j")


def fake_java(home: Path, *, release: str | None = None, says: str = "") -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return java


@pytest.mark.parametrize(
    ("release", "says", "version"),
    [
        ('IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.15"\n', "not asked", 17),
        ('JAVA_VERSION="21"\n', "not asked", 21),
        (None, 'openjdk version "25" 2025-09-16', 25),
        (None, 'java version "1.8.0_292"', 8),
    ],
)
def test_the_version_of_a_java(tmp_path: Path, release: str | None, says: str, version: int) -> None:
    assert version_of(fake_java(tmp_path, release=release, says=says)) == version


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    home, path = fake_java(tmp_path / "home"), fake_java(tmp_path / "path")
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}) == home
    assert find_java({"PATH": str(path.parent)}) == path


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"PATH": "/nowhere"}, "Java is not installed"),
        ({"JAVA_HOME": "/nowhere", "PATH": os.environ["PATH"]}, "JAVA_HOME is /nowhere, which has no bin/java"),
    ],
)
def test_a_missing_java_is_said(environ: dict[str, str], problem: str) -> None:
    with pytest.raises(SparkUnavailable, match=problem) as e:
        need_java(environ)
    assert "openjdk-17-jre-headless" in e.value.fix


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ('java version "1.8.0_292"', "Spark needs Java 17, 21 or 25, .* is Java 8"),
        ('openjdk version "11.0.2"', "Spark needs Java 17, 21 or 25, .* is Java 11"),
        ("Hello", "does not tell its version"),
    ],
)
def test_a_wrong_java_is_said(tmp_path: Path, says: str, problem: str) -> None:
    fake_java(tmp_path, says=says)
    with pytest.raises(SparkUnavailable, match=problem):
        need_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("installed", "problem"),
    [
        ({}, "pyspark is not installed"),
        ({"pyspark": "4.2.0"}, "delta-spark is not installed"),
        (
            {"pyspark": "4.1.2", "delta_spark": "4.4.0"},
            "pyspark 4.1.2 with delta-spark 4.4.0 is not what Forge runs on",
        ),
        ({"pyspark": "4.2.0", "delta_spark": "4.10.0"}, "pyspark 4.2.0 with delta-spark 4.10.0 is not what"),
    ],
)
def test_packages_that_do_not_go_together_are_said(tmp_path: Path, installed: dict[str, str], problem: str) -> None:
    """In a Python that has all that is installed here but Spark."""
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(SPARKS) and path.suffix != ".pth":
            (tmp_path / path.name).symlink_to(path)
    for name, version in installed.items():
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    done = subprocess.run(
        [sys.executable, "-S", "-c", "from forge.pipeline.session import session; session()"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path('src').resolve()}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    *_, error, fix = done.stderr.strip().splitlines()
    assert error.startswith("forge.pipeline.java.SparkUnavailable: " + problem)
    assert "pip install 'forge-changes[spark]'" in fix
