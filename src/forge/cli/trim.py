"""`forge trim`: one round of maintenance, now: partitions ahead are made, days past retention dropped."""

from typing import Annotated

import msgspec
import typer

from forge.changelog.maintenance import Policy, Report, run_once
from forge.changelog.partitions import attached, partition_name
from forge.cli.session import Session, session
from forge.config import days as parse_days
from forge.errors import ServerError


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
    if dry_run:
        _foretell(run, keep)
        return
    with run.database() as database, run.progress() as bar:
        bar.step("trimming the log", 0)
        report = run_once(database.url, Policy(retention_days=keep, size_limit=run.config.log_size_limit))
    if report.busy and older_than is not None:
        raise ServerError(
            "another process maintains this log, by its own retention; nothing was done",
            fix="set retention_days where it runs, or stop it and try again",
        )
    if run.json:
        run.emit(msgspec.to_builtins(report))
        return
    _tell(run, report)


def _foretell(run: Session, keep: int) -> None:
    with run.connection() as connection:
        row = connection.execute("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date - %s", (keep,)).fetchone()
        assert row is not None
        doomed = [partition_name(day) for day in attached(connection) if day < row[0]]
    if run.json:
        run.emit({"would_drop": doomed})
    elif doomed:
        run.note(f"{len(doomed)} days would go: {', '.join(doomed)}")
    else:
        run.done(f"nothing is older than {keep} days")


def _tell(run: Session, report: Report) -> None:
    if report.busy:
        run.note("another process maintains this log; nothing was done")
        return
    dropped = f"{len(report.dropped)} days dropped ({report.trimmed_rows} changes)"
    run.done(dropped if report.dropped or report.trimmed_rows else "nothing to drop")
    if report.made:
        run.done(f"{len(report.made)} partitions made, up to {report.made[-1]}")
    if report.waiting:
        run.note(f"still in use, to be dropped next time: {', '.join(report.waiting)}")
    for problem in report.problems:
        run.note(problem)
