"""Sessions that hold something for as long as they live: leases, advisory locks, locked rows, LISTEN.

In: a URL, the name of the session, and how long it may be silent. Out: a session that tells whether it still holds.
`HeldSession` is for threads, `AsyncHeldSession` for asyncio; `Reconnect` opens a lost one again.

Invariants:

- What a session holds ends with it, whether it is closed, its process dies, or the server ends it. With `silence` the
  server ends a session that sends nothing for so many seconds: a holder that hangs or is disconnected loses it.
- The holder notices this before the server acts: it counts from the last *request* that was answered, and `holds` is
  false `MARGIN` seconds early.
- The connection to a server that does not answer within `answer` seconds is closed, and whoever waits gets an error.
- The statements of an `AsyncHeldSession` run one after the other, whichever tasks ask.
- A session that is refused a lease learns its holder.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, LiteralString, Self

import psycopg
from psycopg import sql

from forge.backoff import Backoff
from forge.errors import ForgeError, ServerError, one_line
from forge.postgres import leases
from forge.postgres.connection import (
    AsyncConnection,
    Connection,
    answering,
    connect,
    connect_async,
    hang_up,
    translate,
    typed_errors,
)

LOST: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    ServerError,
    OSError,
)
"""Errors that mean: the session is lost, or cannot be opened now."""
MARGIN: Final = 1.0
"""Seconds before the server ends a silent session at which its holder stops relying on it."""
Statement = LiteralString | bytes | sql.Composed
_LONGEST_NAME: Final = 63
_SET: Final = "SELECT set_config(%(name)s, %(value)s, false)"


class Proof:
    """Proof that a session lives: the server answered a request, and does not end the session for some time.

    >>> now = 10.0
    >>> proof = Proof(5.0, clock=lambda: now)
    >>> now = 13.9; proof.holds, proof.answered(asked=12.0), proof.holds
    (True, None, True)
    >>> now = 16.0; proof.holds
    False
    >>> Proof(None).holds
    True
    """

    def __init__(self, silence: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lasts = None if silence is None else silence - MARGIN
        self._clock = clock
        self.asked = clock()
        """When the last answered request was sent."""

    @property
    def holds(self) -> bool:
        """Whether the server has certainly not ended the session for being silent."""
        return self._lasts is None or self._clock() - self.asked < self._lasts

    def now(self) -> float:
        return self._clock()

    def answered(self, asked: float) -> None:
        """Record that a request sent at this time was answered."""
        self.asked = asked


def _settings(silence: float | None, settings: Mapping[str, str]) -> list[dict[str, str]]:
    limit = {} if silence is None else {"idle_session_timeout": f"{silence * 1000:.0f}ms"}
    return [{"name": name, "value": value} for name, value in {**limit, **settings}.items()]


class HeldSession:
    """A synchronous session that holds something. Only `stop` may be called from another thread."""

    def __init__(self, connection: Connection, *, silence: float | None = None) -> None:
        self.connection = connection
        self.proof = Proof(silence)

    @classmethod
    def open(
        cls, url: str, name: str, *, silence: float | None = None, settings: Mapping[str, str] | None = None
    ) -> Self:
        connection = connect(url, application_name=name[:_LONGEST_NAME])
        try:
            with typed_errors():
                for setting in _settings(silence, settings or {}):
                    connection.execute(_SET, setting)
            return cls(connection, silence=silence)
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, and with it everything it holds."""
        self.connection.close()

    def stop(self) -> None:
        """Cancel the running statement; called from another thread."""
        with suppress(psycopg.Error):
            self.connection.cancel_safe(timeout=2)

    @property
    def holds(self) -> bool:
        """Whether this session is certainly alive."""
        return self.proof.holds and not self.connection.closed

    def ping(self) -> None:
        """Show the server that the holder is alive; raise if the session is lost."""
        asked = self.proof.now()
        self.connection.execute("SELECT 1")
        self.proof.answered(asked)

    def alive(self) -> bool:
        """Ask the server whether the session lives."""
        try:
            self.ping()
        except psycopg.OperationalError:
            return False
        return True

    def take(self, name: str, schema: leases.Schema = "forge") -> bool:
        """Take a lease until the session ends, unless another session holds it."""
        return leases.take(self.connection, name, schema)

    def give_up(self, name: str, schema: leases.Schema = "forge") -> None:
        """Give up a lease before the session ends."""
        leases.give_up(self.connection, name, schema)

    def holder(self, name: str, schema: leases.Schema = "forge") -> leases.LeaseHolder | None:
        """Return the session that holds a lease."""
        return leases.holder(self.connection, name, schema)


