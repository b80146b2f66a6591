"""`forge tail`: the changes as they are committed, for people or for programs.

Every line of --format json ends with the cursor behind that change: given to --from with the same tables, it
continues with exactly the next one.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from forge import debezium, wire
from forge.change import Change
from forge.changelog.connection import connect
from forge.changelog.follow import follow
from forge.changelog.install import require_installed
from forge.changelog.reader import Batch, Reader
from forge.cli.session import Session, forget_output, session
from forge.config import nearest
from forge.cursor import Cursor, Position
from forge.errors import TrackingError
from forge.feed import Feed
from forge.values import Column

Format = Literal["pretty", "json", "debezium"]
Printer = Callable[[Change, Cursor, Sequence[Column]], str | None]


def register(app: typer.Typer) -> None:
    app.command(
        "tail",
        epilog="Examples:\n\nforge tail\n\nforge tail --table orders --table payments\n\n"
        "forge tail --from start --once --format json > changes.jsonl\n\nforge tail --from CURSOR --format json",
    )(tail)


def tail(
    context: typer.Context,
    url: Annotated[str | None, typer.Argument(metavar="[URL]", help="Another database than the configured.")] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", "-t", metavar="TABLE", help="Only this table. May be repeated.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="start|now|CURSOR", help="Where to begin: now, with --once start.")
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", "-f", help="pretty for people, json and debezium for programs.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print what is there, and end.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after this many changes.")] = None,
) -> None:
    """Print changes as they are committed, until Ctrl-C."""
    run = session(context)
    run.use(url)
    start = start or ("start" if once else "now")
    after = None if start in ("start", "now") else Cursor.parse(start)
    with run.database() as database:
        with connect(database.url) as connection:
            require_installed(connection)
            known = [f"{schema}.{table}" for schema, table in connection.execute(_TABLES).fetchall()]
        _check_tables(tables or [], known)
        printer = _printer(run, form or ("json" if run.json else "pretty"))
        tailing = Tail(database.url, tables or None, start, after, printer, run.config.wakeup)
        try:
            asyncio.run(tailing.run(once=once, limit=limit))
        except KeyboardInterrupt:
            return
        except BrokenPipeError:
            forget_output()


_TABLES = "SELECT DISTINCT schema_name, table_name FROM forge.table_version ORDER BY 1, 2"


class Tail:
    """One tail: where it reads from, and where it prints to."""

    def __init__(
        self,
        url: str,
        tables: Sequence[str] | None,
        start: str,
        after: Cursor | None,
        printer: Printer,
        wakeup: Literal["auto", "notify", "poll"],
    ) -> None:
        self._url = url
        self._tables = tables
        self._start = start
        self._after = after
        self._printer = printer
        self._wakeup = wakeup

    async def run(self, *, once: bool, limit: int | None) -> None:
        """Print until the end of what there is, the limit, or for ever."""
        async with Reader.open(self._url) as reader:
            after = self._after
            if after is None:
                after = reader.start() if self._start == "start" else await reader.now()
            if once:
                await self._print(self._until_now(reader, after), after, limit)
                return
        await self._print(follow(self._url, after=after, tables=self._tables, wakeup=self._wakeup), after, limit)

    async def _until_now(self, reader: Reader, after: Cursor) -> AsyncIterator[Batch]:
        """Everything that is committed by now; a cursor inside a batch has the rest of that batch before it."""
        unfinished = True
        while unfinished:
            unfinished = after.until is not None
            async for batch in reader.read(after, tables=self._tables):
                if not batch.flushed:
                    await reader.flushed(batch.lsn)
                after = batch.cursor
                yield batch

    async def _print(self, batches: AsyncIterator[Batch], after: Cursor, limit: int | None) -> None:
        printed = 0
        async with aclosing(batches) as reading:  # type: ignore[type-var]
            async for batch in reading:
                for change, columns in zip(batch.changes, batch.columns, strict=True):
                    last = change is batch.changes[-1]
                    cursor = batch.cursor if last else inside(after, batch.cursor, change)
                    line = self._printer(change, cursor, columns)
                    if line is not None:
                        sys.stdout.write(line + "\n")
                        printed += 1
                    if printed == limit:
                        return
                sys.stdout.flush()
                after = batch.cursor


def inside(before: Cursor, behind: Cursor, change: Change) -> Cursor:
    """The cursor right behind a change that lies between two cursors."""
    place, _, number = change.source.position.partition(".")
    return Cursor(behind.log, before.snapshot, behind.until or behind.snapshot, Position(int(place), int(number)))


def _check_tables(asked: Sequence[str], known: Sequence[str]) -> None:
    names = {*known, *(name.split(".", 1)[1] for name in known)}
    for name in asked:
        if name not in names:
            close = nearest(name, names)
            raise TrackingError(
                f"no change of {name} was ever logged",
                fix=f"did you mean {close}?" if close else f"forge enable {name}",
            )


def _printer(run: Session, form: Format) -> Printer:
    if form == "json":
        return as_json
    if form == "debezium":
        return as_debezium
    feed = Feed(colour=run.colour, width=run.out.width if run.out.is_terminal else None)
    return lambda change, *_: feed.line(change, datetime.now(UTC))


def as_json(change: Change, cursor: Cursor, _columns: Sequence[Column]) -> str:
    """The wire form with `cursor` at its end."""
    return f'{wire.encode(change).decode()[:-1]},"cursor":"{cursor}"}}'


def as_debezium(change: Change, _cursor: Cursor, columns: Sequence[Column]) -> str | None:
    """The envelope, in the types that the table had; what has none is passed over."""
    raw = debezium.encode(change, columns=columns)
    return None if raw is None else raw.decode()
