"""`forge demo`: a small shop, its traffic, its page, the console, and the live feed of its changes."""

import asyncio
import signal
import sys
from typing import Annotated, NoReturn

import msgspec
import typer
from rich.text import Text

from forge.cli.session import session
from forge.config import hide
from forge.database import database
from forge.demo import Demo, DemoOptions
from forge.demo import lake as lakes
from forge.demo import page as pages
from forge.demo.shop import SCHEMA, STEPS, TABLES
from forge.terminal import FeedPrinter

KEY_WIDTH = 9
"""Wide enough to distinguish a payment's UUID from others, so that the columns after it do not move when the first
appears."""


def register(app: typer.Typer) -> None:
    app.command(
        "demo",
        epilog="Examples:\n\nforge demo\n\nforge demo --seconds 20 --rate 50\n\n"
        "forge demo --port 9000 --no-open\n\n"
        "forge demo --database-url postgresql://localhost/scratch",
    )(demo)


def demo(
    context: typer.Context,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="End after so long; else with Ctrl-C.")] = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Transactions per second.")] = 6.0,
    lake: Annotated[
        bool, typer.Option("--lake/--no-lake", help="Keep a lake beside the shop, where Spark can.")
    ] = True,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Serve the shop's page and the console.")] = True,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Where they are served: 8710, or a free one, unless given.")
    ] = None,
    open: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser, where one is.")] = True,
) -> None:
    """Run a small shop on the embedded PostgreSQL and watch its changes live: on its page, in the console, and here.

    The shop goes into a schema `shop`. Another server is used only when --database-url names it.
    """
    run = session(context)
    config = run.config
    if config.origins.get("database_url") != "--database-url":
        config = msgspec.structs.replace(config, database_url=None)
    no_lake = lakes.unavailable() if lake else None
    no_page = pages.unavailable() if page else None
    path = config.data.resolve() / "lake" if lake and no_lake is None else None
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hung_up)
    with database(config, create=True) as found:
        width = run.out.width if run.out.is_terminal else None
        feed = FeedPrinter(colour=run.colour, width=width, schema=SCHEMA, key=KEY_WIDTH)
        options = DemoOptions(seconds, rate, run.json, path, page and no_page is None, port)

        def opened(url: str) -> None:
            if not run.json:
                run.show(Text.assemble("live page  ", (url, "bold"), "        console  ", (f"{url}/console", "bold")))
                if open:
                    pages.show(url)

        show = Demo(found.url, config, feed, options, opened)
        with run.progress(STEPS) as bar:
            version = show.prepare(bar.step)
        if not run.json:
            where = "embedded" if found.embedded else f"at {hide(found.url)}"
            run.done(
                f"PostgreSQL {version} {where}", f"{len(TABLES)} tables tracked", *([f"lake at {path}"] if path else [])
            )
            for problem in filter(None, (no_lake, no_page)):
                run.note(problem)
        try:
            summary = asyncio.run(show.run())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
    if run.json:
        run.emit({**msgspec.to_builtins(summary), "whole": summary.whole})
    else:
        for line in ("", *summary.lines()):
            run.show(Text(line, "bold"))
    raise typer.Exit(0 if summary.whole else 1)


def _hung_up(number: int, _frame: object) -> NoReturn:
    """The terminal is closed, which kernel and shell may both say: what was started by now is ended."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(128 + number)
