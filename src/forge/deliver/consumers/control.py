"""Inspect and control consumers from any process: the Python API behind `forge consumers`.

    control = Control(url)
    await control.pause("search")
    await control.rewind("search", "start")
    await control.resume("search")

Workers poll the stored state several times per second. Commands are stored, so none is lost when no worker runs.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from forge.changelog.reader import START, Reader
from forge.config import nearest
from forge.cursor import Cursor, LogIdentity, Snapshot
from forge.deliver.consumers.definition import WEBHOOK
from forge.deliver.consumers.lag import ConsumerLag, lag_of, lag_values
from forge.deliver.consumers.origin import ELSE, place_of
from forge.deliver.consumers.sql import sql
from forge.errors import (
    ConsumerInvalid,
    ConsumerUnknown,
    CursorExpired,
    CursorForeign,
    CursorInvalid,
    HistoryUnavailable,
)
from forge.postgres.connection import AsyncConnection, connect_async, typed_errors

LOOK: Final = 0.05


class ShardStatus(msgspec.Struct, frozen=True):
    """The status of a shard. `working` is whether a node holds it; `lag_events` is counted up to 100,000.

    For a consumer of another `source` the lag is the source's last report to the worker, None where the source reports
    none.
    """

    name: str
    shard: int
    shards: int
    tables: list[str]
    state: str
    working: bool
    owner: str | None
    cursor: str
    saved_at: datetime
    lag_events: int | None
    lag_seconds: float | None
    delivered: int
    retried: int
    parked: int
    dead_letters: int
    tries: int
    last_error: str | None = None
    error_at: datetime | None = None
    source: str | None = None
    lag_bytes: int | None = None


class DeadLetter(msgspec.Struct, frozen=True):
    """A parked change in the form of `forge.wire`."""

    id: int
    table: str
    key: str | None
    change_id: str
    error: str
    tries: int
    behind: bool
    replay: bool
    parked_at: datetime
    change: msgspec.Raw


class ReplayedLetters(NamedTuple):
    """The result of replaying letters; `waiting` are those that no worker has reached yet."""

    sent: int
    left: int
    waiting: int


class Control:
    """The consumers of one database."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def statuses(self, name: str | None = None) -> list[ShardStatus]:
        """Return every shard of every consumer, or of one; raise ConsumerUnknown for an unknown name."""
        async with self._connected() as connection:
            rows = await _rows(connection, "list", name=name)
            if name is not None and not rows:
                raise await self._unknown(connection, name)
            return [await _status(connection, row) for row in rows]

    async def pause(self, name: str, *, wait: float = 30.0) -> bool:
        """Let no further call begin; return whether none is running either, within `wait` seconds."""
        async with self._known(name) as connection:
            await _rows(connection, "pause", name=name)
            deadline = time.monotonic() + wait
            while any(row[-1] for row in await _rows(connection, "list", name=name)):
                if time.monotonic() >= deadline:
                    return False
                await asyncio.sleep(LOOK)
            return True

    async def resume(self, name: str) -> None:
        """Let calls begin again."""
        async with self._known(name) as connection:
            await _rows(connection, "resume", name=name)

    async def rewind(self, name: str, to: Cursor | datetime | str) -> Cursor | str:
        """Continue from another position: a cursor or its text, an instant, "start" (everything that the log retains),
        "now" (only commits from now on), or "oldest" (the position of the slowest shard).

        An instant means the last recorded one at or before it; everything committed after that is delivered again.
        Raise CursorError for a position that the log does not cover; then nothing is moved.

        A consumer of another source continues from a cursor of that source, "now", or "start" (the existing rows, then
        new changes). The worker finds out whether the source still has the changes after the cursor.
        """
        async with self._known(name) as connection:
            ((_, source), *_) = await _rows(connection, "readers", name=name, source=None)
            cursor = await self._place(connection, name, to, source)
            await _rows(connection, "rewind", name=name, cursor=str(cursor))
            return cursor

    async def replay_dead(
        self, name: str, *, table: str | None = None, key: str | None = None, wait: float = 30.0
    ) -> ReplayedLetters:
        """Replay letters in order, by the consumer's own worker: all, or those of a table or of one row."""
        async with self._known(name) as connection:
            ((_, before),) = await _rows(connection, "replaying", consumer=name)
            await _rows(connection, "ask_replay", consumer=name, table=table, key=key)
            deadline = time.monotonic() + wait
            while True:
                ((waiting, left),) = await _rows(connection, "replaying", consumer=name)
                if not waiting or time.monotonic() >= deadline:
                    return ReplayedLetters(max(0, before - left), left, waiting)
                await asyncio.sleep(LOOK)

    async def letters(self, name: str, limit: int = 100) -> list[DeadLetter]:
        """Return the parked changes, in order."""
        async with self._known(name) as connection:
            rows = await _rows(connection, "letters", consumer=name, limit=limit)
        return [
            DeadLetter(
                id, f"{schema}.{table}", key, change_id, error, tries, behind, replay, at.astimezone(UTC),
                msgspec.Raw(change.encode()),
            )
            for id, schema, table, key, change_id, error, tries, behind, replay, at, change in rows
        ]  # fmt: skip

    async def forget(self, name: str) -> None:
        """Delete a consumer: its cursor, its letters and its record of handled ids."""
        if name.startswith(WEBHOOK):
            webhook = name.removeprefix(WEBHOOK)
            raise ConsumerInvalid(f"{name} works on a webhook", fix=f"forge webhooks remove {webhook}")
        async with self._known(name) as connection:
            await _rows(connection, "forget", name=name)

    async def _place(
        self, connection: AsyncConnection, name: str, to: Cursor | datetime | str, source: str | None
    ) -> Cursor | str:
        if source is not None:
            return await _source_place(connection, name, to, source)
        reader = await Reader.over(connection)
        if to == "now":
            return await reader.now()
        if to == "start":
            return reader.start()
        if to == "oldest":
            rows = await _rows(connection, "standing", name=name)
            return oldest([Cursor.parse(cursor) for _, _, _, cursor in rows])
        if isinstance(to, datetime):
            return await _instant(connection, reader.identity, to)
        cursor = Cursor.parse(to) if isinstance(to, str) else to
        if cursor.log != reader.identity:
            raise CursorForeign("the cursor belongs to another log, or to this one before a failover", fix=_ELSE)
        await _check(connection, cursor)
        return cursor

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        connection = await connect_async(self._url)
        try:
            with typed_errors():
                yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def _known(self, name: str) -> AsyncIterator[AsyncConnection]:
        async with self._connected() as connection:
            if not await _rows(connection, "standing", name=name):
                raise await self._unknown(connection, name)
            yield connection

    async def _unknown(self, connection: AsyncConnection, name: str) -> ConsumerUnknown:
        known = {row[0] for row in await _rows(connection, "list", name=None)}
        close = nearest(name, known)
        fix = f"did you mean {close}?" if close else "forge consumers list shows those there are"
        return ConsumerUnknown(f"there is no consumer {name!r}", fix=fix)


