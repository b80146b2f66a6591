"""`forge enable`: track tables.

Each table is enabled in its own transaction, so that no lock is held for long. All named tables are checked before the
first is changed: a wrong name, column or kind of table changes nothing. With --all, tables that cannot be tracked are
skipped and named. The tables of a SQLite file are enabled in one transaction.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import typer

from forge.capture import sqlite
from forge.cli.session import CommandSession, session
from forge.cli.tables import change, find
from forge.config import database_kind, nearest
from forge.doctor.finding import count
from forge.errors import TrackingError
from forge.postgres.connection import Connection, typed_errors
from forge.tracking.settings import EXCLUDED, LAST, MASKED

_ALL = """
    SELECT format('%I.%I', n.nspname, c.relname)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'forge') AND n.nspname NOT LIKE 'pg\\_%'
      AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                      AND d.deptype = 'e')
      AND NOT EXISTS (SELECT FROM forge.tracked_relation r WHERE r.table_oid = c.oid)
    ORDER BY 1
"""
_SETUP = f"""
    SELECT c.oid::regclass::text,
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
           {EXCLUDED}, {MASKED}, k.replica, k.on_failure
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace {LAST} WHERE c.oid = forge.find_table(%s)
"""
_CHECK = "SELECT forge.check_trackable(%s::regclass, %s, %s)"
_ENABLE = "SELECT public.forge_enable_reactivity(%s, exclude => %s, mask => %s, replica => %s, on_failure => %s)"


class EnableTarget(NamedTuple):
    """A table to be tracked, as it was asked for, as it is, and how it is tracked so far, or was at last."""

    asked: str
    name: str
    columns: list[str]
    excluded: list[str] | None
    masked: list[str] | None
    replica: bool | None
    on_failure: str | None


class TrackingSettings(NamedTuple):
    """How tables are to be tracked; what is None stays as it is."""

    exclude: list[str] | None
    mask: list[str] | None
    replica: bool | None
    on_failure: str | None


class Tracking(NamedTuple):
    """How one table is to be tracked: what forge_enable_reactivity takes."""

    table: str
    exclude: list[str]
    mask: list[str]
    replica: bool
    on_failure: str

    def check(self) -> tuple[str, list[str], list[str]]:
        """What forge.check_trackable takes."""
        return self.table, self.exclude, self.mask


def register(app: typer.Typer) -> None:
    app.command(
        "enable",
        epilog="Examples:\n\nforge enable orders sales.invoices\n\n"
        "forge enable orders customers --exclude customers.password_hash --mask email\n\n"
        "forge enable --all\n\nforge enable orders --database-url sqlite:///shop.db",
    )(enable)


def enable(
    context: typer.Context,
    tables: Annotated[list[str] | None, typer.Argument(metavar="TABLE…", help="orders, sales.orders")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every table that can be tracked and is not yet.")] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="[TABLE.]COLUMN", help="Never log this column's values. May be repeated."),
    ] = None,
    mask: Annotated[
        list[str] | None, typer.Option(metavar="[TABLE.]COLUMN", help="Log *** for this column. May be repeated.")
    ] = None,
    replica: Annotated[
        bool | None,
        typer.Option("--replica/--no-replica", help="Log what replication and the replica role write, too."),
    ] = None,
    on_failure: Annotated[
        Literal["fail", "invalidate"] | None,
        typer.Option(help="If a change cannot be logged: fail the write, or log that the table must be read again."),
    ] = None,
) -> None:
    """Track tables: from now on every change of theirs is in the log. What is not said stays as it was."""
    if every == bool(tables):
        raise typer.BadParameter("name the tables, or give --all (one of the two)")
    run = session(context)
    settings = TrackingSettings(exclude, mask, replica, on_failure)
    url = sqlite_file(run)
    if url is not None:
        enabled, skipped = _enable_in_file(url, tables, settings), dict[str, str]()
    else:
        with run.connection() as connection:
            if every:
                enabled, skipped = _enable_all(run, connection, settings)
            else:
                enabled, skipped = _enable_named(run, connection, tables or [], settings), {}
    if run.json:
        run.emit({"enabled": enabled, "skipped": skipped})
        return
    for name, reason in skipped.items():
        run.note(f"{name} is not tracked: {reason}")
    if enabled:
        run.done(f"{count(len(enabled), 'table')} tracked: {', '.join(enabled)}")
        run.hint(f"forge tail {url}" if url is not None and "database_url" in run.given() else "forge tail")
    elif not skipped:
        run.done("every table is tracked already")


def sqlite_file(run: CommandSession) -> str | None:
    """The URL of a SQLite file, if the database is one."""
    url = run.config.database_url
    return url if url is not None and database_kind(url) == "SQLite" else None


def _enable_in_file(url: str, tables: Sequence[str] | None, settings: TrackingSettings) -> list[str]:
    """The tables of a SQLite file that are tracked now; those that were already are named too when they were asked."""
    if settings.replica is not None or settings.on_failure is not None:
        raise typer.BadParameter("--replica and --on-failure are for PostgreSQL")
    changed = sqlite.enable(url, tables or (), every=not tables, exclude=settings.exclude, mask=settings.mask)
    return list(dict.fromkeys([*(tables or ()), *changed])) if tables else changed


def _enable_named(
    run: CommandSession, connection: Connection, tables: Sequence[str], settings: TrackingSettings
) -> list[str]:
    wanted = _wanted(connection, tables, settings)
    for tracking in wanted:
        with typed_errors():
            connection.execute(_CHECK, tracking.check())
    enabled: list[str] = []
    with run.progress(len(wanted)) as bar:
        for tracking in wanted:
            bar.step(tracking.table)
            _track(connection, tracking, done=enabled)
            enabled.append(tracking.table)
    return list(dict.fromkeys(enabled))


def _enable_all(
    run: CommandSession, connection: Connection, settings: TrackingSettings
) -> tuple[list[str], dict[str, str]]:
    enabled, skipped = [], {}
    wanted = _wanted(connection, [name for (name,) in connection.execute(_ALL).fetchall()], settings)
    with run.progress(len(wanted)) as bar:
        for tracking in wanted:
            bar.step(tracking.table)
            try:
                _track(connection, tracking)
                enabled.append(tracking.table)
            except TrackingError as error:
                skipped[tracking.table] = f"{error} (fix: {error.fix})"
    return enabled, skipped


def _wanted(connection: Connection, tables: Sequence[str], settings: TrackingSettings) -> list[Tracking]:
    """How each table is to be tracked, what was not said being as it is so far."""
    targets = [EnableTarget(name, *row) for name, row in zip(tables, find(connection, tables, _SETUP), strict=True)]
    excluded = _columns("exclude", settings.exclude, targets)
    masked = _columns("mask", settings.mask, targets)
    return [
        Tracking(
            target.name,
            (target.excluded or []) if settings.exclude is None else excluded[target.name],
            (target.masked or []) if settings.mask is None else masked[target.name],
            bool(target.replica) if settings.replica is None else settings.replica,
            settings.on_failure or target.on_failure or "fail",
        )
        for target in targets
    ]


def _track(connection: Connection, tracking: Tracking, *, done: Sequence[str] = ()) -> None:
    change(connection, tracking.table, lambda: connection.execute(_ENABLE, tracking), done=done)


def _columns(flag: str, asked: Sequence[str] | None, targets: Sequence[EnableTarget]) -> dict[str, list[str]]:
    """For each table the columns that are meant: TABLE.COLUMN is one table's, COLUMN that of each that has it."""
    found: dict[str, list[str]] = {target.name: [] for target in targets}
    for word in asked or ():
        table, _, column = word.rpartition(".")
        meant = [
            (target, name)
            for target in targets
            for name in {word, column}
            if name in target.columns and (name == word or table in (target.asked, target.name))
        ]
        if not meant:
            columns = [name for target in targets for name in target.columns]
            close = nearest(column, columns)
            raise TrackingError(
                f"no table here has a column {word}",
                fix=f"did you mean --{flag} {close}?" if close else f"check --{flag}",
            )
        for target, name in meant:
            found[target.name].append(name)
    return found
