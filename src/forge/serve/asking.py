"""Run slow database queries of requests: in the threads of their kind, on dedicated connections."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg

from forge.postgres.connection import Connection, connect, typed_errors
from forge.react.registry import BadArguments
from forge.serve.http import TooLarge
from forge.serve.node import Node

TIMEOUT: Final = 30
"""Statement timeout, in seconds."""

Answer = dict[str, Any]
T = TypeVar("T")


async def asked(node: Node, kind: str, ask: Callable[[Connection], T], *, less: str) -> T:
    """Return the result of `ask`; raise TooLarge, with `less` as the fix, after a timeout."""

    def answer() -> T:
        with typed_errors(), connect(node.reactor.url, application_name=f"forge {kind}") as connection:
            connection.execute(f"SET statement_timeout = '{TIMEOUT}s'".encode())
            return ask(connection)

    try:
        return await node.threads.run(kind, answer)
    except psycopg.errors.QueryCanceled:
        raise TooLarge(f"it took longer than {TIMEOUT} s", fix=less) from None
    except (UnicodeError, psycopg.DataError):
        raise BadArguments("that cannot be text in a database", fix="send text without NUL") from None
