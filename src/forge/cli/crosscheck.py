"""`forge crosscheck`: compare the trigger log with the WAL, over a window under live traffic."""

import asyncio
import re
import traceback
from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple

import msgspec
import psycopg
import typer

from forge import wire
from forge.capture import Filter
from forge.capture.crosscheck import CrosscheckReport, DifferenceKind, FeedDifference, Window, open_window
from forge.capture.wal.position import lsn_text
from forge.cli.feeds import Tables
from forge.cli.session import CommandSession, session
from forge.config import seconds
from forge.doctor.finding import Case, Finding, Level, count
from forge.doctor.tracking import unlogged_writes
from forge.errors import ForgeError
from forge.postgres.connection import connect
from forge.terminal import shown

QUIET: Final = 2.0
"""Seconds without a change after which --until-quiet ends."""
FAILED: Final = 2
_GLANCE: Final = 0.25
_LONGEST: Final = 60
_UNSEEN: Final = (
    "what left no trace cannot be told: a session that set session_replication_role itself, triggers that were disabled"
    " for a while, entries removed from the log; to look further, see the transaction in the server's log, and keep the"
    " output of forge crosscheck --json and forge doctor --json for a report"
)
_HAS_IT: Final = {DifferenceKind.MISSING_IN_LOG: "the WAL", DifferenceKind.MISSING_IN_WAL: "the log"}
_WORDS: Final = {
    DifferenceKind.MISSING_IN_LOG: "missing in the log",
    DifferenceKind.MISSING_IN_WAL: "missing in the WAL",
    DifferenceKind.DIFFERS: "differs",
    DifferenceKind.ORDER: "in another order",
}


class Causes(NamedTuple):
    """What was looked at to explain changes that the log lacks."""

    tables: tuple[str, ...] = ()
    found: tuple[Finding, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def lines(self) -> Iterator[str]:
        """What is known of the cause, and how to look further."""
        if not self.tables:
            return
        for finding in self.found:
            yield f"a possible cause, found just now: {finding.what}; fix: {finding.fix}"
        if not self.found:
            checked = "" if self.unchecked else "their triggers and trigger functions are in place and unaltered now, "
            yield (
                f"why the log lacks changes of {', '.join(self.tables)} is not known: {checked}no subscription writes"
                " to them unlogged, and no setting of a role or database turns their triggers off"
            )
        for what in self.unchecked:
            yield f"not checked: {what}"
        yield _UNSEEN


def register(app: typer.Typer) -> None:
    app.command(
        "crosscheck",
        epilog="Examples:\n\nforge crosscheck --for 30s\n\nforge crosscheck --until-quiet --table orders\n\n"
        "forge crosscheck --slot forge_shop --json",
    )(crosscheck)


def crosscheck(
    context: typer.Context,
    tables: Tables = None,
    window: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long: 30s unless given; 500ms, 10s, 5m.")
    ] = None,
    until_quiet: Annotated[
        bool, typer.Option("--until-quiet", help="Until no change has come for two seconds.")
    ] = False,
    slot: Annotated[
        str | None, typer.Option("--slot", metavar="NAME", help="Read this slot; else a temporary one.")
    ] = None,
    publication: Annotated[
        str | None, typer.Option("--publication", metavar="NAME", help="Use this one; else the slot's, or a new one.")
    ] = None,
) -> None:
    """Compare what the trigger log and the WAL saw in a window: every difference is listed.

    Exact while traffic goes on. Exits with 0 when they are equal, 1 when they differ, 2 when it cannot be told.
    """
    run = session(context)
    if window is not None and until_quiet:
        raise typer.BadParameter("give --for or --until-quiet")
    length = seconds(window or "30s")
    if length is None:
        raise typer.BadParameter(f"--for cannot be {window!r}: write it as 500ms, 10s, 5m or 1h")
    try:
        with run.database() as database:
            check = _check(
                run, database.url, Filter(tuple(tables or ())), None if until_quiet else length, slot, publication
            )
            report = asyncio.run(check)
            causes = _causes(database.url, report)
    except (ForgeError, psycopg.Error, OSError) as error:
        from forge.cli.command import explain

        if run.debug:
            traceback.print_exc()
        explain(error)
        raise typer.Exit(FAILED) from error
    _print(run, report, causes)
    raise typer.Exit(0 if report.equal else 1)


