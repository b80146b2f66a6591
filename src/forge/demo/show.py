"""Run the demo: traffic, the shop's page, maintenance and the feed in one process, until stopped.

The end is ordered: writers finish their transactions, the feed catches up, then the lake, and only then are the numbers
compared. The first signal ends the traffic, the second the wait for the lake, the third everything at once. When the
terminal is closed, the demo ends in order, but does not wait for the lake.
"""

import asyncio
import random
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import psycopg

from forge.changelog.follow import follow
from forge.changelog.maintenance import Policy, maintain
from forge.changelog.reader import Reader
from forge.config import Config
from forge.cursor import Cursor
from forge.demo import page, shop, traffic
from forge.demo.lake import LakeBeside
from forge.demo.summary import LakeState, Summary, percentiles
from forge.demo.waiting import Waiting
from forge.postgres.connection import AsyncConnection, connect_async
from forge.terminal import FeedPrinter
from forge.tracking.context import transaction

WORKERS: Final = 4
CATCH_UP: Final = 30.0

_COUNT: Final = (
    "SELECT count(*) FROM forge.forge_event_log"
    " WHERE transaction_id >= %s::text::xid8 AND application_name = %s AND op IN ('I', 'U', 'D')"
)


class DemoOptions(msgspec.Struct, frozen=True):
    """The duration of the demo (None: until it is stopped), its transactions per second, and whether it prints.

    `lake` is the path of a lake beside the shop, None for none; `page` is whether the shop's page and the console are
    served, at `port`, or at any free port.
    """

    seconds: float | None = None
    rate: float = 6.0
    quiet: bool = False
    lake: Path | None = None
    page: bool = False
    port: int | None = None


