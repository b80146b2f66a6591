"""`forge outbox`: list the waiting messages, send them, and handle the dead letters."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.table import Table

from forge.cli.arguments import add_group
from forge.cli.deliveries import duration, until_told
from forge.cli.serve import check
from forge.cli.session import CommandSession, session
from forge.deliver.outbox.control import OutboxControl, OutboxEntry
from forge.errors import ConfigError
from forge.terminal import ABSENT, shown

T = TypeVar("T")
Topic = Annotated[str | None, typer.Option(help="Only those of this topic.", show_default=False)]
Key = Annotated[str | None, typer.Option(help="Only those of this key.", show_default=False)]
Id = Annotated[str | None, typer.Option("--id", help="Only this message.", show_default=False)]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="How many at the most.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="outbox",
        help="Messages that were written in a transaction and are sent after it.",
        epilog="Examples:\n\nforge outbox lag\n\nforge outbox run shop:app\n\nforge outbox dead --topic order.paid\n\n"
        "forge outbox replay-dead",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    commands = (
        ("list", listed, "forge outbox list\n\nforge outbox list --topic order.paid --json"),
        ("lag", lag, "forge outbox lag\n\nforge outbox lag --json"),
        ("run", run, "forge outbox run shop:app"),
        ("dead", dead, "forge outbox dead\n\nforge outbox dead --topic order.paid --json"),
        ("replay-dead", replay_dead, "forge outbox replay-dead\n\nforge outbox replay-dead --key 4711"),
        ("drop-dead", drop_dead, "forge outbox drop-dead --topic order.paid --yes"),
    )
    add_group(app, group, commands)


def listed(context: typer.Context, topic: Topic = None, limit: Limit = 50) -> None:
    """Messages that wait, in the order in which they will be sent; then those that are scheduled."""
    run = session(context)
    _show(run, _control(run, lambda control: control.waiting(topic, limit)), "no message waits")


def lag(context: typer.Context, topic: Topic = None) -> None:
    """By topic: how many messages wait, and for how long the first of them does."""
    run = session(context)
    found = _control(run, lambda control: control.lag(topic))
    if run.json:
        run.emit([msgspec.to_builtins(each) for each in found])
        return
    if not found:
        run.done("no message waits")
        return
    table = _columns("topic", "waiting", "first", "retrying", "scheduled", "dead")
    for each in found:
        since = duration(each.seconds) if each.waiting else ABSENT
        counts = (each.retrying, each.scheduled, each.dead)
        table.add_row(shown(each.topic), f"{each.waiting:,}", since, *(f"{count:,}" for count in counts))
    run.show(table)


def run(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the Forge() object is, e.g. shop:app")],
) -> None:
    """Send the messages that an application has routes for, without serving it. `forge serve` sends them too."""
    run = session(context)
    sys.path.insert(0, os.getcwd())
    app = check(target, run)
    if not app.outbox.named:
        raise ConfigError(f"{target} has no routes", fix='add one: @app.on_outbox("topic") or app.outbox_to(…)')
    app.check(run.waiting)
    run.done(f"sending {', '.join(app.outbox.named)}")
    asyncio.run(until_told(app.drain()))


def dead(context: typer.Context, topic: Topic = None, limit: Limit = 50) -> None:
    """Messages that could not be sent, with why, and those of their keys that wait behind them."""
    run = session(context)
    _show(run, _control(run, lambda control: control.dead(topic, limit)), "there are no dead letters")


def replay_dead(context: typer.Context, topic: Topic = None, key: Key = None, id: Id = None) -> None:
    """Have dead letters sent again, in their order, with what waits behind them."""
    run = session(context)
    count = _control(run, lambda control: control.replay_dead(topic=topic, key=key, id=id))
    if run.json:
        run.emit({"replayed": count})
    else:
        run.done(f"{count:,} are in the outbox again")


def drop_dead(
    context: typer.Context,
    topic: Topic = None,
    key: Key = None,
    id: Id = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Forget dead letters; what waits behind them is sent."""
    run = session(context)
    if not yes:
        typer.confirm("Forget these messages for good?", abort=True)
    gone, released = _control(run, lambda control: control.drop_dead(topic=topic, key=key, id=id))
    if run.json:
        run.emit({"dropped": gone, "released": released})
    else:
        run.done(f"{gone:,} forgotten", f"{released:,} go on")


def _control(run: CommandSession, ask: Callable[[OutboxControl], T]) -> T:
    with run.database() as database:
        return ask(OutboxControl(database.url))


def _show(run: CommandSession, found: Sequence[OutboxEntry], none: str) -> None:
    if run.json:
        run.emit([msgspec.to_builtins(each) for each in found])
        return
    if not found:
        run.done(none)
        return
    table = _columns("state", "topic", "key", "made", "next", "tries", "error")
    for each in found:
        next_ = f"{each.since:%Y-%m-%d %H:%M:%S}" if each.since and each.state in ("retrying", "scheduled") else ABSENT
        key, error = shown(each.key or ABSENT), shown(each.error or ABSENT)
        made = f"{each.at:%Y-%m-%d %H:%M:%S}"
        table.add_row(each.state, shown(each.topic), key, made, next_, str(each.tries), error)
    run.show(table)


def _columns(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        numeric = heading in ("waiting", "first", "retrying", "scheduled", "dead", "tries")
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=heading != "error")
    return table
