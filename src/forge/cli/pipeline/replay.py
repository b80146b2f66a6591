"""`forge pipeline replay`: rebuild a table of the lake from bronze."""

from typing import Annotated

import typer

from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, made_lake_of, own_lake, spark_for
from forge.cli.session import session
from forge.doctor.finding import count
from forge.errors import LakeError


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
    """Build silver tables again from bronze alone; readers see the old one until the new one is whole."""
    here = session(context)
    found = made_lake_of(here, lake)
    with here.database() as database, spark_for(here, master, conf) as spark:
        from forge.pipeline import bronze
        from forge.pipeline.gold.states import forget
        from forge.pipeline.silver.replay import replay as rebuild

        with own_lake(spark, found, database.url) as about:
            known = sorted({each.name for each in bronze.definitions(spark, found).values()})
            names = [name for name in known if not tables or {name, name.partition(".")[2]} & set(tables)]
            if unknown := [name for name in tables or () if not any(name in (k, k.partition(".")[2]) for k in known)]:
                raise LakeError(f"the lake has no table {unknown[0]}", fix=f"choose from {', '.join(known)}")
            with here.progress(len(names)) as bar:
                for name in names:
                    bar.step(f"replaying {name}", 0)
                    made = rebuild(spark, found, name, types=about.types)
                    bar.step(f"replayed {name}")
                    if here.json:
                        here.emit({"table": name, **made._asdict()})
                    else:
                        here.done(f"{name}   {count(made.current, 'row')}   {count(made.history, 'version')}")
            forget(spark, found)
