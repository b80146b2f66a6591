"""Questions that a database answers at length: asked in a thread, on a connection of their own, a few at once."""

import asyncio
from collections.abc import Callable
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
_ROOM: WeakKeyDictionary[Node, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


async def asked(node: Node, kind: str, ask: Callable[[Connection], T], *, less: str) -> T:
    """What `ask` returns; TooLarge, with `less` as the fix, where that took too long."""
    room = _ROOM.setdefault(node, {}).setdefault(kind, asyncio.Semaphore(AT_ONCE))
    try:
        async with room:
            return await asyncio.to_thread(_asked, node.reactor.url, kind, ask)
    except psycopg.errors.QueryCanceled:
        raise TooLarge(f"it took longer than {TIMEOUT} s", fix=less) from None
    except (UnicodeError, psycopg.DataError):
        raise BadArguments("that cannot be text in a database", fix="send text without NUL") from None


def _asked(url: str, kind: str, ask: Callable[[Connection], T]) -> T:
    with typed_errors(), connect(url, application_name=f"forge {kind}") as connection:
        connection.execute(f"SET statement_timeout = '{TIMEOUT}s'".encode())
        return ask(connection)
