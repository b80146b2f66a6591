"""What can be put into the outbox, by which kinds of connection, and what is refused before anything is sent."""

from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import forge
from forge.postgres.connection import Connection
from tests.deliver.outbox.draining import put, rows


def alchemy(url: str) -> str:
    """The URL as SQLAlchemy wants it."""
    return url.replace("postgresql://", "postgresql+psycopg://")


@pytest.mark.contract("W14")
async def test_every_kind_of_connection_writes_in_its_own_transaction(database: str, connection: Connection) -> None:
    with psycopg.connect(database) as plain:
        forge.outbox(plain, "t", "sync")
        assert rows(connection) == 0
    async with await psycopg.AsyncConnection.connect(database) as other:
        await forge.outbox(other, "t", "async")
    engine = sqlalchemy.create_engine(alchemy(database))
    with engine.begin() as core:
        forge.outbox(core, "t", "core", key=UUID(int=1), after=timedelta(0))
    with Session(engine) as session:
        forge.outbox(session, "t", {"orm": True}, headers={"a": "b"})
        assert forge.inbox(session, "m1", consumer="c") is True
        session.commit()
        forge.outbox(session, "t", "rolled back")
        session.rollback()
    engine.dispose()
    asynchronous = create_async_engine(alchemy(database))
    async with asynchronous.begin() as core_async:
        await forge.outbox(core_async, "t", b"\x00\xff")
    async with AsyncSession(asynchronous) as session_async, session_async.begin():
        await forge.outbox(session_async, "t", [1, date(2026, 1, 2)])
        assert await forge.inbox(session_async, "m1", consumer="c") is False
    await asynchronous.dispose()
    found = connection.execute("SELECT payload FROM forge.outbox ORDER BY seq").fetchall()
    assert [payload for (payload,) in found] == [
        b"sync", b"async", b"core", b'{"orm":true}', b"\x00\xff", b'[1,"2026-01-02"]',
    ]  # fmt: skip


@pytest.mark.contract("W13")
def test_the_inbox_takes_a_message_in_once_unless_that_is_rolled_back(connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        assert forge.inbox(connection, "m", consumer="a") is True
    for consumer, first in (("a", True), ("b", True), ("a", False)):
        with connection.transaction():
            assert forge.inbox(connection, "m", consumer=consumer) is first


def test_what_the_inbox_took_in_long_ago_is_trimmed_with_the_log(database: str, connection: Connection) -> None:
    for id in ("old", "new"):
        with connection.transaction():
            forge.inbox(connection, id, consumer="a")
    connection.execute("UPDATE forge.inbox SET at = at - interval '60 days' WHERE id = 'old'")
    assert forge.run_once(database).problems == []
    assert connection.execute("SELECT id FROM forge.inbox").fetchall() == [("new",)]


HOSTILE: list[tuple[Any, object, dict[str, Any], str]] = [
    ("", "x", {}, "topic"),
    ("a b", "x", {}, "topic"),
    ("a\n", "x", {}, "topic"),
    ("t" * 201, "x", {}, "topic"),
    (None, "x", {}, "topic"),
    ("t", "x" * (1024 * 1024 + 1), {}, "1,048,577 bytes"),
    ("t", "\ud800", {}, "surrogate"),
    ("t", {"a": float("nan")}, {}, "not JSON"),
    ("t", {"a": "\0"}, {}, "NUL"),
    ("t", object(), {}, "not JSON"),
    ("t", "x", {"key": ""}, "key"),
    ("t", "x", {"key": "a\0b"}, "key"),
    ("t", "x", {"key": True}, "bool"),
    ("t", "x", {"key": "k" * 513}, "key"),
    ("t", "x", {"headers": {"a": 1}}, "headers"),
    ("t", "x", {"headers": {"a": "b\r\nc: d"}}, "control characters"),
    ("t", "x", {"headers": {"a": "b" * 9000}}, "8,192"),
    ("t", "x", {"after": 5}, "int"),
    ("t", "x", {"after": datetime(2026, 1, 1)}, "time zone"),
    ("t", "x", {"after": timedelta.max}, "days"),
]


def test_what_cannot_be_a_message_is_refused_before_anything_is_sent(connection: Connection) -> None:
    for topic, payload, options, problem in HOSTILE:
        with connection.transaction():
            with pytest.raises(forge.OutboxError, match=problem):
                forge.outbox(connection, topic, payload, **options)
            put(connection, "t", "the transaction goes on")
    assert rows(connection) == len(HOSTILE)


def test_the_database_checks_too_and_nobody_may_write_unless_allowed(connection: Connection) -> None:
    for arguments in ("'a b', ''", "'t', convert_to(repeat('x', 1048577), 'UTF8')", "'t', '', ''", "'t', NULL"):
        with pytest.raises(psycopg.DatabaseError) as caught:
            connection.execute(f"SELECT forge_outbox({arguments})".encode())
        assert (caught.value.sqlstate or "").startswith("FG4")
    connection.execute("DROP ROLE IF EXISTS outbox_stranger")
    connection.execute("CREATE ROLE outbox_stranger")
    try:
        with connection.transaction(force_rollback=True):
            connection.execute("SET LOCAL ROLE outbox_stranger")
            with pytest.raises(forge.OutboxError, match="may not") as refused:
                forge.outbox(connection, "t", "x")
        assert "GRANT EXECUTE" in refused.value.fix
        connection.execute("GRANT EXECUTE ON FUNCTION forge_outbox TO outbox_stranger")
        with connection.transaction():
            connection.execute("SET LOCAL ROLE outbox_stranger")
            forge.outbox(connection, "t", "x")
    finally:
        connection.execute("DROP OWNED BY outbox_stranger")
        connection.execute("DROP ROLE outbox_stranger")


def test_a_message_outside_of_a_transaction_is_refused(database: str, connection: Connection) -> None:
    engine = sqlalchemy.create_engine(alchemy(database), isolation_level="AUTOCOMMIT")
    with pytest.raises(forge.OutboxError, match="no transaction"):
        forge.outbox(connection, "t", "x")
    with engine.connect() as free, pytest.raises(forge.OutboxError, match="no transaction"):
        forge.outbox(free, "t", "x")
    engine.dispose()
    with pytest.raises(forge.OutboxError, match="not a transaction's"):
        forge.outbox(database, "t", "x")  # type: ignore[call-overload]
    lite = sqlalchemy.create_engine("sqlite://")
    with lite.begin() as other, pytest.raises(forge.OutboxError, match="sqlite"):
        forge.outbox(other, "t", "x")
    lite.dispose()


def test_a_route_that_cannot_work_is_refused_when_it_is_declared() -> None:
    from forge.deliver.outbox import Routes

    def declare(*arguments: Any, **options: Any) -> Callable[[], object]:
        async def handler(message: object) -> None: ...

        return lambda: Routes().on(*arguments, **options)(handler)

    for attempt in (
        declare("a*b"), declare(""), declare("a b"), declare("a", batch=0), declare("a", tries=0),
        declare("a", timeout=0), declare("a", nonsense=1), lambda: Routes().to("a", object()),  # type: ignore[arg-type]
        lambda: Routes().on("a")(print),  # type: ignore[type-var]
    ):  # fmt: skip
        with pytest.raises(forge.OutboxError):
            attempt()
