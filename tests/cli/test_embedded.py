"""Without a URL there is a PostgreSQL of Forge's own, which runs while it is used."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge.embedded import PostgresServer, embedded
from forge.postgres.connection import connect
from tests.command import environment

pytestmark = pytest.mark.command


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the server's user can reach even when the tests run as root."""
    made = Path(tempfile.mkdtemp(prefix="forge-embedded-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


def test_the_embedded_server_is_the_default_and_stops_after_each_command(directory: Path) -> None:
    data = directory / ".forge" / "postgres"

    def forge(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "forge", *words],
            cwd=directory,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert not PostgresServer(data).running
        return done.stdout

    assert json.loads(forge("init", "--json"))["embedded"] is True
    assert data.is_dir()
    with embedded(data) as server, connect(server.url()) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    assert "1 table tracked: orders" in forge("enable", "orders")
    found = json.loads(forge("status", "--json"))
    assert (found["embedded"], [table["table"] for table in found["tables"]]) == (True, ["public.orders"])
