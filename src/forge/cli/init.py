"""`forge init`: install Forge in the database, or upgrade an older installation."""

import typer

from forge.changelog import partitions
from forge.changelog.install import install, installed_version
from forge.cli.session import CommandSession, session
from forge.config import hide
from forge.database import Database
from forge.postgres.connection import connect


def register(app: typer.Typer) -> None:
    app.command(
        "init",
        epilog="Examples:\n\nforge init\n\nforge init -d postgresql://postgres@db/shop",
    )(init)


def init(context: typer.Context) -> None:
    """Install Forge in the database, or upgrade it in place. All of it or nothing; running it twice is harmless."""
    run = session(context)
    with run.database(create=True) as database:
        _init(run, database)


def _init(run: CommandSession, database: Database) -> None:
    with connect(database.url) as connection:
        before = installed_version(connection)
        applied = install(connection)
        after = installed_version(connection)
        seen = connection.execute("SELECT forge.sees_ddl()").fetchone() == (True,)
        days = partitions.attached(connection)
        server = connection.info.parameter_status("server_version")
    if run.json:
        run.emit(
            {
                "database": hide(database.url),
                "embedded": database.embedded,
                "version": after,
                "applied": [step.name for step in applied],
                "ddl": "event_trigger" if seen else "polled",
                "partitions": {"first": days[0], "last": days[-1]},
            }
        )
        return
    where = f"embedded in {run.config.data / 'postgres'}" if database.embedded else f"at {hide(database.url)}"
    run.done(f"PostgreSQL {server} {where}")
    if before == after:
        run.done(f"Forge was installed already (schema version {after}); its functions are of this program")
    else:
        change = f"upgraded from schema version {before} to" if before else "installed, schema version"
        run.done(f"Forge {change} {after}")

    run.done(f"the log has partitions up to {days[-1]}")
    if not seen:
        run.note("no event trigger is on, which takes a superuser: new definitions of tables are seen within a minute")
    run.hint("forge enable TABLE, or forge enable --all")
