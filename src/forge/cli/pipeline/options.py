"""Options shared by the commands of the pipeline: the lake, and the Spark that works on it."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import typer

from forge.cli.session import CommandSession
from forge.config import seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forge.pipeline.about import LakeRun
    from forge.pipeline.lake import Lake

LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake",
        metavar="PATH",
        help="A folder or any URL that Hadoop can write; else pipeline.lake of the configuration, else .forge/lake.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="spark://…, yarn, k8s://…; else pipeline.master, else all cores of this machine.",
    ),
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's; may be repeated.")
]


def settings(conf: Sequence[str] | None) -> dict[str, str]:
    """The settings as they were given.

    >>> settings(["spark.driver.memory=2g", "a=b=c"])
    {'spark.driver.memory': '2g', 'a': 'b=c'}
    """
    found = {}
    for word in conf or ():
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise typer.BadParameter(f"--conf is {word!r}: write it as spark.some.setting=value")
        found[key.strip()] = value.strip()
    return found


def time_of(option: str, value: str) -> float:
    """The seconds that an option stands for.

    >>> time_of("--interval", "10s")
    10.0
    """
    found = seconds(value)
    if found is None:
        raise typer.BadParameter(f"{option} cannot be {value!r}: write it as 500ms, 10s, 5m or 1h")
    return found


def instant_of(option: str, value: str) -> datetime:
    """The instant that an option stands for; without a zone it is in UTC.

    >>> instant_of("--at", "2026-11-10 09:00+00")
    datetime.datetime(2026, 11, 10, 9, 0, tzinfo=datetime.timezone.utc)
    """
    try:
        found = datetime.fromisoformat(value.strip())
    except ValueError:
        raise typer.BadParameter(
            f"{option} cannot be {value!r}: write it as 2026-11-10T09:00, with +02:00 for another zone than UTC"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def lake_of(run: CommandSession, path: str | None) -> "Lake":
    """The lake that a command works on."""
    from forge.pipeline.java import need_pyspark

    need_pyspark()
    from forge.pipeline.lake import Lake

    if path is None:
        path = run.config.pipeline.lake or str(run.config.data / "lake")
    if path.startswith("file:"):
        path = unquote(urlsplit(path).path)
    if "://" not in path:
        path = str(Path(path).expanduser().resolve())
    return Lake(path.rstrip("/"))


def made_lake_of(run: CommandSession, path: str | None) -> "Lake":
    """The lake that a command reads: it must exist, which is checked before Spark starts where that is possible."""
    lake = lake_of(run, path)
    from forge.pipeline.local import need_lake

    need_lake(lake)
    return lake


@contextmanager
def own_lake(
    spark: "SparkSession", lake: "Lake", url: str, *, fix: str = "stop that run first, or give another --lake"
) -> Iterator["LakeRun"]:
    """A lake that is there and mirrors this database, held for this block: nobody else writes to it."""
    from forge.pipeline import about
    from forge.pipeline.lease import lease

    found = about.need(spark, lake)
    with lease(url, lake.path, fix=fix) as session:
        about.check(found, lake, session.connection)
        yield found


@contextmanager
def spark_for(
    run: CommandSession, master: str | None, conf: Sequence[str] | None, more: dict[str, str] | None = None
) -> Iterator["SparkSession"]:
    """A session of Spark's for this command, its failures as Forge's errors."""
    from forge.pipeline.failures import translated
    from forge.pipeline.session import session

    given = settings(conf)
    # It logs errors of a batch, which are raised here again.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with run.progress() as bar:
        bar.step("starting Spark", 0)
        spark = session(
            master=master or run.config.pipeline.master, conf={**(more or {}), **given}, app="forge pipeline"
        )
    try:
        with translated():
            yield spark
    finally:
        spark.stop()
