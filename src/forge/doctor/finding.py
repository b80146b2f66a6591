"""Findings of checks: a level, one line with the observation, and one line with the fix."""

from enum import StrEnum

import msgspec

from forge.postgres.connection import Connection


class Level(StrEnum):
    """The severity. Only a problem makes `forge doctor` fail: changes are being lost, or may be."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One observation by the named check; all levels but `ok` and `info` have a fix."""

    check: str
    level: Level
    what: str
    fix: str | None = None
    table: str | None = None
    """The tracked table that it concerns, as SQL names it, if any."""


class Case(msgspec.Struct, frozen=True):
    """The subject of the examination, and its thresholds."""

    url: str
    connection: Connection
    retention_days: int = 30
    log_size_limit: int | None = None
    patience: float = 300.0
    """Seconds that a transaction may stay open, or maintenance may be absent, without a finding."""
    hold_days: int = 7


def ok(check: str, what: str) -> Finding:
    return Finding(check, Level.OK, what)


def info(check: str, what: str) -> Finding:
    return Finding(check, Level.INFO, what)


def warning(check: str, what: str, fix: str) -> Finding:
    return Finding(check, Level.WARNING, what, fix)


def problem(check: str, what: str, fix: str, table: str | None = None) -> Finding:
    return Finding(check, Level.PROBLEM, what, fix, table)


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "day"), count(2, "day"), count(84_112, "change")
    ('1 day', '2 days', '84,112 changes')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def value(case: Case, query: str, *parameters: object) -> object:
    """Return the first column of the first row, None when there is no row."""
    row = case.connection.execute(query.encode(), parameters or None).fetchone()
    return None if row is None else row[0]


def setting(case: Case, name: str) -> str | None:
    """Return a setting as a new session of this role in this database gets it; None where the server has none."""
    found = value(case, "SELECT reset_val FROM pg_settings WHERE name = %s", name)
    return None if found is None else str(found)
