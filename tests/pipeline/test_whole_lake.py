"""One lake from its first row to its past: what every part of the pipeline promises, on little data, with one kill.

The longer tests of the parts are `make long`, random ones are `make chaos`.
"""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from forge.changelog.maintenance import Policy, run_once
from forge.pipeline.asof import table_as_of
from forge.pipeline.compare import compare
from forge.pipeline.lake import Lake
from forge.pipeline.run import pipeline
from forge.pipeline.silver.replay import replay
from forge.pipeline.tables import load
from forge.postgres.connection import Connection

TABLE = "public.orders"


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("SELECT forge.current_identity()")
    connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, status text, total numeric(12, 2))")
    connection.execute("INSERT INTO orders SELECT i, 'old', i FROM generate_series(1, 9) i")
    connection.execute("SELECT forge_enable_reactivity('orders')")
    connection.execute("UPDATE orders SET status = 'paid' WHERE id <= 3")
    connection.execute("DELETE FROM orders WHERE id = 9")
    return connection


ALONE = """
import sys
from forge.pipeline.session import BRIEFLY, QUIETLY, session
from tests.checkers.lake import keeper

conf = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.driver.extraJavaOptions": f"{QUIETLY} {BRIEFLY}"}
spark = session(master="local[1]", conf=conf)
assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
assert spark.sparkContext.getConf().get("spark.scheduler.mode") == "FAIR"
path = sys.argv.pop(1)
spark.range(2).write.format("delta").save(path)
spark.sql(f"VACUUM delta.`{path}`")
python = spark.range(1).rdd.map(lambda _: sys.executable).first()
spark.sparkContext._jvm.org.slf4j.LoggerFactory.getLogger("some.Thing").warn("not shown")
spark.sparkContext._jvm.org.slf4j.LoggerFactory.getLogger("some.Thing").error("shown")
spark.stop()
print(python, flush=True)
keeper.main()  # another session in the same JVM
"""


def killed_once_history_is_written(url: str, lake: Lake, folder: Path) -> None:
    """Run the pipeline in a process of its own, which ends by SIGKILL in the middle of its first batch.

    It begins with sessions as a user's program has them, compiled queries and all: only errors are printed, nothing is
    left in the folder where it was started.
    """
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder / "table"), url, lake.path, "history", "1"],
        cwd=folder,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout == f"{sys.executable}\n", done.stderr
    assert [line.partition(" ")[2] for line in done.stderr.splitlines()] == ["ERROR Thing: shown"]
    assert [path.name for path in folder.iterdir()] == ["table"]


def rows(spark: SparkSession, path: str) -> list[str]:
    return sorted(str(sorted(row.asDict().items())) for row in load(spark, path).collect())


@pytest.mark.timeout(1200)
@pytest.mark.contract("X10", "X8", "T9", "T11")
def test_a_lake_survives_a_kill_follows_an_alter_and_knows_its_past(
    spark: SparkSession, shop: Connection, database: str, lake: Lake, tmp_path: Path
) -> None:
    def once() -> None:
        with pipeline(spark, database, lake) as running:
            running.once()
        report = compare(spark, lake, database)
        assert report.equal, report

    def table() -> dict[int, tuple[Any, ...]]:
        return {row[0]: row[1:] for row in shop.execute("SELECT id, status, total FROM orders")}

    killed_once_history_is_written(database, lake, tmp_path / "alone")
    assert rows(spark, lake.history(TABLE))
    assert not rows(spark, lake.current(TABLE)), "the batch was cut short"
    once()

    run_once(database, Policy())
    recorded = shop.execute("SELECT max(at) FROM forge.instant").fetchone()
    assert recorded is not None
    then = table()
    assert then[1][0] == "paid"
    assert 9 not in then

    shop.execute("ALTER TABLE orders ADD COLUMN note text DEFAULT 'hi', ALTER COLUMN total TYPE numeric(14, 3)")
    shop.execute("UPDATE orders SET id = 100, status = 'moved' WHERE id = 1")
    shop.execute("INSERT INTO orders VALUES (9, 'again', 1.125, NULL)")
    once()

    past = table_as_of(spark, lake, "orders", recorded[0]).select("id", "status", "total").collect()
    assert {row[0]: (row[1], row[2]) for row in past} == then

    made = [rows(spark, path) for path in (lake.history(TABLE), lake.current(TABLE))]
    replay(spark, lake, TABLE)
    assert [rows(spark, path) for path in (lake.history(TABLE), lake.current(TABLE))] == made

    taken = load(spark, lake.changes).where("transaction IS NOT NULL").select("id").collect()
    logged = shop.execute("SELECT count(*) FROM forge.forge_event_log").fetchone()
    assert (len({row[0] for row in taken}),) == (len(taken),) == logged, "every change once"
