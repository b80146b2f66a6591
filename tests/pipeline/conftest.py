"""One small Spark for all tests of the pipeline in a process, and a lake of its own for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from forge.demo import lake as lakes
from forge.pipeline.jars import jdbc_driver
from forge.pipeline.lake import Lake
from forge.pipeline.session import session
from tests.checkers.lake.keeper import QUICK

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts these tests first: of two workers one has them all then, starts Spark, and the other never does.

    A busy machine takes its time for a MERGE, and a call to the JVM that is cut off spoils the session for the rest.
    """
    items.sort(key=lambda item: HERE not in item.path.parents)
    missing = lakes.unavailable()
    for item in items:
        if HERE not in item.path.parents:
            continue
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {
        **QUICK,
        "spark.driver.memory": "1500m",
        # Before Spark's own jars in the class path it would make the JVM ignore the archive of Spark's classes.
        "spark.jars": str(jdbc_driver()),
    }
    spark = session(master="local[2]", conf=conf, app="forge tests")
    yield spark
    spark.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(str(tmp_path / "lake"))
