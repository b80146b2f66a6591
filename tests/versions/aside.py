"""An act on a connection of its own, in a thread: tests let it wait for a lock, and go on when it does."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Generic, TypeVar

from forge.postgres.connection import Connection, connect

T = TypeVar("T")
SOON = 20.0


class Aside(Generic[T]):
    """What runs in the thread."""

    def __init__(self, pid: int, done: "Future[T]") -> None:
        self._pid, self._done = pid, done

    def waits(self, watcher: Connection, on: Connection | None = None) -> None:
        """Return once it waits for somebody else's lock, or that of `on`; it may not have ended."""
        deadline = time.monotonic() + SOON
        while not self._waits(watcher, on):
            assert not self._done.done(), f"it ended and waited for nobody: {self._done}"
            assert time.monotonic() < deadline, "it waits for nobody"
            time.sleep(0.005)

    def _waits(self, watcher: Connection, on: Connection | None) -> bool:
        row = watcher.execute("SELECT pg_blocking_pids(%s)", (self._pid,)).fetchone()
        assert row is not None
        return bool(row[0]) if on is None else on.info.backend_pid in row[0]

    def result(self) -> T:
        """What it gave, or the error that it raised."""
        return self._done.result(SOON)


@contextmanager
def aside(url: str, act: Callable[[Connection], T]) -> Iterator[Aside[T]]:
    """Do it while the block lasts."""
    with connect(url) as connection, ThreadPoolExecutor(1) as thread:
        yield Aside(connection.info.backend_pid, thread.submit(act, connection))


def behind(
    connection: Connection, url: str, first: Callable[[Connection], object], act: Callable[[Connection], T]
) -> T:
    """What an act gives that waits for a transaction in which something else was done first, and is committed then."""
    with ExitStack() as stack:
        with connection.transaction():
            first(connection)
            other = stack.enter_context(aside(url, act))
            other.waits(connection)
        return other.result()
