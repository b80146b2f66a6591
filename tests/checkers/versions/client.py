"""A client that mirrors a resource by windows of versions alone."""

import random
from functools import partial

from forge.postgres.connection import Connection
from forge.versions.nouns import Deletion, Event, Resource, Upsert
from forge.versions.reading import pages, representation, stream
from forge.versions.stamps import newest
from tests.checkers.versions.checks import Mirror, compare, deleted_after, source


class Client:
    """Knows a resource up to `at`; `subject` sees only what it has access to."""

    def __init__(self, resource: Resource, subject: str | None, chance: random.Random) -> None:
        self.resource = resource
        self.subject = subject
        self.mirror: Mirror = {}
        self.at: int | None = None
        self.windows = 0
        self._chance = chance

    def __str__(self) -> str:
        return f"{self.resource} for {self.subject or 'all'}"

    def sync(self, connection: Connection) -> list[str]:
        """Ask for what is new, and say what was wrong with the answer."""
        upto = newest(connection)
        if self.at is not None and upto < self.at:
            return [f"{self}: newest went back from {self.at} to {upto}"]
        if self.at == upto:
            return []
        ask = partial(
            stream,
            connection,
            self.resource,
            None if self.at is None else self.at + 1,
            upto,
            subject=self.subject,
        )
        limit = self._chance.randint(1, 30)
        wrong: list[str] = []
        order: list[tuple[int, int]] = []
        upserted: set[int] = set()
        for page in pages(lambda after: ask(after=after, limit=limit)):
            for event in page.items:
                order.append((event.version, event.id))
                if isinstance(event, Upsert) and event.id in upserted:
                    wrong.append(f"{self}: document {event.id} twice in the window to {upto}")
                if isinstance(event, Upsert):
                    upserted.add(event.id)
                self._apply(event)
        if self.at is not None and order != sorted(order):
            wrong.append(f"{self}: the window to {upto} is out of order")
        self.at = upto
        self.windows += 1
        return wrong

    def _apply(self, event: Event) -> None:
        if isinstance(event, Upsert):
            self.mirror[event.id] = (event.version, representation(event.document))
        elif isinstance(event, Deletion):
            self.mirror.pop(event.id, None)

    def check(self, connection: Connection) -> list[str]:
        """What the mirror lacks of what is settled."""
        if self.at is None:
            return []
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            truth = source(connection, self.resource, self.subject)
            gone = deleted_after(connection, self.at, self.subject)
        return [f"{self}: {line}" for line in compare(self.mirror, truth, self.at, gone)]
