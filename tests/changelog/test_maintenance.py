"""The log is kept: partitions ahead, old days gone, one node at a time, and no writer ever waits for it."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest

from forge.changelog import maintenance, partitions, trimming
from forge.changelog.maintenance import Maintainer, Policy, run_once
from forge.changelog.partitions import AHEAD, partition_name
from forge.changelog.reader import Reader
from forge.cursor import Snapshot
from forge.embedded import PostgresServer
from forge.errors import ConfigError, CursorExpired, NotInstalled, ServerError
from forge.postgres.connection import Connection, connect
from forge.testing import FaultProxy

SOON = 30.0
TODAY = datetime.now(UTC).date()


def ago(days: int) -> date:
    return TODAY - timedelta(days=days)


def one(connection: Connection, statement: str, *values: object) -> object:
    row = connection.execute(statement.encode(), values).fetchone()
    return row[0] if row else None


def wait_until(condition: Callable[[], object], seconds: float = SOON) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def old_day(connection: Connection, day: date, rows: int = 3) -> None:
    """A day's partition as if it had been written then."""
    partitions.make(connection, day)
    connection.execute(
        "INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op)"
        " SELECT pg_current_xact_id(), %s::date + interval '12 hours', %s, 1, 'I' FROM generate_series(1, %s)",
        (day, day, rows),
    )


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("SELECT forge.current_identity()")
    connection.execute("CREATE TABLE item (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    connection.execute("INSERT INTO item (name) VALUES ('first')")
    return connection


@contextmanager
def writing(database: str) -> Iterator[list[float]]:
    """Writers that write all the while; yields how long each write took."""
    took: list[float] = []
    stop = threading.Event()

    def write() -> None:
        with connect(database) as connection:
            while not stop.is_set():
                began = time.monotonic()
                connection.execute("INSERT INTO item (name) VALUES ('x')")
                took.append(time.monotonic() - began)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield took
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.contract("T5")
@pytest.mark.every_version
def test_partitions_are_there_a_week_ahead_and_writers_use_them(database: str, shop: Connection) -> None:
    for n in range(2, AHEAD + 1):
        shop.execute(f"DROP TABLE forge.{partition_name(ago(-n))}".encode())
    shop.execute("INSERT INTO item (name) VALUES ('x')")
    report = run_once(database)
    assert report.problems == []
    assert report.made == [partition_name(ago(-n)) for n in range(2, AHEAD + 1)]
    assert partitions.attached(shop) == [ago(-n) for n in range(AHEAD + 1)]
    shop.execute("INSERT INTO item (name) VALUES ('x')")
    assert one(shop, "SELECT count(*) FROM forge.forge_event_overflow") == 0
    assert one(shop, "SELECT forge.log_day(now() + interval '7 days') = current_date + 7")
    assert one(shop, "SELECT forge.log_day(now() + interval '9 days') = 'infinity'")
    indexes = "SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass AND indisvalid"
    assert one(shop, indexes, f"forge.{partition_name(ago(-7))}") == one(shop, indexes, "forge.forge_event_log")
    assert run_once(database).made == []


@pytest.mark.contract("T5")
def test_a_log_that_nobody_looked_after_loses_nothing_and_recovers(database: str, shop: Connection) -> None:
    for n in range(AHEAD + 1):
        shop.execute(f"DROP TABLE forge.{partition_name(ago(-n))}".encode())
    partitions.announce(shop, TODAY)
    shop.execute("INSERT INTO item (name) VALUES ('overflow')")
    assert one(shop, "SELECT count(*) FROM forge.forge_event_overflow") == 1
    assert len(run_once(database).made) == AHEAD + 1
    shop.execute("INSERT INTO item (name) VALUES ('today')")
    events = "SELECT new_data ->> 'name' FROM public.forge_events WHERE operation = 'INSERT' ORDER BY id"
    assert shop.execute(events.encode()).fetchall() == [("overflow",), ("today",)]


@pytest.mark.contract("T5", "R9")
@pytest.mark.every_version
def test_days_older_than_the_retention_are_dropped_whole_and_recorded(database: str, shop: Connection) -> None:
    for n in (40, 32, 31, 30, 2):
        old_day(shop, ago(n), rows=n)
    last = one(shop, "SELECT transaction_id::text FROM forge.forge_event_log WHERE day = %s LIMIT 1", ago(31))
    report = run_once(database, Policy(retention_days=30))
    gone = [partition_name(ago(n)) for n in (40, 32, 31)]
    assert (report.dropped, report.waiting, report.trimmed_rows, report.problems) == (gone, [], 103, [])
    assert partitions.attached(shop)[:3] == [ago(30), ago(2), TODAY]
    assert one(shop, "SELECT count(*) FROM pg_class WHERE relname = ANY (%s)", gone) == 0
    trimmed = shop.execute(
        "SELECT partition, reason, rows, last_id IS NOT NULL, last_transaction::text FROM forge.trimmed ORDER BY id"
    ).fetchall()
    assert [row[:4] for row in trimmed] == [
        (name, "retention", n, True) for name, n in zip(gone, (40, 32, 31), strict=True)
    ]
    assert trimmed[-1][4] == last
    again = run_once(database, Policy(retention_days=30))
    assert (again.dropped, again.trimmed_rows) == ([], 0)


def test_yesterday_goes_when_nothing_is_to_be_kept_and_today_stays(database: str, shop: Connection) -> None:
    old_day(shop, ago(2))
    report = run_once(database, Policy(retention_days=0))
    assert report.dropped == [partition_name(ago(2))]
    assert TODAY in partitions.attached(shop)
    shop.execute("INSERT INTO item (name) VALUES ('x')")
    assert one(shop, "SELECT count(*) FROM forge.forge_event_overflow") == 0


@pytest.mark.contract("T5")
def test_above_the_size_limit_the_oldest_days_go_but_never_today(database: str, shop: Connection) -> None:
    for n in (5, 4, 3):
        old_day(shop, ago(n), rows=2000)
    size = run_once(database).size
    each = one(shop, "SELECT pg_total_relation_size(%s::regclass)", f"forge.{partition_name(ago(5))}")
    assert isinstance(each, int)
    report = run_once(database, Policy(size_limit=size - each - 1))
    assert report.dropped == [partition_name(ago(5)), partition_name(ago(4))]
    assert shop.execute("SELECT DISTINCT reason FROM forge.trimmed").fetchall() == [("size",)]
    report = run_once(database, Policy(size_limit=1))
    assert report.dropped == [partition_name(ago(3))]
    assert TODAY in partitions.attached(shop)
    assert "more than its limit" in report.problems[0]
    assert one(shop, "SELECT count(*) FROM public.forge_events WHERE operation = 'INSERT'") == 1


def test_old_rows_of_the_overflow_go_row_by_row(
    database: str, shop: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "_BATCH", 10)
    for n in (50, 45, 3):
        shop.execute(
            "INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op)"
            " SELECT pg_current_xact_id(), now() - %s * interval '1 day', 'infinity', 1, 'I'"
            " FROM generate_series(1, 25)",
            (n,),
        )
    last = one(
        shop,
        "SELECT max(transaction_id::text::bigint) FROM forge.forge_event_overflow"
        " WHERE at < now() - interval '31 days'",
    )
    report = run_once(database)
    assert report.trimmed_rows == 50
    assert one(shop, "SELECT count(*) FROM forge.forge_event_overflow") == 25
    assert shop.execute(
        "SELECT partition, reason, rows, last_transaction::text::bigint FROM forge.trimmed"
    ).fetchall() == [("forge_event_overflow", "retention", 50, last)]
    assert run_once(database).trimmed_rows == 0


def test_old_payloads_and_instants_go(database: str, shop: Connection) -> None:
    shop.execute(
        "INSERT INTO forge.large_payload (channel, payload, at)"
        " SELECT 'c', 'p', now() - h * interval '1 hour' FROM unnest(ARRAY[1, 23, 25, 500]) h"
    )
    run_once(database)
    assert one(shop, "SELECT count(*) FROM forge.large_payload") == 2
    shop.execute(
        "INSERT INTO forge.instant SELECT now() - d * interval '1 day', pg_current_snapshot()"
        " FROM unnest(ARRAY[50, 40, 35, 20, 10]) d"
    )
    assert run_once(database).trimmed_instants == 2
    # that of 35 days ago is the answer until the one of 20 days ago
    assert one(shop, "SELECT count(*) FROM forge.instant WHERE at < now() - interval '9 days'") == 3


def test_a_definition_that_changed_unseen_is_refreshed(database: str, shop: Connection) -> None:
    shop.execute("ALTER EVENT TRIGGER forge_ddl DISABLE")
    shop.execute("ALTER TABLE item ADD COLUMN price numeric")
    report = run_once(database)
    assert (report.refreshed, report.problems) == (1, [])
    assert run_once(database).refreshed == 0
    shop.execute("INSERT INTO item (price) VALUES (1.50)")
    assert one(shop, "SELECT new_data ->> 'price' FROM public.forge_events ORDER BY id DESC LIMIT 1") == "1.50"


@pytest.mark.contract("T5")
@pytest.mark.every_version
def test_no_writer_waits_behind_a_long_reader(database: str, shop: Connection) -> None:
    for n in (40, 39):
        old_day(shop, ago(n))
    for n in range(3, AHEAD + 1):
        shop.execute(f"DROP TABLE forge.{partition_name(ago(-n))}".encode())
    with connect(database) as reader, writing(database) as took:
        wait_until(lambda: len(took) > 10)
        with reader.transaction():
            # without parameters, so that psycopg leaves no portal behind, and thus no snapshot: only locks
            assert one(reader, f"SELECT count(*) FROM forge.forge_event_log WHERE day < '{ago(38)}'") == 6
            for _ in range(3):
                report = run_once(database)
                assert report.dropped == []
                assert report.waiting == [partition_name(ago(40)), partition_name(ago(39))]
                assert report.problems == []
            assert partitions.detaching(shop) == [ago(40)]
            assert partitions.attached(shop)[-1] == ago(-AHEAD)
            # recorded before the reader's next statement could miss it
            assert one(reader, "SELECT count(*) FROM forge.trimmed") == 2
        wait_until(lambda: run_once(database).waiting == [])
        done = len(took)
        wait_until(lambda: len(took) > done + 10)
    assert partitions.attached(shop)[0] == TODAY
    assert max(took) < 1.0
    assert one(shop, "SELECT count(*) FROM public.forge_events WHERE operation = 'INSERT'") == len(took) + 1


@pytest.mark.contract("T5")
def test_no_writer_waits_behind_a_long_writer_and_its_rows_are_not_dropped_unseen(
    database: str, shop: Connection
) -> None:
    old_day(shop, ago(40))
    with connect(database) as slow, writing(database) as took:
        wait_until(lambda: len(took) > 10)
        with slow.transaction():
            slow.execute(
                "INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op)"
                " VALUES (pg_current_xact_id(), now(), %s, 1, 'I')",
                (ago(40),),
            )
            slow_id = one(slow, "SELECT pg_current_xact_id()::text")
            for _ in range(2):
                report = run_once(database)
                assert (report.dropped, report.problems) == ([], [])
                assert report.waiting == [partition_name(ago(40))]
            assert ago(40) in partitions.attached(shop)
            assert one(shop, "SELECT count(*) FROM forge.trimmed WHERE partition = %s", partition_name(ago(40))) == 0
        wait_until(lambda: run_once(database).waiting == [])
    assert partitions.attached(shop)[0] == TODAY
    assert max(took) < 1.0
    recorded = one(
        shop, "SELECT last_transaction::text FROM forge.trimmed WHERE partition = %s", partition_name(ago(40))
    )
    assert recorded == slow_id


@pytest.mark.contract("T5")
def test_a_snapshot_from_before_the_record_keeps_what_it_sees(database: str, shop: Connection) -> None:
    old_day(shop, ago(40))
    with connect(database) as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert one(reader, "SELECT count(*) FROM forge.trimmed") == 0
        report = run_once(database)
        assert report.waiting == [partition_name(ago(40))]
        assert one(reader, "SELECT count(*) FROM forge.trimmed") == 0
        assert one(reader, "SELECT count(*) FROM forge.forge_event_log WHERE day = %s", ago(40)) == 3
        reader.execute("COMMIT")
    assert run_once(database).dropped == [partition_name(ago(40))]


@pytest.mark.contract("T5", "R9")
def test_one_node_at_a_time_maintains(database: str, shop: Connection) -> None:
    old_day(shop, ago(40))
    with Maintainer.open(database, Policy()) as keeper:
        assert keeper.elected()
        assert run_once(database).busy
        assert ago(40) in partitions.attached(shop)
    wait_until(lambda: not run_once(database).busy)
    assert ago(40) not in partitions.attached(shop)


@pytest.mark.contract("R8")
async def test_a_reader_from_before_what_was_trimmed_is_told_to_start_anew(database: str, shop: Connection) -> None:
    async with Reader.open(database) as reader:
        before = await reader.now()
        old_day(shop, ago(40))
        after = await reader.now()
        assert run_once(database).dropped == [partition_name(ago(40))]
        shop.execute("INSERT INTO item (name) VALUES ('x')")
        with pytest.raises(CursorExpired):
            await anext(reader.read(before))
        assert [
            change.after["name"] async for batch in reader.read(after) for change in batch.changes if change.after
        ] == ["x"]


@contextmanager
def maintaining(url: str, policy: Policy) -> Iterator[asyncio.Task[None]]:
    """`maintain` in a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(maintenance.maintain(url, policy))

    async def end() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    task = asyncio.run_coroutine_threadsafe(begin(), loop).result()
    try:
        yield task
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(SOON)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


HOLDER = "SELECT pid FROM forge.held_lease WHERE name = 'maintenance'"


@pytest.mark.contract("T5", "R9")
def test_another_node_takes_over_when_the_one_that_maintains_dies(database: str, shop: Connection) -> None:
    policy = Policy(interval=0.2, instants=0.05)

    def holder() -> object:
        return one(shop, HOLDER)

    with maintaining(database, policy) as first:
        wait_until(holder)
        pid = holder()
        with maintaining(database, policy) as second:
            # the connection is lost: one of them, the same or the other, carries on
            shop.execute("SELECT pg_terminate_backend(%s)", (pid,))
            wait_until(lambda: holder() not in (None, pid))
            old_day(shop, ago(40))
            wait_until(lambda: ago(40) not in partitions.attached(shop))
            seen = one(shop, "SELECT max(at) FROM forge.instant")
            shop.execute("INSERT INTO item (name) VALUES ('x')")
            wait_until(lambda: one(shop, "SELECT max(at) FROM forge.instant") != seen)
            assert not first.done()
            assert not second.done()
    wait_until(lambda: holder() is None)


@pytest.mark.contract("T9")
def test_instants_are_recorded_while_a_round_takes_long(
    database: str, shop: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, go_on = threading.Event(), threading.Event()
    whole = Maintainer.round

    def long_round(keeper: Maintainer) -> maintenance.MaintenanceReport:
        report = whole(keeper)
        rounds.set()
        assert go_on.wait(SOON)
        return report

    monkeypatch.setattr(Maintainer, "round", long_round)
    with maintaining(database, Policy(interval=0.2, instants=0.05)) as task:
        try:
            assert rounds.wait(SOON)
            for _ in range(5):
                next_instant(shop)
            assert not task.done()
        finally:
            go_on.set()


@pytest.mark.contract("T9")
def test_instants_are_recorded_while_a_backlog_is_sealed(database: str, shop: Connection) -> None:
    backlog = 100_000
    shop.execute("INSERT INTO item (name) SELECT 'x' FROM generate_series(1, %s)", (backlog,))
    shop.execute("SELECT forge.start_sealing(true)")
    sealed = "SELECT sum(rows) FROM forge.log_seal"
    with maintaining(database, Policy(interval=0.2, instants=0.05)):
        wait_until(lambda: one(shop, sealed))
        while int(str(one(shop, sealed))) < backlog:
            next_instant(shop)
    # within one round, which seals for five seconds at most
    meanwhile = one(
        shop,
        "WITH run AS (SELECT sealed_at, sum(rows) OVER (ORDER BY id) AS done FROM forge.log_seal WHERE rows > 0)"
        " SELECT count(*) FROM forge.instant WHERE at > (SELECT min(sealed_at) FROM run) AND at < least("
        " (SELECT min(sealed_at) FROM run WHERE done >= %s), (SELECT min(sealed_at) + interval '4 seconds' FROM run))",
        backlog,
    )
    assert int(str(meanwhile)) >= 3


def next_instant(connection: Connection) -> None:
    """Change something, and wait until an instant is recorded."""
    seen = one(connection, "SELECT max(at) FROM forge.instant")
    connection.execute("INSERT INTO item (name) VALUES ('x')")
    wait_until(lambda: one(connection, "SELECT max(at) FROM forge.instant") != seen)


def test_instants_go_on_after_their_table_was_locked(database: str, shop: Connection) -> None:
    with maintaining(database, Policy(interval=0.2, instants=0.05)) as task, connect(database) as other:
        wait_until(lambda: one(shop, "SELECT max(at) FROM forge.instant"))
        with other.transaction():
            other.execute("LOCK TABLE forge.instant IN ACCESS EXCLUSIVE MODE")
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'forge.instant'::regclass"
            shop.execute("INSERT INTO item (name) VALUES ('x')")
            wait_until(lambda: one(shop, waiting))
            wait_until(lambda: not one(shop, waiting))
        next_instant(shop)
        assert not task.done()


def test_instants_grow_in_both_whoever_records_them(database: str, shop: Connection) -> None:
    """Several sessions may record for a moment, when one node takes over from another."""
    with writing(database):
        keepers = [Maintainer.open(database, Policy(instants=0.001)) for _ in range(3)]
        threads = [threading.Thread(target=keeper.record_instants) for keeper in keepers]
        for thread in threads:
            thread.start()
        wait_until(lambda: int(str(one(shop, "SELECT count(*) FROM forge.instant"))) > 200)
        for keeper in keepers:
            keeper._stopped.set()
        for thread in threads:
            thread.join(SOON)
        for keeper in keepers:
            keeper.close()
    pairs = [
        Snapshot.parse(text)
        for (text,) in shop.execute("SELECT snapshot::text FROM forge.instant ORDER BY at").fetchall()
    ]
    assert all(newer.covers(older) for older, newer in pairwise(pairs))


def test_maintenance_survives_a_network_that_comes_and_goes(
    server: PostgresServer, database: str, shop: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy(interval=0.2, instants=0.05)
    with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        maintaining(proxy.url(database), policy) as task,
    ):
        wait_until(lambda: one(shop, HOLDER))
        proxy.refuse()
        proxy.cut()
        wait_until(lambda: "maintenance of the log: connection lost" in caplog.text)
        proxy.accept()
        old_day(shop, ago(40))
        wait_until(lambda: ago(40) not in partitions.attached(shop))
        assert not task.done()


async def test_what_cannot_pass_by_itself_is_raised(empty_database: str) -> None:
    with pytest.raises(NotInstalled):
        await asyncio.wait_for(maintenance.maintain(empty_database), SOON)
    with pytest.raises(NotInstalled):
        run_once(empty_database)


async def test_a_first_connection_that_is_refused_is_raised(server: PostgresServer, shop: Connection) -> None:
    name = shop.info.dbname
    shop.execute(f"CREATE ROLE nobody_{name} LOGIN".encode())
    try:
        with pytest.raises(ServerError, match="permission denied"):
            await asyncio.wait_for(maintenance.maintain(server.url(name, f"nobody_{name}")), SOON)
        with pytest.raises(ServerError, match="does not exist"):
            await asyncio.wait_for(maintenance.maintain(server.url(name, "no_such_role")), SOON)
    finally:
        shop.execute(f"DROP ROLE nobody_{name}".encode())


def test_a_later_connection_that_is_refused_is_tried_again(
    server: PostgresServer, database: str, shop: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"keeper_{shop.info.dbname}"
    shop.execute(f"CREATE ROLE {role} LOGIN SUPERUSER".encode())
    try:
        with maintaining(server.url(shop.info.dbname, role), Policy(interval=0.2, instants=0.05)) as task:
            wait_until(lambda: one(shop, HOLDER))
            pid = one(shop, HOLDER)
            shop.execute(f"ALTER ROLE {role} NOLOGIN".encode())
            shop.execute("SELECT pg_terminate_backend(%s)", (pid,))
            wait_until(lambda: "not permitted to log in" in caplog.text)
            shop.execute(f"ALTER ROLE {role} LOGIN".encode())
            wait_until(lambda: one(shop, HOLDER))
            assert not task.done()
    finally:
        shop.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_server_that_is_not_there_is_an_error_of_its_own(server: PostgresServer) -> None:
    with pytest.raises(ServerError):
        run_once(server.url("no_such_database"))


@pytest.mark.parametrize("name", ["retention_days", "size_limit", "interval", "instants"])
def test_a_policy_that_makes_no_sense_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} cannot be -1"):
        Policy(**{name: -1})
