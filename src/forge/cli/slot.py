"""`forge slot`: list, create, drop and advance the replication slots by which Forge reads a server's WAL.

A slot keeps WAL on the server's disk until its reader acknowledges it. A slot without a reader must be dropped.
"""

import asyncio
import re
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from forge.capture.filters import Filter
from forge.capture.wal import SlotLimits, publication
from forge.capture.wal import slot as slots
from forge.capture.wal.position import lsn_text
from forge.capture.wal.slot import Slot, open_control
from forge.cli.arguments import Command
from forge.cli.session import session
from forge.config import shown_size
from forge.cursor import wal_position
from forge.errors import SlotLost
from forge.terminal import ABSENT, shown

Name = Annotated[str, typer.Argument(help="The slot's name.", show_default=False)]
_LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="slot",
        help="Replication slots, by which the WAL is read (feed=wal): each keeps WAL until its reader acknowledges it.",
        epilog="Examples:\n\nforge slot list\n\nforge slot create\n\nforge slot drop forge_shop\n\n"
        "forge slot advance forge_shop --to now",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    group.command("list")(listed)
    group.command("create")(create)
    group.command("drop")(drop)
    group.command("advance")(advance)
    for registered in group.registered_commands:
        registered.cls = Command
    app.add_typer(group)


def listed(context: typer.Context) -> None:
    """Every logical slot of the server: who reads it, and how much WAL it keeps."""
    run = session(context)

    async def work(url: str) -> list[Slot]:
        control = await open_control(url, "")
        async with control:
            return await slots.found(control)

    with run.database() as database:
        found = asyncio.run(work(database.url))
    if run.json:
        run.emit([msgspec.to_builtins(slot) for slot in found])
        return
    if not found:
        run.done("no slot keeps WAL on this server")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("slot", "database", "plug-in", "read by", "acknowledged", "keeps"):
        table.add_column(heading)
    for slot in found:
        table.add_row(
            shown(slot.name),
            shown(slot.database),
            slot.plugin,
            f"process {slot.active_pid}" if slot.active else "nobody",
            slot.confirmed or ABSENT,
            ABSENT if slot.retained is None else shown_size(slot.retained),
        )
    run.show(table)
    for slot in found:
        for warning in slot.warnings(SlotLimits()):
            run.note(warning)


def create(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Else that of the database and the tables.")] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", "-t", metavar="NAME", help="Only these; else all tables.")
    ] = None,
    two_phase: Annotated[bool, typer.Option("--two-phase", help="Have prepared transactions sent early.")] = False,
) -> None:
    """Make a slot and its publication, so that nothing is missed from now on."""
    run = session(context)
    wanted = Filter(tables=tuple(tables or ()))

    async def work(url: str) -> tuple[str, int]:
        control = await open_control(url, name or "")
        async with control:
            server = await slots.server(control)
            server.check()
            chosen = slots.checked_name(name or publication.default_name(server.name, wanted))
            await publication.ensure(control, chosen, wanted, server, ())
            return chosen, await slots.create(control, chosen, two_phase=two_phase)

    with run.database() as database:
        made, lsn = asyncio.run(work(database.url))
    if run.json:
        run.emit({"slot": made, "publication": made, "lsn": lsn_text(lsn)})
    else:
        run.done(f"slot {made} keeps everything from {lsn_text(lsn)} on")


def drop(
    context: typer.Context,
    name: Name,
    keep_publication: Annotated[
        bool, typer.Option("--keep-publication", help="Leave the publication that Forge made for it.")
    ] = False,
) -> None:
    """Take a slot away, with its publication: the WAL that it kept is gone, and its cursors are expired."""
    run = session(context)

    async def work(url: str) -> bool:
        control = await open_control(url, name)
        async with control:
            await slots.drop(control, name)
            return not keep_publication and await publication.drop(control, name)

    with run.database() as database:
        also = asyncio.run(work(database.url))
    if run.json:
        run.emit({"slot": name, "publication": name if also else None})
    else:
        run.done(f"slot {name} is gone" + (", with its publication" if also else ""))


def advance(
    context: typer.Context,
    name: Name,
    to: Annotated[str, typer.Option("--to", metavar="LSN", help="An LSN such as 0/16B3748, or now.")] = "now",
) -> None:
    """Have a slot forget what is before an LSN, without anyone having read it."""
    run = session(context)
    if to != "now" and _LSN.fullmatch(to) is None:
        raise typer.BadParameter(f"--to cannot be {to!r}: give an LSN such as 0/16B3748, or now")

    async def work(url: str) -> int:
        control = await open_control(url, name)
        async with control:
            slot = await slots.find(control, name)
            if slot is None:
                raise SlotLost(f"there is no replication slot {name}", fix="forge slot list shows those there are")
            row = await (await control.execute(slots.sql("insert_lsn").encode())).fetchone()
            assert row is not None
            return await slots.advance(control, name, wal_position(row[0] if to == "now" else to))

    with run.database() as database:
        lsn = asyncio.run(work(database.url))
    if run.json:
        run.emit({"slot": name, "lsn": lsn_text(lsn)})
    else:
        run.done(f"slot {name} keeps what is after {lsn_text(lsn)}")
