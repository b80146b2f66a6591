"""Real Redis servers for tests, from the binary of this machine, in a temporary folder, on a free port of loopback.

    with temporary_redis() as server:
        redis.Redis.from_url(server.url)

A server may be stopped, killed, frozen and started again; its URL stays. Nothing is left afterwards.
"""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forge.errors import SourceError
from forge.testing.server import ServerProcess


def redis_missing() -> str | None:
    """Why no server can be started here, or None."""
    return None if shutil.which("redis-server") else "redis-server is not installed: apt install redis-server"


class RedisServer(ServerProcess):
    """A Redis that saves nothing unless its options say so."""

    name = "Redis"

    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        super().__init__(folder)
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def argv(self) -> list[str]:
        binary = shutil.which("redis-server")
        if binary is None:
            raise SourceError(str(redis_missing()), fix="apt install redis-server")
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [binary, *place, "--save", "", "--appendonly", "no", "--daemonize", "no", *self._options]

    def answers(self) -> bool:
        try:
            return self.command("PING").startswith(b"+PONG")
        except OSError:
            return False

    def command(self, *words: str) -> bytes:
        """The reply to a Redis command, as it is on the wire."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            parts = b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words)
            connection.sendall(b"*%d\r\n%s" % (len(words), parts))
            return connection.recv(65536)


@contextmanager
def temporary_redis(*options: str) -> Iterator[RedisServer]:
    """A running server of its own, gone with all its data after the block; `options` as on its command line."""
    with (
        tempfile.TemporaryDirectory(prefix="forge-redis-", ignore_cleanup_errors=True) as folder,
        RedisServer(Path(folder), options) as server,
    ):
        yield server
