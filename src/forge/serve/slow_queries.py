"""Threads for questions that take long: a few of each kind at once, so that no kind waits for another.

In comes what is to be done, out comes what it returns. Who no longer waits for an answer has the statement cancelled
that it has come to, and leaves its thread busy until that ends. No thread keeps the process from ending: when questions
are given up, who waits for them is told so at once, and their statements are cancelled.
"""

import asyncio
import contextlib
import contextvars
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import psycopg

from forge.errors import ServerError
from forge.postgres.connection import Connection, opened

AT_ONCE: Final = 4
"""Questions of a kind that are answered at once; others wait."""
PATIENCE: Final = 1.0
"""Seconds for which threads are waited for that were given up."""

T = TypeVar("T")


class Question:
    """One question, and the connections that it is asked on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.connections: list[Connection] = []
        self.ended = threading.Event()


class _Kind:
    """The questions of a kind, each with its work."""

    def __init__(self) -> None:
        self.running: set[Question] = set()
        self.waiting: deque[tuple[Question, Callable[[], Any]]] = deque()


class Threads:
    """Those of one node."""

    def __init__(self) -> None:
        self._kinds: defaultdict[str, _Kind] = defaultdict(_Kind)
        self._over: tuple[str, ...] = ()
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        """What `work` returns; ServerError where it is given up."""
        if kind.startswith(self._over):
            raise given_up()
        question, context = Question(asyncio.get_running_loop()), contextvars.copy_context()
        context.run(opened.set, question.connections.append)
        self._kinds[kind].waiting.append((question, partial(context.run, work)))
        self._begin(kind)
        try:
            answer: T = await question.answer
        except asyncio.CancelledError:
            if question in self._kinds[kind].running:
                _begin_to_cancel([question])
            raise
        return answer

    def give_up(self, kinds: str = "") -> None:
        """Answer no more questions of the kinds that begin so."""
        self._over = (*self._over, kinds)
        running: list[Question] = []
        for found in (found for kind, found in self._kinds.items() if kind.startswith(kinds)):
            running += found.running
            for question in (*found.running, *(question for question, _ in found.waiting)):
                if not question.answer.done():
                    question.answer.set_exception(given_up())
        if running:
            _begin_to_cancel(running)

    async def close(self) -> None:
        """Give up all that there is, and wait a moment for it to end."""
        self.give_up()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._idle.wait()

    def _begin(self, kind: str) -> None:
        found = self._kinds[kind]
        while found.waiting and len(found.running) < AT_ONCE:
            question, work = found.waiting.popleft()
            if not question.answer.done():
                found.running.add(question)
                self._idle.clear()
                arguments = (kind, question, work)
                thread = threading.Thread(target=self._work, args=arguments, name=f"forge {kind}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # there is no room for another thread
                    found.running.discard(question)
                    question.answer.set_exception(error)
        if not any(found.running for found in self._kinds.values()):
            self._idle.set()

    def _work(self, kind: str, question: Question, work: Callable[[], Any]) -> None:
        """What a thread does."""
        answer = None
        error: BaseException | None = None
        try:
            answer = work()
        except StopIteration as raised:
            error = RuntimeError(repr(raised))  # which no future takes as it is
        except BaseException as raised:
            error = raised
        question.ended.set()
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            question.loop.call_soon_threadsafe(self._ended, kind, question, answer, error)

    def _ended(self, kind: str, question: Question, answer: Any, error: BaseException | None) -> None:
        self._kinds[kind].running.discard(question)
        if not question.answer.done():
            if error is None:
                question.answer.set_result(answer)
            else:
                question.answer.set_exception(error)
        self._begin(kind)


def _begin_to_cancel(questions: Sequence[Question]) -> None:
    with contextlib.suppress(RuntimeError):  # there is no room for another thread: they end by themselves
        threading.Thread(target=_cancel, args=(questions,), name="forge cancel", daemon=True).start()


def _cancel(questions: Iterable[Question]) -> None:
    """Cancel what they have come to, again and again: it may have been between two statements, or about to connect."""
    deadline = time.monotonic() + PATIENCE
    while left := [question for question in questions if not question.ended.is_set()]:
        for question in left:
            for connection in question.connections:
                with contextlib.suppress(psycopg.Error):  # it does not answer, and is not waited for
                    connection.cancel_safe(timeout=PATIENCE)
        if time.monotonic() >= deadline:
            return
        left[0].ended.wait(0.05)


def given_up() -> ServerError:
    """What is said to those whose question the end of the server comes before."""
    return ServerError("the server ends before this is answered", fix="ask again in a while")
