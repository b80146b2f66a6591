"""Inspect the outbox, and replay or drop its dead letters."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec

from forge.changelog.install import require_installed
from forge.deliver.outbox.sql import sql
from forge.postgres.connection import Connection, connect, typed_errors


class TopicLag(msgspec.Struct, frozen=True):
    """The state of a topic: `waiting` counts the due messages, `seconds` is the wait of the oldest."""

    topic: str
    waiting: int = 0
    seconds: float = 0.0
    retrying: int = 0
    scheduled: int = 0
    dead: int = 0

    def __add__(self, other: "TopicLag") -> "TopicLag":
        """Add two states, under the other's name.

        >>> TopicLag("a", 1, 2.0, 1) + TopicLag("b", 2, 1.0, dead=3)
        TopicLag(topic='b', waiting=3, seconds=2.0, retrying=1, scheduled=0, dead=3)
        """
        return TopicLag(
            other.topic,
            self.waiting + other.waiting,
            max(self.seconds, other.seconds),
            self.retrying + other.retrying,
            self.scheduled + other.scheduled,
            self.dead + other.dead,
        )


def lag_of(row: Sequence[Any]) -> TopicLag:
    """Convert a row of the query `lag`."""
    topic, waiting, seconds, *others = row
    return TopicLag(topic, waiting, max(0.0, seconds or 0.0), *others)


class OutboxEntry(msgspec.Struct, frozen=True):
    """A message in the outbox: waiting, retrying, scheduled, dead, or behind a dead one. `since` is the time of its
    next try, of its schedule, or of its parking."""

    state: str
    id: str
    topic: str
    key: str | None
    at: datetime
    since: datetime | None
    tries: int
    error: str | None
    bytes: int
    transaction_id: str


class OutboxControl:
    """Queries and commands of operators, one connection each."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with connect(self._url, application_name="forge outbox") as connection, typed_errors():
            require_installed(connection)
            yield connection

    def lag(self, topic: str | None = None) -> list[TopicLag]:
        """Return the state of every topic that has messages."""
        with self._connection() as connection:
            rows = connection.execute(sql("lag"), {"topic": topic, "most": None}).fetchall()
        return [lag_of(row) for row in rows]

    def waiting(self, topic: str | None = None, limit: int = 50) -> list[OutboxEntry]:
        """Return the first messages to send, then the scheduled ones."""
        return self._entries("waiting", topic, limit)

    def dead(self, topic: str | None = None, limit: int = 50) -> list[OutboxEntry]:
        """Return the first parked messages."""
        return self._entries("dead", topic, limit)

    def _entries(self, query: str, topic: str | None, limit: int) -> list[OutboxEntry]:
        with self._connection() as connection:
            rows = connection.execute(sql(query), {"topic": topic, "limit": limit}).fetchall()
        return [OutboxEntry(*row) for row in rows]

    def replay_dead(self, *, topic: str | None = None, key: str | None = None, id: str | None = None) -> int:
        """Put parked messages back at their positions, with all that wait behind them; return their number."""
        return self._back("replay_dead", topic=topic, key=key, id=id)

    def drop_dead(self, *, topic: str | None = None, key: str | None = None, id: str | None = None) -> tuple[int, int]:
        """Drop parked messages; return their number, and the number of messages behind them that continue."""
        with self._connection() as connection, connection.transaction():
            connection.execute(sql("keep_dead"))
            gone = connection.execute(sql("drop_dead"), {"topic": topic, "key": key, "id": id}).rowcount
            row = connection.execute(sql("release")).fetchone()
            connection.execute(sql("tell"))
            return gone, int(row[0]) if row else 0

    def _back(self, query: str, **values: str | None) -> int:
        with self._connection() as connection, connection.transaction():
            connection.execute(sql("keep_dead"))
            row = connection.execute(sql(query), values).fetchone()
            return int(row[0]) if row else 0
