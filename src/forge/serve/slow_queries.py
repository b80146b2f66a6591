"""Run slow queries in dedicated threads: a few per kind at once, so that no kind waits for another.

Input: a function. Output: its return value. When a caller stops waiting, its current statement is cancelled, and its
thread stays busy until the statement ends. Threads never keep the process alive: when queries are given up, their
callers get an error at once, and their statements are cancelled.
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

from forge.errors import BadArguments, ServerError, TooLarge
from forge.postgres.connection import Connection, connect, opened, typed_errors

AT_ONCE: Final = 4
"""Queries of one kind that run at once; others wait."""
PATIENCE: Final = 1.0
"""Seconds to wait for threads whose queries were given up."""

TIMEOUT: Final = 30
"""Statement timeout, in seconds."""
Answer = dict[str, Any]
T = TypeVar("T")


class SlowQuery:
    """One query, and its connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.connections: list[Connection] = []
        self.ended = threading.Event()


class _Kind:
    """The queries of a kind, each with its function."""

    def __init__(self) -> None:
        self.running: set[SlowQuery] = set()
        self.waiting: deque[tuple[SlowQuery, Callable[[], Any]]] = deque()


class Threads:
    """The threads of one node."""

    def __init__(self) -> None:
        self._kinds: defaultdict[str, _Kind] = defaultdict(_Kind)
        self._over: tuple[str, ...] = ()
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return its result; raise ServerError if it is given up."""
        if kind.startswith(self._over):
            raise given_up()
        question, context = SlowQuery(asyncio.get_running_loop()), contextvars.copy_context()
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
        """Give up all queries of the kinds with this prefix, and refuse new ones."""
        self._over = (*self._over, kinds)
        running: list[SlowQuery] = []
        for found in (found for kind, found in self._kinds.items() if kind.startswith(kinds)):
            running += found.running
            for question in (*found.running, *(question for question, _ in found.waiting)):
                if not question.answer.done():
                    question.answer.set_exception(given_up())
        if running:
            _begin_to_cancel(running)

    async def close(self) -> None:
        """Give up all queries, and wait for a short time for them to end."""
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
                except RuntimeError as error:  # no more threads can be started
                    found.running.discard(question)
                    question.answer.set_exception(error)
        if not any(found.running for found in self._kinds.values()):
            self._idle.set()

    def _work(self, kind: str, question: SlowQuery, work: Callable[[], Any]) -> None:
        """Main function of a thread."""
        answer = None
        error: BaseException | None = None
        try:
            answer = work()
        except StopIteration as raised:
            error = RuntimeError(repr(raised))  # a future does not accept the original exception
        except BaseException as raised:
            error = raised
        question.ended.set()
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no caller waits
            question.loop.call_soon_threadsafe(self._ended, kind, question, answer, error)

    def _ended(self, kind: str, question: SlowQuery, answer: Any, error: BaseException | None) -> None:
        self._kinds[kind].running.discard(question)
        if not question.answer.done():
            if error is None:
                question.answer.set_result(answer)
            else:
                question.answer.set_exception(error)
        self._begin(kind)


def _begin_to_cancel(questions: Sequence[SlowQuery]) -> None:
    with contextlib.suppress(RuntimeError):  # no more threads can be started: the queries end without it
        threading.Thread(target=_cancel, args=(questions,), name="forge cancel", daemon=True).start()


def _cancel(questions: Iterable[SlowQuery]) -> None:
    """Cancel the current statements repeatedly: a thread may be between two statements, or about to connect."""
    deadline = time.monotonic() + PATIENCE
    while left := [question for question in questions if not question.ended.is_set()]:
        for question in left:
            for connection in question.connections:
                with contextlib.suppress(psycopg.Error):  # the server does not answer; do not wait for it
                    connection.cancel_safe(timeout=PATIENCE)
        if time.monotonic() >= deadline:
            return
        left[0].ended.wait(0.05)


def given_up() -> ServerError:
    """Return the error for queries that the server's shutdown interrupts."""
    return ServerError("the server ends before this is answered", fix="ask again in a while")


async def asked(threads: Threads, url: str, kind: str, ask: Callable[[Connection], T], *, less: str) -> T:
    """Return the result of `ask` on its own connection; raise TooLarge, with `less` as the fix, after a timeout."""

    def answer() -> T:
        with typed_errors(), connect(url, application_name=f"forge {kind}") as connection:
            connection.execute(f"SET statement_timeout = '{TIMEOUT}s'".encode())
            return ask(connection)

    try:
        return await threads.run(kind, answer)
    except psycopg.errors.QueryCanceled:
        raise TooLarge(f"it took longer than {TIMEOUT} s", fix=less) from None
    except (UnicodeError, psycopg.DataError):
        raise BadArguments("that cannot be text in a database", fix="send text without NUL") from None
