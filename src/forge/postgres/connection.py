"""Connections to the log's database.

A dead peer is noticed within about ten seconds even when no packet says so. Every session has the settings of
`forge.postgres.session`, whatever its role and database set. Errors of the server that Forge
raised itself (SQLSTATE class FG) and those that people meet on the first day come out as typed errors with a
fix; every other error comes out as it is.
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
"""Who is told of the synchronous connections that are opened here: whoever may have to cancel what they are at."""

_ALIVE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_STARTING: Final = 0.25
"""Seconds between two looks at a server that takes no connections yet."""
_RAISED: dict[str, type[ForgeError]] = {
    "FG0": ServerError,
    "FG1": TrackingError,
    "FG2": ContextError,
    "FG3": NotifyError,
    "FG4": OutboxError,
}


def parameters(url: str, **more: Any) -> dict[str, Any]:
    """The connection parameters for a URL; what the URL says wins over Forge's defaults."""
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
    """Turn the server's errors into Forge's within this block."""
    try:
        yield
    except psycopg.Error as error:
        typed = translate(error)
        if typed is None:
            raise
        raise typed from error


def translate(error: psycopg.Error) -> ForgeError | None:
    """The Forge error that a server's error stands for, or None when it stands for itself."""
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
    """A synchronous connection in autocommit mode, with these settings whatever its role and database have."""
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
    """An asynchronous connection in autocommit mode, with these settings whatever its role and database have."""
    with typed_errors():
        connection = await psycopg.AsyncConnection.connect(**parameters(url, **more), autocommit=True)
        try:
            await pin(connection, settings)
        except BaseException:
            await connection.close()
            raise
        return connection


async def pin(connection: AsyncConnection, settings: Mapping[str, str]) -> None:
    """Give a new connection of Forge's its settings; raise ServerError where its role may not have them."""
    with _pinning(connection), answering(connection, _ALIVE["connect_timeout"]):
        await connection.execute(session.pinning(settings))


@contextmanager
def _pinning(connection: Connection | AsyncConnection) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise session.cannot_pin(connection.info.user) from error


def rejecting(url: str) -> bool:
    """Whether the server is there but takes no connections for now: it starts up, recovers or shuts down."""
    return _ping(url) == pq.Ping.REJECT


def _ping(url: str) -> int:
    return pq.PGconn.ping(conninfo.make_conninfo(**parameters(url)).encode())


def await_server(url: str, tell: Callable[[str], None]) -> None:
    """Return when the server takes connections. While it starts up or shuts down that is waited for, and told once.

    Raise when it cannot be reached otherwise, as with a wrong URL. A server that shut down after it said so is waited
    for too: it is being restarted.
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
            answered = state == pq.Ping.OK  # it came up just now, or takes connections but not this one
            if not waiting and state == pq.Ping.REJECT:
                waiting = True
                tell("the server is starting up or shutting down; waiting until it takes connections")
            if not answered:
                time.sleep(_STARTING)


@contextmanager
def answering(connection: AsyncConnection, seconds: float) -> Iterator[None]:
    """Within the block the connection must answer in time, else it is ended, and whoever waits for it gets an error."""
    timer = asyncio.get_running_loop().call_later(seconds, hang_up, connection)
    try:
        yield
    finally:
        timer.cancel()


def hang_up(connection: psycopg.AsyncConnection[Any]) -> None:
    """End a connection at once, without a word to the server, which may not listen any more."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
