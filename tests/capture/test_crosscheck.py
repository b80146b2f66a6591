"""The trigger log against the WAL on a real server: equal under traffic, and every planted difference is found."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from forge.capture import Filter
from forge.capture.crosscheck import CrosscheckReport, DifferenceKind, open_window, spool
from forge.capture.crosscheck.compare import SeenChange, compare
from forge.capture.wal import WalSource
from forge.change import UNAVAILABLE, Change, ChangeSource, Op
from forge.embedded import PostgresServer
from forge.errors import NotInstalled, SlotInUse, SlotLost, SourceError
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database, temporary_postgres
from tests.capture.wal.reading import until
from tests.conftest import TEMPLATE, versions

pytestmark = pytest.mark.contract("X8")

TABLES = """
    CREATE TYPE mood AS ENUM ('calm', 'busy');
    CREATE DOMAIN price AS numeric(12, 3);
    CREATE TYPE pair AS (a int, b text);
    CREATE TABLE plain (id int PRIMARY KEY, status text, secret text, card text, total price);
    CREATE TABLE kinds (
        id bigint PRIMARY KEY, yes boolean, small smallint, exact numeric, single real, double double precision,
        raw bytea, doc jsonb, doc_text json, day date, clock time, clock_zone timetz, at timestamp, at_zone timestamptz,
        span interval, word varchar(20), fixed char(5), uid uuid, feeling mood, both_of pair, range int4range,
        numbers int[], words text[], exacts numeric[], grid int[][], address inet, bits varbit, cash money, spot point,
        twice bigint GENERATED ALWAYS AS (id * 2) STORED, big text);
    ALTER TABLE kinds ALTER COLUMN big SET STORAGE EXTERNAL;
    CREATE TABLE whole (a int, b text, note text, PRIMARY KEY (b, a));
    ALTER TABLE whole REPLICA IDENTITY FULL;
    CREATE TABLE keyless (a int, b text);
    ALTER TABLE keyless REPLICA IDENTITY FULL;
    CREATE TABLE parts (id int, region text, n int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
    CREATE TABLE parts_east PARTITION OF parts FOR VALUES IN ('east');
    CREATE TABLE parts_west PARTITION OF parts FOR VALUES IN ('west');
    CREATE TABLE child (id int PRIMARY KEY, plain_id int REFERENCES plain ON DELETE CASCADE ON UPDATE CASCADE);
"""
TRACKED = ("plain", "kinds", "whole", "keyless", "parts", "child")
VALUES = """
    (%s, %s, 3, 12.30, 0.1, 'NaN', '\\x00ff', '{"a": [1, 2.50, null], "$json": "x"}', '{ "b" : 1 }', '2026-02-03',
     '12:30:01.5', '12:30+02', '2026-02-03 01:02:03.4', '2026-02-03 01:02:03+05', '1 year 2 days 03:04:05', 'żółć',
     'ab', 'b0e5c7a4-3f0e-4c57-9a53-0d6f2a3b9c11', 'busy', '(1,"x y")', '[1,5)', '{1,NULL,3}',
     '{"a b",NULL,"c\\"d"}', '{1.10,2}', '{{1,2},{3,4}}', '10.0.0.1/8', '10110', '12.34', '(1,2.5)')
"""
KINDS = """
    INSERT INTO kinds (id, yes, small, exact, single, double, raw, doc, doc_text, day, clock, clock_zone, at, at_zone,
        span, word, fixed, uid, feeling, both_of, range, numbers, words, exacts, grid, address, bits, cash, spot)
    VALUES
"""


@pytest.fixture(scope="module")
def logical(servers: Callable[[int], PostgresServer]) -> Iterator[PostgresServer]:
    """The shared server, with a template that has the tables."""
    server = servers(versions()[-1])
    with connect(server.url()) as admin:
        admin.execute(f"CREATE DATABASE crosschecked TEMPLATE {TEMPLATE}")
        with connect(server.url("crosschecked")) as template:
            template.execute(TABLES)
        yield server
        admin.execute("DROP DATABASE crosschecked WITH (FORCE)")


@pytest.fixture
def database(logical: PostgresServer) -> Iterator[str]:
    with fresh_database(logical, template="crosschecked") as url:
        with connect(url) as made:
            made.execute("SELECT forge.current_identity()")
            for table in TRACKED:
                made.execute(
                    "SELECT forge_enable_reactivity(%s, exclude => %s, mask => %s)",
                    (table, *((["secret"], ["card"]) if table == "plain" else ([], []))),
                )
        yield url


def found(report: CrosscheckReport) -> list[tuple[DifferenceKind, str, str, Op]]:
    return [(each.kind, each.table.removeprefix("public."), each.key, each.op) for each in report.differences]


async def window(url: str, *work: str, **options: Any) -> CrosscheckReport:
    """The report of a window in which statements are run, each in a transaction of its own."""
    async with asyncio.timeout(30), open_window(url, **options) as opened:
        with connect(url) as writer:
            for statements in work:
                writer.execute(statements.encode())
        return await opened.close()


class Traffic:
    """Random transactions of one writer; the same seed does the same, as far as the others let it."""

    def __init__(self, url: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._url = url

    def run(self, transactions: int, stop: threading.Event) -> None:
        with connect(self._url) as connection:
            connection.execute("SET lock_timeout = '100ms'; SET deadlock_timeout = '20ms'")
            for _ in range(transactions):
                if stop.is_set():
                    return
                try:
                    with connection.transaction(force_rollback=self._random.random() < 0.15):
                        self._work(connection, self._random.randint(1, 6))
                except (psycopg.errors.IntegrityError, psycopg.errors.OperationalError):
                    continue

    def _work(self, connection: Connection, count: int) -> None:
        for _ in range(count):
            if self._random.random() < 0.2:
                try:
                    with connection.transaction(force_rollback=self._random.random() < 0.5):
                        self._work(connection, 2)
                except psycopg.errors.IntegrityError:
                    continue
            else:
                self._statement(connection)

    def _statement(self, connection: Connection) -> None:
        pick, number = self._random.choice, self._random.randint
        a, b, word = number(1, 40), number(1, 40), pick(("x", "y", "long " * 700))
        statement, values = pick(
            (
                ("INSERT INTO plain VALUES (%s, %s, 's', 'c', 1.5)"
                 " ON CONFLICT (id) DO UPDATE SET total = plain.total + 1", (a, word)),
                ("UPDATE plain SET status = %s, secret = %s WHERE id BETWEEN %s AND %s + 5", (word, word, a, a)),
                ("UPDATE plain SET card = %s WHERE id = %s", (word, a)),
                ("UPDATE plain SET id = %s WHERE id = %s", (b, a)),
                ("DELETE FROM plain WHERE id = %s", (a,)),
                ("INSERT INTO child SELECT %s, id FROM plain LIMIT 1 ON CONFLICT DO NOTHING", (b,)),
                (KINDS + VALUES, (a, pick((True, False, None)))),
                ("UPDATE kinds SET big = repeat(%s::text, 3000), exact = 'Infinity' WHERE id = %s", (word[0], a)),
                ("UPDATE kinds SET yes = NOT yes, doc = 'null' WHERE id = %s", (a,)),
                ("UPDATE kinds SET id = id + 100, single = '-0', numbers = '[0:1]={1,2}' WHERE id = %s", (a,)),
                ("DELETE FROM kinds WHERE id = %s", (a,)),
                ("MERGE INTO whole w USING (SELECT %s::int AS a, 'k'::text AS b) s ON (w.a, w.b) = (s.a, s.b)"
                 " WHEN MATCHED AND w.note = 'old' THEN DELETE WHEN MATCHED THEN UPDATE SET note = 'old'"
                 " WHEN NOT MATCHED THEN INSERT VALUES (s.a, s.b, %s)", (a, word)),
                ("UPDATE whole SET a = a + 100 WHERE a < %s", (a,)),
                ("INSERT INTO keyless SELECT n %% 3, %s FROM generate_series(1, %s) n", (word, a)),
                ("UPDATE keyless SET a = a + 1 WHERE a = %s", (a % 5,)),
                ("DELETE FROM keyless WHERE a = %s", (a % 5,)),
                ("INSERT INTO parts VALUES (%s, 'east', 0) ON CONFLICT DO NOTHING", (a,)),
                ("UPDATE parts SET n = n + 1 WHERE id < %s", (a,)),
                ("UPDATE parts SET n = 7, region = CASE region WHEN 'east' THEN 'west' ELSE 'east' END WHERE id = %s",
                 (a,)),
                ("DELETE FROM parts WHERE id = %s", (a,)),
                (f"TRUNCATE {pick(('keyless', 'plain, child', 'kinds', 'parts'))}" if number(1, 9) == 1 else "SELECT 1",
                 ()),
            )
        )  # fmt: skip
        connection.execute(statement.encode(), values)


async def compared(url: str, traffic: Traffic, stop: threading.Event) -> CrosscheckReport | None:
    """The report of a window; None where PostgreSQL itself broke it off.

    Seldom, decoding from a slot that was made while tables were truncated fails in the server: it has lost which table
    a file was of.
    """
    try:
        async with asyncio.timeout(60), open_window(url) as opened:
            await asyncio.to_thread(traffic.run, 60, stop)
            return await opened.close()
    except SourceError as error:
        if "could not map filenumber" not in str(error):
            raise
        return None


@pytest.mark.parametrize("seed", [1, 2])
async def test_both_feeds_tell_the_same_under_concurrent_traffic(database: str, seed: int) -> None:
    """The window opens and closes while writers are in the middle of it."""
    stop = threading.Event()
    first, *others = (Traffic(database, seed * 10 + n) for n in range(3))
    around = [asyncio.create_task(asyncio.to_thread(other.run, 100_000, stop)) for other in others]
    try:
        report = None
        while report is None:
            report = await compared(database, first, stop)
    finally:
        stop.set()
        await asyncio.gather(*around)
    assert [*report.differences] == []
    assert report.equal
    assert report.changes > 100
    assert report.transactions > 10
    assert report.logged > 0


async def test_what_is_not_compared_is_no_difference(database: str) -> None:
    """Excluded and masked columns, what was not sent, generated columns, and a row that moves to another partition."""
    report = await window(
        database,
        "INSERT INTO plain VALUES (1, 'new', 'hush', '4111', 1)",
        "UPDATE plain SET secret = 'other', card = '4222'",
        "INSERT INTO kinds (id, big) VALUES (1, repeat('x', 9000)); UPDATE kinds SET small = 1",
        "INSERT INTO parts VALUES (1, 'east', 1); UPDATE parts SET region = 'west'",
        "UPDATE whole SET note = note; INSERT INTO keyless VALUES (1, NULL), (1, NULL); DELETE FROM keyless",
    )
    assert (report.equal, report.differences) == (True, [])
    assert report.transactions == 5
    assert report.tables == tuple(f"public.{name}" for name in sorted(TRACKED))


async def test_a_write_that_triggers_did_not_see(database: str) -> None:
    report = await window(
        database,
        "INSERT INTO plain VALUES (1, 'new')",
        "SET session_replication_role = replica; INSERT INTO plain VALUES (2);"
        " UPDATE plain SET status = 'paid' WHERE id = 1;"
        " DELETE FROM plain WHERE id = 1; INSERT INTO keyless VALUES (5, 'x')",
        "SET session_replication_role = origin; ALTER TABLE whole DISABLE TRIGGER USER;"
        " INSERT INTO whole VALUES (1, 'b');"
        " ALTER TABLE whole ENABLE TRIGGER USER; INSERT INTO whole VALUES (2, 'b'); TRUNCATE keyless",
    )
    assert sorted(found(report)) == [
        (DifferenceKind.MISSING_IN_LOG, "keyless", "*", Op.INSERT),
        (DifferenceKind.MISSING_IN_LOG, "plain", "1", Op.DELETE),
        (DifferenceKind.MISSING_IN_LOG, "plain", "1", Op.UPDATE),
        (DifferenceKind.MISSING_IN_LOG, "plain", "2", Op.INSERT),
        (DifferenceKind.MISSING_IN_LOG, "whole", '["b", "1"]', Op.INSERT),
    ]
    assert (report.missing_in_log, report.missing_in_wal, report.differing, report.reordered) == (5, 0, 0, 0)
    assert len({each.transaction for each in report.differences}) == 2
    assert not report.equal


async def test_a_log_that_was_tampered_with(database: str) -> None:
    report = await window(
        database,
        "INSERT INTO plain VALUES (1, 'new', 's', 'c', 1), (2, 'new', 's', 'c', 1), (3, 'new', 's', 'c', 1)",
        "UPDATE plain SET status = 'paid', total = 2 WHERE id = 1",
        "INSERT INTO whole VALUES (1, 'b', 'was'); UPDATE whole SET note = 'is'; UPDATE whole SET note = 'last'",
        "DELETE FROM forge.forge_event_log WHERE row_id = '2'",
        """UPDATE forge.forge_event_log SET after = (after::jsonb || '{"total": 3.000}')::json
           WHERE row_id = '1' AND op = 'U'""",
        """UPDATE forge.forge_event_log SET before = '{"note": "never"}'
           WHERE row_id LIKE '%b%' AND before::text LIKE '%was%'""",
        """INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op, row_id, after)
           SELECT transaction_id, at, day, version, op, '9', (after::jsonb || '{"id": 9}')::json
           FROM forge.forge_event_log WHERE row_id = '3'""",
    )
    assert found(report) == [
        (DifferenceKind.MISSING_IN_LOG, "plain", "2", Op.INSERT),
        (DifferenceKind.MISSING_IN_WAL, "plain", "9", Op.INSERT),
        (DifferenceKind.DIFFERS, "plain", "1", Op.UPDATE),
        (DifferenceKind.DIFFERS, "whole", '["b", "1"]', Op.UPDATE),
    ]
    total, note = (each.values for each in report.differences if each.kind is DifferenceKind.DIFFERS)
    assert [(each.column, each.image, str(each.log), str(each.wal)) for each in total] == [
        ("total", "after", "3.000", "2.000")
    ]
    assert [(each.column, each.image, each.log, each.wal) for each in note] == [("note", "before", "never", "was")]


async def test_a_table_that_the_log_says_to_read_anew(database: str) -> None:
    """Rows that could not be logged are told as a whole: that is no difference."""
    with connect(database) as connection:
        connection.execute("SELECT forge_enable_reactivity('plain', on_failure => 'invalidate')")
        connection.execute("ALTER TABLE forge.forge_event_log ADD CONSTRAINT no_seven CHECK (row_id <> '7')")
    report = await window(database, "INSERT INTO plain VALUES (7)", "INSERT INTO plain VALUES (8)")
    assert (report.equal, report.invalidated, report.changes, report.logged) == (True, 1, 2, 1)


async def test_the_window_is_exact(database: str) -> None:
    """What was committed before it is out, what is committed within is in, what is open at its end is out: in both."""
    with connect(database) as early, connect(database) as late, connect(database) as prepared:
        early.execute("INSERT INTO plain VALUES (1)")
        async with asyncio.timeout(30), open_window(database) as opened:
            early.execute("INSERT INTO plain VALUES (2)")
            prepared.execute(
                "SET forge.wakeup = poll; BEGIN; INSERT INTO plain VALUES (3); PREPARE TRANSACTION 'crosscheck'"
            )
            with late.transaction():
                late.execute("INSERT INTO plain VALUES (4)")
                prepared.execute("COMMIT PREPARED 'crosscheck'")
                report = await opened.close()
        assert (report.equal, report.transactions, report.changes, report.logged) == (True, 2, 2, 2)


async def test_a_disk_that_is_full_is_said_so(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_SQL", spool._SQL + "PRAGMA max_page_count = 20;")
    with pytest.raises(SourceError, match="full") as raised:
        await window(database, "INSERT INTO keyless SELECT n, repeat('x', 500) FROM generate_series(1, 2000) n")
    assert "SQLITE_TMPDIR" in raised.value.fix


def test_both_feeds_are_told_that_the_disk_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_SQL", spool._SQL + "PRAGMA max_page_count = 20;")
    file = spool.CrosscheckSpool([["a"]])
    source, at = ChangeSource("log", "shop", "1"), datetime(2026, 1, 1, tzinfo=UTC)
    row = Change("1", Op.INSERT, "public", "keyless", source, at, after={"a": "x" * 500})
    for side in (spool.LOG, spool.WAL, spool.WAL):
        with pytest.raises(SourceError, match="full"):
            file.add(side, [(1, 0, row)] * 2000)
    file.close()


async def test_tables_that_are_left_out_are_named(database: str) -> None:
    with connect(database) as connection:
        connection.execute("ALTER TABLE keyless REPLICA IDENTITY DEFAULT; CREATE TABLE other (id int)")
        connection.execute("ALTER TABLE plain ADD COLUMN n int NOT NULL DEFAULT 0; CREATE UNIQUE INDEX n ON plain (n)")
        connection.execute("ALTER TABLE plain REPLICA IDENTITY USING INDEX n")
    report = await window(database, "INSERT INTO keyless VALUES (1)", "UPDATE keyless SET a = 2")
    assert report.left_out.keys() == {"public.keyless", "public.other", "public.plain"}
    assert "REPLICA IDENTITY FULL" in report.left_out["public.keyless"]
    assert "not tracked" in report.left_out["public.other"]
    assert "lacks its primary key" in report.left_out["public.plain"]
    assert (report.equal, report.changes) == (True, 0)
    with pytest.raises(SourceError, match="no table can be compared") as raised:
        await window(database, wanted=Filter(tables=("other",)))
    assert "forge enable" in raised.value.fix


def left_behind(connection: Connection) -> int:
    row = connection.execute(
        "SELECT (SELECT count(*) FROM pg_publication)"
        " + (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())"
    )
    found = row.fetchone()
    assert found is not None
    return int(found[0])


async def gone(connection: Connection) -> None:
    await until(lambda: left_behind(connection), lambda left: left == 0)


async def test_nothing_is_left_behind(database: str) -> None:
    with connect(database) as connection:
        async with open_window(database):
            assert left_behind(connection) == 2
        await gone(connection)
        connection.execute("CREATE PUBLICATION forge_crosscheck_1 FOR ALL TABLES")
        connection.execute("COMMENT ON PUBLICATION forge_crosscheck_1 IS 'made by forge; filters: tables x'")
        await window(database)
        await gone(connection)
        async with open_window(database) as opened:
            connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
            with pytest.raises(psycopg.OperationalError):
                await opened.during(20)
        await gone(connection)


async def test_a_named_slot_is_read_and_not_moved(database: str) -> None:
    with connect(database) as connection:
        cursor = await WalSource(database, slot="mine").now()
        connection.execute("SET session_replication_role = replica; INSERT INTO plain VALUES (1)")
        slot = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'mine'"
        before = connection.execute(slot).fetchone()
        report = await window(database, "INSERT INTO plain VALUES (2)", slot="mine")
        assert (report.equal, report.changes, report.logged) == (True, 1, 1)
        assert connection.execute(slot).fetchone() == before
        async with open_window(database, slot="mine"):
            with pytest.raises(SlotInUse):
                await window(database, slot="mine")
        with pytest.raises(SlotLost):
            await window(database, slot="yours", publication="mine")
        with pytest.raises(SourceError, match="no publication"):
            await window(database, slot="yours")
        connection.execute("ALTER PUBLICATION mine SET (publish = 'insert')")
        with pytest.raises(SourceError, match="every operation"):
            await window(database, slot="mine")
    assert cursor


async def test_a_server_whose_wal_does_not_say_what_changed() -> None:
    with temporary_postgres(settings={"wal_level": "replica", "max_wal_senders": "1"}) as server:
        with pytest.raises(SourceError, match="wal_level") as level:
            await window(server.url())
        assert "ALTER SYSTEM SET wal_level = logical" in level.value.fix


async def test_databases_and_roles_that_cannot(database: str, logical: PostgresServer) -> None:
    with connect(database) as connection, fresh_database(logical) as bare:
        with pytest.raises(NotInstalled) as missing:
            await window(bare)
        assert missing.value.fix == "forge init"
        role = f"plain_{database[-8:]}"
        connection.execute(f"CREATE ROLE {role} LOGIN IN ROLE postgres")
        try:
            url = database.replace("postgres@", f"{role}@")
            with pytest.raises(SourceError, match="may not replicate") as right:
                await window(url)
            assert "ALTER ROLE" in right.value.fix
        finally:
            connection.execute(f"DROP ROLE {role}")


def test_changes_in_another_order_and_in_the_middle() -> None:
    def update(before: object, after: object) -> SeenChange:
        return SeenChange(Op.UPDATE, {"a": before}, {"a": after})

    one, two, three = update(1, 2), update(2, 3), update(3, 4)
    assert compare([one, two, three], [one, two, three]) == []
    assert [kind for kind, _, _ in compare([two, one, three], [one, two, three])] == [DifferenceKind.ORDER]
    assert compare([one, three], [one, two, three]) == [(DifferenceKind.MISSING_IN_LOG, two, ())]
    assert compare([one, two, three], [one, three]) == [(DifferenceKind.MISSING_IN_WAL, two, ())]
    assert compare([one], [update(UNAVAILABLE, 2)]) == []
