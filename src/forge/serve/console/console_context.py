"""Context of all console queries: the node, its configuration and its activity, and access to the database in a
thread."""

import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from forge.config import Config
from forge.postgres.connection import Connection
from forge.react.registry import Function, Registry, Scope
from forge.serve.console.activity import Activity
from forge.serve.node import CONSOLE, Node
from forge.serve.slow_queries import asked
from forge.wire import decode_value

MOST_TEXT: Final = 16_384
"""Maximum number of characters shown of a text."""
OFTEN: Final = 0.9
"""Seconds; refreshes at every check of the reactor."""
T = TypeVar("T")


class Desk:
    """Register the console queries of one node."""

    def __init__(self, node: Node, config: Config, title: str) -> None:
        self.node = node
        self.config = config
        self.title = title
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.started_at = datetime.now(UTC)
        self.registry = Registry()
        self.activity = Activity(node.reactor)

    def query(
        self, function: Function, name: str, *, key: tuple[str, ...] = (), every: float | None, scope: Scope = "public"
    ) -> None:
        """Register a query that runs again every `every` seconds while it has subscribers."""
        self.registry.query(
            function,
            name=name,
            key=key,
            refresh_every=every,
            scope=scope,
            permission=self.node.options.console,
            own=True,
        )

    def mutation(self, function: Function, name: str) -> None:
        self.registry.mutation(function, name=name, permission=self.node.options.operate, own=True)

    async def ask(self, ask: Callable[[Connection], T], kind: str = CONSOLE) -> T:
        """Run a function on the database in a thread, with a timeout; other queries of its kind may wait for it."""
        return await asked(
            self.node.threads, self.node.reactor.url, kind, ask, less="ask for less: a table, a shorter time"
        )

    async def thread(self, work: Callable[[], T], kind: str) -> T:
        """Run a slow function in a thread; others of its kind may wait for it."""
        return await self.node.threads.run(kind, work)


def utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC)


def given(value: Any) -> Any:
    """Decode an argument value, which may be tagged as in results.

    >>> given({"id": {"$int": "9007199254740993"}}), given("4711")
    ({'id': 9007199254740993}, '4711')
    """
    return decode_value(value)


def shown(value: Any) -> Any:
    """Return a column value for display, with long texts cut.

    >>> shown("x" * 20_000)[16_380:], shown([1, {"a": "b"}])
    ('xxxx… (20,000 characters)', [1, {'a': 'b'}])
    """
    if isinstance(value, str) and len(value) > MOST_TEXT:
        return f"{value[:MOST_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, bytes) and len(value) > MOST_TEXT:
        return f"({len(value):,} bytes)"
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        found = [shown(inner) for inner in value[:1000]]
        return [*found, f"… ({len(value):,} elements)"] if len(value) > len(found) else found
    return value
