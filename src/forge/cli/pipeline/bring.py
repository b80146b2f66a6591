"""`forge pipeline import`: archived events into the lake."""

from typing import Annotated, Literal

import typer

from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, lake_of, spark_for
from forge.cli.session import session
from forge.doctor.finding import count


def register(app: typer.Typer) -> None:
    app.command(
        "import",
        epilog="Examples:\n\nforge pipeline import old/*.jsonl.gz\n\nforge pipeline import s3a://archive/shop "
        "--envelope debezium",
    )(bring)


def bring(
    context: typer.Context,
    path: Annotated[list[str], typer.Argument(metavar="PATH...", help="JSON lines or Parquet, as Spark reads them.")],
    envelope: Annotated[
        Literal["forge", "debezium"] | None,
        typer.Option("--envelope", help="Of the events; found out unless given."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first line that is no event.")] = False,
    lake: LakeOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Bring archived events into the lake. The same files twice change nothing, and any order gives the same lake."""
    here = session(context)
    found = lake_of(here, lake)
    with here.database() as database, spark_for(here, master, conf) as spark:
        from forge.pipeline.imports import bring as into_lake
        from forge.pipeline.lease import lease

        with lease(database.url, found.path), here.progress() as bar:
            bar.step("reading archives", 0)
            done = into_lake(spark, found, path, envelope, strict=strict)
    if here.json:
        here.emit({"changes": done.changes, "refused": done.refused, "tables": done.tables})
        return
    here.done(f"{count(done.changes, 'change')} of {count(len(done.tables), 'table')} imported")
    if done.refused:
        here.note(f"{count(done.refused, 'line')} refused: {done.reason}")
