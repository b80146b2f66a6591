"""Maintain the log: create partitions ahead, trim, record instants, and poll for DDL where needed.

One node at a time does this: the one whose session holds the lease (`forge.postgres.leases`). When it dies, its session
ends and another node takes over. A holder that hangs loses its session, because the server ends sessions that are
silent for some seconds.

Invariants:

- No writer waits. Every lock is requested with a timeout of 100 ms and, if that fails, again in the next round; locks
  that conflict with writing to the log are never requested.
- What is dropped, and in which order, is in `forge.changelog.retention` and `forge.changelog.trimming`.
- The leader records instants (`forge.changelog.instants`) in a separate thread and session, so many seconds apart, so
  no round, no lock and no busy event loop delays them.
- Where the log is sealed (`forge.history.chain`), every round seals what was committed by then, page by page.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Final, LiteralString, Self, TypeVar

import psycopg

from forge.backoff import Backoff
from forge.changelog import partitions, unread
from forge.changelog.install import require_installed
from forge.changelog.instants import InstantRecorder
from forge.changelog.queries import maintenance
from forge.changelog.report import MaintenanceReport as MaintenanceReport
from forge.changelog.retention import Policy as Policy
from forge.changelog.retention import first_kept, midnight
from forge.changelog.trimming import BUDGET, Trimmer
from forge.errors import ServerError, one_line
from forge.postgres import leases
from forge.postgres.connection import translate, typed_errors
from forge.postgres.held_session import HeldSession, Reconnect

PAYLOADS_KEPT: Final = timedelta(days=1)
KEYS_KEPT: Final = timedelta(days=7)
PAUSES: Final = (0.5, 30.0)
"""The first and the longest wait, in seconds, before a lost session is opened again."""

_LOCK_TIMEOUT: Final = "100ms"
_SEALED: Final = 1000
_STANDBY: Final = 5.0

logger = logging.getLogger(__name__)
T = TypeVar("T")


def run_once(url: str, policy: Policy = Policy()) -> MaintenanceReport:  # noqa: B008
    """Run one round; if another node maintains the log, do nothing and report `busy`."""
    with typed_errors(), Maintainer.open(url, policy) as keeper:
        if keeper.elected():
            return keeper.round(instant=True)
        holder = keeper.holder()
        return MaintenanceReport(busy=True, holder=None if holder is None else str(holder))


async def maintain(url: str, policy: Policy = Policy()) -> None:  # noqa: B008
    """Maintain the log without end: at once if no other node does, else as soon as that node is gone.

    A failure of the very first connection is raised: the server is not there, or refuses the password or the role.
    Later a lost connection or another transient error is logged as a warning and retried. Permanent errors are raised
    at any time: Forge is not installed, or its schema is newer than this program.
    """
    reconnect = Reconnect(logger, "maintenance of the log", Backoff(*PAUSES))
    with ThreadPoolExecutor(1, "forge-maintenance") as thread:
        while True:
            pause = min(policy.interval, _STANDBY) * random.uniform(0.5, 1.5)
            try:
                keeper = await _in(thread, lambda: Maintainer.open(url, policy))
                reconnect.opened()
                await _hold(url, keeper, policy, thread)
                reconnect.works()
            except (psycopg.Error, ServerError) as error:
                pause = reconnect.failed(error)
            await asyncio.sleep(pause)


async def _hold(url: str, keeper: "Maintainer", policy: Policy, thread: ThreadPoolExecutor) -> None:
    """Maintain until the session is lost; return at once when another node holds the lease. Then end the session."""
    try:
        if not await _in(thread, keeper.elected, keeper):
            return
        rounds = asyncio.ensure_future(_rounds(keeper, policy, thread))
        instants = asyncio.ensure_future(_instants(url, policy))
        try:
            await asyncio.wait([rounds, instants], return_when=asyncio.FIRST_COMPLETED)
        finally:
            rounds.cancel()
            instants.cancel()
            await asyncio.wait([rounds, instants])
        for ended in (rounds, instants):
            if not ended.cancelled():
                ended.result()
    finally:
        keeper.close()


async def _rounds(keeper: "Maintainer", policy: Policy, thread: ThreadPoolExecutor) -> None:
    """Run a round every `interval`; in between, show the server that this holder is alive."""
    due = time.monotonic()
    while True:
        if time.monotonic() >= due:
            report = await _in(thread, keeper.round, keeper)
            for problem in report.problems:
                logger.warning("maintenance of the log: %s", problem)
            due = time.monotonic() + policy.interval
        else:
            await _in(thread, keeper.ping, keeper)
        await asyncio.sleep(min(policy.instants, max(0.0, due - time.monotonic())))


async def _instants(url: str, policy: Policy) -> None:
    """Record instants in a dedicated thread until cancelled or until the session is lost."""
    with ThreadPoolExecutor(1, "forge-instants") as thread:
        keeper = await _in(thread, lambda: Maintainer.open(url, policy))
        try:
            await _in(thread, keeper.record_instants, keeper)
        finally:
            keeper.close()


async def _in(thread: ThreadPoolExecutor, work: Callable[[], T], keeper: "Maintainer | None" = None) -> T:
    """Run the work in the thread; when cancelled, stop the work and return only after it has stopped."""
    future = asyncio.get_running_loop().run_in_executor(thread, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if keeper is not None:
            keeper.stop()
        await asyncio.wait([future])
        failed = future.exception()
        if keeper is None and failed is None and isinstance(opened := future.result(), Maintainer):
            opened.close()
        raise


class Maintainer:
    """A session that maintains the log once it holds the lease."""

    def __init__(self, session: HeldSession, policy: Policy) -> None:
        self._session = session
        self._connection = session.connection
        self._policy = policy
        self._stopped = threading.Event()
        self._instants = InstantRecorder(session)

    @classmethod
    def open(cls, url: str, policy: Policy) -> Self:
        silence = max(10.0, 5 * min(policy.instants, policy.interval))
        settings = {
            "lock_timeout": _LOCK_TIMEOUT,
            "idle_in_transaction_session_timeout": "10s",
            "forge.refreshing": "yes",  # our own DDL affects no tracked table
        }
        session = HeldSession.open(url, "forge maintenance", silence=silence, settings=settings)
        try:
            with typed_errors():
                require_installed(session.connection)
        except BaseException:
            session.close()
            raise
        return cls(session, policy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, and with it the lease."""
        self._session.close()

    def stop(self) -> None:
        """Cancel the running statement and start no other; called from another thread."""
        self._stopped.set()
        self._session.stop()

    def elected(self) -> bool:
        """Tell whether this session is the one that maintains; if so, it stays the leader until it ends."""
        return self._session.take(leases.MAINTENANCE)

    def holder(self) -> leases.LeaseHolder | None:
        """Return the session that maintains the log."""
        return self._session.holder(leases.MAINTENANCE)

    def round(self, *, instant: bool = False) -> MaintenanceReport:
        """Do all pending work, and record an instant if asked. The report lists the steps that failed."""
        report = MaintenanceReport()
        trimmer = Trimmer(self._connection, self._policy, report)
        now: datetime = self._value("SELECT clock_timestamp()").astimezone(UTC)
        kept = first_kept(now, self._policy)
        spared = kept - timedelta(days=self._policy.hold_days)
        with self._step(report, "identity"):
            self._value("SELECT (forge.current_identity()).id")
        self._refresh(report)
        with self._step(report, "partitions ahead"):
            made = partitions.make_first(self._connection, now.date())
            report.made = [partitions.partition_name(day) for day in made]
        with self._step(report, "partitions"):
            trimmer.finish()
            trimmer.days(now)
        with self._step(report, "overflow"):
            behind = unread.overflow_unread(self._connection)
            report.trimmed_rows += trimmer.overflow(spared if behind else kept)
        with self._step(report, "consumers"):
            trimmer.rows("trim_once", before=midnight(spared))
            trimmer.rows("trim_barriers", before=midnight(spared))
        with self._step(report, "inbox"):
            trimmer.rows("trim_inbox", before=midnight(spared))
        with self._step(report, "leases"):
            self._connection.execute(maintenance("trim_leases"))
        with self._step(report, "mutation keys"):
            trimmer.rows("trim_keys", before=now - KEYS_KEPT)
        with self._step(report, "payloads"):
            report.trimmed_payloads = trimmer.rows("trim_payloads", before=now - PAYLOADS_KEPT)
        with self._step(report, "instants"):
            if instant:
                self.record_instant()
            report.trimmed_instants = trimmer.rows("trim_instants", before=midnight(kept))
        with self._step(report, "seals"):
            report.sealed = self._seal()
        return report

    def ping(self) -> None:
        """Send something, so that the server does not end the session as hung; raise if the session is lost."""
        self._session.ping()

    def record_instants(self) -> None:
        """Record an instant every `instants` seconds, until stopped."""
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._policy.instants
            with contextlib.suppress(psycopg.errors.LockNotAvailable):  # recorded next time
                self.record_instant()

    def record_instant(self) -> bool:
        """Record an instant and what was committed by then, if that changed since the last one."""
        return self._instants.record()

    def _seal(self) -> int:
        """Seal committed rows where the log is sealed; return how many. The next round seals the rest."""
        deadline = time.monotonic() + BUDGET
        total = 0
        with contextlib.suppress(psycopg.errors.LockNotAvailable):  # a redaction is running
            while time.monotonic() < deadline and (rows := self._value("SELECT forge.seal_page(%s)", _SEALED)):
                total += rows
            self._value("SELECT forge.forget_seals()")
        return total

    def _refresh(self, report: MaintenanceReport) -> None:
        """Bring capture up to date with the tables' definitions, one table at a time."""
        tables = self._connection.execute(maintenance("tracked")).fetchall()
        for tracked, name in tables:
            with self._step(report, f"definition of {name}"), self._connection.transaction():
                self._connection.execute("SELECT set_config('forge.refreshing', '', true)")
                report.refreshed += bool(self._value("SELECT forge.refresh(%s)", tracked))

    def _value(self, statement: LiteralString, *values: Any) -> Any:
        row = self._connection.execute(statement, values).fetchone()
        return row[0] if row else None

    @contextlib.contextmanager
    def _step(self, report: MaintenanceReport, name: str) -> Iterator[None]:
        """Run a step of a round so that its failure stops no other step, unless the session is lost or stopped."""
        if self._stopped.is_set():
            raise psycopg.OperationalError("maintenance was stopped")
        try:
            yield
        except psycopg.Error as error:
            if self._connection.closed or self._stopped.is_set():
                raise
            report.problems.append(f"{name}: {_line(error)}")


def _line(error: Exception) -> str:
    typed = translate(error) if isinstance(error, psycopg.Error) else None
    return one_line(typed or error)
