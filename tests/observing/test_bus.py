"""The query bus: every statement is told with what it did, and whoever listens harms nothing."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from psycopg import sql
from psycopg_pool import ConnectionPool
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select, text, update
from sqlalchemy.engine import Engine
from sqlalchemy.event import listen
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

import forge
from forge.embedded import PostgresServer
from forge.errors import ConfigError
from forge.observing import QueryEvent, Subscription, sinks
from forge.observing.event import semantic_op
from forge.observing.hub import MOST_WAITING, hub
from forge.observing.observe import ObservedCursor
from forge.observing.redaction import shown
from forge.react.registry import Auth
from forge.react.runner import Runner

metadata = MetaData()
users = Table(
    "users", metadata, Column("id", Integer, primary_key=True), Column("name", String), Column("password", String)
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """No test leaves anybody listening."""
    yield
    assert not hub.listening


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An observed engine with a table; nobody listened while it was made."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    metadata.create_all(engine)
    yield forge.observe(engine)
    engine.dispose()


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.url()


def one(connection: Any) -> None:
    connection.execute(text("SELECT 1"))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.contract("W1")
def test_every_statement_of_sqlalchemy_is_told(engine: Engine) -> None:
    heard: list[QueryEvent] = []
    before = datetime.now(UTC)
    with forge.on("query", heard.append), engine.begin() as connection, forge.context(user_id=7, batch=1):
        connection.execute(insert(users), [{"id": n, "name": "x", "password": "p"} for n in range(3)])
        connection.execute(update(users).where(users.c.id > 0).values(name="y"))
        connection.execute(select(users)).all()
        connection.execute(text("DELETE FROM users WHERE id = :id"), {"id": 2})
    assert [(event.semantic_op, event.row_count, event.many) for event in heard] == [
        ("insert", 3, 3),
        ("update", 2, 1),
        ("select", None, 1),
        ("delete", 1, 1),
    ]
    for event in heard:
        assert (event.source, event.engine, event.kind, event.error) == ("sqlalchemy", "sqlite/", "query", None)
        assert event.context == forge.Current("7", None, None, {"batch": 1})
        assert 0 < event.duration_ms < 10_000
        assert before <= event.at <= datetime.now(UTC)
    assert heard[0].sql.startswith("INSERT INTO users")
    assert heard[0].params == {"id": "<int>", "name": "<str>", "password": "<redacted>"}


@pytest.mark.contract("W1")
def test_what_fails_is_an_error_and_no_query(engine: Engine) -> None:
    queries: list[QueryEvent] = []
    errors: list[QueryEvent] = []
    with (
        forge.on("query", queries.append),
        forge.on("error", errors.append, params=True),
        engine.connect() as connection,
    ):
        connection.execute(insert(users).values(id=1, name="ada", password="secret"))
        with pytest.raises(IntegrityError):
            connection.execute(insert(users).values(id=1, name="bob", password="secret"))
        with pytest.raises(OperationalError):
            connection.execute(text("SELEC 1"))
    assert len(queries) == 1
    duplicate, syntax = errors
    assert type(duplicate.error).__name__ == "IntegrityError"
    assert (duplicate.kind, duplicate.semantic_op, duplicate.row_count) == ("error", "insert", None)
    assert duplicate.params == {"id": 1, "name": "bob", "password": "<redacted>"}
    assert (syntax.semantic_op, syntax.sql) == ("other", "SELEC 1")


def test_an_engine_that_cannot_connect_is_an_error_too() -> None:
    engine = forge.observe(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=2"), name="down")
    errors: list[QueryEvent] = []
    with forge.on("error", errors.append), pytest.raises(OperationalError):
        engine.connect()
    assert [(event.sql, event.engine) for event in errors] == [("", "down")]


@pytest.mark.contract("W1")
def test_a_failing_subscriber_harms_nothing_and_is_logged_once(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[QueryEvent] = []

    def broken(event: QueryEvent) -> None:
        raise ZeroDivisionError

    with forge.on("query", broken) as failing, forge.on("query", heard.append), engine.connect() as connection:
        for n in range(3):
            assert connection.execute(text("SELECT :n"), {"n": n}).scalar() == n
    assert len(heard) == 3
    assert failing.failures == 3
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


def test_a_context_that_cannot_be_found_harms_no_statement(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def lost() -> Any:
        raise ZeroDivisionError

    with (
        forge.on("query", lambda event: None),
        engine.connect() as connection,
        forge.context.found_by(lost),
    ):
        assert connection.execute(text("SELECT 1")).scalar() == 1
    assert "could not be told" in caplog.text


def test_a_subscribers_own_statements_are_not_told(engine: Engine) -> None:
    heard: list[str] = []

    def write(event: QueryEvent) -> None:
        heard.append(event.sql)
        with engine.connect() as other:
            other.execute(text("SELECT 'from the subscriber'"))

    with forge.on("query", write), engine.connect() as connection:
        one(connection)
    assert heard == ["SELECT 1"]


@pytest.mark.contract("W1")
def test_a_sample_and_the_slow_ones(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    some: list[QueryEvent] = []
    slow: list[QueryEvent] = []
    with (
        forge.on("query", some.append, sample=0.1),
        forge.on("query", slow.append, slower_than=30.0),
        engine.connect() as connection,
    ):
        for _ in range(1000):
            one(connection)
        assert 40 <= len(some) <= 180  # beyond six deviations of a tenth
        hub.tell("SELECT pg_sleep(31)", None, 31.0, source="test", engine="x")
    assert [event.sql for event in slow] == ["SELECT pg_sleep(31)"]


def test_whoever_is_off_hears_no_more(engine: Engine) -> None:
    heard: list[QueryEvent] = []
    first, second = forge.on("query", heard.append), forge.on("query", heard.append)
    with engine.connect() as connection:
        one(connection)
        first.off()
        first.off()
        one(connection)
        second.off()
        one(connection)
    assert len(heard) == 3
    assert not hub.listening


def test_listening_that_begins_or_ends_within_a_statement_is_no_error(engine: Engine) -> None:
    """The clock of a statement that began unheard was never started."""
    kept: list[Subscription] = []

    def begin() -> int:
        kept.append(forge.on("query", lambda event: None))
        return 1

    def end() -> int:
        kept.pop().off()
        return 2

    raw = engine.raw_connection()
    raw.create_function("begin_listening", 0, begin)
    raw.create_function("end_listening", 0, end)
    raw.close()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT begin_listening()")).scalar() == 1
        assert connection.execute(text("SELECT end_listening()")).scalar() == 2


def test_threads_may_come_and_go(engine: Engine) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def churn() -> None:
        try:
            while not stop.is_set():
                forge.on("query", lambda event: None).off()
        except BaseException as error:
            failures.append(error)

    heard: list[QueryEvent] = []
    threads = [threading.Thread(target=churn) for _ in range(3)]
    with forge.on("query", heard.append), engine.connect() as connection:
        for thread in threads:
            thread.start()
        for _ in range(300):
            one(connection)
        stop.set()
        for thread in threads:
            thread.join(10)
    assert failures == []
    assert len(heard) == 300


async def test_an_asynchronous_callback_runs_on_the_loop() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    heard: asyncio.Queue[tuple[str, str | None]] = asyncio.Queue()

    async def write(event: QueryEvent) -> None:
        await asyncio.sleep(0)
        heard.put_nowait((event.sql, forge.current().user_id))

    with forge.on("query", write), forge.context(user_id="ada"):
        async with forge.observe(engine).connect() as connection:
            await connection.execute(text("SELECT 2"))
        async with asyncio.timeout(10):
            assert await heard.get() == ("SELECT 2", "ada")
    await engine.dispose()


async def test_an_asynchronous_callback_hears_threads_too(engine: Engine) -> None:
    async def write(event: QueryEvent) -> None:
        raise ZeroDivisionError

    def work() -> None:
        with engine.connect() as connection:
            one(connection)

    with forge.on("query", write) as subscription:
        await asyncio.to_thread(work)
        await until(lambda: subscription.failures == 1)


def test_an_asynchronous_callback_without_a_loop_is_said_once(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async def write(event: QueryEvent) -> None:
        raise AssertionError

    with forge.on("query", write) as subscription, engine.connect() as connection:
        one(connection)
        one(connection)
    assert subscription.dropped == 2
    assert caplog.text.count("no event loop") == 1


async def test_a_callback_that_is_too_slow_drops_instead_of_growing(engine: Engine) -> None:
    free = asyncio.Event()

    async def wait(event: QueryEvent) -> None:
        await free.wait()

    with forge.on("query", wait) as subscription:
        for _ in range(MOST_WAITING + 5):
            hub.tell("SELECT 1", None, 0.0, source="test", engine="x")
        assert subscription.dropped == 5
        free.set()
        await until(lambda: not subscription._waiting)


@pytest.mark.contract("W1")
def test_psycopg_connections_and_pools(url: str) -> None:
    heard: list[QueryEvent] = []
    errors: list[QueryEvent] = []
    with forge.on("query", heard.append), forge.on("error", errors.append):
        with forge.observe(psycopg.connect(url, autocommit=True)) as connection:
            assert connection.execute("SELECT %s::int AS n", (7,)).fetchone() == (7,)
            connection.execute(sql.SQL("CREATE TEMP TABLE {} (n int)").format(sql.Identifier("t u")))
            with connection.cursor() as cursor:
                cursor.executemany('INSERT INTO "t u" VALUES (%(n)s)', ({"n": n} for n in range(5)))
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.execute(b"SELECT 1 / 0")
        with (
            ConnectionPool(url, kwargs={"cursor_factory": ObservedCursor}, min_size=1) as pool,
            pool.connection() as one,
        ):
            one.execute("SELECT 'pooled'")
    assert [(event.semantic_op, event.row_count, event.params, event.many) for event in heard] == [
        ("select", 1, ("<int>",), 1),
        ("ddl", None, None, 1),
        ("insert", 5, {"n": "<int>"}, 5),
        ("select", 1, None, 1),
    ]
    assert {event.engine for event in heard} == {"postgresql/postgres"}
    assert [(event.sql, type(event.error)) for event in errors] == [("SELECT 1 / 0", psycopg.errors.DivisionByZero)]


async def test_asynchronous_psycopg_connections(url: str) -> None:
    heard: list[QueryEvent] = []
    with forge.on("query", heard.append):
        async with forge.observe(await psycopg.AsyncConnection.connect(url)) as connection:
            await connection.execute("SELECT 1")
            await connection.cursor().executemany("SELECT %s::int", [(1,), (2,)])
    assert [(event.sql, event.many) for event in heard] == [("SELECT 1", 1), ("SELECT %s::int", 2)]


@pytest.mark.contract("W1")
async def test_ctx_db_is_told_by_itself(database: str) -> None:
    app = forge.Forge(database)

    @app.mutation
    async def make(ctx: Any, name: str) -> int:
        await ctx.db.execute("CREATE TABLE things (name text)")
        await ctx.db.fetch("SELECT forge_enable_reactivity('things')")
        return int(await ctx.db.execute("INSERT INTO things VALUES (%(name)s)"))

    @app.query
    async def named(ctx: Any, name: str) -> Any:
        return await ctx.db.fetch("SELECT * FROM things WHERE name = %(name)s")

    heard: list[QueryEvent] = []
    runner = Runner(database)
    await runner.open()
    try:
        with forge.on("query", heard.append, params=True), forge.context(step=1):
            await runner.mutate(app.registry.mutations["make"], {"name": "x"}, Auth(user="ada"), "t")
            await runner.query(app.registry.call("named", {"name": "x"}, Auth(user="bob")))
    finally:
        await runner.close()
    assert [(event.semantic_op, event.source, event.params) for event in heard] == [
        ("ddl", "ctx.db", {}),
        ("select", "ctx.db", {}),
        ("insert", "ctx.db", {"name": "x"}),
        ("select", "ctx.db", {"name": "x"}),
    ]
    assert heard[2].context == forge.Current("ada", "make", "t", {"step": 1})
    assert heard[3].context == forge.Current("bob", "named")


def test_observing_twice_is_once_and_sessionmakers_have_engines(engine: Engine) -> None:
    heard: list[QueryEvent] = []
    sessions = sessionmaker(engine)
    assert forge.observe(sessions) is sessions
    assert forge.observe(engine, name="shop") is engine
    with forge.on("query", heard.append), sessions() as session:
        session.execute(text("SELECT 1"))
    assert [event.engine for event in heard] == ["shop"]


@pytest.mark.contract("W1")
@pytest.mark.parametrize("first", ["observe", "track"])
def test_a_tracked_engine_is_observed_and_tells_of_the_applications_statements_only(first: str) -> None:
    """Nor is what tracking reads and writes beside a statement part of its time."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    if first == "observe":
        forge.observe(engine)
    forge.track(engine)
    forge.observe(engine.execution_options(a=1), name="shop")
    heard: list[QueryEvent] = []
    waiting: list[str] = []

    def slow(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if ("users" in statement and statement.startswith("SELECT")) or "forge_tracked" in statement:
            waiting.append(statement)
            time.sleep(0.05)

    listen(engine, "before_cursor_execute", slow)
    with forge.on("query", heard.append), forge.on("error", heard.append), engine.begin() as connection:
        connection.execute(insert(users), [{"name": "a"}, {"name": "b"}])
        connection.execute(update(users).where(users.c.name == "a").values(name="c"))
        connection.execute(text("DELETE FROM users"))
    assert waiting, "tracking reads the rows before and after"
    assert [(event.semantic_op, event.engine, event.row_count) for event in heard] == [
        ("insert", "shop", None),  # it returns its keys, and sqlite3 counts rows when they are read
        ("update", "shop", 1),
        ("delete", "shop", 2),
    ]
    assert max(event.duration_ms for event in heard) < 50
    assert len(list(forge.tracking.recorded(engine))) == 4
    engine.dispose()


@pytest.mark.contract("W1")
def test_an_engine_is_tracked_and_not_observed_where_one_says_so() -> None:
    engine = forge.track(create_engine("sqlite://", poolclass=StaticPool), observe=False)
    heard: list[QueryEvent] = []
    with forge.on("query", heard.append), engine.connect() as connection:
        one(connection)
    assert heard == []
    engine.dispose()


def test_when_nobody_listens_two_looks_are_all_that_a_statement_costs(engine: Engine) -> None:
    calls: list[str] = []

    def count(frame: Any, kind: str, argument: Any) -> None:
        if kind == "call" and "/forge/observing/" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_name)

    with engine.connect() as connection:
        one(connection)
        sys.setprofile(count)
        try:
            one(connection)
        finally:
            sys.setprofile(None)
    assert calls == ["before", "after"]