class AsyncHeldSession:
    """An asynchronous session that holds something."""

    def __init__(self, connection: AsyncConnection, *, answer: float, silence: float | None = None) -> None:
        self.connection = connection
        self.pid = connection.info.backend_pid
        self._answer = answer
        self.turn = asyncio.Lock()
        """Held while a statement runs."""
        self.proof = Proof(silence)

    @classmethod
    async def open(
        cls,
        url: str,
        name: str,
        *,
        answer: float,
        silence: float | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        connection = await connect_async(url, application_name=name[:_LONGEST_NAME])
        try:
            session = cls(connection, answer=answer, silence=silence)
            with typed_errors():
                for setting in _settings(silence, settings or {}):
                    await session.ask(_SET, setting)
            return session
        except BaseException:
            await connection.close()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session, and with it everything it holds."""
        await self.connection.close()

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @property
    def holds(self) -> bool:
        """Whether this session is certainly alive."""
        return self.proof.holds and not self.connection.closed

    async def ask(
        self, query: Statement, values: Mapping[str, Any] | None = None, *, prepare: bool | None = None
    ) -> list[tuple[Any, ...]]:
        """Return rows, of several statements those of the last; raise when the server does not answer in time: then the
        session is lost."""
        async with self.turn:
            return await self.ask_in_turn(query, values, prepare=prepare)

    async def ask_in_turn(
        self,
        query: Statement,
        values: Mapping[str, Any] | None = None,
        *,
        prepare: bool | None = None,
        answer: float | None = None,
    ) -> list[tuple[Any, ...]]:
        """Do the same as `ask` for a caller that holds `turn`; `answer` is for a statement that waits."""
        asked = self.proof.now()
        with answering(self.connection, answer or self._answer):
            cursor = await self.connection.execute(query, values, prepare=prepare)
            while cursor.nextset():
                pass
            rows = await cursor.fetchall() if cursor.description else []
        self.proof.answered(asked)
        return rows

    async def ping(self) -> None:
        """Show the server that the holder is alive; raise if the session is lost."""
        await self.ask("SELECT 1")

    async def keep_alive(self, every: float) -> None:
        """Ping without end; raise when the session is lost."""
        while True:
            await asyncio.sleep(every)
            await self.ping()

    async def listen(self, *channels: str) -> None:
        """Listen on these channels, until the session ends."""
        for channel in channels:
            await self.ask(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    async def heard(self, seconds: float) -> list[psycopg.Notify]:
        """Return the next notifications, or none after so many seconds; raise when the session is lost."""
        async with self.turn:
            return [notify async for notify in self.connection.notifies(timeout=seconds, stop_after=1)]

    def hang_up(self) -> None:
        """End the session at once, without a message to the server, which may be gone."""
        hang_up(self.connection)

    async def take(self, name: str) -> bool:
        """Take a lease until the session ends, unless another session holds it."""
        return await self.ask("SELECT forge.take_lease(%(name)s)", {"name": name}) == [(True,)]

    async def give_up(self, name: str) -> None:
        """Give up a lease before the session ends."""
        await self.ask("SELECT forge.drop_lease(%(name)s)", {"name": name})


class Reconnect:
    """The waits between the sessions of one job: each failure is logged with the time of the next try.

    The failure of the very first session is raised instead: the URL, the password or the role is wrong. `also` is an
    error of the job itself that means the same as those of `LOST`.
    """

    def __init__(
        self, log: logging.Logger, job: str, backoff: Backoff | None = None, *, also: type[Exception] | None = None
    ) -> None:
        self._lost = (*LOST, also) if also else LOST
        self._log = log
        self._job = job
        self._backoff = backoff or Backoff()
        self.connected = False
        """Whether a session was open before."""

    def opened(self) -> None:
        """Record that a session is open: from now on failures are retried."""
        self.connected = True

    def works(self) -> None:
        """Record that a session does its job: the next wait is short again."""
        self._backoff.reset()

    def failed(self, error: Exception) -> float:
        """Return the seconds until the next try. Raise the error if no session was ever open."""
        if not self.connected:
            raise error
        delay, lost = self._backoff.next(), isinstance(error, self._lost)
        text = (translate(error) if isinstance(error, psycopg.Error) else None) or error
        self._log.log(
            logging.WARNING if lost else logging.ERROR,
            "%s: %s, again in %.2f s: %s",
            self._job,
            "connection lost" if lost else "cannot go on",
            delay,
            one_line(text, named=True),
            exc_info=None if isinstance(error, (psycopg.Error, ForgeError, OSError)) else error,
        )
        return delay
