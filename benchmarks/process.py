"""Processes of our own that a benchmark talks to in lines of JSON: one question, one answer.

The module that runs in the process takes its first question as what it is to be, and ends when its input does. A
process that does not answer in time, or ends, is an error that says what it printed.
"""

import json
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psutil

from benchmarks.bench import python

PATIENCE: Final = 180.0


class Child:
    """The process, as its starter sees it."""

    def __init__(self, module: str, process: "subprocess.Popen[str]", errors: Any) -> None:
        self._module = module
        self._process = process
        self._errors = errors
        self._seen = psutil.Process(process.pid)

    def tell(self, question: Any) -> None:
        """Ask, and do something else meanwhile: `answer` has the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None

    def answer(self) -> Any:
        """Wait for the answer to what was asked."""
        assert self._process.stdout is not None
        timer = threading.Timer(PATIENCE, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line:
            raise self._failed()
        return json.loads(line)

    def ask(self, question: Any) -> Any:
        """Ask and wait for the answer."""
        self.tell(question)
        return self.answer()

    @property
    def memory(self) -> int:
        """Bytes that are resident."""
        return int(self._seen.memory_info().rss)

    @property
    def processor(self) -> float:
        """Seconds of processor time so far."""
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    def _failed(self) -> RuntimeError:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return RuntimeError(f"{self._module} ended: {self._errors.read().strip()[-1000:]}")


@contextmanager
def child(module: str, what: Any) -> Iterator[tuple[Child, Any]]:
    """A process that runs a module, and its first answer; it is gone after the block."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            python(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            made = Child(module, process, errors)
            yield made, made.ask(what)
        finally:
            process.kill()
            process.communicate()


def question() -> Any:
    """In the process: the next question; ends the process when there is none."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def reply(value: Any) -> None:
    """In the process: the answer to the last question."""
    print(json.dumps(value), flush=True)


def many_files() -> None:
    """In the process: let it have as many connections as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
