"""Live queries in tests: a reactor on a database, and subscribers that remember what they were pushed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from forge.errors import ForgeError
from forge.postgres.connection import connect
from forge.react.group import Group, Settings
from forge.react.push import Push
from forge.react.reactor import Reactor
from forge.react.registry import ANYONE, Auth, Registry
from forge.react.runner import MutationAnswer, Runner

SOON = 30.0
QUICK = Settings(quiet=0.005, longest=0.05, check=1e9, resync=1e9)


class Watcher:
    """A subscriber."""

    def __init__(self, session: Hashable = 0) -> None:
        self.session = session
        self.pushes: list[Push] = []
        self.errors: list[ForgeError] = []
        self._news = asyncio.Event()
        self.group: Group | None = None

    def push(self, push: Push, /) -> None:
        self.pushes.append(push)
        self._news.set()

    def fail(self, error: ForgeError, /) -> None:
        self.errors.append(error)
        self._news.set()

    @property
    def value(self) -> Any:
        """What the last push says."""
        result = self.pushes[-1].result
        rows = [msgspec.json.decode(row) for row in result.rows]
        return rows[0] if result.single else rows

    async def until(self, condition: Callable[["Watcher"], object]) -> None:
        """Return when the condition holds; fail after a while."""
        async with asyncio.timeout(SOON):
            while not condition(self):
                self._news.clear()
                await self._news.wait()

    async def has(self, value: Any) -> None:
        """Return when the last push says this."""
        try:
            await self.until(lambda watcher: watcher.pushes and watcher.value == value)
        except TimeoutError:
            raise AssertionError(f"still {self.value if self.pushes else self.errors}, not {value}") from None


class Live:
    """A reactor, and the queries that it knows."""

    def __init__(self, reactor: Reactor, registry: Registry) -> None:
        self.reactor = reactor
        self.registry = registry

    def watch(self, name: str, *, auth: Auth = ANYONE, session: Hashable = 0, **arguments: Any) -> Watcher:
        watcher = Watcher(session)
        watcher.group = self.reactor.subscribe(self.registry.call(name, arguments, auth), watcher)
        return watcher

    def sql(self, name: str, statement: str, **options: Any) -> None:
        """Register a query that is one statement with any arguments."""

        async def function(ctx: Any, args: dict[str, Any] = {}) -> Any:  # noqa: B006
            return await ctx.db.fetch(statement, args)

        self.registry.query(function, name=name, **options)

    async def change(self, name: str, *, auth: Auth = ANYONE, **arguments: Any) -> MutationAnswer:
        mutation, checked = self.registry.change(name, arguments)
        return await self.reactor.runner.mutate(mutation, checked, auth)

    async def settled(self) -> None:
        """Return when all that is committed has been read, matched and run."""
        with connect(self.reactor.url) as connection:
            row = connection.execute("SELECT max(transaction_id::text::bigint) FROM forge.forge_event_log").fetchone()
        last = row[0] if row and row[0] else 0
        async with asyncio.timeout(SOON):
            while True:
                own = self.reactor.reached
                busy = any(group.running for group in self.reactor.groups.values()) or len(self.reactor._debounce)
                if own is not None and own.snapshot.sees(last) and not busy:
                    return
                await asyncio.sleep(0.005)


@asynccontextmanager
async def live(url: str, settings: Settings = QUICK, **options: Any) -> AsyncIterator[Live]:
    """A reactor while the block lasts."""
    reactor = Reactor(Runner(url, **options), url, settings)
    await reactor.start()
    try:
        yield Live(reactor, Registry())
    finally:
        await reactor.stop()
