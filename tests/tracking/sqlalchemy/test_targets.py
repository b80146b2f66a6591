"""What can be tracked, and how: session factories, async engines, autocommit, roles that may not do everything."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, text, update
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import forge
from forge.postgres.connection import connect
from forge.tracking.events import Event, listen
from tests.tracking.sqlalchemy.harness import Order, metadata, orders

ONE = {"id": 1, "mail": "ada@example.com"}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    metadata.create_all(made)
    yield made
    made.dispose()


def ops(target: Any) -> list[str]:
    return [change.op.value for change in forge.tracking.recorded(target)]


@pytest.mark.contract("M1")
def test_a_sessionmaker(engine: Engine) -> None:
    maker = forge.track(sessionmaker(engine))
    assert forge.track(maker) is maker
    assert forge.track(engine) is engine
    with maker.begin() as session:
        session.add(Order(**ONE))
    with maker() as session:
        assert [change.row_id for change in forge.tracking.recorded(session)] == ["1"]


def test_a_sessionmaker_that_gets_its_engine_later(engine: Engine) -> None:
    maker = forge.track(sessionmaker())
    with maker(bind=engine) as session, session.begin():
        session.add(Order(**ONE))
    assert ops(engine) == ["insert"]


def test_what_cannot_be_tracked() -> None:
    with pytest.raises(forge.TrackingError, match="a str cannot be tracked") as caught:
        forge.track("sqlite://")
    assert "Engine" in caught.value.fix
    with pytest.raises(forge.TrackingError, match="no engine"):
        forge.track(async_sessionmaker())
    with pytest.raises(forge.TrackingError, match="is not tracked"):
        forge.on_change(create_engine("sqlite://"), "orders", print)
    engine = forge.track(create_engine("sqlite://"))
    with pytest.raises(forge.TrackingError, match="a filter cannot be 3"):
        forge.on_change(engine, "orders", print, where=3)  # type: ignore[arg-type]
    with pytest.raises(forge.TrackingError, match="is not a table"):
        forge.track(create_engine("sqlite://"), tables=[3])
    with pytest.raises(forge.TrackingError, match="record cannot be"):
        forge.track(engine, record="sometimes")  # type: ignore[arg-type]


@pytest.mark.contract("M6")
async def test_async_sessions_and_subscribers(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'app.db'}")
    maker = forge.track(async_sessionmaker(engine))
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    told: list[Event] = []

    async def hear(event: Event) -> None:
        await asyncio.sleep(0)
        told.append(event)

    stop = forge.on_change(engine, Order, hear, where=Order.amount > 1)
    async with maker.begin() as session:
        session.add_all([Order(**ONE, amount=1), Order(id=2, mail="b", amount=2)])
        assert told == []
    assert [(one.kind, one.key) for one in told] == [("added", {"id": 2})]
    async with forge.without_tracking(), maker.begin() as session:
        await session.execute(update(Order).values(amount=3))
    stop()
    async with engine.connect() as connection:
        found = await connection.run_sync(lambda sync: [one.row_id for one in forge.tracking.recorded(sync)])
    assert found[-2:] == ["1", "2"]
    assert len(told) == 1
    await engine.dispose()


@pytest.mark.contract("M6")
def test_an_async_subscriber_of_a_sync_engine_is_an_error_in_the_log(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async def hear(event: Event) -> None: ...

    forge.on_change(forge.track(engine), "orders", hear)
    with engine.begin() as connection:
        connection.execute(insert(orders).values(ONE))
    assert "needs an AsyncEngine" in caplog.text


@pytest.mark.contract("M6")
def test_whoever_listens_to_everything_hears_transactions_whole(engine: Engine) -> None:
    heard: list[tuple[Engine, list[str]]] = []
    stop = listen(lambda source, events: heard.append((source, [one.kind for one in events])))
    with forge.track(engine).begin() as connection:
        connection.execute(insert(orders).values(ONE))
        connection.execute(update(orders).values(amount=2))
        connection.execute(text("DELETE FROM orders"))
    stop()
    with engine.begin() as connection:
        connection.execute(insert(orders).values(ONE))
    assert heard == [(engine, ["added", "changed", "invalidate"])]


def test_autocommit_tells_at_once(database: str) -> None:
    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    metadata.create_all(engine)
    told: list[Event] = []
    forge.on_change(forge.track(engine), "orders", told.append)
    with engine.connect() as connection:
        connection.execute(insert(orders).values(ONE))
        assert [one.kind for one in told] == ["added"]
    assert [change.row_id for change in forge.tracking.recorded(engine)] == ["1"]
    engine.dispose()


@pytest.mark.contract("M7")
def test_a_commit_that_fails_tells_nothing(empty_database: str) -> None:
    engine = create_engine(empty_database.replace("postgresql:", "postgresql+psycopg:"))
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE lines ALTER CONSTRAINT lines_order_id_fkey DEFERRABLE INITIALLY DEFERRED"))
    told: list[Event] = []
    forge.on_change(forge.track(engine), "orders", told.append)
    with Session(engine) as session:
        session.add(Order(**ONE))
        session.flush()
        session.execute(text("INSERT INTO lines VALUES (99, 1, 'nobody')"))
        with pytest.raises(IntegrityError, match="lines_order_id_fkey"):
            session.commit()
    assert told == []
    engine.dispose()


@pytest.mark.contract("M4")
def test_a_role_that_may_write_but_not_read(empty_database: str) -> None:
    url = empty_database.replace("postgresql:", "postgresql+psycopg:")
    admin = create_engine(url)
    metadata.create_all(admin)
    forge.tracking.create_log(admin)
    with admin.begin() as connection:
        for statement in (
            "DROP ROLE IF EXISTS blind",
            "CREATE ROLE blind",
            "GRANT INSERT, DELETE ON orders TO blind",
            "GRANT INSERT ON forge_tracked_changes TO blind",
            "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO blind",
            "INSERT INTO orders (id, mail, amount) VALUES (1, 'a', 1)",
        ):
            connection.execute(text(statement))
    engine = forge.track(create_engine(url, connect_args={"options": "-c role=blind"}))
    with engine.begin() as connection:
        connection.execute(orders.delete())
    with engine.begin() as connection, pytest.raises(ProgrammingError), connection.begin_nested():
        connection.execute(orders.select())
    change, cascade = forge.tracking.recorded(admin)
    assert (change.op, change.table, change.row_id) == (forge.Op.INVALIDATE, "orders", "*")
    assert (cascade.op, cascade.table) == (forge.Op.INVALIDATE, "lines")
    with admin.begin() as connection:
        connection.execute(text("DROP OWNED BY blind; DROP ROLE blind"))
    engine.dispose()
    admin.dispose()


def test_a_role_that_may_not_create_the_log_is_told_what_to_do(empty_database: str) -> None:
    url = empty_database.replace("postgresql:", "postgresql+psycopg:")
    admin = create_engine(url)
    metadata.create_all(admin)
    with admin.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS guest; CREATE ROLE guest; GRANT ALL ON orders TO guest"))
        connection.execute(text("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
    engine = forge.track(create_engine(url, connect_args={"options": "-c role=guest"}))
    with pytest.raises(forge.TrackingError, match="cannot be created") as caught, engine.begin() as connection:
        connection.execute(insert(orders).values(ONE))
    assert "create_log" in caught.value.fix
    with admin.begin() as connection:
        assert connection.execute(orders.select()).all() == []
        connection.execute(text("DROP OWNED BY guest; DROP ROLE guest"))
    engine.dispose()
    admin.dispose()


@pytest.mark.contract("M8")
def test_triggers_take_over_and_nothing_is_recorded_twice(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from forge.tracking.sqlalchemy import tables

    monkeypatch.setattr(tables, "FRESH", 0.0)
    engine = forge.track(create_engine(database.replace("postgresql:", "postgresql+psycopg:")))
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(orders).values(ONE))
    with connect(database) as admin:
        admin.execute("SELECT forge_enable_reactivity('orders')")
    with forge.context(user_id="ada"), engine.begin() as connection:
        connection.execute(update(orders).values(amount=2))
    with connect(database) as admin:
        events = admin.execute("SELECT operation, user_id FROM forge_events WHERE operation <> 'SCHEMA'").fetchall()
    assert events == [("UPDATE", "ada")]
    assert [change.op.value for change in forge.tracking.recorded(engine) if change.table == "orders"][-1] == "insert"
    engine.dispose()


def test_never_and_always(engine: Engine, database: str) -> None:
    told: list[Event] = []
    forge.on_change(forge.track(engine, record="never"), "orders", told.append)
    with engine.begin() as connection:
        connection.execute(insert(orders).values(ONE))
        assert not connection.dialect.has_table(connection, "forge_tracked_changes")
    assert [one.kind for one in told] == ["added"]

    both = create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    metadata.create_all(both)
    with connect(database) as admin:
        admin.execute("SELECT forge_enable_reactivity('orders')")
    with forge.track(both, record="always").begin() as connection:
        connection.execute(insert(orders).values(ONE))
    assert ops(both) == ["insert"]
    both.dispose()
