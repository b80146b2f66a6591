"""Questions that are answered at length: asked in threads of their kind, a few at once; of the database, on connections
of their own. Who no longer waits for an answer leaves its thread busy, but none of another kind."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import psycopg

from forge.changelog.connection import Connection, connect, typed_errors
from forge.react.registry import BadArguments
from forge.serve.http import TooLarge
from forge.serve.node import Node

AT_ONCE: Final = 4
"""Questions of a kind that a node has answered at once; others wait."""
TIMEOUT: Final = 30
"""Seconds that a statement may take."""

Answer = dict[str, Any]
T = TypeVar("T")
_THREADS: WeakKeyDictionary[Node, dict[str, ThreadPoolExecutor]] = WeakKeyDictionary()


async def asked(node: Node, kind: str, ask: Callable[[Connection], T], *, less: str) -> T:
    """What `ask` returns; TooLarge, with `less` as the fix, where that took too long."""
    try:
        return await in_thread(node, kind, lambda: _asked(node.reactor.url, kind, ask))
    except psycopg.errors.QueryCanceled:
        raise TooLarge(f"it took longer than {TIMEOUT} s", fix=less) from None
    except (UnicodeError, psycopg.DataError):
        raise BadArguments("that cannot be text in a database", fix="send text without NUL") from None


async def in_thread(node: Node, kind: str, work: Callable[[], T]) -> T:
    """What `work` returns, in one of the threads of its kind."""
    kinds = _THREADS.setdefault(node, {})
    if kind not in kinds:
        kinds[kind] = ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"forge {kind}")
    return await asyncio.get_running_loop().run_in_executor(kinds[kind], contextvars.copy_context().run, work)


def _asked(url: str, kind: str, ask: Callable[[Connection], T]) -> T:
    with typed_errors(), connect(url, application_name=f"forge {kind}") as connection:
        connection.execute(f"SET statement_timeout = '{TIMEOUT}s'".encode())
        return ask(connection)
