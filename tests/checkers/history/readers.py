"""The readers of a history: processes that can be killed, each behind a proxy of its own."""

import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from forge.testing.proxy import FaultProxy
from tests.checkers.history.model import Discrepancy, ReaderRecord, load, show
from tests.checkers.history.plan import ReaderPlan
from tests.checkers.history.reader_process import RECORDS, TASK, Task
from tests.checkers.session_settings import with_settings

_GRACE = 5.0


class ReaderHandle:
    """One reader: its directory, its proxy, and its process while there is one."""

    def __init__(self, number: int, plan: ReaderPlan, directory: Path, proxy: FaultProxy, url: str, begin: str) -> None:
        self.name = f"reader {number} ({plan.kind}, {plan.wakeup})"
        self.plan = plan
        self.begin = begin
        self.proxy = proxy
        self.lives = 0
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._failures: list[str] = []
        directory.mkdir(parents=True)
        task = Task(with_settings(proxy.url(url), plan.settings), begin, plan)
        (directory / TASK).write_bytes(msgspec.json.encode(task))

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Begin a life; nothing when there is one."""
        if self._process is None:
            self.lives += 1
            with (self._directory / "stderr").open("ab") as stderr:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.checkers.history.reader_process", str(self._directory)],
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                )

    def kill(self) -> None:
        """End this life with SIGKILL."""
        if self._process is not None:
            self.notice()
        if self._process is not None:
            self._process.kill()
            self._process.wait(_GRACE)
            self._process = None

    def pause(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def notice(self) -> None:
        """A reader that ended by itself has failed: it must live through everything but SIGKILL."""
        if self._process is not None and self._process.poll() is not None:
            said = (self._directory / "stderr").read_text("utf-8", "replace").strip().splitlines()
            self._failures.append(f"exit {self._process.returncode}: {show(' | '.join(said[-3:]))}")
            self._process = None

    def seen(self) -> int:
        """How many bytes it has written down."""
        with contextlib.suppress(FileNotFoundError):
            return (self._directory / RECORDS).stat().st_size
        return 0

    def ids(self) -> set[int]:
        """The log ids in what it has written down."""
        data = (self._directory / RECORDS).read_bytes() if self.seen() else b""
        return {int(id) for id in re.findall(rb'"change_id":"[^"]*:(\d+)"', data)}

    def record(self) -> ReaderRecord:
        return ReaderRecord(self.name, self.begin, tuple(load(self._directory / RECORDS)), self.plan.tables)

    def failures(self) -> list[Discrepancy]:
        return [Discrepancy("ended", self.name, what) for what in self._failures]
