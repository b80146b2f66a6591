"""`forge pipeline status`: the position and size of the lake."""

import msgspec
import typer
from rich.table import Table

from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, made_lake_of, spark_for
from forge.cli.session import session
from forge.config import shown_size
from forge.doctor.finding import count
from forge.postgres.connection import connect
from forge.terminal import shown


def register(app: typer.Typer) -> None:
    app.command("status", epilog="Examples:\n\nforge pipeline status\n\nforge pipeline status --json")(status)


def status(
    context: typer.Context,
    lake: LakeOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Lag in changes and seconds, the last batch, sizes, and what is in quarantine."""
    here = session(context)
    found = made_lake_of(here, lake)
    with here.database() as database, spark_for(here, master, conf) as spark:
        from forge.pipeline import about, ledger
        from forge.pipeline.lag import lag
        from forge.pipeline.status import status as looked

        whose = about.need(spark, found)
        with connect(database.url) as connection:
            about.check(whose, found, connection)
        entry = ledger.last(spark, found)
        state = looked(spark, found)
        with connect(database.url) as connection:
            behind = None if entry is None else lag(connection, entry.cursor, whose.tables)
    if here.json:
        here.emit(
            {
                "lake": found.path,
                "run": whose.run,
                "last_batch": None if entry is None else {**msgspec.to_builtins(entry), "cursor": str(entry.cursor)},
                "lag": msgspec.to_builtins(behind),
                **msgspec.to_builtins(state),
            }
        )
        return
    if entry is None or behind is None:
        here.note("no batch has come to its end yet")
    else:
        here.done(
            f"lake at {found.path}",
            f"batch {entry.name} at {entry.at:%Y-%m-%d %H:%M:%S} UTC",
            f"lag {count(behind.changes, 'change')}, {behind.seconds:.1f} s",
        )
    table = Table(box=None, pad_edge=False)
    for name, justify in (
        ("table", "left"),
        ("rows", "right"),
        ("versions", "right"),
        ("size", "right"),
        ("files", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for each in state.tables:
        table.add_row(
            shown(each.name),
            f"{each.current_rows:,}",
            f"{each.history_rows:,}",
            shown_size(each.bytes),
            f"{each.files:,}",
        )
    here.show(table)
    for text in state.problems():
        here.note(text)
