"""Real NATS servers with JetStream for tests, from the binary of this machine, in a temporary folder, on loopback.

    with temporary_nats() as server:
        await nats.connect(server.url)

A server may be stopped, killed, frozen and started again; its URL and its streams stay. Nothing is left afterwards.
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


def nats_missing() -> str | None:
    """Why no server can be started here, or None."""
    return None if shutil.which("nats-server") else "nats-server is not installed: apt install nats-server"


class NatsServer:
    """A server in a folder of its own; `settings` are lines of its configuration file."""

    def __init__(self, folder: Path, settings: tuple[str, ...]) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        lines = [f'listen: "127.0.0.1:{self.port}"', f'jetstream: {{store_dir: "{folder / "store"}"}}', *settings]
        (folder / "nats.conf").write_text("\n".join(lines))

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it greets; its streams are there again."""
        binary = shutil.which("nats-server")
        if binary is None:
            raise SourceError(str(nats_missing()), fix="apt install nats-server")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary, "-c", str(self._folder / "nats.conf")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _PATIENCE
        while not self._greets():
            if not self.running or time.monotonic() > deadline:
                self.kill()
                raise SourceError(f"NATS does not start: {(self._folder / 'log').read_text()[-500:]}", fix="see above")
            time.sleep(0.01)

    def stop(self) -> None:
        """Shut it down in order."""
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

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                return b"jetstream" in connection.recv(65536)
        except OSError:
            return False


@contextmanager
def temporary_nats(*settings: str) -> Iterator[NatsServer]:
    """A running server of its own, gone with all its data after the block."""
    folder = Path(tempfile.mkdtemp(prefix="forge-nats-"))
    server = NatsServer(folder, settings)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
