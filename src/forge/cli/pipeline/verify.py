"""`forge pipeline verify`: check that the lake equals the database."""

from typing import Annotated

import msgspec
import typer

from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, made_lake_of, own_lake, spark_for
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

    Exact while traffic goes on, but not beside a run, which compares by itself with --verify. Exits with 1 when they
    differ.
    """
    here = session(context)
    found = made_lake_of(here, lake)
    names = [name.strip() for each in tables or () for name in each.split(",") if name.strip()]
    with here.database() as database, spark_for(here, master, conf) as spark:
        from forge.pipeline import checks
        from forge.pipeline.compare import compare

        fix = "let it compare by itself, with forge pipeline run --verify 10m, or stop it first"
        with own_lake(spark, found, database.url, fix=fix), here.progress() as bar:
            bar.step("comparing lake and database", 0)
            report = compare(spark, found, database.url, names or None)
            if not names:
                checks.note(spark, found, report.equal)
    if here.json:
        here.emit({"equal": report.equal, **msgspec.to_builtins(report)})
    else:
        for table in report.tables:
            if table.equal:
                here.done(f"{table.table}   {count(table.database, 'row')}")
                continue
            here.note(f"{table.table}   {table.summary}")
            for difference in table.differences:
                here.note(str(difference))
        if report.equal:
            here.done(f"lake = database   {count(len(report.tables), 'table')}   {count(report.rows, 'row')}")
    raise typer.Exit(0 if report.equal else 1)
