"""Maintain the log: create partitions ahead, trim, record instants, and poll for DDL where needed.

One node at a time does this: the one whose session holds the lease (`forge.postgres.leases`). When it dies, its session
ends and another node takes over. A holder that hangs loses its session, because the server ends sessions that are
silent for some seconds.

Invariants:

- No writer waits. Every lock is requested with a timeout of 100 ms and, if that fails, again in the next round; locks
  that conflict with writing to the log are never requested.
- Trimming is recorded in `forge.trimmed`, and the record is committed, before any trimmed row disappears: a reader that
  misses a trimmed row sees the record. So a partition that a running transaction has written to is not trimmed, and
  no partition is removed while a transaction's snapshot is older than the record.
- Retention drops whole days: each is kept until `retention_days` have passed since its end. The size cap drops the
  oldest whole days until the log is below it; today and a day that ended within the last hour always stay, so
  the log may be larger than the cap.
- A day past retention that a consumer has not read is held for `hold_days`, unless the log is over its cap; every
  round's report lists such days, and also what will be dropped unread within a day.
- A pair (instant, snapshot) in `forge.instant` means: all that the snapshot sees was committed before the instant.
  Pairs are recorded while something changes, `instants` seconds apart; both values only grow. The leader records
  them in a separate thread and session, so no round, no lock and no busy event loop delays them.
- Where the log is sealed (`forge.history.chain`), every round seals what was committed by then, page by page.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Self, TypeVar

import msgspec
import psycopg
from psycopg import sql

from forge.backoff import Backoff
from forge.changelog import partitions, unread
from forge.changelog.install import require_installed
from forge.cursor import Snapshot
from forge.errors import ConfigError, ServerError, one_line
from forge.postgres import leases
from forge.postgres.connection import Connection, connect, translate, typed_errors

GRACE: Final = timedelta(hours=1)
PAYLOADS_KEPT: Final = timedelta(days=1)
KEYS_KEPT: Final = timedelta(days=7)

_LOCK_TIMEOUT: Final = "100ms"
_BATCH: Final = 1000
_SEALED: Final = 1000
_BUDGET: Final = 5.0
_SETTLE: Final = 1.0
_STANDBY: Final = 5.0
_LONGEST_PAUSE: Final = 30.0

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Policy(msgspec.Struct, frozen=True):
    """Retention settings and intervals of maintenance; times in seconds."""

    retention_days: int = 30
    size_limit: int | None = None
    interval: float = 60.0
    instants: float = 1.0
    hold_days: int = 7
    """Number of days past retention for which a day is held that a consumer has not read."""

    def __post_init__(self) -> None:
        limits = [
            (self.retention_days >= 0, "retention_days", "0 or more"),
            (self.size_limit is None or self.size_limit > 0, "size_limit", "a number of bytes, or nothing"),
            (self.hold_days >= 0, "hold_days", "0 or more"),
            (self.interval > 0, "interval", "more than 0 seconds"),
            (self.instants > 0, "instants", "more than 0 seconds"),
        ]
        for holds, name, wanted in limits:
            if not holds:
                raise ConfigError(f"{name} cannot be {getattr(self, name)}", fix=f"set it to {wanted}")


class MaintenanceReport(msgspec.Struct):
    """Result of one round. `waiting` lists days to drop that are still in use; a later round drops them."""

    busy: bool = False
    made: list[str] = msgspec.field(default_factory=list)
    dropped: list[str] = msgspec.field(default_factory=list)
    waiting: list[str] = msgspec.field(default_factory=list)
    held: list[str] = msgspec.field(default_factory=list)
    """Days past retention that are kept for a consumer that has not read them."""
    trimmed_rows: int = 0
    trimmed_instants: int = 0
    trimmed_payloads: int = 0
    refreshed: int = 0
    sealed: int = 0
    size: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


def doomed(sizes: Mapping[str, int], now: datetime, policy: Policy) -> dict[date, str]:
    """Return the days to drop, in order, each with its reason: `retention` or `size`. `sizes` is by partition name."""
    days = sorted(day for name in sizes if (day := partitions.partition_day(name)) is not None and _ended(day, now))
    kept = _first_kept(now, policy)
    going = {day: "retention" for day in days if day < kept}
    rest = _rest(sizes, going)
    for day in days:
        if policy.size_limit is not None and rest > policy.size_limit and day not in going:
            going[day] = "size"
            rest -= sizes[partitions.partition_name(day)]
    return going


def _rest(sizes: Mapping[str, int], going: Iterable[date]) -> int:
    return sum(sizes.values()) - sum(sizes[partitions.partition_name(day)] for day in going)


def _until_dropped(policy: Policy) -> Policy:
    """Return the policy under which days are dropped even if a consumer has not read them."""
    return msgspec.structs.replace(policy, retention_days=policy.retention_days + policy.hold_days)


def _first_kept(now: datetime, policy: Policy) -> date:
    return now.date() - timedelta(days=policy.retention_days)


def run_once(url: str, policy: Policy = Policy()) -> MaintenanceReport:  # noqa: B008
    """Run one round; if another node maintains the log, do nothing and report `busy`."""
    with typed_errors(), Maintainer.open(url, policy) as keeper:
        return keeper.round(instant=True) if keeper.elected() else MaintenanceReport(busy=True)


async def maintain(url: str, policy: Policy = Policy()) -> None:  # noqa: B008
    """Maintain the log without end: at once if no other node does, else as soon as that node is gone.

    A failure of the very first connection is raised: the server is not there, or refuses the password or the role.
    Later a lost connection or another transient error is logged as a warning and retried. Permanent errors are raised
    at any time: Forge is not installed, or its schema is newer than this program.
    """
    backoff = Backoff(0.5, _LONGEST_PAUSE)
    connected = False
    with ThreadPoolExecutor(1, "forge-maintenance") as thread:
        while True:
            pause = min(policy.interval, _STANDBY) * random.uniform(0.5, 1.5)
            try:
                keeper = await _in(thread, lambda: Maintainer.open(url, policy))
                connected = True
                await _hold(url, keeper, policy, thread)
                backoff.reset()
            except (psycopg.Error, ServerError) as error:
                if not connected:
                    raise
                pause = backoff.next()
                logger.warning("maintenance of the log is interrupted: %s", _line(error))
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

    def __init__(self, connection: Connection, policy: Policy) -> None:
        self._connection = connection
        self._policy = policy
        self._stopped = threading.Event()
        self._value_seen: int | None = None
        self._unfinished: list[int] = []

    @classmethod
    def open(cls, url: str, policy: Policy) -> Self:
        connection = connect(url, application_name="forge maintenance")
        silence = max(10.0, 5 * min(policy.instants, policy.interval))
        try:
            with typed_errors():
                require_installed(connection)
                for name, value in (
                    ("lock_timeout", _LOCK_TIMEOUT),
                    ("idle_session_timeout", f"{silence:.0f}s"),
                    ("idle_in_transaction_session_timeout", "10s"),
                    ("forge.refreshing", "yes"),  # our own DDL affects no tracked table
                ):
                    connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        except BaseException:
            connection.close()
            raise
        return cls(connection, policy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, and with it the lease."""
        self._connection.close()

    def stop(self) -> None:
        """Cancel the running statement and start no other; called from another thread."""
        self._stopped.set()
        with contextlib.suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=2)

    def elected(self) -> bool:
        """Tell whether this session is the one that maintains; if so, it stays the leader until it ends."""
        return leases.take(self._connection, leases.MAINTENANCE)

    def round(self, *, instant: bool = False) -> MaintenanceReport:
        """Do all pending work, and record an instant if asked. The report lists the steps that failed."""
        report = MaintenanceReport()
        now: datetime = self._value("SELECT clock_timestamp()").astimezone(UTC)
        kept = _first_kept(now, self._policy)
        with self._step(report, "identity"):
            self._value("SELECT (forge.current_identity()).id")
        self._refresh(report)
        with self._step(report, "partitions ahead"):
            made = partitions.make_first(self._connection, now.date())
            report.made = [partitions.partition_name(day) for day in made]
        with self._step(report, "partitions"):
            self._finish(report)
            self._trim(report, now)
        spared = kept - timedelta(days=self._policy.hold_days)
        with self._step(report, "overflow"):
            behind = unread.overflow_unread(self._connection)
            report.trimmed_rows += self._trim_overflow(spared if behind else kept)
        with self._step(report, "consumers"):
            self._batches(_TRIM_ONCE, before=_midnight(spared))
            self._batches(_TRIM_BARRIERS, before=_midnight(spared))
        with self._step(report, "inbox"):
            self._batches(_TRIM_INBOX, before=_midnight(spared))
        with self._step(report, "leases"):
            self._connection.execute(_TRIM_LEASES)
        with self._step(report, "mutation keys"):
            self._batches(_TRIM_KEYS, before=now - KEYS_KEPT)
        with self._step(report, "payloads"):
            report.trimmed_payloads = self._batches(_TRIM_PAYLOADS, before=now - PAYLOADS_KEPT)
        with self._step(report, "instants"):
            if instant:
                self.record_instant()
            report.trimmed_instants = self._batches(_TRIM_INSTANTS, before=_midnight(kept))
        with self._step(report, "seals"):
            report.sealed = self._seal()
        return report

    def ping(self) -> None:
        """Send something, so that the server does not end the session as hung; raise if the session is lost."""
        self._value("SELECT 1")

    def record_instants(self) -> None:
        """Record an instant every `instants` seconds, until stopped."""
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._policy.instants
            with contextlib.suppress(psycopg.errors.LockNotAvailable):  # recorded next time
                self.record_instant()

    def record_instant(self) -> bool:
        """Record an instant and what was committed by then, if that changed since the last one."""
        value = self._value("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM forge.event_id")
        moved = value != self._value_seen
        if not moved and not self._unfinished:
            return False
        # One session at a time, and the snapshot comes after the lease: otherwise a pair might not grow in both values.
        if not leases.take(self._connection, leases.INSTANTS):
            return False
        # The commit waits for no disk and no standby: an instant lost in a crash only leaves a gap.
        row = self._connection.execute(
            "INSERT INTO forge.instant (at, snapshot)"
            " SELECT greatest(clock_timestamp(), (SELECT max(at) + interval '1 microsecond' FROM forge.instant)),"
            " pg_current_snapshot() FROM set_config('synchronous_commit', 'off', true)"
            " WHERE %(moved)s OR EXISTS (SELECT FROM unnest(%(unfinished)s::text[]) x"
            " WHERE pg_visible_in_snapshot(x::xid8, pg_current_snapshot()))"
            " RETURNING snapshot::text, pg_current_xact_id()::text",
            {"moved": moved, "unfinished": [str(xid) for xid in self._unfinished]},
        ).fetchone()
        if row is None:
            return False
        snapshot, own = Snapshot.parse(row[0]), int(row[1])
        if moved:
            # Transactions that took an id up to this value have a number below our own. The newest may be missing in
            # `running`.
            self._value_seen = value
            self._unfinished = [*snapshot.running, *range(snapshot.xmax, own)]
        else:
            self._unfinished = [xid for xid in self._unfinished if not snapshot.sees(xid)]
        return True

    def _seal(self) -> int:
        """Seal committed rows where the log is sealed; return how many. The next round seals the rest."""
        deadline = time.monotonic() + _BUDGET
        total = 0
        with contextlib.suppress(psycopg.errors.LockNotAvailable):  # a redaction is running
            while time.monotonic() < deadline and (rows := self._value("SELECT forge.seal_page(%s)", _SEALED)):
                total += rows
            self._value("SELECT forge.forget_seals()")
        return total

    def _refresh(self, report: MaintenanceReport) -> None:
        """Bring capture up to date with the tables' definitions, one table at a time."""
        tables = self._connection.execute(
            "SELECT id, table_name FROM forge.tracked_table WHERE disabled_at IS NULL ORDER BY id"
        ).fetchall()
        for tracked, name in tables:
            with self._step(report, f"definition of {name}"), self._connection.transaction():
                self._connection.execute("SELECT set_config('forge.refreshing', '', true)")
                report.refreshed += bool(self._value("SELECT forge.refresh(%s)", tracked))

    def _finish(self, report: MaintenanceReport) -> None:
        """Complete what earlier rounds started."""
        for day in partitions.detaching(self._connection):
            with self._giving_way(report, day):
                partitions.finish(self._connection, day)
        for day in partitions.detached(self._connection):
            with self._giving_way(report, day):
                partitions.drop(self._connection, day)
                report.dropped.append(partitions.partition_name(day))

    def _trim(self, report: MaintenanceReport, now: datetime) -> None:
        sizes = partitions.sizes(self._connection)
        report.size = sum(sizes.values())
        going = self._held_back(report, sizes, now)
        limit, rest = self._policy.size_limit, _rest(sizes, going)
        if limit is not None and rest > limit:
            report.problems.append(
                f"the log has {rest} bytes, more than its limit of {limit}: all of it is too new to drop"
            )
        if not going:
            return
        partitions.announce(self._connection, now.date(), since=max(going) + timedelta(days=1))
        recorded = [day for day in sorted(going) if self._record(report, day, going[day])]
        self._settle(recorded)
        for day in recorded:
            if partitions.detaching(self._connection) or not self._settled(day):
                report.waiting.append(partitions.partition_name(day))
                continue
            with self._giving_way(report, day):
                partitions.detach(self._connection, day)
                partitions.drop(self._connection, day)
                report.dropped.append(partitions.partition_name(day))

    def _held_back(self, report: MaintenanceReport, sizes: Mapping[str, int], now: datetime) -> dict[date, str]:
        """Return the days to drop, without held ones; report consumers that lose unread days, or soon will."""
        policy = self._policy
        going = doomed(sizes, now, policy)
        last = doomed(sizes, now + timedelta(days=1), _until_dropped(policy))
        waiting = unread.unread(self._connection, {**going, **last})
        held = unread.hold(going, waiting, _first_kept(now, policy), policy.hold_days)
        for day in sorted(held.kept):
            rest = _rest(sizes, going) + sum(sizes[partitions.partition_name(each)] for each in held.kept)
            if policy.size_limit is not None and rest > policy.size_limit:
                held.lost[day] = held.kept.pop(day)
        for day, who in sorted(held.lost.items()):
            report.problems.append(f"{day} is dropped though {', '.join(who)} has not read it: it has to be rewound")
        for day, who in sorted(waiting.items()):
            if day in held.kept:
                report.held.append(partitions.partition_name(day))
            if day not in held.lost and day in last:
                report.problems.append(
                    f"{', '.join(who)} has not read {day}, which is dropped within a day: see forge consumers"
                )
            elif day in held.kept:
                report.problems.append(
                    f"{', '.join(who)} has not read {day}, which is past retention and held until"
                    f" {day + timedelta(days=policy.retention_days + policy.hold_days + 1)}: see forge consumers"
                )
        return {day: reason for day, reason in going.items() if day not in held.kept}

    def _record(self, report: MaintenanceReport, day: date, reason: str) -> bool:
        """Record that a partition is trimmed; return False while a running transaction has written to it."""
        name = partitions.partition_name(day)
        writers = self._value(
            "SELECT count(*) FROM pg_locks WHERE relation = to_regclass(%s) AND mode = 'RowExclusiveLock'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            f"forge.{name}",
        )
        if writers:
            report.waiting.append(name)
            return False
        # Only at this point, in a snapshot that sees the rows of those writers.
        last = self._connection.execute(
            sql.SQL(
                "SELECT (SELECT max(o.id) FROM {0} o), l.transaction_id::text FROM {0} l WHERE l.id >= (SELECT first_id"
                " FROM forge.log_identity ORDER BY id DESC LIMIT 1) ORDER BY l.transaction_id DESC LIMIT 1"
            ).format(sql.Identifier("forge", name))
        ).fetchone() or (None, None)
        same = self._value(
            "SELECT count(*) FROM forge.trimmed"
            " WHERE partition = %s AND last_transaction::text IS NOT DISTINCT FROM %s",
            name,
            last[1],
        )
        if not same:
            rows = self._rows(name)
            self._connection.execute(
                "INSERT INTO forge.trimmed (partition, reason, rows, last_id, last_transaction)"
                " VALUES (%s, %s, %s, %s, %s::text::xid8)",
                (name, reason, rows, *last),
            )
            report.trimmed_rows += rows
        return True

    def _rows(self, name: str) -> int:
        """Return the number of rows in a partition: counted if it is small, else the planner's estimate."""
        relation = f"forge.{name}"
        estimate, pages = self._connection.execute(
            "SELECT reltuples, pg_relation_size(oid) / 8192 FROM pg_class WHERE oid = to_regclass(%s)",
            (relation,),
        ).fetchone() or (0, 0)
        if pages > 10_000 and estimate >= 0:
            return int(estimate)
        count = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier("forge", name))
        return int(self._value(count))

    def _settle(self, days: list[date]) -> None:
        """Give transactions that began before the records a moment to end."""
        deadline = time.monotonic() + _SETTLE
        while days and time.monotonic() < deadline and not all(map(self._settled, days)):
            time.sleep(0.02)

    def _settled(self, day: date) -> bool:
        """Tell whether every transaction that reads this database can see the record."""
        return not self._value(
            "SELECT count(*) FROM forge.trimmed t JOIN pg_stat_activity a ON a.datname = current_database()"
            " AND a.pid <> pg_backend_pid() AND a.backend_xmin IS NOT NULL AND age(a.backend_xmin) >= age(t.xmin)"
            " AND a.xact_start < t.trimmed_at + interval '10 seconds' WHERE t.partition = %s",
            partitions.partition_name(day),
        )

    def _trim_overflow(self, kept: date) -> int:
        """Delete the overflow's rows from before `kept`, oldest transactions first."""
        before = _midnight(kept)
        oldest = self._value("SELECT at FROM forge.forge_event_overflow ORDER BY transaction_id LIMIT 1")
        if oldest is None or oldest >= before:
            return 0
        record = self._value(
            "INSERT INTO forge.trimmed (partition, reason, rows) VALUES (%s, 'retention', 0) RETURNING id",
            partitions.OVERFLOW,
        )
        return self._batches(_TRIM_OVERFLOW, before=before, record=record)

    def _batches(self, statement: str, **values: Any) -> int:
        """Repeat a statement that deletes rows and returns their number, until nothing is left or time is up."""
        deadline = time.monotonic() + _BUDGET
        total = 0
        while time.monotonic() < deadline:
            row = self._connection.execute(statement.encode(), {**values, "batch": _BATCH}).fetchone()
            assert row is not None
            total += row[0]
            if row[0] < _BATCH:
                break
        return total

    def _value(self, statement: str | sql.Composed, *values: Any) -> Any:
        row = self._connection.execute(
            statement.encode() if isinstance(statement, str) else statement, values
        ).fetchone()
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

    @contextlib.contextmanager
    def _giving_way(self, report: MaintenanceReport, day: date) -> Iterator[None]:
        """Leave to the next round what cannot be locked in time."""
        try:
            yield
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            report.waiting.append(partitions.partition_name(day))


