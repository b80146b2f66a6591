"""A writer: carries out its transactions on a connection of its own and remembers what it knows of each.

Every operation runs under a mark of its own, which its changes carry as trace_id and its rows as `m`. A failed
statement aborts its transaction, or its savepoint; a lost connection is made again. What is prepared is decided
sooner or later, whatever happens: by the writer when it can connect again, or by `settle` when all is over.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from forge.postgres.connection import parameters
from tests.checkers.history.model import Attempt, Effect, Outcome
from tests.checkers.history.plan import Operation, Transaction, Writer
from tests.checkers.history.tables import TABLES, statement
from tests.checkers.session_settings import with_settings

APPLICATION = "forge-history-writer"
_LOST = (psycopg.OperationalError, psycopg.InterfaceError)


class Undecided(Exception):
    """The connection was lost before the server said how the transaction ended."""


class WriterThread(threading.Thread):
    """One writer at work. After `join`, `attempts` is complete; `failure` is an error of the checker itself."""

    def __init__(self, number: int, plan: Writer, url: str, clock: Callable[[], float], deadline: float) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self.number = number
        self.plan = plan
        self.attempts: list[Attempt] = []
        self.failure: BaseException | None = None
        self._url = url
        self._clock = clock
        self._deadline = deadline
        self._prepared: list[tuple[str, bool, Attempt]] = []
        self._connection: psycopg.Connection | None = None

    def run(self) -> None:
        try:
            for number, transaction in enumerate(self.plan.transactions):
                time.sleep(max(0.0, transaction.at - self._clock()))
                if self._clock() > self._deadline:
                    break
                attempt = Attempt(f"w{self.number}.{number}", transaction.synchronous, effects=[], undone=[])
                self.attempts.append(attempt)
                self._attempt(transaction, attempt)
        except BaseException as error:
            self.failure = error
        finally:
            self._close()

    def settle(self) -> None:
        """Decide what is still prepared. Call it after `join`, with the server up."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            self._decide(connection)

    def _attempt(self, transaction: Transaction, attempt: Attempt) -> None:
        try:
            connection = self._connected()
        except _LOST as error:
            attempt.error = str(error)
            return
        try:
            self._carry_out(connection, transaction, attempt)
        except Undecided as error:
            attempt.outcome = Outcome.UNKNOWN
            attempt.error = str(error)
        except psycopg.Error as error:
            attempt.error = f"{type(error).__name__} {error}"
        finally:
            if connection.closed or connection.info.transaction_status is TransactionStatus.UNKNOWN:
                self._close()
            elif connection.info.transaction_status is not TransactionStatus.IDLE:
                with contextlib.suppress(psycopg.Error):
                    connection.execute("ROLLBACK")

    def _carry_out(self, connection: psycopg.Connection, transaction: Transaction, attempt: Attempt) -> None:
        connection.execute(
            f"BEGIN ISOLATION LEVEL {transaction.isolation};"
            f"SET LOCAL synchronous_commit = {'on' if transaction.synchronous else 'off'};"
            f"SET LOCAL forge.wakeup = '{'poll' if transaction.silent else ''}'"
        )
        self._operations(connection, transaction.operations, attempt, attempt.name)
        prepares = transaction.ending.endswith("prepared")
        if not prepares:
            time.sleep(transaction.delay / 1000)
        attempt.ended = self._clock()
        if transaction.ending == "rollback":
            connection.execute("ROLLBACK")
        elif transaction.ending == "commit":
            self._end(connection, "COMMIT")
            attempt.outcome = Outcome.COMMITTED
        else:
            self._two_phases(connection, transaction, attempt)

    def _two_phases(self, connection: psycopg.Connection, transaction: Transaction, attempt: Attempt) -> None:
        """From PREPARE on, what the server knows after a crash decides, see `_decide`."""
        gid = f"forge-history-{attempt.name}"
        commits = transaction.ending == "commit prepared"
        prepare = sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)).as_string(connection)
        self._prepared.append((gid, False, attempt))
        try:
            self._end(connection, prepare)
        except Undecided:
            self._prepared[-1] = (gid, commits, attempt)
            raise
        except psycopg.Error:
            self._prepared.pop()
            raise
        self._prepared[-1] = (gid, commits, attempt)
        attempt.synchronous = True  # both phases wait for the disk
        time.sleep(transaction.delay / 1000)
        finish = sql.SQL("COMMIT PREPARED {}" if commits else "ROLLBACK PREPARED {}").format(sql.Literal(gid))
        attempt.outcome = Outcome.COMMITTED if commits else Outcome.ABORTED
        try:
            connection.execute(finish)
        except _LOST:
            return
        self._prepared.pop()

    def _decide(self, connection: psycopg.Connection) -> None:
        """End what is prepared as its plan says. What is not there any more was ended so before, or never was.

        A transaction whose outcome is UNKNOWN lost its connection at PREPARE: not there means never prepared.
        """
        while self._prepared:
            gid, commits, attempt = self._prepared[-1]
            there = connection.execute("SELECT FROM pg_prepared_xacts WHERE gid = %s", [gid]).rowcount
            if there:
                verb = sql.SQL("COMMIT PREPARED {}" if commits else "ROLLBACK PREPARED {}")
                connection.execute(verb.format(sql.Literal(gid)))
                attempt.outcome = Outcome.COMMITTED if commits else Outcome.ABORTED
            elif attempt.outcome is Outcome.UNKNOWN:
                attempt.outcome = Outcome.ABORTED
            attempt.synchronous = True
            self._prepared.pop()

    def _end(self, connection: psycopg.Connection, command: str) -> None:
        try:
            connection.execute(command.encode())
        except _LOST as error:
            if connection.closed or error.sqlstate is None or error.sqlstate.startswith("57"):
                raise Undecided(f"{command}: {error}") from error
            raise

    def _operations(
        self, connection: psycopg.Connection, operations: tuple[Operation, ...], attempt: Attempt, mark: str
    ) -> None:
        marked = [(operation, f"{mark}.{number}") for number, operation in enumerate(operations)]
        for sent, group in itertools.groupby(marked, lambda pair: pair[0].sent):
            if sent == "together":
                attempt.effects += _together(connection, list(group))
                continue
            for operation, own in group:
                if operation.kind == "savepoint":
                    self._savepoint(connection, operation, attempt, own)
                else:
                    attempt.effects.append(_perform(connection, operation, own))

    def _savepoint(self, connection: psycopg.Connection, operation: Operation, attempt: Attempt, mark: str) -> None:
        name = f"s{mark.count('.')}"
        inside = Attempt(attempt.name, effects=[], undone=[])
        connection.execute(f"SAVEPOINT {name}".encode())
        undo = operation.undo
        try:
            self._operations(connection, operation.inner, inside, mark)
        except psycopg.Error:
            if connection.closed:
                raise
            undo = True
        if undo:
            connection.execute(f"ROLLBACK TO SAVEPOINT {name}".encode())
            attempt.undone += [effect.mark for effect in inside.effects]
        else:
            connection.execute(f"RELEASE SAVEPOINT {name}".encode())
            attempt.effects += inside.effects
        attempt.undone += inside.undone

    def _connected(self) -> psycopg.Connection:
        """The connection, made again if it was lost; then first decide what was left prepared."""
        while True:
            try:
                if self._connection is None or self._connection.closed:
                    url = with_settings(self._url, self.plan.settings)
                    self._connection = psycopg.connect(**parameters(url, application_name=APPLICATION), autocommit=True)
                    self._connection.execute("SET lock_timeout = '1s'")
                self._decide(self._connection)
                return self._connection
            except _LOST:
                self._close()
                if self._clock() > self._deadline:
                    raise
                time.sleep(0.05)

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
        self._connection = None


