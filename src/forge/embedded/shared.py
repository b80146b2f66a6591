"""The embedded server: one cluster, shared by the processes that use it, and stopped with the last of them."""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from forge.embedded import system as machine
from forge.embedded.server import PostgresServer
from forge.errors import ServerError

EMBEDDED_SETTINGS: Final[Mapping[str, str]] = {
    "wal_level": "logical",
    "max_connections": "100",
    "max_prepared_transactions": "10",
    "shared_buffers": "128MB",
}

logger = logging.getLogger("forge.embedded")


class EmbeddedServer(PostgresServer):
    """One user's hold on a server that several processes share. `embedded` creates it, `close` releases it.

    While any hold is open, no `close` stops the server. `stop`, `restart` and `crash` act on the server itself, even if
    other processes use it. A forked child shares its parent's hold; its own `close` does nothing.
    """

    _hold: int | None = None
    _holder: int = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, timeout: float = 60) -> None:
        """Take the hold, then start the server if it does not run."""
        with self._lock():
            if self._hold is None:
                self._hold = machine.locked(self.data / "users", fcntl.LOCK_SH)
                self._holder = os.getpid()
                atexit.register(self._close_at_exit)
            self._init()
            self._start(timeout)

    def close(self) -> None:
        """Release the hold; the last holder returns when the server has stopped. Idempotent."""
        if self._hold is None or self._holder != os.getpid():
            return
        atexit.unregister(self._close_at_exit)
        if not self.data.is_dir():
            os.close(self._hold)
            self._hold = None
            return
        with self._lock():
            os.close(self._hold)
            self._hold = None
            try:
                alone = machine.locked(self.data / "users", fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            try:
                self._stop("fast", 60)
            finally:
                os.close(alone)

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except ServerError as error:
            logger.warning("%s", error)


def embedded(data: Path, *, bin: Path | None = None) -> EmbeddedServer:
    """Return the server in `data`, running and durable, shared with every other process that asks for it.

    It stops when the last of them closes its hold or exits. Processes that ask at the same moment get the same server.
    """
    server = EmbeddedServer(data, bin=bin, settings=EMBEDDED_SETTINGS)
    try:
        server.start()
    except BaseException:
        server._close_at_exit()
        raise
    return server
