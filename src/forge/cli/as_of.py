"""`forge as-of`: tables as of an instant."""

import csv
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from forge.change import UNAVAILABLE, text
from forge.cli.session import CommandSession, session
from forge.cli.tables import known
from forge.history.asof import at_instant
from forge.history.instants import Gap, instant_or_now
from forge.history.tracked import key_of
from forge.terminal import cut, shown, value_text
from forge.wire import encode_row

SHOWN: Final = 50
_WIDTH: Final = 60


def register(app: typer.Typer) -> None:
    app.command(
        "as-of",
        epilog="Examples:\n\nforge as-of orders --at '2026-11-10 09:00+00'\n\n"
        "forge as-of orders --at '1h ago' --where 'customer_id = 7'\n\nforge as-of orders --at 1d --key 4711 --json\n\n"
        "forge as-of orders items --at 1d --json   (one instant; each line names its table)\n\n"
        "forge as-of orders --at 1d --csv > orders.csv",
    )(as_of)


def as_of(
    context: typer.Context,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="The tables: orders, sales.orders.")],
    at: Annotated[
        str, typer.Option("--at", metavar="INSTANT", help="2026-11-10T09:00Z, '2026-11-10 09:00+00', 1h ago, now.")
    ],
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only rows that satisfy a condition of PostgreSQL's.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help='One row: 4711, a=1,b=2 or {"a": 1, "b": 2}.')
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many rows people are shown.")] = SHOWN,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV; what is not known is empty.")] = False,
) -> None:
    """Rows as they were at an instant, in the columns that the table had then.

    As of an instant means the last recorded one at or before it; they are recorded about every second. Standard error
    says which one that is and how many changes lie between; with --json, the last line of each table does.
    As of now, or after the newest recorded instant, is answered from the table itself. Several tables are of one and
    the same instant.
    """
    run = session(context)
    if len(tables) > 1 and (key is not None or where is not None or as_csv):
        raise typer.BadParameter("--key, --where and --csv are for one table")
    if key is not None and where is not None:
        raise typer.BadParameter("--key names one row; leave out --where")
    if as_csv and run.json:
        raise typer.BadParameter("give --csv or --json, not both")
    moment = instant_or_now(at)
    with run.connection() as connection:
        known(connection, tables)
        with at_instant(connection, tables, moment) as then:
            for name, past in then.items():
                columns = [column.name for column in past.columns]
                if key is None:
                    rows = past.rows(where)
                else:
                    row = past.row(key_of(key))
                    rows = iter([] if row is None else [row])
                if as_csv:
                    write_csv(columns, rows)
                else:
                    show_rows(run, columns, rows, limit=limit, table=name if len(tables) > 1 else None)
                show_gap(run, past.name, past.gap)


def show_gap(run: CommandSession, table: str, gap: Gap) -> None:
    """The instant of an answer and how far it is from the one asked for: on standard error, or as a line of JSON."""
    if run.json:
        run.emit({"as_of": {"table": table, **gap.wire()}})
    else:
        run.err.print(f"{shown(table)} {gap}", style="dim", soft_wrap=True, highlight=False)


def show_rows(
    run: CommandSession, columns: Sequence[str], rows: Iterator[dict[str, Any]], *, limit: int, table: str | None = None
) -> None:
    """A table of at most `limit` rows for people; all of them, one JSON object a line, with --json."""
    if run.json:
        for row in rows:
            coded = encode_row(row)
            run.emit(coded if table is None else {"table": table, "row": coded})
        return
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        grid.add_column(shown(name), overflow="fold")
    for row in islice(rows, limit):
        grid.add_row(*(_cell(row[name]) for name in columns))
    run.show(grid)
    if next(rows, None) is not None:
        run.note(f"the first {limit} rows; --limit shows more, --json or --csv all")


def _cell(value: Any) -> str:
    return "(unknown)" if value is UNAVAILABLE else cut(value_text(value), _WIDTH)


def write_csv(columns: Sequence[str], rows: Iterator[dict[str, Any]]) -> None:
    """Lines of CSV, the first with the columns' names."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(columns)
    for row in rows:
        out.writerow("" if row[name] is None or row[name] is UNAVAILABLE else text(row[name]) for name in columns)
