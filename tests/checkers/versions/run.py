"""Carrying out one run: a Plan in, a Report out. All that it starts has ended when it returns."""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

import psycopg
from psycopg import sql

from forge.embedded import PostgresServer
from forge.errors import ServerError, StrategyBusy
from forge.postgres.connection import Connection, connect
from forge.postgres.queries import queries
from forge.testing.postgres import fresh_database
from forge.versions.install import install
from forge.versions.nouns import Resource
from forge.versions.resources import declare
from forge.versions.stamps import newest
from forge.versions.strategies import use_strategy
from forge.versions.triggers import write_by
from tests.checkers.session_settings import of_database, set_defaults
from tests.checkers.versions.checks import Access, accesses, consistent, journaled, source
from tests.checkers.versions.client import Client
from tests.checkers.versions.plan import BY_ACCESS, RESOURCES, SUBJECTS, Plan, Report
from tests.checkers.versions.writes import by_api, by_sql, change

_LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError, ServerError)
_LONGEST: Final = 60.0
"""Seconds for which a run goes on for the sake of `Plan.least`."""
_AGAIN: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


def run(plan: Plan, server: PostgresServer) -> Report:
    """Carry out the plan in a new database. It ends early when something is wrong."""
    began = time.monotonic()
    with fresh_database(server) as url:
        with connect(url) as connection:
            set_defaults(connection, of_database(plan.seed))
            install(connection)
            for resource in RESOURCES:
                declare(connection, resource, by_access=resource in BY_ACCESS)
            database = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("ALTER DATABASE {} SET deadlock_timeout = '200ms'").format(database))
            if plan.triggers:
                write_by(connection, "trigger")
            if plan.mistake is not None:
                connection.execute(queries("tests.checkers.versions", "mistakes.sql")[plan.mistake])
        return _Run(plan, server, url).report(began)


