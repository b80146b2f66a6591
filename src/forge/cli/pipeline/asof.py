"""`forge pipeline as-of`: a row, a table or all tables as of an instant."""

from typing import TYPE_CHECKING, Annotated

import typer

from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, instant_of, made_lake_of, spark_for
from forge.cli.pipeline.output import SHOWN, rows, show
from forge.cli.session import session
from forge.errors import HistoryUnavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def register(app: typer.Typer) -> None:
    app.command(
        "as-of",
        epilog="Examples:\n\nforge pipeline as-of --at '2026-11-10 09:00+00' --table orders\n\n"
        "forge pipeline as-of --at 2026-11-10T09:00 --table orders --key 4711 --json\n\n"
        "forge pipeline as-of --at 2026-11-10T09:00 --out past/   (all tables, one instant, as Parquet)",
    )(as_of)


def as_of(
    context: typer.Context,
    at: Annotated[str, typer.Option("--at", metavar="INSTANT", help="2026-11-10T09:00; UTC unless it says otherwise.")],
    table: Annotated[str | None, typer.Option("--table", metavar="NAME", help="One table; all unless given.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="One row: its key, or a JSON object of its key columns.")
    ] = None,
    where: Annotated[str | None, typer.Option("--where", metavar="SQL", help="A condition of Spark's.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many rows people are shown.")] = SHOWN,
    out: Annotated[
        str | None, typer.Option("--out", metavar="PATH", help="Write Parquet there, a folder for each table.")
    ] = None,
    lake: LakeOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """A row, a table, or all tables as they were at one consistent instant.

    As of an instant means the last recorded one at or before it; they are recorded about every second. Exits with 1
    when a table is left out, because the lake does not know its rows at that instant.
    """
    here = session(context)
    instant = instant_of("--at", at)
    if key is not None and table is None:
        raise typer.BadParameter("--key needs --table: a key names a row of one table")
    if table is None and out is None:
        raise typer.BadParameter("give --table for one table, or --out for all of them")
    found = made_lake_of(here, lake)
    with spark_for(here, master, conf) as spark:
        from forge.pipeline import about
        from forge.pipeline.asof import key_of, lake_as_of, row_as_of, table_as_of
        from forge.pipeline.instants import at_or_before

        about.need(spark, found)
        recorded = at_or_before(spark, found, instant)
        frames: dict[str, DataFrame]
        left_out: dict[str, HistoryUnavailable] = {}
        if table is not None:
            if key is not None:
                frames = {table: row_as_of(spark, found, table, key_of(key), recorded)}
            else:
                frames = {table: table_as_of(spark, found, table, recorded)}
        else:
            frames = everything = lake_as_of(spark, found, recorded)
            left_out = everything.left_out
        if not here.json:
            here.done(f"as committed at {recorded.at.isoformat(sep=' ')}")
        for name, frame in frames.items():
            chosen = frame if where is None else frame.where(where)
            if out is not None:
                with here.progress() as bar:
                    bar.step(f"writing {name}", 0)
                    chosen.write.mode("error").parquet(f"{out.rstrip('/')}/{name}")
                here.done(f"{name} in {out.rstrip('/')}/{name}")
            else:
                show(here, chosen.columns, rows(chosen, None if here.json else limit + 1), limit)
        for name, why in left_out.items():
            here.note(f"{name} is left out: {why}; {why.fix}")
    if left_out:
        raise typer.Exit(1)
