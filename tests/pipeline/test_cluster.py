"""On a real cluster: a master and two workers on this machine, whose Python knows nothing of this Forge."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyspark
import pytest

from forge.pipeline import class_archive
from forge.pipeline.jars import delta_jars
from forge.pipeline.session import BRIEFLY, QUIETLY, packed
from forge.postgres.connection import Connection
from tests.checkers.lake.keeper import INTERPRETED

pytestmark = pytest.mark.timeout(1200)

SHORT_LIVED = f"{BRIEFLY} {class_archive.options()}".rstrip()
BIN = Path(pyspark.__file__).parent / "bin"
SECONDS = 120


class Cluster(msgspec.Struct, frozen=True):
    master: str
    python: Path
    """The Python of the executors: with all packages that are installed here, without this tree."""
    folder: Path

    @property
    def conf(self) -> dict[str, str]:
        return {
            **INTERPRETED,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"{QUIETLY} {SHORT_LIVED}",
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.executor.memory": "600m",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1",
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
            "spark.ui.enabled": "false",
        }

    def run(self, command: list[str | Path]) -> dict[str, Any]:
        """What a driver prints as JSON."""
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            command,
            env=environ | {"PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=4 * SECONDS,
        )
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told


@contextmanager
def daemon(log: Path, name: str, *arguments: str) -> Iterator[None]:
    """A part of the cluster, ended with the block."""
    environ = os.environ | {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(log.parent),
    }
    command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--webui-port", "0"]
    with open(log, "wb") as file:
        process = subprocess.Popen([*command, *arguments], env=environ, stdout=file, stderr=file)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def told(log: Path, pattern: str, times: int = 1) -> str:
    """The first group of what the log says so often, within the deadline."""
    deadline = time.monotonic() + SECONDS
    while True:
        found = re.findall(pattern, log.read_text() if log.exists() else "")
        if len(found) >= times:
            return str(found[0])
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "python"], check=True)
    # A folder that a .pth file names is searched, but its own .pth files are not read: no editable Forge is found.
    packages = next(folder.glob("python/lib/*/site-packages"))
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    with ExitStack() as stack:
        stack.enter_context(daemon(folder / "master.log", "master.Master", "--port", "0"))
        master = told(folder / "master.log", r"Starting Spark master at (spark://\S+)")
        for number in (1, 2):
            work = ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / f"work{number}")]
            stack.enter_context(daemon(folder / f"worker{number}.log", "worker.Worker", *work, master))
        told(folder / "master.log", r"(Registering worker) ", times=2)
        yield Cluster(master, folder / "python" / "bin" / "python", folder)


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("SELECT forge.current_identity()")
    connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(10, 2))")
    connection.execute("SELECT forge_enable_reactivity('orders')")
    connection.execute("INSERT INTO orders SELECT i, i FROM generate_series(1, 100) i")
    connection.execute("UPDATE orders SET total = total + 1 WHERE id <= 10")
    return connection


DRIVER = """
import json, os, sys
import forge.pipeline
from forge.pipeline.compare import compare
from forge.pipeline.lake import Lake
from forge.pipeline.run import pipeline
from forge.pipeline.session import session

def where(_):
    import forge
    return os.path.abspath(forge.__file__), sys.executable

url, conf, master, lake = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] or None, sys.argv[4]
spark = session(conf=conf, master=master)
forge.pipeline.register(spark)
told = {"master": spark.sparkContext.master}
told["where"] = spark.sparkContext.parallelize(range(4), 4).map(where).distinct().collect()
if lake:
    with pipeline(spark, url, Lake(lake)) as running:
        running.once()
    report = compare(spark, Lake(lake), url, None)
    told["equal"], told["rows"] = report.equal, report.rows
else:
    changes = spark.read.format("forge").option("url", url).option("numPartitions", "2").load()
    told["ops"] = {row["op"]: row["n"] for row in changes.groupBy("op").agg({"*": "count"}).toDF("op", "n").collect()}
print(json.dumps(told))
"""


def end_an_executor(cluster: Cluster, after: Path) -> int:
    """Kill one of the executors, once this file is there; how many were killed within the deadline."""
    deadline = time.monotonic() + 2 * SECONDS
    while time.monotonic() < deadline:
        for process in psutil.process_iter(["cmdline", "cwd"]):
            mine = str(process.info["cwd"]).startswith(str(cluster.folder / "work"))
            if (
                after.exists()
                and mine
                and any("CoarseGrainedExecutorBackend" in word for word in process.info["cmdline"])
            ):
                process.kill()
                return 1
        time.sleep(0.2)
    return 0


@pytest.mark.contract("X10")
def test_a_lake_is_kept_by_executors_that_have_no_forge_and_die(
    cluster: Cluster, shop: Connection, database: str, tmp_path: Path
) -> None:
    arguments = [database, json.dumps(cluster.conf), cluster.master, str(tmp_path / "lake")]
    first = tmp_path / "lake" / "bronze" / "changes" / "_delta_log" / f"{0:020}.json"
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(end_an_executor, cluster, first)
        told = cluster.run([sys.executable, "-c", DRIVER, *arguments])
        assert killed.result() == 1
    assert told["master"] == cluster.master
    assert told["where"]
    for forge, python in told["where"]:
        assert re.search(r"/work\d/app-.*/\d/forge-\w+\.zip/forge/__init__\.py$", forge)
        assert python == str(cluster.python)
    done = subprocess.run([cluster.python, "-c", "import msgspec, psycopg, forge"], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'forge'"
    assert (told["equal"], told["rows"]) == (True, 100)


@pytest.mark.long
def test_a_submitted_application_finds_its_master_and_jars(
    cluster: Cluster, shop: Connection, database: str, tmp_path: Path
) -> None:
    (tmp_path / "application.py").write_text(DRIVER)
    options: list[str | Path] = ["--master", cluster.master, "--jars", ",".join(map(str, delta_jars()))]
    options += ["--py-files", packed(tmp_path / "forge.zip")]
    for name, value in cluster.conf.items():
        options += ["--conf", f"{name}={value}"]
    told = cluster.run([BIN / "spark-submit", *options, tmp_path / "application.py", database, "{}", "", ""])
    assert told["master"] == cluster.master
    assert told["ops"] == {"schema": 1, "insert": 100, "update": 10}
    assert told["where"]
    assert all(re.search(r"/work\d/app-.*/\d/forge\.zip/forge/__init__\.py$", forge) for forge, _ in told["where"])
