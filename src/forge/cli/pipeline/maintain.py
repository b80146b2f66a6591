"""`forge pipeline maintain`: compact the lake's files and apply its retention."""

from typing import Annotated

import msgspec
import typer

from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, made_lake_of, spark_for, time_of
from forge.cli.session import session
from forge.config import days as parse_days


def register(app: typer.Typer) -> None:
    app.command(
        "maintain",
        epilog="Examples:\n\nforge pipeline maintain\n\nforge pipeline maintain --vacuum 48h --keep-bronze 365d",
    )(maintain)


def maintain(
    context: typer.Context,
    optimize: Annotated[bool, typer.Option("--optimize/--no-optimize", help="Put small files together.")] = True,
    vacuum: Annotated[
        str, typer.Option("--vacuum", metavar="TIME", help="Remove files that no reader has needed for so long.")
    ] = "168h",
    keep_bronze: Annotated[
        str | None,
        typer.Option("--keep-bronze", metavar="DAYS", help="Drop older days of bronze; all stay unless given."),
    ] = None,
    lake: LakeOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Put small files together, remove those that nobody needs, drop what is past retention."""
    here = session(context)
    found = made_lake_of(here, lake)
    keep = None if keep_bronze is None else parse_days(keep_bronze)
    if keep_bronze is not None and (keep is None or keep < 1):
        raise typer.BadParameter(f"--keep-bronze cannot be {keep_bronze!r}: give whole days, such as 365d")
    hours = time_of("--vacuum", vacuum) / 3600
    with spark_for(here, master, conf) as spark, here.progress() as bar:
        from forge.pipeline import about
        from forge.pipeline.maintain import maintain as tidy

        about.need(spark, found)
        done = tidy(
            spark,
            found,
            optimize=optimize,
            vacuum_hours=hours,
            bronze_days=keep,
            progress=lambda text: bar.step(text, 0),
        )
    for each in done:
        if here.json:
            here.emit(msgspec.to_builtins(each))
        else:
            here.done(each.text)
