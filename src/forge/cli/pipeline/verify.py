"""`forge pipeline verify`: whether the lake is the database."""

from typing import Annotated

import msgspec
import typer

from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, lake_of, spark_for
from forge.cli.session import session
from forge.doctor.finding import count


def register(app: typer.Typer) -> None:
    app.command("verify", epilog="Examples:\n\nforge pipeline verify\n\nforge pipeline verify --table orders --json")(
        verify
    )


def verify(
    context: typer.Context,
    tables: Annotated[
        list[str] | None, typer.Option("--table", "--tables", metavar="NAME", help="Only these; may be repeated.")
    ] = None,
    lake: LakeOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Compare lake and database at the snapshot that the lake stands at: counts and row hashes, differences listed.

    Exact while traffic goes on. Exits with 1 when they differ.
    """
    here = session(context)
    found = lake_of(here, lake)
    names = [name.strip() for each in tables or () for name in each.split(",") if name.strip()]
    with here.database() as database, spark_for(here, master, conf) as spark:
        from forge.pipeline.compare import compare

        with here.progress() as bar:
            bar.step("comparing lake and database", 0)
            report = compare(spark, found, database.url, names or None)
    if here.json:
        here.emit(msgspec.to_builtins(report))
    else:
        for line in report.lines():
            (here.done if line.equal else here.note)(line.text)
        if report.equal:
            here.done(f"lake = database   {count(len(report.tables), 'table')}   {count(report.rows, 'row')}")
    raise typer.Exit(0 if report.equal else 1)