async def _check(
    run: CommandSession, url: str, wanted: Filter, length: float | None, slot: str | None, publication: str | None
) -> CrosscheckReport:
    with run.progress() as bar:
        bar.step("opening the window: the slot waits for the transactions that run", 0)
        async with open_window(url, wanted, slot=slot, publication=publication) as window:
            loop = asyncio.get_running_loop()
            began = loop.time()
            while not _over(window, loop.time() - began, length):
                bar.step(f"{count(window.changes, 'change')} in the WAL", 0)
                left = QUIET if length is None else began + length - loop.time()
                await window.during(max(0.0, min(_GLANCE, left)))
            bar.step("comparing", 0)
            return await window.close()


def _over(window: Window, passed: float, length: float | None) -> bool:
    if length is not None:
        return passed >= length
    return asyncio.get_running_loop().time() - window.quiet_since >= QUIET


def _print(run: CommandSession, report: CrosscheckReport, causes: Causes) -> None:
    if run.json:
        found = msgspec.to_builtins(msgspec.structs.replace(report, differences=[]))
        run.emit(
            {
                "equal": report.equal,
                **found,
                "differences": [_told(each) for each in report.differences],
                "causes": [msgspec.to_builtins(finding) for finding in causes.found],
            }
        )
        return
    for each in report.differences:
        run.note(_line(each))
    if (more := report.differences_found - len(report.differences)) > 0:
        run.note(f"and {more:,} more")
    for table, why in report.left_out.items():
        run.note(f"{table} is left out: {why}")
    if report.invalidated:
        run.note(f"{count(report.invalidated, 'change')} told by the log as tables to be read again")
    seen = f"{count(report.transactions, 'transaction')}   {count(report.changes, 'change')}"
    if report.equal:
        run.done(f"log = WAL   {count(len(report.tables), 'table')}   {seen}")
        return
    run.note(
        f"{count(report.differences_found, 'difference')} in {seen}: {report.missing_in_log:,} missing in the log,"
        f" {report.missing_in_wal:,} missing in the WAL, {report.differing:,} with other values,"
        f" {report.reordered:,} in another order"
    )
    for line in causes.lines:
        run.note(line)


def _causes(url: str, report: CrosscheckReport) -> Causes:
    """Look for what may have kept changes out of the log; nothing is named that was not seen."""
    tables = tuple(sorted({each.table for each in report.differences if each.kind is DifferenceKind.MISSING_IN_LOG}))
    if not tables:
        return Causes()
    with connect(url) as connection:
        findings = list(unlogged_writes(Case(url, connection), tables))
    return Causes(
        tables,
        tuple(finding for finding in findings if finding.level is Level.PROBLEM),
        tuple(finding.what for finding in findings if finding.level is Level.INFO),
    )


def _line(each: FeedDifference) -> str:
    found = f"{_WORDS[each.kind]}: {each.op.value} of {each.table} {each.key} in transaction {each.transaction}"
    if each.kind in _HAS_IT:
        found += f"; {_HAS_IT[each.kind]} has it at {_place(each.position)}"
    for value in each.values:
        found += f"; {value.image} {value.column}: {_short(value.log)} in the log, {_short(value.wal)} in the WAL"
    return found


def _place(position: str) -> str:
    """A position in the WAL as PostgreSQL writes it; one in the log as it is.

    >>> _place("000000000191a668.000000000191a618"), _place("118.120")
    ('0/191A618', '118.120')
    """
    match = re.match(r"[0-9a-f]{16}\.([0-9a-f]{16})", position)
    return position if match is None else lsn_text(int(match[1], 16))


def _short(value: object) -> str:
    """
    >>> _short("a" * 100)[-5:], _short(None), _short(7)
    ('aa...', 'None', '7')
    """
    words = shown(repr(value))
    return words if len(words) <= _LONGEST else words[: _LONGEST - 3] + "..."


def _told(each: FeedDifference) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(msgspec.structs.replace(each, values=()))
    values = [
        {**msgspec.structs.asdict(value), "log": wire.encode_value(value.log), "wal": wire.encode_value(value.wal)}
        for value in each.values
    ]
    return {**found, "values": values}
