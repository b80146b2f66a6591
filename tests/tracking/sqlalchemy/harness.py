"""One way to write to a tracked database, whatever it is, and to see what was recorded and told."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    create_engine,
    event,
    text,
)
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import forge
from forge.tracking.events import Event
from forge.tracking.sqlalchemy import on_change, recorded, track
from forge.wire import encode_row

Result = TypeVar("Result")

metadata = MetaData()


class Base(DeclarativeBase):
    metadata = metadata


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    mail: Mapped[str] = mapped_column(String(60), unique=True)
    amount: Mapped[int] = mapped_column(default=1)
    status: Mapped[str] = mapped_column(String(20), server_default="open")


class Line(Base):
    __tablename__ = "lines"
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id", ondelete="CASCADE"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str] = mapped_column(String(60))


orders: Table = Order.__table__  # type: ignore[assignment]
lines: Table = Line.__table__  # type: ignore[assignment]
tags = Table(
    "tags", metadata, Column("name", String(30), primary_key=True), Column("size", Numeric(10, 2, asdecimal=False))
)
keyless = Table("keyless", metadata, Column("word", String(30)), Column("times", Integer))


def made_tables(url: str) -> Engine:
    """An engine on a database that has them now."""
    engine = create_engine(url.replace("+aiosqlite", ""))
    metadata.create_all(engine)
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:  # tests give keys of their own below
            connection.execute(text("ALTER SEQUENCE orders_id_seq RESTART WITH 1000"))
    return engine


class Record(NamedTuple):
    """A change as both logs tell it."""

    op: str
    table: str
    row_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    user_id: str | None


class Place:
    """A database with the tables above, and what the tests on it share: a loop, and two engines."""

    def __init__(self, kind: str, url: str, runner: asyncio.Runner) -> None:
        self.kind, self.url, self.runner = kind, url, runner
        self.plain = made_tables(url)
        """An engine that nobody tracks."""
        self._tracked: Any = None

    @property
    def tracked(self) -> Any:
        """One that is tracked as it is tracked unless told otherwise."""
        if self._tracked is None:
            self._tracked = track(self.engine())
        return self._tracked

    @property
    def is_async(self) -> bool:
        return self.kind in ("psycopg-async", "aiosqlite")

    def engine(self, **options: Any) -> Any:
        """A new engine that is not tracked."""
        made: Any = (create_async_engine if self.is_async else create_engine)(self.url, **options)
        if "sqlite" in self.kind:
            real = sync(made)
            event.listen(real, "connect", _own_transactions)
            event.listen(real, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        return made

    def dispose(self, engine: Any) -> None:
        """Close an engine's connections."""
        if self.is_async:
            self.runner.run(engine.dispose())
        else:
            engine.dispose()

    def close(self) -> None:
        """Close the engines that are shared."""
        if self._tracked is not None:
            self.dispose(self._tracked)
        self.plain.dispose()


class Harness:
    """A tracked engine: that of the place, unless a test asks for one of its own."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.kind, self.url, self._runner, self.plain = place.kind, place.url, place.runner, place.plain
        self.events: list[Event] = []
        self._closing: list[Callable[[], object]] = []
        self.target: Any = None
        self._since = 0

    @property
    def triggers(self) -> bool:
        return self.kind == "triggers"

    @property
    def is_async(self) -> bool:
        return self._place.is_async

    @property
    def returns(self) -> bool:
        """Whether an UPDATE can return rows."""
        return self.kind != "mariadb"

    def engine(self, **options: Any) -> Any:
        """A new engine that is not tracked."""
        made = self._place.engine(**options)
        self._closing.append(lambda: self._place.dispose(made))
        return made

    def track(self, **options: Any) -> Any:
        """An engine of this test's own, tracked so."""
        self.target = track(self.engine(), **options)
        return self.target

    def ensure(self) -> Any:
        if self.target is None:
            self.target = self._place.tracked
        return self.target

    def run(self, work: Callable[[Connection], Result], target: Any = None) -> Result:
        """Do it in a transaction that commits."""
        engine = target if target is not None else self.ensure()
        if not self.is_async:
            with engine.begin() as connection:
                return work(connection)

        async def go() -> Result:
            async with engine.begin() as connection:
                return await connection.run_sync(work)  # type: ignore[no-any-return]

        return self._runner.run(go(), context=copy_context())

    def session(self, work: Callable[[Session], Result], target: Any = None) -> Result:
        """Do it in a session that commits."""

        def within(connection: Connection) -> Result:
            with Session(connection, join_transaction_mode="rollback_only") as session:
                found = work(session)
                session.flush()
                return found

        return self.run(within, target)

    def listen(self, table: Any = "orders", where: Any = None) -> list[Event]:
        """The events that a subscriber gets from now on."""
        self.ensure()
        found: list[Event] = []
        self._closing.append(on_change(self.target, table, found.append, where=where))
        return found

    def log(self) -> list[Record]:
        """What was recorded since the tables were emptied, in order."""
        with self.plain.connect() as connection:
            if self.triggers:
                rows = connection.execute(
                    text(
                        "SELECT lower(operation), table_name, row_id, old_data, new_data, user_id FROM forge_events"
                        " WHERE id > :since ORDER BY id"
                    ),
                    {"since": self._since},
                )
                return [Record(*row) for row in rows]
            return [
                Record(
                    change.op.value,
                    change.table,
                    change.row_id,
                    encode_row(change.before),
                    encode_row(change.after),
                    change.context.user_id,
                )
                for change in self.changes()
            ]

    def changes(self) -> list[forge.Change]:
        """What track itself recorded since the tables were emptied."""
        with self.plain.connect() as connection:
            if not _has_log(connection):
                return []
            return list(recorded(connection, after=0 if self.triggers else self._since))

    def empty(self) -> None:
        """Empty the tables, unseen."""
        with self.plain.begin() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(table.delete())
        self.empty_log()

    def empty_log(self) -> None:
        """Forget what was recorded so far."""
        with self.plain.begin() as connection:
            if self.triggers:
                self._since = connection.execute(text("SELECT coalesce(max(id), 0) FROM forge_events")).scalar_one()
            elif _has_log(connection):
                connection.execute(text("DELETE FROM forge_tracked_changes"))

    def rows(self, table: Table) -> list[dict[str, Any]]:
        """What is in a table."""
        with self.plain.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(table.select())]

    def close(self) -> None:
        for close in reversed(self._closing):
            close()


def sync(engine: Any) -> Engine:
    """The engine that events are about."""
    found: Engine = getattr(engine, "sync_engine", engine)
    return found


def _own_transactions(connection: Any, record: Any) -> None:
    connection.isolation_level = None


def _has_log(connection: Connection) -> bool:
    return connection.dialect.has_table(connection, "forge_tracked_changes")