def _perform(connection: psycopg.Connection, operation: Operation, mark: str) -> Effect:
    if operation.kind in ("add column", "attach", "retype"):
        connection.execute(statement(operation).encode())
        return Effect(mark, operation.table, "other", None)
    connection.execute("SELECT set_config('forge.trace_id', %s, true)", [mark])
    if operation.kind == "copy":
        return Effect(mark, operation.table, "write", _copy(connection, operation, mark))
    if operation.kind == "truncate":
        connection.execute(statement(operation).encode())
        if not operation.leaf:
            return Effect(mark, operation.table, "truncate", 1)
        level = connection.execute("SELECT current_setting('transaction_isolation')").fetchone()
        return Effect(mark, operation.table, "other" if level == ("read committed",) else "wipe", None)
    if operation.sent == "block":
        return _block(connection, operation, mark)
    return _effect(
        operation, mark, connection.execute(statement(operation).encode(), _values(operation, mark)).rowcount
    )


def _values(operation: Operation, mark: str) -> dict[str, Any]:
    return {"k": operation.k, "to": operation.to, "span": operation.span, "n": operation.n, "m": mark}


def _effect(operation: Operation, mark: str, rows: int) -> Effect:
    return Effect(mark, operation.table, "delete" if operation.kind == "delete" else "write", rows)


def _together(connection: psycopg.Connection, operations: list[tuple[Operation, str]]) -> list[Effect]:
    """Send them in one message, in which the server's clock for statements stands still."""
    bound = psycopg.ClientCursor(connection).mogrify
    texts = []
    for operation, mark in operations:
        texts.append(bound("SELECT set_config('forge.trace_id', %s, true)", [mark]))
        texts.append(bound(statement(operation).encode(), _values(operation, mark)))
    cursor = connection.execute(";\n".join(texts).encode())
    found = []
    for operation, mark in operations:
        cursor.nextset()
        found.append(_effect(operation, mark, cursor.rowcount))
        cursor.nextset()
    return found


def _block(connection: psycopg.Connection, operation: Operation, mark: str) -> Effect:
    """Run it inside a DO block."""
    text = psycopg.ClientCursor(connection).mogrify(statement(operation).encode(), _values(operation, mark))
    connection.execute(
        f"DO $do$ DECLARE rows bigint; BEGIN {text}; GET DIAGNOSTICS rows = ROW_COUNT;"
        " PERFORM set_config('history.rows', rows::text, true); END $do$".encode()
    )
    row = connection.execute("SELECT current_setting('history.rows')::bigint").fetchone()
    assert row is not None
    return _effect(operation, mark, row[0])


def _copy(connection: psycopg.Connection, operation: Operation, mark: str) -> int:
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {TABLES[operation.table].name} (k, m, n) FROM STDIN".encode()) as copy,
    ):
        for k in range(operation.k, operation.k + operation.span + 1):
            copy.write_row((k, mark, operation.n))
    return operation.span + 1
