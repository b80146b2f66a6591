"""Connections to the log's database.

A dead peer is noticed within about ten seconds even when no packet reports it. Every session has the settings of
`forge.postgres.session`, whatever its role and database set. Server errors that Forge raised itself (SQLSTATE class FG)
and those that users meet on the first day become typed errors with a fix; every other error is passed on unchanged.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

import psycopg
from psycopg import conninfo, pq
from psycopg.rows import TupleRow

from forge.errors import (
    ConfigError,
    ContextError,
    ForgeError,
    NotifyError,
    NotInstalled,
    OutboxError,
    ServerError,
    TrackingError,
)
from forge.postgres import session

AsyncConnection = psycopg.AsyncConnection[TupleRow]
Connection = psycopg.Connection[TupleRow]

opened: ContextVar[Callable[[Connection], None] | None] = ContextVar("opened", default=None)
"""Callback for each synchronous connection opened here: a caller that may have to cancel its statements sets it."""

_ALIVE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_STARTING: Final = 0.25
"""Seconds between two checks of a server that does not accept connections yet."""
_RAISED: dict[str, type[ForgeError]] = {
    "FG0": ServerError,
    "FG1": TrackingError,
    "FG2": ContextError,
    "FG3": NotifyError,
    "FG4": OutboxError,
}


def parameters(url: str, **more: Any) -> dict[str, Any]:
    """Return the connection parameters for a URL; values in the URL override Forge's defaults."""
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        message = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"the database URL is malformed: {message}",
            fix="write it as postgresql://user@host:5432/database",
        ) from None
    return {**_ALIVE, "application_name": "forge", **given, **more, "client_encoding": "UTF8"}


@contextmanager
def typed_errors() -> Iterator[None]:
    """Convert the server's errors into Forge's within this block."""
    try:
        yield
    except psycopg.Error as error:
        typed = translate(error)
        if typed is None:
            raise
        raise typed from error


def translate(error: psycopg.Error) -> ForgeError | None:
    """Return the Forge error for a server error, or None if it has none."""
    state = error.sqlstate or ""
    message = (error.diag.message_primary or str(error)).strip().splitlines()
    line = message[0] if message else type(error).__name__
    if state[:3] in _RAISED:
        return _RAISED[state[:3]](line, fix=error.diag.message_hint or "see forge doctor")
    if state == "42501":
        return ServerError(
            f"the database refuses it: {line}", fix="connect as the role that installed Forge, or a superuser"
        )
    if state in ("3F000", "42P01", "42883") and "forge" in line:
        return NotInstalled("Forge is not installed in this database, or only in part", fix="forge init")
    if isinstance(error, psycopg.OperationalError) and not state:
        return ServerError(f"cannot reach the database: {_reason(message)}", fix=_reach_fix(line))
    if state in ("28000", "28P01", "3D000"):
        return ServerError(f"cannot reach the database: {line}", fix="check the user, password and database in the URL")
    return None


def _reason(lines: list[str]) -> str:
    text = "; ".join(line.strip() for line in lines if line.strip())
    return text if len(text) <= 200 else text[:197] + "..."


def _reach_fix(line: str) -> str:
    if "does not exist" in line or "authentication" in line:
        return "check the user, password and database in the URL"
    return "start the server, or correct FORGE_DATABASE_URL"


def connect(url: str, *, settings: Mapping[str, str] = session.OWN, **more: Any) -> Connection:
    """Open a synchronous connection in autocommit mode, with these settings whatever its role and database set."""
    with typed_errors():
        connection = psycopg.Connection.connect(**parameters(url, **more), autocommit=True)
        try:
            if (tell := opened.get()) is not None:
                tell(connection)
            with _pinning(connection):
                connection.execute(session.pinning(settings))
        except BaseException:
            connection.close()
            raise
        return connection


async def connect_async(url: str, *, settings: Mapping[str, str] = session.OWN, **more: Any) -> AsyncConnection:
    """Open an asynchronous connection in autocommit mode, with these settings whatever its role and database set."""
    with typed_errors():
        connection = await psycopg.AsyncConnection.connect(**parameters(url, **more), autocommit=True)
        try:
            await pin(connection, settings)
        except BaseException:
            await connection.close()
            raise
        return connection


async def pin(connection: AsyncConnection, settings: Mapping[str, str]) -> None:
    """Apply the settings to a new connection of Forge's; raise ServerError if its role may not set them."""
    with _pinning(connection), answering(connection, _ALIVE["connect_timeout"]):
        await connection.execute(session.pinning(settings))


@contextmanager
def _pinning(connection: Connection | AsyncConnection) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise session.cannot_pin(connection.info.user) from error


def rejecting(url: str) -> bool:
    """Tell whether the server runs but accepts no connections: it is starting up, recovering or shutting down."""
    return _ping(url) == pq.Ping.REJECT


def _ping(url: str) -> int:
    return pq.PGconn.ping(conninfo.make_conninfo(**parameters(url)).encode())


def await_server(url: str, tell: Callable[[str], None]) -> None:
    """Return when the server accepts connections. While it starts up or shuts down, wait, and call `tell` once.

    Raise if it cannot be reached for another reason, such as a wrong URL. If the server shuts down after it reported
    so, wait too: it is being restarted.
    """
    waiting = answered = False
    while True:
        try:
            connect(url).close()
            return
        except (ServerError, psycopg.OperationalError):
            state = _ping(url)
            if (answered and state == pq.Ping.OK) or (not waiting and state not in (pq.Ping.OK, pq.Ping.REJECT)):
                raise
            answered = state == pq.Ping.OK  # it came up just now, or accepts connections but not this one
            if not waiting and state == pq.Ping.REJECT:
                waiting = True
                tell("the server is starting up or shutting down; waiting until it takes connections")
            if not answered:
                time.sleep(_STARTING)


@contextmanager
def answering(connection: AsyncConnection, seconds: float) -> Iterator[None]:
    """Require an answer in time within the block; otherwise close the connection, so that its waiters get an error."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    timer = loop.call_at(end, hang_up, connection)
    try:
        yield
    except psycopg.OperationalError as error:
        if error.sqlstate is None and loop.time() >= end:
            raise psycopg.OperationalError("the server does not answer") from error
        raise
    finally:
        timer.cancel()


def hang_up(connection: psycopg.AsyncConnection[Any]) -> None:
    """Close a connection at once, without a message to the server, which may be gone."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
