"""Replication slots: find, create, drop and advance them; and turn the server's errors about them into errors with a
fix.

A slot keeps the WAL that its reader has not acknowledged, whether anything reads it or not. So its lag is measured, and
beyond a limit an action is taken: `SlotLimits`.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal

import msgspec
import psycopg
from psycopg.rows import dict_row

from forge.capture.wal.position import lsn_text
from forge.config import shown_size
from forge.cursor import wal_position
from forge.errors import ConfigError, CursorExpired, ForgeError, ServerError, SlotInUse, SlotLost, SourceError, one_line
from forge.postgres.connection import AsyncConnection, connect_async, translate
from forge.postgres.queries import queries

OLDEST: Final = 140000
GIGABYTE: Final = 1024**3
_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")
_AGAIN: Final = "drop the slot (forge slot drop {name}), take a new snapshot, then follow from its cursor"

OnLimit = Literal["alert", "drop"]


def sql(name: str) -> str:
    """Return the query of that name in this package's file."""
    return queries("forge.capture.wal", "queries.sql")[name]


class SlotLimits(msgspec.Struct, frozen=True):
    """The WAL that a slot may keep: above `warn` bytes a warning, above `most` the action `act`."""

    warn: int = GIGABYTE
    most: int | None = None
    act: OnLimit = "alert"


class Slot(msgspec.Struct, frozen=True):
    """A slot as the server reports it. LSNs are None before its first use."""

    name: str
    plugin: str
    slot_type: str
    database: str
    temporary: bool
    active: bool
    active_pid: int | None
    wal_status: str | None
    safe_wal_size: int | None
    confirmed: str | None
    restart: str | None
    retained: int | None
    lag: int | None
    invalidated: str | None
    two_phase: bool
    failover: bool

    @property
    def lost(self) -> str | None:
        """Return why nothing can be read from it; None if something can."""
        if self.invalidated is not None:
            return self.invalidated.replace("_", " ")
        return "the server removed WAL that it needed" if self.wal_status == "lost" else None

    @property
    def confirmed_lsn(self) -> int:
        return 0 if self.confirmed is None else wal_position(self.confirmed)

    def warnings(self, limits: SlotLimits) -> tuple[str, ...]:
        """Return warnings for its reader."""
        found = []
        kept = self.retained
        if self.lost is not None:
            found.append(f"slot {self.name} is lost: {self.lost}")
        elif kept is not None and limits.most is not None and kept > limits.most:
            found.append(
                f"slot {self.name} keeps {shown_size(kept)} of WAL, beyond its limit of {shown_size(limits.most)}"
            )
        elif kept is not None and kept > limits.warn:
            found.append(f"slot {self.name} keeps {shown_size(kept)} of WAL: its consumer is slow or away")
        if self.wal_status == "unreserved":
            found.append(f"slot {self.name} is about to be lost: max_slot_wal_keep_size is reached")
        return tuple(found)


