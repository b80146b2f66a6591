"""`forge audit`: who changed what, listed or counted."""

from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table

from forge.change import Op
from forge.cli.session import CommandSession, session
from forge.cli.tables import known
from forge.history.audit import BY, LIMIT, MOST, AuditCount, Audited, AuditFilter, audit, counts
from forge.history.instants import instant, moment
from forge.terminal import ABSENT, cut, short, shown

_WIDTH = 48
_NOTHING = "no change in the log matches"


def register(app: typer.Typer) -> None:
    app.command(
        "audit",
        epilog="Examples:\n\nforge audit --since 1d --by user,table\n\n"
        "forge audit --user ada --table orders --op delete\n\n"
        "forge audit --since '2026-11-10 09:00+00' --until '2026-11-10 10:00+00' --json\n\nforge audit --by day,op",
    )(list_changes)


def list_changes(
    context: typer.Context,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Only what this user changed.")] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="TABLE", help="Only this table.")] = None,
    ops: Annotated[
        list[Op] | None, typer.Option("--op", help="Only these operations; may be repeated.", case_sensitive=False)
    ] = None,
    trace: Annotated[str | None, typer.Option("--trace", metavar="ID", help="Only what this request changed.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="INSTANT", help="From then on: an instant, 1d, 2h ago.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="INSTANT", help="Before then.")] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="WHAT,...", help=f"Count the changes by {', '.join(BY)}.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=MOST, help="How many lines are shown.")] = LIMIT,
    before: Annotated[
        str | None, typer.Option("--before", metavar="PLACE", help="Go on from where an earlier page ended.")
    ] = None,
) -> None:
    """Who changed what, when and why, newest transactions first; or how often, with --by.

    With --json, one object a line; of a list the last has `next`, which --before goes on from, or null.
    """
    run = session(context)
    choice = AuditFilter(user, table, tuple(ops or ()), trace, _time(since), _time(until))
    with run.connection() as connection:
        known(connection, [] if table is None else [table])
        if by is not None:
            names = [name.strip() for name in by.split(",")]
            _show_counts(run, names, counts(connection, choice, by=names, limit=limit))
            return
        page = audit(connection, choice, limit=limit, before=before)
    if run.json:
        for entry in page.entries:
            run.emit(entry.wire())
        run.emit({"next": page.next})
        return
    _show(run, page.entries)
    if page.next is not None:
        run.note(f"there are more: --before {page.next}, or a greater --limit")
    elif not page.entries:
        run.note(_NOTHING)


def _time(value: str | None) -> datetime | None:
    return None if value is None else instant(value)


def _show(run: CommandSession, entries: tuple[Audited, ...]) -> None:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("at", "table", "op", "key", "columns", "who", "why"):
        grid.add_column(name, overflow="fold")
    for entry in entries:
        why = " · ".join(word for word in (entry.function_name, short(entry.trace_id)) if word)
        columns = ", ".join(entry.changed_columns)
        grid.add_row(
            moment(entry.at),
            shown(entry.table.removeprefix("public.")),
            entry.op.name,
            cut(shown(entry.key or "*"), _WIDTH),
            cut(shown(columns), _WIDTH),
            shown(entry.who),
            shown(why),
        )
    run.show(grid)


def _show_counts(run: CommandSession, names: list[str], found: list[AuditCount]) -> None:
    if run.json:
        for count in found:
            run.emit(count.wire())
        return
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        grid.add_column(name)
    for name in ("changes", "first", "last"):
        grid.add_column(name, justify="right")
    for count in found:
        words = [
            moment(value) if isinstance(value, datetime) else shown(value).removeprefix("public.") if value else ABSENT
            for value in count.by.values()
        ]
        grid.add_row(*words, f"{count.changes:,}", moment(count.first), moment(count.last))
    run.show(grid)
    if not found:
        run.note(_NOTHING)
