"""`forge maintain`: maintain the log continuously, as a service; any number may run, one at a time works."""

import asyncio

import typer

from forge.changelog.install import require_installed
from forge.changelog.maintenance import Policy, maintain
from forge.cli.session import session
from forge.doctor.finding import count
from forge.postgres.connection import connect


def register(app: typer.Typer) -> None:
    app.command("maintain", epilog="Examples:\n\nforge maintain\n\nforge maintain -d postgresql://db/shop")(keep)


def keep(context: typer.Context) -> None:
    """Make partitions ahead, trim, record instants and follow DDL, until Ctrl-C."""
    run = session(context)
    policy = Policy(
        retention_days=run.config.retention_days, size_limit=run.config.log_size_limit, hold_days=run.config.hold_days
    )
    with run.database() as database:
        run.until_up(database.url)
        with connect(database.url) as connection:
            require_installed(connection)
        run.done(f"keeping the log: {count(policy.retention_days, 'day')}, a round every {policy.interval:.0f} s")
        try:
            asyncio.run(maintain(database.url, policy))
        except KeyboardInterrupt:
            return
