"""`forge redact`: remove values of one row from the log, for the right to be forgotten."""

import getpass
from typing import Annotated

import typer

from forge.cli.session import CommandSession, session
from forge.doctor.finding import count
from forge.history.redact import Redacted
from forge.history.redact import redact as take_out
from forge.history.tracked import key_of


def register(app: typer.Typer) -> None:
    app.command(
        "redact",
        epilog="Examples:\n\nforge redact customers 7 --columns email,phone --dry-run\n\n"
        "forge redact customers 7 --columns email,phone --reason 'request 4711'\n\n"
        "forge redact lines order=7,number=1 --columns note",
    )(redact)


def redact(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="customers, sales.customers")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="7, or a=1,b=2 for a key of several columns")],
    columns: Annotated[str, typer.Option("--columns", metavar="A,B", help="The columns whose values go.")],
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; it stays in the log.")] = None,
    by: Annotated[str | None, typer.Option("--as", metavar="USER", help="Who the log says did it; you.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
) -> None:
    """Take values of one row out of the log, for good; consumers are told to forget them too.

    The row in the table is not changed: update or delete it first. Backups and the WAL keep what they have.
    """
    here = session(context)
    names = [name for part in columns.split(",") if (name := part.strip())]
    with here.connection() as connection:
        done = take_out(
            connection, table, key_of(key), names, reason=reason, by=by or getpass.getuser(), dry_run=dry_run
        )
    if here.json:
        here.emit(done)
        return
    _tell(here, done)


def _tell(here: CommandSession, done: Redacted) -> None:
    row = f"{', '.join(done.columns)} of {done.table} {done.row_id}"
    where = count(done.changes, "change")
    if done.transaction is None:
        here.done(f"{row} would be redacted in {where}")
    else:
        here.done(f"{row} redacted in {where}, transaction {done.transaction}")
    if others := [key for key in done.keys if key != done.row_id]:
        here.note(f"also under the keys that the row had: {', '.join(others)}")
    if done.current:
        here.note(
            f"the row itself still has {', '.join(done.current)}: update it, and redact again, as updates are logged"
        )
