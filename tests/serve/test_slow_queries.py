"""Threads for questions that take long: how many at once, who waits for whom, and what the end of a server does."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forge.errors import ServerError
from forge.serve.slow_queries import AT_ONCE, Threads

SOON = 10.0


class Work:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.begun += 1
        assert self.go.wait(SOON)
        return "done"


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.go.set()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_few_of_a_kind_are_answered_at_once_and_no_kind_waits_for_another(work: Work) -> None:
    threads = Threads()
    asked = [asyncio.create_task(threads.run("console", work)) for _ in range(AT_ONCE + 3)]
    await until(lambda: work.begun == AT_ONCE)
    assert await threads.run("history", lambda: threading.current_thread().name) == "forge history"
    assert work.begun == AT_ONCE
    work.go.set()
    assert await asyncio.gather(*asked) == ["done"] * (AT_ONCE + 3)


async def test_who_no_longer_waits_makes_no_room_and_what_waited_is_not_begun(work: Work) -> None:
    threads = Threads()
    asked = [asyncio.create_task(threads.run("console", work)) for _ in range(AT_ONCE + 2)]
    await until(lambda: work.begun == AT_ONCE)
    for task in (*asked[:2], asked[-1]):
        task.cancel()
    await asyncio.wait([*asked[:2], asked[-1]])
    assert work.begun == AT_ONCE
    work.go.set()
    assert await asyncio.gather(*asked[2:-1]) == ["done"] * 3
    assert work.begun == AT_ONCE + 1


async def test_what_is_raised_reaches_who_asked_and_its_context_is_theirs() -> None:
    threads = Threads()
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")
    name.set("ada")
    assert await threads.run("console", name.get) == "ada"

    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await threads.run("console", fails)


async def test_what_is_given_up_is_told_at_once_and_others_go_on(work: Work) -> None:
    threads = Threads()
    asked = [asyncio.create_task(threads.run("console past", work)) for _ in range(AT_ONCE + 1)]
    other = asyncio.create_task(threads.run("history", work))
    await until(lambda: work.begun == AT_ONCE + 1)
    threads.give_up("console")
    for task in asked:
        with pytest.raises(ServerError, match="the server ends"):
            await task
    with pytest.raises(ServerError):
        await threads.run("console", work)
    assert not other.done()
    work.go.set()
    assert await other == "done"
    await threads.close()
    with pytest.raises(ServerError):
        await threads.run("history", work)
    assert work.begun == AT_ONCE + 1


async def test_closing_does_not_wait_for_long(work: Work) -> None:
    threads = Threads()
    asked = asyncio.create_task(threads.run("console", work))
    await until(lambda: work.begun)
    async with asyncio.timeout(SOON / 2):
        await threads.close()
    assert not work.go.is_set()
    with pytest.raises(ServerError):
        await asked
    left = [thread for thread in threading.enumerate() if thread.name.startswith("forge console")]
    assert left, "the work goes on in its thread"
    assert all(thread.daemon for thread in left)


async def test_where_no_thread_can_be_started_it_is_said_and_later_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads()

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without_room:
        without_room.setattr(threading.Thread, "start", refused)
        for _ in range(AT_ONCE + 1):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await threads.run("console", lambda: 1)
    async with asyncio.timeout(SOON):
        assert await threads.run("console", lambda: 2) == 2


async def test_an_end_of_iteration_reaches_who_asked() -> None:
    async with asyncio.timeout(SOON):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await Threads().run("console", lambda: next(iter(())))
