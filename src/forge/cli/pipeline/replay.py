"""`forge pipeline replay`: build a table of the lake anew from bronze."""

from typing import Annotated

import typer

from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, lake_of, spark_for
from forge.cli.session import session
from forge.doctor.finding import count


def register(app: typer.Typer) -> None:
    app.command("replay", epilog="Examples:\n\nforge pipeline replay orders\n\nforge pipeline replay   (every table)")(
        replay
    )


def replay(
    context: typer.Context,
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="Tables; all unless given.")] = None,
    lake: LakeOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Build silver tables anew from bronze alone; readers see the old one until the new one is whole."""
    here = session(context)
    found = lake_of(here, lake)
    with here.database() as database, spark_for(here, master, conf) as spark:
        from forge.pipeline.lease import lease
        from forge.pipeline.rebuild import rebuild, tables_of

        with lease(database.url, found.path):
            names = tables_of(spark, found, tables)
            with here.progress(len(names)) as bar:
                for name in names:
                    bar.step(f"replaying {name}", 0)
                    rows = rebuild(spark, found, name)
                    bar.step(f"replayed {name}")
                    if here.json:
                        here.emit({"table": name, "changes": rows})
                    else:
                        here.done(f"{name}   {count(rows, 'change')}")
