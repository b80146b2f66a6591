"""`forge pipeline versions`: the change version of every document, derived by Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, lake_of, spark_for
from forge.cli.pipeline.output import SHOWN, rows, show
from forge.cli.session import CommandSession, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forge.pipeline.lake import Lake
    from forge.pipeline.versions import Corpus


def register(app: typer.Typer) -> None:
    app.command(
        "versions",
        epilog="Examples:\n\nforge pipeline versions --since 1000\n\n"
        "forge pipeline versions --resource ed-fi/students --json\n\n"
        "forge pipeline versions --from-database --out versions/   (all of them, as Parquet)",
    )(versions)


def versions(
    context: typer.Context,
    resource: Annotated[
        str | None,
        typer.Option(metavar="PROJECT/NAME", help="Only this resource; NAME alone: of all projects."),
    ] = None,
    since: Annotated[int, typer.Option(min=0, help="Only versions above this one.")] = 0,
    from_database: Annotated[bool, typer.Option("--from-database", help="Read the database, not the lake.")] = False,
    transitive: Annotated[
        bool, typer.Option("--transitive", help="An identity changes with those that it contains, whoever stamped it.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many rows people are shown.")] = SHOWN,
    out: Annotated[str | None, typer.Option("--out", metavar="PATH", help="Write Parquet there.")] = None,
    lake: LakeOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Derive the change version of every document, from a lake that mirrors them or from the database."""
    here = session(context)
    found = lake_of(here, lake)
    from forge.pipeline.jars import jdbc_driver

    driver = str(jdbc_driver()) if from_database else ""
    more = {"spark.driver.extraClassPath": driver, "spark.jars": driver} if driver else {}
    with (
        spark_for(here, master, conf, more) as spark,
        _corpus(here, spark, None if from_database else found) as corpus,
    ):
        from forge.pipeline.versions import derived, of_resource

        frame = derived(corpus, transitive=transitive).where(f"change_version > {since}")
        if resource is not None:
            frame = frame.where(of_resource(corpus, resource))
        if out is None:
            frame = frame.orderBy("change_version", "id")
            show(here, frame.columns, rows(frame, None if here.json else limit + 1), limit)
            return
        with here.progress() as bar:
            bar.step("deriving versions", 0)
            frame.write.mode("error").parquet(out)
        here.done(f"versions in {out}")


@contextmanager
def _corpus(here: CommandSession, spark: "SparkSession", lake: "Lake | None") -> Iterator["Corpus"]:
    """The documents of a lake, or without one those of the database, which only then is opened."""
    from forge.pipeline.versions import of_database, of_lake

    if lake is not None:
        yield of_lake(spark, lake)
        return
    with here.database() as database, of_database(spark, database.url) as corpus:
        yield corpus
