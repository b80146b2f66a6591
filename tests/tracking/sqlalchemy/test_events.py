"""Who is told what, how and when: resource names, raw SQL of every shape, asynchronous subscribers, edges."""

import asyncio
import logging
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, text, update
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.orm import Session

import forge
from forge.tracking.events import Event
from tests.tracking.sqlalchemy.harness import Harness, Order, keyless, lines, orders, tags

ONE = {"id": 1, "mail": "ada@example.com", "amount": 1, "status": "open"}


def start(db: Harness) -> None:
    """One order that is there before the test looks."""
    with db.plain.begin() as connection:
        connection.execute(insert(orders), ONE)
    db.empty_log()


# Raw SQL

POSTGRES = {
    "insert with": "WITH a AS (SELECT mail FROM orders) INSERT INTO tags (name) SELECT mail FROM a",
    "update with": "WITH a AS (SELECT 1 AS id) UPDATE orders SET amount = 2 FROM a WHERE orders.id = a.id",
    "delete with": "WITH a AS (SELECT id FROM orders) DELETE FROM orders WHERE id IN (SELECT id FROM a)",
    "writes in with": "WITH a AS (UPDATE orders SET amount = 2 RETURNING mail), b AS (INSERT INTO tags (name)"
    " SELECT mail FROM a RETURNING name) SELECT * FROM b",
    "merge": "MERGE INTO tags t USING orders o ON t.name = o.mail WHEN MATCHED THEN UPDATE SET size = 1"
    " WHEN NOT MATCHED THEN INSERT (name) VALUES (o.mail)",
    "several": "UPDATE orders SET amount = 3; INSERT INTO tags (name) VALUES ('a;b'); SELECT 1",
    "update of a subquery": "UPDATE orders SET amount = (SELECT count(*) FROM tags)",
    "upsert": "INSERT INTO tags (name) VALUES ('a') ON CONFLICT (name) DO UPDATE SET size = 2",
    "truncate": "TRUNCATE tags",
    "comment": "/* DELETE FROM lines */ UPDATE orders -- of tags\n SET amount = 4",
}
MARIADB = {
    "insert with": "INSERT INTO tags (name) WITH a AS (SELECT mail FROM orders) SELECT mail FROM a",
    "update of a join": "UPDATE orders JOIN tags ON tags.name <> orders.mail SET orders.amount = 2",
    "update of a subquery": "UPDATE orders SET amount = (SELECT count(*) FROM tags)",
    "upsert": "INSERT INTO tags (name) VALUES ('a') ON DUPLICATE KEY UPDATE size = 2",
    "replace": "REPLACE INTO tags (name, size) VALUES ('a', 3)",
    "comment": "/* DELETE FROM lines */ UPDATE orders -- of tags\n SET amount = 4",
}
SQLITE = {
    "insert with": "WITH a AS (SELECT mail FROM orders) INSERT INTO tags (name) SELECT mail FROM a",
    "update with": "WITH a AS (SELECT 1 AS id) UPDATE orders SET amount = 2 WHERE id IN (SELECT id FROM a)",
    "delete with": "WITH a AS (SELECT id FROM orders) DELETE FROM orders WHERE id IN (SELECT id FROM a)",
    "update of a subquery": "UPDATE orders SET amount = (SELECT count(*) FROM tags)",
    "upsert": "INSERT INTO tags (name) VALUES ('a') ON CONFLICT (name) DO UPDATE SET size = 2",
    "replace": "REPLACE INTO tags (name, size) VALUES ('a', 3)",
    "update or": "UPDATE OR IGNORE orders SET amount = 2",
    "comment": "/* DELETE FROM lines */ UPDATE orders -- of tags\n SET amount = 4",
}
TABLES = {
    "insert with": {"tags"},
    "writes in with": {"orders", "tags"},
    "merge": {"tags"},
    "several": {"orders", "tags"},
    "upsert": {"tags"},
    "replace": {"tags"},
    "truncate": {"tags"},
    "update of a join": {"orders", "tags"},
}


