"""`forge demo`: a small shop, its traffic, and the live feed of its changes."""

import asyncio
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from forge.cli.session import session
from forge.config import hide
from forge.database import database
from forge.demo import Demo, Options
from forge.demo.lake import unavailable
from forge.demo.shop import SCHEMA, STEPS, TABLES
from forge.feed import Feed

KEY_WIDTH = 9
"""Enough to tell a payment's UUID from others: the columns behind it stay where they are when the first one comes."""


def register(app: typer.Typer) -> None:
    app.command(
        "demo",
        epilog="Examples:\n\nforge demo\n\nforge demo --seconds 20 --rate 50\n\n"
        "forge demo --database-url postgresql://localhost/scratch",
    )(demo)


def demo(
    context: typer.Context,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="End after so long; else with Ctrl-C.")] = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Transactions per second.")] = 6.0,
    lake: Annotated[
        bool, typer.Option("--lake/--no-lake", help="Keep a lake beside the shop, where Spark can.")
    ] = True,
) -> None:
    """Run a small shop on the embedded PostgreSQL and watch its changes live.

    The shop goes into a schema `shop`. Another server is used only when --database-url names it.
    """
    run = session(context)
    config = run.config
    if config.origins.get("database_url") != "--database-url":
        config = msgspec.structs.replace(config, database_url=None)
    missing = unavailable() if lake else None
    path = config.data.resolve() / "lake" if lake and missing is None else None
    with database(config, create=True) as found:
        width = run.out.width if run.out.is_terminal else None
        feed = Feed(colour=run.colour, width=width, schema=SCHEMA, key=KEY_WIDTH)
        show = Demo(found.url, config, feed, Options(seconds, rate, run.json, path))
        with run.progress(STEPS) as bar:
            version = show.prepare(bar.step)
        if not run.json:
            where = "embedded" if found.embedded else f"at {hide(found.url)}"
            run.done(
                f"PostgreSQL {version} {where}", f"{len(TABLES)} tables tracked", *([f"lake at {path}"] if path else [])
            )
            if missing is not None:
                run.note(missing)
        summary = asyncio.run(show.run())
    if run.json:
        run.emit({**msgspec.to_builtins(summary), "whole": summary.whole})
    else:
        for line in ("", *summary.lines()):
            run.show(Text(line, "bold"))
    raise typer.Exit(0 if summary.whole else 1)
