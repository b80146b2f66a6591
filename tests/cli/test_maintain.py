"""`forge maintain`: a service that keeps the log until it is told to stop."""

import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from subprocess import Popen

import pytest

from forge.changelog import partitions
from forge.postgres.connection import Connection

pytestmark = pytest.mark.command


@pytest.mark.contract("R9")
def test_it_drops_old_days_and_keeps_the_log_until_interrupted(
    start: Callable[..., "Popen[str]"], connection: Connection, database: str
) -> None:
    connection.execute("SELECT forge_enable_reactivity('orders')")
    old = datetime.now(UTC).date() - timedelta(days=40)
    partitions.make(connection, old)
    keeper = start("maintain", url=database)
    deadline = time.monotonic() + 60
    while connection.execute("SELECT count(*) FROM forge.instant").fetchone() == (0,) or connection.execute(
        "SELECT to_regclass(%s)", (f"forge.{partitions.partition_name(old)}",)
    ).fetchone() != (None,):
        assert keeper.poll() is None, keeper.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    keeper.send_signal(signal.SIGINT)
    _, err = keeper.communicate(timeout=30)
    assert keeper.returncode == 0
    assert "Traceback" not in err
    trimmed = connection.execute("SELECT partition, reason FROM forge.trimmed").fetchall()
    assert trimmed == [(partitions.partition_name(old), "retention")]
