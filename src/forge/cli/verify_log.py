"""`forge verify-log`: detect rows of the log that were changed, removed or inserted after they were sealed."""

from datetime import date
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from forge.cli.session import CommandSession, session
from forge.doctor.finding import count
from forge.history import chain
from forge.terminal import shown


def register(app: typer.Typer) -> None:
    app.command(
        "verify-log",
        epilog="Examples:\n\nforge verify-log --start   (seal the log from now on)\n\n"
        "forge verify-log --heads --json > heads.json   (keep it elsewhere)\n\n"
        "forge verify-log --head 5c0fb1…\n\nforge verify-log --day 2026-11-10",
    )(verify_log)


def verify_log(
    context: typer.Context,
    day: Annotated[str | None, typer.Option("--day", metavar="DAY", help="Compare only this day's rows (UTC).")] = None,
    head: Annotated[
        str | None, typer.Option("--head", metavar="HEX", help="A head that was kept elsewhere: it must be there.")
    ] = None,
    heads: Annotated[
        bool, typer.Option("--heads", help="Print the newest head of each day, and verify nothing.")
    ] = False,
    start: Annotated[bool, typer.Option("--start", help="Seal the log: maintenance does it from now on.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Seal no more; the seals that are there stay.")] = False,
) -> None:
    """Compute the chain of seals over the log again, and find every row that is not as it was sealed.

    Exits with 1 when there is one.
    """
    here = session(context)
    if heads + start + stop + (day is not None or head is not None) > 1:
        raise typer.BadParameter("--heads, --start, --stop and verifying (--day, --head) are each by themselves")
    chosen = None if day is None else _day(day)
    with here.connection() as connection:
        if start or stop:
            (chain.start if start else chain.stop)(connection)
            if here.json:
                here.emit({"enabled": start})
            else:
                here.done("the log is sealed from now on, by maintenance" if start else "no further seals are made")
            return
        if heads:
            _show_heads(here, chain.heads(connection))
            return
        with here.progress() as bar:
            bar.step("verifying the log", 0)
            found = chain.verify(connection, day=chosen, head=head.lower() if head else None)
    _tell(here, found)
    if found.broken:
        raise typer.Exit(1)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"--day cannot be {text!r}: write it as 2026-11-10") from None


def _show_heads(here: CommandSession, heads: list[chain.SealHead]) -> None:
    if here.json:
        here.emit(heads)
        return
    table = Table(box=None, pad_edge=False)
    for name in ("day", "seal", "rows", "head"):
        table.add_column(name)
    for head in heads:
        table.add_row(
            "overflow" if head.day == chain.OVERFLOW else str(head.day), str(head.seal), str(head.rows), head.head
        )
    here.show(table)


def _tell(here: CommandSession, found: chain.Verified) -> None:
    if here.json:
        here.emit(found)
        return
    for finding in found.broken:
        here.out.print(Text.assemble(("✗ ", "red"), shown(str(finding))), soft_wrap=True)
    if not found.broken:
        here.done(
            f"{count(found.rows, 'row')} as sealed in {count(found.seals, 'seal')}"
            + (f", {found.redacted:,} of them redacted" if found.redacted else "")
        )
        if found.head:
            here.show(f"head {found.head}")
    if found.dropped:
        here.note(f"{count(len(found.dropped), 'day')} dropped by retention: only heads are left")
    if found.unsealed:
        here.note(f"{count(found.unsealed, 'row')} not sealed yet" + ("" if found.enabled else ", and sealing is off"))