class Demo:
    """One run. Call `prepare` first, then `run`; `opened` is called with the page's address, once it is served."""

    def __init__(
        self,
        url: str,
        config: Config,
        feed: FeedPrinter,
        options: DemoOptions,
        opened: Callable[[str], object] = lambda url: None,
    ) -> None:
        self._url = url
        self._config = config
        self._feed = feed
        self._options = options
        self._opened = opened
        self._name = f"forge demo {secrets.token_hex(4)}"
        self._running: asyncio.Task[object] | None = None
        self._signals = 0
        self._waiting = Waiting(sys.stdout)
        self._stop = asyncio.Event()
        self._progress = asyncio.Event()
        self._committed: dict[str, float] = {}
        self._latencies: list[float] = []
        self._tables: Counter[str] = Counter()
        self._ids: set[str] = set()
        self._transactions = self._written = self._repeated = 0
        tables = [f"{shop.SCHEMA}.{table}" for table in shop.TABLES]
        self._lake = LakeBeside(url, options.lake, tables, self._lakeless) if options.lake is not None else None

    def prepare(self, say: Callable[[str], None]) -> str:
        """Prepare everything; return the server's version."""
        return shop.prepare(self._url, say)

    async def run(self) -> Summary:
        """Write and watch until the time is up or a signal comes. A surplus signal cancels it."""
        self._running = asyncio.current_task()
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, self._interrupted)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # SIGHUP is ignored under nohup
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hung_up)
        began = time.monotonic()
        try:
            async with Reader.open(self._url) as reader:
                start = await reader.now()
            async with self._served(), asyncio.TaskGroup() as group:
                background = [group.create_task(self._watch(start))]
                if not self._options.page:  # otherwise the application maintains the log
                    background.append(group.create_task(maintain(self._url, self._policy())))
                if self._lake is not None:
                    background.append(group.create_task(self._lake.follow()))
                writers = [group.create_task(self._write(number)) for number in range(WORKERS)]
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), self._options.seconds)
                self._stop.set()
                await asyncio.wait(writers)
                seconds = time.monotonic() - began
                logged = await self._caught_up(start)
                lake = await self._lake_at_the_end()
                for task in background:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from None
        p50, p95 = percentiles(self._latencies)
        return Summary(
            seconds=round(seconds, 1),
            transactions=self._transactions,
            written=self._written,
            logged=logged,
            seen=len(self._ids),
            repeated=self._repeated,
            tables=dict(self._tables),
            p50_ms=p50,
            p95_ms=p95,
            lake=lake,
        )

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        """Serve the page and the console while the block lasts."""
        if not self._options.page:
            yield
            return
        from forge.demo.app import application

        shown = page.ShopPage(application(self._url, self._options.lake))
        async with page.serving(shown, page.listen(self._options.port)) as url:
            self._opened(url)
            yield

    async def _lake_at_the_end(self) -> LakeState | None:
        """Return the state of the lake, once it has everything that was written."""
        if self._lake is None:
            return None
        try:
            state = await self._lake.caught_up((lambda missing: None) if self._options.quiet else self._waiting.tell)
        finally:
            self._waiting.clear()
        await self._lake.stop()
        return state

    def _lakeless(self, problem: str) -> None:
        self._waiting.clear()
        print(f"the lake has stopped: {problem}; the shop goes on", file=sys.stderr, flush=True)

    def _policy(self) -> Policy:
        return Policy(
            retention_days=self._config.retention_days,
            size_limit=self._config.log_size_limit,
            hold_days=self._config.hold_days,
        )

    def _interrupted(self) -> None:
        """End the demo in order at the first signal, without the lake at the second, and immediately at the third."""
        self._signals += 1
        if self._lake is not None and self._stop.is_set() and not self._lake.given_up:
            self._lake.give_up()
        elif self._signals == 1:
            self._stop.set()
        elif self._running is not None:
            self._running.cancel()

    def _hung_up(self) -> None:
        """Handle the closed terminal, which kernel and shell may both signal."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._stop.set()
        if self._lake is not None:
            self._lake.give_up()

    async def _write(self, number: int) -> None:
        chance = random.Random()
        async with await connect_async(self._url, application_name=self._name) as connection:
            pace = self._options.rate / WORKERS
            while not self._stop.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), chance.expovariate(pace))
                    return
                with suppress(psycopg.errors.DeadlockDetected):
                    await self._act(connection, chance)

    async def _act(self, connection: AsyncConnection, chance: random.Random) -> None:
        action = traffic.choose(chance)
        trace = secrets.token_hex(16)
        name = getattr(action, "__name__", "")
        async with transaction(connection, user_id=chance.choice(traffic.STAFF), function_name=name, trace_id=trace):
            written = await action(connection, chance)
            if written:
                self._committed[trace] = time.perf_counter()
        self._written += written
        self._transactions += 1

    async def _watch(self, start: Cursor) -> None:
        tables = [f"{shop.SCHEMA}.{table}" for table in shop.TABLES]
        async for batch in follow(self._url, after=start, tables=tables, wakeup=self._config.wakeup):
            if batch.changes:
                self._waiting.clear()
            now, clock = datetime.now(UTC), time.perf_counter()
            for change in batch.changes:
                if change.context.application_name == self._name:
                    self._repeated += change.id in self._ids
                    self._ids.add(change.id)
                    self._tables[change.table] += 1
                    if (committed := self._committed.pop(change.context.trace_id or "", None)) is not None:
                        self._latencies.append(clock - committed)
                if not self._options.quiet:
                    sys.stdout.write(self._feed.line(change, now) + "\n")
            sys.stdout.flush()
            self._progress.set()

    async def _caught_up(self, start: Cursor) -> int:
        """Return the number of the demo's changes in the log, when the feed has them all or its time is over."""
        async with await connect_async(self._url) as connection:
            values = (str(start.snapshot.xmin), self._name)
            row = await (await connection.execute(_COUNT, values)).fetchone()
        logged = int(row[0]) if row else 0
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP):
                while len(self._ids) < logged:
                    self._progress.clear()
                    await self._progress.wait()
        return logged


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one of several errors that a person should read."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