_TRIM_OVERFLOW: Final = """
    WITH oldest AS (
        SELECT ctid AS place, at FROM forge.forge_event_overflow ORDER BY transaction_id LIMIT %(batch)s
    ), gone AS (
        DELETE FROM forge.forge_event_overflow o USING oldest
        WHERE o.ctid = oldest.place AND oldest.at < %(before)s RETURNING o.id, o.transaction_id
    ), last AS (
        SELECT (SELECT max(id) FROM gone) AS id, transaction_id FROM gone
        WHERE id >= (SELECT first_id FROM forge.log_identity ORDER BY id DESC LIMIT 1)
        ORDER BY transaction_id DESC LIMIT 1
    ), recorded AS (
        UPDATE forge.trimmed t SET rows = t.rows + (SELECT count(*) FROM gone), trimmed_at = clock_timestamp(),
            snapshot = pg_current_snapshot(), last_id = greatest((SELECT id FROM last), t.last_id),
            last_transaction = coalesce((SELECT transaction_id FROM last), t.last_transaction)
        WHERE t.id = %(record)s
    )
    SELECT count(*) FROM gone"""

_TRIM_PAYLOADS: Final = """
    WITH gone AS (
        DELETE FROM forge.large_payload WHERE reference IN (
            SELECT reference FROM forge.large_payload WHERE at < %(before)s ORDER BY at LIMIT %(batch)s) RETURNING 1
    )
    SELECT count(*) FROM gone"""

