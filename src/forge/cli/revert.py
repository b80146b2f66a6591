"""`forge revert`: undo a request, a transaction or a user's changes, as one new transaction."""

import contextlib
import getpass
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from forge.cli.session import CommandSession, session
from forge.doctor.finding import count
from forge.errors import RevertRefused
from forge.history.instants import instant
from forge.history.revert import Choice, Reverted, RevertPlan, RevertStep, plan_revert, revert
from forge.terminal import ABSENT, cut, shown, value_text

SHOWN = 200
_STYLES = {"insert": "green", "update": "yellow", "delete": "red"}


def register(app: typer.Typer) -> None:
    app.command(
        "revert",
        epilog="Examples:\n\nforge revert --trace 3f2a9c0e --dry-run\n\nforge revert --transaction 771 --as ada\n\n"
        "forge revert --user mallory --since 2h --table orders --table lines",
    )(run)


def run(
    context: typer.Context,
    trace: Annotated[str | None, typer.Option("--trace", metavar="ID", help="What one request did.")] = None,
    transaction: Annotated[
        str | None, typer.Option("--transaction", metavar="NUMBER", help="What one transaction did.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="What a user did since --since.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="INSTANT", help="'2026-11-10 09:00+00', or 2h: so long ago.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="INSTANT", help="Only what was before.")] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", metavar="NAME", help="Only this table; may be repeated.")
    ] = None,
    by: Annotated[str | None, typer.Option("--as", metavar="USER", help="Who the log says did it; you.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
) -> None:
    """Undo a request, a transaction or a user's changes: all of it, as one new transaction, or nothing.

    Refused, with a list, where a later change of somebody else would be lost.
    """
    here = session(context)
    choice = Choice(
        trace=trace,
        transaction=transaction,
        user=user,
        since=None if since is None else instant(since),
        until=None if until is None else instant(until),
        tables=tuple(tables or ()),
    )
    with here.connection() as connection:
        if dry_run:
            plan = plan_revert(connection, choice)
            _show_plan(here, plan)
            if plan.conflicts:
                raise typer.Exit(1)
            return
        try:
            done = revert(connection, choice, by=by or getpass.getuser())
        except RevertRefused as refused:
            _show_conflicts(here, refused.conflicts)
            raise
    _tell(here, done)


def _show_plan(here: CommandSession, plan: RevertPlan) -> None:
    if here.json:
        here.emit(
            {
                "choice": plan.choice,
                "changes": plan.changes,
                "rows": plan.steps,
                "conflicts": plan.conflicts,
            }
        )
        return
    here.show(_table(plan.steps[:SHOWN]))
    if len(plan.steps) > SHOWN:
        here.note(f"the first {SHOWN} rows of {len(plan.steps)}; --json shows all")
    rows = count(len(plan.steps), "row")
    if plan.conflicts:
        here.note(f"{rows} for {count(plan.changes, 'change')}; it would be refused:")
        _show_conflicts(here, [str(conflict) for conflict in plan.conflicts])
    else:
        here.done(f"{rows} would be written, for {count(plan.changes, 'change')} of {plan.choice}")


def _show_conflicts(here: CommandSession, conflicts: Any) -> None:
    for line in list(conflicts)[:SHOWN]:
        here.err.print(Text.assemble(("✗ ", "red"), shown(line)), soft_wrap=True)


def _tell(here: CommandSession, done: Reverted) -> None:
    if here.json:
        here.emit(
            {
                "choice": done.choice,
                "changes": done.changes,
                "transaction": done.transaction,
                "rows": done.counts,
                "adjusted": done.adjusted,
            }
        )
        return
    if done.transaction is None:
        here.done(f"nothing to do: all that {done.choice} changed is as it was")
        return
    listed = ", ".join(f"{count(number, 'row')} of {table}" for table, number in done.counts.items())
    here.done(f"{count(done.changes, 'change')} reverted in transaction {done.transaction}: {listed}")
    for row, columns in done.adjusted.items():
        here.note(f"{row}: a trigger made something else of {', '.join(columns)}")
    here.hint(f"forge revert --transaction {done.transaction}   (brings it all back)")


def _table(steps: Any) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("table", "row", "", "column", "now", "then"):
        table.add_column(name, overflow="fold")
    for step in steps:
        head: list[Text | str] = [
            Text(shown(step.table), "cyan"),
            shown(cut(step.key, 40)),
            Text(step.op, _STYLES[step.op]),
        ]
        for column, now, then in _differences(step):
            table.add_row(*head, shown(column), Text(now, "red"), Text(then, "green"))
            head = ["", "", ""]
    return table


def _differences(step: RevertStep) -> list[tuple[str, str, str]]:
    names = [*step.then, *(name for name in step.now if name not in step.then)]
    return [(name, _value(step.now.get(name)), _value(step.then.get(name))) for name in names]


def _value(raw: msgspec.Raw | None) -> str:
    """
    >>> _value(msgspec.Raw(b'"paid"')), _value(msgspec.Raw(b"1.50")), _value(None)
    ('paid', '1.50', '–')
    >>> _value(msgspec.Raw(b"[" * 5000 + b"]" * 5000))[-2:]
    '[…'
    """
    if raw is None:
        return ABSENT
    with contextlib.suppress(RecursionError):
        value = msgspec.json.decode(raw)
        if not isinstance(value, float):
            return value_text(value)
    return cut(bytes(raw).decode(), 40)
