"""Real NATS servers with JetStream for tests, from the binary of this machine, in a temporary folder, on loopback.

    with temporary_nats() as server:
        await nats.connect(server.url)

A server may be stopped, killed, frozen and started again; its URL and its streams stay. Nothing is left afterwards.
"""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forge.errors import SourceError
from forge.testing.server import ServerProcess


def nats_missing() -> str | None:
    """Why no server can be started here, or None."""
    return None if shutil.which("nats-server") else "nats-server is not installed: apt install nats-server"


class NatsServer(ServerProcess):
    """A NATS server with JetStream; `settings` are lines of its configuration file."""

    name = "NATS"

    def __init__(self, folder: Path, settings: tuple[str, ...]) -> None:
        super().__init__(folder)
        lines = [f'listen: "127.0.0.1:{self.port}"', f'jetstream: {{store_dir: "{folder / "store"}"}}', *settings]
        (folder / "nats.conf").write_text("\n".join(lines))

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def argv(self) -> list[str]:
        binary = shutil.which("nats-server")
        if binary is None:
            raise SourceError(str(nats_missing()), fix="apt install nats-server")
        return [binary, "-c", str(self.folder / "nats.conf")]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                return b"jetstream" in connection.recv(65536)
        except OSError:
            return False


@contextmanager
def temporary_nats(*settings: str) -> Iterator[NatsServer]:
    """A running server of its own, gone with all its data after the block."""
    with (
        tempfile.TemporaryDirectory(prefix="forge-nats-", ignore_cleanup_errors=True) as folder,
        NatsServer(Path(folder), settings) as server,
    ):
        yield server