_TRIM_ONCE: Final = """
    WITH gone AS (
        DELETE FROM forge.consumer_once WHERE (consumer, id) IN (
            SELECT consumer, id FROM forge.consumer_once WHERE at < %(before)s ORDER BY at LIMIT %(batch)s) RETURNING 1
    )
    SELECT count(*) FROM gone"""

_TRIM_INBOX: Final = """
    WITH gone AS (
        DELETE FROM forge.inbox WHERE (consumer, id) IN (
            SELECT consumer, id FROM forge.inbox WHERE at < %(before)s ORDER BY at LIMIT %(batch)s) RETURNING 1
    )
    SELECT count(*) FROM gone"""

_TRIM_KEYS: Final = """
    WITH gone AS (
        DELETE FROM forge.mutation_key WHERE (caller, key) IN (
            SELECT caller, key FROM forge.mutation_key WHERE at < %(before)s ORDER BY at LIMIT %(batch)s) RETURNING 1
    )
    SELECT count(*) FROM gone"""

# Delete leases of sessions that have ended: these never come back. Only the examined holder is removed: which sessions
# live is known as of the start of the statement, so a holder that replaced it in between would count as ended.
_TRIM_LEASES: Final = """
    WITH ended AS MATERIALIZED (
        SELECT name, pid, started FROM forge.lease WHERE NOT forge.lease_holds(pid, started)
    )
    DELETE FROM forge.lease l USING ended e
    WHERE l.name = e.name AND l.pid = e.pid AND l.started IS NOT DISTINCT FROM e.started"""

_TRIM_BARRIERS: Final = """
    WITH gone AS (
        DELETE FROM forge.consumer_barrier WHERE ctid IN (
            SELECT ctid FROM forge.consumer_barrier WHERE at < %(before)s LIMIT %(batch)s) RETURNING 1
    )
    SELECT count(*) FROM gone"""

# The last one before the limit stays: it is the answer for the time until the next one.
_TRIM_INSTANTS: Final = """
    WITH gone AS (
        DELETE FROM forge.instant WHERE at IN (
            SELECT at FROM forge.instant WHERE at < (SELECT max(at) FROM forge.instant WHERE at <= %(before)s)
            ORDER BY at LIMIT %(batch)s) RETURNING 1
    )
    SELECT count(*) FROM gone"""


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _ended(day: date, now: datetime) -> bool:
    """Tell whether a day is over, so that no transaction can be about to write to it."""
    return now >= _midnight(day + timedelta(days=1)) + GRACE


def _line(error: Exception) -> str:
    typed = translate(error) if isinstance(error, psycopg.Error) else None
    return one_line(typed or error)
