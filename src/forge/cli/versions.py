"""`forge versions`: changes since a version, for documents that depend on each other; and copies kept by change
queries."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from forge.backoff import Backoff
from forge.cli.arguments import add_group
from forge.cli.session import CommandSession, session
from forge.config import days, hide
from forge.doctor.finding import count
from forge.errors import ConfigError, ForgeError, ServerError
from forge.postgres.connection import Connection, connect
from forge.terminal import cut, shown
from forge.versions import access
from forge.versions.available import available as available_versions
from forge.versions.install import SQL, install, require_installed, script
from forge.versions.nouns import Deletion, Event, KeyChange, Page, Resource, encode
from forge.versions.reading import LIMIT, MOST, deletes, key_changes, stream
from forge.versions.reading import changes as changed
from forge.versions.resources import declare as declare_resource
from forge.versions.resources import resources
from forge.versions.retention import VersionPolicy
from forge.versions.retention import maintain as maintain_journals
from forge.versions.strategies import Strategy, use_strategy
from forge.versions.strategies import strategy as strategy_now
from forge.versions.sync import (
    DatabaseSource,
    FilesMirror,
    Mirror,
    SqliteMirror,
    Synced,
    SyncProgress,
    VersionsSource,
    sync,
)
from forge.versions.wire import told

_WIDTH: Final = 100
_SQLSERVER: Final = ("schema.sql", "stamps.sql", "triggers.sql", "access.sql", "retention.sql", "strategies.sql")
_SQLITE: Final = (".db", ".sqlite", ".sqlite3")


class Dialect(StrEnum):
    """Databases that the tables can be made in."""

    postgresql = "postgresql"
    sqlserver = "sqlserver"


class AnswerKind(StrEnum):
    """What is asked for."""

    changes = "changes"
    deletes = "deletes"
    keys = "keys"
    stream = "stream"


class CopyForm(StrEnum):
    """What a copy is kept in."""

    sqlite = "sqlite"
    files = "files"


_QUERIES: Final[dict[AnswerKind, Callable[..., Page[Any]]]] = {
    AnswerKind.changes: changed,
    AnswerKind.deletes: deletes,
    AnswerKind.keys: key_changes,
    AnswerKind.stream: stream,
}

Name = Annotated[
    str, typer.Argument(metavar="RESOURCE", help="project/name, or project/name/version.", show_default=False)
]
Document = Annotated[int, typer.Argument(metavar="ID", help="The document's id.", show_default=False)]
Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="Who: ada, or acme/ada of a tenant.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="versions",
        help="Change versions: what changed since a version, for documents that depend on each other.",
        epilog="Examples:\n\nforge versions init\n\nforge versions changes ed-fi/students --min 98000\n\n"
        "forge versions sync ed-fi/students --to students.db\n\n"
        "forge versions sync ed-fi/students --from https://forge.example --to students/ --follow",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    commands = (
        ("init", init, "forge versions init\n\nforge versions init --dialect sqlserver --print | sqlcmd -I -d shop"),
        (
            "declare",
            declare,
            "forge versions declare ed-fi/students\n\nforge versions declare ed-fi/plans --by-access",
        ),
        ("available", available, "forge versions available\n\nforge versions available --json"),
        (
            "changes",
            changes,
            "forge versions changes ed-fi/students\n\nforge versions changes ed-fi/students --min 98000 --max 99120\n\n"
            "forge versions changes ed-fi/students --kind stream --min 98000 --json",
        ),
        (
            "sync",
            keep_copy,
            "forge versions sync ed-fi/students --to students.db\n\n"
            "forge versions sync ed-fi/students --from https://forge.example --to students/ --follow",
        ),
        ("strategy", strategy, "forge versions strategy\n\nforge versions strategy monotonic"),
        (
            "maintain",
            maintain,
            "forge versions maintain --keep-age 30d\n\nforge versions maintain --keep-versions 1000000 --every 60",
        ),
        ("grant", grant, "forge versions grant 4711 ada"),
        ("revoke", revoke, "forge versions revoke 4711 ada"),
    )
    add_group(app, group, commands)


def init(
    context: typer.Context,
    dialect: Annotated[Dialect, typer.Option(help="The kind of database.")] = Dialect.postgresql,
    printed: Annotated[bool, typer.Option("--print", help="Print the SQL and run nothing.")] = False,
) -> None:
    """Make the tables of change versions, or bring their functions up to date. Running it twice is harmless."""
    run = session(context)
    if printed:
        sys.stdout.write(script() if dialect == Dialect.postgresql else sqlserver_script())
        return
    if dialect == Dialect.sqlserver:
        raise ConfigError(
            "Forge has no way of its own to SQL Server",
            fix="forge versions init --dialect sqlserver --print | sqlcmd -I -d DATABASE",
        )
    with run.database(create=True) as database:
        with connect(database.url) as connection:
            made = install(connection)
        at, embedded = hide(database.url), database.embedded
    if run.json:
        run.emit({"database": at, "made": made})
    else:
        where = f"the embedded database, {run.config.data / 'postgres'}" if embedded else at
        run.done(f"change versions {'are installed' if made else 'were installed already'} in {where}")
        run.hint("forge versions declare PROJECT/NAME")


def sqlserver_script() -> str:
    """All that makes the tables, procedures and triggers in an empty SQL Server database."""
    return "\n".join((SQL / "sqlserver" / name).read_text("utf-8") for name in _SQLSERVER)


def declare(
    context: typer.Context,
    resource: Name,
    by_access: Annotated[
        bool | None,
        typer.Option("--by-access/--open", help="Show each document only to those who were granted access, or to all."),
    ] = None,
) -> None:
    """Make a resource known, so that its documents can be put; declaring it again changes only who sees them."""
    run = session(context)
    with _connection(run) as connection:
        declare_resource(connection, found := Resource.parse(resource), by_access=by_access)
        closed = resources(connection)[found]
    if run.json:
        run.emit({"resource": str(found), "by_access": closed})
    else:
        run.done(f"{found} is declared, " + ("each document shown by access" if closed else "open to all"))


def available(context: typer.Context) -> None:
    """Which versions windows may begin and end with. Nothing up to the newest is still to be committed."""
    run = session(context)
    with _connection(run) as connection:
        found = available_versions(connection)
    if run.json:
        run.emit({"oldest": found.oldest, "newest": found.newest})
    else:
        run.show(Text(f"oldest  {found.oldest}\nnewest  {found.newest}"))


def changes(
    context: typer.Context,
    resource: Name,
    first: Annotated[
        int | None, typer.Option("--min", min=0, help="The window's first version; all documents, without it.")
    ] = None,
    last: Annotated[int | None, typer.Option("--max", min=0, help="The window's last; the newest, without it.")] = None,
    kind: Annotated[
        AnswerKind, typer.Option(help="Changes, deletes, changes of keys, or all as one stream.")
    ] = AnswerKind.changes,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=MOST, help="How many of them.")] = LIMIT,
    after: Annotated[
        str | None, typer.Option("--after", metavar="TOKEN", help="Go on from where an earlier page ended.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="As this subject sees a resource that is by access; else all of it.")
    ] = None,
) -> None:
    """The documents whose version lies in a window, as they are now, in the order of versions.

    With --json, one object a line; the last has `next`, which --after goes on from, or null.
    """
    run = session(context)
    with _connection(run) as connection:
        page = _QUERIES[kind](
            connection, Resource.parse(resource), first, last, after=after, limit=limit, subject=subject
        )
    if run.json:
        for item in page.items:
            sys.stdout.write(encode(told(item)) + "\n")
        run.emit({"next": page.next})
        return
    _show(run, page.items)
    if page.next is not None:
        run.note(f"there are more: --after {page.next}, or a greater --limit")


def keep_copy(
    context: typer.Context,
    resource: Name,
    to: Annotated[Path, typer.Option("--to", metavar="PATH", help="A SQLite file (.db, .sqlite) or a folder of JSON.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="A server, or a database; else as everywhere.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="FORGE_TOKEN", show_envvar=True, help="For a server that asks for one.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="From a database: only what this subject has access to.")] = None,
    form: Annotated[CopyForm | None, typer.Option(help="What it is, where PATH does not tell.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Items of a page.")] = 500,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks, with --follow.")] = 2.0,
) -> None:
    """Keep a copy of a resource by change queries alone. Cut short, it goes on from where it was.

    Where the source no longer knows what came after the copy, the copy is begun again; what is there stays until then.
    """
    run = session(context)
    wanted = Resource.parse(resource)
    with _source(run, source, wanted, token, subject) as found, _mirror(to, form, wanted) as mirror:
        if not follow:
            _once(run, found, mirror, limit, follow=False)
            return
        with contextlib.suppress(KeyboardInterrupt):
            _follow(run, found, mirror, limit, interval)


def strategy(
    context: typer.Context,
    name: Annotated[Strategy | None, typer.Argument(help="The one to use from now on.", show_default=False)] = None,
) -> None:
    """How changes of what a document depends on are found; or find them in another way, while others read and write.

    journal: nothing more is written, readers ask the journals. monotonic: an identity change writes a column of all who
    refer to it, and readers scan one range. denormalized: as journal, with the resource on the edge.
    """
    run = session(context)
    with _connection(run) as connection:
        before = strategy_now(connection)
        if name is not None:
            with run.progress() as bar:
                use_strategy(connection, name, progress=lambda last: bar.step(f"documents up to {last:,}", advance=0))
        now = strategy_now(connection)
    if run.json:
        run.emit({"strategy": now, "before": before})
    elif name is None:
        run.show(Text(now))
    else:
        run.done(f"the strategy is {now}" + ("" if now == before else f"; it was {before}"))


def maintain(
    context: typer.Context,
    keep_versions: Annotated[int | None, typer.Option(min=1, help="Keep the last so many stamps.")] = None,
    keep_age: Annotated[str | None, typer.Option(metavar="DAYS", help="Keep what was stamped within: 30d, 2w.")] = None,
    every: Annotated[float | None, typer.Option(min=1, help="Seconds between rounds; else one round.")] = None,
) -> None:
    """Make the journals' partitions ahead and drop those that are not to be kept; without --keep-…, all is kept."""
    run = session(context)
    age = None if keep_age is None else days(keep_age)
    if keep_age is not None and age is None:
        raise typer.BadParameter(f"--keep-age cannot be {keep_age!r}: give whole days, such as 30d or 2w")
    policy = VersionPolicy(versions=keep_versions, age=None if age is None else timedelta(days=age))
    with _connection(run) as connection:
        while True:
            report = maintain_journals(connection, policy)
            if run.json:
                run.emit(report)
            elif report.busy:
                run.note("another process maintains these journals; nothing was done")
            else:
                run.done(f"oldest {report.oldest}", f"{len(report.made)} made", f"{len(report.dropped)} dropped")
                if report.waiting:
                    run.note(f"still in use: {', '.join(report.waiting)}")
            if every is None:
                return
            time.sleep(every)


