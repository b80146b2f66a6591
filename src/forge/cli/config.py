"""`forge config`: what is in force, and where each value came from."""

import typer
from rich.table import Table

from forge import config as configuration
from forge.cli.session import session

_MEANING = {"database_url": "the embedded server", "log_size_limit": "no limit"}


def register(app: typer.Typer) -> None:
    app.command("config", epilog="Examples:\n\nforge config\n\nFORGE_RETENTION_DAYS=7 forge config --json")(config)


def config(context: typer.Context) -> None:
    """Print the settings in force and where each came from, secrets hidden."""
    run = session(context)
    settings = configuration.described(run.config)
    if run.json:
        run.emit({name: {"value": value, "origin": origin} for name, value, origin in settings})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for name, value, origin in settings:
        table.add_row(name, str(value) if value is not None else f"({_MEANING[name]})", origin)
    run.show(table)
