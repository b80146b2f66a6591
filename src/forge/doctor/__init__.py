"""Diagnose a live installation: take a URL, return findings with their fixes.

Checks change nothing. Every check is a small function of one `Case`; it yields findings, and at most one if all is
well. A check without the necessary permission yields a finding, never an exception.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import psycopg

from forge.doctor import clock, consumers, installation, locks, log, outbox, pooler, server, tracking, transactions
from forge.doctor.finding import Case, Finding, Level, problem, warning
from forge.errors import ForgeError
from forge.postgres.connection import connect, translate

__all__ = ["Case", "Finding", "Level", "examine", "healthy"]

Check = Callable[[Case], Iterable[Finding]]

ANYWHERE: Final[tuple[Check, ...]] = (server.version, server.standby)
ON_A_PRIMARY: Final[tuple[Check, ...]] = (
    server.durability,
    server.wal_level,
    server.timeouts,
    server.connections,
    server.notification_queue,
    server.two_phase,
    transactions.long_transactions,
    transactions.prepared_transactions,
    pooler.pooler,
    installation.installation,
)
WHERE_INSTALLED: Final[tuple[Check, ...]] = (
    installation.event_triggers,
    installation.identity,
    installation.grants,
    tracking.tables,
    tracking.triggers,
    tracking.partitions,
    tracking.functions,
    tracking.keys,
    tracking.unlogged,
    tracking.replica_role,
    tracking.definitions,
    tracking.failures,
    log.growth,
    log.overflow,
    log.partitions_ahead,
    log.retention,
    log.maintenance,
    locks.strangers,
    consumers.consumers,
    outbox.outbox,
    clock.clock,
)


def examine(
    url: str,
    *,
    retention_days: int = 30,
    log_size_limit: int | None = None,
    hold_days: int = 7,
    patience: float = 300.0,
    unreachable: Callable[[ForgeError], str | None] = lambda _: None,
) -> Iterator[Finding]:
    """Return findings in the order of the checks. Checks that an earlier problem makes meaningless are skipped.

    A caller that knows the origin of the URL can pass the fix for an unreachable server as `unreachable`.
    """
    try:
        connection = connect(url)
    except ForgeError as error:
        yield problem("server", str(error), unreachable(error) or error.fix)
        return
    with connection:
        connection.execute("SET statement_timeout = '30s'; SET lock_timeout = '2s'; SET TimeZone = 'UTC'")
        case = Case(url, connection, retention_days, log_size_limit, patience, hold_days)
        for group in (ANYWHERE, ON_A_PRIMARY, WHERE_INSTALLED):
            stop = False
            for check in group:
                for finding in _findings(check, case):
                    stop |= finding.level is Level.PROBLEM and finding.check in _FINAL
                    yield finding
            if stop:
                return


_FINAL: Final = ("version", "standby", "installation")


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether there is no problem; warnings do not count."""
    return all(finding.level is not Level.PROBLEM for finding in findings)


def _findings(check: Check, case: Case) -> list[Finding]:
    """Return the findings of a check. If it fails, return only the reason: a partial answer may mislead."""
    name = getattr(check, "__name__", "check")
    try:
        return list(check(case))
    except psycopg.Error as error:
        typed = translate(error)
        line = str(typed or error).strip().splitlines()[0]
        return [warning(name, f"could not be checked: {line}", "run forge doctor as a superuser")]
    except ForgeError as error:
        return [warning(name, f"could not be checked: {error}", error.fix)]