def grant(context: typer.Context, document: Document, subject: Subject) -> None:
    """Let a subject see a document of a resource that is by access; to them it changes with that."""
    run = session(context)
    with _connection(run) as connection:
        found = access.grant(connection, document, subject)
        resource = found.document.resource
        closed = resources(connection)[resource]
    if run.json:
        run.emit({"document": document, "subject": subject, "version": found.version})
    else:
        run.done(f"{subject} sees document {document}, at version {found.version}")
        if not closed:
            run.note(f"{resource} is open to all, who see it anyway: forge versions declare {resource} --by-access")


def revoke(context: typer.Context, document: Document, subject: Subject) -> None:
    """Let a subject see a document no more; to them it is deleted with that."""
    run = session(context)
    with _connection(run) as connection:
        found = access.revoke(connection, document, subject)
    if run.json:
        run.emit({"document": document, "subject": subject, "version": None if found is None else found.version})
    elif found is None:
        run.note(f"{subject} did not see document {document}")
    else:
        run.done(f"{subject} sees document {document} no more, since version {found.version}")


@contextmanager
def _connection(run: CommandSession) -> Iterator[Connection]:
    with run.connection(installed=False) as connection:
        require_installed(connection)
        yield connection


@contextmanager
def _source(
    run: CommandSession, url: str | None, resource: Resource, token: str | None, subject: str | None
) -> Iterator[VersionsSource]:
    source: VersionsSource
    if url is not None and url.startswith(("http://", "https://")):
        if subject is not None:
            raise typer.BadParameter("--subject is for databases: a server knows it by the token")
        try:
            from forge.versions.sync.http import HttpSource
        except ModuleNotFoundError as error:
            raise ConfigError(f"{error.name} is not installed", fix="pip install 'forge-changes[client]'") from None
        source = HttpSource(url, resource, token=token)
        try:
            yield source
        finally:
            source.close()
        return
    if url is not None:
        run.use(url)
    with run.database() as database:
        source = DatabaseSource(database.url, resource, subject=subject)
        try:
            yield source
        finally:
            source.close()


