"""`forge trim`: run one round of maintenance immediately: create partitions in advance, drop days past retention."""

from datetime import UTC, timedelta
from typing import Annotated

import msgspec
import typer

from forge.changelog import partitions, unread
from forge.changelog.maintenance import MaintenanceReport, Policy, run_once
from forge.changelog.retention import doomed
from forge.cli.session import CommandSession, session
from forge.config import days as parse_days
from forge.doctor.finding import count
from forge.errors import ServerError

_REASONS = {"retention": "past retention", "size": "over the size limit", "begun": "half gone already"}


def register(app: typer.Typer) -> None:
    app.command(
        "trim", epilog="Examples:\n\nforge trim --dry-run\n\nforge trim --older-than 7d\n\nforge trim   (from cron)"
    )(trim)


def trim(
    context: typer.Context,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="DAYS", help="30d, 2w; retention_days unless given.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
) -> None:
    """Drop the days of the log that are past retention, and make the partitions ahead."""
    run = session(context)
    keep = run.config.retention_days if older_than is None else parse_days(older_than)
    if keep is None or keep < 1:
        raise typer.BadParameter(f"--older-than cannot be {older_than!r}: give whole days, such as 30d or 2w")
    policy = Policy(retention_days=keep, size_limit=run.config.log_size_limit, hold_days=run.config.hold_days)
    if dry_run:
        _foretell(run, policy)
        return
    with run.database() as database, run.progress() as bar:
        bar.step("trimming the log", 0)
        report = run_once(database.url, policy)
    if report.busy and older_than is not None:
        raise ServerError(
            "another process maintains this log, by its own retention; nothing was done",
            fix="set retention_days where it runs, or stop it and try again",
        )
    if run.json:
        run.emit(msgspec.to_builtins(report))
        return
    _tell(run, report)


def _foretell(run: CommandSession, policy: Policy) -> None:
    with run.connection() as connection:
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        begun = partitions.detaching(connection) + partitions.detached(connection)
        now = row[0].astimezone(UTC)
        past = doomed(partitions.sizes(connection), now, policy)
        first_kept = now.date() - timedelta(days=policy.retention_days)
        held = unread.hold(past, unread.unread(connection, past), first_kept, policy.hold_days)
        going = dict.fromkeys(begun, "begun") | {day: why for day, why in past.items() if day not in held.kept}
    names = {partitions.partition_name(day): reason for day, reason in going.items()}
    spared = {partitions.partition_name(day): who for day, who in held.kept.items()}
    if run.json:
        run.emit({"would_drop": list(names), "reasons": names, "held_for": spared})
    elif names:
        listed = ", ".join(f"{name} ({_REASONS[reason]})" for name, reason in names.items())
        run.note(f"{count(len(names), 'day')} would go: {listed}")
    else:
        run.done(f"nothing would go (retention: {count(policy.retention_days, 'day')})")
    for name, who in () if run.json else spared.items():
        run.note(f"{name} is held: {', '.join(who)} has not read it")


def _tell(run: CommandSession, report: MaintenanceReport) -> None:
    if report.busy:
        run.note("another process maintains this log; nothing was done")
        return
    dropped = f"{count(len(report.dropped), 'day')} dropped ({count(report.trimmed_rows, 'change')})"
    run.done(dropped if report.dropped or report.trimmed_rows else "nothing to drop")
    if report.made:
        run.done(f"{count(len(report.made), 'partition')} made, up to {report.made[-1]}")
    if report.waiting:
        run.note(f"still in use, to be dropped next time: {', '.join(report.waiting)}")
    for problem in report.problems:
        run.note(problem)
