"""Run queries and mutations: each in its own transaction, and each query on a known snapshot.

A query runs in a read-only REPEATABLE READ transaction. Its *coverage* is the snapshot that its result contains. On the
primary, this is the transaction's snapshot. A replica's snapshots do not show writers in flight, so on a replica it is
the snapshot that the primary had at a WAL position that the replica has passed. `lsn` is a position that every later
run must have passed, so that it cannot show less than this run.

A mutation runs in one transaction with its context set (actor, function, trace). It is retried after a serialization
failure or a deadlock. Its answer has its transaction number: the first push whose snapshot contains that number
contains the mutation. A call that may arrive twice has a `Once`, which stores the answer of the first call.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec
import psycopg
from psycopg_pool import PoolTimeout

from forge.backoff import Backoff
from forge.cursor import Snapshot, wal_position
from forge.errors import CallInProgress, ForgeError, QueryFailed, QueryRefused, ServerError, one_line
from forge.postgres.connection import AsyncConnection, connect_async, translate
from forge.postgres.leases import MAINTENANCE
from forge.postgres.session import ANALYSIS, OWN
from forge.react import catalog
from forge.react.analyses import Analyses, kinds
from forge.react.database import Db, Parameters, QueryContext, WatchedDb, bound_reads
from forge.react.index import BoundRead
from forge.react.pools import _BEGIN, Pool, Pools, _pool, began, ended, identity_statements
from forge.react.readset import ReadAnalysis
from forge.react.registry import Auth, Call, Mutation
from forge.tasks import spawn
from forge.tracking.context import transaction
from forge.tracking.current import Current, context

_log = logging.getLogger(__name__)
"""A statement, the role that runs it, and the kinds of its parameters."""
TRIES: Final = 4
HOLDERS: Final = 4
"""Maximum number of snapshots held for several runs at once."""
_PRIMARY: Final = "SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()::text"
_MAINTAINER: Final = (
    f"SELECT concat_ws(', ', 'pid ' || pid, application_name) FROM forge.held_lease WHERE name = '{MAINTENANCE}'"
)
_REPLICA: Final = "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()::text END"
MOST_WRITTEN: Final = 1000
"""Maximum number of a mutation's rows that are read to find its tables."""
_NUMBER: Final = "SELECT pg_catalog.pg_current_xact_id_if_assigned()::text"
# Run everything deferred with the mutation's role; everything after it runs as Forge.
_SETTLED: Final = "SET CONSTRAINTS ALL IMMEDIATE; RESET ROLE"
_UNSCANNED: Final = "SET LOCAL enable_seqscan = off"
_WRITTEN: Final = f"""
    SELECT pg_catalog.pg_current_xact_id_if_assigned()::text,
           coalesce(array_agg(DISTINCT v.schema_name || '.' || v.table_name), '{{}}'), count(*)
    FROM (SELECT l.version FROM forge.forge_event_log l
          WHERE l.transaction_id = pg_catalog.pg_current_xact_id_if_assigned()
            AND l.day >= (now() AT TIME ZONE 'UTC')::date
          LIMIT {MOST_WRITTEN + 1}) l
    JOIN forge.table_version v ON v.id = l.version"""
_STALE_PLAN: Final = "RevalidateCachedQuery"  # messages are in the server's language
_RACES: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)


class _Again(Exception):
    """The server reports an error that a retry may fix."""


class Reached(msgspec.Struct, frozen=True):
    """Progress of the log: its snapshot, and a WAL position after everything in it."""

    snapshot: Snapshot
    lsn: int


class RunOutcome(msgspec.Struct, frozen=True):
    """The outcome of a run: its value, its reads, and its coverage."""

    value: Any
    reads: Sequence[BoundRead]
    volatile: frozenset[str]
    coverage: Snapshot
    lsn: int


class MutationAnswer(msgspec.Struct, frozen=True):
    """The answer of a mutation and its transaction number; None when it wrote nothing."""

    value: Any
    xid: str | None
    tables: frozenset[str] | None = None
    """The tracked tables it wrote, if a listener asked for them and the rows are not too many."""
    repeated: bool = False
    """Whether this is the stored answer of an earlier call and nothing ran."""


class Once(Protocol):
    """Make a mutation run once for any number of calls. Both methods run in the mutation's transaction."""

    async def known(self, connection: AsyncConnection, /) -> MutationAnswer | None:
        """Return the answer of an earlier call; None if there is none: then other calls are locked out until this ends.

        Raises CallInProgress while another call is running, so that no call waits for it on a connection.
        """

    async def keep(self, connection: AsyncConnection, answer: MutationAnswer, /) -> None:
        """Store the answer; raises a unique violation if another call was faster."""