class _Run:
    """The threads of a run and what they found."""

    def __init__(self, plan: Plan, server: PostgresServer, url: str) -> None:
        self._plan = plan
        self._server = server
        self._url = url
        self._ended = threading.Event()
        self._counts: Counter[str] = Counter()
        self._told: dict[int, int] = {}
        self._wrong: list[str] = []
        self._seen: tuple[int, set[Access]] = (0, set())
        whom: list[tuple[Resource, str | None]] = []
        for pair in zip(product(BY_ACCESS, SUBJECTS), product(RESOURCES, [None]), strict=True):
            whom += pair
        chance = random.Random(f"{plan.seed}/clients")
        chosen = [whom[(2 * plan.seed + n) % len(whom)] for n in range(plan.clients)]
        self._clients = [Client(resource, subject, random.Random(chance.random())) for resource, subject in chosen]

    def report(self, began: float) -> Report:
        acts: list[Callable[[Connection], None]] = [
            *(self._writer(n) for n in range(self._plan.writers)),
            *(self._reader(client) for client in self._clients),
            self._watch,
            self._switch(),
        ]
        threads = [threading.Thread(target=self._go, args=(act,), daemon=True) for act in acts]
        for thread in threads:
            thread.start()
        self._disturb()
        self._ended.set()
        for thread in threads:
            thread.join(60)
            if thread.is_alive():
                self._wrong.append("a thread has not ended within 60 s")
        with connect(self._url) as connection:
            documents, grants, stamps = self._end(connection)
        return Report(
            self._plan,
            self._wrong,
            stamps,
            self._counts["commits"],
            self._counts["refused"],
            self._counts["retried"],
            sum(client.windows for client in self._clients),
            len(self._told),
            documents,
            grants,
            self._counts["strategies"],
            time.monotonic() - began,
        )

    def _disturb(self) -> None:
        """Let the time pass, and the server crash."""
        start = time.monotonic()
        chance = random.Random(f"{self._plan.seed}/crashes")
        crashes = sorted(chance.uniform(0.2, 0.9) * self._plan.seconds for _ in range(self._plan.crashes))
        while not self._wrong and self._goes_on(time.monotonic() - start):
            if crashes and time.monotonic() - start > crashes[0]:
                crashes.pop(0)
                self._server.crash()
                self._server.start()
            self._ended.wait(0.02)

    def _goes_on(self, passed: float) -> bool:
        return passed < self._plan.seconds or (self._counts["commits"] < self._plan.least and passed < _LONGEST)

    def _go(self, act: Callable[[Connection], None]) -> None:
        """Do it on a connection, and again where that is lost."""
        while not self._ended.is_set():
            try:
                with psycopg.connect(self._url, autocommit=True, application_name="model") as connection:
                    act(connection)
            except _LOST as error:
                if not self._plan.crashes:
                    self._wrong.append(f"{type(error).__name__}: {error}")
                self._ended.wait(0.05)
            except Exception as error:
                self._wrong.append(f"{type(error).__name__}: {error}")
                return

    def _writer(self, number: int) -> Callable[[Connection], None]:
        chance = random.Random(f"{self._plan.seed}/writer/{number}")
        hand = by_sql if self._plan.triggers and number % 2 else by_api

        def act(connection: Connection) -> None:
            while not self._ended.is_set():
                with contextlib.suppress(_Undone), self._again(), connection.transaction():
                    for _ in range(chance.randint(1, 3)):
                        done = change(hand, connection, chance, self._plan.keys)
                        self._counts["refused"] += not done
                    time.sleep(_delay(chance))
                    if chance.random() < 0.1:
                        raise _Undone
                    self._counts["commits"] += 1

        return act

    @contextlib.contextmanager
    def _again(self) -> Iterator[None]:
        try:
            yield
        except _AGAIN:
            self._counts["retried"] += 1

    def _reader(self, client: Client) -> Callable[[Connection], None]:
        chance = random.Random(f"{self._plan.seed}/reader/{client}")

        def act(connection: Connection) -> None:
            while not self._ended.wait(chance.uniform(0, 0.03)):
                self._wrong += client.sync(connection)
                self._wrong += client.check(connection)

        return act

    def _watch(self, connection: Connection) -> None:
        """Ask for the newest all the time; the journals up to one that was told never gain a row."""
        while not self._ended.wait(0.005):
            upto = newest(connection)
            if upto not in self._told:
                self._told.update(journaled(connection, [upto]))
                self._wrong += self._appeared(connection, upto)
            if self._told and len(self._told) % 20 == 0:
                self._wrong += self._gained(connection)

    def _gained(self, connection: Connection) -> list[str]:
        now = journaled(connection, self._told)
        return [
            f"{upto} was told as the newest with {was} journal rows up to it, and now there are {now[upto]}"
            for upto, was in list(self._told.items())
            if now.get(upto, was) != was
        ]

    def _appeared(self, connection: Connection, upto: int) -> list[str]:
        """Accesses at or below a newest that was told, and that were not there then; one that is lost is no more."""
        now = accesses(connection, upto)
        (told, were), self._seen = self._seen, (upto, now)
        late = {access for access in now if access[2] <= told} - were
        return [f"{told} was told as the newest, and then {access} was there" for access in sorted(late)]

    def _switch(self) -> Callable[[Connection], None]:
        chance = random.Random(f"{self._plan.seed}/strategies")

        def act(connection: Connection) -> None:
            while True:
                with contextlib.suppress(StrategyBusy):
                    use_strategy(connection, chance.choice(self._plan.strategies), batch=10, patience=2.0)
                    self._counts["strategies"] += 1
                if self._ended.wait(chance.uniform(0.1, 0.5)):
                    return

        return act

    def _end(self, connection: Connection) -> tuple[int, int, int]:
        """When all has ended: every client has the source, and nothing appeared where nothing could."""
        self._wrong += self._gained(connection)
        self._wrong += consistent(connection)
        row = connection.execute(
            "SELECT (SELECT count(*) FROM forge_versions.document), (SELECT count(*) FROM forge_versions.access)"
            " + (SELECT count(*) FROM forge_versions.deletion WHERE subject IS NOT NULL), last_value"
            " FROM forge_versions.change_version"
        ).fetchone()
        assert row is not None
        documents, grants, stamps = row
        if newest(connection) != stamps:
            self._wrong.append(f"nobody writes, the last stamp is {stamps}, and the newest {newest(connection)}")
        for client in self._clients:
            self._wrong += client.sync(connection)
            if client.mirror != source(connection, client.resource, client.subject):
                self._wrong.append(f"{client}: the mirror is not the source")
                self._wrong += client.check(connection)
        return int(documents), int(grants), int(stamps)


class _Undone(Exception):
    """A transaction is rolled back."""


def _delay(chance: random.Random) -> float:
    """How long a transaction waits before it commits: mostly not, sometimes for long."""
    roll = chance.random()
    return 0.0 if roll < 0.4 else chance.uniform(0, 0.02) if roll < 0.9 else chance.uniform(0.05, 0.15)
