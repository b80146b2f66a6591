"""A replication connection: commands, then COPY_BOTH over libpq, driven by the event loop.

psycopg opens the connection; it does not support the replication protocol, which this module implements with its libpq.
`receive` reads; status updates may be sent at any time, also while nothing reads, so a slow consumer does not look
dead. A server that is silent for `SILENCE` seconds is asked for a reply, and after the same time again the connection
counts as lost, unless it is known (`alive`) to be working: it answers nothing while it decodes a large transaction.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.rows import TupleRow

from forge.capture.wal.protocol import status_update
from forge.capture.wal.texts import PINS
from forge.postgres.connection import parameters, pin

SILENCE: Final = 5.0
MOST_MESSAGES: Final = 4_000
MOST_BYTES: Final = 1024 * 1024
"""Maximum number of bytes taken from the connection before they are decoded."""

_log = logging.getLogger("forge.capture.wal")


class ReplicationConnection:
    """The client side of one walsender."""

    def __init__(self, connection: "psycopg.AsyncConnection[TupleRow]") -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self.pid: Final = connection.info.backend_pid
        self._readable = asyncio.Event()
        self._watched: int | None = None
        self._heard = 0.0
        self._asked = False
        self._error: Exception | None = None
        self.received = 0
        self.flushed = 0

    @classmethod
    async def open(cls, url: str) -> "ReplicationConnection":
        """Connect for logical replication of the URL's database."""
        connection = await psycopg.AsyncConnection.connect(
            **parameters(url, replication="database", application_name="forge wal"), autocommit=True
        )
        try:
            await pin(connection, PINS)
            return cls(connection)
        except BaseException:
            await connection.close()
            raise

    async def command(self, text: str) -> Sequence[TupleRow]:
        """Return the rows that a replication command answers."""
        cursor = await self._connection.execute(text.encode())
        return await cursor.fetchall() if cursor.description else []

    async def start(self, command: str) -> None:
        """Start COPY_BOTH."""
        pgconn = self._pgconn
        pgconn.send_query(command.encode())
        loop = asyncio.get_running_loop()
        self._watched = pgconn.socket
        loop.add_reader(self._watched, self._readable.set)
        pgconn.flush()
        while True:
            pgconn.consume_input()
            if not pgconn.is_busy():
                break
            self._readable.clear()
            await self._readable.wait()
        result = pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise _failed(result, pgconn)
        pgconn.nonblocking = 1
        self._heard = loop.time()

    async def receive(self, timeout: float) -> list[bytes]:
        """Return what the server sent, at least one message; none on timeout.

        Raise OperationalError if the connection is lost, or the server does not answer.
        """
        if self._error is not None:
            raise self._error
        found = self._take()
        loop = asyncio.get_running_loop()
        now = loop.time()
        if found:
            self._heard, self._asked = now, False
            return found
        end = now + timeout
        while not found:
            self._readable.clear()
            try:
                async with asyncio.timeout_at(min(end, self._heard + SILENCE * (2 if self._asked else 1))):
                    await self._readable.wait()
            except TimeoutError:
                now = loop.time()
                if now >= self._heard + 2 * SILENCE and self._asked:
                    raise psycopg.OperationalError("the server does not answer") from None
                if now >= self._heard + SILENCE and not self._asked:
                    self._asked = True
                    self.ask()
                if now >= end:
                    return []
            if self._error is not None:
                raise self._error
            found = self._take()
        self._heard, self._asked = loop.time(), False
        return found

    def _take(self) -> list[bytes]:
        """Take all available messages, up to a limit."""
        get, read, found, size = self._pgconn.get_copy_data, self._pgconn.consume_input, list[bytes](), 0
        add = found.append
        while size < MOST_BYTES and len(found) < MOST_MESSAGES:
            count, data = get(1)
            if count == 0:
                read()
                count, data = get(1)
            if count <= 0:
                if count < 0 and not found:
                    raise _failed(self._pgconn.get_result(), self._pgconn)
                break
            add(bytes(data))
            size += count
        return found

    def send_status(self, *, wants_reply: bool = False) -> None:
        """Report our position to the server, and that we are alive."""
        self._pgconn.put_copy_data(
            status_update(max(self.received, self.flushed), self.flushed, datetime.now(UTC), wants_reply=wants_reply)
        )
        self._pgconn.flush()

    def ask(self) -> None:
        """Ask the server for its position."""
        self.send_status(wants_reply=True)

    def alive(self) -> None:
        """Note that the server is working although it is silent."""
        self._heard, self._asked = asyncio.get_running_loop().time(), False

    def end(self, error: Exception) -> None:
        """Raise this error in the reader."""
        self._error = error
        self._readable.set()

    async def close(self) -> None:
        """Close the connection."""
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None
        await self._connection.close()


def _failed(result: Any, pgconn: Any) -> psycopg.Error:
    """Return the server's error, as psycopg would raise it."""
    if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
        return psycopg.errors.error_from_result(result, "utf-8")
    line = pgconn.get_error_message("utf-8").strip() or "the server ended the replication"
    return psycopg.OperationalError(line)
