"""Real Redis servers for tests, from the binary of this machine, in a temporary folder, on a free port of loopback.

    with temporary_redis() as server:
        redis.Redis.from_url(server.url)

A server may be stopped, killed, frozen and started again; its URL stays. Nothing is left afterwards.
"""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from forge.embedded.system import free_port
from forge.errors import SourceError
from forge.testing.ending import freeze

_PATIENCE: Final = 30.0


def redis_missing() -> str | None:
    """Why no server can be started here, or None."""
    return None if shutil.which("redis-server") else "redis-server is not installed: apt install redis-server"


class RedisServer:
    """A server in a folder of its own."""

    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        self.port = free_port()
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it answers; what it had saved is there again."""
        binary = shutil.which("redis-server")
        if binary is None:
            raise SourceError(str(redis_missing()), fix="apt install redis-server")
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no", *self._options]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if not self.running or time.monotonic() > deadline:
                self.kill()
                raise SourceError(f"Redis does not start: {(self._folder / 'log').read_text()[-500:]}", fix="see above")
            time.sleep(0.01)

    def command(self, *words: str) -> bytes:
        """What it answers to a command, as it is on the wire."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            parts = b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words)
            connection.sendall(b"*%d\r\n%s" % (len(words), parts))
            return connection.recv(65536)

    def stop(self) -> None:
        """Shut it down in order; nothing is saved unless it was told to."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        freeze(self._process)

    def thaw(self) -> None:
        """It goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(how)
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _answers(self) -> bool:
        try:
            return self.command("PING").startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def temporary_redis(*options: str) -> Iterator[RedisServer]:
    """A running server of its own, gone with all its data after the block; `options` as on its command line."""
    folder = Path(tempfile.mkdtemp(prefix="forge-redis-"))
    server = RedisServer(folder, options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
