"""One small Spark for all tests of the pipeline in a process, and a lake of its own for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from forge.pipeline.lake import Lake
from forge.pipeline.session import QUIETLY, session

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests are over before a better compiler or collector pays for itself."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {"spark.driver.memory": "1500m", "spark.driver.extraJavaOptions": f"{QUIETLY} {QUICK}"}
    spark = session(master="local[2]", conf=conf, app="forge tests")
    yield spark
    spark.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(str(tmp_path / "lake"))