def checked_name(name: str) -> str:
    """
    >>> checked_name("Shop!")
    Traceback (most recent call last):
      ...
    forge.errors.ConfigError: 'Shop!' cannot be the name of a replication slot
    fix: use up to 63 lower-case letters, digits and underscores
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{name[:80]!r} cannot be the name of a replication slot",
            fix="use up to 63 lower-case letters, digits and underscores",
        )
    return name


@asynccontextmanager
async def typed(slot: str) -> AsyncIterator[None]:
    """Convert the server's errors about a slot into Forge's within the block."""
    try:
        yield
    except psycopg.Error as error:
        found = explain(error, slot)
        if found is None:
            raise
        raise found from error


def explain(error: psycopg.Error, slot: str) -> ForgeError | None:
    """Return the Forge error for a server error about a slot or a replication."""
    state = error.sqlstate or ""
    line = (error.diag.message_primary or str(error)).strip().partition("\n")[0]
    if "wal_level" in line and state in ("55000", "22023", "0A000"):
        return wal_level_wrong(None)
    if "could not access file" in line:
        return SourceError(f"the output plug-in is not installed: {line}", fix="use plugin=pgoutput")
    if (state == "55000" and ("can no longer" in line or "invalidated" in line)) or state == "58P01":
        return SlotLost(f"the replication slot {slot} is lost: {line}", fix=_AGAIN.format(name=slot))
    if state == "42704" and "slot" in line:
        return SlotLost(f"there is no replication slot {slot}", fix="take a new snapshot, then follow from its cursor")
    if state == "55006":
        return in_use(slot, line)
    if state == "53400" and "slots" in line:
        return SourceError(
            f"the server has no replication slot left for {slot}",
            fix="forge slot list, and drop one that nobody reads; or raise max_replication_slots and restart",
        )
    if "max_wal_senders" in line:
        return SourceError(
            "the server takes no more replication connections", fix="raise max_wal_senders and restart the server"
        )
    if (
        state == "42501"
        or (state == "28000" and "replication" in line)
        or "must be superuser or replication role" in line
        or "permission denied to start WAL sender" in line
    ):
        return SourceError(
            f"the role may not replicate: {line}", fix="ALTER ROLE <the role of the URL> REPLICATION, as a superuser"
        )
    if state == "28000":
        return SourceError(f"the server refuses replication connections: {line}", fix="allow them in pg_hba.conf")
    if state == "42602":
        return ConfigError(line, fix="use up to 63 lower-case letters, digits and underscores")
    return None


def in_use(slot: str, line: str) -> SlotInUse:
    return SlotInUse(
        f"another process reads the replication slot {slot}: {line}",
        fix="stop the other reader, or give this one a slot of its own: slot=NAME",
    )


def wal_level_wrong(found: str | None) -> SourceError:
    told = "is not logical" if found is None else f"is {found}, not logical"
    return SourceError(
        f"the server's wal_level {told}, so its WAL does not say what changed",
        fix="ALTER SYSTEM SET wal_level = logical, then restart the server",
    )


class WalServer(msgspec.Struct, frozen=True):
    """Facts needed about a server before its WAL is read."""

    version: int
    wal_level: str
    standby: bool
    database: int
    name: str
    role: str
    system: str
    timeline: int
    logged: bool
    """Whether the trigger log is installed."""

    def check(self) -> None:
        """Raise SourceError for a server whose WAL cannot be read."""
        if self.version < OLDEST:
            raise SourceError("the server is older than PostgreSQL 14", fix="use feed=log, or upgrade the server")
        if self.standby:
            raise SourceError("this server is a standby", fix="connect to the primary")
        if self.wal_level != "logical":
            raise wal_level_wrong(self.wal_level)


async def server(connection: AsyncConnection) -> WalServer:
    async with connection.cursor(row_factory=dict_row) as rows:
        await rows.execute(sql("server").encode())
        return msgspec.convert(await rows.fetchone(), WalServer)


async def found(connection: AsyncConnection, name: str | None = None) -> list[Slot]:
    """Return the logical slots of the server: one, or all."""
    async with connection.cursor(row_factory=dict_row) as rows:
        await rows.execute(sql("slot").encode(), {"name": name})
        return msgspec.convert(await rows.fetchall(), list[Slot])


async def find(connection: AsyncConnection, name: str) -> Slot | None:
    slots = await found(connection, name)
    return slots[0] if slots else None


async def decoding(connection: AsyncConnection, pid: int) -> bool:
    """Tell whether a walsender is working, and not waiting for WAL or for its client."""
    row = await (await connection.execute(sql("decoding").encode(), {"pid": pid})).fetchone()
    return row is not None and bool(row[0])


async def create(
    connection: AsyncConnection,
    name: str,
    *,
    plugin: str = "pgoutput",
    two_phase: bool = False,
    failover: bool = True,
    temporary: bool = False,
) -> int:
    """Create a slot in the connection's database, on 17 and newer a failover slot; return the LSN where it starts."""
    checked_name(name)
    version = connection.info.server_version
    arguments = "%(name)s, %(plugin)s, %(temporary)s, %(two_phase)s"
    if version >= 170000:
        arguments += ", %(failover)s"
    values = {
        "name": name,
        "plugin": plugin,
        "temporary": temporary,
        "two_phase": two_phase,
        "failover": failover and not temporary,
    }
    async with typed(name):
        made = await connection.execute(
            f"SELECT lsn::text FROM pg_create_logical_replication_slot({arguments})".encode(), values
        )
        row = await made.fetchone()
    assert row is not None
    return wal_position(row[0])


async def drop(connection: AsyncConnection, name: str) -> None:
    """Drop a slot, and with it the WAL that it keeps; raise SlotInUse while it has a reader."""
    async with typed(name):
        await connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))


async def advance(connection: AsyncConnection, name: str, lsn: int) -> int:
    """Forget what is before the LSN, permanently; return the LSN reached."""
    async with typed(name):
        moved = await connection.execute(
            "SELECT end_lsn::text FROM pg_replication_slot_advance(%s, %s::pg_lsn)", (name, lsn_text(lsn))
        )
        row = await moved.fetchone()
    assert row is not None
    return wal_position(row[0])


def usable(slot: Slot, *, plugin: str, database: str) -> None:
    """Raise for a slot that is lost, or is not what its reader expects."""
    if slot.lost is not None:
        raise SlotLost(f"the replication slot {slot.name} is lost: {slot.lost}", fix=_AGAIN.format(name=slot.name))
    if slot.plugin != plugin:
        raise SourceError(
            f"the replication slot {slot.name} uses the plug-in {slot.plugin}, not {plugin}",
            fix=f"use plugin={slot.plugin}, or another slot",
        )
    if slot.database != database:
        raise SourceError(
            f"the replication slot {slot.name} belongs to the database {slot.database}", fix="use another slot=NAME"
        )


def expired(slot: str, lsn: int, confirmed: int) -> CursorExpired:
    return CursorExpired(
        f"the slot {slot} was acknowledged up to {lsn_text(confirmed)}, which is after the cursor at {lsn_text(lsn)}",
        fix="take a new snapshot, then follow from its cursor",
    )


async def open_control(url: str, slot: str) -> AsyncConnection:
    """Open an ordinary connection beside the replication, with pinned text settings."""
    from forge.capture.wal.texts import PINS

    try:
        return await connect_async(url, settings=PINS, application_name="forge wal control")
    except psycopg.Error as error:
        raise (
            explain(error, slot) or translate(error) or ServerError(one_line(error), fix="see forge doctor")
        ) from error
