"""`forge maintain`: a service that keeps the log until it is told to stop."""

import signal
import time
from collections.abc import Callable
from subprocess import Popen

import pytest

from forge.changelog.connection import Connection


@pytest.mark.contract("R9")
def test_it_keeps_the_log_until_interrupted(
    start: Callable[..., "Popen[str]"], connection: Connection, database: str
) -> None:
    connection.execute("SELECT forge_enable_reactivity('orders')")
    keeper = start("maintain", url=database)
    deadline = time.monotonic() + 60
    while connection.execute("SELECT count(*) FROM forge.instant").fetchone() == (0,):
        assert keeper.poll() is None, keeper.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    keeper.send_signal(signal.SIGINT)
    _, err = keeper.communicate(timeout=30)
    assert keeper.returncode == 0
    assert "Traceback" not in err
