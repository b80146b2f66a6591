"""`forge pipeline`: a lake that mirrors the database, kept by Spark."""

import typer

from forge.cli.arguments import Command
from forge.cli.pipeline import asof, audit, bring, maintain, replay, run, status, verify, versions


def register(app: typer.Typer) -> None:
    pipeline = typer.Typer(
        name="pipeline",
        help="Keep a lake that mirrors the database, with all its history, and ask it. Runs on Spark.",
        epilog="Examples:\n\nforge pipeline run --once\n\nforge pipeline run --lake s3a://lake/shop --interval 10s\n\n"
        "forge pipeline as-of --at '2026-11-10 09:00+00' --table orders\n\nforge pipeline verify",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in (run, status, verify, asof, audit, replay, bring, maintain, versions):
        command.register(pipeline)
    for registered in pipeline.registered_commands:
        registered.cls = Command
    app.add_typer(pipeline)
