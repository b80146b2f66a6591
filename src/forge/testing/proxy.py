"""A TCP proxy on loopback that makes a network fail on command.

    with FaultProxy("127.0.0.1", server.port) as proxy:
        connection = psycopg.connect(proxy.url(server.url()))
        proxy.stall()

It runs in a thread with an event loop of its own, so synchronous and asynchronous tests use it alike. Each
control method may be called from any thread and returns when its effect is in force; none takes longer than
`CONTROL_TIMEOUT`. The port is reserved from start to stop, also while connections are refused. What is held
back at one time is bounded: about 256 kB for each connection and direction.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

__all__ = ["CONTROL_TIMEOUT", "FaultProxy"]

CONTROL_TIMEOUT = 10.0

_CHUNK = 64 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_Result = TypeVar("_Result")


class FaultProxy:
    """Forwards connections on `127.0.0.1:port` to `host:target_port`, until told to do otherwise.

    Use it in `with` or `async with`, or call `start` and `stop`. After `stop` nothing of it is left: no
    thread, no socket, no connection.
    """

    def __init__(self, host: str, target_port: int) -> None:
        self._target = (host, target_port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._reservation: socket.socket | None = None
        self._listening: socket.socket | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    @property
    def port(self) -> int:
        """The port to connect to, the same from start to stop."""
        if self._reservation is None:
            raise RuntimeError("the proxy is not running")
        port: int = self._reservation.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """How many client connections the proxy holds, stalled ones included."""
        return len(self._links)

    def url(self, original: str) -> str:
        """The same libpq URI, through the proxy: only host and port differ."""
        parts = urlsplit(original)
        user, at, _ = parts.netloc.rpartition("@")
        kept = [(k, v) for k, v in parse_qsl(parts.query, True) if k not in {"host", "hostaddr", "port"}]
        query = urlencode(kept, quote_via=quote, safe="")
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}", query=query).geturl()

    def start(self) -> None:
        """Begin to listen and forward. A second start is an error."""
        if self._thread is not None:
            raise RuntimeError("the proxy is running already")
        self._reservation = _bound(0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._flowing.set()
        self.accept()

    def stop(self) -> None:
        """End every connection and free the port. Nothing happens when it does not run."""
        if self._thread is None or self._loop is None or self._reservation is None:
            return
        self._do(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONTROL_TIMEOUT)
        self._loop.close()
        self._reservation.close()
        self._loop = self._thread = self._reservation = None

    def cut(self) -> None:
        """Reset every connection that is open now, at both ends. New ones are served as before."""
        self._do(self._cut())

    def refuse(self) -> None:
        """Refuse new connections, as when nothing listens on the port. Open ones go on."""
        self._do(self._refuse())

    def accept(self) -> None:
        """Serve new connections again."""
        self._do(self._accept())

    def stall(self) -> None:
        """Forward no more bytes in either direction, and no end of stream, but keep every connection open.

        New connections are still accepted, and as silent.
        """
        self._do(self._stall())

    def resume(self) -> None:
        """Forward again, beginning with what was held back; no byte is lost."""
        self._do(self._resume())

    def _do(self, action: Coroutine[Any, Any, _Result]) -> _Result:
        if self._loop is None:
            action.close()
            raise RuntimeError("the proxy is not running")
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(CONTROL_TIMEOUT)

    # -- in the proxy's own loop -----------------------------------------------------------------------

    async def _accept(self) -> None:
        """Not by asyncio's own server, which leaks a connection that it has accepted when it is closed."""
        if self._listening is None:
            self._listening = _bound(self.port)
            self._listening.setblocking(False)
            self._listening.listen(100)
            asyncio.get_running_loop().add_reader(self._listening, self._welcome, self._listening)

    def _welcome(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        connection.setblocking(False)
        link = asyncio.get_running_loop().create_task(self._serve(connection))
        self._links.add(link)

        def over(_: object) -> None:
            self._links.discard(link)
            connection.close()

        link.add_done_callback(over)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            streams = await asyncio.open_connection(sock=connection, limit=_CHUNK)
        except OSError:  # the client is gone already
            return
        await self._link(*streams)

    async def _refuse(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    async def _stall(self) -> None:
        self._flowing.clear()

    async def _resume(self) -> None:
        self._flowing.set()

    async def _cut(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _shut(self) -> None:
        await self._refuse()
        await self._cut()
        await asyncio.sleep(0)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT):
                target = await asyncio.open_connection(*self._target, limit=_CHUNK)
            writers.append(target[1])
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, target[1]))
                both.create_task(self._pump(target[0], writer))
        except* (OSError, asyncio.CancelledError):
            for each in writers:
                _reset(each)
        finally:
            for each in writers:
                each.close()
            for each in writers:
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            await self._flowing.wait()
            raise
        await self._flowing.wait()
        writer.write_eof()


def _bound(port: int) -> socket.socket:
    """A socket bound to the port on 127.0.0.1. Several may be; only one that listens gets connections."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other end sees a reset, not an orderly end."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
