"""Archive Spark's classes, so that a JVM maps them instead of loading and checking them again (class data sharing).

    python -m forge.pipeline.class_archive

A start of Spark with one write and one MERGE took 24.1 CPU-seconds without an archive and 16.4 with it (Java 17, two
cores). Making one takes about as long as two starts and 190 MB in `$FORGE_CACHE` (or `~/.cache/forge`), so it is made
on request only. `session` gives it to the driver of a local master; the options are good for executors and daemons too.

Invariants:

- An archive belongs to one `java` and one folder of Spark's jars: both are in its name, with the jars' sizes and times.
- An archive appears complete or not at all. Making one removes those of earlier jars in the same folder.
- A JVM whose class path begins otherwise ignores the archive and says nothing.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from forge.errors import SparkUnavailable
from forge.pipeline.jars import cache, spark_jars
from forge.pipeline.java import find_java

SECONDS: Final = 600
TRAINING: Final = """
import sys
from forge.pipeline.session import BRIEFLY, QUIETLY, session

conf = {"spark.driver.extraJavaOptions": f"{QUIETLY} {BRIEFLY} -XX:ArchiveClassesAtExit={sys.argv[1]} -Xlog:cds*=off"}
spark = session(master="local[2]", conf=conf)
table = f"delta.`{sys.argv[2]}`"
spark.range(10).write.format("delta").save(sys.argv[2])
spark.sql(
    f"MERGE INTO {table} t USING (SELECT id FROM range(5, 15)) s ON t.id = s.id"
    " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
)
spark.sql(f"SELECT id, count(*) FROM {table} GROUP BY id").collect()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()
sys.exit(jvm.wait())
"""


def options() -> str:
    """Return the options with which a JVM of Spark uses the archive; none when there is no archive."""
    path = archive()
    return f"-XX:SharedArchiveFile={path} -Xshare:auto -Xlog:cds*=off" if path.exists() else ""


def archive() -> Path:
    """Return the path of the archive for the `java` and the jars of this machine, whether or not it exists."""
    java, jars = find_java().resolve(), spark_jars()
    digest = hashlib.sha256(f"{java} {java.stat().st_mtime_ns}".encode())
    for jar in sorted(jars.glob("*.jar")):
        seen = jar.stat()
        digest.update(f"{jar.name} {seen.st_size} {seen.st_mtime_ns}\n".encode())
    place = hashlib.sha256(str(jars).encode()).hexdigest()[:12]
    return cache() / "classes" / f"{place}-{digest.hexdigest()[:12]}.jsa"


def make() -> Path:
    """Run Spark once and archive the classes that it loaded, unless that was done."""
    path = archive()
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=path.parent) as here:
        made = Path(here, path.name)
        done = subprocess.run(
            [sys.executable, "-c", TRAINING, made, Path(here, "table")],
            cwd=here,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
        if done.returncode or not made.exists():
            why = (done.stdout.strip().splitlines() or ["no reason given"])[-1]
            raise SparkUnavailable(f"Spark's classes were not archived: {why}", fix="none needed: starts are slower")
        for earlier in path.parent.glob(f"{path.name.partition('-')[0]}-*.jsa"):
            earlier.unlink(missing_ok=True)
        os.replace(made, path)
    return path


if __name__ == "__main__":
    try:
        print(make())
    except SparkUnavailable as unavailable:
        sys.exit(f"error: {unavailable}\nfix: {unavailable.fix}")
