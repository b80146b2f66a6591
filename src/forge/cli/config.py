"""`forge config`: print the settings in force, and the origin of each value."""

from typing import Any

import typer
from rich.table import Table

from forge import config as configuration
from forge.cli.session import session


def register(app: typer.Typer) -> None:
    app.command(
        "config", epilog="Examples:\n\nforge config\n\nFORGE_REALTIME_MAX_SESSIONS_PER_USER=1 forge config --json"
    )(config)


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
        table.add_row(name, _printed(name, value), origin)
    run.show(table)


def _printed(name: str, value: Any) -> str:
    if value is None or value == []:
        return f"({configuration.SETTINGS[name].kind.none})"
    return ", ".join(value) if isinstance(value, list) else str(value)
