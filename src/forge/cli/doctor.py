"""`forge doctor`: problems of this installation, with their fixes."""

from collections.abc import Iterator

import msgspec
import typer
from rich.text import Text

from forge.capture.log import CAPABILITIES
from forge.cli.feeds import Url, chosen
from forge.cli.session import CommandSession, session
from forge.database import connection_fix
from forge.doctor import Finding, Level, examine, healthy
from forge.doctor.finding import count
from forge.doctor.sources import examine_source, retention
from forge.terminal import shown

_SIGNS = {
    Level.OK: ("✓", "green"),
    Level.INFO: ("·", "dim"),
    Level.WARNING: ("!", "yellow"),
    Level.PROBLEM: ("✗", "red"),
}


def register(app: typer.Typer) -> None:
    app.command(
        "doctor",
        epilog="Exit code 1 when anything is marked ✗, 0 with warnings only.\n\n"
        "Examples:\n\nforge doctor\n\nforge doctor postgresql://db/shop --json\n\n"
        "forge doctor 'postgresql://db/shop?feed=wal'\n\nforge doctor mysql://root@db/shop",
    )(doctor)


def doctor(context: typer.Context, url: Url = None) -> None:
    """Look for every known trap in the live set-up, and say the fix of each. Changes nothing."""
    run = session(context)
    url, log = chosen(run, url)
    findings = []
    for finding in _log_findings(run, url) if log else examine_source(url or ""):
        findings.append(finding)
        if not run.json:
            _print(run, finding)
    if run.json:
        run.emit({"healthy": healthy(findings), "findings": [msgspec.to_builtins(finding) for finding in findings]})
    elif len(findings) > 1:
        _summary(run, findings)
    raise typer.Exit(0 if healthy(findings) else 1)


def _log_findings(run: CommandSession, url: str | None) -> Iterator[Finding]:
    run.use(url)
    with run.database() as database:
        installed = False
        for finding in examine(
            database.url,
            retention_days=run.config.retention_days,
            log_size_limit=run.config.log_size_limit,
            hold_days=run.config.hold_days,
            unreachable=lambda error: connection_fix(error, run.config),
        ):
            installed |= finding.check == "installation" and finding.level is Level.OK
            yield finding
        if installed:
            yield retention("log", CAPABILITIES)


def _print(run: CommandSession, finding: Finding) -> None:
    sign, style = _SIGNS[finding.level]
    run.show(Text.assemble((f"{sign} ", style), shown(finding.what)))
    if finding.fix:
        run.show(Text.assemble("  ", ("fix: ", "bold"), shown(finding.fix)))


def _summary(run: CommandSession, findings: list[Finding]) -> None:
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    if problems or warnings:
        run.show(Text(f"{count(problems, 'problem')}, {count(warnings, 'warning')}", "bold"))
    else:
        run.done("all is well")
