"""The demo ends by itself with a summary that adds up, leaves no server behind, and can be run again."""

import json
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forge.changelog.connection import connect
from forge.postgres import PostgresServer
from tests.acceptance.conftest import Forge


@pytest.fixture
def data() -> Iterator[Path]:
    """A directory that the server's user can reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="forge-demo-") as name:
        path = Path(name)
        path.chmod(0o711)
        yield path


def test_the_demo_on_the_embedded_server(process: Forge, data: Path) -> None:
    arguments = ("demo", "--no-lake", "--seconds", "3", "--rate", "30", "--data", str(data))
    result = process(*arguments, FORGE_DATABASE_URL="postgresql://not-used.invalid/x")
    assert result.code == 0, result.err
    first, *feed = result.out.splitlines()
    assert first.startswith("✓ PostgreSQL ")
    assert "embedded" in first
    assert "5 tables tracked" in first
    assert re.fullmatch(r"live page  http://127\.0\.0\.1:(\d+)        console  http://127\.0\.0\.1:\1/console", feed[0])
    summary = result.out[result.out.rindex("\n\n") :]
    assert "nothing lost, nothing twice ✓" in summary
    assert "commit to feed   p50" in summary
    assert any("checkout" in line and "INSERT" in line for line in feed)
    assert any("→" in line for line in feed)
    assert not PostgresServer(data / "postgres").running

    again = process(*arguments, "--json")
    assert again.code == 0, again.err
    found = json.loads(again.out)
    assert found["whole"]
    assert found["written"] == found["logged"] == found["seen"] == sum(found["tables"].values()) > 0


def test_ctrl_c_ends_the_demo_in_order(start: Callable[..., "subprocess.Popen[str]"], empty_database: str) -> None:
    demo = start("demo", "--no-lake", "--rate", "30", "--database-url", empty_database)
    assert demo.stdout is not None
    assert demo.stdout.readline().startswith("✓ PostgreSQL ")
    assert "shop" not in demo.stdout.readline()
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=60)
    assert (demo.returncode, err) == (0, "")
    assert "nothing lost, nothing twice ✓" in out


def test_a_schema_of_that_name_that_is_not_the_demos_is_left_alone(forge: Forge, empty_database: str) -> None:
    with connect(empty_database) as connection:
        connection.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int)")
        result = forge("demo", "--seconds", "1", "--database-url", empty_database)
        assert result.code == 1
        assert "schema shop of its own" in result.err
        assert connection.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone() == (0,)
