"""`forge disable`: track tables no longer. What was logged stays in the log."""

from typing import Annotated

import typer

from forge.cli.session import session


def register(app: typer.Typer) -> None:
    app.command("disable", epilog="Examples:\n\nforge disable orders\n\nforge disable sales.orders sales.invoices")(
        disable
    )


def disable(
    context: typer.Context,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE…", help="orders, sales.orders")],
) -> None:
    """Stop tracking tables, all of those named or none. What was logged of them stays in the log."""
    run = session(context)
    results = {}
    with run.connection() as connection:
        connection.execute("SET lock_timeout = '10s'")
        with connection.transaction():
            for name in tables:
                row = connection.execute("SELECT forge_disable_reactivity(%s)", (name,)).fetchone()
                results[name] = bool(row and row[0])
    if run.json:
        run.emit({"disabled": [name for name, was in results.items() if was]})
        return
    for name, was in results.items():
        if was:
            run.done(f"{name} is no longer tracked")
        else:
            run.note(f"{name} was not tracked")