@contextmanager
def _mirror(to: Path, form: CopyForm | None, resource: Resource) -> Iterator[Mirror]:
    if form is None:
        form = CopyForm.sqlite if to.suffix in _SQLITE or to.is_file() else CopyForm.files
    mirror: Mirror = SqliteMirror(to, resource) if form == CopyForm.sqlite else FilesMirror(to, resource)
    try:
        yield mirror
    finally:
        mirror.close()


def _follow(run: CommandSession, source: VersionsSource, mirror: Mirror, limit: int, interval: float) -> NoReturn:
    """Again and again; what does not answer is asked again later."""
    backoff = Backoff(0.5, 30.0)
    while True:
        try:
            _once(run, source, mirror, limit, follow=True)
            backoff.reset()
            time.sleep(interval)
        except ForgeError as error:
            if not _passing(error):
                raise
            run.err.print(f"warning: {shown(str(error))}", style="yellow", soft_wrap=True)
            time.sleep(backoff.next(getattr(error, "retry_after_secs", 0.0)))


def _once(run: CommandSession, source: VersionsSource, mirror: Mirror, limit: int, *, follow: bool) -> None:
    with run.progress() as bar:

        def tell(progress: SyncProgress) -> None:
            at = "listing" if progress.listing else f"version {progress.version:,} of {progress.newest:,}"
            bar.step(f"{at}, {progress.items:,} items", advance=0)

        done = sync(source, mirror, limit=limit, tell=tell)
    if follow and not done.items and done.again is None:
        return
    if run.json:
        run.emit(msgspec.to_builtins(done))
        return
    if done.again is not None:
        run.note(f"begun again: {done.again}")
    run.done(f"up to version {done.upto}", *_counts(done))


def _counts(done: Synced) -> list[str]:
    counts = {"upsert": done.upserts, "delete": done.deletions, "new key": done.key_changes}
    removed = [f"{done.removed:,} removed"] if done.removed else []
    return [count(number, name) for name, number in counts.items() if number] + removed


def _passing(error: ForgeError) -> bool:
    """Whether it may go by itself: something does not answer now."""
    if isinstance(error, ServerError):
        return True
    kind = type(error).__name__
    return type(error).__module__ == "forge.client.error_responses" and kind in ("Unreachable", "Failed", "TooMany")


def _show(run: CommandSession, items: list[Event]) -> None:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("version", justify="right")
    grid.add_column("id", justify="right")
    for name in ("what", "identity"):
        grid.add_column(name, overflow="fold")
    for item in items:
        match item:
            case Deletion():
                what, text = "delete", encode(item.identity)
            case KeyChange():
                what, text = "key", f"{encode(item.old_identity)} → {encode(item.new_identity)}"
            case _:
                what, text = "upsert", encode(item.document.identity)
        grid.add_row(str(item.version), str(item.id), what, cut(shown(text), _WIDTH))
    run.show(grid)
