"""`forge disable`: stop tracking tables. Logged changes stay in the log, or in a SQLite file's queue."""

from functools import partial
from typing import Annotated

import typer

from forge.capture import sqlite
from forge.cli.enable import sqlite_file
from forge.cli.session import session
from forge.cli.tables import change, find
from forge.postgres.connection import Connection


def register(app: typer.Typer) -> None:
    app.command("disable", epilog="Examples:\n\nforge disable orders\n\nforge disable sales.orders sales.invoices")(
        disable
    )


def disable(
    context: typer.Context,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE…", help="orders, sales.orders")],
) -> None:
    """Stop tracking tables, one after the other. What was logged of them stays in the log."""
    run = session(context)
    results: dict[str, bool] = {}
    url = sqlite_file(run)
    if url is not None:
        disabled = {name.lower() for name in sqlite.disable(url, tables)}
        results = {name: name.lower().removeprefix("main.") in disabled for name in tables}
    else:
        with run.connection() as connection:
            find(connection, tables, "SELECT forge.find_table(%s)")
            for name in tables:
                results[name] = change(connection, name, partial(_disable, connection, name), done=list(results))
    if run.json:
        run.emit({"disabled": [name for name, was in results.items() if was]})
        return
    for name, was in results.items():
        if was:
            run.done(f"{name} is no longer tracked")
        else:
            run.note(f"{name} was not tracked")


def _disable(connection: Connection, name: str) -> bool:
    return connection.execute("SELECT public.forge_disable_reactivity(%s)", (name,)).fetchone() == (True,)