@pytest.mark.contract("M5")
def test_raw_sql_of_every_shape_names_the_tables_that_it_writes(db: Harness) -> None:
    statements = MARIADB if db.kind == "mariadb" else SQLITE if "sqlite" in db.kind else POSTGRES
    events = db.listen(table=None)
    for shape, sql in statements.items():
        db.empty()
        start(db)
        with db.plain.begin() as connection:
            connection.execute(insert(tags), {"name": "x"})
        db.empty_log()
        events.clear()
        db.run(lambda connection, sql=sql: connection.exec_driver_sql(sql))  # type: ignore[misc]
        expected = TABLES.get(shape, {"orders"})
        assert {one.table for one in events} == expected, shape
        assert {(one.kind, one.key) for one in events} == {("invalidate", None)}, shape
        told = {(one.table, one.row_id) for one in db.log()}
        if db.triggers:
            assert {table for table, _ in told} <= expected, shape  # row by row, and nothing that track adds
            assert db.changes() == []
        else:
            assert told == {(table, "*") for table in expected}, shape


MULTI_STATEMENTS = 1 << 16
"""The flag by which PyMySQL takes more than one."""


@pytest.mark.contract("M5")
def test_several_statements_do_nothing_where_a_driver_refuses_them(db: Harness) -> None:
    if "sqlite" not in db.kind and db.kind != "mariadb":
        pytest.skip("psycopg runs them")
    start(db)
    events = db.listen(table=None)
    with pytest.raises((DBAPIError, ProgrammingError)):
        db.run(lambda connection: connection.exec_driver_sql("UPDATE orders SET amount = 2; DELETE FROM tags"))
    assert (events, db.log(), db.rows(orders)) == ([], [], [ONE])
    if db.kind != "mariadb":
        return
    engine = forge.track(db.engine(connect_args={"client_flag": MULTI_STATEMENTS}))
    forge.on_change(engine, None, events.append)
    raw = "UPDATE orders SET amount = 2; INSERT INTO tags (name) VALUES ('a')"
    db.run(lambda connection: connection.exec_driver_sql(raw), engine)
    assert sorted((one.kind, one.table) for one in events) == [("invalidate", "orders"), ("invalidate", "tags")]
    assert (db.rows(orders)[0]["amount"], len(db.rows(tags))) == (2, 1)


# Resource names


@pytest.mark.contract("M6")
def test_resource_names(db: Harness) -> None:
    db.track(names={"orders": "Order", "keyless": "Word"})
    events = db.listen(table=None)
    named = db.listen(table="orders")

    def work(connection: Connection) -> None:
        connection.execute(insert(orders), ONE)
        connection.execute(update(orders).values(amount=2))
        connection.execute(text("DELETE FROM orders"))
        connection.execute(insert(keyless), {"word": "a"})
        connection.execute(insert(tags), {"name": "a"})

    db.run(work)
    found = [(one.kind, one.table, one.name) for one in events]
    assert found == [
        ("added", "orders", "Order"),
        ("changed", "orders", "Order"),
        ("invalidate", "orders", "Order"),
        ("invalidate", "keyless", "Word"),
        ("added", "tags", "tags"),
    ]
    assert named == events[:3]  # who subscribes does it by the table
    assert {one.table for one in db.log()} <= {"orders", "keyless", "tags"}  # and so does the log


# Asynchronous subscribers


