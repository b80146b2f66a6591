"""`forge consumers`: show and control the durable consumers of a database."""

import asyncio
import contextlib
import os
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from forge.cli.arguments import add_group
from forge.cli.deliveries import columns, duration, until_told
from forge.cli.serve import check
from forge.cli.session import CommandSession, session
from forge.config import shown_size
from forge.deliver.consumers.control import Control, ShardStatus
from forge.deliver.consumers.lag import MOST
from forge.errors import ConfigError
from forge.terminal import ABSENT, shown

_CURSOR = re.compile(r"[a-z]+[0-9]+_")
Name = Annotated[str, typer.Argument(help="The consumer's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="consumers",
        help="Durable consumers: each has a cursor that is saved after its side effect.",
        epilog="Examples:\n\nforge consumers   (live, on a terminal)\n\nforge consumers list --json\n\n"
        "forge consumers run shop:app\n\nforge consumers rewind search --to '2026-11-10 09:00+00'\n\n"
        "forge consumers replay-dead search",
        invoke_without_command=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    group.callback()(overview)
    commands = (
        ("list", listed, "forge consumers list\n\nforge consumers list --json"),
        ("lag", lag, "forge consumers lag\n\nforge consumers lag search --json"),
        ("run", run, "forge consumers run shop:app"),
        ("pause", pause, "forge consumers pause search"),
        ("resume", resume, "forge consumers resume search"),
        (
            "rewind",
            rewind,
            "forge consumers rewind search --to start\n\nforge consumers rewind search --to '2026-11-10 09:00+00'\n\n"
            "forge consumers rewind search --to forge1_…",
        ),
        ("dead", dead, "forge consumers dead search\n\nforge consumers dead search --json"),
        (
            "replay-dead",
            replay_dead,
            "forge consumers replay-dead search\n\nforge consumers replay-dead search --table orders --key 4711",
        ),
        ("forget", forget, "forge consumers forget search --yes"),
    )
    add_group(app, group, commands)


def overview(
    context: typer.Context,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Without a command: how every consumer fares, live on a terminal, once elsewhere."""
    if context.invoked_subcommand is not None:
        return
    run_ = session(context)
    if run_.json or not run_.out.is_terminal:
        _listed(run_, None)
        return
    with run_.database() as database, contextlib.suppress(KeyboardInterrupt):
        control = Control(database.url)
        before: tuple[float, dict[tuple[str, int], int]] = (time.monotonic(), {})
        with Live(console=run_.out, auto_refresh=False, transient=False) as live:
            while True:
                found = asyncio.run(control.statuses())
                now = time.monotonic()
                live.update(_table(found, _rates(found, before, now)), refresh=True)
                before = (now, {(each.name, each.shard): each.delivered for each in found})
                time.sleep(interval)


def listed(context: typer.Context) -> None:
    """Every consumer: its state, who works on it, how far behind it is, and what went wrong."""
    _listed(session(context), None)


def lag(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Only this one.", show_default=False)] = None,
) -> None:
    """How many changes each consumer has not handled, and since when the first of them waits."""
    run = session(context)
    found = _ask(run, lambda control: control.statuses(name))
    if run.json:
        run.emit(
            [
                {
                    "name": each.name,
                    "shard": each.shard,
                    "events": each.lag_events,
                    "seconds": each.lag_seconds,
                    **({} if each.source is None else {"bytes": each.lag_bytes}),
                }
                for each in found
            ]
        )
        return
    table = columns("consumer", "behind", "since")
    for each in found:
        table.add_row(_name(each), _behind(each), _since(each))
    if found:
        run.show(table)
    else:
        run.done("no consumer is known to this database")


def run(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the Forge() object is, e.g. shop:app")],
) -> None:
    """Work on an application's consumers, without serving it. `forge serve` works on them too."""
    run = session(context)
    sys.path.insert(0, os.getcwd())
    app = check(target, run)
    if not app.consumers.named:
        raise ConfigError(f"{target} has no consumers", fix='mark one: @app.consumer("name", tables=[…])')
    app.check(run.waiting)
    names = ", ".join(app.consumers.named)
    run.done(f"working on {names}")
    asyncio.run(until_told(app.consume()))


def pause(context: typer.Context, name: Name) -> None:
    """Have a consumer handle nothing until it is resumed; returns when no call is under way."""
    run = session(context)
    ended = _ask(run, lambda control: control.pause(name))
    if run.json:
        run.emit({"name": name, "state": "paused", "working": not ended})
    elif ended:
        run.done(f"{name} is paused")
    else:
        run.note(f"{name} is paused; a call that began before is still under way")


def resume(context: typer.Context, name: Name) -> None:
    """Have a paused consumer go on where it was."""
    run = session(context)
    _ask(run, lambda control: control.resume(name))
    expired = next((each for each in _ask(run, lambda c: c.statuses(name)) if each.state == "expired"), None)
    if run.json:
        run.emit({"name": name, "state": "running" if expired is None else "expired"})
    elif expired is not None:
        run.note(f"{name} has expired: {expired.last_error}")
    else:
        run.done(f"{name} goes on")


def rewind(
    context: typer.Context,
    name: Name,
    to: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="A cursor, a time with its zone, start, now, or oldest.")
    ],
) -> None:
    """Have a consumer go on from another place; what it handled after that comes again."""
    run = session(context)
    place = _place(to)
    cursor = _ask(run, lambda control: control.rewind(name, place))
    if run.json:
        run.emit({"name": name, "cursor": str(cursor)})
    else:
        run.done(f"{name} goes on from {cursor}")


def dead(
    context: typer.Context,
    name: Name,
    limit: Annotated[int, typer.Option(min=1, help="How many at the most.")] = 50,
) -> None:
    """The changes that a consumer could not handle, with why, and those that wait behind them."""
    run = session(context)
    found = _ask(run, lambda control: control.letters(name, limit))
    if run.json:
        run.emit(found)
        return
    if not found:
        run.done(f"{name} has no dead letters")
        return
    table = columns("parked", "table", "key", "tries", "error")
    for letter in found:
        why = f"waits: {letter.error}" if letter.behind else letter.error
        at = f"{letter.parked_at:%Y-%m-%d %H:%M:%S}"
        table.add_row(at, shown(letter.table), shown(letter.key or "*"), str(letter.tries), shown(why))
    run.show(table)


def replay_dead(
    context: typer.Context,
    name: Name,
    table: Annotated[str | None, typer.Option(help="Only those of this table.")] = None,
    key: Annotated[str | None, typer.Option(help="Only those of this row.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for its worker.")] = 30.0,
) -> None:
    """Send dead letters again, in order; one that fails stays, and with it those of its row behind it."""
    run = session(context)
    done = _ask(run, lambda control: control.replay_dead(name, table=table, key=key, wait=wait))
    if run.json:
        run.emit(done._asdict())
        return
    run.done(f"{done.sent:,} sent, {done.left:,} left")
    if done.waiting:
        run.note(
            f"{done.waiting:,} wait for a worker: forge consumers run MODULE:APP, or forge consumers resume {name}"
        )


def forget(
    context: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove a consumer that is no more: its cursor, its dead letters, and what it has done."""
    run = session(context)
    if not yes:
        typer.confirm(f"Forget the cursor and dead letters of {name}?", abort=True)
    source = _ask(run, lambda control: control.statuses(name))[0].source
    _ask(run, lambda control: control.forget(name))
    if run.json:
        run.emit({"name": name, "forgotten": True})
    else:
        run.done(f"{name} is forgotten")
        if source is not None and source.startswith("wal "):
            run.note(f"its slot keeps WAL until it is dropped, on that server: forge slot drop {source.split()[-1]}")


def _ask(run: CommandSession, what: Any) -> Any:
    with run.database() as database:
        return asyncio.run(what(Control(database.url)))


def _place(to: str) -> datetime | str:
    """What a person means: an instant where it is one, else a word or a cursor, which is checked later."""
    if to in ("start", "now", "oldest") or _CURSOR.match(to):
        return to
    try:
        found = datetime.fromisoformat(to)
    except ValueError:
        raise typer.BadParameter(
            f"--to cannot be {to!r}: give a cursor, a time such as '2026-11-10 09:00+00', start, now or oldest"
        ) from None
    if found.tzinfo is None:
        raise typer.BadParameter(f"--to {to!r} has no time zone: write {to}+00 for UTC")
    return found.astimezone(UTC)


def _listed(run: CommandSession, name: str | None) -> None:
    found: list[ShardStatus] = _ask(run, lambda control: control.statuses(name))
    if run.json:
        run.emit([msgspec.to_builtins(each) for each in found])
    elif found:
        run.show(_table(found, {}))
        for each in found:
            if each.last_error and each.state == "expired":
                run.note(f"{each.name}: {each.last_error}")
    else:
        run.done("no consumer is known to this database")
        run.hint("forge consumers run MODULE:APP")


def _table(found: Sequence[ShardStatus], rates: dict[tuple[str, int], float]) -> Table:
    headings = ["consumer", "state", "worked on by", "behind", "since", "handled", "retried", "dead", "last error"]
    if rates:
        headings.insert(6, "a second")
    table = columns(*headings)
    colours = {"running": "green", "paused": "yellow", "expired": "red"}
    for each in found:
        state = each.state if each.working or each.state != "running" else "waiting"
        cells: list[str | Text] = [
            _name(each),
            Text(state, colours.get(state, "yellow")),
            shown(each.owner or ABSENT),
            _behind(each),
            ABSENT if each.lag_events == 0 else _since(each),
            f"{each.delivered:,}",
            f"{each.retried:,}",
            Text(f"{each.dead_letters:,}", "red" if each.dead_letters else ""),
            shown(each.last_error or ABSENT),
        ]
        if rates:
            cells.insert(6, f"{rates.get((each.name, each.shard), 0.0):,.0f}")
        table.add_row(*cells)
    return table


def _rates(
    found: Sequence[ShardStatus], before: tuple[float, dict[tuple[str, int], int]], now: float
) -> dict[tuple[str, int], float]:
    then, counts = before
    return {
        (each.name, each.shard): max(0, each.delivered - counts.get((each.name, each.shard), each.delivered))
        / max(0.001, now - then)
        for each in found
    }


def _name(each: ShardStatus) -> str:
    return shown(each.name) if each.shards == 1 else f"{shown(each.name)} {each.shard + 1}/{each.shards}"


def _behind(each: ShardStatus) -> str:
    """Changes, or bytes, as far as its source can tell."""
    if each.lag_events is not None:
        return f"{each.lag_events:,}" + ("+" if each.source is None and each.lag_events >= MOST else "")
    return ABSENT if each.lag_bytes is None else shown_size(each.lag_bytes)


def _since(each: ShardStatus) -> str:
    return ABSENT if each.lag_seconds is None else duration(each.lag_seconds)
