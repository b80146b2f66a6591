"""Create Spark sessions: take a master and settings, return a session with Delta and quiet logging.

    with_two_cores = session(master="local[2]", conf={"spark.driver.memory": "2g"})

Invariants:

- Settings of the caller or of `spark-submit` are never overridden; only unset ones are set here. The options of a local
  driver's JVM get one more, the archive of Spark's classes, unless the caller's name one.
- The console shows errors and nothing else. JVM output never goes to standard output.
- On a cluster the executors run the driver's Forge (`ship`), whether or not one is installed there.
"""

import atexit
import hashlib
import os
import re
import sys
import tempfile
import threading
import zipfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from forge.errors import SparkUnavailable
from forge.pipeline import class_archive
from forge.pipeline.jars import cache, delta_jars
from forge.pipeline.java import need_java, need_pyspark

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

PACKAGE: Final = Path(__file__).resolve().parent.parent
EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
QUIETLY: Final = f"-Dlog4j2.configurationFile={(PACKAGE / 'pipeline' / 'log4j2.properties').as_uri()}"
"""An option of the driver's JVM."""
BRIEFLY: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""Options for a driver that ends before the optimizing compiler or collector pays off.

With one compiler left, the code cache defaults to 48 MB; the compiler is switched off once Spark's classes fill it.
"""

_NOISE: Final = re.compile(rb"WARNING: Using incubator modules|Deleted \d+ files and directories in a total of")


def session(
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    app: str = "forge",
    jars: Literal["cached", "provided"] = "cached",
) -> "SparkSession":
    """Return a session with Delta: the running one, if any, with `conf` applied to it.

    Without a master, use that of `spark-submit`, else all cores of this machine. `jars="provided"` is for Spark
    distributions that include Delta.
    """
    need_pyspark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    given = dict(conf or {})
    if SparkContext._active_spark_context is not None:
        return _with(SparkSession.builder.getOrCreate(), given)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        need_java()
    given = (_submitted() if submitted else {}) | given
    master = master or given.get("spark.master") or "local[*]"
    if master.startswith("sc://"):
        raise SparkUnavailable(
            "the pipeline does not run through Spark Connect", fix="name the cluster itself: spark://…, yarn or k8s://…"
        )
    wanted = settings(master, app=app) | given | {"spark.master": master}
    if jars == "cached" and not submitted:
        wanted["spark.jars"] = with_delta(given)
    if is_local(master) and not submitted:
        wanted["spark.driver.extraJavaOptions"] = with_classes(wanted["spark.driver.extraJavaOptions"])
    os.environ.setdefault("PYSPARK_PYTHON", wanted.get("spark.pyspark.python", sys.executable))
    spark = _start(wanted, submitted)
    if not is_local(master):
        ship(spark)
    return spark


def settings(master: str, *, app: str = "forge") -> dict[str, str]:
    """Return the defaults for settings that neither the caller nor `spark-submit` has set.

    >>> settings("local[3]")["spark.sql.shuffle.partitions"]
    '3'
    >>> "spark.sql.shuffle.partitions" in settings("spark://head:7077")
    False
    """
    everywhere = {
        "spark.master": master,
        "spark.app.name": app,
        "spark.sql.extensions": EXTENSION,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.adaptive.enabled": "true",
        # Conditions contain keys as literals, and a key may be '${name}': Spark would substitute a setting for it.
        "spark.sql.variable.substitute": "false",
        "spark.scheduler.mode": "FAIR",
        # The source of a merge is already checkpointed: Delta need not copy it again.
        "spark.databricks.delta.merge.materializeSource": "none",
        # A batch has several hundred generated classes: with the default of 100 entries, each batch compiles them all
        # again.
        "spark.sql.codegen.cache.maxEntries": "3000",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": QUIETLY,
    }
    if not is_local(master):
        return everywhere
    cores = str(cores_of(master))
    return everywhere | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        # Spark creates this folder at the first statement, by default in the working directory.
        "spark.sql.warehouse.dir": (cache() / "warehouse").as_uri(),
        # Without a UI the plans are invisible, and formatting them takes a tenth of a small MERGE.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.shuffle.partitions": cores,
        "spark.databricks.delta.snapshotPartitions": cores,
        # The number of tasks that list files for VACUUM; the default is ten thousand.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": cores,
    }


def is_local(master: str) -> bool:
    """
    >>> is_local("local[*]"), is_local("local"), is_local("local-cluster[2,1,1024]"), is_local("yarn")
    (True, True, False, False)
    """
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def cores_of(master: str) -> int:
    """Return the number of tasks that a local master runs in parallel.

    >>> cores_of("local"), cores_of("local[4]"), cores_of("local[8, 3]"), cores_of("local[*]") == os.cpu_count()
    (1, 4, 8, True)
    """
    found = re.fullmatch(r"local\[\s*(\d+|\*).*\]", master)
    if found is None:
        return 1
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])


def with_delta(given: Mapping[str, str]) -> str:
    """Return `spark.jars` with Delta's jars added, unless the caller's jars include Delta.

    >>> with_delta({"spark.jars": "delta-spark_4.2_2.13-4.4.0.jar,other.jar"})
    'delta-spark_4.2_2.13-4.4.0.jar,other.jar'
    """
    theirs = given.get("spark.jars", "")
    if "delta-spark" in theirs + given.get("spark.jars.packages", ""):
        return theirs
    return ",".join([*filter(None, [theirs]), *map(str, delta_jars())])


def with_classes(options: str) -> str:
    """Return a JVM's options with the archive of Spark's classes added, if there is one and no other is named.

    >>> with_classes("-XX:ArchiveClassesAtExit=mine.jsa"), with_classes("-Xshare:off")
    ('-XX:ArchiveClassesAtExit=mine.jsa', '-Xshare:off')
    """
    if re.search("Archive(File|ClassesAtExit)=|-Xshare:", options):
        return options
    return f"{options} {class_archive.options()}".rstrip()


def ship(spark: "SparkSession") -> Path | None:
    """Send this Forge and its SQL to all executors of the session; they prefer it to an installed one.

    Forge's dependencies (psycopg, msgspec) have compiled parts, which a zip cannot carry: the executors' Python must
    have them. A Forge that itself came as a zip (`spark-submit --py-files`) is already on the executors.
    """
    if not PACKAGE.is_dir():
        _found_by_planners(spark, PACKAGE.parent)
        return None
    folder = tempfile.TemporaryDirectory(prefix="forge-shipped-")
    atexit.register(folder.cleanup)
    path = packed(Path(folder.name, "forge.zip"))
    # Spark accepts one file per name, and the --py-files may contain another Forge.
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    path = path.rename(path.with_name(f"forge-{digest}.zip"))
    spark.sparkContext.addPyFile(str(path))
    _found_by_planners(spark, path)
    return path


def _found_by_planners(spark: "SparkSession", path: Path) -> None:
    """Make Forge importable for the process beside the driver that plans a stream; it lacks the executors' files."""
    environment = spark.sparkContext.environment
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), environment.get("PYTHONPATH")]))


