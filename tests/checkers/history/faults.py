"""Carrying out the schedule of faults: each begins at its time and is lifted at its time, in the order of time."""

import contextlib
import heapq
import itertools
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

import psycopg

from forge.embedded import PostgresServer
from forge.postgres import locks
from tests.checkers.history.plan import Fault, Plan
from tests.checkers.history.readers import ReaderHandle
from tests.checkers.history.writer import APPLICATION


class Faults:
    """What goes wrong in one run. `crashes` are the times at which unflushed commits may have vanished."""

    def __init__(
        self,
        plan: Plan,
        server: PostgresServer,
        url: str,
        readers: Sequence[ReaderHandle],
        clock: Callable[[], float],
    ) -> None:
        self.crashes: list[float] = []
        self.done: list[str] = []
        self._server = server
        self._url = url
        self._readers = readers
        self._clock = clock
        self._chance = random.Random(plan.seed)
        self._holders: list[psycopg.Connection] = []
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        for number, reader in enumerate(plan.readers):
            self._at(reader.begins, readers[number].start)
        for fault in plan.faults:
            self._at(fault.at, partial(self._begin, fault))

    def carry_out(self, until: float) -> None:
        """Do all that is due by then, waiting for each; a fault whose end lies beyond is lifted all the same."""
        while self._due:
            at, _, action = heapq.heappop(self._due)
            time.sleep(max(0.0, min(at, until) - self._clock()))
            action()
        for reader in self._readers:
            reader.wake()
            reader.proxy.resume()
            reader.proxy.accept()
            reader.notice()
        for holder in self._holders:
            holder.close()

    def _at(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._order), action))

    def _begin(self, fault: Fault) -> None:
        self.done.append(f"{self._clock():.2f} {fault.kind} {fault.reader}")
        with contextlib.suppress(psycopg.OperationalError):  # the server may be down just now
            getattr(self, f"_{fault.kind}")(fault, self._readers[fault.reader])

    def _later(self, fault: Fault, action: Callable[[], None]) -> None:
        self._at(self._clock() + fault.lasts, action)

    # -- one method for each kind ----------------------------------------------------------------------

    def _kill(self, fault: Fault, reader: ReaderHandle) -> None:
        if reader.running:
            reader.kill()
            self._later(fault, reader.start)

    def _pause(self, fault: Fault, reader: ReaderHandle) -> None:
        reader.pause()
        self._later(fault, reader.wake)

    def _cut(self, fault: Fault, reader: ReaderHandle) -> None:
        reader.proxy.cut()

    def _stall(self, fault: Fault, reader: ReaderHandle) -> None:
        reader.proxy.stall()
        self._later(fault, reader.proxy.resume)

    def _refuse(self, fault: Fault, reader: ReaderHandle) -> None:
        reader.proxy.refuse()
        reader.proxy.cut()
        self._later(fault, reader.proxy.accept)

    def _terminate(self, fault: Fault, reader: ReaderHandle) -> None:
        """End one session, of a reader or of a writer, from the server's side."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            pids = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND (application_name = %s) = %s AND backend_type = 'client backend' ORDER BY pid",
                [APPLICATION, self._chance.random() < 0.5],
            ).fetchall()
            if pids:
                connection.execute("SELECT pg_terminate_backend(%s)", self._chance.choice(pids))

    def _hold(self, fault: Fault, reader: ReaderHandle) -> None:
        """Take the lock that tells writers that somebody is awake, and read nothing: their NOTIFYs are not sent."""
        holder = psycopg.connect(self._url, autocommit=True)
        holder.pgconn.send_query(f"SELECT pg_advisory_lock({locks.WAKE})".encode())
        self._holders.append(holder)
        self._later(fault, holder.close)

    def _restart(self, fault: Fault, reader: ReaderHandle) -> None:
        self._server.stop("fast")
        self._later(fault, self._server.start)

    def _immediate(self, fault: Fault, reader: ReaderHandle) -> None:
        self.crashes.append(self._clock())
        self._server.stop("immediate")
        self.crashes.append(self._clock())
        self._later(fault, self._server.start)

    def _crash(self, fault: Fault, reader: ReaderHandle) -> None:
        self.crashes.append(self._clock())
        self._server.crash()
        self.crashes.append(self._clock())
        self._later(fault, self._server.start)