_ELSE: Final = "rewind --to start (all that is retained), --to now, or to an instant"


def oldest(cursors: list[Cursor]) -> Cursor:
    """Return the position that all have passed: the cursor with the oldest snapshot, at the start of its batch if they
    differ.

    >>> log = LogIdentity("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "1", 1)
    >>> some = [Cursor(log, Snapshot.parse(text)) for text in ("5:9:5", "5:9:5,7", "5:12:5")]
    >>> str(oldest(some).snapshot)
    '5:9:5,7'
    """
    least = min(cursors, key=lambda cursor: (cursor.snapshot.xmax, -len(cursor.snapshot.running)))
    return least if all(cursor == least for cursor in cursors) else Cursor(least.log, least.snapshot)


async def _rows(connection: AsyncConnection, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(sql(name), values)
    return await cursor.fetchall() if cursor.description else []


async def _status(connection: AsyncConnection, row: tuple[Any, ...]) -> ShardStatus:
    name, shard, shards, tables, state, owner, _, text, _, saved_at = row[:10]
    delivered, retried, parked, tries, error, error_at, source, *told, letters, working = row[10:]
    if source is None:
        lag = lag_of((await _rows(connection, "lag", **lag_values(Cursor.parse(text), tables)))[0])
    else:
        lag = ConsumerLag(*told)
    return ShardStatus(
        name=name,
        shard=shard,
        shards=shards,
        tables=tables,
        state=state,
        working=working,
        owner=owner if working else None,
        cursor=text,
        saved_at=saved_at.astimezone(UTC),
        lag_events=lag.events,
        lag_seconds=lag.seconds,
        delivered=delivered,
        retried=retried,
        parked=parked,
        dead_letters=letters,
        tries=tries,
        last_error=error,
        error_at=error_at and error_at.astimezone(UTC),
        source=source,
        lag_bytes=lag.bytes,
    )


async def _source_place(connection: AsyncConnection, name: str, to: Cursor | datetime | str, source: str) -> str:
    if isinstance(to, datetime):
        raise CursorInvalid(f"{name} reads {source}, which cannot be asked for a time", fix=ELSE)
    if to == "oldest":
        ((_, _, _, to),) = await _rows(connection, "standing", name=name)
    return place_of(name, source, str(to))


async def _instant(connection: AsyncConnection, log: LogIdentity, at: datetime) -> Cursor:
    if at.tzinfo is None:
        raise CursorInvalid(f"{at} has no time zone", fix="give one, such as 2026-11-10 09:00+00")
    rows = await _rows(connection, "instant", at=at)
    if not rows:
        ((first,),) = await _rows(connection, "oldest_instant")
        raise HistoryUnavailable(f"nothing is recorded of {at.isoformat()}", fix=_ELSE, oldest=first)
    cursor = Cursor(log, Snapshot.parse(rows[0][1]))
    await _check(connection, cursor)
    return cursor


async def _check(connection: AsyncConnection, cursor: Cursor) -> None:
    """Raise for a position that the log does not cover."""
    ((head,),) = await _rows(connection, "snapshot_now")
    if Snapshot.parse(head).xmax < (cursor.until or cursor.snapshot).xmax:
        raise CursorForeign("the cursor is ahead of the server: it was made before a crash or restore", fix=_ELSE)
    if cursor.snapshot == START and cursor.last is None:
        return
    ((gone,),) = await _rows(connection, "trimmed", **cursor.snapshot.bounds)
    if gone:
        raise CursorExpired("what follows that place has been trimmed from the log", fix=_ELSE)