@pytest.mark.parametrize("what", [None, "postgresql://x", sessionmaker()], ids=str)
def test_what_cannot_be_observed_is_refused(what: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be observed"):
        forge.observe(what)


@pytest.mark.parametrize(
    "wrong", [{"kind": "change"}, {"callback": 7}, {"sample": 0}, {"sample": 1.5}, {"slower_than": -1}], ids=str
)
def test_malformed_subscriptions_are_refused(wrong: dict[str, Any]) -> None:
    arguments = {"kind": "query", "callback": print, **wrong}
    with pytest.raises(ConfigError):
        forge.on(arguments.pop("kind"), arguments.pop("callback"), **arguments)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("  -- why\n select 1", "select"),
        ("((select 1) union (select 2))", "select"),
        ("VALUES (1)", "select"),
        ("WITH a AS (SELECT 'delete from x (') INSERT INTO t SELECT * FROM a", "insert"),
        ('WITH "update" AS (SELECT 1), b AS MATERIALIZED (SELECT 2) SELECT * FROM b', "select"),
        ("WITH a AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM a", "insert"),
        ("WITH a AS (SELECT x FROM t FOR UPDATE) SELECT 1", "select"),
        ("MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE", "merge"),
        ("REPLACE INTO t VALUES (1)", "insert"),
        ("COPY t FROM STDIN", "insert"),
        ("COPY (SELECT 1) TO STDOUT", "select"),
        ("TRUNCATE t", "ddl"),
        ("create table t (x int)", "ddl"),
        ("SAVEPOINT a", "transaction"),
        ("COMMIT", "transaction"),
        ("EXPLAIN SELECT 1", "other"),
        ("", "other"),
        ("'", "other"),
        ("WITH a AS (SELECT '" + "x" * 10_000 + "') DELETE FROM t", "delete"),
        ("$$ delete $$", "other"),
    ],
)
def test_semantic_operations(statement: str, expected: str) -> None:
    assert semantic_op(statement) == expected