class Runner:
    """Connection pools for the primary and the replicas, and the cached analyses of statements."""

    def __init__(
        self,
        url: str,
        *,
        replicas: Sequence[str] = (),
        connections: int = 16,
        live_connections: int = 8,
        timeout: float = 30.0,
    ) -> None:
        self._url = url
        self._timeout = timeout
        self.connections = connections
        """Number of connections per server for one-shot calls."""
        self._primary = Pools(url, connections, live_connections)
        self._replicas = [Pools(replica, connections, live_connections) for replica in replicas]
        # a separate pool: the holder of a snapshot waits for runs that need connections too
        self._holders = _pool(url, HOLDERS, OWN)
        # a separate connection, always open: it tells a busy server from an unreachable one
        self._probe = _pool(url, 1, OWN, least=1)
        self._analyses = Analyses()
        self._declared: dict[tuple[str, ...], ReadAnalysis] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._epoch = 0
        self._analyst: AsyncConnection | None = None
        self._analysing = asyncio.Lock()
        self.fallbacks = 0
        self.on_forget: list[Callable[[], None]] = []
        """Called when definitions changed: cached analyses and results are then invalid."""
        self.on_commit: Callable[[int, frozenset[str] | None], None] | None = None
        """Called with a mutation's transaction and the tracked tables it wrote, before the caller gets the answer."""

    async def open(self) -> None:
        """Connect to the primary; raise at once if the server is unreachable."""
        connection = await connect_async(self._url)
        await connection.close()
        for pool in self._pools():
            await pool.open()

    async def close(self) -> None:
        if self._endings:
            await asyncio.wait(self._endings)
        for pool in self._pools():
            await pool.close()
        if self._analyst is not None:
            await self._analyst.close()

    def _pools(self) -> list[Pool]:
        served = (pool for server in (self._primary, *self._replicas) for pool in (server.calls, server.live))
        return [*served, self._holders, self._probe]

    def forget(self) -> None:
        """Drop everything cached about statements, because definitions changed."""
        self._epoch += 1
        self._analyses.clear()
        self._declared.clear()
        for observer in self.on_forget:
            observer()

    async def query(
        self,
        call: Call,
        *,
        reached: Reached | None = None,
        floor: int = 0,
        snapshot: str | None = None,
        reads: list[BoundRead] | None = None,
        live: bool = False,
    ) -> RunOutcome:
        """Run a query: on a replica that has passed the known position, otherwise on the primary.

        A run for subscribers is `live`: it never waits for a connection behind one-shot calls. It appends its reads to
        `reads` during the run, so that they are known even if the run fails.
        """
        for tried in range(1, TRIES + 1):
            try:
                if call.query.own:
                    return await self._apart(call)
                return await self._query(call, reached, floor, snapshot, [] if reads is None else reads, live=live)
            except _Again as again:
                if tried == TRIES:
                    raise QueryFailed(f"{call.query.name} lost every race: {again}", fix="try again") from again
                await asyncio.sleep(random.uniform(0, 0.01 * 2**tried))
        raise AssertionError

    async def _query(
        self,
        call: Call,
        reached: Reached | None,
        floor: int,
        snapshot: str | None,
        reads: list[BoundRead],
        *,
        live: bool,
    ) -> RunOutcome:
        if reached is not None and snapshot is None and not call.query.consistent and self._replicas:
            needed = max(reached.lsn, floor)
            for replica in random.sample(self._replicas, len(self._replicas)):
                async with self._errors():
                    outcome = await self._on_replica(replica.of(live=live), call, reached.snapshot, needed, reads)
                if outcome is not None:
                    return outcome
            self.fallbacks += 1
        async with self._errors(), self._reading(self._primary.of(live=live)) as connection:
            seen, lsn = await began(connection, call.auth, _PRIMARY, snapshot)
            return await self._run(connection, call, Snapshot.parse(seen), wal_position(lsn), reads)

    async def _apart(self, call: Call) -> RunOutcome:
        """Run one of Forge's own queries. It connects on its own and may be slow, so it takes no pooled connection."""
        reached = await self.reached()
        async with self._errors(), _said(call), self._in_time(call.query.name):
            value = await call.query.function(QueryContext(_NoDb(), call.auth), **call.arguments)
        return RunOutcome(value, (), frozenset(), reached.snapshot, reached.lsn)

    async def _on_replica(
        self,
        pool: Pool,
        call: Call,
        coverage: Snapshot,
        needed: int,
        reads: list[BoundRead],
    ) -> RunOutcome | None:
        """Return the outcome of a run on a replica; None when the replica lags or is unreachable."""
        try:
            async with self._reading(pool, timeout=0.5) as connection:
                # read before the snapshot is taken, so that the snapshot contains at least this position
                passed = await (await connection.execute(_REPLICA)).fetchone()
                # a promoted replica has its own timeline
                if passed is None or passed[0] is None or wal_position(passed[0]) < needed:
                    return None
                (lsn,) = await began(connection, call.auth, _REPLICA, None)
                if lsn is None:
                    return None
                return await self._run(connection, call, coverage, wal_position(lsn), reads)
        except (psycopg.OperationalError, PoolTimeout):
            return None

    async def _run(
        self, connection: AsyncConnection, call: Call, coverage: Snapshot, lsn: int, reads: list[BoundRead]
    ) -> RunOutcome:
        reads.clear()
        analyze = partial(self._analyze, call.auth.role)
        db = WatchedDb(connection, call.arguments, analyze, reads)
        if call.query.reads:
            reads += bound_reads(await self._declare(call.query.reads), {})
            db = _DeclaredDb(connection, call.arguments, analyze, reads)
        try:
            async with _said(call), self._in_time(call.query.name):
                value = await call.query.function(QueryContext(db, call.auth), **call.arguments)
        except psycopg.errors.FeatureNotSupported as error:
            if error.diag.source_function == _STALE_PLAN:  # the result types of a prepared statement changed
                await connection.close()
                raise _Again(one_line(error)) from error
            raise
        return RunOutcome(value, reads, frozenset(db.volatile), coverage, lsn)

    @contextlib.asynccontextmanager
    async def _reading(self, pool: Pool, timeout: float | None = None) -> AsyncIterator[AsyncConnection]:
        """Yield a connection for reading; its transaction is ended in the background afterwards."""
        connection = await pool.getconn(timeout)
        try:
            yield connection
        finally:
            spawn(ended(pool, connection), self._endings, _log)

    @contextlib.asynccontextmanager
    async def shared_snapshot(self) -> AsyncIterator[str]:
        """Yield a snapshot that several runs may use inside this context."""
        async with self._errors(), self._holders.connection() as connection:
            await connection.execute(_BEGIN)
            try:
                row = await (await connection.execute("SELECT pg_export_snapshot()")).fetchone()
                assert row is not None
                yield row[0]
            finally:
                if not connection.closed:
                    await connection.execute("ROLLBACK")

    async def mutate(
        self,
        mutation: Mutation,
        arguments: Mapping[str, Any],
        auth: Auth,
        trace: str | None = None,
        finish: Callable[[Any], Any] = lambda value: value,
        once: Once | None = None,
    ) -> MutationAnswer:
        """Run a mutation in one transaction. `finish` turns its return value into the answer; if it fails, all fails.

        While another node runs a call with the same `once`, this call waits without a connection.
        """
        tried = 0
        backoff = Backoff(first=0.02, most=0.5)
        deadline = asyncio.get_running_loop().time() + self._timeout
        while True:
            try:
                async with self._errors(), self._primary.calls.connection() as connection:
                    return await self._mutate(connection, mutation, arguments, auth, trace, finish, once)
            except CallInProgress:
                if asyncio.get_running_loop().time() > deadline:
                    message = f"another call of {mutation.name} with this key ran for {self._timeout:g} s"
                    raise QueryFailed(message, fix="send it again: what that one did is its answer") from None
                await asyncio.sleep(backoff.next())
            except _Again as again:
                tried += 1
                if tried == TRIES:
                    raise QueryFailed(f"{mutation.name} lost every race: {again}", fix="try again") from again
                await asyncio.sleep(random.uniform(0, 0.01 * 2**tried))

    async def _mutate(
        self,
        connection: AsyncConnection,
        mutation: Mutation,
        arguments: Mapping[str, Any],
        auth: Auth,
        trace: str | None,
        finish: Callable[[Any], Any],
        once: Once | None,
    ) -> MutationAnswer:
        async with transaction(connection, user_id=auth.user, function_name=mutation.name, trace_id=trace):
            if once is not None:
                async with self._in_time(mutation.name):
                    known = await once.known(connection)
                if known is not None:
                    return known
            for statement in identity_statements(auth):
                await connection.execute(statement)
            async with self._in_time(mutation.name):
                value = finish(await mutation.function(QueryContext(Db(connection, arguments), auth), **arguments))
            answer = MutationAnswer(value, *await self._written(connection))
            if once is not None:
                await connection.execute(_SETTLED)
                try:
                    await once.keep(connection, answer)
                except psycopg.errors.UniqueViolation as error:  # this snapshot is older than the end of the other call
                    raise _Again(one_line(error)) from error
        if answer.xid is not None and self.on_commit is not None:
            self.on_commit(int(answer.xid), answer.tables)
        return answer

    async def _written(self, connection: AsyncConnection) -> tuple[str | None, frozenset[str] | None]:
        """Return the transaction number, and the written tables if a listener wants them. Follows the last write."""
        if self.on_commit is None:
            row = await (await connection.execute(_NUMBER)).fetchone()
            return row[0] if row else None, None
        await connection.execute(f"{_SETTLED}; {_UNSCANNED}")  # never read the log with a sequential scan
        row = await (await connection.execute(_WRITTEN, prepare=True)).fetchone()
        assert row is not None
        xid, tables, rows = row
        return xid, frozenset(tables) if rows <= MOST_WRITTEN else None

    @contextlib.asynccontextmanager
    async def _in_time(self, name: str) -> AsyncIterator[None]:
        """Apply the timeout: a function that hangs must not hold its connection forever."""
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise QueryFailed(
                f"{name} took longer than {self._timeout:g} s", fix="make it quicker, or raise timeout"
            ) from None

    async def reached(self) -> Reached:
        """Return the primary's present position; uses a dedicated connection, so it does not wait for other work."""
        async with self._errors(), self._probe.connection() as connection:
            row = await (await connection.execute(_PRIMARY)).fetchone()
            assert row is not None
            return Reached(Snapshot.parse(row[0]), wal_position(row[1]))

    async def maintainer(self) -> str | None:
        """Return the session that maintains the log, in a form for operators; uses the connection of `reached`."""
        async with self._errors(), self._probe.connection() as connection:
            row = await (await connection.execute(_MAINTAINER)).fetchone()
            return None if row is None else str(row[0])

    async def _analyze(self, role: str | None, statement: str, parameters: Parameters, /) -> ReadAnalysis:
        """Analyse the reads of a statement; they may depend on its parameter types and the reader's search_path."""
        asked = (statement, role, kinds(parameters))
        known = self._analyses.get(asked)
        if known is None:
            epoch = self._epoch
            async with self._analysing, self._errors():
                known = self._analyses.get(asked)
                if known is None:
                    known = await catalog.analyze(await self._analyst_connection(), statement, parameters, role)
            if epoch == self._epoch:
                self._analyses.put(asked, known)
        return known

    async def _declare(self, names: tuple[str, ...]) -> ReadAnalysis:
        known = self._declared.get(names)
        if known is None:
            epoch = self._epoch
            async with self._analysing, self._errors():
                known = await catalog.declared(await self._analyst_connection(), names)
            if epoch == self._epoch:
                self._declared[names] = known
        return known

    async def _analyst_connection(self) -> AsyncConnection:
        if self._analyst is None or self._analyst.closed:
            self._analyst = await connect_async(self._url, settings=ANALYSIS, application_name="forge analysis")
        return self._analyst

    @contextlib.asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        """Convert the server's errors to Forge's errors."""
        try:
            yield
        except _RACES as error:
            raise _Again(one_line(error)) from error
        except PoolTimeout as error:
            raise ServerError("no connection to the database came free in time", fix="look at the server") from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise QueryFailed(
                f"the database refuses it: {one_line(error)}", fix="grant it to the role that asks"
            ) from error
        except psycopg.Error as error:
            typed: ForgeError | None = translate(error)
            if typed is None and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
                typed = ServerError(f"cannot reach the database: {one_line(error)}", fix="look at the server")
            raise typed or QueryFailed(
                f"the database refuses it: {one_line(error)}", fix="correct the statement"
            ) from error


class _NoDb(Db):
    """The database of a query that connects on its own: every statement is refused."""

    def __init__(self) -> None:
        pass


class _DeclaredDb(WatchedDb):
    """The database of a query that declares its reads; reads of its statements are added if they can be analysed."""

    async def _prepare(self, text: str, values: Parameters) -> None:
        with contextlib.suppress(QueryRefused):
            await super()._prepare(text, values)


def _said(call: Call) -> context:
    """Return the context of a query's run: its statements are reported under its own name and caller.

    It replaces the present context, because one run may serve many callers on a task that one request started.
    """
    return context.found_by(lambda: Current(call.auth.user, call.query.name), alone=True)