def packed(path: Path) -> Path:
    """Write the installed package as an importable zip, which `spark-submit --py-files` accepts."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(PACKAGE.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, Path(PACKAGE.name, file.relative_to(PACKAGE)))
    return path


def _submitted() -> dict[str, str]:
    """Return the settings of `spark-submit`, whose JVM is already running."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _with(running: "SparkSession", given: Mapping[str, str]) -> "SparkSession":
    for key, value in given.items():
        if running.conf.get(key, None) != value:
            running.conf.set(key, value)
    return running


def _start(wanted: Mapping[str, str], submitted: bool) -> "SparkSession":
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=submitted).setAll(list(wanted.items()))
    # A JVM outlives its session and serves the next one.
    runs = submitted or SparkContext._gateway is not None
    try:
        context = SparkContext(conf=conf, gateway=None if runs else _gateway(conf))
    except Py4JJavaError as error:
        why = str(error.java_exception.getMessage() or error.java_exception.getClass().getName()).splitlines()[0]
        raise SparkUnavailable(
            f"Spark did not start: {why[:300]}", fix="correct --master or the --conf that it names"
        ) from error
    try:
        context._jvm.Thread.currentThread().getContextClassLoader().loadClass(EXTENSION)  # type: ignore[union-attr]
    except Py4JJavaError as error:
        context.stop()
        raise SparkUnavailable(
            "this Spark has no Delta", fix='spark-submit --jars "$(python -m forge.pipeline.jars)" …'
        ) from error
    return SparkSession.builder.getOrCreate()


def _gateway(conf: "SparkConf") -> Any:
    """Start the JVM and pipe its output through this process, which drops known noise."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    reading, writing = os.pipe()
    last: deque[bytes] = deque(maxlen=20)
    threading.Thread(target=_pass_on, args=(reading, last), name="spark-output", daemon=True).start()
    try:
        return launch_gateway(conf, {"stdout": writing, "stderr": writing})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        told = b"".join(last).decode(errors="replace").strip().splitlines()
        why = next((line for line in told if "rror" in line), told[-1] if told else "no reason given")
        raise SparkUnavailable(f"Spark's JVM did not start: {why}", fix="fix what it says above") from error
    finally:
        os.close(writing)


def _pass_on(reading: int, last: "deque[bytes]") -> None:
    with open(reading, "rb") as lines:
        for line in lines:
            if not _NOISE.match(line):
                last.append(line)
                os.write(2, line)