@pytest.mark.parametrize(
    ("params", "hidden", "visible"),
    [
        (None, None, None),
        ((1, "a", None), ("<int>", "<str>", None), (1, "a", None)),
        ({"Password_2": "x"}, {"Password_2": "<redacted>"}, {"Password_2": "<redacted>"}),
        ({"data": {"api_key": "k", "n": 1}}, {"data": "<dict>"}, {"data": {"api_key": "<redacted>", "n": 1}}),
        ({"blob": b"x"}, {"blob": "<bytes>"}, {"blob": "<bytes>"}),
    ],
)
def test_parameters_are_hidden_by_default(params: Any, hidden: Any, visible: Any) -> None:
    assert shown("SELECT 1", params, values=False) == hidden
    assert shown("SELECT 1", params, values=True) == visible


def test_logging(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forge.queries")
    write = sinks.log()
    with forge.on("query", write), forge.on("error", write), engine.connect() as connection:
        connection.execute(text("SELECT\n  :mail"), {"mail": "ada@example.org"})
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT missing, :mail"), {"mail": "ada@example.org"})
    told, failed = (record for record in caplog.records if record.name == "forge.queries")
    assert told.getMessage().endswith("? rows · SELECT ? {'mail': '<str>'}")
    assert told.query.semantic_op == "select"  # type: ignore[attr-defined]
    assert failed.levelno == logging.ERROR
    assert "OperationalError" in failed.getMessage()
    assert "ada@example.org" not in caplog.text


def test_prometheus(engine: Engine) -> None:
    registry = CollectorRegistry()
    with (
        forge.on("query", sinks.prometheus(registry)),
        forge.on("error", sinks.prometheus(registry)),
        engine.connect() as connection,
    ):
        one(connection)
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT missing"))
    labels = {"op": "select", "source": "sqlalchemy", "database": "sqlite/"}
    assert registry.get_sample_value("forge_query_seconds_count", labels) == 1
    assert registry.get_sample_value("forge_query_errors_total", {**labels, "error": "OperationalError"}) == 1


def test_opentelemetry(engine: Engine) -> None:
    spans = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    send = sinks.opentelemetry(tracer_provider=tracers, meter_provider=meters)
    with forge.on("query", send), forge.on("error", send), engine.connect() as connection:
        with tracers.get_tracer("test").start_as_current_span("request") as outer:
            one(connection)
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT missing"))
    told, _, failed = spans.get_finished_spans()
    assert told.parent is not None
    assert told.parent.span_id == outer.get_span_context().span_id
    assert told.attributes is not None
    assert told.attributes["db.query.text"] == "SELECT 1"
    assert told.end_time is not None
    assert told.start_time is not None
    assert told.end_time > told.start_time
    assert not failed.status.is_ok
    data = reader.get_metrics_data()
    assert data is not None
    points = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert sum(getattr(point, "count", 0) for point in points) == 2
    tracers.shutdown()
    meters.shutdown()


def test_orm_sessions_are_told(engine: Engine) -> None:
    heard: list[QueryEvent] = []
    with forge.on("query", heard.append), Session(engine) as session:
        session.execute(insert(users), [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
        session.commit()
    assert [(event.semantic_op, event.many) for event in heard] == [("insert", 2)]
