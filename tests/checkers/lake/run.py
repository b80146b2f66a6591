"""One round of the checker: traffic all the while, a keeper that is killed again and again, then the truth."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import psycopg
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from forge.changelog.install import install
from forge.embedded import PostgresServer
from forge.pipeline.compare import compare
from forge.pipeline.lake import Lake
from forge.pipeline.run import LakeSettings, pipeline
from forge.pipeline.tables import exists, load
from forge.postgres.connection import connect
from forge.testing.postgres import fresh_database
from tests.checkers.lake.keeper import MOST, STEPS
from tests.checkers.lake.traffic import TABLES, act, prepare
from tests.checkers.session_settings import of_database, set_defaults

PATIENCE: Final = 180.0
"""How long a keeper may take before it counts as stuck."""


class Kill(msgspec.Struct, frozen=True):
    """At the nth time that a step comes, or after so many seconds when there is no step."""

    step: str | None
    nth: int
    seconds: float


class Plan(msgspec.Struct, frozen=True):
    """What a round does; the seed says it all."""

    seed: int
    kills: tuple[Kill, ...]
    transactions: int
    definitions: bool

    @classmethod
    def generate(cls, seed: int, *, kills: int = 3, transactions: int = 150, definitions: bool = True) -> "Plan":
        chance = random.Random(seed)
        steps = [*STEPS, None]
        return cls(
            seed,
            tuple(Kill(chance.choice(steps), chance.randrange(1, 4), chance.uniform(6, 20)) for _ in range(kills)),
            transactions,
            definitions,
        )

    def summary(self) -> str:
        where = ", ".join(f"{kill.step} {kill.nth}" if kill.step else f"{kill.seconds:.1f} s" for kill in self.kills)
        return f"seed {self.seed}: {self.transactions} transactions before each kill at {where}"


class Report(msgspec.Struct, frozen=True):
    """What was found; `discrepancies` is empty when the pipeline kept its word."""

    plan: Plan
    changes: int
    batches: int
    killed: tuple[str, ...]
    discrepancies: tuple[str, ...]

    def __str__(self) -> str:
        verdict = f"{len(self.discrepancies)} discrepancies" if self.discrepancies else "lake = database, bronze = log"
        killed = ", ".join(self.killed) or "no point"
        return f"{self.changes} changes in {self.batches} batches, killed at {killed}: {verdict}"


def run(plan: Plan, server: PostgresServer, spark: SparkSession, folder: Path) -> Report:
    """A round in a database of its own; `spark` is used for the last batch and to look at what there is."""
    lake = Lake(str(folder / f"lake-{plan.seed}"))
    with fresh_database(server) as url:
        with connect(url) as connection:
            set_defaults(connection, of_database(plan.seed))
            install(connection)
            prepare(connection)
        killed = []
        chance = random.Random(plan.seed)
        for kill in plan.kills:
            _write(url, chance, plan)
            ended = _keep(url, lake, kill, lambda: _write(url, chance, plan))
            if ended:
                killed.append(ended)
        _write(url, chance, plan)
        with pipeline(spark, url, lake, LakeSettings(most=MOST)) as running:
            running.once()
        return _truth(plan, url, spark, lake, tuple(killed))


def _write(url: str, chance: random.Random, plan: Plan) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(plan.transactions):
            act(connection, chance, definitions=plan.definitions)


def _keep(url: str, lake: Lake, kill: Kill, meanwhile: Callable[[], None]) -> str | None:
    """Run a keeper beside traffic until it dies; where it died, or None when it was done before."""
    command = [sys.executable, "-m", "tests.checkers.lake.keeper", url, lake.path, kill.step or "-", str(kill.nth)]
    keeper = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    traffic = threading.Thread(target=meanwhile)
    traffic.start()
    try:
        said, _ = keeper.communicate(timeout=kill.seconds if kill.step is None else PATIENCE)
    except subprocess.TimeoutExpired:
        _kill(keeper)
        said, _ = keeper.communicate()
        if kill.step is not None:
            raise AssertionError(f"the keeper is stuck: {said.decode(errors='replace')[-2000:]}") from None
    finally:
        traffic.join()
        _kill(keeper)
    if keeper.returncode == 0:
        return None
    if keeper.returncode != -signal.SIGKILL:
        raise AssertionError(f"the keeper failed: {said.decode(errors='replace')[-4000:]}")
    return f"{kill.step} {kill.nth}" if kill.step else f"{kill.seconds:.1f} s"


def _kill(keeper: "subprocess.Popen[bytes]") -> None:
    """End the keeper and the Spark that it started, which are a process group of their own."""
    with suppress(ProcessLookupError):
        os.killpg(keeper.pid, signal.SIGKILL)


def _truth(plan: Plan, url: str, spark: SparkSession, lake: Lake, killed: tuple[str, ...]) -> Report:
    found: list[str] = []
    bronze = load(spark, lake.changes)
    with connect(url) as connection:
        logged = {row[0] for row in connection.execute("select id from forge.forge_event_log")}
    ids = [int(row[0].rpartition(":")[2]) for row in bronze.where("transaction is not null").select("id").collect()]
    if len(ids) != len(set(ids)):
        found.append(f"bronze has {len(ids) - len(set(ids))} changes twice")
    if missing := logged - set(ids):
        found.append(f"bronze lacks {len(missing)} changes, such as {min(missing)}")
    if extra := set(ids) - logged:
        found.append(f"bronze has {len(extra)} changes that the log has not, such as {min(extra)}")
    report = compare(spark, lake, url, None)
    found += [str(difference) for table in report.tables for difference in table.differences]
    if not report.equal and not found:
        found.append(f"lake and database differ: {report}")
    for table in TABLES:
        found += _versions(spark, lake, table)
    batches = load(spark, lake.batches).count()
    return Report(plan, len(logged), batches, killed, tuple(found))


def _versions(spark: SparkSession, lake: Lake, table: str) -> list[str]:
    """Every row change of bronze has its version in silver, and only one; of a table without a key, its two halves."""
    name = f"public.{table}"
    if not exists(spark, lake.history(name)):
        return [f"{name} has no history"]
    rows = F.col("op").isin("insert", "update", "delete", "read") & (F.col("table") == table)
    changes = load(spark, lake.changes).where(rows)
    wanted = changes.groupBy("op").count().collect()
    expected = sum(row["count"] * (2 if table == "tally" and row["op"] == "update" else 1) for row in wanted)
    history = load(spark, lake.history(name))
    found = history.count()
    problems = []
    if found != expected:
        problems.append(f"the history of {name} has {found} versions for {expected}")
    open_rows = history.where("_is_current").count()
    current = load(spark, lake.current(name)).count()
    if open_rows != current:
        problems.append(f"{name} has {current} rows and {open_rows} open versions")
    return problems
