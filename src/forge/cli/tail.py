"""`forge tail`: print changes as they are committed, for people or for programs, from any source.

A line of --format json ends with the cursor after that change: passed to --from with the same tables, it continues with
exactly the next one. From the log every line has one, also rows of a snapshot. Other sources have a cursor only after
whole batches: the last line of each has it, and a reader that continues from the last printed cursor sees the lines
after it again, with the same ids.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from forge import debezium, wire
from forge.capture import Filter, Source, changes, open_source, until_now
from forge.capture.log import LogSource, columns_query, inside
from forge.capture.source import Beginning, Exact, in_snapshot
from forge.capture.urls import split_option
from forge.change import Change, Op
from forge.changelog.follow import follow
from forge.changelog.install import require_installed
from forge.changelog.reader import Batch, Reader
from forge.cli.feeds import Columns, Operations, Tables, Url, Where, chosen, filter_of, home_schema
from forge.cli.session import CommandSession, forget_output, session
from forge.config import nearest
from forge.cursor import Cursor
from forge.errors import ConfigError, TrackingError
from forge.postgres.connection import connect
from forge.terminal import FeedPrinter
from forge.values import Column

Format = Literal["pretty", "json", "debezium"]
Printer = Callable[[Change, object, Sequence[Column]], str | None]
"""In: a change, the cursor after it or None, and its columns. Out: its line, or None when it has none."""


def register(app: typer.Typer) -> None:
    app.command(
        "tail",
        epilog="Examples:\n\nforge tail\n\nforge tail --table orders --table payments\n\n"
        "forge tail --from start --once --format json > changes.jsonl\n\nforge tail --from CURSOR --format json\n\n"
        "forge tail mysql://root@db/shop --table orders --format debezium\n\n"
        "forge tail sqlite:///shop.db --snapshot\n\n"
        "forge tail 'postgresql://db/shop?feed=wal' --op update --columns status --where \"total > 10\"",
    )(tail)


def tail(
    context: typer.Context,
    url: Url = None,
    tables: Tables = None,
    operations: Operations = None,
    columns: Columns = None,
    where: Where = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="start|now|CURSOR", help="Where to begin: now, with --once start.")
    ] = None,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Print the rows that are there first.")] = False,
    form: Annotated[
        Format | None, typer.Option("--format", "-f", help="pretty for people, json and debezium for programs.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print what is there, and end.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after this many changes.")] = None,
) -> None:
    """Print changes as they are committed, until Ctrl-C."""
    run = session(context)
    if snapshot and start is not None:
        raise ConfigError("--snapshot begins with the rows of now", fix="leave out --from, or --snapshot")
    if snapshot and operations:
        operations = [*operations, Op.READ]
    filter = filter_of(tables, operations, columns, where)
    format = form or ("json" if run.json else "pretty")
    url, log = chosen(run, url)
    if log:
        _tail_log(run, url, filter, start, format, snapshot=snapshot, once=once, limit=limit)
        return
    assert url is not None
    if not once and url.startswith(("postgresql://", "postgres://")):
        run.until_up(split_option(url, "feed")[0])
    printing = Printing(_printer(run, format, home_schema(url)), limit)
    _run(_print_source(open_source(url, filter), printing, start, snapshot=snapshot, once=once))


def _tail_log(
    run: CommandSession,
    url: str | None,
    filter: Filter,
    start: str | None,
    format: Format,
    *,
    snapshot: bool,
    once: bool,
    limit: int | None,
) -> None:
    run.use(url)
    start = start or ("start" if once else "now")
    after = None if start in ("start", "now") or in_snapshot(start) else Cursor.parse(start)
    with run.database() as database:
        if not once:
            run.until_up(database.url)
        with connect(database.url) as connection:
            require_installed(connection)
            known = [f"{schema}.{table}" for schema, table in connection.execute(_TABLES).fetchall()]
            if filter.names_columns:
                filter.check_columns(connection.execute(columns_query()).fetchall())
        _check_tables([name for name in filter.tables if not set(name) & set("*?")], known)
        printing = Printing(_printer(run, format, "public"), limit)
        if snapshot or in_snapshot(start):
            source = LogSource(database.url, filter, wakeup=run.config.wakeup)
            _run(_print_source(source, printing, start if in_snapshot(start) else None, snapshot=True, once=once))
        else:
            _run(LogTail(database.url, filter, start, after, printing, run.config.wakeup).run(once=once))


def _run(printing: Coroutine[None, None, None]) -> None:
    """Print until there is no more, nobody reads, or Ctrl-C."""
    try:
        asyncio.run(printing)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        forget_output()


async def _print_source(source: Source, printing: "Printing", start: str | None, *, snapshot: bool, once: bool) -> None:
    """Everything that a source has, from where it is asked for."""
    async with source:
        after = None if start in ("start", "now") else start
        if start == "start" or (once and start is None and not snapshot):
            after = await _beginning(source)
        elif after is None and not snapshot:
            after = await source.now()
        reading = until_now(source, after, snapshot=snapshot) if once else changes(source, after, snapshot=snapshot)
        async with aclosing(reading) as batches:
            async for batch in batches:
                last = len(batch.changes) - 1
                for place, change in enumerate(batch.changes):
                    columns = batch.columns[place] if batch.columns else ()
                    cursor = batch.cursor if place == last else None
                    if cursor is None and isinstance(source, Exact):
                        cursor = source.behind(change, after, batch.cursor)
                    if printing.full(change, cursor, columns):
                        return
                sys.stdout.flush()
                after = batch.cursor


async def _beginning(source: Source) -> str:
    if isinstance(source, Beginning):
        return await source.start()
    raise ConfigError(
        f"the {source.kind} source cannot be read from its start",
        fix="--snapshot for the rows that are there, --from CURSOR for what follows it, --from now for what comes",
    )


class Printing:
    """Lines on standard output, up to a limit."""

    def __init__(self, printer: Printer, limit: int | None) -> None:
        self._printer = printer
        self._left = limit

    def full(self, change: Change, cursor: object, columns: Sequence[Column]) -> bool:
        """Print a change that has a line, and say whether it was the last one."""
        line = self._printer(change, cursor, columns)
        if line is None:
            return False
        sys.stdout.write(line + "\n")
        if self._left is None:
            return False
        self._left -= 1
        return self._left == 0


_TABLES = "SELECT DISTINCT schema_name, table_name FROM forge.table_version ORDER BY 1, 2"


class LogTail:
    """One tail of the log: where it reads from, and where it prints to."""

    def __init__(
        self,
        url: str,
        filter: Filter,
        start: str,
        after: Cursor | None,
        printing: Printing,
        wakeup: Literal["auto", "notify", "poll"],
    ) -> None:
        exact = bool(filter.tables) and not any(set(name) & set("*?") for name in filter.tables)
        self._url = url
        self._tables = filter.tables if exact else None
        self._keep = filter.keep
        self._start = start
        self._after = after
        self._printing = printing
        self._wakeup = wakeup

    async def run(self, *, once: bool) -> None:
        """Print until the end of what there is, the limit, or for ever."""
        async with Reader.open(self._url) as reader:
            after = self._after
            if after is None:
                after = reader.start() if self._start == "start" else await reader.now()
            if once:
                await self._print(self._until_now(reader, after), after)
                return
        await self._print(follow(self._url, after=after, tables=self._tables, wakeup=self._wakeup), after)

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

    async def _print(self, batches: AsyncIterator[Batch], after: Cursor) -> None:
        async with aclosing(batches) as reading:  # type: ignore[type-var]
            async for batch in reading:
                for found, columns in zip(batch.changes, batch.columns, strict=True):
                    change = self._keep(found)
                    if change is None:
                        continue
                    last = found is batch.changes[-1]
                    cursor = batch.cursor if last else inside(after, batch.cursor, found)
                    if self._printing.full(change, cursor, columns):
                        return
                sys.stdout.flush()
                after = batch.cursor


def _check_tables(asked: Sequence[str], known: Sequence[str]) -> None:
    names = {*known, *(name.split(".", 1)[1] for name in known)}
    for name in asked:
        if name not in names:
            close = nearest(name, names)
            raise TrackingError(
                f"no change of {name} was ever logged",
                fix=f"did you mean {close}?" if close else f"forge enable {name}",
            )


def _printer(run: CommandSession, form: Format, schema: str) -> Printer:
    if form == "json":
        return as_json
    if form == "debezium":
        return as_debezium
    feed = FeedPrinter(colour=run.colour, width=run.out.width if run.out.is_terminal else None, schema=schema)
    return lambda change, *_: feed.line(change, datetime.now(UTC))


def as_json(change: Change, cursor: object, _columns: Sequence[Column]) -> str:
    """The wire form, with `cursor` at its end where there is one."""
    line = wire.encode(change).decode()
    return line if cursor is None else f'{line[:-1]},"cursor":"{cursor}"}}'


def as_debezium(change: Change, _cursor: object, columns: Sequence[Column]) -> str | None:
    """The envelope, in the types that the table had; what has none is passed over."""
    raw = debezium.encode(change, columns=columns or None)
    return None if raw is None else raw.decode()
