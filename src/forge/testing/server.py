"""Base class of the temporary servers: a program on a free port of loopback, in a folder of its own.

A subclass says which command runs and whether the server answers; a context manager, it is started on entry and killed
on exit. Invariants:

- `start` returns when the server answers, and raises `error` with the end of its log when it ends or `patience` passes.
- The server may be stopped, killed, frozen and started again; its port, its folder and its log stay.
- `stop` and `kill` return when the process has ended. Only that process gets a signal, by its id.
"""

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Self

from forge.embedded.system import free_port
from forge.errors import ForgeError, SourceError


class ServerProcess(ABC):
    """A server that this process starts and ends."""

    name: ClassVar[str]
    patience: ClassVar[float] = 60.0
    """Seconds that it may take to answer, and to shut down in order before it is killed."""
    error: ClassVar[type[ForgeError]] = SourceError
    fix: ClassVar[str] = "read its log, which is quoted here"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def argv(self) -> list[str]:
        """The program and its arguments."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it takes requests."""

    def environment(self) -> Mapping[str, str] | None:
        """The variables of its process; None for those of this one."""
        return None

    @property
    def log(self) -> Path:
        """The file with all that it printed, of every start."""
        return self.folder / "server.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._started().pid

    def start(self) -> Self:
        """Start it and wait until it answers."""
        argv = self.argv()
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                argv, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self.wait_until(self.answers, "start")
        except BaseException:
            self.kill()
            raise
        return self

    def wait_until(self, holds: Callable[[], bool], verb: str) -> None:
        """Wait for a condition; raise when the server ends, or does not `verb` in time."""
        deadline = time.monotonic() + self.patience
        while not holds():
            if not self.running or time.monotonic() > deadline:
                raise self.error(f"{self.name} does not {verb}: {self.log_end()}", fix=self.fix)
            time.sleep(0.02)

    def stop(self) -> None:
        """Shut it down in order; nothing happens when it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would; nothing happens when it does not run."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop all its threads: it keeps its connections and answers nothing. Returns when it has stopped."""
        process = self._started()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Continue after `freeze`."""
        self._started().send_signal(signal.SIGCONT)

    def log_end(self) -> str:
        """The end of its log, on one line."""
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        return " ".join(text.split())[-500:]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # a frozen process takes no other signal but SIGKILL
        process.send_signal(how)
        try:
            process.wait(self.patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