@pytest.mark.contract("M6")
def test_asynchronous_subscribers_are_awaited_before_the_commit_returns(
    db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    if not db.is_async:
        pytest.skip("of an AsyncEngine")
    start(db)
    db.track()
    told: list[tuple[str, int]] = []

    async def slow(event: Event) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        assert event.after is not None
        told.append(("slow", event.after["amount"]))

    async def fails(event: Event) -> None:
        await asyncio.sleep(0)
        raise LookupError("mine")

    async def asks(event: Event) -> None:
        """A subscriber may use the engine: what it reads is what was committed."""
        async with db.target.connect() as connection:
            told.append(("asks", await connection.scalar(select(orders.c.amount))))

    stops = [forge.on_change(db.target, "orders", each) for each in (slow, fails, asks)]

    def work(connection: Connection) -> None:
        connection.execute(update(orders).values(amount=2))
        connection.execute(update(orders).values(amount=3))
        assert told == []

    with caplog.at_level(logging.ERROR, "forge.tracking"):
        db.run(work)
    assert told == [("slow", 2), ("slow", 3), ("asks", 3), ("asks", 3)]
    assert caplog.text.count("a subscriber of changes failed") == 2
    for stop in stops:
        stop()
    db.run(lambda connection: connection.execute(update(orders).values(amount=4)))
    assert len(told) == 4


# Edges


@pytest.mark.contract("M6")
def test_subscribers_that_come_and_go_within_a_transaction(db: Harness) -> None:
    start(db)
    db.track()
    early = db.listen()
    late: list[Event] = []

    def work(connection: Connection) -> None:
        connection.execute(update(orders).values(amount=2))
        stop = forge.on_change(db.target, "orders", late.append, where={"status": "open"})
        connection.execute(update(orders).values(amount=3))
        stop()
        stop()
        forge.on_change(db.target, "orders", late.append, where=Order.amount == 4)
        connection.execute(update(orders).values(amount=4))

    db.run(work)
    assert [one.after and one.after["amount"] for one in early] == [2, 3, 4]
    # of what was before it came it is not known whether the condition held: it is told to look
    assert [one.kind for one in late] == ["invalidate", "invalidate", "added"]


@pytest.mark.contract("M6")
def test_a_subscriber_that_writes_is_told_of_it_afterwards(db: Harness) -> None:
    if db.is_async:
        pytest.skip("a synchronous engine's")
    start(db)
    db.track()
    told: list[Any] = []

    def follow(event: Event) -> None:
        told.append(event.after and event.after["amount"])
        if event.after and event.after["amount"] < 4:
            raised = event.after["amount"] + 1
            db.run(lambda connection: connection.execute(update(orders).values(amount=raised)))

    forge.on_change(db.target, "orders", follow)
    db.run(lambda connection: connection.execute(update(orders).values(amount=2)))
    assert told == [2, 3, 4]
    assert db.rows(orders)[0]["amount"] == 4
    assert [one.op for one in db.log()] == ["update"] * 3


@pytest.mark.contract("M10")
def test_a_block_without_tracking_within_a_transaction_and_within_another(db: Harness) -> None:
    start(db)
    events = db.listen()

    def work(session: Session) -> None:
        with forge.without_tracking():
            with forge.without_tracking():
                session.execute(update(Order).values(amount=2))
            session.execute(update(Order).values(amount=3))
        session.execute(update(Order).values(amount=4))

    db.session(work)
    assert [(one.before and one.before["amount"], one.after and one.after["amount"]) for one in events] == [(3, 4)]


@pytest.mark.contract("M10", "M13")
def test_skipping_wins_over_registering_and_cascades_obey(db: Harness) -> None:
    start(db)
    db.track(tables=[Order, "lines", "tags"], skip_tables=["lines"])
    events = db.listen(table=None)

    def work(connection: Connection) -> None:
        connection.execute(insert(lines), {"order_id": 1, "place": 1, "what": "ink"})
        connection.execute(update(lines).values(what="pen"))
        connection.execute(orders.delete())

    db.run(work)
    assert [(one.kind, one.table) for one in events] == [("removed", "orders")]


@pytest.mark.contract("M9")
def test_no_rows_at_all(db: Harness) -> None:
    """Nothing is what an empty list, an empty IN and a false condition do."""
    events = db.listen(table=None)

    def work(session: Session) -> None:
        session.execute(update(Order).where(Order.id.in_([])).values(amount=2))
        session.execute(insert(Order).from_select(["mail"], select(Order.mail).where(Order.id == 99)))
        session.execute(orders.delete().where(text("1 = 0")))
        session.bulk_save_objects([])
        session.flush()

    db.session(work)
    assert (events, db.log()) == ([], [])
