"""`forge history`: every change of one row, newest first; or the row as of an instant."""

from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from forge.change import Op, text
from forge.cli.as_of import show_gap, show_rows
from forge.cli.session import CommandSession, session
from forge.cli.tables import known
from forge.history.asof import row_as_of
from forge.history.diff import ColumnDifference
from forge.history.instants import instant_or_now, moment
from forge.history.timeline import LIMIT, MOST, TimelineEntry, timeline
from forge.history.tracked import key_of
from forge.terminal import ABSENT, HIDDEN, details, shown, value_text, who

_STYLES: Final = {"INSERT": "green", "UPDATE": "yellow", "KEY": "yellow", "DELETE": "red", "TRUNCATE": "bold red"}
_OP_WIDTH: Final = 8


def register(app: typer.Typer) -> None:
    app.command(
        "history",
        epilog="Examples:\n\nforge history orders 4711\n\nforge history orders 4711 --diff --limit 5\n\n"
        "forge history orders 4711 --at '2026-11-10 09:00+00'\n\nforge history line region=eu,number=7 --json",
    )(history)


def history(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table: orders, sales.orders.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help='The row: 4711, a=1,b=2 or {"a": 1, "b": 2}.')],
    at: Annotated[
        str | None, typer.Option("--at", metavar="INSTANT", help="Show the row as it was then: an instant, 1h ago.")
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show each column before and after.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many changes are shown.")] = LIMIT,
    before: Annotated[
        str | None, typer.Option("--before", metavar="PLACE", help="Go on from where an earlier page ended.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Go on with the old key where the key was changed.")
    ] = True,
) -> None:
    """Every change of a row, newest first: who, when, why, and what it changed.

    With --json, one object a line; the last has `next`, which --before goes on from, or null. With --at, it has
    `as_of`: the instants asked and answered, and how many changes of the table lie between.
    """
    run = session(context)
    given = key_of(key)
    with run.connection() as connection:
        known(connection, [table])
        if at is not None:
            past = row_as_of(connection, table, given, instant_or_now(at))
            show_rows(run, [column.name for column in past.columns], iter(past.rows), limit=1)
            show_gap(run, past.table, past.gap)
            if not past.rows and not run.json:
                run.note(f"there was no such row at {moment(past.at)}")
            return
        left, place = limit, before
        of_the_row = False
        while True:
            page = timeline(connection, table, given, limit=min(left, MOST), before=place, follow=follow)
            for entry in page.entries:
                of_the_row |= entry.change.op is not Op.SCHEMA
                _show(run, entry, diff=diff)
            left, place = left - len(page.entries), page.next
            if not left or place is None:
                break
    if run.json:
        run.emit({"next": place})
    elif place is not None:
        run.note(f"there are more: --before {place}, or a greater --limit")
    elif not of_the_row:
        run.note("the log has no change of such a row")


def _show(run: CommandSession, entry: TimelineEntry, *, diff: bool) -> None:
    if run.json:
        run.emit(entry.wire())
        return
    line = Text(f"{moment(entry.change.at)}  ", "dim")
    line.append(f"{entry.op:<{_OP_WIDTH}}  ", _STYLES.get(entry.op, "magenta"))
    line.append(shown(_key(entry)))
    told = "" if diff and entry.diff else _told(entry)
    line.append(f"  {told}" if told else "")
    line.append(f"  {who(entry.change)}", "dim")
    run.show(line)
    if diff:
        for difference in entry.diff:
            run.show(_difference(difference))


def _key(entry: TimelineEntry) -> str:
    key = entry.change.key
    if key is None:
        return "*"
    now = ",".join(map(text, key.values()))
    if entry.was is not None:
        return f"{','.join(map(text, entry.was.values()))} → {now}"
    return now if entry.became is None else f"{now} → {','.join(map(text, entry.became.values()))}"


def _told(entry: TimelineEntry) -> str:
    if entry.redefined:
        return shown("; ".join(entry.redefined))
    if entry.was is not None:
        keys = entry.change.key or {}
        return ", ".join(
            f"{shown(one.column)}: {value_text(one.before)} → {value_text(one.after)}"
            for one in entry.diff
            if one.column not in keys
        )
    return details(entry.change)


def _difference(difference: ColumnDifference) -> Text:
    line = Text(f"    {shown(difference.column)}: ")
    if difference.hidden:
        return line.append(HIDDEN, "dim")
    before, after = (
        ABSENT if value is msgspec.UNSET else value_text(value) for value in (difference.before, difference.after)
    )
    return line.append(before, "red").append(" → ", "dim").append(after, "green")
